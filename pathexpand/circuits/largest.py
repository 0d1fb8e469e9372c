"""The largest entries of a factored matrix, exactly, without ever forming the matrix.

The matrix goes by in float32 blocks that stay in the processor's cache. A float32 entry differs
from the float64 one by at most γ_{r+4} ‖row of left‖ ‖column of right‖ (Higham, Accuracy and
Stability of Numerical Algorithms, section 3.1, with Cauchy-Schwarz for Σ|l||r|), so whatever comes
that near to the k-th largest value is worked out again in float64, and all else cannot matter.
Rows and columns go by in falling order of their norms: once the product of two norms is below the
k-th value, neither that block nor any after it can hold anything larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import UNIT32, gamma
from pathexpand.errors import PathExpandError
from pathexpand.lowrank import Factored
from pathexpand.model.shown import shown

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
By = Literal["value", "size"]

_ROWS, _COLUMNS = 512, 2048  # of a block: 4 MB of float32
_ENTRIES = 2**16  # worked out again at once
_DENSE = 2**22  # float64 entries of whole rows at once
_OVER = 1 + 1e-6  # more than float64 rounding of norms and bounds can take off


@dataclass(frozen=True, slots=True, eq=False)
class Largest:
    """The largest entries of a matrix, largest first: `rows`, `columns` and `values`, (k,) each.

    Equal ones stand by row, then by column.
    """

    rows: Indices
    columns: Indices
    values: Floats

    def __post_init__(self) -> None:
        """Refuse arrays of different lengths."""
        if not len(self.rows) == len(self.columns) == len(self.values):
            raise PathExpandError("largest entries", wanted="a row and a column for each value")

    def __len__(self) -> int:
        """Give the number of entries."""
        return len(self.values)


@dataclass(frozen=True, slots=True, eq=False)
class LargestInRows:
    """The largest entries of some rows: `columns` and `values` (row, k), largest first."""

    columns: Indices
    values: Floats


def largest(
    matrix: Factored,
    k: int,
    *,
    by: By = "value",
    rows: object = None,
    columns: object = None,
) -> Largest:
    """Give the k largest entries of a matrix, by value or by absolute value.

    `rows` and `columns` (ids) look among these alone. Of equal entries those of the lowest row
    come first, then those of the lowest column. Fewer than k entries are all given. Memory is a
    few blocks, the factors once more, and k entries. Raises `PathExpandError` for factors that are
    not finite.

    >>> found = largest(Factored([[1], [2]], [[3, -4]]), 2, by="size")
    >>> found.rows.tolist(), found.columns.tolist(), found.values.tolist()
    ([1, 1], [1, 0], [-8.0, 6.0])
    """
    check_count("top", k)
    check_by(by)
    _check_finite(matrix)
    own_rows = subset(rows, matrix.shape[0], "rows")
    own_columns = subset(columns, matrix.shape[1], "columns")
    left = matrix.left if rows is None else matrix.left[own_rows]
    right = matrix.right if columns is None else matrix.right[:, own_columns]
    scan = _Scan(left, right)
    kept = _Kept(scan, min(k, left.shape[0] * right.shape[1]), by)
    kept.take(*scan.zeros(kept.k))
    kept.search()
    return Largest(own_rows[kept.rows], own_columns[kept.columns], kept.values)


def largest_in_rows(
    matrix: Factored, k: int, *, rows: object = None, by: By = "value"
) -> LargestInRows:
    """Give the k largest entries of each row, or of some; of equal ones the first columns'.

    All columns where there are fewer than k. Raises `PathExpandError` for factors that are not
    finite.

    >>> largest_in_rows(Factored([[1], [2]], [[3, -4]]), 1).columns.tolist()
    [[0], [0]]
    """
    check_count("top", k)
    check_by(by)
    _check_finite(matrix)
    ids = subset(rows, matrix.shape[0], "rows")
    width = min(k, matrix.shape[1])
    columns = np.empty((len(ids), width), dtype=np.int64)
    values = np.empty((len(ids), width))
    for at, block in dense_rows(matrix, ids):
        for row, line in zip(range(at.start, at.stop), block, strict=True):
            columns[row] = first_of(line if by == "value" else abs(line), width)
            values[row] = line[columns[row]]
    return LargestInRows(columns, values)


def row_bounds(matrix: Factored, *, by: By = "value") -> Floats:
    """Bound each row's largest entry from above, to about float32: (rows,).

    Raises `PathExpandError` for factors that are not finite.

    >>> bool(row_bounds(Factored([[1], [2]], [[3, 4]]))[1] >= 8)
    True
    """
    check_by(by)
    _check_finite(matrix)
    scan = _Scan(matrix.left, matrix.right)
    bounds = np.full(matrix.shape[0], -np.inf)
    for block in scan.blocks():
        top = block.entries.max(axis=1)
        if by == "size":
            top = np.maximum(top, -block.entries.min(axis=1))
        slack = scan.margin(scan.row_norms[block.rows], scan.column_norms[block.columns][0])
        own = scan.row_ids[block.rows]
        bounds[own] = np.maximum(bounds[own], top.astype(np.float64) + slack)
    if scan.zero_rows.size or scan.zero_columns.size:
        others = scan.zero_rows if not scan.zero_columns.size else slice(None)
        bounds[others] = np.maximum(bounds[others], 0.0)
    out: Floats = np.ldexp(bounds, scan.exponent)
    return out


def dense_rows(matrix: Factored, ids: Indices) -> Iterator[tuple[slice, Floats]]:
    """Yield some rows in blocks of bounded size, each with where in `ids` it stands: (n, columns).

    >>> [block.shape for _, block in dense_rows(Factored([[1], [2]], [[3, 4]]), np.array([1]))]
    [(1, 2)]
    """
    step = max(_DENSE // matrix.shape[1], 1)
    for start in range(0, len(ids), step):
        at = slice(start, min(start + step, len(ids)))
        yield at, matrix.left[ids[at]] @ matrix.right  # (n, r) @ (r, columns) -> (n, columns)


def entries(matrix: Factored, rows: Indices, columns: Indices) -> Floats:
    """Give single entries: (n,) rows and columns to (n,).

    >>> entries(Factored([[1], [2]], [[3, 4]]), np.array([1]), np.array([0]))
    array([6.])
    """
    return _entries(matrix.left, matrix.right, rows, columns)


def first_of(line: Floats, k: int) -> Indices:
    """Give the places of the k largest numbers, largest first, of equal ones the first: (k,).

    >>> first_of(np.array([1.0, 5.0, 3.0, 5.0]), 3).tolist()
    [1, 3, 2]
    """
    if k == 0:
        return np.empty(0, dtype=np.int64)
    least = np.partition(line, len(line) - k)[len(line) - k]
    near = np.flatnonzero(line >= least)
    order = np.lexsort((near, -line[near]))[:k]
    return near[order].astype(np.int64)


def subset(given: object, count: int, subject: str) -> Indices:
    """Give ids that were asked for, each once and in order, or all of them: (n,).

    Raises `PathExpandError` for what is no id.

    >>> subset([3, 1, 3], 5, "rows").tolist()
    [1, 3]
    """
    if given is None:
        return np.arange(count)
    wanted = f"ids from 0 to {count - 1}"
    try:
        ids = np.atleast_1d(np.asarray(given))
    except ValueError:
        raise PathExpandError(subject, wanted=wanted, got=shown(given)) from None
    whole = ids.ndim == 1 and ids.size and ids.dtype.kind in "iu"
    if not whole or ids.min() < 0 or ids.max() >= count:
        raise PathExpandError(subject, wanted=wanted, got=shown(given))
    return np.unique(ids).astype(np.int64)


def check_count(name: str, count: object) -> None:
    """Refuse a number of rows to list that is not whole, or below 1.

    >>> check_count("top", 3)
    """
    whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
    if not whole or int(count) < 1:  # type: ignore[call-overload]
        raise PathExpandError(name, wanted="a whole number of at least 1", got=shown(count))


def check_by(by: object) -> None:
    """Refuse an order that there is not.

    >>> check_by("size")
    """
    if by not in get_args(By):
        raise PathExpandError("by", wanted="value or size", got=shown(by))


# --- the scan --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """A float32 block of the scaled matrix: which sorted rows and columns it is of."""

    rows: slice
    columns: slice
    entries: npt.NDArray[np.float32]


class _Scan:
    """Two factors balanced, sorted by norm and cast to float32.

    The scaled matrix is 2^-exponent times the true one. Rows and columns that are zero are apart:
    their entries are known.
    """

    def __init__(self, left: Floats, right: Floats) -> None:
        """Prepare the factors: left (m, r), right (r, n)."""
        self.true_left, self.true_right = left, right
        scaled_left, scaled_right, self.exponent = _balanced(left, right)
        row_norms = _norms(scaled_left)  # (m,)
        column_norms = _norms(scaled_right.T)  # (n,)
        self.zero_rows = np.flatnonzero(row_norms == 0)
        self.zero_columns = np.flatnonzero(column_norms == 0)
        self.row_ids, self.row_norms = _falling(row_norms)
        self.column_ids, self.column_norms = _falling(column_norms)
        self._left = scaled_left[self.row_ids].astype(np.float32)
        self._right = [  # each block of columns in one piece of memory
            scaled_right[:, self.column_ids[at]].astype(np.float32, order="C")
            for at in _slices(len(self.column_ids), _COLUMNS)
        ]
        self._relative = gamma(left.shape[1] + 4, UNIT32) * _OVER
        self._absolute = left.shape[1] * 2.0**-120  # underflow in casts and products

    def margin(self, row_norms: Any, column_norm: float) -> Any:
        """Bound how far a float32 entry is from the float64 one, in scaled units."""
        return self._relative * row_norms * column_norm + self._absolute

    def blocks(self, least: Any = None) -> Iterator[_Block]:
        """Yield the blocks that may hold an entry of size `least()` or more, in scaled units.

        The next one is multiplied out while one is looked at, in a thread of its own, and then
        written over it.
        """
        rooms = cycle(np.empty((2, _ROWS * _COLUMNS), dtype=np.float32))
        with ThreadPoolExecutor(1) as aside:
            ahead: Future[_Block] | None = None
            for (rows, columns, right), room in zip(self._places(least), rooms, strict=False):
                following = aside.submit(self._block, rows, columns, right, room)
                if ahead is not None:
                    yield ahead.result()
                ahead = following
            if ahead is not None:
                yield ahead.result()

    def _block(
        self, rows: slice, columns: slice, right: Any, room: npt.NDArray[np.float32]
    ) -> _Block:
        left = self._left[rows]
        out = room[: len(left) * right.shape[1]].reshape(len(left), -1)
        return _Block(rows, columns, np.matmul(left, right, out=out))

    def _places(self, least: Any) -> Iterator[tuple[slice, slice, npt.NDArray[np.float32]]]:
        """Yield the rows and columns of each block that may matter, and the columns themselves."""
        for rows in _slices(len(self.row_ids), _ROWS):
            at = 0
            for right in self._right:
                columns = slice(at, at + right.shape[1])
                at = columns.stop
                if least is not None:
                    bound = self.row_norms[rows.start] * self.column_norms[columns.start] * _OVER
                    if bound < least():
                        break  # and all that come after: norms fall
                yield rows, columns, right

    def zeros(self, k: int) -> tuple[Indices, Indices]:
        """Give the first k entries by row and column that are 0 for a row or column of zeros."""
        all_columns = np.arange(self.true_right.shape[1])
        dead = set(self.zero_rows.tolist())
        rows: list[Indices] = []
        columns: list[Indices] = []
        count = 0
        visited: Any = range(len(self.true_left)) if self.zero_columns.size else self.zero_rows
        for row in visited:
            if count >= k:
                break
            own = (all_columns if int(row) in dead else self.zero_columns)[: k - count]
            rows.append(np.full(len(own), int(row), dtype=np.int64))
            columns.append(own.astype(np.int64))
            count += len(own)
        empty = np.empty(0, dtype=np.int64)
        return np.concatenate([empty, *rows]), np.concatenate([empty, *columns])


class _Kept:
    """The k largest entries found so far, in the scan's own numbering of rows and columns."""

    def __init__(self, scan: _Scan, k: int, by: By) -> None:
        """Begin empty."""
        self.scan, self.k, self.by = scan, k, by
        self.rows = np.empty(0, dtype=np.int64)
        self.columns = np.empty(0, dtype=np.int64)
        self.values: Floats = np.empty(0)

    def least(self) -> float:
        """Give what an entry must reach to get in, in scaled units; −∞ while there is room."""
        if len(self.values) < self.k:
            return -np.inf
        last = float(self.values[-1]) if self.by == "value" else abs(float(self.values[-1]))
        return float(np.ldexp(last, -self.scan.exponent))

    def search(self) -> None:
        """Go through all blocks that may matter."""
        for block in self.scan.blocks(self.least):
            scan = self.scan
            margin = scan.margin(
                scan.row_norms[block.rows.start], scan.column_norms[block.columns.start]
            )
            limit = _down(self.least() - margin)
            top = block.entries.max()
            low = block.entries.min() if self.by == "size" else top
            if top < limit and -low < limit:
                continue
            self._candidates(block, limit, margin)

    def _candidates(self, block: _Block, limit: np.float32, margin: float) -> None:
        found = block.entries if self.by == "value" else abs(block.entries)
        near = np.flatnonzero(found.ravel() >= limit)
        if len(near) > self.k:
            # k entries of this block reach the k-th less the margin; what is two margins below
            # it cannot
            sizes = found.ravel()[near]
            kth = np.partition(sizes, len(sizes) - self.k)[len(sizes) - self.k]
            near = near[sizes >= _down(float(kth) - 2 * margin)]
        width = block.entries.shape[1]
        for at in _slices(len(near), _ENTRIES):
            rows, columns = np.divmod(near[at], width)
            self.take(
                self.scan.row_ids[block.rows][rows], self.scan.column_ids[block.columns][columns]
            )

    def take(self, rows: Indices, columns: Indices) -> None:
        """Work out entries in float64 and keep those that are among the k largest."""
        values = _entries(self.scan.true_left, self.scan.true_right, rows, columns)
        if not np.isfinite(values).all():
            raise PathExpandError(
                "matrix", wanted="entries in the range of float64", got="overflow"
            )
        values = np.concatenate([self.values, values])
        rows = np.concatenate([self.rows, rows])
        columns = np.concatenate([self.columns, columns])
        keys = values if self.by == "value" else abs(values)
        order = np.lexsort((columns, rows, -keys))[: self.k]
        self.values, self.rows, self.columns = values[order], rows[order], columns[order]


def _balanced(left: Floats, right: Floats) -> tuple[Floats, Floats, int]:
    """Scale the factors by powers of two, exactly, so that float32 holds both without loss.

    Each inner index then has a row and a column of like size, and no number is above 1.
    """
    sizes = abs(left).max(axis=0, initial=0.0), abs(right).max(axis=1, initial=0.0)  # (r,) each
    exponents = [np.frexp(each)[1].astype(np.int64) for each in sizes]
    empty = (sizes[0] == 0) | (sizes[1] == 0)
    shift = np.where(empty, 0, (exponents[1] - exponents[0]) // 2)
    tops = [exponents[0] + shift, exponents[1] - shift]
    tops = [int(np.max(each[~empty], initial=-(2**20))) for each in tops]
    if empty.all():
        return np.zeros_like(left), np.zeros_like(right), 0
    scaled_left = np.ldexp(np.where(empty, 0.0, left), shift - tops[0])
    scaled_right = np.ldexp(np.where(empty[:, None], 0.0, right), (-shift - tops[1])[:, None])
    return scaled_left, scaled_right, tops[0] + tops[1]


def _norms(rows: Floats) -> Floats:
    """Bound the norm of each row from above; only a row of zeros has norm 0: (m, r) to (m,)."""
    floor = np.where((rows != 0).any(axis=1), 2.0**-500, 0.0)  # squares may underflow
    out: Floats = np.maximum(np.sqrt(np.einsum("ij,ij->i", rows, rows)) * _OVER, floor)
    return out


def _falling(norms: Floats) -> tuple[Indices, Floats]:
    """Sort what is not zero by falling norm: which, and its norms."""
    alive = np.flatnonzero(norms)
    order = alive[np.argsort(-norms[alive], kind="stable")]
    return order, norms[order]


def _slices(count: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _down(value: float) -> np.float32:
    """Round to float32, never up."""
    return np.float32(np.nextafter(np.float32(value), np.float32(-np.inf)))


def _entries(left: Floats, right: Floats, rows: Indices, columns: Indices) -> Floats:
    # both in one layout, so that equal rows and columns give equal sums, to the last bit
    one = np.ascontiguousarray(left[rows])  # (n, r)
    other = np.ascontiguousarray(right[:, columns].T)  # (r, n) -> (n, r)
    return np.asarray(np.einsum("ij,ij->i", one, other))


def _check_finite(matrix: Factored) -> None:
    for name, factor in (("left", matrix.left), ("right", matrix.right)):
        if not np.isfinite(factor).all():
            raise PathExpandError(f"{name} factor", wanted="finite numbers", got="NaN or infinity")
