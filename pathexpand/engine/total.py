"""Sums over all paths without listing them, by one pass back from the readout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.value import Readout, empty_suffix
from pathexpand.frozen import FrozenLayer, FrozenSum
from pathexpand.symbolic import Head
from pathexpand.symbolic.query import Query, everything

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


def totals(frozen: FrozenSum, readout: Readout, query: Query | None = None) -> Totals:
    """Sum all paths of a query, by default every path, by order, source and source position.

    The functional that reads the stream at a boundary is carried back layer by layer, one copy
    for each order and each state of the query: g'[k] = g[k] + Σ_h (A^h)ᵀ g[k-1] W_Oᵀ W_Vᵀ. A bias
    born in the logits is booked at the readout's own position.
    """
    asked = everything(frozen.network()) if query is None else query
    depth, suffix = len(frozen.layers), empty_suffix(frozen, readout)
    shape = (asked.states, depth + 1, suffix.row.size, suffix.vector.size)
    reads = np.zeros(shape, dtype=suffix.vector.dtype)  # (state, order, position, d_model)
    reads[asked.start, 0] = np.outer(suffix.row, suffix.vector)
    born = {depth: reads}
    for index in reversed(range(depth)):
        reads = _longer(frozen.layers[index], reads, asked, depth - index)
        born[index] = reads
    names, columns = [], []
    for source in frozen.sources:
        ending = [q for q in range(asked.states) if source.label in asked.stops(q)]
        read = born[source.boundary][ending].sum(axis=0)  # (order, position, d_model)
        names.append(source.label)
        columns.append((read * source.values).sum(axis=2))
    if frozen.has_unembed_bias:
        constant = np.zeros((depth + 1, suffix.row.size), dtype=suffix.vector.dtype)
        if "b_U" in asked.stops(asked.start):
            constant[0, readout.position] = readout.constant
        names, columns = [*names, "b_U"], [*columns, constant]
    return Totals(tuple(names), np.stack(columns, axis=1))  # (order, source, position)


def _longer(layer: FrozenLayer, reads: Array, query: Query, some: int) -> Array:
    """Carry functionals of the first `some` orders through a layer, each to the order above."""
    out = reads.copy()
    for number, head in enumerate(layer.heads):
        after = [query.step(state, head) for state in range(query.states)]
        for state in sorted({each for each in after if each is not None}):
            come = [q for q, each in enumerate(after) if each == state]
            read = reads[come, :some].sum(axis=0)  # (order, position, d_model)
            out[state, 1 : some + 1] += _through(layer, number, read)
    return out


def functionals(frozen: FrozenSum, readout: Readout) -> tuple[Array, ...]:
    """Give, for each boundary, the functional (position, d_model) that reads all paths from there.

    Entry l pairs with the stream before layer l; the last entry is the readout itself.
    """
    suffix = empty_suffix(frozen, readout)
    reads = [np.outer(suffix.row, suffix.vector)]
    for layer in reversed(frozen.layers):
        reads.append(reads[-1] + pullback(layer, reads[-1]))
    return tuple(reversed(reads))


def head_totals(frozen: FrozenSum, readout: Readout) -> dict[Head, Any]:
    """Sum the paths that pass through each head."""
    reads, outputs = functionals(frozen, readout), head_outputs(frozen)
    return {
        head: (reads[index + 1] * output).sum(axis=1).sum()
        for index, layer in enumerate(frozen.layers)
        for head, output in zip(layer.heads, outputs[index], strict=True)
    }


def pair_totals(frozen: FrozenSum, readout: Readout) -> dict[tuple[Head, Head], Any]:
    """Sum the paths that pass through both of two heads, for each pair, the earlier head first."""
    reads, outputs = functionals(frozen, readout), head_outputs(frozen)
    found = {}
    for late, layer in enumerate(frozen.layers):
        for number, head in enumerate(layer.heads):
            read = _through(layer, number, reads[late + 1])  # (position, d_model)
            for early in reversed(range(late)):
                for other, output in zip(frozen.layers[early].heads, outputs[early], strict=True):
                    found[other, head] = (read * output).sum(axis=1).sum()
                read = read + pullback(frozen.layers[early], read)
    return dict(sorted(found.items()))


def head_outputs(frozen: FrozenSum) -> tuple[Array, ...]:
    """Give what each head writes, summed over all that reaches it: (head, position, d_model)."""
    stream = np.zeros_like(frozen.sources[0].values)
    found = []
    for index, layer in enumerate(frozen.layers):
        for source in (s for s in frozen.sources if s.boundary == index):
            stream = stream + source.values
        output = layer.patterns @ ((stream @ layer.W_V) @ layer.W_O)  # (head, position, d_model)
        found.append(output)
        stream = stream + output.sum(axis=0)
    return tuple(found)


def pullback(layer: FrozenLayer, reads: Array) -> Array:
    """Carry functionals (…, query, d_model) back through every head: (…, key, d_model)."""
    out: Array = np.zeros_like(reads)
    for number in range(len(layer.heads)):
        out = out + _through(layer, number, reads)
    return out


def _through(layer: FrozenLayer, number: int, reads: Array) -> Array:
    """Carry functionals (…, query, d_model) back through one head: (…, key, d_model)."""
    inner = layer.patterns[number].T @ (reads @ layer.W_O[number].T)  # (…, key, d_head)
    out: Array = inner @ layer.W_V[number].T  # (…, key, d_model)
    return out
