"""Sampled paths through neurons and norms of the stream: each naming worked out by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pathexpand.engine import energy, sampling
from pathexpand.engine.sampling import NamedPath, named_count, named_energy, sample_paths
from pathexpand.engine.value import Readout
from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenSum, HeadGroup, MlpGroup, NeuronGroup
from pathexpand.laws import Design, random_transformer
from pathexpand.symbolic import Neuron, Path
from pathexpand.symbolic.query import Query, everything
from tests.sampling.test_sampling import deviates
from tests.search.problems import Problem, random_problem

Array = np.ndarray[Any, Any]
STREAM = Design(norms=("ln1_after", "ln2_after"), embed_norms=1, mlp="neurons", act="relu")
DESIGNS = {
    "pre-norm": Design(mlp="neurons", d_mlp=3),
    "parallel and gated": Design(mlp="neurons", d_mlp=3, parallel=True, gated=True, norm="rms"),
    "norms of the stream": STREAM,
    "sources": Design(mlp="source", direction="bidirectional"),
}


def steps(frozen: FrozenSum, boundary: int, path: Path) -> Iterator[tuple[bool, Array, Array]]:
    """Yield what is passed: whether it is a component, its position map and its linear map."""
    left = list(path.components)
    for stage in frozen.stages[boundary:]:
        if left and left[0] in stage.components:
            _, group, n = frozen.places[left.pop(0)]
            if isinstance(group, HeadGroup):
                yield True, group.patterns[n], group.W_V[n] @ group.W_O[n]
            else:
                assert isinstance(group, NeuronGroup)
                yield True, np.diag(group.gates[:, n]), np.outer(group.W_in[:, n], group.W_out[n])
        elif stage.carry is not None:
            norm, size = stage.carry.norm, len(frozen.sources[0].values[0])
            linear = np.eye(size) - (1 / size if norm.kind == "layer" else 0)
            linear = linear if norm.weight is None else linear * norm.weight
            yield False, np.diag(stage.carry.scale), linear


def named_paths(frozen: FrozenSum, readout: Readout, query: Query) -> dict[NamedPath, float]:
    """Give every named path of a query with its contribution, forward from its source."""
    found = {}
    for path in query.paths():
        if path.source == "b_U":
            found[NamedPath(path, (readout.position,))] = float(readout.constant)
            continue
        source = next(each for each in frozen.sources if each.label == path.source)
        passed = list(steps(frozen, source.boundary, path))
        read = source.values
        for _, _, linear in passed:
            read = read @ linear
        namings: list[tuple[tuple[int, ...], int, float]] = [
            ((place,), place, float(value)) for place, value in enumerate(read @ readout.direction)
        ]
        for component, positions, _ in passed:
            longer = []
            for places, at, value in namings:
                for to in np.flatnonzero(positions[:, at]) if component else [at]:
                    named = (*places, int(to)) if component else places
                    longer.append((named, int(to), value * float(positions[to, at])))
            namings = longer
        found |= {NamedPath(path, places): c for places, at, c in namings if at == readout.position}
    return found


def drawable(seed: int) -> Problem | None:
    """Give a problem whose paths can be drawn, of few namings and of squares within range."""
    problem = random_problem(seed)
    frozen = problem.frozen
    whole = any(isinstance(group, MlpGroup) for stage in frozen.stages for group in stage.groups)
    large = max(float(abs(stream).max()) for stream in frozen.streams) > 1e9
    few = problem.query.count() <= 150 and frozen.positions <= 3 and frozen.depth <= 4
    return problem if few and not whole and not large else None


def test_energies_and_counts_are_those_of_every_naming() -> None:
    seen = 0
    for problem in filter(None, map(drawable, range(600))):
        near = problem.frozen.until(problem.readout.position)
        known = named_paths(near, problem.readout, problem.query)
        squares = math.fsum(c * c for c in known.values())
        assert named_count(problem.frozen, problem.readout, problem.query) == len(known)
        if squares > 1e-200:
            found = named_energy(problem.frozen, problem.readout, problem.query)
            size = math.fsum(map(abs, known.values()))
            assert found == pytest.approx(squares, rel=1e-9, abs=1e-14 * size**2)
            seen += any(isinstance(c, Neuron) for named in known for c in named.path.components)
    assert seen > 40


def test_what_is_drawn_is_worth_what_is_said_of_it() -> None:
    for problem in filter(None, map(drawable, range(200))):
        known = named_paths(problem.frozen, problem.readout, problem.query)
        if max(map(abs, known.values()), default=0.0) < 1e-100:
            continue
        sample = sample_paths(problem.frozen, problem.readout, problem.query, 20, seed=1)
        size = math.fsum(map(abs, known.values()))
        for named, c, chance in zip(
            sample.paths, sample.contributions, sample.probabilities, strict=True
        ):
            assert c == pytest.approx(known[named], rel=1e-9, abs=1e-13 * size)
            assert chance == pytest.approx(c * c / sample.energy, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", DESIGNS)
def test_draws_come_as_often_as_their_energy_and_estimates_are_unbiased(name: str) -> None:
    model = random_transformer(DESIGNS[name], seed=2)
    run = model.run([1, 4, 2])
    readout = run.target(3).readout(run.unembed, 2)
    known = named_paths(run.frozen, readout, model.query())
    sample = run.sample(20_000, target=3, seed=5)
    assert len(sample) == sample.draws
    assert sample.named_count == len(known)
    assert abs(deviates(sample, known)) < 5
    energy = math.fsum(c * c for c in known.values())
    for function in (
        lambda named, c: c * c * named.path.order,
        lambda named, c: c * c * any(isinstance(each, Neuron) for each in named.path.components),
        lambda named, c: c * c * (named.positions[0] == 1),
    ):
        truth = math.fsum(function(named, c) for named, c in known.items())
        second = math.fsum(function(named, c) ** 2 / (c * c) for named, c in known.items() if c)
        error = math.sqrt(max(energy * second - truth**2, 0.0) / sample.draws)
        assert abs(sample.estimate(function).value - truth) <= 4 * error + 1e-9 * energy


def test_a_query_about_neurons_is_kept_to() -> None:
    model = random_transformer(DESIGNS["pre-norm"], seed=7)
    run, query = model.run([1, 4, 2]), model.query("* > {L0N1,L1N2} > *")
    readout = run.target(3).readout(run.unembed, 2)
    known = named_paths(run.frozen, readout, query)
    sample = run.sample(2000, target=3, query="* > {L0N1,L1N2} > *", seed=1)
    assert set(sample.paths) <= set(known)
    assert sample.energy == pytest.approx(math.fsum(c * c for c in known.values()), rel=1e-10)
    assert abs(deviates(sample, known)) < 5


def test_a_neuron_that_is_not_active_is_never_drawn() -> None:
    run = random_transformer(STREAM, seed=3).run([1, 4, 2])
    gates = {
        stage: group.gates
        for stage, each in enumerate(run.frozen.stages)
        for group in each.groups
        if isinstance(group, NeuronGroup)
    }
    assert any((each == 0).any() for each in gates.values())
    for named in run.sample(3000, target=1, seed=2).paths:
        for component, place in zip(named.path.components, named.positions[1:], strict=True):
            if isinstance(component, Neuron):
                assert gates[run.frozen.places[component][0]][place, component.index] != 0


def test_whole_mlps_are_refused() -> None:
    run = random_transformer(Design(mlp="frozen"), seed=1).run([1, 2])
    with pytest.raises(
        PathExpandError, match=r'neuron by neuron, got MLPs taken whole.*mlp="neurons"'
    ):
        run.sample(5)


# --- broken samplers ------------------------------------------------------------------------------


def plain_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Carry energy through neurons without squaring their gates."""
    through = energy._through_neurons

    def plain(group: NeuronGroup, seen: Any) -> Any:
        root = NeuronGroup(group.components, np.sqrt(abs(group.gates)), group.W_in, group.W_out)
        return through(root, seen)

    monkeypatch.setattr(energy, "_through_neurons", plain)


def skipped_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Carry energy past norms of the stream as it is."""
    monkeypatch.setattr(energy, "_carried", lambda carry, given: given)


def first_neuron(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every draw go on with the likeliest of what there is to choose."""

    def greedy(rng: Any, offers: Array) -> tuple[Array, Array]:
        return offers.argmax(axis=1), offers.max(axis=1) / offers.sum(axis=1)

    monkeypatch.setattr(sampling, "_choose", greedy)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (plain_gates, "pre-norm"),
        (skipped_norms, "norms of the stream"),
        (first_neuron, "pre-norm"),
    ],
)
def test_wrong_frequencies_are_caught(
    fault: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_transformer(DESIGNS[name], seed=2, scale=3)
    run = model.run([1, 4, 2])
    readout = run.target(3).readout(run.unembed, 2)
    known = named_paths(run.frozen, readout, everything(model.network))
    assert abs(deviates(run.sample(20_000, target=3, seed=1), known)) < 5
    fault(monkeypatch)
    assert deviates(run.sample(20_000, target=3, seed=1), known) > 10
