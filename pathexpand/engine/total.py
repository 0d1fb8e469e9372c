"""Sums over all paths without listing them, by one pass back from the readout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.value import Readout, empty_suffix
from pathexpand.engine.ways import ways
from pathexpand.frozen import FrozenSum
from pathexpand.symbolic import Component, Head
from pathexpand.symbolic.query import Query, everything

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """The sum of all paths, split every way that costs nothing.

    `values` (order, source, position): paths with that many components, from that source, born at
    that position; `sources` names the second axis.
    """

    sources: tuple[str, ...]
    values: Array

    def __repr__(self) -> str:
        """Give the sum, and what it can be split by.

        >>> Totals(("embed",), np.ones((3, 1, 7)))
        Totals(sum 21, by 3 orders, 1 source, 7 tokens)
        """
        names = zip(self.values.shape, ("order", "source", "token"), strict=True)
        split = ", ".join(f"{size} {name}{'' if size == 1 else 's'}" for size, name in names)
        return f"Totals(sum {float(self.sum()):.6g}, by {split})"

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

    The functional that reads the stream at a boundary is carried back stage by stage, one copy
    for each order and each state of the query: g'[k] = g[k] + Σ_c P_cᵀ g[k-1] C_cᵀ. What is born
    in the logits is booked at the readout's own position.
    """
    asked = everything(frozen.network()) if query is None else query
    depth, suffix = frozen.depth, empty_suffix(frozen, readout)
    first = suffix.rows.T @ suffix.vectors  # (position, d_model)
    reads = np.zeros((asked.states, depth + 1, *first.shape), dtype=first.dtype)
    reads[asked.start, 0] = first  # (state, order, position, d_model)
    born = {depth: reads}
    for index in reversed(range(depth)):
        reads = _longer(frozen, index, reads, asked, depth - index)
        born[index] = reads
    names, columns = [], []
    for source in frozen.sources:
        ending = [q for q in range(asked.states) if source.label in asked.stops(q)]
        read = born[source.boundary][ending].sum(axis=0)  # (order, position, d_model)
        names.append(source.label)
        columns.append((read * source.values).sum(axis=2))
    if frozen.constant is not None:
        constant = np.zeros((depth + 1, len(first)), dtype=first.dtype)
        if frozen.constant in asked.stops(asked.start):
            constant[0, readout.position] = readout.constant
        names, columns = [*names, frozen.constant], [*columns, constant]
    return Totals(tuple(names), np.stack(columns, axis=1))  # (order, source, position)


def _longer(frozen: FrozenSum, index: int, reads: Array, query: Query, some: int) -> Array:
    """Carry functionals of the first `some` orders through a stage, each to the order above."""
    stage = frozen.stages[index]
    out = np.array(stage.past(reads))
    for way in ways(frozen, query, index):
        if reads[way.before, :some].any():
            out[way.after, 1 : some + 1] += way.group.pull(reads[way.before, :some], way.which)
    return out


def functionals(frozen: FrozenSum, readout: Readout) -> tuple[Array, ...]:
    """Give, for each boundary, the functional (position, d_model) that reads all paths from there.

    Entry b pairs with the stream once b stages are passed; the last entry is the readout itself.
    """
    suffix = empty_suffix(frozen, readout)
    reads = [suffix.rows.T @ suffix.vectors]
    for stage in reversed(frozen.stages):
        reads.append(stage.pull(reads[-1]))
    return tuple(reversed(reads))


def component_totals(frozen: FrozenSum, readout: Readout) -> dict[Component, Any]:
    """Sum the paths that pass through each component."""
    reads, streams = functionals(frozen, readout), frozen_streams(frozen)
    return {
        component: value
        for index, stage in enumerate(frozen.stages)
        for group in stage.groups
        for component, value in zip(
            group.components, group.worth(reads[index + 1], streams[index]), strict=True
        )
    }


def pair_totals(frozen: FrozenSum, readout: Readout) -> dict[tuple[Head, Head], Any]:
    """Sum the paths that pass through both of two heads, for each pair, the earlier head first."""
    reads, streams = functionals(frozen, readout), frozen_streams(frozen)
    found: dict[tuple[Head, Head], Any] = {}
    for late, stage in enumerate(frozen.stages):
        for group in stage.groups:
            for number, head in enumerate(group.components):
                if not isinstance(head, Head):
                    continue
                read = group.pull(reads[late + 1], [number])  # (position, d_model)
                for early in reversed(range(late)):
                    found |= _worths(frozen, early, read, streams[early], head)
                    read = frozen.stages[early].pull(read)
    return dict(sorted(found.items()))


def _worths(
    frozen: FrozenSum, early: int, read: Array, stream: Array, head: Head
) -> dict[tuple[Head, Head], Any]:
    return {
        (other, head): value
        for group in frozen.stages[early].groups
        if isinstance(group.components[0], Head)
        for other, value in zip(group.components, group.worth(read, stream), strict=True)
        if isinstance(other, Head)
    }


def frozen_streams(frozen: FrozenSum) -> tuple[Array, ...]:
    """Give the stream at each boundary as the frozen sum makes it: (position, d_model) each."""
    stream: Any = np.zeros_like(frozen.sources[0].values)
    found = []
    for index in range(frozen.depth + 1):
        for source in (s for s in frozen.sources if s.boundary == index):
            stream = stream + source.values
        found.append(stream)
        if index < frozen.depth:
            stage, before = frozen.stages[index], stream
            stream = before if stage.carry is None else stage.carry.push(before)
            for group in stage.groups:
                stream = stream + group.push(before)
    return tuple(found)
