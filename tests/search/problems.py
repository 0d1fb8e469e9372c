"""Small random frozen sums of every kind, and what is true of a ranking of their paths.

Every path is evaluated by itself, forward from its source, where the engine works back from the
readout. `faults` names all that is wrong with a ranking, so that the same laws judge the sound
engine and broken ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pathexpand.engine import ranking, search
from pathexpand.engine.energy import energies
from pathexpand.engine.prompt_tree import PromptTree
from pathexpand.engine.ranking import Ranking
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.search import Budget, Node, Progress
from pathexpand.engine.value import Readout, path_value
from pathexpand.frozen import (
    Carry,
    FrozenSource,
    FrozenStage,
    FrozenSum,
    Group,
    HeadGroup,
    MlpGroup,
    NeuronGroup,
)
from pathexpand.model.parts import Norm
from pathexpand.symbolic import Component, Head, Mlp, Network, Neuron, Path, Source
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
        listing: bool = False,
    ) -> Ranking:
        """Rank by searching, or by going through all paths."""
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(ranking, "is_shorter", lambda *given: listing)
            if interrupt is not None:
                monkeypatch.setattr(search.TreeHunt, "pop", interrupted_pop(interrupt))
            return ranking.rank(
                self.frozen,
                self.readout,
                self.query,
                top=self.top,
                max_order=self.max_order,
                budget=budget,
                report=report,
            )


def interrupted_pop(number: int) -> Callable[[Any], Any]:
    """Press Ctrl-C once the batch of this number is taken off the heap, and lost."""
    sound, taken = search.TreeHunt.pop, []

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
MLP_QUERIES = (
    "* > L0N0 > *",
    "not * > L*N* > *",
    "any > (!L0N0)* > .?",
    "embed > . > L*N*",
)


def random_problem(seed: int, *, hard: bool = False) -> Problem:
    """Make the problem of this number; a hard one has numbers that cancel or leave all range."""
    rng = np.random.default_rng(seed)
    network = random_network(rng)
    asked = everything(network)
    if rng.random() < 0.5:
        queries = [text for text in (*QUERIES, *MLP_QUERIES) if _about(text, network)]
        asked = parse_query(str(rng.choice(queries)), network)
    return problem_of(network, asked, rng, hard=hard)


def _about(text: str, network: Network) -> bool:
    """Say whether a network has the components that a query names."""
    kinds = {type(each) for each in network.components}
    if "L0H0" in text and Head(0, 0) not in network.components:
        return False
    if "L0N0" in text and Neuron(0, 0) not in network.components:
        return False
    return "L*N*" not in text or Neuron in kinds


def problem_of(
    network: Network, asked: Query, rng: Rng, *, hard: bool = False, carried: bool | None = None
) -> Problem:
    """Fill a network with numbers, and ask for something."""
    positions = int(rng.choice([3, 1, 2, 5]))
    d_model = int(rng.choice([3, 1, 2, 5]))
    few = sum(map(bool, network.stages)) < 4
    faint = float(rng.choice([1.0, 1e-170, 1e170], p=[0.94, 0.03, 0.03]))  # squares are no floats
    draw = hard_numbers(rng) if hard else random_numbers(rng, extreme=few and faint == 1)
    faint = 1.0 if hard else faint
    stages: list[FrozenStage] = []
    d_head = int(rng.choice([2, 1, 3]))
    if carried is None:
        carried = bool(rng.random() < 0.3)  # norms of the stream itself, as in BERT
    for components in network.stages:
        groups: list[Group] = []
        for kind, some in groupby(components, type):
            fill = {Head: random_heads, Neuron: random_neurons, Mlp: random_mlp}[kind]
            groups.append(fill(tuple(some), stages, positions, d_model, d_head, draw, rng))
        norm = random_norm(positions, d_model, draw, rng) if carried else None
        stages.append(FrozenStage(tuple(groups), norm))
    sources = [
        FrozenSource(source.label, source.boundary, faint * draw((positions, d_model)))
        for source in network.sources
        if source.boundary is not None
    ]
    if rng.random() < 0.2:
        zero = int(rng.integers(len(sources)))
        sources[zero] = replace(sources[zero], values=np.zeros((positions, d_model)))
    free = any(source.boundary is None for source in network.sources)
    direction = draw((d_model,)) * (rng.random() > 0.05)
    constant = float(draw((1,))[0]) if free else 0
    most = int(rng.integers(network.depth + 2))
    return Problem(
        made(sources, stages, free=free),
        Readout(int(rng.integers(positions)), direction, constant),
        asked,
        top=int(rng.choice(TOPS)),
        max_order=None if rng.random() < 0.6 else most,
    )


def mlp_problem(seed: int) -> Problem:
    """Make one with whole MLPs behind heads and before others: suffixes of many pieces."""
    rng, parallel = np.random.default_rng(seed), bool(seed % 2)
    network = Network.transformer(2 + parallel, 2, mlp="frozen", parallel=parallel)
    return replace(problem_of(network, everything(network), rng), top=1 + seed % 5)


def made(sources: list[FrozenSource], stages: list[FrozenStage], *, free: bool) -> FrozenSum:
    """Put a frozen sum together, with the streams that it makes."""
    mask = np.ones(len(sources[0].values), dtype=bool)
    plain = FrozenSum(tuple(sources), tuple(stages), (), mask, "b_U" if free else None)
    return replace(plain, streams=streams(plain))


def random_network(rng: Rng) -> Network:
    if rng.random() < 0.5:
        return mlp_network(rng)
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


def mlp_network(rng: Rng) -> Network:
    """Draw layers with MLPs of all kinds: beside their heads or behind them, whole or by neurons.

    An MLP taken as a source may still have a stage of its own: behind a norm of the stream.
    """
    depth = int(rng.choice([2, 1, 3], p=[0.5, 0.35, 0.15]))
    chance = {label: rng.random() < 0.3 for label in ("pos", "type", "embedbias")}
    stages: list[tuple[Component, ...]] = []
    sources = [Source("embed", 0), *(Source(label, 0) for label in chance if chance[label])]
    for layer in range(depth):
        kind = str(rng.choice(["neurons", "frozen", "source", "none"], p=[0.45, 0.3, 0.2, 0.05]))
        heads = tuple(Head(layer, n) for n in range(rng.choice([1, 2, 0], p=[0.5, 0.4, 0.1])))
        own: tuple[Component, ...] = (Mlp(layer),) if kind == "frozen" else ()
        if kind == "neurons":
            own = tuple(Neuron(layer, n) for n in range(rng.choice([2, 1, 3], p=[0.5, 0.2, 0.3])))
        parallel = kind == "none" or bool(rng.random() < 0.4)
        stages += [heads + own] if parallel else [heads, own]
        if rng.random() < 0.4:
            sources.append(Source(f"L{layer}bias", len(stages) - (not parallel)))
        if kind == "source":
            sources.append(Source(f"L{layer}M", len(stages)))
        elif kind != "none" and rng.random() < 0.5:
            sources.append(Source(f"L{layer}Mbias", len(stages)))
    sources += [Source("b_U", None)] * int(rng.random() < 0.4)
    return Network(tuple(stages), tuple(sources))


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


def hard_numbers(rng: Rng) -> Callable[[tuple[int, ...]], Array]:
    """Choose numbers that cancel to the last digits, or that under- and overflow in products."""
    kind = str(rng.choice(["equal", "opposite", "spread", "each far", "all far"]))

    def draw(shape: tuple[int, ...]) -> Array:
        nearly: Array = 1 + rng.integers(0, 3, size=shape) * 2.0**-50
        numbers: Array = rng.normal(size=shape)
        if kind in ("equal", "opposite"):
            return nearly * (1.0 if kind == "equal" else rng.choice([-1.0, 1.0], size=shape))
        if kind == "spread":
            return numbers * 10.0 ** rng.integers(-9, 10, size=shape)
        if kind == "each far":
            return numbers * 10.0 ** rng.choice([-150, 0, 30], size=shape)
        return numbers * 10.0 ** float(rng.choice([-160, -150, 0, 60, 150]))

    return draw


def random_heads(
    heads: tuple[Head, ...],
    before: list[FrozenStage],
    positions: int,
    d_model: int,
    d_head: int,
    draw: Callable[[tuple[int, ...]], Array],
    rng: Rng,
) -> HeadGroup:
    """Draw heads; some are zero, and some are exactly like another one."""
    patterns = np.zeros((len(heads), positions, positions))
    w_v, w_o = np.zeros((len(heads), d_model, d_head)), np.zeros((len(heads), d_head, d_model))
    others = [each for each in (stage.groups for stage in before) if each]
    other = others[-1][0] if others and isinstance(others[-1][0], HeadGroup) else None
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
        elif chance < 0.4 and other is not None:
            patterns[number], w_v[number] = other.patterns[0], other.W_V[0]
            w_o[number] = other.W_O[0]
    return HeadGroup(heads, patterns, w_v, w_o)


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


def random_neurons(
    neurons: tuple[Neuron, ...],
    before: list[FrozenStage],
    positions: int,
    d_model: int,
    d_head: int,
    draw: Callable[[tuple[int, ...]], Array],
    rng: Rng,
) -> NeuronGroup:
    """Draw neurons; some are zero, never active, or exactly like another one."""
    gates = random_gates((positions, len(neurons)), rng)
    w_in, w_out = draw((d_model, len(neurons))), draw((len(neurons), d_model))
    for number in range(len(neurons)):
        chance = rng.random()
        if chance < 0.05:
            w_in[:, number] = 0
        elif chance < 0.1:
            w_out[number] = 0
        elif chance < 0.15:
            gates[:, number] = 0
        elif chance < 0.3:
            gates[:, number], w_in[:, number] = gates[:, 0], w_in[:, 0]
            w_out[number] = w_out[0]
    return NeuronGroup(neurons, gates, w_in, w_out)


def random_mlp(
    mlp: tuple[Mlp],
    before: list[FrozenStage],
    positions: int,
    d_model: int,
    d_head: int,
    draw: Callable[[tuple[int, ...]], Array],
    rng: Rng,
) -> MlpGroup:
    """Draw an MLP taken whole."""
    neurons = int(rng.choice([3, 1, 2]))
    gates = random_gates((positions, neurons), rng)
    return MlpGroup(mlp, gates, draw((d_model, neurons)), draw((neurons, d_model)))


def random_gates(shape: tuple[int, int], rng: Rng) -> Array:
    """Draw the gates of a ReLU, of a GELU, or of a gated MLP."""
    kind = rng.choice(["relu", "gelu", "gated"])
    gates: Array = rng.normal(size=shape)
    if kind == "relu":
        return (gates > 0).astype(float)
    return gates if kind == "gated" else 1 / (1 + np.exp(-2 * gates))


def random_norm(
    positions: int, d_model: int, draw: Callable[[tuple[int, ...]], Array], rng: Rng
) -> Carry:
    """Draw a norm of the stream, its scales held fixed; where nothing is scaled they are 0."""
    weight = draw((d_model,)) if rng.random() < 0.7 else None
    scale = abs(draw((positions,))) * (rng.random(size=positions) > 0.1)
    return Carry(Norm("layer" if rng.random() < 0.6 else "rms", weight, None, 0.0), scale)


# --- the truth ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """One path's value, and the most by which two ways to work it out can differ."""

    value: float
    rounding: float


Maps = list[tuple[Component, Callable[[Array], Array], Callable[[Array], Array]]]


def truths(frozen: FrozenSum, readout: Readout) -> dict[Path, Truth]:
    """Evaluate every path forward, one by one."""
    found = {}
    if frozen.constant is not None:
        found[Path("b_U")] = Truth(float(readout.constant), 0.0)
    at, direction = readout.position, readout.direction
    maps = [[*maps_of(stage)] for stage in frozen.stages]
    passes = [past_of(stage.carry, direction.size) for stage in frozen.stages]
    step = 3 * (frozen.positions + 2 * direction.size + 9)  # 9: the size of a head or of an MLP
    for source in frozen.sources:
        waiting: list[tuple[tuple[Component, ...], int, Array, Array]] = [
            ((), source.boundary, source.values, abs(source.values))
        ]
        while waiting:
            word, first, stream, size = waiting.pop()
            for stage in range(first, frozen.depth):
                for component, write, largest in maps[stage]:
                    longer = (*word, component)
                    waiting.append((longer, stage + 1, write(stream), largest(size) + TINY))
                stream, size = passes[stage](stream, size)
            most = float(size[at] @ abs(direction)) + TINY
            value = float(stream[at] @ direction)
            rounding = 2 * gamma((frozen.depth + 1) * step) * most + TINY
            found[Path(source.label, word)] = Truth(value, rounding)
    return found


def maps_of(stage: FrozenStage) -> Iterator[Any]:
    """Yield each component, what it writes on a stream, and the same for sizes."""
    for group in stage.groups:
        for number, component in enumerate(group.components):
            yield component, *_written(group, number)


def _written(group: Group, number: int) -> tuple[Callable[[Array], Array], ...]:
    if isinstance(group, HeadGroup):
        pattern, ov = group.patterns[number], group.W_V[number] @ group.W_O[number]
        most = abs(group.W_V[number]) @ abs(group.W_O[number]) + TINY
        return lambda x: pattern @ x @ ov, lambda x: (abs(pattern) @ x + TINY) @ most
    assert isinstance(group, NeuronGroup | MlpGroup)
    which = slice(number, number + 1) if isinstance(group, NeuronGroup) else slice(None)
    gates, w_in, w_out = group.gates[:, which], group.W_in[:, which], group.W_out[which]
    return (
        lambda x: (gates * (x @ w_in)) @ w_out,
        lambda x: (abs(gates) * (x @ abs(w_in) + TINY) + TINY) @ abs(w_out),
    )


def past_of(carry: Carry | None, d_model: int) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Give what the stream, and its sizes, become on their way past a stage."""
    if carry is None:
        return lambda stream, size: (stream, size)
    one = np.ones((d_model, d_model), dtype=int)
    weight = one[0] if carry.norm.weight is None else carry.norm.weight
    mean = one if carry.norm.kind == "layer" else 0 * one
    matrix, most = (np.diag(d_model * one[0]) - mean), (np.diag(d_model * one[0]) + mean)
    scale = carry.scale[:, None]
    return lambda stream, size: (
        scale * (stream @ matrix / d_model) * weight,
        scale * (size @ most / d_model + TINY) * abs(weight) + TINY,
    )


def streams(frozen: FrozenSum) -> tuple[Array, ...]:
    """Run the frozen sum densely: the stream before each stage and after the last."""
    return tuple(stream for stream, _ in sized_streams(frozen))


def sized_streams(frozen: FrozenSum) -> Iterator[tuple[Array, Array]]:
    """Yield each stream, and the same with every number replaced by its size."""
    stream = size = np.zeros_like(frozen.sources[0].values)
    for boundary in range(frozen.depth + 1):
        born = [source.values for source in frozen.sources if source.boundary == boundary]
        stream, size = stream + sum(born), size + sum(map(abs, born))
        yield stream, size
        if boundary < frozen.depth:
            stage = frozen.stages[boundary]
            written = [(write(stream), largest(size)) for _, write, largest in maps_of(stage)]
            stream, size = past_of(stage.carry, stream.shape[1])(stream, size)
            stream = stream + sum(each for each, _ in written)
            size = size + sum(each for _, each in written)


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
    last = streams(problem.frozen)[-1][problem.readout.position]
    dense = float(last @ problem.readout.direction)
    dense += problem.readout.constant
    if not abs(found.listed + found.remainder + found.outside - dense) <= 2 * rounding:
        yield "closure"


def tree_of(problem: Problem, frozen: FrozenSum, query: Query) -> PromptTree:
    return PromptTree(frozen, problem.readout, query, energies(frozen, query))


def suffix_faults(problem: Problem, known: dict[Path, Truth]) -> Iterator[str]:
    """Name the bounds of suffixes, with a source or a component in front, that do not hold."""
    tree = tree_of(problem, problem.frozen, everything(problem.frozen.network()))
    for path in list(known)[:: max(len(known) // 12, 1)]:
        if path.source == "b_U":
            continue
        node = suffix_node(tree, path.components)
        most = tree.sizes([node], path.source) + tree.rounding([node], path.source)
        if abs(known[path].value) * (1 - 1e-12) > most[0] + known[path].rounding + TINY:
            yield f"bound of a path: {path}"
        ends = [p for p in known if p.order and p.components[-path.order :] == path.components]
        total = np.hypot.reduce([known[each].value for each in ends], initial=0.0)
        slack = sum(known[each].rounding for each in ends) + TINY
        if path.order and total * (1 - 1e-12) > suffix_bound(tree, path.components) + slack:
            yield f"bound of a suffix: {path}"


def suffix_node(tree: PromptTree, components: tuple[Component, ...]) -> Node:
    carried = tree.root()
    for each in reversed(components):
        carried = tree.longer(carried, each)
    return Node(components, 0, carried.boundary, np.inf, carried)


def suffix_bound(tree: PromptTree, components: tuple[Component, ...]) -> float:
    """Bound all paths that end with some components, before the first of them is put in front."""
    first, stage = components[0], tree.network.stage(components[0])
    assert stage is not None
    ask = tree.bounds(stage, [suffix_node(tree, components[1:])])
    for way in tree.ways(stage):
        if first in way.group.components:
            return float(ask(way, [0])[way.group.components.index(first), 0])
    raise AssertionError(first)


def _ranked(problem: Problem, paths: list[Path], short: dict[Path, Truth]) -> Iterator[str]:
    """Rank every path by the very number that is listed for it, ties in the order of paths."""
    near = problem.frozen.until(problem.readout.position)
    sizes = {path: abs(path_value(near, problem.readout, path)) for path in short}
    if paths != sorted(short, key=lambda path: (-sizes[path], path))[: problem.top]:
        yield "ranking"
