"""Bounds hold for the exact values of paths, not only for the computed ones, whatever cancels."""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from pathexpand.engine import kernel, prompt_tree
from pathexpand.engine.rounding import UNIT, UNIT32, gamma
from pathexpand.engine.value import Readout
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
from pathexpand.symbolic import Component, Head, Mlp, Network, Neuron, Path
from pathexpand.symbolic.query import everything, parse_query
from tests.search.problems import (
    Array,
    Problem,
    Truth,
    made,
    maps_of,
    past_of,
    problem_of,
    random_problem,
    suffix_faults,
)

SMALLEST = Fraction(2) ** -1074  # below it a float64 is 0


def rational(numbers: Any) -> Array:
    """Give floats as the fractions that they are."""
    out = np.empty(np.shape(numbers), dtype=object)
    out.ravel()[:] = [Fraction(float(each)) for each in np.ravel(numbers)]
    return out


def exactly(given: Any) -> Any:
    """Give the same groups, norms and stages with fractions for floats."""
    parts = {}
    for field in fields(given):
        value = getattr(given, field.name)
        if isinstance(value, np.ndarray):
            parts[field.name] = rational(value)
        elif isinstance(given, FrozenStage):
            parts["groups"] = tuple(map(exactly, given.groups))
            parts["carry"] = given.carry and exactly(given.carry)
        elif isinstance(given, Carry):
            parts["norm"] = exactly(given.norm)
    return replace(given, **parts)


def exact_values(frozen: FrozenSum, readout: Readout) -> dict[Path, Fraction]:
    """Work every path out forward in rational arithmetic, from the engine's own numbers."""
    direction, found = rational(readout.direction), {}
    if frozen.constant is not None:
        found[Path("b_U")] = Fraction(float(readout.constant))
    stages = [exactly(stage) for stage in frozen.stages]
    for source in frozen.sources:
        waiting: list[tuple[tuple[Component, ...], int, Array]] = [
            ((), source.boundary, rational(source.values))
        ]
        while waiting:
            word, first, stream = waiting.pop()
            for number in range(first, frozen.depth):
                for component, write, _ in maps_of(stages[number]):
                    waiting.append(((*word, component), number + 1, write(stream)))
                stream, _ = past_of(stages[number].carry, direction.size)(stream, stream)
            found[Path(source.label, word)] = sum(stream[readout.position] * direction, Fraction(0))
    return found


def exact_faults(problem: Problem) -> list[str]:
    """Name what a ranking says that is not true of the exact values."""
    found, values = problem.rank(), exact_values(problem.frozen, problem.readout)
    most = math.inf if problem.max_order is None else problem.max_order
    listed = {row.path for row in found.rows}
    asked = {path: value for path, value in values.items() if problem.query.matches(path)}
    left = {path: value for path, value in asked.items() if path not in listed}
    wrong = list(suffix_faults(problem, {p: Truth(nearest(v), 0.0) for p, v in values.items()}))
    for path, value in left.items():
        bound = found.found.bound if path.order <= most else found.found.longer_bound
        wrong += ["bound"] if not at_most(abs(value), bound) else []
    energy = sum((value**2 for value in left.values()), Fraction(0))
    wrong += ["energy"] if not at_most(energy, found.remainder_energy * (1 + 1e-12)) else []
    if math.isfinite(found.listed + found.remainder):  # what is read can overflow on its way back
        total = Fraction(found.listed) + Fraction(found.remainder)
        rounding = gamma(len(listed) + 2) * sum(abs(row.value) for row in found.rows)
        error = abs(total - sum(asked.values(), Fraction(0)))
        wrong += ["sum"] if not at_most(error, 2 * found.rounding + rounding) else []
    return wrong


def at_most(exact: Fraction, bound: float) -> bool:
    return bound == math.inf or exact <= Fraction(bound) + SMALLEST


def nearest(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def few_paths(problem: Problem) -> bool:
    """Say whether a problem is small and its streams are finite."""
    finite = all(np.isfinite(stream).all() for stream in problem.frozen.streams)
    return finite and problem.frozen.network().count() <= 50


@pytest.mark.parametrize("part", range(4))
def test_nothing_said_of_hard_numbers_is_untrue(part: int) -> None:
    seeds = range(part * 70, part * 70 + 70)
    with np.errstate(over="ignore", invalid="ignore"):
        problems = {seed: random_problem(seed, hard=True) for seed in seeds}
    for seed, problem in problems.items():
        if few_paths(problem):
            assert not exact_faults(problem), f"problem {seed}"


# --- numbers that leave the range of float64 on their way ----------------------------------------

Step = tuple[str, float, float]


def chain(*steps: Step, source: float, direction: float, through_all: bool = False) -> Problem:
    """Make a sum of one position and one dimension: of each stage, its kind and its two numbers.

    They are W_V and W_O, W_in and W_out, or the weight and the scale of a norm of the stream.
    The query asks for the paths through all components, or for all paths.
    """
    stages = []
    for layer, (kind, one, other) in enumerate(steps):
        gate, w_in, w_out = np.ones((1, 1)), np.full((1, 1), one), np.full((1, 1), other)
        carry = Carry(Norm("rms", w_in[0], None, 0.0), w_out[0]) if kind == "norm" else None
        groups: dict[str, tuple[Group, ...]] = {
            "head": (HeadGroup((Head(layer, 0),), gate[None], w_in[None], w_out[None]),),
            "neuron": (NeuronGroup((Neuron(layer, 0),), gate, w_in, w_out),),
            "mlp": (MlpGroup((Mlp(layer),), gate, w_in, w_out),),
        }
        stages.append(FrozenStage(groups.get(kind, ()), carry))
    values = {"embed": source, "pos": 1.3 * source}
    sources = [FrozenSource(label, 0, np.full((1, 1), each)) for label, each in values.items()]
    frozen = made(sources, stages, free=False)
    readout = Readout(0, np.array([direction]), 0)
    network = frozen.network()
    asked = " > ".join(["any", *(each.label for each in network.components)])
    query = parse_query(asked, network) if through_all else everything(network)
    return Problem(frozen, readout, query, 1, None)


@cache
def far() -> dict[str, Problem]:
    """Give sums whose products leave the range of float64, and come back."""
    found = {}
    for kind in ("head", "neuron", "mlp"):
        found |= {
            f"{kind}: faint prefixes, read by a large head": chain(
                (kind, 1e-160, 1e-160),
                ("head", 1e100, 1e100),
                source=1.0,
                direction=1e150,
                through_all=True,
            ),
            f"{kind}: little is read and much is written": chain(
                (kind, 8e149, 4.03e-162), source=1.0, direction=2.5e-161
            ),
            f"{kind}: a faint suffix behind a large head": chain(
                ("head", 1e60, 1e150), (kind, 2e-150, 1e-150), source=1e60, direction=1e-150
            ),
            f"{kind}: faint behind faint, then large": chain(
                ("head", 1e100, 1e100), (kind, 1e-150, 1e-160), source=1e90, direction=1e-100
            ),
            f"{kind}: too large to square": chain((kind, 1e120, 1e80), source=1.0, direction=1e50),
            f"{kind}: overflow on the way back": chain(
                (kind, 1e150, 1e150), source=1e-200, direction=1e150
            ),
            f"{kind}: behind a norm of no range": chain(
                ("norm", 1e-160, 2e150), (kind, 1.0, 1.0), source=1e-92, direction=1.0
            ),
            f"{kind}: in front of a norm of no range": chain(
                (kind, 1.0, 1e-120), ("norm", 1e160, 1e-150), source=1.0, direction=1e-30
            ),
        }
    found["a faint source behind a large norm"] = chain(
        ("norm", 1.0, 1e30), source=1e-162, direction=1e-162
    )
    return found


@pytest.mark.parametrize("name", far())
@pytest.mark.parametrize("top", [0, 1])
def test_what_leaves_the_range_of_floats_is_bounded(name: str, top: int) -> None:
    assert not exact_faults(replace(far()[name], top=top))


# --- what cancels ---------------------------------------------------------------------------------

Draw = Callable[[tuple[int, ...]], Array]


def refilled(group: Group, rng: np.random.Generator, read: Draw, write: Draw) -> Group:
    """Give a group on three positions and dimensions, with weights as they are drawn."""
    parts, size = {}, 3
    for field in fields(group):  # type: ignore[arg-type]
        old = getattr(group, field.name)
        if field.name in ("W_V", "W_in"):
            parts[field.name] = read((*old.shape[:-2], size, old.shape[-1]))
        elif field.name in ("W_O", "W_out"):
            parts[field.name] = write((*old.shape[:-1], size))
        elif field.name == "gates":
            parts["gates"] = rng.random(size=(size, old.shape[1]))
        elif field.name == "patterns":
            rows = np.tril(rng.random(size=(len(old), size, size)))
            parts["patterns"] = rows / rows.sum(axis=2, keepdims=True)
    return replace(group, **parts)  # type: ignore[type-var]


def two_layers(
    seed: int,
    rng: np.random.Generator,
    remake: Callable[[int, FrozenStage], FrozenStage],
    *,
    heads: tuple[int, int] = (2, 2),
) -> Problem:
    """Make a problem of heads, of neurons or of whole MLPs, by turns, its stages remade."""
    kinds: list[dict[str, Any]] = [{"mlp": "source"}, {"mlp": "neurons"}, {"mlp": "frozen"}]
    network = Network.transformer(2, heads, 2, **kinds[seed % 3])
    frozen = problem_of(network, everything(network), rng, carried=False).frozen
    stages = [remake(number, stage) for number, stage in enumerate(frozen.stages)]
    sources = [replace(source, values=rng.normal(size=(3, 3))) for source in frozen.sources]
    readout = Readout(2, rng.uniform(1, 2, size=3), 0)
    return Problem(made(sources, stages, free=False), readout, everything(network), 3, None)


def cancelling(seed: int) -> Problem:
    """Make components that write far more than is read behind them, so that most of it cancels."""
    rng, large = np.random.default_rng(seed), 10.0 ** np.random.default_rng(seed).integers(4, 17)
    hidden = rng.normal(size=3)

    def write(shape: tuple[int, ...]) -> Array:
        out: Array = rng.normal(size=shape) + rng.normal(size=(*shape[:-1], 1)) * large * hidden
        return out

    def remake(number: int, stage: FrozenStage) -> FrozenStage:
        groups = (refilled(group, rng, normal(rng), write) for group in stage.groups)
        return FrozenStage(tuple(groups))

    problem = two_layers(seed, rng, remake)
    direction = np.array([1.0, 1.5, -(hidden[0] + 1.5 * hidden[1]) / hidden[2]])
    return replace(problem, readout=Readout(2, direction, 0))


def levelled(seed: int) -> Problem:
    """Make a norm take off the large mean of a stream, of which hardly anything is read then.

    In some the rest of the stream is as large as its mean, and in some all that counts is what is
    read by components.
    """
    rng, large = np.random.default_rng(seed), 10.0 ** np.random.default_rng(seed).integers(4, 12)
    size, faint = ((1 / large, 1.0), (1 / large, 1e-20), (1.0, 1.0))[seed // 3 % 3]

    def nearly(shape: tuple[int, ...]) -> Array:
        out: Array = 1 + rng.integers(0, 9, size=shape) * 2.0**-50
        return out

    def write(shape: tuple[int, ...]) -> Array:
        return rng.normal(size=shape) / faint

    def remake(number: int, stage: FrozenStage) -> FrozenStage:
        groups = tuple(refilled(group, rng, nearly, write) for group in stage.groups)
        norm = Norm("layer", None, None, 0.0)
        return FrozenStage(groups, None if number else Carry(norm, rng.uniform(1, 2, size=3)))

    problem = two_layers(seed, rng, remake, heads=(0, 2))
    sources = [
        source if source.boundary else replace(source, values=large * (size * source.values + 1))
        for source in problem.frozen.sources
    ]
    frozen = made(sources, list(problem.frozen.stages), free=False)
    return replace(
        problem,
        frozen=frozen,
        readout=Readout(2, faint * nearly((3,)), 0),
        top=3 if faint == 1 else 0,
    )


def normal(rng: np.random.Generator) -> Draw:
    return lambda shape: rng.normal(size=shape)


def untrue(seeds: range) -> int:
    """Count the tables about components and norms that cancel which say what is not true."""
    problems = [make(seed) for make in (cancelling, levelled) for seed in seeds]
    return sum(bool(exact_faults(problem)) for problem in problems)


def test_nothing_said_of_what_cancels_is_untrue() -> None:
    assert untrue(range(90)) == 0


@pytest.mark.parametrize("kind", range(3), ids=["heads", "neurons", "whole MLPs"])
def test_bounds_that_forget_rounding_are_caught(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(steps: int, unit: float = UNIT) -> float:
        return gamma(steps, unit) if unit == UNIT32 else 0.0

    for module in (kernel, prompt_tree):
        monkeypatch.setattr(module, "gamma", forgetful)
    assert untrue(range(kind, 90, 3)) > 0
