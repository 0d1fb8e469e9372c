"""Sampled paths: the energy is exact, draws follow it, estimates are unbiased."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pathexpand.api import Model, Run, from_state_dict, load
from pathexpand.engine import energy, sampling
from pathexpand.engine.sampling import NamedPath, Sample, named_count, named_energy, sample_paths
from pathexpand.engine.value import Readout
from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenSum, HeadGroup
from pathexpand.laws.problems import random_model
from pathexpand.laws.strategies import models, prompts
from pathexpand.symbolic import Head, Path
from pathexpand.symbolic.query import Query


def named_paths(
    frozen: FrozenSum, readout: Readout, query: Query
) -> Iterator[tuple[NamedPath, float]]:
    """Yield every named path of a query with its contribution, worked out forward."""
    for path in query.paths():
        if path.source == "b_U":
            yield NamedPath(path, (readout.position,)), float(readout.constant)
            continue
        source = next(each for each in frozen.sources if each.label == path.source)
        for start in range(frozen.positions):
            yield from _onward(frozen, readout, path, (start,), source.values[start], 1.0)


def _onward(
    frozen: FrozenSum,
    readout: Readout,
    path: Path,
    places: tuple[int, ...],
    stream: Any,
    scale: float,
) -> Iterator[tuple[NamedPath, float]]:
    order = len(places) - 1
    if order == path.order:
        if places[-1] == readout.position:
            yield NamedPath(path, places), float(scale * (stream @ readout.direction))
        return
    head = path.components[order]
    assert isinstance(head, Head)
    group = frozen.stages[head.layer].groups[0]
    assert isinstance(group, HeadGroup)
    moved = stream @ group.W_V[head.index] @ group.W_O[head.index]  # (d_model,)
    for query_at in range(frozen.positions):
        entry = group.patterns[head.index, query_at, places[-1]]
        if entry:
            yield from _onward(
                frozen, readout, path, (*places, query_at), moved, scale * float(entry)
            )


def all_named(run: Run, query: Query, target: Any = None) -> dict[NamedPath, float]:
    return dict(named_paths(run.frozen, readout_of(run, target), query))


def readout_of(run: Run, target: Any = None) -> Readout:
    return run.target(target).readout(run.unembed, run.position())


def energy_holds(run: Run, query: Query) -> bool:
    """The law: the energy from kernels is Σ c² over the named paths, one by one."""
    known = all_named(run, query)
    squares = math.fsum(c * c for c in known.values())
    found = named_energy(run.frozen, readout_of(run), query)
    return found == pytest.approx(squares, rel=1e-9, abs=1e-300)


QUERIES = ["*", "* > L0H* > *", "embed > *", "not embed > *", "* > L1H0"]


# --- the energy ---------------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.data())
def test_the_energy_is_the_sum_of_squares(data):
    model = data.draw(models(max_heads=2))
    assume(model.config.n_layers < 3 or model.config.n_heads < 3)
    run = model.run(data.draw(prompts(model, max_length=4)))
    assert energy_holds(run, model.query())
    known = all_named(run, model.query())
    count = named_count(run.frozen, readout_of(run), model.query())
    assert count == len([1 for path in known if path])


@pytest.mark.parametrize("text", QUERIES)
def test_it_keeps_to_a_query(text):
    model = random_model(seed=2, n_layers=3)
    run, query = model.run([1, 2, 3, 4]), model.query(text)
    assert energy_holds(run, query)
    known = all_named(run, query)
    assert named_count(run.frozen, readout_of(run), query) == len(known)
    sample = run.sample(300, query=text, seed=1)
    assert all(query.matches(named.path) for named in sample.paths)


def test_negative_patterns_and_rows_that_do_not_sum_to_one():
    run = random_model(seed=3).run([1, 2, 3, 4])
    rng = np.random.default_rng(0)
    stages = tuple(
        replace(stage, groups=(replace(heads, patterns=np.tril(rng.normal(size=shape))),))
        for stage in run.frozen.stages
        for heads in stage.groups
        if isinstance(heads, HeadGroup) and (shape := heads.patterns.shape)
    )
    frozen, query = replace(run.frozen, stages=stages), run.model.query()
    known = dict(named_paths(frozen, readout_of(run), query))
    sample = sample_paths(frozen, readout_of(run), query, 200, seed=0)
    assert sample.energy == pytest.approx(math.fsum(c * c for c in known.values()), rel=1e-12)
    for named, c in zip(sample.paths, sample.contributions, strict=True):
        assert c == pytest.approx(known[named], rel=1e-9)


def test_left_padding_is_never_drawn():
    model = random_model(seed=4)
    run = model.run([9, 9, 1, 2, 3], mask=[0, 0, 1, 1, 1])
    sample = run.sample(2000, seed=1)
    assert min(min(named.positions) for named in sample.paths) == 2
    assert sample.energy == pytest.approx(model.run([1, 2, 3]).sample(1).energy, rel=1e-12)


def test_a_later_position_is_not_drawn_and_bidirectional_ones_are():
    causal = random_model(seed=5).run([1, 2, 3, 4]).sample(500, position=1)
    assert max(max(named.positions) for named in causal.paths) == 1
    both = random_model(seed=5, direction="bidirectional").run([1, 2, 3, 4]).sample(500, position=1)
    assert max(max(named.positions) for named in both.paths) == 3


# --- the draws ----------------------------------------------------------------------------------


def deviates(sample: Sample, known: dict[NamedPath, float]) -> float:
    """Give χ² less its mean, over its standard deviation: draws against c² / Σ c²."""
    energy = math.fsum(c * c for c in known.values())
    counts = Counter(sample.paths)
    wanted = {path: sample.draws * c * c / energy for path, c in known.items()}
    large = [path for path, number in wanted.items() if number >= 5]
    rest = sample.draws - sum(wanted[path] for path in large)
    seen = sample.draws - sum(counts[path] for path in large)
    chi = sum((counts[path] - wanted[path]) ** 2 / wanted[path] for path in large)
    chi += (seen - rest) ** 2 / max(rest, 1.0)
    return (chi - len(large)) / math.sqrt(2 * len(large))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", ["small", "deep", "bidirectional", "unbiased"])
def test_draws_come_as_often_as_their_energy(kind, seed):
    model = {
        "small": random_model(seed=seed),
        "deep": random_model(seed=seed, n_layers=3, n_heads=2, scale=1.5),
        "bidirectional": random_model(seed=seed, direction="bidirectional"),
        "unbiased": random_model(seed=seed, biases="none", positions="none"),
    }[kind]
    run = model.run([1, 2, 3, 4])
    known = all_named(run, model.query())
    sample = run.sample(20_000, seed=seed)
    assert len(sample) == sample.draws == 20_000
    for named, c, chance in zip(
        sample.paths[:500], sample.contributions, sample.probabilities, strict=False
    ):
        assert c == pytest.approx(known[named], rel=1e-9)
        assert chance == pytest.approx(c * c / sample.energy, rel=1e-7)
    assert abs(deviates(sample, known)) < 4


def test_draws_are_independent_of_their_number():
    run = load("two-layer").run("to be or not to be")
    sample = run.sample(4000, seed=1)
    top = Counter(sample.paths).most_common(1)[0][0]
    hits = np.array([named == top for named in sample.paths], dtype=float)
    repeats = (hits[1:] * hits[:-1]).mean()
    assert repeats == pytest.approx(hits.mean() ** 2, abs=4 / math.sqrt(4000))


def test_the_same_seed_gives_the_same_draws():
    run = random_model(seed=6).run([1, 2, 3])
    one, same, other = run.sample(50, seed=3), run.sample(50, seed=3), run.sample(50, seed=4)
    assert one.paths == same.paths
    assert np.array_equal(one.probabilities, same.probabilities)
    assert one.paths != other.paths


# --- estimates ----------------------------------------------------------------------------------

STATISTICS = {
    "absolute": lambda named, c: abs(c),
    "signed": lambda named, c: c,
    "energy by order": lambda named, c: c * c * named.path.order,
    "first position": lambda named, c: abs(c) * (named.positions[0] == 0),
    "through L0H1": lambda named, c: c * (Head(0, 1) in named.path.components),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_estimates_are_unbiased(name):
    run = random_model(seed=7, n_heads=2).run([1, 2, 3])
    function = STATISTICS[name]
    known = all_named(run, run.model.query())
    truth = math.fsum(function(named, c) for named, c in known.items())
    found = [run.sample(400, seed=seed).estimate(function) for seed in range(200)]
    values = np.array([each.value for each in found])
    energy = math.fsum(c * c for c in known.values())
    moments = math.fsum(function(named, c) ** 2 / (c * c) for named, c in known.items() if c)
    error = math.sqrt((energy * moments - truth**2) / 400)  # the exact standard error
    assert abs(values.mean() - truth) < 4 * error / math.sqrt(200)
    assert all(0 <= each.effective_size <= 400 * (1 + 1e-9) for each in found)
    errors = [each.standard_error for each in found]
    if name == "energy by order":
        assert np.median(errors) == pytest.approx(error, rel=0.1)
    else:
        assert np.median(errors) < error  # what the docstring warns of: a heavy tail, unseen


def test_the_expectation_is_exact_where_it_can_be_summed():
    # Σ over paths of probability · f / probability, each path drawn at least once.
    run = random_model(seed=8, n_heads=1, n_layers=1).run([1, 2])
    known = all_named(run, run.model.query())
    sample = run.sample(5000, seed=0)
    chances = dict(zip(sample.paths, sample.probabilities, strict=True))
    assert set(chances) == {named for named, c in known.items() if c}
    assert math.fsum(chances.values()) == pytest.approx(1, rel=1e-10)


def test_the_absolute_sum_is_below_its_bound():
    run = load("two-layer").run("to be or not to be")
    known = all_named(run, run.model.query())
    sample = run.sample(10_000, seed=0)
    truth = math.fsum(map(abs, known.values()))
    assert sample.named_count == len(known)
    assert truth <= sample.absolute_bound
    assert sample.absolute() == sample.estimate(lambda named, c: abs(c))
    assert sample.effective_size == sample.absolute().effective_size
    error = sample.absolute_bound / math.sqrt(10_000)
    assert abs(sample.absolute().value - truth) < 4 * error


def test_draws_that_name_no_path_count_as_nothing():
    sample = random_model(seed=1).run([1, 2]).sample(10)
    fewer = replace(sample, draws=20)
    assert fewer.absolute().value == pytest.approx(sample.absolute().value / 2)
    terms = [*abs(sample.contributions) / sample.probabilities, *[0.0] * 10]
    wanted = np.std(terms, ddof=1) / math.sqrt(20)
    assert fewer.absolute().standard_error == pytest.approx(wanted)


def test_a_single_draw_has_no_standard_error():
    assert random_model(seed=1).run([1, 2]).sample(1).absolute().standard_error is None


# --- broken samplers ----------------------------------------------------------------------------


def plain_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget to square the patterns that carry energy."""
    monkeypatch.setattr(energy, "_weights", lambda p, seen, named: (abs(p), np.ones(p.shape[:2])))


def summed_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the weights of the other form, for sums over positions."""
    weights = energy._weights
    monkeypatch.setattr(energy, "_weights", lambda p, seen, named: weights(p, seen, named=False))


def lost_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what the position embedding brings to the heads."""

    def fewer(frozen: FrozenSum, query: Query) -> Any:
        left = tuple(each for each in frozen.sources if each.label != "pos")
        return energy.source_seed(replace(frozen, sources=left), query)

    monkeypatch.setattr(sampling, "source_seed", fewer)


def lost_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what earlier heads bring."""
    monkeypatch.setattr(energy, "_through", lambda way, seen, named: None)


def first_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the likeliest way on instead of drawing one."""

    def greedy(rng: Any, offers: Any) -> Any:
        chosen = offers.argmax(axis=1)
        return chosen, offers.max(axis=1) / offers.sum(axis=1)

    monkeypatch.setattr(sampling, "_choose", greedy)


@pytest.mark.parametrize("fault", [plain_patterns, summed_positions, lost_source, lost_composition])
def test_a_wrong_energy_is_caught(fault, monkeypatch):
    run = random_model(seed=9).run([1, 2, 3, 4])
    assert energy_holds(run, run.model.query())
    fault(monkeypatch)
    assert not energy_holds(run, run.model.query())


@pytest.mark.parametrize(
    "fault", [plain_patterns, summed_positions, lost_source, lost_composition, first_choice]
)
def test_wrong_frequencies_are_caught(fault, monkeypatch):
    run = random_model(seed=9).run([1, 2, 3, 4])
    known = all_named(run, run.model.query())
    assert deviates(run.sample(80_000, seed=1), known) < 4
    fault(monkeypatch)
    assert deviates(run.sample(80_000, seed=1), known) > 10


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n": 0}, "n: wanted a whole number of at least 1, got 0"),
        ({"n": 2.0}, "n: wanted a whole number"),
        ({"n": True}, "n: wanted a whole number"),
        ({"seed": -1}, "seed: wanted a whole number of at least 0"),
        ({"position": 9}, "position 9"),
        ({"target": 99}, "target id 99"),
    ],
)
def test_bad_input_is_named(options, match):
    run = random_model(seed=1).run([1, 2, 3])
    with pytest.raises(PathExpandError, match=match):
        run.sample(options.pop("n", 5), **options)


def test_nothing_to_draw_is_refused():
    model = random_model(seed=1)
    tensors = {name: np.array(array) * 0 for name, array in model.weights.named()}
    empty: Model = from_state_dict(tensors, model.config)
    with pytest.raises(PathExpandError, match="a path that contributes something, got none"):
        empty.run([1, 2]).sample(5)


@pytest.mark.parametrize("positions", [(1,), (1, 2, 3), (-1, 2)])
def test_a_named_path_needs_its_positions(positions):
    with pytest.raises(PathExpandError, match="wanted 2 positions from 0"):
        NamedPath(Path.parse("embed > L0H1"), positions)
