"""Every notebook of the tutorial runs from top to bottom, and says the same each time."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest

from pathexpand.tutorial import notebooks
from pathexpand.tutorial.exercises import EXERCISES

RUN = Path(__file__).with_name("run_notebook.py")
NOTEBOOKS = [notebook.file for notebook in notebooks()]
TEXTS = {notebook.file: notebook.text for notebook in notebooks()}
TAGS = {"exercise", "solution", "parameters"}


def read(file: str) -> Any:
    return nbformat.reads(TEXTS[file], as_version=4)


class StoppedError(Exception):
    """A cell of a notebook stopped it."""


def execute(notebook: Any, place: Path, *, seed: str = "0") -> Any:
    """Run a notebook in a kernel of its own, in an empty folder."""
    folder = place / "folder"
    folder.mkdir()
    nbformat.write(notebook, place / "in.ipynb")
    done = subprocess.run(
        [sys.executable, str(RUN), str(place / "in.ipynb"), str(place / "out.ipynb"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONHASHSEED": seed, "PATHEXPAND_PROGRESS": "0"},
    )
    if done.returncode:
        raise StoppedError(done.stderr)
    assert list(folder.iterdir()) == []  # it leaves nothing on disk
    return nbformat.read(place / "out.ipynb", as_version=4)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def run(file: str, seed: str = "0") -> Any:
        return execute(read(file), tmp_path_factory.mktemp("tutorial"), seed=seed)

    return run


def code(notebook: Any, tag: str | None = None) -> list[Any]:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in cells if tag is None or tag in cell.metadata.get("tags", [])]


def printed(cell: Any) -> str:
    """Give what a cell shows, as text."""
    return "".join(
        output.text if output.output_type == "stream" else output.data.get("text/plain", "") + "\n"
        for output in cell.outputs
    )


# --- as they are in the repository ---------------------------------------------------------------


def test_they_are_numbered() -> None:
    assert [name.split("-")[0] for name in NOTEBOOKS] == [str(n + 1) for n in range(8)]


@pytest.mark.parametrize("file", NOTEBOOKS)
def test_a_notebook_is_stored_without_outputs_in_one_form(file: str) -> None:
    notebook = read(file)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert nbformat.writes(notebook) + "\n" == TEXTS[file]
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata.language_info) == {"name"}
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(rf"{file[0]}-[a-z0-9]+", each) for each in ids)
    for cell in code(notebook):
        assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.parametrize("notebook", notebooks(), ids=lambda notebook: notebook.file)
def test_a_notebook_says_in_two_lines_what_it_is_about(notebook: Any) -> None:
    assert notebook.title and not notebook.title.startswith("#")
    assert re.fullmatch(r"[A-Z][^.]*\.", notebook.about)
    assert (notebook.title + notebook.about).isascii()  # the command lists them anywhere
    assert len(notebook.about) <= 76  # a line of 80, indented


@pytest.mark.parametrize("file", NOTEBOOKS)
def test_every_exercise_is_asked_once_with_a_hint_and_answered_once(file: str) -> None:
    notebook = read(file)
    own = [name for name in EXERCISES if name.startswith(f"{file[0]}.")]
    assert 2 <= len(own) <= 4
    for tag in ("exercise", "solution"):
        asked = [re.findall(r'check\("([^"]+)"', cell.source) for cell in code(notebook, tag)]
        assert asked == [[name] for name in own]
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert re.findall(r"^### (\d\.\d) \S", text, flags=re.MULTILINE) == own
    assert re.findall(r"^\*\*(\d\.\d)\*\*", text, flags=re.MULTILINE) == own
    assert text.count("<details><summary>Hint</summary>") == text.count("</details>") == len(own)
    places = {tag: [notebook.cells.index(cell) for cell in code(notebook, tag)] for tag in TAGS}
    answers = next(n for n, cell in enumerate(notebook.cells) if cell.source == "## Answers")
    assert max(places["exercise"]) < answers < min(places["solution"])
    for cell in code(notebook):
        assert set(cell.metadata) <= {"tags"}
        assert set(cell.metadata.get("tags", [])) <= TAGS


# --- executed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", NOTEBOOKS)
def test_a_notebook_runs_and_warns_of_nothing(executed: Any, file: str) -> None:
    notebook = executed(file)
    for cell in code(notebook):
        for output in cell.outputs:
            assert output.output_type in ("stream", "display_data", "execute_result")
            assert output.get("name") != "stderr", output.text


@pytest.mark.parametrize("file", NOTEBOOKS)
def test_exercises_are_open_as_shipped_and_their_solutions_right(executed: Any, file: str) -> None:
    notebook = executed(file)
    for cell in code(notebook, "exercise"):
        name = re.findall(r'check\("([^"]+)"', cell.source)[0]
        assert printed(cell) == f"Exercise {name}: not yet. The answer is still None.\n"
    for cell in code(notebook, "solution"):
        name = re.findall(r'check\("([^"]+)"', cell.source)[0]
        assert printed(cell) == f"Exercise {name}: right.\n"


@pytest.mark.parametrize("file", NOTEBOOKS)
def test_pictures_are_drawn_once(executed: Any, file: str) -> None:
    for cell in code(executed(file)):
        drawn = [output for output in cell.outputs if "image/png" in output.get("data", {})]
        assert len(drawn) == (re.search(r"\bplot\.\w+\(", cell.source) is not None), cell.source


def steady(text: str) -> list[str]:
    """Give the words of a text but for rounding, which differs from run to run."""
    words = re.split(r"[\s─]+", text)
    return [word for word in words if not re.fullmatch(r"-?(0|[\d.]+e[-+]\d+)[,.]?", word)]


@pytest.mark.parametrize("file", NOTEBOOKS)
def test_a_notebook_says_the_same_each_time(executed: Any, file: str) -> None:
    one, other = executed(file), executed(file, "1")
    for cell, again in zip(code(one), code(other), strict=True):
        assert steady(printed(cell)) == steady(printed(again))


@pytest.mark.shared_models
def test_the_notebook_on_mlps_takes_a_checkpoint(shared_models: Path, tmp_path: Path) -> None:
    notebook = read("5-mlps-and-rotary.ipynb")
    (parameters,) = code(notebook, "parameters")
    assert parameters.source.startswith("directory = None")
    parameters.source = f"directory = {str(shared_models / 'stories260k')!r}"
    notebook = execute(notebook, tmp_path)
    assert "' Lily'" in "".join(map(printed, code(notebook)))
    assert [printed(cell)[-7:] for cell in code(notebook, "solution")] == ["right.\n"] * 3


def test_a_claim_that_is_not_true_stops_a_notebook(tmp_path: Path) -> None:
    notebook = read("1-zero-layers.ipynb")
    wrong = [cell for cell in notebook.cells if '== "il"' in cell.source]
    assert len(wrong) == 1
    wrong[0].source = wrong[0].source.replace('== "il"', '== "ill"')
    with pytest.raises(StoppedError, match="AssertionError"):
        execute(notebook, tmp_path)
