"""`pathexpand scores` from end to end."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest

import pathexpand
from pathexpand.cli import main
from pathexpand.table import ScoreTable


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["scores", *arguments])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_the_default_is_the_induction_head(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    assert "L1H0" in out and "Certified" in out and "composed on the key's side" in out
    first = next(line for line in out.splitlines() if line.strip().startswith("1 "))
    assert "embed > L0H3" in first and " K " in first


def test_json_is_the_table_of_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--prompt", "to be or not to be", "--head", "L1H2", "--key", "2", "--over", "1")
    status, out, _ = run(capsys, *options, "--format", "json", "--top", "4")
    table = pathexpand.load("two-layer").run("to be or not to be").why("L1H2", key=2, over=1, top=4)
    assert status == 0 and ScoreTable.from_json(out) == table
    assert json.loads(out)["over"] == 1


def test_csv_adds_up_to_the_score(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--format", "csv", "--top", "3")
    rows = list(csv.DictReader(StringIO(out)))
    table = pathexpand.load("two-layer").run("Humpty Dumpty sat on a wall. Humpty D").scores("L1H0")
    assert status == 0 and rows[-1]["query_path"] == "(remainder)"
    assert sum(float(row["value"]) for row in rows) == pytest.approx(table.dense, abs=1e-12)


@pytest.mark.parametrize("name", ["pattern.png", "pattern.svg"])
def test_a_pattern_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    status, _, err = run(capsys, "--why", "--plot", str(tmp_path / name))
    assert (status, err) == (0, "")
    written = (tmp_path / name).read_bytes()
    assert written.startswith(b"\x89PNG") or b"<svg" in written
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--head", "L5H0"), "head L5H0"),
        (("--head", "nonsense"), "head"),
        (("--head", ""), "head"),
        (("--model", "one-layer"), "This model needs --head"),
        (("--model", "zero-layer"), "a model with heads"),
        (("--model", "no-such-model"), "no-such-model"),
        (("--key", "99"), "key 99"),
        (("--position", "2", "--key", "9"), "its mask hides"),
        (("--why", "--over", "3"), "one of --why and --over"),
        (("--key", "3", "--over", "3"), "two positions"),
        (("--top", "-1"), "top"),
        (("--nodes", "-1"), "nodes"),
        (("--plot", "pattern.gif"), ".png or .svg"),
        (("--plot", "no/such/place/a.png"), "a directory that exists"),
    ],
)
def test_bad_input_gets_one_line(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    status, out, err = run(capsys, *options)
    assert (status, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1


def test_a_budget_leaves_a_table_with_its_bound(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--nodes", "1", "--top", "30", "--format", "json")
    table = ScoreTable.from_json(out)
    assert status == 0 and not table.certified and table.closes
