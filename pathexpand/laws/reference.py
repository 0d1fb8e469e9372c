"""An independent evaluation of single paths, and the sizes that rounding is measured against.

Nothing here calls the path engine. Sources, norms and gates are read from the weights and the
dense pass, nothing is folded; components are applied forward (from the source on, where the engine
works back from the logits), position maps are multiplied out as whole matrices. Beside each value
stands its size: the same expression with every number replaced by its absolute value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.engine.rounding import gamma
from pathexpand.engine.value import Readout
from pathexpand.laws.held import Held, Side
from pathexpand.laws.walk import Flow, Prefix, Walk
from pathexpand.model.weights import Weights
from pathexpand.symbolic import Path
from pathexpand.target import DifferenceTarget, DirectionTarget, Target

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """One path evaluated independently.

    `values` and `sizes` (position,) are split by source position; `steps` is the number of
    roundings that a value of the path can meet one after another, on any route.
    """

    path: Path
    values: Array
    sizes: Array
    steps: int

    @property
    def value(self) -> Any:
        """The path's value."""
        return self.values.sum()

    @property
    def rounding(self) -> Any:
        """The most by which two evaluations of the path can differ; 0 for exact numbers."""
        if self.sizes.dtype == object:
            return 0
        return 2 * gamma(self.steps + self.sizes.size) * float(self.sizes.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What is read of the last stream: direction · stream[position] + constant.

    With `unembedded`, the direction is one of what the unembedding reads: the stream goes through
    the last norm and the head's transform first, and their constants are read, too.
    """

    position: int
    direction: Array
    constant: Any
    unembedded: bool


def reading_of(weights: Weights, what: Target | Readout, position: int) -> Reading:
    """Read a target off the unembedding as it is, with nothing folded into it.

    >>> from pathexpand import api
    >>> run = api.load("two-layer").run("to be")
    >>> reading_of(run.model.weights, run.target(), 1).direction.shape
    (192,)
    """
    if isinstance(what, Readout):
        return Reading(what.position, what.direction, what.constant, unembedded=False)
    if isinstance(what, DirectionTarget):
        return Reading(position, what.direction, 0, unembedded=False)
    direction, bias = _logit(weights, what.token)
    if isinstance(what, DifferenceTarget):
        other, less = _logit(weights, what.other)
        return Reading(position, direction - other, bias - less, unembedded=True)
    if what.centred:
        direction = direction - weights.mean_unembed
        if weights.b_U is not None:
            bias = bias - weights.b_U.sum() / weights.b_U.size
    return Reading(position, direction, bias, unembedded=True)


def references(
    run: Run, what: Target | Readout, position: int | None = None, *, sizes: Held | None = None
) -> Iterator[Reference]:
    """Evaluate every path, each by itself, in no particular order.

    A target is read at `position`; a `Readout` is taken as it is. `sizes` stand in for the sizes
    of what the run holds fixed.

    >>> from pathexpand import api
    >>> run = api.load("two-layer").run("to be")
    >>> len(list(references(run, run.target(), 1)))
    25
    """
    walk, place = Walk(run, sizes=sizes), run.position(position)
    yield from read_all(walk, walk.whole(), reading_of(run.model.weights, what, place))


def read_all(walk: Walk, whole: Iterable[Prefix], reading: Reading) -> Iterator[Reference]:
    """Read paths that were taken to the last stream, and what is born in the logits.

    >>> from pathexpand import api
    >>> run = api.load("one-layer").run("to be")
    >>> walk = Walk(run)
    >>> len(list(read_all(walk, walk.whole(), reading_of(run.model.weights, run.target(), 1))))
    5
    """
    if "b_U" in walk.births:
        yield _constant(walk, reading)
    for prefix in whole:
        yield _read(walk, prefix, reading)


def reference(walk: Walk, path: Path, what: Target, position: int) -> Reference:
    """Evaluate one path.

    >>> from pathexpand import api
    >>> run = api.load("two-layer").run("to be")
    >>> reference(Walk(run), Path.parse("embed > L0H1"), run.target(), 1).path.order
    1
    """
    reading = reading_of(walk.model.weights, what, position)
    if path.source == "b_U":
        return _constant(walk, reading)
    prefix = next(each for each in walk.starts() if each.path.source == path.source)
    for component in path.components:
        while component not in walk.components[prefix.place]:
            prefix = walk.past(prefix)
        prefix = walk.through(prefix, component)
    return _read(walk, prefix, reading)


def _logit(weights: Weights, token: int) -> tuple[Array, Any]:
    bias = 0 if weights.b_U is None else weights.b_U[token]
    return weights.unembed(np.array([token]))[:, 0], bias


def _read(walk: Walk, prefix: Prefix, reading: Reading) -> Reference:
    """Read a prefix as a whole path."""
    last = walk.to_end(prefix)
    values = _along(walk.exact, last.flow, reading)
    sizes = values if walk.size is walk.exact else _along(walk.size, last.size, reading)
    steps = last.steps + walk.width + 1 + len(last.flow.moved) + _steps(walk, reading)
    return Reference(last.path, values, sizes, steps)


def _along(side: Side, flow: Flow, reading: Reading) -> Array:
    rows = flow.at(reading.position) + side.tiny  # (key, d_model)
    if reading.unembedded:
        rows = side.read(rows, reading.position, constants=False)
    out: Array = rows @ side.of(reading.direction) + side.tiny  # (key,)
    return out


def _constant(walk: Walk, reading: Reading) -> Reference:
    """Evaluate what is born in the logits; it is booked at the position that is read."""
    parts = []
    for side in (walk.exact, walk.size):
        total, direction = side.of(reading.constant), side.of(reading.direction)
        if reading.unembedded:
            total = total + side.read(direction * 0, reading.position, constants=True) @ direction
        split = np.zeros(len(walk.run.tokens), dtype=direction.dtype)
        split[reading.position] = total
        parts.append(split)
    steps = walk.width + 1 + _steps(walk, reading)
    return Reference(Path("b_U"), parts[0], parts[1], steps)


def _steps(walk: Walk, reading: Reading) -> int:
    """Count the roundings between the last stream and what the unembedding reads."""
    if not reading.unembedded:
        return 0
    weights, norm = walk.model.weights, walk.width + 8
    steps = 0 if weights.final_norm is None else norm
    return steps if weights.transform is None else steps + 3 * norm
