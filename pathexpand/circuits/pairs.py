"""The pairs of paths that an attention score is largest in, with a bound on every other pair.

Query paths come in falling order of a size that bounds all their pairs (`leg_tree`). For each, the
key paths are searched with the query's vector as readout, and only for pairs above what is already
listed. It ends when the next query path cannot bring a pair that is larger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from pathexpand.circuits.leg_tree import LegTree, gram_bound, leg_energies, root_of
from pathexpand.circuits.legs import Leg
from pathexpand.engine.descending import Descending, Sized
from pathexpand.engine.prompt_tree import PromptTree
from pathexpand.engine.search import Budget, Progress, search
from pathexpand.engine.value import path_value
from pathexpand.symbolic import Head, Path
from pathexpand.symbolic.query import Query

_NEAR = 1 - 1e-9  # pairs this near to the last place stay until each is valued by itself


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A path to the query and a path to the key.

    >>> pair = Pair(Path.parse("embed"), Path.parse("embed > L0H1"))
    >>> pair.composition
    'K'
    """

    query: Path
    key: Path

    @property
    def composition(self) -> str:
        """Which sides pass through a component before this head: none, Q, K or both."""
        sides = ("Q" if self.query.order else "") + ("K" if self.key.order else "")
        return {"": "none", "QK": "both"}.get(sides, sides)


@dataclass(frozen=True, slots=True)
class FoundPairs:
    """The largest pairs, each with its value, and a bound on every other.

    `visited` counts the pairs that were valued, `expanded` the query paths whose key paths were
    searched.
    """

    pairs: tuple[tuple[Pair, float], ...]
    bound: float
    certified: bool
    visited: int
    expanded: int


def search_pairs(
    query: Leg,
    key: Leg,
    head: Head,
    *,
    top: int,
    budget: Budget | None = None,
    report: Callable[[Progress], None] | None = None,
) -> FoundPairs:
    """Find the `top` pairs of largest |value|; equal ones stand in the order of their paths.

    Stopped by a budget or Ctrl-C, it still gives what it found and a bound that holds.
    """
    state = _State(top, Budget.given(budget), time.monotonic())
    if not top:
        return state.found(query, key, np.inf)
    bound = np.inf
    try:
        asked, energy = leg_energies(key)
        keys = PromptTree(key.frozen, key.readout(np.zeros(key.constant.size)), asked, energy)
        own, own_energy = leg_energies(query)
        tree = LegTree(query, root_of(gram_bound(key, head)), own, own_energy)
        stream = Descending(tree, own, lambda: state.cut)
        bound = stream.bound
        for sized in _steps(stream, state, report):
            bound = stream.bound
            if sized is not None:
                bound = max(bound, sized.most)
                state.take(sized, query, key, keys, asked)
                bound = stream.bound
    except KeyboardInterrupt:
        pass  # `bound` covers the query path that was being looked at
    return state.found(query, key, bound)


def _steps(
    stream: Descending, state: _State, report: Callable[[Progress], None] | None
) -> Iterator[Sized | None]:
    while not stream.is_over and not state.is_spent(stream.nodes):
        yield stream.step()
        if report is not None:
            left = max(stream.bound, state.bound)
            nodes = stream.nodes + state.nodes
            report(Progress(nodes, state.visited, left, state.cut, state.seconds))


@dataclass(slots=True)
class _State:
    """The best pairs so far; `bound` covers the pairs that were looked at and are not kept."""

    top: int
    budget: Budget
    start: float
    kept: list[tuple[float, Pair]] = field(default_factory=list)
    bound: float = 0.0
    visited: int = 0
    nodes: int = 0
    expanded: int = 0

    @property
    def seconds(self) -> float:
        """The time that was taken."""
        return time.monotonic() - self.start

    @property
    def cut(self) -> float:
        """The size below which a pair cannot be listed any more; 0 while places are free."""
        return self.kept[self.top - 1][0] * _NEAR if len(self.kept) >= self.top else 0.0

    def is_spent(self, nodes: int) -> bool:
        """Say whether the budget is used up."""
        limit = self.budget
        return (
            (limit.nodes is not None and nodes + self.nodes >= limit.nodes)
            or (limit.seconds is not None and self.seconds >= limit.seconds)
            or (limit.memory is not None and 2000.0 * (nodes + self.nodes) >= limit.memory)
        )

    def take(self, sized: Sized, query: Leg, key: Leg, keys: PromptTree, asked: Query) -> None:
        """Search the key paths of one query path."""
        tree = keys.reading(key.readout(query.vector(sized.path)))
        left = self.budget
        if left.seconds is not None:
            left = replace(left, seconds=max(left.seconds - self.seconds, 0.0))
        if left.nodes is not None:
            left = replace(left, nodes=max(left.nodes - self.nodes, 0))
        found = search(tree, asked, top=self.top, budget=left, floor=self.cut)
        self.nodes += len(found.expanded)
        self.visited += found.visited
        self.expanded += 1
        # What rounding took from the query's vector it can have taken from each of its pairs.
        if len(found.paths) < asked.count():
            self.bound = max(self.bound, found.bound + sized.lost)
        sizes = [abs(path_value(tree.frozen, tree.readout, path)) for path in found.paths]
        fresh = [
            (float(size), Pair(sized.path, path))
            for size, path in zip(sizes, found.paths, strict=True)
        ]
        self.kept = sorted([*self.kept, *fresh], key=lambda entry: (-entry[0], entry[1]))
        near = self.cut
        rest = self.kept[self.top :]
        self.kept = self.kept[: self.top] + [entry for entry in rest if entry[0] > near > 0]
        self.bound = max(self.bound, *(s + sized.lost for s, _ in rest if not s > near > 0), 0.0)
        if found.interrupted:
            raise KeyboardInterrupt  # it ends the search among query paths, too

    def found(self, query: Leg, key: Leg, ahead: float) -> FoundPairs:
        """Give what was found; `ahead` bounds the pairs of query paths not looked at."""
        listed = self.kept[: self.top]
        unlisted = max((size for size, _ in self.kept[self.top :]), default=0.0)
        pairs = tuple((pair, pair_value(query, key, pair)) for _, pair in listed)
        bound = max(self.bound, ahead, unlisted)
        last = listed[-1][0] if len(listed) >= self.top and listed else 0.0
        return FoundPairs(
            pairs=pairs,
            bound=float(bound),
            certified=bool(bound <= last * (1 + 1e-9) or bound == 0) if self.top else False,
            visited=self.visited,
            expanded=self.expanded,
        )


def pair_value(query: Leg, key: Leg, pair: Pair) -> float:
    """Give the value of one pair.

    The query's path is worked forward, the key's back from the readout that it makes.
    """
    return float(path_value(key.frozen, key.readout(query.vector(pair.query)), pair.key))
