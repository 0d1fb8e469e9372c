"""Encoder and decoder matrices with a row a feature, kept as stored and cast up by need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError

Array = npt.NDArray[Any]
_CHUNK = 2**24  # bytes of float64 that are cast up at once


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRows:
    """A matrix with a row a feature, which may lie on a disk and in a narrow number format.

    Shapes: `stored` (feature, width), a view is fine; `gain` (feature,) and `columns` (width,), by
    which each row and each column is multiplied, or none. What is handed out is float64. Nothing is
    kept once it has been cast up. Raises `ModelError` for what is no matrix of floats, and when a
    row that is asked for holds NaN or infinity.

    >>> FeatureRows("W_dec", np.array([[1, 2], [3, 4]], np.float16)).at(np.array([1]))
    array([[3., 4.]])
    """

    name: str
    stored: Array
    gain: Array | None = None
    columns: Array | None = None

    def __post_init__(self) -> None:
        """Refuse what is no matrix of floats, and gains that do not fit it."""
        stored = self.stored
        if not isinstance(stored, np.ndarray) or stored.ndim != 2:
            shape = getattr(stored, "shape", type(stored).__name__)
            raise ModelError(f"tensor {self.name}", wanted="two axes", got=f"{shape}")
        # bfloat16 has the kind "V": numpy knows it by its name alone.
        if stored.dtype.kind != "f" and stored.dtype.name != "bfloat16":
            raise ModelError(f"tensor {self.name}", wanted="floats", got=f"{stored.dtype}")
        if self.gain is not None and self.gain.shape != (len(stored),):
            wanted = f"{len(stored)} gains, one a feature"
            raise ModelError(f"tensor {self.name}", wanted=wanted, got=f"{self.gain.shape}")
        if self.columns is not None and self.columns.shape != (stored.shape[1],):
            wanted = f"{stored.shape[1]} gains, one a column"
            raise ModelError(f"tensor {self.name}", wanted=wanted, got=f"{self.columns.shape}")

    @property
    def count(self) -> int:
        """The number of features."""
        return int(self.stored.shape[0])

    @property
    def width(self) -> int:
        """The length of each row."""
        return int(self.stored.shape[1])

    def at(self, features: npt.NDArray[np.int64]) -> Array:
        """Give the rows of some features: (n,) to (n, width)."""
        return self._cast(self.stored[features], None if self.gain is None else self.gain[features])

    def whole(self) -> Array:
        """Give all rows: (feature, width). It is as large as it sounds."""
        return self._cast(self.stored, self.gain)

    def chunks(self) -> Iterator[tuple[slice, Array]]:
        """Yield all rows in pieces of bounded size, each with the slice it stands at."""
        step = max(_CHUNK // (8 * max(self.width, 1)), 1)
        for start in range(0, self.count, step):
            at = slice(start, min(start + step, self.count))
            yield at, self._cast(self.stored[at], None if self.gain is None else self.gain[at])

    def products(self, vector: Array) -> Array:
        """Give each row's product with a vector: (width,) to (feature,)."""
        out = np.empty(self.count)
        for at, rows in self.chunks():
            np.matmul(rows, vector, out=out[at])
        return out

    def lengths(self) -> Array:
        """Give each row's Euclidean length: (feature,)."""
        out = np.empty(self.count)
        for at, rows in self.chunks():
            out[at] = np.sqrt(np.einsum("fd,fd->f", rows, rows))
        return out

    def scaled(self, gain: Array | float) -> FeatureRows:
        """Give the rows multiplied by one number, or by one a feature."""
        own = np.broadcast_to(np.asarray(gain, np.float64), (self.count,))
        return replace(self, gain=own if self.gain is None else self.gain * own)

    def over(self, columns: Array) -> FeatureRows:
        """Give the rows with each column multiplied by a number: (width,)."""
        own = columns if self.columns is None else self.columns * columns
        return replace(self, columns=own)

    def _cast(self, stored: Array, gain: Array | None) -> Array:
        rows: Array = np.asarray(stored, dtype=np.float64)
        if not np.isfinite(rows).all():
            count = int(np.size(rows) - np.count_nonzero(np.isfinite(rows)))
            raise ModelError(
                f"tensor {self.name}",
                wanted="finite numbers",
                got=f"{count} that are NaN or infinite",
            )
        if self.columns is not None:
            rows = rows * self.columns
        return rows if gain is None else rows * gain[:, None]
