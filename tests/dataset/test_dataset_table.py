"""The table of a data set: it holds together, prints, and comes back from a file as it was."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathexpand.api import load
from pathexpand.errors import FileError, PathExpandError
from pathexpand.laws.strategies import models, prompts
from pathexpand.table.dataset_table import DatasetRow, DatasetTable

TEXTS = ["to be or not to be", "that is the question"]


@pytest.fixture(scope="module")
def table() -> DatasetTable:
    return load("two-layer").dataset_paths(TEXTS, top=3)


def test_a_table_is_a_sequence_of_rows(table):
    assert len(table) == 3
    assert [row.rank for row in table] == [1, 2, 3]
    assert table[-1].rank == 3


@settings(max_examples=40)
@given(st.data())
def test_it_comes_back_from_json(data):
    model = data.draw(models())
    texts = data.draw(st.lists(prompts(model), min_size=1, max_size=3))
    by = data.draw(st.sampled_from(["rms", "mean"]))
    table = model.dataset_paths(texts, by=by, top=4, rounds=data.draw(st.none() | st.just(1)))
    assert DatasetTable.from_json(table.to_json()) == table
    assert DatasetTable.from_json(table.to_json(ascii=True)) == table


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("table", "paths"),
        ("by", "median"),
        ("by", 1),
        ("prompts", "2"),
        ("bound", None),
        ("certified", 1),
        ("rows", {}),
        ("rows", [{"rank": 1}]),
        ("dense", "1"),
    ],
)
def test_a_changed_document_is_refused(table, key, value):
    document = json.loads(table.to_json()) | {key: value}
    with pytest.raises(FileError):
        DatasetTable.from_json(json.dumps(document))


@pytest.mark.parametrize(
    "parts",
    [
        {"dense": math.nan},
        {"bound": math.inf},
        {"bound": -1.0},
        {"gap_bound": -1e-9},
        {"remainder_count": 3},
        {"prompts": 0},
        {"by": "median"},
        {"outside_count": -1},
    ],
    ids=str,
)
def test_a_contradiction_is_refused(table, parts):
    with pytest.raises(PathExpandError):
        replace(table, **parts)


def test_rows_out_of_order_are_refused(table):
    with pytest.raises(PathExpandError, match="ranks"):
        replace(table, rows=table.rows[::-1])


@pytest.mark.parametrize(
    "numbers", [(math.nan, 0.0, 0.0), (1.0, math.inf, 0.0), (-1.0, 0.0, 0.0), (1.0, 0.0, -1.0)]
)
def test_impossible_rows_are_refused(numbers):
    with pytest.raises(PathExpandError):
        DatasetRow(1, "embed", 0, "direct", *numbers, None)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("ascii", [False, True])
def test_text_fits(table, width, ascii):
    lines = table.to_text(width, ascii=ascii).splitlines()
    assert max(map(len, lines)) <= max(width, 44)
    assert not ascii or "".join(lines).isascii()


def test_text_says_what_is_known(table):
    text = " ".join(table.to_text(80).split())
    assert "prompts 2, each read at its last token" in text
    assert "ranked by root mean square of each path's values over the prompts" in text
    assert "Certified: each of the 22 unlisted paths has an rms value of at most" in text
    mean = load("two-layer").dataset_paths(TEXTS, by="mean", top=3, rounds=1)
    text = " ".join(mean.to_text(80).split())
    assert "ranked by |mean| of each path's values" in text
    assert "Stopped early: each of the 24 unlisted paths has a |mean| of at most" in text


def test_a_gap_that_is_too_large_is_cried_out(table):
    assert "THE SUM DOES NOT CLOSE" in replace(table, gap=1.0).to_text(80)


def test_the_means_of_a_csv_sum_to_the_dense_mean(table):
    rows = list(csv.DictReader(StringIO(table.to_csv())))
    assert rows[-1]["path"] == "(remainder)"
    assert math.fsum(float(row["mean"]) for row in rows) == pytest.approx(table.dense)


def test_every_form_has_every_path(table):
    for text in (table.to_markdown(), table._repr_html_(), table.to_latex(), table.to_tsv()):
        assert text.count("L1H") >= sum("L1H" in row.path for row in table)
    assert table.to_pandas().shape == (3, 9)
    assert table.to_pandas().attrs["prompts"] == 2
