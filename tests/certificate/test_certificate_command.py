"""`pathexpand table --certificate` and `pathexpand check`, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pathexpand.api import load
from pathexpand.certificate import Certificate, certify
from pathexpand.cli import main
from pathexpand.engine import ranking
from pathexpand.errors import FileError
from pathexpand.table import PathTable
from pathexpand.target import DirectionTarget

FAMILIES = Path(__file__).parents[1] / "reference" / "families"


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    code = ended.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture
def file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    file = tmp_path / "paths.json"
    assert command("table", "--top", "4", "--certificate", str(file)) == 0
    assert capsys.readouterr().out.startswith("model")
    return file


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Give the one line with which a command ends in status 2."""
    assert command(*arguments) == 2
    shown = capsys.readouterr()
    assert not shown.out and shown.err.count("\n") == 1
    return shown.err


def test_what_table_writes_check_passes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("check", str(file)) == 0
    out = capsys.readouterr().out
    assert "All 11 checks hold." in out
    for name in ("content", "model", "values", "sums", "bound", "certified"):
        assert f"\n{name} " in out


@pytest.mark.parametrize(
    "options",
    [
        ("--query", "embed > * > L1H2"),
        ("--max-order", "1"),
        ("--nodes", "1", "--tokens", "1,2,3,4"),
        ("--nodes", "0", "--tokens", "1,2,3,4"),
        ("--top", "0"),
        ("--raw", "--target", "id:5-id:7", "--position", "2", "--tokens", "1,2,3,4"),
    ],
    ids=" ".join,
)
def test_every_kind_of_table_passes(options: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "paths.json"
    assert command("table", "--certificate", str(file), *options) == 0
    assert command("check", str(file)) == 0


@pytest.mark.parametrize("mlp", ["source", "frozen", "neurons"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "gpt_neox", "gemma2"])
def test_a_table_of_any_family_passes(
    family: str, mlp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The certificate says how MLPs were taken, and where the model is."""
    file = tmp_path / "paths.json"
    prompt = ("--model", str(FAMILIES / family), "--tokens", "1,2,3,4", "--mlp", mlp)
    assert command("table", "--certificate", str(file), "--top", "20", *prompt) == 0
    assert json.loads(file.read_text())["model"]["mlp"] == mlp
    assert command("check", str(file)) == 0
    assert "All 11 checks hold." in capsys.readouterr().out


def test_an_edited_mode_ends_in_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "paths.json"
    prompt = ("--model", str(FAMILIES / "gpt2"), "--tokens", "1,2,3,4", "--mlp", "neurons")
    assert command("table", "--certificate", str(file), *prompt) == 0
    document = json.loads(file.read_text())
    document["model"]["mlp"] = "frozen"
    file.write_text(Certificate.from_json(json.dumps(document)).sealed().to_json())
    assert command("check", str(file)) == 1
    assert "content FAILS" not in capsys.readouterr().out
    document["model"]["mlp"] = "melted"
    file.write_text(json.dumps(document))
    assert "wanted source, frozen or neurons" in refused(capsys, "check", str(file))


def test_without_a_bound_there_is_no_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after Ctrl-C in the energy pass, before there is anything to bound with."""

    def interrupted(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ranking, "energies", interrupted)
    file = tmp_path / "paths.json"
    assert command("table", "--certificate", str(file), "--seconds", "9") == 2
    assert "wanted a table with a bound" in capsys.readouterr().err
    assert not file.exists()


def test_an_edited_certificate_ends_in_1(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(file.read_text())
    document["table"]["bound"] /= 2
    file.write_text(json.dumps(document))
    assert command("check", str(file)) == 1
    out = capsys.readouterr().out
    assert "content FAILS" in out and "bound FAILS" in out
    file.write_text(Certificate.from_json(json.dumps(document)).sealed().to_json())
    assert command("check", str(file)) == 1
    out = capsys.readouterr().out
    assert "content FAILS" not in out and "bound FAILS: unlisted embed > " in out


def test_another_model_ends_in_1(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("check", str(file), "--model", "one-layer") == 1
    assert "model FAILS: SHA-256 of the weights" in capsys.readouterr().out


def test_a_model_that_is_gone_can_be_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(file.read_text())
    document["model"]["from"] = "gone/model"
    moved = Certificate.from_json(json.dumps(document)).sealed()
    file.write_text(moved.to_json())
    said = refused(capsys, "check", str(file))
    assert "gone/model" in said and "name the model with --model" in said
    assert command("check", str(file), "--model", "two-layer") == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"certificate": "pathexpand paths"}',
        b'{"certificate": "pathexpand paths", "version": 3}',
        b'{"certificate": "pathexpand paths", "version": 1}',
        b'{"certificate": "pathexpand paths", "version": 2}',
        b'{"certificate": "pathexpand paths", "version": 2, "model": []}',
        b"[" * 100_000,
        b'{"certificate": "pathexpand paths", "version": 2, "model": {"from": "", "mlp": "source",'
        b' "weights": "", "architecture": {"x": ' + b"[" * 900 + b"]" * 900 + b"}}}",
        b'{"table": "paths", "model": "two-layer"}',
        b"NaN",
    ],
)
def test_foreign_files_end_in_2(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "foreign.json"
    file.write_bytes(content)
    refused(capsys, "check", str(file))


def test_every_member_is_needed_and_has_its_type(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads(file.read_text())
    for key in whole:
        for wrong in (None, 5, "x", [5], {"x": 5}, True):
            file.write_text(json.dumps(whole | {key: wrong}))
            assert command("check", str(file)) in (1, 2)
        file.write_text(json.dumps({each: whole[each] for each in whole if each != key}))
        assert command("check", str(file)) == 2
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err


def test_files_that_cannot_be_read_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "No such file" in refused(capsys, "check", str(tmp_path / "none.json"))
    assert "directory" in refused(capsys, "check", str(tmp_path))
    where = str(tmp_path / "none" / "paths.json")
    assert command("table", "--certificate", where) == 2
    shown = capsys.readouterr()
    assert not shown.out and "cannot write" in shown.err
    assert shown.err.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("member", "twin"),
    [
        ('"bound": ', '"bound": 0.0, '),
        ('"sha256": ', '"sha256": "", '),
        ('"rank": 1', '"rank": 1, '),
    ],
)
def test_a_member_that_stands_twice_is_refused(
    member: str, twin: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = file.read_text()
    assert member in text
    file.write_text(text.replace(member, twin + member, 1))
    assert "stands there twice" in refused(capsys, "check", str(file))


def test_a_table_with_a_member_twice_is_refused() -> None:
    text = load("two-layer").run("to be").paths(top=2).to_json()
    with pytest.raises(FileError, match="the member 'bound' stands there twice"):
        PathTable.from_json(text.replace('"bound": ', '"bound": 0.0, "bound": ', 1))


def test_a_direction_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = load("two-layer").run("to be")
    target = DirectionTarget(np.ones(run.model.config.d_model), "the logit of 'a'")
    file = tmp_path / "paths.json"
    file.write_text(certify(run, run.searched_paths(target, top=2)).to_json())
    assert command("check", str(file)) == 0
    assert "\ntarget       a direction, called the logit of 'a'\n" in capsys.readouterr().out


def test_weights_only_takes_no_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "table", "--weights-only", "--certificate", str(tmp_path / "x"))
    assert "--certificate" in said and not list(tmp_path.iterdir())
