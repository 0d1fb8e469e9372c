"""Sums over all paths without listing them, by one pass back from the readout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.value import Readout, empty_suffix
from pathexpand.frozen import FrozenLayer, FrozenSum

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """The sum of all paths, split every way that costs nothing.

    `values` (order, source, position): paths with that many heads, from that source, born at
    that position; `sources` names the second axis.
    """

    sources: tuple[str, ...]
    values: Array

    def sum(self) -> Any:
        """Give the sum over every path."""
        return self.values.sum()

    def by_order(self) -> Array:
        """Give the sum over paths of each order: (order,)."""
        out: Array = self.values.sum(axis=(1, 2))
        return out

    def by_source(self) -> dict[str, Any]:
        """Give the sum over paths from each source."""
        return dict(zip(self.sources, self.values.sum(axis=(0, 2)), strict=True))

    def by_token(self) -> Array:
        """Give the sum over paths born at each position: (position,)."""
        out: Array = self.values.sum(axis=(0, 1))
        return out


def totals(frozen: FrozenSum, readout: Readout) -> Totals:
    """Sum all paths by order, source and source position.

    The functional that reads the stream at a boundary is carried back layer by layer, one copy
    an order: g'[k] = g[k] + Σ_h (A^h)ᵀ g[k-1] W_Oᵀ W_Vᵀ. A bias born in the logits is booked at
    the readout's own position.
    """
    depth = len(frozen.layers)
    suffix = empty_suffix(frozen, readout)
    reads = np.zeros((depth + 1, suffix.row.size, suffix.vector.size), dtype=suffix.vector.dtype)
    reads[0] = np.outer(suffix.row, suffix.vector)  # (order, position, d_model)
    born = {depth: reads}
    for index in reversed(range(depth)):
        some = depth - index  # orders below this one are not zero
        reads = reads.copy()
        reads[1 : some + 1] += pullback(frozen.layers[index], reads[:some])
        born[index] = reads
    names = [each.label for each in frozen.sources]
    columns = [(born[each.boundary] * each.values).sum(axis=2) for each in frozen.sources]
    if frozen.has_unembed_bias:
        constant = np.zeros((depth + 1, suffix.row.size), dtype=suffix.vector.dtype)
        constant[0, readout.position] = readout.constant
        names, columns = [*names, "b_U"], [*columns, constant]
    return Totals(tuple(names), np.stack(columns, axis=1))  # (order, source, position)


def functionals(frozen: FrozenSum, readout: Readout) -> tuple[Array, ...]:
    """Give, for each boundary, the functional (position, d_model) that reads all paths from there.

    Entry l pairs with the stream before layer l; the last entry is the readout itself.
    """
    suffix = empty_suffix(frozen, readout)
    reads = [np.outer(suffix.row, suffix.vector)]
    for layer in reversed(frozen.layers):
        reads.append(reads[-1] + pullback(layer, reads[-1]))
    return tuple(reversed(reads))


def pullback(layer: FrozenLayer, reads: Array) -> Array:
    """Carry functionals (…, query, d_model) back through every head: (…, key, d_model)."""
    out: Array = np.zeros_like(reads)
    for pattern, w_v, w_o in zip(layer.patterns, layer.W_V, layer.W_O, strict=True):
        out = out + (pattern.T @ (reads @ w_o.T)) @ w_v.T
    return out
