"""Tall matrices (a row a token, a logit or a position), kept as stored and cast up by need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError

Array = npt.NDArray[Any]
_SMALL = 2**27  # bytes of float64 up to which a whole matrix is kept once it has been cast up
_CHUNK = 2**24  # bytes of float64 that are cast up at once of a larger one


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A matrix of many rows, which may lie on a disk and in a narrow number format.

    Shapes: `stored` (row, inner), `factor` (inner, width) or none. What it stands for is `scale`
    times `stored` `factor`, as float64; exact numbers (dtype object) stay as they are. Raises
    `ModelError` when a row that is asked for holds NaN or infinity.

    >>> rows = Rows("W_E", np.array([[1, 2], [3, 4]], dtype=np.float16), scale=2.0)
    >>> rows.at(np.array([1])), rows.width
    (array([[6., 8.]]), 2)
    """

    name: str
    stored: Array
    factor: Array | None = None
    scale: float = 1.0
    _whole: dict[str, Array] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.stored.shape[0])

    @property
    def width(self) -> int:
        """The length of each row."""
        return int((self.stored if self.factor is None else self.factor).shape[1])

    @property
    def is_small(self) -> bool:
        """Whether the whole matrix is kept as float64 once it has been asked for."""
        return 8 * self.count * self.width <= _SMALL

    def at(self, rows: npt.NDArray[np.int64]) -> Array:
        """Give some rows: (...) to (..., width)."""
        if self.is_small:
            out: Array = self.whole()[rows]
            return out
        return self._cast(self.stored[rows])

    def whole(self) -> Array:
        """Give all rows, read-only: (row, width)."""
        if "whole" in self._whole:
            return self._whole["whole"]
        out = self._cast(self.stored)
        out.setflags(write=False)
        if self.is_small:
            self._whole["whole"] = out
        return out

    def chunks(self) -> Iterator[tuple[slice, Array]]:
        """Yield all rows in pieces of bounded size, each with the slice it stands at."""
        if self.is_small:
            yield slice(0, self.count), self.whole()
            return
        step = max(_CHUNK // (8 * max(self.width, self.stored.shape[1])), 1)
        for start in range(0, self.count, step):
            at = slice(start, min(start + step, self.count))
            yield at, self._cast(self.stored[at])

    def products(self, vectors: Array) -> Array:
        """Give every row's product with vectors: (..., width) to (..., row).

        They are taken in the vectors' number format: float32 vectors give float32 products.
        """
        if vectors.dtype == np.float32 and self.stored.dtype != object:
            return self._single(vectors)
        if self.is_small:
            small: Array = vectors @ self.whole().T
            return small
        out = np.empty((*vectors.shape[:-1], self.count))
        for at, rows in self.chunks():
            np.matmul(vectors, rows.T, out=out[..., at])
        return out

    def mean(self, *, absolute: bool = False) -> Array:
        """Give the mean over all rows, or over their absolute values: (width,)."""
        parts = [(abs(rows) if absolute else rows).sum(axis=0) for _, rows in self.chunks()]
        out: Array = np.sum(parts, axis=0) / self.count
        return out

    def _single(self, vectors: Array) -> Array:
        """Give products in float32; no copy is made of what is stored in float32."""
        if self.factor is not None:
            vectors = vectors @ self.factor.astype(np.float32).T
        if self.scale != 1:
            vectors = vectors * np.float32(self.scale)
        if self.stored.dtype == np.float32:
            whole: Array = vectors @ self.stored.T
            return whole
        if "single" not in self._whole and self.is_small:
            self._whole["single"] = self.stored.astype(np.float32)
        if "single" in self._whole:
            small: Array = vectors @ self._whole["single"].T
            return small
        out = np.empty((*vectors.shape[:-1], self.count), dtype=np.float32)
        step = max(_CHUNK // (4 * self.stored.shape[1]), 1)
        for start in range(0, self.count, step):
            at = slice(start, min(start + step, self.count))
            np.matmul(vectors, self.stored[at].astype(np.float32).T, out=out[..., at])
        return out

    def _cast(self, stored: Array) -> Array:
        if stored.dtype == object:
            return stored
        rows = stored.astype(np.float64)
        if not np.isfinite(rows).all():
            count = int(np.size(rows) - np.count_nonzero(np.isfinite(rows)))
            raise ModelError(
                f"tensor {self.name}",
                wanted="finite numbers",
                got=f"{count} that are NaN or infinite",
            )
        if self.factor is not None:
            rows = rows @ self.factor
        return rows if self.scale == 1 else rows * self.scale
