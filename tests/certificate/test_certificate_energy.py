"""The energies of the stream bound what they say, whatever the patterns, gates and weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pathexpand.certificate import certify, check_certificate
from pathexpand.certificate import energy as stream
from pathexpand.certificate.frontier import frontiers
from pathexpand.certificate.heads import Heads
from pathexpand.certificate.held import Held, HeldStage, hold
from pathexpand.certificate.neurons import Neurons
from pathexpand.certificate.norm import FixedNorm
from pathexpand.certificate.part import Part
from pathexpand.certificate.reads import Reads
from pathexpand.certificate.suffix import Tree
from pathexpand.certificate.value import valued
from pathexpand.certificate.whole import WholeMlp
from pathexpand.laws.design import Design, random_transformer
from pathexpand.laws.problems import random_model
from pathexpand.symbolic.query import Query

POST = ("ln1", "ln2", "ln1_after", "ln2_after")
SMALL: dict[str, Any] = {
    "n_heads": 2,
    "n_key_value_heads": 1,
    "d_model": 5,
    "d_mlp": 3,
    "direction": "bidirectional",
}
DESIGNS = {
    "heads": Design(**SMALL | {"d_mlp": 0, "n_layers": 3}),
    "neurons": Design(**SMALL, mlp="neurons"),
    "whole": Design(**SMALL, mlp="frozen"),
    "whole, three": Design(**SMALL | {"n_heads": 1, "n_layers": 3}, mlp="frozen"),
    "neurons beside heads": Design(**SMALL, mlp="neurons", parallel=True, gated=True),
    "norms of the stream": Design(**SMALL, mlp="source", norms=POST),
    "norms and neurons": Design(**SMALL, mlp="neurons", norms=POST),
    "norms and whole": Design(**SMALL, mlp="frozen", norms=POST, norm="rms"),
}
QUERIES = ("*", "* > L1H0 > *", "not embed > *")
MLP_QUERIES = {"neurons": "* > L0N1 > *", "frozen": "* > L0M > *", "source": "L0M > *"}


def problem(name: str, seed: int, query: str = "*") -> tuple[Held, Query]:
    """Hold a run with patterns, gates and scales of any size, as no model gives them."""
    design = DESIGNS[name]
    model = random_transformer(design, seed=seed)
    run = model.run([1, 2, 3])
    held, rng = hold(run, run.target(4), 1, same=True), np.random.default_rng(seed)

    def anew(part: Part) -> Part:
        if isinstance(part, Heads):
            sizes = rng.choice([0.3, 1, 3], size=(len(part.components), 1, 1))
            return replace(part, patterns=rng.normal(size=part.patterns.shape) * sizes)
        assert isinstance(part, Neurons | WholeMlp)
        gates = rng.normal(size=part.gates.shape) * rng.choice([0, 1, 3], size=part.gates.shape)
        return replace(part, gates=gates)

    stages = []
    for stage in held.stages:
        norm = stage.norm
        if norm is not None:
            norm = replace(norm, scale=rng.choice([0.3, 1, 5], size=norm.scale.shape))
        stages.append(HeldStage(tuple(map(anew, stage.parts)), norm))
    return replace(held, stages=tuple(stages)), model.query(query)


def over(name: str, seed: int, query: str = "*") -> float:
    """Give the largest of √Σ value² over what it must stay under, of all subtrees."""
    held, asked = problem(name, seed, query)
    values = {path: valued(held, path).value for path in asked.paths()}
    tree = Tree(held, asked, [path.components for path in values])
    (found,) = frontiers(held, asked, [tree], max_order=None)
    below = dict.fromkeys(tree.words, 0.0)
    for path, value in values.items():
        for start in range(len(path.components) + 1):
            below[path.components[start:]] += value**2
    return max(
        np.sqrt(below[left.word]) / (left.size + left.slack) if below[left.word] else 0.0
        for left in found.inside
    )


CASES = [(name, query) for name in DESIGNS for query in QUERIES]
CASES += [(name, MLP_QUERIES[each.mlp]) for name, each in DESIGNS.items() if each.d_mlp]


@pytest.mark.parametrize(("name", "query"), CASES, ids=str)
def test_every_subtree_is_under_its_energy(name: str, query: str) -> None:
    for seed in range(3):
        assert 0 < over(name, seed, query) <= 1


@pytest.mark.parametrize("name", DESIGNS)
def test_the_bound_is_near_what_it_bounds(name: str) -> None:
    assert max(over(name, seed) for seed in range(3)) > 0.9


def worst(name: str) -> float:
    return max(over(name, seed) for seed in range(6))


def test_without_the_sums_of_rows_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Σ |A|² K in place of ρ Σ |A| K / t."""

    def wrong(self: Heads, kernels: Any, state: int, n: int) -> Any:
        kernel = np.stack([kernels.kernel[state, n], kernels.loss[state, n]])
        return np.einsum("ij,kjab->kiab", self.patterns[n] ** 2, kernel), 0.0

    monkeypatch.setattr(Heads, "_mixed", wrong)
    assert worst("heads") > 1.01


def test_with_a_source_forgotten_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    right = stream.StreamEnergy._add_sources

    def wrong(self: stream.StreamEnergy) -> None:
        if not self.boundary:
            right(self)

    monkeypatch.setattr(stream.StreamEnergy, "_add_sources", wrong)
    assert worst("heads") > 1.01


@pytest.mark.parametrize(("part", "name"), [(Neurons, "neurons"), (WholeMlp, "whole")])
def test_with_an_mlp_forgotten_they_would_not(
    part: type[Part], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "bring", lambda *given: 0.0)
    assert worst(name) > 1.01


@pytest.mark.parametrize("name", ["norms of the stream", "norms and neurons", "norms and whole"])
def test_with_a_norm_forgotten_they_would_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_pass", lambda *given: None)
    assert worst(name) > 1.01


@pytest.mark.parametrize("name", ["norms of the stream", "norms and whole"])
def test_with_suffixes_not_carried_they_would_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reads, "past", lambda self, norm: self)
    assert worst(name) > 1.01


@pytest.mark.parametrize("name", DESIGNS)
def test_functionals_and_energies_are_within_their_account(name: str) -> None:
    """With weights a little off, and these offs as doubts, all that is held stays within them."""
    held, query = problem(name, seed=1)
    rng = np.random.default_rng(5)

    def off(array: Any, room: Any) -> Any:
        return array + 1e-6 * rng.uniform(-1, 1, size=array.shape) * room

    def moved(part: Part) -> Part:
        if isinstance(part, Heads):
            return replace(part, patterns=off(part.patterns, part.patterns))
        assert isinstance(part, Neurons | WholeMlp)
        return replace(part, gates=off(part.gates, 1 + abs(part.gates)))

    def doubted(part: Part) -> Part:
        if isinstance(part, Heads):
            return replace(part, doubt=1e-6)
        assert isinstance(part, Neurons | WholeMlp)
        return replace(part, room=1 + abs(part.gates), doubt=1e-6)

    def norm(norm: FixedNorm | None, *, moves: bool) -> FixedNorm | None:
        if norm is None:
            return None
        return (
            replace(norm, scale=off(norm.scale, norm.scale)) if moves else replace(norm, doubt=1e-6)
        )

    true = [HeldStage(tuple(map(moved, s.parts)), norm(s.norm, moves=True)) for s in held.stages]
    ours = [HeldStage(tuple(map(doubted, s.parts)), norm(s.norm, moves=False)) for s in held.stages]
    one, other = replace(held, stages=tuple(true)), replace(held, stages=tuple(ours))
    words = [path.components for path in query.paths()]
    bounds = []
    for each in (one, other):
        (found,) = frontiers(each, query, [Tree(each, query, words)], max_order=None)
        bounds.append(list(found.inside))
    assert sum(left.slack for left in bounds[1]) > 0
    for exact, ours_ in zip(*bounds, strict=True):
        assert abs(exact.size - ours_.size) <= ours_.slack + exact.slack
    for path in query.paths():
        near = valued(other, path)
        assert abs(valued(one, path).value - near.value) <= near.slack


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e25])
def test_weights_of_any_size_pass(scale: float) -> None:
    run = random_model(seed=3, scale=scale, positions="none").run([1, 2, 3])
    certificate = certify(run, run.searched_paths(1, top=5))
    findings = check_certificate(certificate, run.model)
    assert [finding.name for finding in findings if not finding.holds] == []
