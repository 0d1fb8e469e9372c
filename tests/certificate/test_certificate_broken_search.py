"""A search that is wrong somewhere makes certificates that the check refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pathexpand.api import Run, SearchedPaths
from pathexpand.certificate import certify, check_certificate
from pathexpand.engine import energy, ranking, search
from pathexpand.engine.prompt_tree import PromptTree
from pathexpand.frozen import FrozenSum
from pathexpand.laws.design import Design, random_transformer
from pathexpand.laws.problems import random_model

Break = Callable[[pytest.MonkeyPatch], None]
SIZES: dict[str, Any] = {"n_heads": 2, "n_key_value_heads": 1, "d_mlp": 3}
DESIGNS = {
    "heads": Design(n_layers=3, n_heads=3, n_key_value_heads=3, d_mlp=0),
    "neurons": Design(**SIZES, mlp="neurons"),
    "whole": Design(**SIZES, mlp="frozen"),
    "post-norm": Design(**SIZES, mlp="neurons", norms=("ln1_after", "ln2_after")),
}


def scaled_bounds(patch: pytest.MonkeyPatch) -> None:
    right = PromptTree.bounds

    def wrong(*given: Any) -> Any:
        ask = right(*given)
        return lambda *asked: 0.3 * ask(*asked)

    patch.setattr(PromptTree, "bounds", wrong)


def pattern_squared(patch: pytest.MonkeyPatch) -> None:
    """A² in place of ρ|A|/t, as if intermediate positions were part of a path's name."""
    right = energy._weights
    patch.setattr(energy, "_weights", lambda *given, named: right(*given, named=True))


def forgotten_sources(forget: Callable[[str], bool]) -> Break:
    def break_it(patch: pytest.MonkeyPatch) -> None:
        right = energy.source_seed

        def wrong(frozen: FrozenSum, query: Any) -> Any:
            kept = tuple(each for each in frozen.sources if not forget(each.label))
            return right(replace(frozen, sources=kept), query)

        patch.setattr(energy, "source_seed", wrong)

    return break_it


def no_earlier_components(patch: pytest.MonkeyPatch) -> None:
    """Only sources, so that a suffix's longer continuations are forgotten."""
    patch.setattr(energy, "_through", lambda *given, **more: None)


def no_carries(patch: pytest.MonkeyPatch) -> None:
    """The norms that the stream passes are left out of the energies."""
    patch.setattr(energy, "_carried", lambda carry, energy: energy)


def gates_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(energy, "_through_neurons", lambda *given: None)
    patch.setattr(energy, "_through_mlp", lambda *given: None)


def one_stage_off(patch: pytest.MonkeyPatch) -> None:
    """Each stage is bounded by the kernels of the one before it of the same kind."""
    right = ranking.energies

    def wrong(frozen: FrozenSum, *given: Any, **more: Any) -> Any:
        kernels = list(right(frozen, *given, **more).kernels)
        kinds = [tuple(map(type, stage.groups)) for stage in frozen.stages]
        off = [max(n - kinds[0:1].count(kinds[n]), 0) for n in range(len(kinds))]
        off = [m if kinds[m] == kinds[n] else n for n, m in enumerate(off)]
        return energy.Energies(tuple(kernels[n] for n in off))

    patch.setattr(ranking, "energies", wrong)


def pruned(patch: pytest.MonkeyPatch) -> None:
    """Every third suffix is forgotten, and with it its bound."""
    right = search.TreeHunt._push

    def wrong(self: Any, stage: int, way: Any, nodes: Any, bounds: Any, keep: Any) -> None:
        third = np.arange(keep.size).reshape(keep.shape) % 3 == 0
        right(self, stage, way, nodes, bounds, keep & ~third)

    patch.setattr(search.TreeHunt, "_push", wrong)


def nothing_dropped(patch: pytest.MonkeyPatch) -> None:
    """The bound forgets what was never pushed, as if only the paths valued counted."""
    right = search.TreeHunt.found

    def wrong(self: Any, left: float) -> Any:
        self.dropped = 0.0
        return right(self, -1.0)

    patch.setattr(search.TreeHunt, "found", wrong)


def early_end(patch: pytest.MonkeyPatch) -> None:
    """Stopped after a few suffixes, and said to be complete."""
    right = search.search

    def wrong(*given: Any, **options: Any) -> Any:
        found = right(*given, **options | {"budget": search.Budget(nodes=2)})
        return replace(found, certified=True, bound=0.0)

    patch.setattr(ranking, "search", wrong)


# What is broken, and in which models that can be noticed.
BREAKS: dict[str, tuple[Break, tuple[str, ...]]] = {
    "scaled bounds": (scaled_bounds, tuple(DESIGNS)),
    "pattern squared": (pattern_squared, ("heads",)),
    "no embedding": (forgotten_sources(lambda label: label == "embed"), tuple(DESIGNS)),
    "no biases": (forgotten_sources(lambda label: label.endswith("bias")), tuple(DESIGNS)),
    "no earlier components": (no_earlier_components, tuple(DESIGNS)),
    "no norms of the stream": (no_carries, ("post-norm",)),
    "gates forgotten": (gates_forgotten, ("neurons", "whole")),
    "one stage off": (one_stage_off, ("heads",)),
    "pruned": (pruned, tuple(DESIGNS)),
    "nothing dropped": (nothing_dropped, tuple(DESIGNS)),
    "early end": (early_end, tuple(DESIGNS)),
}
CASES = [(name, model) for name, (_, models) in BREAKS.items() for model in models]


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


@pytest.mark.parametrize(("name", "model"), CASES, ids=str)
def test_a_broken_search_is_refused(name: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    false = refused = 0
    with monkeypatch.context() as patch:
        BREAKS[name][0](patch)
        for seed in range(15):
            run = random_transformer(DESIGNS[model], seed=seed).run([1, 2, 3, 4])
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
