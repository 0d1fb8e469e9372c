"""The sum of all paths of a query, carried forward from the sources, and what rounding may do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.held import Held
from pathexpand.certificate.part import Part
from pathexpand.certificate.suffix import Tree
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Summed:
    """A sum over paths and what rounding may do to it, and to the same sum taken backward."""

    value: float
    rounding: float


def summed(held: Held, query: Query, listed: Tree | None = None) -> Summed:
    """Sum all paths of a query, forward, with a field (position, d_model) for each of its states.

    A field holds all prefixes that a suffix in that state may be completed by. Rounding is what
    each stage's products can lose, as the functionals behind it read it. These are also those of
    the remainder's own pass, where each suffix of a `listed` path is taken out and so stands
    beside the rest.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> run = load("two-layer").run("to be or not to")
    >>> held = hold(run, run.target(), run.position(), same=True)
    >>> total = summed(held, run.model.query("* > L1H2"))
    >>> bool(abs(total.value - run.total("* > L1H2").sum()) <= total.rounding)
    True
    """
    fields = list(_fields(held, query))
    last = fields[-1][query.start, held.position]  # (d_model,)
    value, rounding = float(last @ held.direction), held.read_blur(abs(last))
    if "b_U" in query.stops(query.start):
        value += held.constant
        rounding += held.constant_lost + gamma(4) * (abs(value) + abs(held.constant))
    exact = np.zeros_like(fields[0])  # (state, position, d_model)
    exact[query.start, held.position] = held.direction
    unit = gamma(held.steps + query.states + (0 if listed is None else len(listed)))
    for boundary in reversed(range(len(fields))):
        reads = abs(exact)
        if listed is not None:
            _add_beside(reads, boundary, listed)
        rounding += _born_rounding(held, query, boundary, reads, unit)
        if boundary:
            rounding += _stage_rounding(
                held, query, boundary - 1, reads, fields[boundary - 1], unit
            )
            exact = _back(held, query, boundary - 1, exact)
    return Summed(value, 4 * rounding + TINY)


def functionals(held: Held) -> list[Array]:
    """Give what reads the sum of all paths at each boundary: (position, d_model)."""
    reads = np.zeros((held.positions, held.width))
    reads[held.position] = held.direction
    found = [reads]
    for stage in reversed(held.stages):
        past = reads if stage.norm is None else stage.norm.pull(reads)
        reads = sum((part.pull(reads) for part in stage.parts), past)
        found.append(reads)
    return found[::-1]


def _ways(
    held: Held, query: Query, number: int
) -> Iterator[tuple[Part, int, int, list[int] | None]]:
    """Yield a stage's components by the states that they lead from (behind) and to (before)."""
    for state in range(query.states):
        after = query.after(state, number)
        for own, part in held.stages[number].numbered():
            steps = after[own]
            for to in sorted({each for each in steps if each is not None}):
                which = [n for n, each in enumerate(steps) if each == to]
                yield part, state, to, None if len(which) == len(steps) else which


def _fields(held: Held, query: Query) -> Iterator[Array]:
    """Yield the fields at each boundary: (state, position, d_model)."""
    field = np.zeros((query.states, held.positions, held.width))
    for boundary in range(held.depth + 1):
        if boundary:
            before, norm = field, held.stages[boundary - 1].norm
            field = field.copy() if norm is None else norm.push(field)
            for part, state, to, which in _ways(held, query, boundary - 1):
                field[state] += part.push(before[to], which)
        for source in held.sources:
            if source.boundary == boundary:
                field[_stopping(query, source.label)] += source.values
        yield field


def _back(held: Held, query: Query, number: int, reads: Array) -> Array:
    """Carry functionals (state, position, d_model) back through a stage."""
    norm = held.stages[number].norm
    out = reads.copy() if norm is None else norm.pull(reads)
    for part, state, to, which in _ways(held, query, number):
        if reads[state].any():
            out[to] += part.pull(reads[state], which)
    return out


def _add_beside(reads: Array, boundary: int, listed: Tree) -> None:
    """Add the sizes of what listed suffixes read to those of each state."""
    active = np.flatnonzero(listed.boundaries >= boundary)
    for some in listed.parts(active):
        each = listed.at(boundary, some)
        for state in np.unique(listed.states[some]):
            own = listed.states[some] == state
            if each.rows is None:
                reads[state] += abs(each.vectors[own]).sum(axis=0)
            else:
                reads[state] += abs(each.rows[own]).T @ abs(each.vectors[own])


def _born_rounding(held: Held, query: Query, boundary: int, reads: Array, unit: float) -> float:
    total = 0.0
    for source in held.sources:
        if source.boundary == boundary:
            some = reads[_stopping(query, source.label)]  # (state, position, d_model)
            total += float((some * source.blur(unit)).sum())
    return total


def _stage_rounding(
    held: Held, query: Query, number: int, reads: Array, field: Array, unit: float
) -> float:
    norm, sizes = held.stages[number].norm, abs(field)
    kept = unit * sizes if norm is None else norm.blur(sizes, unit)
    total = float((reads * kept).sum())
    for part, state, to, which in _ways(held, query, number):
        total += float((reads[state] * part.blur(sizes[to], unit, which)).sum())
    return total


def _stopping(query: Query, label: str) -> list[int]:
    return [state for state in range(query.states) if label in query.stops(state)]
