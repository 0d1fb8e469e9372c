"""What the commands print, and where."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter

import pytest

from pathexpand.cli.prompt import DEFAULT_PROMPT
from pathexpand.table import NormTable, PathTable, TotalsTable


def test_bare_table_is_the_embedded_model_on_the_example(call):
    done = call("table")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^model +two-layer$", done.out, re.MULTILINE)
    assert max(map(len, done.out.splitlines())) <= 80
    assert "vocabulary mean" in done.out
    text = call("table", "--format", "json", "--prompt", DEFAULT_PROMPT).out
    assert call("table", "--format", "json").out == text


def test_formats_agree(call, save):
    chosen = ["table", "--model", save(), "--tokens", "3, 1 4", "--top", "4"]
    table = PathTable.from_json(call(*chosen, "--format", "json").out)
    assert table.closes
    assert (table.model, len(table), table.path_count) == ("tiny", 4, 16 + 4 + 1 + 1)
    assert call(*chosen, "--format", "csv").out == table.to_csv()
    assert call(*chosen, "--format", "tsv").out == table.to_tsv()
    assert call(*chosen, "--format", "md").out == table.to_markdown()
    assert call(*chosen, "--format", "latex").out == table.to_latex()
    assert call(*chosen).out == table.to_text()


def test_the_value_column_sums_to_the_logit(call, save):
    chosen = ["--model", save(), "--tokens", "3 1 4", "--top", "3", "--raw", "--target", "9"]
    lines = csv.DictReader(io.StringIO(call("table", *chosen, "--format", "csv").out))
    table = json.loads(call("table", *chosen, "--format", "json").out)
    total = sum(float(line["value"]) for line in lines)
    assert abs(total - table["dense"]) <= table["gap_bound"]
    assert table["target"] == "logit of #9"


def test_targets_positions_and_orders(call, save):
    chosen = ["--model", save(), "--tokens", "3 1 4", "--format", "json"]

    def table(*more):
        return PathTable.from_json(call("table", *chosen, *more).out)

    assert table("--target", "3-5").target == "logit of #3 minus logit of #5"
    assert table("--position", "-2").position == 1
    partly = table("--max-order", "1")
    assert (partly.certified, partly.max_order) == (True, 1)
    assert all(row.order < 2 for row in partly)
    assert partly.longer_bound > 0
    assert table("--top", "0").rows == ()


def test_a_table_from_weights_alone(call, save):
    done = call("table", "--model", save(), "--weights-only", "--top", "3", "--format", "json")
    assert len(NormTable.from_json(done.out)) == 3
    assert "Frobenius" in call("table", "--model", save(), "--weights-only").out


def test_a_table_of_a_query(call, save):
    chosen = ["table", "--model", save(), "--tokens", "3 1 4", "--query", "embed > * > L1H*"]
    table = PathTable.from_json(call(*chosen, "--format", "json").out)
    assert (table.query, table.outside_count, table.path_count) == ("embed > * > L1H*", 10, 22)
    assert len(table) + table.remainder_count == 12
    assert table.closes
    assert all(re.fullmatch(r"embed( > L0H.)? > L1H.", row.path) for row in table)
    text = call(*chosen).out
    assert re.search(r"^query +embed > \* > L1H\*$", text, re.MULTILINE)
    assert "10 paths not in the query" in text
    lines = csv.DictReader(io.StringIO(call(*chosen, "--format", "csv").out))
    assert sum(float(line["value"]) for line in lines) == pytest.approx(table.dense)
    nothing = call("table", "--model", save(), "--tokens", "3", "--query", "not *")
    assert (nothing.code, nothing.err) == (0, "")
    assert "22 paths not in the query" in nothing.out
    norms = call(
        "table", "--model", save(), "--weights-only", "--query", "embed > *", "--format", "json"
    )
    assert NormTable.from_json(norms.out).path_count == 16


def test_budgets(call, save):
    chosen = ["table", "--model", save(), "--tokens", "3 1 4"]

    def table(*more):
        done = call(*chosen, *more, "--format", "json")
        assert (done.code, done.err) == (0, "")
        return PathTable.from_json(done.out)

    whole = table()
    assert whole.certified
    assert len(whole) == 10
    for stop in (["--nodes", "0"], ["--seconds", "0"], ["--memory", "0"]):
        early = table(*stop)
        assert not early.certified
        assert early.visited == 1
        assert early.bound >= max(abs(row.value) for row in whole)
        assert early.closes
        text = call(*chosen, *stop).out
        assert "Stopped early" in text
        assert max(map(len, text.splitlines())) <= 80
    assert table("--nodes", "100000", "--seconds", "600", "--memory", "1") == whole
    assert table("--seconds", "inf", "--memory", "inf") == whole
    assert table("--nodes", "3").visited < whole.path_count
    norms = call("table", "--model", save(), "--weights-only", "--nodes", "0").out
    assert "Stopped early" in norms


def test_ten_rows_are_listed_unless_told(call):
    assert len(PathTable.from_json(call("table", "--format", "json").out)) == 10


@pytest.mark.parametrize("by", ["order", "source", "token", "head", "pair"])
def test_totals(call, save, by):
    chosen = ["total", "--model", save(), "--tokens", "3 1 4", "--by", by]
    table = TotalsTable.from_json(call(*chosen, "--format", "json").out)
    assert table.by == by
    assert table.total == pytest.approx(table.dense)
    assert call(*chosen, "--format", "csv").out == table.to_csv()
    assert call(*chosen, "--format", "tsv").out == table.to_tsv()
    assert call(*chosen, "--format", "md").out == table.to_markdown()
    assert call(*chosen, "--format", "latex").out == table.to_latex()
    text = call(*chosen).out
    assert text == table.to_text()
    assert max(map(len, text.splitlines())) <= 80


def test_totals_of_a_query_and_of_a_raw_logit(call, save, tmp_path):
    chosen = ["total", "--model", save(), "--tokens", "3 1 4", "--target", "2"]
    text = call(*chosen).out
    assert [line.split()[:2] for line in text.splitlines() if line.strip()[:1].isdigit()] == [
        ["0", "4"],
        ["1", "9"],
        ["2", "9"],
    ]
    one = TotalsTable.from_json(call(*chosen, "--query", "embed > *", "--format", "json").out)
    other = TotalsTable.from_json(call(*chosen, "--query", "not embed > *", "--format", "json").out)
    assert one.total + other.total == pytest.approx(one.dense)
    raw = TotalsTable.from_json(call(*chosen, "--raw", "--format", "json").out)
    assert raw.target == "logit of #2"
    out = tmp_path / "totals.csv"
    assert call(*chosen, "--out", out).code == 0
    assert out.read_text().startswith("part,paths,value,share")


def test_the_query_language_is_explained(call):
    from pathexpand.symbolic.query_text import QUERY_LANGUAGE

    done = call("query")
    assert (done.code, done.err) == (0, "")
    assert done.out == QUERY_LANGUAGE.rstrip() + "\n"


def test_prompt_files_and_standard_input(call, tmp_path, spawn):
    file = tmp_path / "prompt.txt"
    file.write_bytes("def café():\r\n\n".encode())
    given = json.loads(call("table", "--prompt-file", file, "--format", "json").out)["tokens"]
    typed = json.loads(call("table", "--prompt", "def café():\r\n\n", "--format", "json").out)
    assert given == typed["tokens"]
    piped = spawn("table", "--prompt-file", "-", "--format", "json", stdin=file.read_bytes())
    assert json.loads(piped.stdout)["tokens"] == given


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("t.csv", "rank,"),
        ("t.TSV", "rank\t"),
        ("t.json", "{"),
        ("t.md", "- model"),
        ("t.tex", "% model"),
        ("t", "model "),
        ("t.txt", "model "),
    ],
)
def test_out_writes_what_its_name_says(call, save, tmp_path, name, start):
    out = tmp_path / name
    done = call("table", "--model", save(), "--tokens", "1 2", "--out", out)
    assert (done.code, done.out, done.err) == (0, "", "")
    assert out.read_text(encoding="utf-8").startswith(start)
    call("table", "--model", save(), "--tokens", "1 2", "--out", out, "--format", "json")
    assert out.read_text(encoding="utf-8").startswith("{")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["model", name])


@pytest.mark.skipif(os.name != "posix", reason="modes and devices of POSIX")
def test_out_keeps_modes_links_and_devices(call, save, tmp_path):
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    chosen = ["table", "--model", save(), "--tokens", "1 2", "--out"]
    assert call(*chosen, link).code == 0
    assert link.is_symlink()
    assert real.read_text().startswith("rank,")
    assert real.stat().st_mode & 0o777 == 0o640
    assert call(*chosen, os.devnull).code == 0
    assert not os.path.isfile(os.devnull)  # noqa: PTH113


def test_a_table_that_does_not_close_is_shown_and_fails(call, save, monkeypatch):
    monkeypatch.setattr(PathTable, "closes", property(lambda self: False))
    done = call("table", "--model", save(), "--tokens", "1 2")
    assert done.code == 1
    assert "DOES NOT CLOSE" in done.out
    assert done.err.count("\n") == 1


# --- expand and count -------------------------------------------------------------------------


def test_count(call):
    assert call("count", "--layers", "12", "--heads", "12").out == "23,298,085,122,481 paths\n"
    assert call("count", "--layers", "0", "--heads", "0").out == "1 path\n"
    sources = ["--positions", "--biases", "--unembed-bias"]
    # 2 (1+H)^L + sum over layers of (1+H)^(L-1-l) + 1
    assert call("count", "--layers", "2", "--heads", "3", *sources).out == "38 paths\n"
    assert call("count", "--heads", "4,3").out == "20 paths\n"


def test_count_by_order(call):
    lines = call("count", "--layers", "2", "--heads", "12", "--by-order").out.splitlines()
    assert [line.split() for line in lines] == [
        ["order", "paths"],
        ["0", "1"],
        ["1", "24"],
        ["2", "144"],
        ["all", "169"],
    ]


def test_count_the_largest_network(call):
    assert call("count", "--layers", "1000", "--heads", "1").out.endswith(" paths\n")


def test_count_a_model(call, save):
    assert call("count", "--model", save()).out == "22 paths\n"


def test_expand_prints_what_can_be_read_back(call):
    from pathexpand.symbolic import Network, expand, parse_expansion

    wanted = expand(Network.attention_only(2, 3, biases=True).expression())
    for notation in ("paper", "code"):
        text = call(
            "expand", "--layers", "2", "--heads", "3", "--biases", "--notation", notation
        ).out
        assert len(text.splitlines()) == len(wanted)
        assert parse_expansion(text, notation=notation) == wanted


def test_expand_to_an_order(call):
    text = call("expand", "--layers", "12", "--heads", "12", "--max-order", "1").out
    assert len(text.splitlines()) == 145


def test_expand_equation(call):
    text = call("expand", "--layers", "12", "--heads", "12", "--equation").out
    assert text.startswith("T = ")
    assert "23,298,085,122,481 in all" in text
    text = call("expand", "--layers", "2", "--heads", "12", "--equation", "--format", "latex").out
    assert text.startswith(r"\begin{aligned}")
    assert r"\otimes" in text


def test_expand_latex(call):
    text = call("expand", "--layers", "1", "--heads", "2", "--format", "latex").out
    assert text.splitlines()[1] == r"+ A^{L0H0} \otimes W_U W_{OV}^{L0H0} W_E"


@pytest.mark.parametrize("equation", [[], ["--equation"]])
def test_expand_sympy_is_code(call, equation):
    import sympy
    from sympy.physics import quantum

    from pathexpand.symbolic import Network, expand, from_sympy

    network = Network.attention_only(2, 2).expression()
    code = call("expand", "--layers", "2", "--heads", "2", "--format", "sympy", *equation).out
    form = eval(code, vars(sympy) | vars(quantum)).expand()
    assert from_sympy(form, network.source, network.target) == expand(network)


# --- verify, models and the program -----------------------------------------------------------


def test_verify(call, save):
    done = call("verify", "--model", save(), "--tokens", "3 1 4", "--target", "2")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"All \d+ laws that apply hold\.", done.out)
    assert max(map(len, done.out.splitlines())) <= 80


def unfolded(text):
    """Give the letters of a text without its layout."""
    return sorted("".join(text.split()).replace("─", "").replace("-", ""))


@pytest.mark.parametrize("width", [80, 60, 40])
def test_columns_of_check_and_verify_are_never_cut(call, tmp_path, width, monkeypatch):
    """A pipe has no other way to say the rest, and a cut column can look like a whole one."""
    file = str(tmp_path / "c.json")
    call("table", "--tokens", "1 2 3", "--top", "3", "--certificate", file)
    for arguments in (["check", file], ["verify", "--tokens", "1 2 3"]):
        monkeypatch.setenv("COLUMNS", "400")
        wide = call(*arguments).out
        monkeypatch.setenv("COLUMNS", str(width))
        narrow = call(*arguments).out
        # Where there is no room for all columns they come in blocks, each with the names again.
        assert Counter(unfolded(narrow)) >= Counter(unfolded(wide))
        assert width == 40 or unfolded(narrow) == unfolded(wide)
        assert max(map(len, narrow.splitlines())) <= width


def test_verify_fails_with_status_1(call, save, monkeypatch):
    from pathexpand import laws

    results = (
        laws.LawResult("closure", True, 1e-16, 1e-15, "4 paths"),
        laws.LawResult("top paths", False, 2.0, 0.0, "row 3 of 4"),
    )
    monkeypatch.setattr(laws, "verify_run", lambda run, **_: results)
    done = call("verify", "--model", save(), "--tokens", "3 1 4")
    assert done.code == 1
    assert "top paths FAILS: row 3 of 4" in done.out
    assert "1 of 2 laws fail." in done.out


def test_models(call):
    text = call("models").out
    names = re.findall(r"^(\S+): .*vocab \d+", text, re.MULTILINE)
    assert names[-1] == "two-layer"
    features = re.findall(r"^features of (\S+): ", text, re.MULTILINE)
    assert features == ["two-layer", "stories260k"]
    assert len(text.splitlines()) == 2 * (len(names) + len(features))


def test_program(call):
    import pathexpand

    assert call("--version").out == f"pathexpand {pathexpand.__version__}\n"
    assert "Commands:" in call().out
    assert call("--help").out == call().out == call("-h").out


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["table"],
        ["total"],
        ["expand"],
        ["count"],
        ["verify"],
        ["models"],
        ["query"],
        ["tutorial"],
    ],
)
def test_help_is_ascii_and_narrow(call, command):
    done = call(*command, "--help")
    assert done.code == 0
    assert done.out.isascii()
    assert max(map(len, done.out.splitlines())) <= 80
