"""A norm with its scale held fixed: applied as the model does, or as the matrix that it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.lengths import lengths
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.model.weights import Norm

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class FixedNorm:
    """x ↦ scale · x N + β, with N = (I − 11ᵀ/d) diag(γ), for an RMSNorm diag(γ); scale (position,).

    Where it is the stream itself that passes, it stands between paths' components, and only
    scale · x N is meant: β is a source of its own. `doubt` is how far, in proportion, the scales
    may lie from those of the search.
    """

    norm: Norm
    scale: Array
    doubt: float = 0.0

    def linear(self, rows: Array) -> Array:
        """Give rows N: (…, d_model)."""
        if self.norm.kind == "layer":
            rows = rows - rows.mean(axis=-1, keepdims=True)
        return rows if self.norm.weight is None else rows * self.norm.weight

    def folded(self, columns: Array) -> Array:
        """Give N columns: (…, d_model, n)."""
        if self.norm.weight is not None:
            columns = self.norm.weight[:, None] * columns
        if self.norm.kind == "layer":
            columns = columns - columns.mean(axis=-2, keepdims=True)
        return columns

    def applied(self, stream: Array) -> Array:
        """Give the normed stream, β included: (position, d_model)."""
        out = self.push(stream)
        return out if self.norm.bias is None else out + self.norm.bias

    def size(self, sizes: Array) -> Array:
        """Bound all that is met on the way of a stream of these sizes, β included."""
        out = self._size(sizes)
        return out if self.norm.bias is None else out + abs(self.norm.bias)

    def push(self, stream: Array) -> Array:
        """Give scale · stream N: (…, position, d_model)."""
        return self.linear(stream) * self.scale[:, None]

    def pull(self, reads: Array) -> Array:
        """Carry functionals (…, position, d_model) back."""
        return np.swapaxes(self.folded(np.swapaxes(reads, -1, -2) * self.scale), -1, -2)

    def blur(self, sizes: Array, unit: float) -> Array:
        """Bound what a push of a stream of these sizes may be off by: (…, position, d_model)."""
        return (unit + self.doubt) * (self._size(sizes) + TINY)

    @property
    def stretch(self) -> float:
        """A bound on the spectral norm of N: a mean taken off never lengthens."""
        weight = self.norm.weight
        return 1.0 if weight is None else float(abs(weight).max(initial=0.0))

    def scale_doubt(self, stream: Array | None, width: int) -> float:
        """Bound how far, in proportion, rounding may move the scales, given what is normed.

        The mean square is that of numbers each off by a few units of |x| and of their mean. Where
        the stream (position, d_model) is not known, no more than a part of it may be its mean.
        """
        if stream is None:
            return 16 * gamma(2 * width + 16)
        sizes = abs(stream)
        sizes = sizes + sizes.mean(axis=-1, keepdims=True)
        most = float((lengths(sizes) * self.scale).max(initial=0.0))
        return 2 * gamma(2 * width + 16) * (1 + most / math.sqrt(width))

    def _size(self, sizes: Array) -> Array:
        if self.norm.kind == "layer":
            sizes = sizes + sizes.mean(axis=-1, keepdims=True)
        if self.norm.weight is not None:
            sizes = sizes * abs(self.norm.weight)
        return sizes * self.scale[:, None]
