"""The sum of all paths of a query, carried forward from the sources, and what rounding may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.held import Held
from pathexpand.certificate.suffix import Suffix, Word
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Summed:
    """A sum over paths and what rounding may do to it, and to the same sum taken backward."""

    value: float
    rounding: float


def summed(held: Held, query: Query, listed: dict[Word, Suffix]) -> Summed:
    """Sum all paths of a query, forward, with a field (position, d_model) for each of its states.

    A field holds all prefixes that a suffix in that state may be completed by. Rounding is what
    each layer's products can lose, as the functionals behind it read it. These are also those of
    the remainder's own pass, where each suffix of a `listed` path is taken out and so stands
    beside the rest.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> run = load("two-layer").run("to be or not to")
    >>> held = hold(run, run.target(), run.position(), same_patterns=True)
    >>> total = summed(held, run.model.query("* > L1H2"), {})
    >>> bool(abs(total.value - run.total("* > L1H2").sum()) <= total.rounding)
    True
    """
    fields = list(_fields(held, query))
    value = float(fields[-1][query.start, held.position] @ held.direction)
    rounding = gamma(held.steps) * abs(value)
    if "b_U" in query.stops(query.start):
        value += held.constant
        rounding += gamma(held.steps) * (abs(value) + abs(held.constant))
    exact = np.zeros_like(fields[0])  # (state, position, d_model)
    exact[query.start, held.position] = held.direction
    for boundary in reversed(range(len(fields))):
        reads = abs(exact) + _beside(exact.shape, boundary, listed.items())
        rounding += _born_rounding(held, query, boundary, reads, len(listed))
        if boundary:
            layer = boundary - 1
            rounding += _layer_rounding(held, query, layer, reads, fields[layer], len(listed))
            exact = _back(held, query, layer, exact)
    return Summed(value, 4 * rounding + TINY)


def _fields(held: Held, query: Query) -> Iterable[Array]:
    """Yield the fields at each boundary: (state, position, d_model)."""
    field = np.zeros((query.states, held.positions, held.width))
    for boundary in range(len(held.patterns) + 1):
        if boundary:
            before = field
            field = field.copy()
            for head in held.network.layers[boundary - 1]:
                w_v, w_o = held.maps(head)
                moved = held.pattern(head) @ (before @ w_v) @ w_o  # (state, query, d_model)
                for state in range(query.states):
                    after = query.step(state, head)
                    if after is not None:
                        field[state] += moved[after]
        for source in held.sources:
            if source.boundary == boundary:
                field[_stopping(query, source.label)] += source.values
        yield field


def _back(held: Held, query: Query, layer: int, reads: Array) -> Array:
    """Carry functionals (state, position, d_model) back through a layer."""
    out = reads.copy()
    for head in held.network.layers[layer]:
        w_v, w_o = held.maps(head)
        moved = held.pattern(head).T @ (reads @ w_o.T) @ w_v.T  # (state, key, d_model)
        for state in range(query.states):
            after = query.step(state, head)
            if after is not None:
                out[after] += moved[state]
    return out


def _beside(shape: tuple[int, ...], boundary: int, listed: Iterable[tuple[Word, Suffix]]) -> Array:
    out = np.zeros(shape)
    for word, suffix in listed:
        if not word or word[0].layer >= boundary:
            out[suffix.state] += np.outer(abs(suffix.row), abs(suffix.vector))
    return out


def _born_rounding(held: Held, query: Query, boundary: int, reads: Array, listed: int) -> float:
    total, doubt = 0.0, held.doubts[boundary - 1] if boundary else 0.0
    for source in held.sources:
        if source.boundary == boundary:
            some = reads[_stopping(query, source.label)]  # (state, position, d_model)
            total += float((some * (source.size + TINY)).sum())
    return (gamma(held.steps + query.states + listed) + doubt) * total


def _layer_rounding(
    held: Held, query: Query, layer: int, reads: Array, field: Array, listed: int
) -> float:
    kept, through = float((reads * abs(field)).sum()), 0.0
    for head in held.network.layers[layer]:
        w_v, w_o = (abs(each) for each in held.maps(head))
        moved = abs(held.pattern(head)) @ (abs(field) @ w_v + TINY) @ w_o + TINY
        for state in range(query.states):
            after = query.step(state, head)
            if after is not None:
                through += float((reads[state] * moved[after]).sum())
    unit = gamma(held.steps + query.states + listed)
    return unit * (kept + through) + held.doubts[layer] * through


def _stopping(query: Query, label: str) -> list[int]:
    return [state for state in range(query.states) if label in query.stops(state)]
