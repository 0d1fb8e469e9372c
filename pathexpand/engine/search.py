"""Best-first search for the paths of largest size, with a bound on every path not visited."""

from __future__ import annotations

import heapq
import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pathexpand.engine.best import Best
from pathexpand.engine.rounding import TINY
from pathexpand.errors import PathExpandError
from pathexpand.model.shown import shown
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
    memory: float | None = None

    def __post_init__(self) -> None:
        """Refuse a limit below 0, or one that is no number; numpy's numbers become plain ones."""
        for name in ("nodes", "seconds", "memory"):
            limit: Any = getattr(self, name)
            if limit is None:
                continue
            wanted = None
            if isinstance(limit, bool | np.bool_) or not isinstance(limit, Real):
                wanted = "a number of at least 0, or None"
            elif not operator.ge(limit, 0):
                wanted = "at least 0"
            elif name == "nodes" and not isinstance(limit, Integral):
                wanted = "a whole number of at least 0, or None"
            if wanted:
                raise PathExpandError(f"budget {name}", wanted=wanted, got=shown(limit))
            plain = limit.item() if isinstance(limit, np.generic) else limit
            object.__setattr__(self, name, plain)


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

    def rounding(self, nodes: list[Node], source: str) -> Array:
        """Bound what float64 can have taken from each of these sizes, or added to it."""

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


class Hunt:
    """What every search for the largest paths of a query keeps, and how it ends.

    `dropped` bounds the continuations that were given up, `longer_bound` those that were too long
    to be taken up.
    """

    def __init__(self, query: Query, top: int, max_order: int) -> None:
        """Start with nothing found."""
        self.query, self.top, self.max_order = query, top, max_order
        self.best = Best(top)
        self.longer_bound, self.dropped = 0.0, 0.0
        self.expanded: list[Word] = []

    def settle(self, left: float, size: Callable[[Path], float]) -> Found:
        """Rank the best paths by their own sizes; `left` bounds what still waits."""
        settled = self.best.settle(size)
        listed, rest = settled[: self.top], settled[self.top :]
        unlisted = [self.best.most(found, path) for found, path in rest]
        paths = [path for _, path in listed]
        certified = left <= self.best.cut
        longer = self.max_order + 1 < len(self.query.count_by_order())
        if certified and self.best.cut == 0:
            paths = self._filled([path for found, path in listed if found > 0])
        return Found(
            paths=tuple(paths),
            bound=max(left, self.dropped, self.best.passed, *unlisted),
            # What was not expanded may go on with any number of heads.
            longer_bound=max(self.longer_bound, left, self.dropped) if longer else 0.0,
            certified=certified,
            visited=self.best.visited,
            expanded=tuple(self.expanded),
        )

    def _filled(self, paths: list[Path]) -> list[Path]:
        """Fill free places with paths of size 0, which the search had no reason to visit."""
        known = set(paths)
        every = self.query.paths(max_order=self.max_order)
        zeros = (path for path in every if path not in known)
        return [*paths, *islice(zeros, self.top - len(paths))]


class _Hunt(Hunt):
    """The state of a search: suffixes waiting, largest bound first, and the best paths so far."""

    def __init__(self, tree: Tree, query: Query, top: int, max_order: int | None) -> None:
        depth = len(tree.network.layers)
        super().__init__(query, top, depth if max_order is None else max_order)
        self.tree = tree
        self.held = 0
        # A number behind the bound makes the order of equals certain and nodes never compared.
        self.heap: list[tuple[float, int, Node, Head | None]] = []
        self._number = 0
        every = root_bound(tree, query)
        self._push(every, Node((), query.start, depth, every, tree.root()), None)
        for source in tree.network.sources:
            if source.boundary is None and source.label in query.stops(query.start):
                path = Path(source.label)
                self.best.offer(np.array([tree.size(path)]), partial(_only, path))

    @property
    def left(self) -> float:
        """The bound on every path not visited; below 0 when there is none."""
        return -self.heap[0][0] if self.heap else -1.0

    def spent(self, budget: Budget | None, start: float) -> bool:
        if budget is None:
            return False
        held = self.held + 900 * len(self.expanded) + 400 * len(self.heap)
        return (
            (budget.nodes is not None and len(self.expanded) >= budget.nodes)
            or (budget.seconds is not None and time.monotonic() - start >= budget.seconds)
            or (budget.memory is not None and held >= budget.memory)
        )

    def progress(self, seconds: float) -> Progress:
        left = max(self.left, 0.0)
        return Progress(len(self.expanded), self.best.visited, left, self.best.cut, seconds)

    def pop(self) -> list[Node]:
        """Take the suffixes of largest bound, a few at first and then many at a time."""
        size = min(_BATCH, 1 + len(self.expanded) // 8)
        batch: list[Node] = []
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
                lost = self.tree.rounding(stopping, source.label)
                self.best.offer(sizes, _path_at(source.label, stopping), lost)
        for layer in reversed(range(batch[0].boundary)):
            self._continue(layer, [node for node in batch if node.boundary > layer])
        self.expanded += [node.word for node in batch]
        self.held += sum(_bytes(node.carried) for node in batch)

    def _continue(self, layer: int, nodes: list[Node]) -> None:
        heads = self.tree.network.layers[layer]
        ask = self.tree.bounds(layer, nodes)
        for state, which, some in _groups(self.query, heads, nodes):
            bounds = np.minimum(ask(state, which, some), [nodes[n].bound for n in some])
            long = np.array([len(nodes[n].word) >= self.max_order for n in some])
            self.longer_bound = max(self.longer_bound, float(bounds[:, long].max(initial=0.0)))
            bounds = np.where(long, 0.0, bounds)  # (head, suffix)
            keep = bounds > self.best.cut
            self.dropped = max(self.dropped, float(bounds[~keep].max(initial=0.0)))
            for row, column in zip(*np.nonzero(keep), strict=True):
                self._push(float(bounds[row, column]), nodes[some[column]], heads[which[row]])

    def _push(self, bound: float, node: Node, head: Head | None) -> None:
        heapq.heappush(self.heap, (-bound, self._number, node, head))
        self._number += 1

    def found(self, left: float) -> Found:
        """Settle the best paths, each valued by itself."""
        return self.settle(left, self.tree.size)


@np.errstate(over="ignore", under="ignore")
def rest_energy(tree: Tree, query: Query, paths: Iterable[Path]) -> float:
    """Bound Σ size² over the paths of a query that are not among `paths`.

    Exact where the tree's bounds are. What leaves the tree of listed suffixes is bounded head by
    head, what stops at them is valued.
    """
    rest = np.array(_rest(tree, query, paths))
    return float((rest**2).sum() + TINY * rest.any())


def root_bound(tree: Tree, query: Query) -> float:
    """Bound the size of every path of a query."""
    return math.hypot(*_rest(tree, query, ()))


def _rest(tree: Tree, query: Query, paths: Iterable[Path]) -> list[float]:
    """Give sizes whose squares bound Σ size² over the paths of a query not among `paths`."""
    listed = set(paths)
    words: dict[Word, Node] = {}
    root = Node((), query.start, len(tree.network.layers), np.inf, tree.root())
    words[()] = root
    for path in sorted(listed):
        node = root
        for head in reversed(path.components):
            word = (head, *node.word)
            if word not in words:
                state = query.step(node.state, head)
                assert state is not None  # a listed path matches the query
                carried = tree.longer(node.carried, head)
                words[word] = Node(word, state, head.layer, np.inf, carried)
            node = words[word]
    sizes = [
        tree.size(Path(source.label))
        for source in tree.network.sources
        if source.boundary is None
        and source.label in query.stops(query.start)
        and Path(source.label) not in listed
    ]
    nodes = sorted(words.values(), key=lambda node: -node.boundary)
    return [*sizes, *_stopping(tree, query, nodes, listed), *_leaving(tree, query, words)]


def _stopping(tree: Tree, query: Query, nodes: list[Node], listed: set[Path]) -> Iterator[float]:
    for source in tree.network.sources:
        left = [
            node
            for node in nodes
            if source.boundary is not None
            and node.boundary >= source.boundary
            and source.label in query.stops(node.state)
            and Path(source.label, node.word) not in listed
        ]
        if left:
            yield from map(
                float, tree.sizes(left, source.label) + tree.rounding(left, source.label)
            )


def _leaving(tree: Tree, query: Query, words: dict[Word, Node]) -> Iterator[float]:
    for layer, heads in enumerate(tree.network.layers):
        nodes = [node for node in words.values() if node.boundary > layer]
        ask = tree.bounds(layer, nodes)
        for state, which, some in _groups(query, heads, nodes):
            bounds = ask(state, which, some)  # (head, suffix)
            for row, column in np.ndindex(bounds.shape):
                if (heads[which[row]], *nodes[some[column]].word) not in words:
                    yield float(bounds[row, column])


def _groups(
    query: Query, heads: tuple[Head, ...], nodes: list[Node]
) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield a state with the heads and suffixes, by index, that lead to it."""
    for before in sorted({node.state for node in nodes}):
        some = [n for n, node in enumerate(nodes) if node.state == before]
        after = [query.step(before, head) for head in heads]
        for state in sorted({each for each in after if each is not None}):
            yield state, [n for n, each in enumerate(after) if each == state], some


def _only(path: Path, _: int) -> Path:
    return path


def _path_at(source: str, nodes: list[Node]) -> Callable[[int], Path]:
    return lambda n: Path(source, nodes[n].word)


def _bytes(carried: Any) -> int:
    return sum(getattr(each, "nbytes", 0) for each in carried)
