"""Streaming top-k against brute force."""

import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathexpand.circuits.largest import (
    By,
    dense_rows,
    entries,
    first_of,
    largest,
    largest_in_rows,
    row_bounds,
)
from pathexpand.errors import PathExpandError
from pathexpand.lowrank import Factored

module = sys.modules[largest.__module__]  # the package holds the function under this name
BY: tuple[By, ...] = ("value", "size")


def brute(matrix: Factored, k: int, by: By) -> tuple[Any, Any, Any]:
    rows, columns = (each.ravel() for each in np.indices(matrix.shape))
    values = entries(matrix, rows, columns)
    keys = values if by == "value" else abs(values)
    order = np.lexsort((columns, rows, -keys))[:k]
    return rows[order], columns[order], values[order]


def agrees(matrix: Factored, k: int, by: By) -> bool:
    found, wanted = largest(matrix, k, by=by), brute(matrix, k, by)
    return all(
        np.array_equal(one, other)
        for one, other in zip((found.rows, found.columns, found.values), wanted, strict=True)
    )


@st.composite
def matrices(draw: st.DrawFn) -> Factored:
    """Make small matrices: of whole numbers (many ties), with zeros, with wild scales."""
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    m, n, r = (draw(st.integers(1, most)) for most in (37, 41, 7))
    left, right = rng.normal(size=(m, r)), rng.normal(size=(r, n))
    kind = draw(st.sampled_from(["plain", "whole", "zeros", "scaled", "uneven", "negative"]))
    if kind in ("whole", "zeros"):
        left, right = left.round(), right.round()
    if kind == "zeros":
        left[rng.random(m) < 0.5] = 0
        right[:, rng.random(n) < 0.5] = 0
    if kind == "scaled":
        left = left * 10.0 ** rng.integers(-120, 120)
    if kind == "uneven":
        scale = 10.0 ** rng.integers(-60, 60, size=r)
        left, right = left * scale, right / scale[:, None]
    if kind == "negative":
        left, right = -abs(left), abs(right)
    return Factored(left, right)


@given(matrices(), st.integers(1, 60), st.sampled_from(BY))
def test_it_is_brute_force(matrix: Factored, k: int, by: By) -> None:
    assert agrees(matrix, k, by)


@given(matrices(), st.integers(1, 60), st.sampled_from(BY))
def test_many_small_blocks_change_nothing(matrix: Factored, k: int, by: By) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("_ROWS", 3), ("_COLUMNS", 5), ("_ENTRIES", 2), ("_DENSE", 11)):
            patch.setattr(module, name, size)
        assert agrees(matrix, k, by)


@given(matrices(), st.sampled_from(BY))
def test_row_bounds_are_above_and_near(matrix: Factored, by: By) -> None:
    values = np.concatenate([block for _, block in dense_rows(matrix, np.arange(matrix.shape[0]))])
    top = (values if by == "value" else abs(values)).max(axis=1)
    bounds = row_bounds(matrix, by=by)
    sizes = np.linalg.norm(matrix.left, axis=1) * np.linalg.norm(matrix.right, axis=0).max()
    peak = np.sqrt(sizes.max(initial=0.0)) ** 2
    assert (bounds >= top - 1e-12 * sizes).all()
    if peak < 1e3:  # uneven factors have norms that say nothing
        assert (bounds <= top + 1e-4 * sizes + 1e-30).all()


@given(matrices(), st.integers(1, 50), st.sampled_from(BY))
def test_rows_by_themselves(matrix: Factored, k: int, by: By) -> None:
    found = largest_in_rows(matrix, k, by=by)
    dense = matrix.dense()
    assert found.columns.shape == (matrix.shape[0], min(k, matrix.shape[1]))
    for row, columns in enumerate(found.columns):
        keys = dense[row] if by == "value" else abs(dense[row])
        assert len(set(columns.tolist())) == len(columns)
        np.testing.assert_allclose(
            np.sort(keys)[::-1][: len(columns)], keys[columns], rtol=1e-9, atol=1e-300
        )


def test_a_margin_that_is_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    # two entries that float32 cannot tell apart: 1 + 2^-30 is the larger
    matrix = Factored(np.array([[1.0], [1.0 + 2.0**-30], [0.5]]), [[1.0, 0.25]])
    assert largest(matrix, 1).rows.tolist() == [1]
    rng = np.random.default_rng(3)
    near = [  # entries that lie as near to each other as float32 rounds
        Factored(1 + 1e-6 * rng.normal(size=(29, 61)), 1 + 1e-6 * rng.normal(size=(61, 31)))
        for _ in range(20)
    ]
    assert all(agrees(each, 4, "value") for each in near)
    monkeypatch.setattr(module._Scan, "margin", lambda self, rows, column: 0.0 * rows)
    assert not all(agrees(each, 4, "value") for each in near)


def test_blocks_skipped_too_early_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    matrix = Factored(rng.normal(size=(59, 3)), rng.normal(size=(3, 61)))
    monkeypatch.setattr(module, "_ROWS", 3)
    monkeypatch.setattr(module, "_COLUMNS", 5)
    assert agrees(matrix, 30, "size")
    original = module._norms
    monkeypatch.setattr(module, "_norms", lambda rows: original(rows) * 0.6)
    assert not agrees(matrix, 30, "size")


def test_ties_stand_by_row_then_column() -> None:
    ones = Factored(np.ones((3, 2)), np.ones((2, 5)))
    found = largest(ones, 7)
    assert found.rows.tolist() == [0] * 5 + [1] * 2
    assert found.columns.tolist() == [0, 1, 2, 3, 4, 0, 1]


def test_a_matrix_of_zeros_is_not_worked_out_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    original = module._entries

    def counting(left: Any, right: Any, rows: Any, columns: Any) -> Any:
        taken.append(len(rows))
        return original(left, right, rows, columns)

    monkeypatch.setattr(module, "_entries", counting)
    left = np.zeros((3001, 3))
    left[7] = 1.0, 2.0, -1.0
    found = largest(Factored(left, np.full((3, 2003), -1.0)), 5)
    assert found.rows.tolist() == [0] * 5 and found.values.tolist() == [0.0] * 5
    assert sum(taken) < 5000


def test_few_and_all() -> None:
    matrix = Factored([[1.0], [-2.0]], [[3.0, -5.0]])
    found = largest(matrix, 99)
    assert found.values.tolist() == [10.0, 3.0, -5.0, -6.0]
    assert len(largest(matrix, 1, by="size")) == 1


def test_some_rows_and_columns() -> None:
    rng = np.random.default_rng(2)
    matrix = Factored(rng.normal(size=(23, 3)), rng.normal(size=(3, 29)))
    rows, columns = [17, 4, 4], np.array([28, 0, 11])
    found = largest(matrix, 4, rows=rows, columns=columns)
    dense = np.full(matrix.shape, -np.inf)
    dense[np.ix_(rows, columns)] = matrix.dense()[np.ix_(rows, columns)]
    order = np.argsort(-dense.ravel(), kind="stable")[:4]
    assert (found.rows * 29 + found.columns).tolist() == order.tolist()


def test_memory_stays_bounded() -> None:
    rng = np.random.default_rng(4)
    matrix = Factored(rng.normal(size=(6007, 5)), rng.normal(size=(5, 7001)))
    tracemalloc.start()
    largest(matrix, 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6007 * 7001 * 4 / 4  # a quarter of the matrix in float32


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    matrix = Factored(np.array([[1.0, bad]]), np.ones((2, 3)), check_finite=False)
    for attempt in (largest, largest_in_rows):
        with pytest.raises(PathExpandError, match="finite"):
            attempt(matrix, 1)  # type: ignore[operator]
    with pytest.raises(PathExpandError, match="overflow"):
        largest(Factored([[1e200]], [[1e200]]), 1)


def test_wrong_options_are_refused() -> None:
    matrix = Factored([[1.0]], [[2.0]])
    for k in (0, -1, 1.5, True, "3"):
        with pytest.raises(PathExpandError, match="top: wanted a whole number"):
            largest(matrix, k)  # type: ignore[arg-type]
    with pytest.raises(PathExpandError, match="by"):
        largest(matrix, 1, by="norm")  # type: ignore[arg-type]
    for rows in ([1], [-1], [], [[0]], [0.5], ["a"], [[0], [1, 2]]):
        with pytest.raises(PathExpandError, match="rows"):
            largest(matrix, 1, rows=rows)


def test_first_of_takes_the_first_of_equals() -> None:
    assert first_of(np.array([2.0, 7.0, 7.0, 1.0]), 1).tolist() == [1]
    assert first_of(np.array([2.0, 7.0]), 0).tolist() == []
