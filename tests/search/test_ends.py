"""How a search ends: zeros, what overflowed, and what its listeners see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pathexpand.engine.best import Best
from pathexpand.engine.energy import energies
from pathexpand.engine.search import Node, rest_energy, root_bound, search
from pathexpand.engine.value import Readout
from pathexpand.engine.ways import Way, ways
from pathexpand.frozen import FrozenSource, FrozenStage, HeadGroup
from pathexpand.symbolic import Component, Head, Network, Path
from pathexpand.symbolic.query import everything
from tests.search.problems import Problem, made, random_problem, suffix_bound, tree_of

Array = np.ndarray[Any, Any]


class Rounded:
    """A tree whose every path is 0 as far as can be told, and whose second head may be worth 1."""

    def __init__(self, size: float = 0.0) -> None:
        self.network, self.value = Network.attention_only(1, 2), size
        group = HeadGroup((Head(0, 0), Head(0, 1)), *np.zeros((3, 2, 1, 1)))
        sources = [FrozenSource("embed", 0, np.zeros((1, 1)))]
        frozen = made(sources, [FrozenStage((group,))], free=False)
        self._ways = list(ways(frozen, everything(self.network), 0))

    def root(self) -> None:
        return None

    def longer(self, carried: None, component: Component) -> None:
        return None

    def sizes(self, nodes: list[Node], source: str) -> Array:
        return np.full(len(nodes), self.value)

    def rounding(self, nodes: list[Node], source: str) -> Array:
        return np.array([0.75 * bool(node.word) for node in nodes])

    def ways(self, stage: int) -> list[Way]:
        return self._ways

    def bounds(self, stage: int, nodes: list[Node]) -> Callable[[Way, list[int]], Array]:
        return lambda way, some: np.array([[0.0], [1.0]]).repeat(len(some), axis=1)

    def size(self, path: Path) -> float:
        return self.value

    def bytes(self, carried: None) -> int:
        return 0


def test_a_zero_that_gave_up_its_place_is_still_bounded() -> None:
    """L0H1 was visited and is 0 by rounding alone; L0H0, never visited, comes before it."""
    tree = Rounded()
    found = search(tree, everything(tree.network), top=2)
    assert [str(path) for path in found.paths] == ["embed", "embed > L0H0"]
    assert (found.certified, found.bound) == (True, 0.75)


@pytest.mark.parametrize("top", [0, 1, 5])
def test_what_is_no_number_is_bounded_by_nothing(top: int) -> None:
    tree = Rounded(np.nan)
    query = everything(tree.network)
    assert root_bound(tree, query) == rest_energy(tree, query, ()) == np.inf
    assert search(tree, query, top=top).bound == np.inf
    best = Best(3)
    best.offer(np.array([1.0, np.nan, 2.0]), lambda n: Path("embed", (Head(n, 0),)))
    assert (best.passed, best.cut) == (np.inf, 0.0)


def test_listeners_are_heard_with_their_own_error_handling() -> None:
    problem = random_problem(3)
    mine, heard = np.geterr(), []
    problem.rank(report=lambda progress: heard.append((progress.prepared, np.geterr())))
    assert {part for part, _ in heard} > {1.0}
    assert all(theirs == mine for _, theirs in heard)


def test_positions_where_nothing_stands_loosen_no_bound() -> None:
    """The one prefix is of size 1e-6, at one of two positions that heads look at alike."""
    half, one = np.full((1, 2, 2), 0.5), np.ones((1, 1, 1))
    stages = [FrozenStage((HeadGroup((Head(n, 0),), half, one, one),)) for n in range(2)]
    source = FrozenSource("embed", 0, np.array([[0.0], [1e-6]]))
    frozen = made([source], stages, free=False)
    query = everything(frozen.network())
    problem = Problem(frozen, Readout(1, np.ones(1), 0), query, 1, None)
    bound = suffix_bound(tree_of(problem, frozen, query), (Head(1, 0),))
    assert np.hypot(0.5e-6, 0.5e-6) <= bound < 1.5e-6
    assert energies(frozen, query).bytes > 0
