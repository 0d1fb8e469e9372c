"""Norms with their scale held fixed, folded into what stands before or behind them.

A norm is diag(scale) ⊗ (I − 11ᵀ/d) diag(γ), without the mean for an RMSNorm, and a constant β.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.model.weights import Norm

Array = npt.NDArray[Any]


def through(norm: Norm | None, rows: Array) -> Array:
    """Send vectors (…, d_model) through a norm's matrix, the scale and β left out."""
    if norm is None:
        return rows
    if norm.kind == "layer":
        rows = rows - rows.sum(axis=-1, keepdims=True) / rows.shape[-1]
    return rows if norm.weight is None else rows * norm.weight


def back(norm: Norm | None, columns: Array) -> Array:
    """Fold a norm's matrix into what reads behind it: (…, d_model, n)."""
    if norm is None:
        return columns
    if norm.weight is not None:
        columns = columns * norm.weight[:, None]
    if norm.kind == "layer":
        columns = columns - columns.sum(axis=-2, keepdims=True) / columns.shape[-2]
    return columns


def size_through(norm: Norm | None, rows: Array, scale: Array | None) -> Array:
    """Bound the sizes met on the way of |vectors| (position, d_model) through a whole norm."""
    if norm is None:
        return rows
    if norm.kind == "layer":
        rows = rows + rows.sum(axis=-1, keepdims=True) / rows.shape[-1]
    if norm.weight is not None:
        rows = rows * abs(norm.weight)
    if scale is not None:
        rows = rows * scale[:, None]
    return rows if norm.bias is None else rows + abs(norm.bias)


@dataclass(frozen=True, slots=True, eq=False)
class Carry:
    """What the stream itself passes on its way past a stage: a norm with fixed scale (position,).

    β is not part of it; it is a source born behind.
    """

    norm: Norm
    scale: Array

    def pull(self, reads: Array) -> Array:
        """Carry functionals (…, position, d_model) back."""
        out: Array = back(self.norm, np.swapaxes(reads, -1, -2) * self.scale)
        return np.swapaxes(out, -1, -2)

    def pull_sizes(self, sizes: Array) -> Array:
        """Bound the sizes met on the way of |functionals| (…, position, d_model) back."""
        out = sizes * self.scale[:, None]
        if self.norm.weight is not None:
            out = out * abs(self.norm.weight)
        if self.norm.kind == "layer":
            out = out + out.sum(axis=-1, keepdims=True) / out.shape[-1]
        return np.asarray(out)

    def push_rows(self, matrices: Array) -> Array:
        """Send the rows of matrices (position, n, d_model) through, as the stream would pass."""
        if self.norm.kind == "layer":
            matrices = matrices - matrices.sum(axis=-1, keepdims=True) / matrices.shape[-1]
        # Together they are of the stream's own size, where either may be out of range.
        factor = (
            self.scale[:, None]
            if self.norm.weight is None
            else np.outer(self.scale, self.norm.weight)
        )
        return np.asarray(matrices * factor[:, None])

    def push(self, stream: Array) -> Array:
        """Send a stream (position, d_model) through."""
        return through(self.norm, stream) * self.scale[:, None]

    def move(self, rows: Array, vectors: Array) -> tuple[Array, Array]:
        """Carry pieces back: rows (piece, position), vectors (piece, d_model)."""
        return rows * self.scale, back(self.norm, vectors.T).T

    def until(self, size: int) -> Carry:
        """Give it on the first positions."""
        return Carry(self.norm, self.scale[:size])

    @property
    def stretch(self) -> float:
        """A bound on the spectral norm of the matrix: a mean taken off never lengthens."""
        weight = self.norm.weight
        return 1.0 if weight is None else float(abs(weight).max(initial=0.0)) * (1 + 1e-9)
