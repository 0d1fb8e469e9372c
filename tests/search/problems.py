"""Small random frozen sums of every kind, and what is true of a ranking of their paths.

Every path is evaluated by itself, forward from its source, where the engine works back from the
readout. `faults` names all that is wrong with a ranking, so that the same laws judge the sound
engine and broken ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pathexpand.engine import ranking, search
from pathexpand.engine.ranking import Ranking
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.search import Budget, Progress
from pathexpand.engine.value import Readout, path_value
from pathexpand.frozen import FrozenLayer, FrozenSource, FrozenSum
from pathexpand.symbolic import Head, Network, Path
from pathexpand.symbolic.query import Query, everything, parse_query

Array = npt.NDArray[Any]
Rng = np.random.Generator


@dataclass(frozen=True)
class Problem:
    """A frozen sum, where it is read, and what is asked of it."""

    frozen: FrozenSum
    readout: Readout
    query: Query
    top: int
    max_order: int | None

    def rank(
        self,
        *,
        budget: Budget | None = None,
        report: Callable[[Progress], None] | None = None,
        interrupt: int | None = None,
    ) -> Ranking:
        with pytest.MonkeyPatch.context() as monkeypatch:
            if interrupt is not None:
                monkeypatch.setattr(search._Hunt, "pop", interrupted_pop(interrupt))
            return ranking.rank(
                self.frozen,
                self.readout,
                self.query,
                top=self.top,
                max_order=self.max_order,
                streams=streams(self.frozen),
                budget=budget,
                report=report,
            )


def interrupted_pop(number: int) -> Callable[[Any], Any]:
    """Press Ctrl-C once the batch of this number is taken off the heap, and lost."""
    sound, taken = search._Hunt.pop, []

    def pop(self: Any) -> Any:
        taken.append(sound(self))
        if len(taken) == number:
            raise KeyboardInterrupt
        return taken[-1]

    return pop


# --- random problems ------------------------------------------------------------------------------

TOPS = (10, 1, 0, 3, 1000)
QUERIES = (
    "embed > *",
    "* > L0H0 > *",
    "not * > L0H0 > *",
    "embed > L0H0 | embed > . > .",
    "!embed > +",
    "any > (!L0H0)* > .?",
    "embed > . > . > . > . > .",  # matches nothing
)


def random_problem(seed: int) -> Problem:
    """Make the problem of this number."""
    rng = np.random.default_rng(seed)
    network = random_network(rng)
    asked = everything(network)
    if rng.random() < 0.5 and network.layers and network.layers[0]:
        asked = parse_query(str(rng.choice(QUERIES)), network)
    return problem_of(network, asked, rng)


def problem_of(network: Network, asked: Query, rng: Rng) -> Problem:
    """Fill a network with numbers, and ask for something."""
    positions = int(rng.choice([3, 1, 2, 5]))
    d_model = int(rng.choice([3, 1, 2, 5]))
    draw = random_numbers(rng, extreme=network.depth < 4)
    layers: list[FrozenLayer] = []
    d_head = int(rng.choice([2, 1, 3]))
    for heads in network.layers:
        layers.append(random_layer(heads, layers, positions, d_model, d_head, draw, rng))
    faint = float(rng.choice([1.0, 1e-170, 1e170], p=[0.94, 0.03, 0.03]))  # squares are no floats
    sources = [
        FrozenSource(source.label, source.boundary, faint * draw((positions, d_model)))
        for source in network.sources
        if source.boundary is not None
    ]
    if rng.random() < 0.2:
        zero = int(rng.integers(len(sources)))
        sources[zero] = FrozenSource(
            sources[zero].label, sources[zero].boundary, np.zeros((positions, d_model))
        )
    free = any(source.boundary is None for source in network.sources)
    frozen = FrozenSum(tuple(sources), tuple(layers), np.ones(positions, dtype=bool), free)
    direction = draw((d_model,)) * (rng.random() > 0.05)
    constant = float(draw((1,))[0]) if free else 0
    most = int(rng.integers(network.depth + 2))
    return Problem(
        frozen,
        Readout(int(rng.integers(positions)), direction, constant),
        asked,
        top=int(rng.choice(TOPS)),
        max_order=None if rng.random() < 0.6 else most,
    )


def random_network(rng: Rng) -> Network:
    depth = int(rng.choice([2, 3, 1, 4, 0]))
    most = 2 if depth == 4 else 3
    sizes = rng.choice([most, 1, 2, 0], p=[0.4, 0.25, 0.3, 0.05], size=depth)
    if rng.random() < 0.03:
        sizes = np.full(4, 4)  # 625 paths from each token: many suffixes are expanded together
    return Network.attention_only(
        heads=tuple(map(int, sizes)),
        positions=bool(rng.random() < 0.4),
        biases=bool(rng.random() < 0.4),
        unembed_bias=bool(rng.random() < 0.4),
    )


def random_numbers(rng: Rng, *, extreme: bool) -> Callable[[tuple[int, ...]], Array]:
    """Choose how numbers are drawn: normal, of a few sizes, small integers, or out of all range."""
    kinds = ["normal", "spread", "integers", "tiny", "huge", "mixed"]
    kind = str(rng.choice(kinds, p=[0.4, 0.2, 0.25, 0.05, 0.05, 0.05]))
    if not extreme and kind in ("tiny", "huge", "mixed"):
        kind = "spread"

    def draw(shape: tuple[int, ...]) -> Array:
        if kind == "integers":
            return rng.integers(-2, 3, size=shape).astype(float)
        numbers: Array = rng.normal(size=shape)
        if kind == "spread":
            return numbers * np.exp(rng.normal())
        power = {"normal": 0.0, "tiny": -30.0, "huge": 30.0, "mixed": float(rng.uniform(-30, 30))}
        return numbers * 10.0 ** power[kind]

    return draw


def random_layer(
    heads: tuple[Head, ...],
    before: list[FrozenLayer],
    positions: int,
    d_model: int,
    d_head: int,
    draw: Callable[[tuple[int, ...]], Array],
    rng: Rng,
) -> FrozenLayer:
    """Draw a layer; some heads are zero, and some are exactly like another one."""
    patterns = np.zeros((len(heads), positions, positions))
    w_v, w_o = np.zeros((len(heads), d_model, d_head)), np.zeros((len(heads), d_head, d_model))
    for number in range(len(heads)):
        patterns[number] = random_pattern(positions, rng)
        w_v[number], w_o[number] = draw((d_model, d_head)), draw((d_head, d_model))
        chance = rng.random()
        if chance < 0.05:
            w_v[number] = 0
        elif chance < 0.1:
            w_o[number] = 0
        elif chance < 0.25 and number:
            patterns[number], w_v[number], w_o[number] = patterns[0], w_v[0], w_o[0]
        elif chance < 0.4 and before and len(before[-1].heads):
            other = before[-1]
            patterns[number], w_v[number] = other.patterns[0], other.W_V[0]
            w_o[number] = other.W_O[0]
    return FrozenLayer(heads, patterns, w_v, w_o)


def random_pattern(positions: int, rng: Rng) -> Array:
    """Draw a pattern that a softmax gives, or one that none gives."""
    kind = rng.choice(["causal", "open", "sub-stochastic", "negative", "large", "identity"])
    shape = (positions, positions)
    rows: Array = np.exp(2 * rng.normal(size=shape))
    if kind in ("causal", "identity") or rng.random() < 0.5:
        rows = np.tril(rows)
    rows /= rows.sum(axis=1, keepdims=True)
    if kind == "identity":
        rows = np.eye(positions)
    if kind == "sub-stochastic":
        rows *= rng.random(size=(positions, 1)) * (rng.random(size=(positions, 1)) > 0.2)
    if kind == "negative":
        rows *= rng.choice([-1.0, 1.0], size=shape)
    if kind == "large":
        rows *= rng.integers(0, 4, size=shape)
    return rows


# --- the truth ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """One path's value, and the most by which two ways to work it out can differ."""

    value: float
    rounding: float


def truths(frozen: FrozenSum, readout: Readout) -> dict[Path, Truth]:
    """Evaluate every path forward, one by one."""
    found = {}
    if frozen.has_unembed_bias:
        found[Path("b_U")] = Truth(float(readout.constant), 0.0)
    at, direction = readout.position, readout.direction
    for source in frozen.sources:
        waiting: list[tuple[tuple[Head, ...], int, Array, Array]] = [
            ((), source.boundary, source.values, abs(source.values))
        ]
        while waiting:
            word, first, stream, size = waiting.pop()
            steps = (len(word) + 1) * 3 * (frozen.positions + 2 * direction.size + 4)
            most = float(size[at] @ abs(direction)) + TINY
            value = float(stream[at] @ direction)
            found[Path(source.label, word)] = Truth(value, 2 * gamma(steps) * most + TINY)
            for layer in frozen.layers[first:]:
                for head, pattern, w_v, w_o in zip(
                    layer.heads, layer.patterns, layer.W_V, layer.W_O, strict=True
                ):
                    longer = pattern @ stream @ (w_v @ w_o)  # (position, d_model)
                    larger = abs(pattern) @ size @ (abs(w_v) @ abs(w_o)) + TINY
                    waiting.append(((*word, head), head.layer + 1, longer, larger))
    return found


def streams(frozen: FrozenSum) -> tuple[Array, ...]:
    """Run the frozen sum densely: the stream before each layer and after the last."""
    stream = np.zeros_like(frozen.sources[0].values)
    found = []
    for boundary in range(len(frozen.layers) + 1):
        stream = stream + sum(s.values for s in frozen.sources if s.boundary == boundary)
        found.append(stream)
        if boundary < len(frozen.layers):
            layer = frozen.layers[boundary]
            heads = zip(layer.patterns, layer.W_V, layer.W_O, strict=True)
            stream = stream + sum(pattern @ stream @ w_v @ w_o for pattern, w_v, w_o in heads)
    return tuple(found)


# --- the laws -------------------------------------------------------------------------------------


def faults(
    problem: Problem, found: Ranking, truth: dict[Path, Truth], *, whole: bool
) -> Iterator[str]:
    """Name the laws that a ranking breaks. `whole` says that nothing stopped the search early."""
    asked = {path: each for path, each in truth.items() if problem.query.matches(path)}
    most = math.inf if problem.max_order is None else problem.max_order
    short = {path: each for path, each in asked.items() if path.order <= most}
    paths = [row.path for row in found.rows]
    left = {path: each for path, each in asked.items() if path not in set(paths)}
    yield from _rows(problem, found, short)
    if found.remainder_count != len(left):
        yield "count"
    if not len(paths) <= found.found.visited + problem.top or found.found.visited > len(asked):
        yield "visited"
    if len(set(found.found.expanded)) < len(found.found.expanded):
        yield "expanded twice"
    for path, each in left.items():
        bound = found.found.bound if path in short else found.found.longer_bound
        if abs(each.value) > bound + each.rounding:
            yield "bound" if path in short else "longer bound"
    if problem.max_order is None and found.found.longer_bound != 0:
        yield "longer bound of nothing"
    yield from _sums(problem, found, truth, left)
    if whole and not found.found.certified:
        yield "certified"
    if found.found.certified:
        yield from _ranked(problem, paths, short)


def _rows(problem: Problem, found: Ranking, short: dict[Path, Truth]) -> Iterator[str]:
    paths = [row.path for row in found.rows]
    if len(set(paths)) < len(paths) or not set(paths) <= set(short) or len(paths) > problem.top:
        yield "rows"
    near = problem.frozen.until(problem.readout.position)
    for row in found.rows:
        if row.value != path_value(near, problem.readout, row.path):
            yield "last digit"
        if row.path in short:
            each = short[row.path]
            if not abs(row.value - each.value) <= each.rounding:
                yield "value"
    keys = [(-abs(row.value), row.path) for row in found.rows]
    if keys != sorted(keys):
        yield "order"


def _sums(
    problem: Problem, found: Ranking, truth: dict[Path, Truth], left: dict[Path, Truth]
) -> Iterator[str]:
    energy = math.hypot(*(each.value for each in left.values()))
    slack = math.hypot(*(each.rounding for each in left.values())) + math.sqrt(TINY)
    if energy * (1 - 1e-12) > math.sqrt(found.remainder_energy) + slack:
        yield "energy"
    rounding = found.rounding + sum(each.rounding for each in truth.values())
    rounding += gamma(len(truth) + 2) * sum(abs(each.value) for each in truth.values())
    rest = math.fsum(each.value for each in left.values())
    if not abs(found.remainder - rest) <= rounding:
        yield "remainder"
    outside = [each for path, each in truth.items() if not problem.query.matches(path)]
    if not abs(found.outside - math.fsum(each.value for each in outside)) <= rounding:
        yield "outside"
    dense = float(streams(problem.frozen)[-1][problem.readout.position] @ problem.readout.direction)
    dense += problem.readout.constant
    if not abs(found.listed + found.remainder + found.outside - dense) <= 2 * rounding:
        yield "closure"


def _ranked(problem: Problem, paths: list[Path], short: dict[Path, Truth]) -> Iterator[str]:
    """Rank every path by the very number that is listed for it, ties in the order of paths."""
    sizes = {path: abs(path_value(problem.frozen, problem.readout, path)) for path in short}
    if paths != sorted(short, key=lambda path: (-sizes[path], path))[: problem.top]:
        yield "ranking"
