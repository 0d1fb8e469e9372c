"""Totals and remainders within a query are the sums of the paths that it matches."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from pathexpand.engine.remainder import remainder
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.total import component_totals, frozen_streams, pair_totals, totals
from pathexpand.engine.value import path_value_by_token
from pathexpand.symbolic import Head, Path
from tests.search.problems import Problem, Truth, random_problem, sized_streams, truths

SEEDS = range(300)


def total_faults(problem: Problem, truth: dict[Path, Truth]) -> list[str]:
    """Name the sums that are not those of the paths, each evaluated by itself."""
    frozen, readout, query = problem.frozen, problem.readout, problem.query
    slack = 2 * sum(each.rounding for each in truth.values())
    slack += 2 * gamma(len(truth) + 9) * sum(abs(each.value) for each in truth.values())

    def differs(got: float, paths: Iterable[Path]) -> bool:
        return not abs(got - math.fsum(truth[path].value for path in paths)) <= slack

    asked = [path for path in truth if query.matches(path)]
    found = totals(frozen, readout, query)
    wrong = ["sum"] if differs(found.sum(), asked) else []
    for order, value in enumerate(found.by_order()):
        wrong += ["order"] if differs(value, (p for p in asked if p.order == order)) else []
    for source, value in found.by_source().items():
        wrong += ["source"] if differs(value, (p for p in asked if p.source == source)) else []
    split = sum(
        (path_value_by_token(frozen, readout, path) for path in asked),
        np.zeros(frozen.positions),
    )
    wrong += ["token"] if not np.all(abs(found.by_token() - split) <= slack) else []
    for each, value in component_totals(frozen, readout).items():
        wrong += ["component"] if differs(value, (p for p in truth if each in p.components)) else []
    for pair, value in pair_totals(frozen, readout).items():
        through = (p for p in truth if set(pair) <= set(p.components))
        wrong += ["pair"] if differs(value, through) else []
    for some in (asked[::2], asked[1::3], asked):
        rest = remainder(frozen, readout, some, query=query, measured=True)
        left = [path for path in asked if path not in set(some)]
        wrong += ["remainder count"] if rest.count != len(left) else []
        own = sum(truth[path].rounding for path in truth) + rest.rounding
        own += gamma(len(left) + 2) * sum(abs(truth[path].value) for path in left)
        exact = math.fsum(truth[path].value for path in left)
        wrong += ["remainder"] if not abs(rest.value - exact) <= own else []
    return wrong


@pytest.mark.parametrize("part", range(3))
def test_totals_are_sums_of_paths(part: int) -> None:
    for seed in SEEDS[part::3]:
        problem = random_problem(seed)
        if problem.frozen.network().count() > 400:
            continue
        truth = truths(problem.frozen, problem.readout)
        assert not total_faults(problem, truth), f"problem {seed}"


def test_components_and_pairs_of_heads_are_all_there_in_order() -> None:
    for problem in map(random_problem, range(40)):
        every = list(problem.frozen.network().components)
        assert list(component_totals(problem.frozen, problem.readout)) == every
        heads = [each for each in every if isinstance(each, Head)]
        pairs = [(one, other) for one in heads for other in heads if one.layer < other.layer]
        assert list(pair_totals(problem.frozen, problem.readout)) == pairs


def test_the_frozen_sum_makes_its_streams() -> None:
    for problem in map(random_problem, range(100)):
        frozen = problem.frozen
        found = zip(frozen_streams(frozen), sized_streams(frozen), strict=True)
        for boundary, (mine, (stream, size)) in enumerate(found):
            steps = 3 * (boundary + 1) * (frozen.positions + 2 * stream.shape[1] + 15)
            assert np.all(abs(mine - stream) <= 2 * gamma(steps) * size + TINY)
