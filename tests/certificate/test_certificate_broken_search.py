"""A search that is wrong somewhere makes certificates that the check refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pathexpand.api import Run, SearchedPaths
from pathexpand.certificate import certify, check_certificate
from pathexpand.engine import energy, ranking, search
from pathexpand.laws.problems import random_model

Break = Callable[[pytest.MonkeyPatch], None]


def scaled_bounds(patch: pytest.MonkeyPatch) -> None:
    right = energy.Energies.bound
    patch.setattr(energy.Energies, "bound", lambda *given: 0.3 * right(*given))


def pattern_squared(patch: pytest.MonkeyPatch) -> None:
    """A² in place of ρ|A|, as if intermediate positions were part of a path's name."""
    patch.setattr(energy, "_weights", lambda patterns, named: abs(patterns) ** 2)


def no_first_source(patch: pytest.MonkeyPatch) -> None:
    right = energy._from_sources

    def wrong(frozen: Any, index: int, stops: frozenset[str]) -> Any:
        return right(frozen, index, stops - {"embed"})

    patch.setattr(energy, "_from_sources", wrong)


def no_bias_source(patch: pytest.MonkeyPatch) -> None:
    right = energy._from_sources

    def wrong(frozen: Any, index: int, stops: frozenset[str]) -> Any:
        return right(frozen, index, stops - {"L0bias", "L1bias", "L2bias"})

    patch.setattr(energy, "_from_sources", wrong)


def no_earlier_heads(patch: pytest.MonkeyPatch) -> None:
    """Only sources, so that a suffix's longer continuations are forgotten."""
    patch.setattr(energy, "_bring", lambda *given, **more: None)


def one_layer_off(patch: pytest.MonkeyPatch) -> None:
    right = energy.Energies.bound

    def wrong(self: Any, layer: int, *given: Any) -> Any:
        return right(self, max(layer - 1, 0), *given)

    patch.setattr(energy.Energies, "bound", wrong)


def pruned(patch: pytest.MonkeyPatch) -> None:
    """Every third suffix is forgotten, and with it its bound."""
    right = search._Hunt._push

    def wrong(self: Any, bound: float, node: Any, head: Any) -> None:
        self._number += 1
        if head is None or self._number % 3:
            right(self, bound, node, head)

    patch.setattr(search._Hunt, "_push", wrong)


def nothing_dropped(patch: pytest.MonkeyPatch) -> None:
    """The bound forgets what was never pushed, as if only the paths valued counted."""
    right = search._Hunt.found

    def wrong(self: Any, left: float) -> Any:
        self.dropped = 0.0
        return right(self, -1.0)

    patch.setattr(search._Hunt, "found", wrong)


def early_end(patch: pytest.MonkeyPatch) -> None:
    """Stopped after a few suffixes, and said to be complete."""
    right = search.search

    def wrong(*given: Any, **options: Any) -> Any:
        found = right(*given, **options | {"budget": search.Budget(nodes=2)})
        return replace(found, certified=True, bound=0.0)

    patch.setattr(ranking, "search", wrong)


BREAKS: tuple[Break, ...] = (
    scaled_bounds,
    pattern_squared,
    no_first_source,
    no_bias_source,
    no_earlier_heads,
    one_layer_off,
    pruned,
    nothing_dropped,
    early_end,
)


def is_false(run: Run, searched: SearchedPaths) -> bool:
    """Say whether an unlisted path is above the bound, or above a row of a certified table."""
    table = searched.table
    listed = {row.path for row in table}
    largest = max(
        (
            abs(run.value(path, searched.target, position=table.position))
            for path in run.model.network.paths()
            if str(path) not in listed
        ),
        default=0.0,
    )
    last = min(abs(row.value) for row in table)
    claimed = min(table.bound or 0.0, last) if table.certified else table.bound or 0.0
    return largest > claimed * (1 + 1e-9)


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda each: each.__name__)
def test_a_broken_search_is_refused(break_it: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    false = refused = 0
    with monkeypatch.context() as patch:
        break_it(patch)
        for seed in range(25):
            run = random_model(seed=seed, n_layers=3, n_heads=3).run([1, 2, 3, 4])
            searched = run.searched_paths(2, top=3)
            findings = check_certificate(certify(run, searched), run.model)
            passed = all(finding.holds for finding in findings)
            assert not (passed and is_false(run, searched)), seed
            false += is_false(run, searched)
            refused += not passed
    assert refused >= max(1, false)


def test_a_wrong_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ranking.path_value_by_token
    monkeypatch.setattr(ranking, "path_value_by_token", lambda *given: right(*given) * 1.0000001)
    run = random_model(seed=1, n_layers=3).run([1, 2, 3, 4])
    findings = check_certificate(certify(run, run.searched_paths(2)), run.model)
    assert "values" in [finding.name for finding in findings if not finding.holds]


def test_a_wrong_remainder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ranking.remainder

    def wrong(*given: Any, **more: Any) -> Any:
        found = right(*given, **more)
        return replace(found, value=found.value * 1.000001, rounding=1.0)

    monkeypatch.setattr(ranking, "remainder", wrong)
    run = random_model(seed=1, n_layers=3).run([1, 2, 3, 4])
    findings = check_certificate(certify(run, run.searched_paths(2)), run.model)
    assert "sums" in [finding.name for finding in findings if not finding.holds]
