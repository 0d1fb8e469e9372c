"""`pathexpand compose` and `pathexpand heads`: what they print, draw and refuse."""

from pathlib import Path
from typing import Any

import click
import pytest

from pathexpand.circuits.composition import composition, composition_table
from pathexpand.circuits.copying import copying, matching
from pathexpand.circuits.detection import detect, detect_on
from pathexpand.circuits.induction import induction_plane
from pathexpand.cli.compose import compose
from pathexpand.cli.heads import heads
from pathexpand.errors import PathExpandError
from pathexpand.model.checkpoint import read_checkpoint
from pathexpand.table import AnalysisTable

FAMILIES = Path(__file__).parents[1] / "reference" / "families"


def said(capsys: pytest.CaptureFixture[str], command: Any, *arguments: object) -> str:
    command.main([str(each) for each in arguments], prog_name="it", standalone_mode=False)
    return capsys.readouterr().out


def table(capsys: pytest.CaptureFixture[str], command: Any, *arguments: object) -> AnalysisTable:
    return AnalysisTable.from_json(said(capsys, command, *arguments, "--format", "json"))


def refused(command: Any, *arguments: object) -> str:
    with pytest.raises((PathExpandError, click.UsageError)) as caught:
        command.main([str(each) for each in arguments], standalone_mode=False)
    return str(caught.value)


def test_compose_lists_what_the_library_finds(capsys: pytest.CaptureFixture[str]) -> None:
    two = read_checkpoint("two-layer")
    found = {kind: composition(two, kind, samples=50, seed=3) for kind in ("Q", "K", "V")}  # type: ignore[arg-type]
    shared = ("--samples", 50, "--seed", 3)
    every = table(capsys, compose, "--top", 4, *shared)
    assert every == composition_table(list(found.values()), top=4)
    assert every[0]["earlier"] == "L0H3"
    assert table(capsys, compose, "--kind", "Q", "--by", "z", *shared) == found["Q"].table(by="z")
    pair = table(capsys, compose, "--pair", "L0H3", "L1H0", *shared)
    assert pair.column("kind") == ("Q", "K", "V")
    assert pair[1]["score"] == pytest.approx(found["K"].pair("L0H3", "L1H0").score)
    assert "composition" in said(capsys, compose, "--kind", "V", "--samples", 0)


def test_compose_turns_queries_and_keys_alone(capsys: pytest.CaptureFixture[str]) -> None:
    rotary = FAMILIES / "llama"
    every = table(capsys, compose, "--model", rotary, "--offset", 2, "--samples", 0, "--top", 500)
    assert set(every.column("kind")) == {"Q", "K", "V"}
    assert ("offset", "2") in every.about
    assert "an offset" in refused(compose, "--model", rotary, "--kind", "K")
    assert "no query and key" in refused(compose, "--model", rotary, "--kind", "V", "--offset", 2)


def test_compose_refuses_in_one_line(tmp_path: Path) -> None:
    assert "an earlier layer's head" in refused(compose, "--pair", "L1H0", "L1H1")
    assert "an earlier layer's head" in refused(compose, "--pair", "L1H0", "L0H1")
    assert "L3H0" in refused(compose, "--pair", "L0H0", "L3H0")
    assert "two layers" in refused(compose, "--model", "one-layer")
    assert "no rotary" in refused(compose, "--offset", 2)
    assert "passes a norm" in refused(compose, "--model", FAMILIES / "bert")
    assert ".png or .svg" in refused(compose, "--plot", "scores.pdf", "--model", "no such model")
    assert "leave --pair out" in refused(compose, "--pair", "L0H0", "L1H0", "--plot", "a.png")
    assert "needs samples" in refused(compose, "--by", "z", "--samples", 0)
    assert "top" in refused(compose, "--top", -1)
    assert "samples" in refused(compose, "--samples", -1)


def test_heads_lists_what_the_library_finds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    two, text = read_checkpoint("two-layer"), "to be or not to be, that is to be asked"
    file = tmp_path / "text"
    file.write_text(text)
    assert table(capsys, heads) == detect(two).table()
    assert table(capsys, heads, "--text", file, "--top", 2) == detect_on(two, [text]).table(top=2)
    assert table(capsys, heads, "--plane") == induction_plane(two).table()
    assert table(capsys, heads, "--copying", "--top", 3) == copying(two).table(top=3)
    assert table(capsys, heads, "--matching") == matching(two).table()
    some = table(capsys, heads, "--behaviour", "induction", "--threshold", 0.2)
    assert [field.name for field in some.fields] == ["head", "induction"]
    assert "L1H0, L1H2, L1H1" in some.claims[0]


def test_heads_refuses_in_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text(" ")
    bert = FAMILIES / "bert"
    assert "sees both ways" in refused(heads, "--model", bert)
    assert "sees both ways" in refused(heads, "--model", bert, "--plane")
    assert "Give one of" in refused(heads, "--plane", "--copying")
    assert "Give one of" in refused(heads, "--plane", "--text", empty)
    assert "no use" in refused(heads, "--plane", "--behaviour", "first")
    assert "--offset is for" in refused(heads, "--offset", 1)
    assert "an empty file" in refused(heads, "--text", empty)
    assert "cannot read" in refused(heads, "--text", tmp_path / "none")
    assert "threshold" in refused(heads, "--threshold", 7)
    assert "--plane has no use for --threshold" in refused(heads, "--plane", "--threshold", 0.4)
    assert "--matching has no use for --seed" in refused(heads, "--matching", "--seed", 0)
    assert "seed" in refused(heads, "--seed", -1)
    assert "top" in refused(heads, "--top", -2)
    assert "a model with heads" in refused(heads, "--model", "zero-layer")
    assert ".png or .svg" in refused(heads, "--plot", "plane", "--model", "no such model")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (compose, ("--samples", 0)),
        (compose, ("--samples", 0, "--kind", "K")),
        (heads, ()),
        (heads, ("--plane",)),
        (heads, ("--copying",)),
    ],
)
def test_plots_are_drawn_beside_the_table(
    command: Any, arguments: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "picture.svg"
    plain = said(capsys, command, *arguments)
    assert said(capsys, command, *arguments, "--plot", file) == plain
    assert file.read_text().startswith("<?xml")


def test_a_model_that_sees_both_ways_has_some_behaviours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = table(
        capsys, heads, "--model", FAMILIES / "bert", "--behaviour", "duplicate",
        "--behaviour", "first",
    )  # fmt: skip
    assert [field.name for field in found.fields] == ["head", "duplicate", "first"]
