"""Tables of totals: files, text, and numbers that are none."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pathexpand import laws
from pathexpand.api import TOTALS, Run, load
from pathexpand.errors import FileError, PathExpandError
from pathexpand.table import TotalsRow, TotalsTable

finite = st.floats(allow_nan=False, allow_infinity=False)


def build(*rows: TotalsRow, **parts: object) -> TotalsTable:
    whole = {
        "model": "tiny",
        "target": "logit of ' é'",
        "position": 3,
        "query": "embed → *",
        "by": "token",
        "rows": rows,
        "total": 2.5,
        "dense": 4.0,
        "parted": True,
    }
    return TotalsTable(**(whole | parts))  # type: ignore[arg-type]


ROWS = (TotalsRow("' the' @1", None, 2.75, 0.6875), TotalsRow("'漢字' @2", None, -0.25, -0.0625))


@pytest.fixture(scope="module")
def run() -> Run:
    return load("two-layer").run("to be or not to be, thàt is 漢字")


@given(st.text(), st.none() | st.integers(0, 10**30), finite, st.none() | finite, finite)
def test_json_comes_back_exactly(text, paths, value, share, dense):
    table = build(TotalsRow(text, paths, value, share), dense=dense, total=value, target=text)
    for ascii in (False, True):
        assert TotalsTable.from_json(table.to_json(ascii=ascii)) == table
    assert table.to_json(ascii=True).isascii()


@pytest.mark.parametrize("by", TOTALS)
@pytest.mark.parametrize("ascii", [False, True])
def test_every_kind_comes_back_and_fits(run, by, ascii):
    table = run.totals_table(by=by)
    assert TotalsTable.from_json(table.to_json(ascii=ascii)) == table
    for width in (40, 80, 200):
        text = table.to_text(width, ascii=ascii)
        assert max(cell_len(line) for line in text.splitlines()) <= width
        assert text.isascii() or not ascii
        assert re.search(rf"^ *{by} ", text, re.MULTILINE)
        assert text.count("\n") >= len(table)
    for markup in (table.to_markdown(ascii=ascii), table.to_latex(ascii=ascii)):
        assert markup.isascii() or not ascii
    assert table.to_csv().count("\n") == len(table) + 1
    assert table._repr_html_().count("<tr") > len(table)


def test_text_says_everything():
    text = build(*ROWS).to_text(80)
    for said in ("tiny", "logit of ' é'", "embed → *", "' the' @1", "68.8%", "62.5%", "-0.2500"):
        assert said in text, said
    assert "The rows add up to the total." in text
    assert "paths" not in text.split("total")[0]  # no column of counts where none is known
    whole = build(*ROWS, parted=False).to_text(80)
    assert "A path counts in every row that it passes through." in whole
    assert "query" not in build(*ROWS, query="*").to_text(80).split("total")[0]


def test_ascii_escapes_and_keeps_rows_apart():
    text = build(*ROWS).to_text(80, ascii=True)
    assert text.isascii()
    assert "\\u6f22\\u5b57" in text


def test_counts_are_shown_where_they_are_known():
    rows = (TotalsRow("0", 1, 2.0, 0.5), TotalsRow("1", 23_298_085_122_480, 0.5, None))
    text = build(*rows, by="order").to_text(80)
    assert "23,298,085,122,480" in text
    assert re.search(r"0\.5000 +- *$", text, re.MULTILINE)


def test_long_names_are_not_lost():
    rows = tuple(TotalsRow(f"L{n}H{n} > L{n + 1}H7", None, 1.0, 0.1) for n in range(30))
    text = build(*rows, by="pair").to_text(80)
    assert all(row.part in text for row in rows)


def test_values_in_csv_are_exact():
    table = build(*ROWS)
    lines = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [float(line["value"]) for line in lines] == [2.75, -0.25]
    assert [line["part"] for line in lines] == [row.part for row in ROWS]
    assert {line["paths"] for line in lines} == {""}


def test_a_table_is_a_sequence_of_rows():
    table = build(*ROWS)
    assert len(table) == 2
    assert table[-1] == ROWS[1]
    assert list(table) == list(ROWS)
    assert [record["part"] for record in table.to_records()] == [row.part for row in ROWS]
    assert build().to_text(80)


def test_pandas():
    pandas = pytest.importorskip("pandas")
    frame = build(*ROWS).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["part", "paths", "value", "share"]
    assert frame.attrs["by"] == "token"


@pytest.mark.parametrize(
    "parts",
    [{"total": math.nan}, {"dense": math.inf}, {"position": -1}],
    ids=str,
)
def test_a_contradiction_is_refused(parts):
    with pytest.raises(PathExpandError):
        build(*ROWS, **parts)


@pytest.mark.parametrize("parts", [{"value": math.nan}, {"share": -math.inf}], ids=str)
def test_a_row_that_is_no_number_is_refused(parts):
    with pytest.raises(PathExpandError, match="finite"):
        replace(ROWS[0], **parts)


@pytest.mark.parametrize("member", ["by", "rows", "total", "parted", "query", "position"])
def test_a_missing_member_is_refused(member):
    document = json.loads(build(*ROWS).to_json())
    del document[member]
    with pytest.raises(FileError, match=member):
        TotalsTable.from_json(json.dumps(document))


@pytest.mark.parametrize(
    "change", [{"parted": 1}, {"total": "2"}, {"table": "paths"}, {"rows": [1]}], ids=str
)
def test_a_changed_member_is_refused(change):
    document = json.loads(build(*ROWS).to_json()) | change
    with pytest.raises(PathExpandError) as caught:
        TotalsTable.from_json(json.dumps(document))
    assert "\n" not in str(caught.value)


def test_a_table_of_a_query_is_the_sum_of_its_paths():
    run = laws.random_model(seed=1).run([3, 1, 4])
    table = run.totals_table(by="order", query="embed > *", target=2)
    paths = [path for path in run.model.network.paths() if path.source == "embed"]
    assert table.total == pytest.approx(sum(run.value(path, target=2) for path in paths))
    assert [row.paths for row in table] == [1, 6, 9]
    assert "embed > *" in table.to_text(80)
