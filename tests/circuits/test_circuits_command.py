"""`pathexpand circuits`: every analysis and format, and what does not go together."""

import json
from pathlib import Path

import click
import pytest

from pathexpand.circuits.circuit import ov, qk
from pathexpand.cli.circuits import circuits
from pathexpand.errors import PathExpandError
from pathexpand.model.checkpoint import read_checkpoint
from pathexpand.table.analysis_table import AnalysisTable


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    circuits.main(list(arguments), prog_name="pathexpand circuits", standalone_mode=False)
    return capsys.readouterr().out


def table(capsys: pytest.CaptureFixture[str], *arguments: str) -> AnalysisTable:
    return AnalysisTable.from_json(said(capsys, *arguments, "--format", "json"))


def test_ov_and_qk(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = read_checkpoint("two-layer")
    found = table(capsys, "--ov", "L1H2", "--top", "3", "--own-in-top", "5")
    assert found.rows == ov(checkpoint, "L1H2").table(3).rows
    assert "own token in top 5" in [each.label for each in found.closing]
    found = table(capsys, "--qk", "L1H2", "--key-head", "L0H3", "--by", "size", "--top", "4")
    assert found.rows == qk(checkpoint, "L1H2", key="L0H3").table(4, by="size").rows
    found = table(capsys, "--qk", "L1H2", "--query-head", "L0H1", "--row", " the", "--column", "7")
    assert [row[1::2][:2] for row in found.rows] == [(266, 7)]
    found = table(capsys, "--ov", "L0H1 > L1H2", "--directions", "--top", "2", "--centred")
    assert len(found) == 4 and found.analysis == "directions"


def test_the_other_analyses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("def f(self):\n    try:\n        return 1\n" * 3, encoding="utf-8")
    model = ("--model", "one-layer")
    plain = table(capsys, *model, "--skip-trigrams", "L0H2", "--top", "5")
    assert "over the vocabulary" in plain.about[2][1]
    own = table(capsys, *model, "--skip-trigrams", "L0H2", "--text", str(text), "--context", "9")
    assert "9 tokens" in own.about[2][1] and "of text" in own.about[2][1]
    bugs = table(capsys, *model, "--skip-trigrams", "L0H2", "--top", "40", "--bugs")
    assert bugs.analysis == "skip-trigram bugs" and len(bugs)
    one = table(capsys, *model, "--skip-trigrams", "L0H2", "--row", " try", "--top", "2")
    assert set(one.column("source")) == {"' try'"}
    assert table(capsys, "--bigrams", "--top", "3").column("log p")[0] < 0
    assert "count" in table(capsys, "--bigrams", "--text", str(text))[0]
    assert table(capsys, "--virtual", "L0H3", "L1H2.k").closing[0].label == "captured norm"
    assert table(capsys, "--deletions", "--top", "2").column("later")[0] == "L1H0"


@pytest.mark.parametrize("kind", ["text", "csv", "md", "tsv", "latex"])
def test_formats_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str) -> None:
    arguments = ("--ov", "L1H2", "--top", "2", "--format", kind)
    out = tmp_path / "out"
    printed = said(capsys, *arguments)
    assert not said(capsys, *arguments, "--out", str(out))
    assert printed and out.read_text(encoding="utf-8").split() == printed.split()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Give one of --ov"),
        (("--ov", "L0H1", "--qk", "L0H1"), "Give one of --ov"),
        (("--ov", "L0H1", "--offset", "1"), "--offset does not go with --ov"),
        (("--bigrams", "--row", "7"), "--row does not go with --bigrams"),
        (("--deletions", "--by", "size"), "--by does not go with --deletions"),
        (("--qk", "L0H1", "--centred"), "--centred does not go with --qk"),
    ],
)
def test_what_does_not_go_together(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(click.UsageError, match=says):
        circuits.main(list(arguments), standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ov", "L7H1"), "head L7H1"),
        (("--ov", "L0H1", "--top", "0"), "a whole number of at least 1"),
        (("--ov", "L0H1", "--row", "no such token"), "one token"),
        (("--qk", "L0H1", "--offset", "1"), "no rotary positions"),
        (("--qk", "L0H1", "--key-head", "L0H2"), "rising layers"),
        (("--qk", "L0H1", "--key-head", ""), "head"),
        (("--virtual", "L1H0", "L0H1.k"), "in front of it"),
        (("--skip-trigrams", "L0H1", "--context", "0"), "context"),
        (("--bigrams", "--text", "no such file"), "cannot read"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(PathExpandError, match=says) as caught:
        circuits.main(list(arguments), standalone_mode=False)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(PathExpandError, match="UTF-8"):
        circuits.main(["--bigrams", "--text", str(file)], standalone_mode=False)


def test_json_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(said(capsys, "--virtual", "L0H0", "L1H1.v", "--format", "json"))["rows"]
