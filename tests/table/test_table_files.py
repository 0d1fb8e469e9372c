"""Table ⇄ file: every digit comes back, and a file that is no table is refused in one line."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathexpand.errors import FileError, PathExpandError
from pathexpand.table import NormTable, PathRow, PathTable, SourceToken

finite = st.floats(allow_nan=False, allow_infinity=False)
rows = st.builds(
    PathRow,
    rank=st.just(1),
    path=st.sampled_from(["embed", "embed > L0H1 > L3H2", "b_U"]),
    order=st.integers(0, 60),
    kind=st.sampled_from(["direct", "virtual head"]),
    value=finite,
    share=st.none() | finite,
    running=finite,
    source_token=st.none()
    | st.builds(SourceToken, st.integers(0, 5), st.integers(0, 10**6), st.text()),
    source_value=st.none() | finite,
)


@given(row=rows, dense=finite, gap=finite, text=st.text(), count=st.integers(1, 10**30))
def test_json_comes_back_exactly(row, dense, gap, text, count):
    table = PathTable(
        model=text,
        tokens=(SourceToken(0, 3, text),),
        position=0,
        target=text,
        dense=dense,
        rows=(row,),
        listed=row.value,
        remainder=gap,
        remainder_count=count - 1,
        gap=gap,
        gap_bound=abs(gap),
        path_count=count,
        certified=False,
        bound=None,
        max_order=2,
    )
    for ascii in (False, True):
        assert PathTable.from_json(table.to_json(ascii=ascii)) == table
    assert table.to_json(ascii=True).isascii()


def test_json_holds_what_was_promised(table):
    document = json.loads(table.to_json())
    wanted = {"model", "tokens", "position", "target", "dense", "rows", "listed", "remainder"}
    wanted |= {"remainder_count", "gap", "gap_bound", "path_count", "certified", "bound"}
    assert wanted | {"max_order"} <= set(document)
    assert {"rank", "path", "order", "kind", "value", "share"} <= set(document["rows"][0])
    assert document["tokens"][4] == {"position": 4, "id": 104, "text": "'café'"}


def test_norms_come_back_exactly(norms):
    assert NormTable.from_json(norms.to_json()) == norms


@pytest.mark.parametrize(
    "change",
    [
        {"dense": "4.1"},
        {"dense": True},
        {"dense": None},
        {"dense": 10**400},
        {"rows": {}},
        {"rows": [1]},
        {"tokens": None},
        {"position": 7.0},
        {"certified": 1},
        {"bound": "0.29"},
        {"model": 5},
        {"remainder_count": 4},
        {"table": "norms"},
    ],
    ids=str,
)
def test_a_changed_member_is_refused(table, change):
    document = json.loads(table.to_json()) | change
    with pytest.raises(PathExpandError) as caught:
        PathTable.from_json(json.dumps(document))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("member", ["dense", "rows", "bound", "max_order", "position"])
def test_a_missing_member_is_refused(table, member):
    document = json.loads(table.to_json())
    del document[member]
    with pytest.raises(FileError, match=member):
        PathTable.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "NaN", "[" * 100_000, '{"table": 1}'])
def test_what_is_no_table_is_refused(text):
    with pytest.raises(FileError):
        PathTable.from_json(text)


def test_json_never_holds_nan(table):
    text = table.to_json().replace("4.1,", "NaN,", 1)
    with pytest.raises(FileError, match="NaN"):
        PathTable.from_json(text)


@pytest.mark.parametrize(("method", "delimiter"), [("to_csv", ","), ("to_tsv", "\t")])
def test_values_and_remainder_sum_to_the_dense_value(table, method, delimiter):
    lines = list(csv.DictReader(io.StringIO(getattr(table, method)()), delimiter=delimiter))
    assert [line["path"] for line in lines] == ["embed > L0H1", "b_U", "(remainder)"]
    assert abs(sum(float(line["value"]) for line in lines) - table.dense) <= table.gap_bound
    assert [float(line["value"]) for line in lines[:2]] == [row.value for row in table]
    assert (lines[0]["source_token"], lines[0]["source_id"]) == ("' the'", "101")
    assert lines[1]["source_token"] == ""


def test_a_norm_table_has_no_remainder_row(norms):
    assert norms.to_csv().splitlines()[-1].startswith("2,embed > L0H1 > L1H2,2,virtual head,9.5,")


def test_records_are_the_rows(table):
    records = table.to_records()
    assert [record["value"] for record in records] == [2.75, -0.3]
    assert records[0]["source_position"] == 1
    assert records[1]["source_token"] is None


def test_pandas(table):
    pandas = pytest.importorskip("pandas")
    frame = table.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["value"]) == [2.75, -0.3]
    assert frame.attrs["remainder"] == table.remainder


def test_pandas_of_no_rows_has_its_columns(make):
    pytest.importorskip("pandas")
    assert "value" in make(rows=(), remainder_count=5).to_pandas().columns


def test_without_pandas_the_way_to_install_it_is_said(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PathExpandError, match=r"pip install 'pathexpand\[pandas\]'"):
        table.to_pandas()


def test_a_table_imports_no_library_before_it_is_shown():
    code = "import sys, pathexpand.table; print({'rich', 'tabulate', 'numpy'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
