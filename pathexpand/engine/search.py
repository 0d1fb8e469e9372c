"""Best-first search for the paths of largest size, with a bound on every path not visited."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pathexpand.engine.best import Best
from pathexpand.symbolic import Head, Network, Path
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
Word = tuple[Head, ...]
_BATCH = 64  # suffixes expanded together: products of matrices in place of vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop early: suffixes expanded, seconds, bytes held. None sets no limit."""

    nodes: int | None = None
    seconds: float | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands: suffixes expanded, paths valued, and the two sizes that must meet.

    `bound` is the largest size a path not yet visited can have, `cut` the smallest listed.
    """

    nodes: int
    visited: int
    bound: float
    cut: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Found:
    """The best paths found, and bounds on the size of every other path of the query.

    `bound` holds for unlisted paths of at most the order asked for, `longer_bound` for those
    above it (0 where there are none). `certified` says that no unlisted path within the order is
    larger than a listed one. `expanded` are the suffixes whose paths were valued and whose
    continuations were bounded, each as its heads from early to late.
    """

    paths: tuple[Path, ...]
    bound: float
    longer_bound: float
    certified: bool
    visited: int
    expanded: tuple[Word, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A suffix: its heads from early to late, the query's state behind them, what it carries.

    `boundary` is the number of layers still before it; `bound` holds for all its completions.
    """

    word: Word
    state: int
    boundary: int
    bound: float
    carried: Any


class Tree(Protocol):
    """What a search needs to know of the paths it searches."""

    network: Network

    def root(self) -> Any:
        """Give what the empty suffix carries."""

    def longer(self, carried: Any, head: Head) -> Any:
        """Give what a suffix carries with one more head in front."""

    def sizes(self, nodes: list[Node], source: str) -> Array:
        """Give the sizes of the paths that start at a source and go on with these suffixes."""

    def bounds(self, layer: int, nodes: list[Node]) -> Callable[[int, list[int], list[int]], Array]:
        """Prepare bounds for these suffixes continued by a layer's heads.

        The answer is asked with a query state, heads and suffixes by index: (head, suffix).
        """

    def size(self, path: Path) -> float:
        """Give the size of one path, worked out by itself."""


def search(
    tree: Tree,
    query: Query,
    *,
    top: int,
    max_order: int | None = None,
    budget: Budget | None = None,
    report: Callable[[Progress], None] | None = None,
) -> Found:
    """Find the `top` paths of largest size among those of a query.

    Stops when no path that is left can be among them, or when the budget is spent, or at Ctrl-C;
    what was found and the bound on what was not are valid in every case.
    """
    hunt = _Hunt(tree, query, top, max_order)
    start, left = time.monotonic(), hunt.left
    try:
        while (left := hunt.left) > hunt.best.cut and not hunt.spent(budget, start):
            hunt.expand(hunt.pop())
            if report is not None:
                report(hunt.progress(time.monotonic() - start))
    except KeyboardInterrupt:
        pass  # `left` bounds all that was not visited when the last batch was taken
    return hunt.found(left)


class _Hunt:
    """The state of a search: suffixes waiting, largest bound first, and the best paths so far."""

    def __init__(self, tree: Tree, query: Query, top: int, max_order: int | None) -> None:
        self.tree, self.query, self.top = tree, query, top
        self.best = Best(top)
        depth = len(tree.network.layers)
        self.max_order = depth if max_order is None else max_order
        self.longer_bound, self.dropped = 0.0, 0.0
        self.expanded: list[Word] = []
        self.held = 0
        # A number behind the bound makes the order of equals certain and nodes never compared.
        self.heap: list[tuple[float, int, Node, Head | None]] = []
        self._number = 0
        self._push(np.inf, Node((), query.start, depth, np.inf, tree.root()), None)
        for source in tree.network.sources:
            if source.boundary is None and source.label in query.stops(query.start):
                path = Path(source.label)
                self.best.offer(np.array([tree.size(path)]), lambda _, path=path: path)

    @property
    def left(self) -> float:
        """The bound on every path not visited; below 0 when there is none."""
        return -self.heap[0][0] if self.heap else -1.0

    def spent(self, budget: Budget | None, start: float) -> bool:
        if budget is None:
            return False
        return (
            (budget.nodes is not None and len(self.expanded) >= budget.nodes)
            or (budget.seconds is not None and time.monotonic() - start >= budget.seconds)
            or (budget.memory is not None and self.held + 250 * len(self.heap) >= budget.memory)
        )

    def progress(self, seconds: float) -> Progress:
        left = max(self.left, 0.0)
        return Progress(len(self.expanded), self.best.visited, left, self.best.cut, seconds)

    def pop(self) -> list[Node]:
        """Take the suffixes of largest bound, a few at first and then many at a time."""
        size = min(_BATCH, 1 + len(self.expanded) // 8)
        batch = []
        while self.heap and len(batch) < size and self.left > self.best.cut:
            bound, _, node, head = heapq.heappop(self.heap)
            if head is not None:
                state = self.query.step(node.state, head)
                carried = self.tree.longer(node.carried, head)
                assert state is not None  # a head that leads nowhere is never pushed
                node = Node((head, *node.word), state, head.layer, -bound, carried)
            batch.append(node)
        return sorted(batch, key=lambda node: -node.boundary)

    def expand(self, batch: list[Node]) -> None:
        """Value the paths that end at these suffixes, and bound each suffix one head longer."""
        for source in self.tree.network.sources:
            if source.boundary is None:
                continue
            stopping = [
                node
                for node in batch
                if node.boundary >= source.boundary and source.label in self.query.stops(node.state)
            ]
            if stopping:
                sizes = self.tree.sizes(stopping, source.label)
                self.best.offer(sizes, _path_at(source.label, stopping))
        for layer in reversed(range(batch[0].boundary)):
            self._continue(layer, [node for node in batch if node.boundary > layer])
        self.expanded += [node.word for node in batch]
        self.held += sum(_bytes(node.carried) for node in batch)

    def _continue(self, layer: int, nodes: list[Node]) -> None:
        heads = self.tree.network.layers[layer]
        ask = self.tree.bounds(layer, nodes)
        for state, which, some in self._groups(heads, nodes):
            bounds = np.minimum(ask(state, which, some), [nodes[n].bound for n in some])
            long = np.array([len(nodes[n].word) >= self.max_order for n in some])
            self.longer_bound = max(self.longer_bound, float(bounds[:, long].max(initial=0.0)))
            bounds = np.where(long, 0.0, bounds)  # (head, suffix)
            keep = bounds > self.best.cut
            self.dropped = max(self.dropped, float(bounds[~keep].max(initial=0.0)))
            for row, column in zip(*np.nonzero(keep), strict=True):
                self._push(float(bounds[row, column]), nodes[some[column]], heads[which[row]])

    def _groups(
        self, heads: tuple[Head, ...], nodes: list[Node]
    ) -> Iterator[tuple[int, list[int], list[int]]]:
        """Yield a state with the heads and suffixes, by index, that lead to it."""
        for before in sorted({node.state for node in nodes}):
            some = [n for n, node in enumerate(nodes) if node.state == before]
            after = [self.query.step(before, head) for head in heads]
            for state in sorted({each for each in after if each is not None}):
                yield state, [n for n, each in enumerate(after) if each == state], some

    def _push(self, bound: float, node: Node, head: Head | None) -> None:
        heapq.heappush(self.heap, (-bound, self._number, node, head))
        self._number += 1

    def found(self, left: float) -> Found:
        """Settle the best paths, each valued by itself."""
        settled = self.best.settle(self.tree.size)
        listed, rest = settled[: self.top], settled[self.top :]
        paths = [path for _, path in listed]
        certified = left <= self.best.cut
        if certified and len(paths) < self.top:
            paths = self._filled([path for size, path in listed if size > 0])
        return Found(
            paths=tuple(paths),
            bound=max(left, self.dropped, rest[0][0] if rest else 0.0),
            longer_bound=self.longer_bound,
            certified=certified,
            visited=self.best.visited,
            expanded=tuple(self.expanded),
        )

    def _filled(self, paths: list[Path]) -> list[Path]:
        """Fill free places with paths of value 0, which the search had no reason to visit."""
        known = set(paths)
        every = self.query.paths(max_order=self.max_order)
        zeros = (path for path in every if path not in known)
        return [*paths, *islice(zeros, self.top - len(paths))]


def _path_at(source: str, nodes: list[Node]) -> Callable[[int], Path]:
    return lambda n: Path(source, nodes[n].word)


def _bytes(carried: Any) -> int:
    return sum(array.nbytes for array in carried)
