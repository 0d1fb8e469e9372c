"""Functionals on the stream, many at once, and how far off they may be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.lengths import lengths
from pathexpand.certificate.norm import FixedNorm
from pathexpand.engine.rounding import gamma

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Reads:
    """What some suffixes of paths read of the stream at one boundary: n functionals.

    They are `rows` (n, position) ⊗ `vectors` (n, d_model) until an MLP taken whole stands in them;
    then `rows` is None and `vectors` (n, position, d_model). `lost` (n, position) bounds the length
    of what may be wrong at each position: by rounding, and by the doubt about what is held fixed.
    """

    rows: Array | None
    vectors: Array
    lost: Array

    def __len__(self) -> int:
        """Give their number."""
        return len(self.lost)

    def __getitem__(self, which: slice | Array) -> Reads:
        """Give some of them."""
        rows = None if self.rows is None else self.rows[which]
        return Reads(rows, self.vectors[which], self.lost[which])

    @cached_property
    def sizes(self) -> Array:
        """Their lengths at each position: (n, position)."""
        if self.rows is None:
            return lengths(self.vectors)
        return abs(self.rows) * lengths(self.vectors)[:, None]

    def whole(self) -> Array:
        """Give them written out: (n, position, d_model)."""
        if self.rows is None:
            return self.vectors
        out: Array = self.rows[:, :, None] * self.vectors[:, None, :]
        return out

    def past(self, norm: FixedNorm) -> Reads:
        """Carry them back past a norm of the stream."""
        columns = np.swapaxes(self.vectors, -1, -2) if self.rows is None else self.vectors.T
        vectors = norm.folded(columns)
        unit = 2 * gamma(self.vectors.shape[-1] + 8) + norm.doubt
        lost = norm.stretch * norm.scale * (self.lost + unit * self.sizes)
        if self.rows is None:
            return Reads(None, np.swapaxes(vectors, -1, -2) * norm.scale[:, None], lost)
        return Reads(self.rows * norm.scale, vectors.T, lost)

    def completed(self, values: Array) -> Array:
        """Give what each reads of a stream: (position, d_model) to (n,)."""
        if self.rows is None:
            out: Array = (self.vectors * values).sum(axis=(1, 2))
        else:
            out = (self.rows * (self.vectors @ values.T)).sum(axis=1)
        return out
