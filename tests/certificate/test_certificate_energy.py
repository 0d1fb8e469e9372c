"""The energies of the stream bound what they say, whatever the patterns and the weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pathexpand.certificate import certify, check_certificate
from pathexpand.certificate import energy as stream
from pathexpand.certificate.frontier import frontiers
from pathexpand.certificate.held import Held, hold
from pathexpand.certificate.suffix import grow
from pathexpand.certificate.value import valued
from pathexpand.laws.problems import random_model
from pathexpand.symbolic.query import Query


def problem(seed: int, query: str = "*") -> tuple[Held, Query]:
    """Hold a run with patterns that no softmax gives: rows of any sum, entries of any sign."""
    model = random_model(seed=seed, n_layers=3, n_heads=2, direction="bidirectional")
    held = hold(model.run([1, 2, 3]), model.run([1]).target(4), 1, same_patterns=True)
    rng = np.random.default_rng(seed)
    patterns = tuple(
        rng.normal(size=each.shape) * rng.choice([0.3, 1, 3]) for each in held.patterns
    )
    return replace(held, patterns=patterns), model.query(query)


def over(seed: int, query: str = "*") -> float:
    """Give the largest of √Σ value² over what it must stay under, of all subtrees."""
    held, asked = problem(seed, query)
    paths = list(asked.paths())
    values = {path: valued(held, path).value for path in paths}
    tree = grow(held, asked, [path.components for path in paths])
    (found,) = frontiers(held, asked, [tree], max_order=None)
    ratios = []
    for word in tree:
        below = [
            value
            for path, value in values.items()
            if not word or path.components[-len(word) :] == word
        ]
        size = float(np.sqrt(sum(value**2 for value in below)))
        ratios.append(size / found.inside[word].size if size else 0.0)
    return max(ratios)


@pytest.mark.parametrize("query", ["*", "* > L1H0 > *", "not embed > *"])
@pytest.mark.parametrize("seed", range(6))
def test_every_subtree_is_under_its_energy(seed: int, query: str) -> None:
    assert 0 < over(seed, query) <= 1 + 1e-9


def test_without_the_sums_of_rows_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    right = stream._weighed

    def wrong(rows: Any, forms: Any) -> Any:
        total = abs(rows).sum(axis=1)
        return right(rows, forms) / np.sqrt(np.where(total == 0, 1, total))

    monkeypatch.setattr(stream, "_weighed", wrong)
    assert max(map(over, range(6))) > 1.01


def test_with_a_source_forgotten_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    right = stream.StreamEnergy._add_sources

    def wrong(self: stream.StreamEnergy) -> None:
        if not self.boundary:
            right(self)

    monkeypatch.setattr(stream.StreamEnergy, "_add_sources", wrong)
    assert max(map(over, range(6))) > 1.01


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e25])
def test_weights_of_any_size_pass(scale: float) -> None:
    run = random_model(seed=3, scale=scale, positions="none").run([1, 2, 3])
    certificate = certify(run, run.searched_paths(1, top=5))
    findings = check_certificate(certificate, run.model)
    assert [finding.name for finding in findings if not finding.holds] == []
