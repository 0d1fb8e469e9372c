"""Tables hold together, and a table that contradicts itself cannot be built."""

from __future__ import annotations

import math

import pytest

from pathexpand.errors import PathExpandError
from pathexpand.table import NormRow, NormTable, PathRow, SourceToken


def test_a_table_is_a_sequence_of_rows(table):
    assert len(table) == 2
    assert [row.path for row in table] == ["embed > L0H1", "b_U"]
    assert table[-1].rank == 2


@pytest.mark.parametrize(
    "parts",
    [
        {"dense": math.nan},
        {"gap_bound": math.inf},
        {"remainder": -math.inf},
        {"bound": math.nan},
        {"position": 8},
        {"position": -1},
        {"remainder_count": 2},
        {"remainder_count": -2, "path_count": 0},
        {"bound": None},
        {"gap_bound": -1e-9},
    ],
    ids=str,
)
def test_a_contradiction_is_refused(make, parts):
    with pytest.raises(PathExpandError):
        make(**parts)


def test_rows_out_of_order_are_refused(make, table):
    with pytest.raises(PathExpandError, match="ranks"):
        make(rows=table.rows[::-1])


def test_a_row_with_nan_is_refused():
    with pytest.raises(PathExpandError, match="value: wanted a finite number, got nan"):
        PathRow(1, "embed", 0, "direct", math.nan, None, 0.0, None, None)


def test_a_norm_table_with_more_rows_than_paths_is_refused(norms):
    with pytest.raises(PathExpandError):
        NormTable("tiny", norms.rows, energy=1.0, path_count=1, certified=True, bound=0.0)


def test_a_source_token_before_the_prompt_is_refused():
    with pytest.raises(PathExpandError):
        SourceToken(-1, 5, "'a'")


def test_infinite_norms_are_refused():
    with pytest.raises(PathExpandError):
        NormRow(1, "embed", 0, "direct", math.inf, None)


def test_closes_is_about_the_size_of_the_gap(make):
    assert make(gap=1e-14).closes
    assert make(gap=-1e-14).closes
    assert not make(gap=-2e-14).closes
