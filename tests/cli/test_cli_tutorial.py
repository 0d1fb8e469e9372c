"""`pathexpand tutorial`: notebooks listed, copied out whole, and nothing of a user's lost."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path
from typing import Any

import pytest

from pathexpand.errors import FileError
from pathexpand.tutorial import copy_out, notebooks

FILES = {notebook.file: notebook.text.encode() for notebook in notebooks()}


def held(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_it_lists_the_notebooks(call):
    done = call("tutorial")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split(": ")[0] for line in lines[:-1:2]] == list(FILES)
    assert all(line.startswith("  ") for line in lines[1:-1:2])
    assert "pathexpand tutorial DIRECTORY" in lines[-1]


def test_it_copies_the_notebooks_out(call, tmp_path):
    place = tmp_path / "evening"
    done = call("tutorial", place)
    assert (done.code, done.err) == (0, "")
    assert held(place) == FILES
    lines = done.out.splitlines()
    assert lines[0] == f"{len(FILES)} notebooks written to {place}:"
    assert [line.strip() for line in lines[1:-1]] == list(FILES)
    assert lines[-1].endswith(f"jupyter lab {place}")


def test_a_directory_that_is_there_keeps_what_else_is_in_it(call, tmp_path):
    (tmp_path / "own.ipynb").write_text("mine")
    assert call("tutorial", tmp_path).code == 0
    assert held(tmp_path) == FILES | {"own.ipynb": b"mine"}


@pytest.mark.parametrize("name", ["with space", "-n", "it's", "naïve 漢"])
def test_names_of_directories(call, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    done = call("tutorial", "--", name)
    assert held(tmp_path / name) == FILES
    assert shlex.split(done.out.splitlines()[-1])[-1] == name


def test_nothing_is_overwritten_unless_forced(call, tmp_path):
    third = list(FILES)[2]
    (tmp_path / third).write_text("my answers")
    line = call("tutorial", tmp_path).refused()
    assert third in line
    assert "--force replaces them" in line
    assert held(tmp_path) == {third: b"my answers"}
    (tmp_path / third).chmod(0o600)
    assert call("tutorial", "--force", tmp_path).code == 0
    assert held(tmp_path) == FILES
    assert stat.S_IMODE((tmp_path / third).stat().st_mode) == 0o600


def test_a_second_copy_names_one_and_counts_the_others(call, tmp_path):
    call("tutorial", tmp_path)
    line = call("tutorial", tmp_path).refused()
    assert f"{next(iter(FILES))} and {len(FILES) - 1} more" in line


def test_links_count_as_files(call, tmp_path):
    elsewhere, place = tmp_path / "elsewhere", tmp_path / "place"
    place.mkdir()
    (place / next(iter(FILES))).symlink_to(elsewhere)  # it leads nowhere
    assert "--force" in call("tutorial", place).refused()
    assert not elsewhere.exists()


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_directory_in_the_place_of_a_notebook(call, tmp_path, force):
    last = list(FILES)[-1]
    (tmp_path / last).mkdir()
    assert f"a directory {last}" in call("tutorial", *force, tmp_path).refused()
    assert [file.name for file in tmp_path.iterdir()] == [last]


def refusals(place: Path) -> list[tuple[list[Any], str]]:
    file = place / "file"
    file.write_text("text")
    return [
        ([""], "wanted the name of a directory, got an empty one"),
        (["  "], "an empty one"),
        ([file], "wanted a directory, got a file"),
        ([file / "below"], "Not a directory"),
        ([place / "no such" / "place"], "No such file or directory"),
        (["x" * 5000], "File name too long"),
        (["\0"], "null"),
        (["--force"], "--force wants a DIRECTORY"),
        (["one", "two"], "unexpected extra argument"),
        (["--frobnicate"], "--frobnicate"),
    ]


@pytest.mark.parametrize("number", range(10))
def test_bad_directories_are_refused(call, tmp_path, monkeypatch, number):
    monkeypatch.chdir(tmp_path)
    arguments, said = refusals(tmp_path)[number]
    line = call("tutorial", *arguments).refused()
    assert said in line
    assert len(line) < 500
    assert held(tmp_path) == {"file": b"text"}


@pytest.mark.parametrize("name", ["mkdir", "open"])
def test_a_directory_that_cannot_be_written(call, tmp_path, monkeypatch, name):
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        # Root may write anywhere, so that what it tries must be refused by hand.
        patch.setattr(Path, name, refused)
        place = tmp_path if name == "open" else tmp_path / "below"
        assert "Permission denied" in call("tutorial", place).refused()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_to_its_end_is_not_left_behind(tmp_path, monkeypatch):
    from pathexpand.tutorial.notebook import Notebook

    text, left = Notebook.text.fget, [3]

    def broken(self: Notebook) -> str:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return text(self)

    place = tmp_path / "place"
    found = notebooks()
    monkeypatch.setattr("pathexpand.tutorial.notebook.notebooks", lambda: found)
    monkeypatch.setattr(Notebook, "text", property(broken))
    with pytest.raises(FileError, match="No space left"):
        copy_out(place)
    assert all(FILES[name] == data for name, data in held(place).items())  # none of them in part


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_name_that_stdout_cannot_show(spawn, tmp_path, encoding):
    done = spawn("tutorial", tmp_path / "漢", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u6f22" in done.stdout
    assert held(tmp_path / "漢") == FILES
