"""Rank paths by valuing every one of them, where that is cheaper than proving what to leave out.

The energies that a search needs cost the same however few paths there are. So a short list of
possible paths (few layers, or a low order) is simply gone through; nothing is known of longer ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import numpy as np
import numpy.typing as npt

from pathexpand.engine.best import Best
from pathexpand.engine.prompt_tree import PromptTree
from pathexpand.engine.rounding import TINY
from pathexpand.engine.search import Budget, Found, Hunt, Node, Progress
from pathexpand.frozen import FrozenSum, HeadGroup, NeuronGroup
from pathexpand.symbolic import Path
from pathexpand.symbolic.query import Query

_MOST = 50_000  # paths that are gone through one suffix at a time
_WORTH = 1e9  # operations of an energy pass below which it is not worth avoiding
_BATCH = 128  # suffixes valued together


def is_shorter(frozen: FrozenSum, query: Query, max_order: int | None) -> bool:
    """Say whether going through all paths takes less work than the energies of a search."""
    orders = query.count_by_order()
    paths = sum(orders if max_order is None else orders[: max_order + 1])
    if paths > _MOST or not frozen.stages:
        return False
    energies, step = 0.0, 0.0
    for stage in frozen.stages:
        for group in stage.groups:
            d_model = frozen.sources[0].values.shape[1]
            width, own = d_model, 4.0 * d_model * d_model
            if isinstance(group, HeadGroup):
                width, own = group.values.shape[1], 4.0 * d_model * group.W_V.shape[2]
            elif isinstance(group, NeuronGroup):
                width, own = len(group.components), 4.0 * d_model
            energies += 4.0 * frozen.positions * d_model**2 * width
            step = max(step, own + 2.0 * frozen.positions**2)
    return energies > _WORTH and 4 * paths * step < energies


def list_all(
    tree: PromptTree,
    query: Query,
    *,
    top: int,
    max_order: int | None = None,
    budget: Budget | None = None,
    report: Callable[[Progress], None] | None = None,
) -> tuple[Found, float | None]:
    """Value every path of a query within an order, and rank them.

    Gives what was found, and Σ size² over the unlisted paths if none was left out. Stopped by the
    budget or Ctrl-C, it knows no bound.
    """
    hunt = _Everything(tree, query, top, max_order)
    start, whole = time.monotonic(), False
    with suppress(KeyboardInterrupt):
        whole = hunt.run(budget or Budget(), start, report)
    found = hunt.settle(-1.0 if whole else np.inf, tree.size)
    return found, hunt.energy(found) if whole and not hunt.has_longer else None


class _Everything(Hunt):
    """Goes through all suffixes, fewest components first."""

    def __init__(self, tree: PromptTree, query: Query, top: int, max_order: int | None) -> None:
        super().__init__(query, Best(top), tree.network.depth if max_order is None else max_order)
        self.tree = tree
        self.sizes: list[tuple[npt.NDArray[np.float64], Callable[[int], Path]]] = []
        self.has_longer = self.max_order + 1 < len(query.count_by_order())
        # Paths above the order are not looked at, so there is no bound on them.
        self.longer_bound = np.inf if self.has_longer else 0.0

    def run(self, budget: Budget, start: float, report: Callable[[Progress], None] | None) -> bool:
        """Value all paths; say whether none was left out."""
        depth = self.tree.network.depth
        nodes = [Node((), self.query.start, depth, np.inf, self.tree.root())]
        for label in self.query.stops(self.query.start) - set(self.tree.sources):
            self._take(np.array([self.tree.size(Path(label))]), np.zeros(1), partial(_only, label))
        while nodes:
            longer: list[Node] = []
            for at in range(0, len(nodes), _BATCH):
                seconds = time.monotonic() - start
                if self._spent(budget, seconds):
                    return False
                self._value(nodes[at : at + _BATCH])
                longer += self._longer(nodes[at : at + _BATCH])
                if report is not None:
                    report(Progress(len(self.expanded), self.best.visited, np.inf, 0.0, seconds))
            nodes = longer
        return True

    def energy(self, found: Found) -> float:
        """Sum size² over the paths that are not listed, rounding included."""
        listed = set(found.paths)
        left = [
            size
            for sizes, path_at in self.sizes
            for n, size in enumerate(sizes.tolist())
            if path_at(n) not in listed
        ]
        total = float(sum(size * size for size in left) + TINY * any(left))
        return np.inf if np.isnan(total) else total

    def _spent(self, budget: Budget, seconds: float) -> bool:
        held = 1000 * len(self.expanded)
        return (
            (budget.nodes is not None and len(self.expanded) >= budget.nodes)
            or (budget.seconds is not None and seconds >= budget.seconds)
            or (budget.memory is not None and held >= budget.memory)
        )

    def _value(self, nodes: list[Node]) -> None:
        for source in self.tree.network.sources:
            some = [
                node
                for node in nodes
                if source.boundary is not None
                and node.boundary >= source.boundary
                and source.label in self.query.stops(node.state)
            ]
            if some:
                sizes, lost = (
                    self.tree.sizes(some, source.label),
                    self.tree.rounding(some, source.label),
                )
                self._take(sizes, lost, partial(_path, source.label, some))
        self.expanded += [node.word for node in nodes]

    def _take(
        self,
        sizes: npt.NDArray[np.float64],
        lost: npt.NDArray[np.float64],
        path_at: Callable[[int], Path],
    ) -> None:
        self.best.offer(sizes, path_at, lost)
        self.sizes.append((sizes + lost, path_at))

    def _longer(self, nodes: list[Node]) -> Iterator[Node]:
        for node in nodes:
            if len(node.word) >= self.max_order:
                continue
            for stage in range(node.boundary):
                for way in self.tree.ways(stage):
                    if way.before != node.state:
                        continue
                    every = range(len(way.group.components)) if way.which is None else way.which
                    for index in every:
                        component = way.group.components[index]
                        carried = self.tree.longer(node.carried, component)
                        word = (component, *node.word)
                        yield Node(word, way.after, stage, np.inf, carried)


def _only(label: str, _: int) -> Path:
    return Path(label)


def _path(label: str, nodes: list[Node], number: int) -> Path:
    return Path(label, nodes[number].word)
