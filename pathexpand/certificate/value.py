"""One path's value worked forward, from its source through each component to the readout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.held import Held
from pathexpand.certificate.norm import FixedNorm
from pathexpand.certificate.part import Part
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.symbolic import Path

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Valued:
    """A path's value, and what rounding may do to it and to another that was worked back.

    `by_token` (position,) splits it by source position; it is worked back, and is no more than a
    hint at where the large parts are: each can be valued by itself.
    """

    value: float
    slack: float
    by_token: Array


def valued(held: Held, path: Path, *, token: int | None = None) -> Valued:
    """Value one path forward, from all source positions or from one.

    The search works back from the readout, row by row. Rounding is that of each product on the
    way, as what follows reads it (Higham, section 3.1): to first order, doubled for what that
    leaves out, and once more for the other value.

    >>> from pathexpand.api import load
    >>> run = load("two-layer").run("to be or not to")
    >>> from pathexpand.certificate.held import hold
    >>> held = hold(run, run.target(), run.position(), same=True)
    >>> path = Path.parse("embed > L0H1 > L1H2")
    >>> abs(valued(held, path).value - run.value(path)) <= valued(held, path).slack
    True
    """
    if path.source == "b_U":
        return _constant(held, token)
    source, unit = held.source(path.source), gamma(2 * held.steps)
    stream, off = source.values, source.blur(unit)  # (position, d_model)
    if token is not None:
        stream, off = _only(stream, token), _only(off, token)
    route = list(_route(held, path))
    offs = [off]
    for step in route:
        offs.append(step.blur(abs(stream), unit))
        stream = step.push(stream)
    reads = np.zeros_like(stream)
    reads[held.position] = held.direction
    rounding = held.read_blur(abs(stream[held.position]))
    for step, off in zip(reversed(route), reversed(offs[1:]), strict=True):
        rounding += float((abs(reads) * off).sum())
        reads = step.pull(reads)
    rounding += float((abs(reads) * offs[0]).sum())
    split = (reads * source.values).sum(axis=1)  # (position,)
    value = float(stream[held.position] @ held.direction)
    return Valued(value, 4 * rounding + TINY, split)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One component, or a norm that the stream passes."""

    through: Part | FixedNorm
    index: int | None

    def push(self, stream: Array) -> Array:
        if isinstance(self.through, FixedNorm):
            return self.through.push(stream)
        return self.through.push(stream, self._which)

    def pull(self, reads: Array) -> Array:
        if isinstance(self.through, FixedNorm):
            return self.through.pull(reads)
        return self.through.pull(reads, self._which)

    def blur(self, sizes: Array, unit: float) -> Array:
        if isinstance(self.through, FixedNorm):
            return self.through.blur(sizes, unit)
        return self.through.blur(sizes, unit, self._which)

    @property
    def _which(self) -> list[int] | None:
        return None if self.index is None else [self.index]


def _route(held: Held, path: Path) -> Iterator[_Step]:
    """Yield what a path passes on its way, stage by stage."""
    through = {held.place(each)[0]: held.place(each)[1:] for each in path.components}
    for number in range(held.source(path.source).boundary, held.depth):
        norm = held.stages[number].norm
        if number in through:
            yield _Step(*through[number])
        elif norm is not None:
            yield _Step(norm, None)


def _constant(held: Held, token: int | None) -> Valued:
    """Give what is born in the logits; it is booked at the readout's own position."""
    split = np.zeros(held.positions)
    split[held.position] = held.constant
    value = held.constant if token in (None, held.position) else 0.0
    return Valued(value, held.constant_lost + gamma(2) * abs(value), split)


def _only(stream: Array, position: int) -> Array:
    out = np.zeros_like(stream)
    out[position] = stream[position]
    return out
