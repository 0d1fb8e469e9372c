"""Best-first search for the paths of largest size, with a bound on every path not visited."""

from __future__ import annotations

import heapq
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

from pathexpand.engine.best import Best, ranked
from pathexpand.engine.rounding import TINY
from pathexpand.engine.ways import Way
from pathexpand.errors import PathExpandError
from pathexpand.model.shown import shown
from pathexpand.symbolic import Component, Network, Path
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
Word = tuple[Component, ...]
_BATCH = 128  # suffixes expanded together: products of matrices in place of vectors


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

    @classmethod
    def given(cls, budget: Budget | None) -> Budget:
        """Give a budget, one without limits for None; refuse what is none.

        >>> Budget.given(None)
        Budget(nodes=None, seconds=None, memory=None)
        """
        if budget is not None and not isinstance(budget, Budget):
            wanted = "a Budget, such as Budget(seconds=10), or None"
            raise PathExpandError("budget", wanted=wanted, got=shown(budget))
        return budget or cls()


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands: suffixes expanded, paths valued, and the two sizes that must meet.

    `bound` is the largest size a path not yet visited can have, `cut` the smallest listed.
    `prepared` is the part of the energies that is worked out; the search begins when all are.
    """

    nodes: int
    visited: int
    bound: float
    cut: float
    seconds: float
    prepared: float = 1.0

    def words(self) -> tuple[str, float | None]:
        """Say it to somebody who waits, and what part is done, where that can be known.

        >>> Progress(0, 0, 0.0, 0.0, 1.0, prepared=0.5).words()
        ('energies; Ctrl-C stops here', 0.5)
        """
        if self.prepared < 1:
            return "energies; Ctrl-C stops here", self.prepared
        return (
            f"{self.nodes:,} suffixes, {self.visited:,} paths valued; unlisted at most "
            f"{self.bound:.4g}, listed at least {self.cut:.4g}; Ctrl-C stops here"
        ), None


@dataclass(frozen=True, slots=True)
class Found:
    """The best paths found, and bounds on the size of every other path of the query.

    `bound` holds for unlisted paths of at most the order asked for, `longer_bound` for those
    above it (0 where there are none, infinite where they were not looked at). `certified` says
    that no unlisted path within the order is larger than a listed one. `expanded` are the
    suffixes whose paths were valued and whose continuations were bounded, each as its components
    from early to late. `interrupted` says that Ctrl-C ended it.
    """

    paths: tuple[Path, ...]
    bound: float
    longer_bound: float
    certified: bool
    visited: int
    expanded: tuple[Word, ...]
    interrupted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A suffix: its components from early to late, the query's state, what it carries.

    `boundary` is the number of stages still before it; `bound` holds for all its completions.
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

    def longer(self, carried: Any, component: Component) -> Any:
        """Give what a suffix carries with one more component in front."""

    def sizes(self, nodes: list[Node], source: str) -> Array:
        """Give the sizes of the paths that start at a source and go on with these suffixes."""

    def rounding(self, nodes: list[Node], source: str) -> Array:
        """Bound what float64 can have taken from each of these sizes, or added to it."""

    def ways(self, stage: int) -> list[Way]:
        """Give the ways of the query through a stage."""

    def bounds(self, stage: int, nodes: list[Node]) -> Callable[[Way, list[int]], Array]:
        """Prepare bounds for these suffixes continued by a stage's components.

        The answer is asked with a way and suffixes by index: (component, suffix).
        """

    def size(self, path: Path) -> float:
        """Give the size of one path, worked out by itself."""

    def bytes(self, carried: Any) -> int:
        """Give the memory that what a suffix carries takes."""


def search(
    tree: Tree,
    query: Query,
    *,
    top: int,
    max_order: int | None = None,
    budget: Budget | None = None,
    report: Callable[[Progress], None] | None = None,
    floor: float = 0.0,
) -> Found:
    """Find the `top` paths of largest size among those of a query.

    Stops when no path that is left can be among them, or when the budget is spent, or at Ctrl-C;
    what was found and the bound on what was not are valid in every case. With a `floor`, paths
    below it are not looked for.
    """
    limit = Budget.given(budget)
    hunt = TreeHunt(tree, query, Best(top, floor=floor), max_order)
    start, left = time.monotonic(), hunt.left
    try:
        while (left := hunt.left) > hunt.best.cut and not hunt.spent(limit, start):
            hunt.expand(hunt.pop())
            if report is not None:
                report(hunt.progress(time.monotonic() - start))
    except KeyboardInterrupt:
        hunt.interrupted = True  # `left` bounds all that was not visited with the last batch
    return hunt.found(left)


class Hunt:
    """What every search for the largest paths of a query keeps, and how it ends.

    `dropped` bounds the continuations that were given up, `longer_bound` those that were too long
    to be taken up.
    """

    def __init__(self, query: Query, best: Best, max_order: int) -> None:
        """Start with nothing found."""
        self.query, self.best, self.max_order = query, best, max_order
        self.longer_bound, self.dropped = 0.0, 0.0
        self.expanded: list[Word] = []
        self.interrupted = False

    def settle(self, left: float, size: Callable[[Path], float]) -> Found:
        """Rank the best paths by their own sizes; `left` bounds what still waits.

        Ctrl-C ends it too: paths not yet worked out by themselves, the smallest, are not listed.
        """
        settled, waiting = self._settled(size)
        listed = settled[: self.best.top]
        paths = [path for _, path in listed]
        certified = left <= self.best.cut and not waiting
        longer = self.max_order + 1 < len(self.query.count_by_order())
        if certified and self.best.cut == 0:
            paths = self._filled([path for found, path in listed if found > 0])
        known = set(paths)
        unlisted = [self.best.most(found, path) for found, path in settled if path not in known]
        return Found(
            paths=tuple(paths),
            bound=max(left, self.dropped, self.best.passed, *unlisted, *waiting),
            # What was not expanded may go on with any number of heads.
            longer_bound=max(self.longer_bound, left, self.dropped) if longer else 0.0,
            certified=certified,
            visited=self.best.visited,
            expanded=tuple(self.expanded),
            interrupted=self.interrupted,
        )

    def _settled(
        self, size: Callable[[Path], float]
    ) -> tuple[list[tuple[float, Path]], list[float]]:
        """Give the paths worked out until Ctrl-C with their sizes, and bounds on the others'."""
        kept, exact = self.best.kept, list[tuple[float, Path]]()
        try:
            for _, path in kept:
                exact.append((abs(size(path)), path))
        except KeyboardInterrupt:
            self.interrupted = True  # the last may have been worked out and not noted
        rest = kept[len(exact) :]
        # Sizes of the search differ from those of paths by themselves in their last digits.
        waiting = [self.best.most(found, path) * (1 + 1e-9) for found, path in rest]
        return ranked(exact), waiting

    def _filled(self, paths: list[Path]) -> list[Path]:
        """Fill free places with paths of size 0, which the search had no reason to visit."""
        known = set(paths)
        every = self.query.paths(max_order=self.max_order)
        zeros = (path for path in every if path not in known)
        return [*paths, *islice(zeros, self.best.top - len(paths))]


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Suffixes one component longer that wait, largest bound first.

    Entry n is `nodes[which[n]]` with `components[picks[n]]` in front, in state `state`, and bound
    `bounds[n]`. Only the first that was not taken stands in the heap: most are never looked at.
    """

    nodes: list[Node]
    components: tuple[Component, ...]
    stage: int
    state: int
    bounds: Array
    picks: npt.NDArray[np.int32]
    which: npt.NDArray[np.int32]

    @property
    def bytes(self) -> int:
        """The memory that the entries take."""
        return self.bounds.nbytes + self.picks.nbytes + self.which.nbytes


class TreeHunt(Hunt):
    """The state of a search: suffixes waiting, largest bound first, and the best paths so far."""

    def __init__(self, tree: Tree, query: Query, best: Best, max_order: int | None = None) -> None:
        """Start at the empty suffix."""
        depth = tree.network.depth
        super().__init__(query, best, depth if max_order is None else max_order)
        self.tree = tree
        self.held = 0
        self.root: Node | None = None
        # A number behind the bound makes the order of equals certain and blocks never compared.
        self.heap: list[tuple[float, int, _Block, int]] = []
        self._number = 0
        every = root_bound(tree, query)
        self.root = Node((), query.start, depth, every, tree.root())
        for source in tree.network.sources:
            if source.boundary is None and source.label in query.stops(query.start):
                path = Path(source.label)
                self.best.offer(np.array([tree.size(path)]), partial(_only, path))

    @property
    def left(self) -> float:
        """The bound on every path not visited; below 0 when there is none."""
        if self.root is not None:
            return self.root.bound
        return -self.heap[0][0] if self.heap else -1.0

    def spent(self, budget: Budget, start: float) -> bool:
        """Say whether a budget is used up."""
        held = self.held + 900 * len(self.expanded)
        return (
            (budget.nodes is not None and len(self.expanded) >= budget.nodes)
            or (budget.seconds is not None and time.monotonic() - start >= budget.seconds)
            or (budget.memory is not None and held >= budget.memory)
        )

    def progress(self, seconds: float) -> Progress:
        """Say how it stands."""
        left = max(self.left, 0.0)
        return Progress(len(self.expanded), self.best.visited, left, self.best.cut, seconds)

    def pop(self) -> list[Node]:
        """Take the suffixes of largest bound, a few at first and then many at a time."""
        if self.root is not None:
            root, self.root = self.root, None
            return [root]
        size = min(_BATCH, 1 + len(self.expanded) // 8)
        batch: list[Node] = []
        while self.heap and len(batch) < size and self.left > self.best.cut:
            bound, _, block, entry = heapq.heappop(self.heap)
            self._wait(block, entry + 1)
            node, component = block.nodes[block.which[entry]], block.components[block.picks[entry]]
            word = (component, *node.word)
            carried = self.tree.longer(node.carried, component)
            batch.append(Node(word, block.state, block.stage, -bound, carried))
        return sorted(batch, key=lambda node: -node.boundary)

    def expand(self, batch: list[Node]) -> None:
        """Value the paths that end at these suffixes, and bound each one component longer."""
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
        for stage in reversed(range(batch[0].boundary)):
            self._continue(stage, [node for node in batch if node.boundary > stage])
        self.expanded += [node.word for node in batch]
        self.held += sum(self.tree.bytes(node.carried) for node in batch)

    def _continue(self, stage: int, nodes: list[Node]) -> None:
        if not self.tree.network.stages[stage]:
            return
        ask = self.tree.bounds(stage, nodes)
        long = np.array([len(node.word) >= self.max_order for node in nodes])
        caps = np.array([node.bound for node in nodes])
        for way in self.tree.ways(stage):
            some = [n for n, node in enumerate(nodes) if node.state == way.before]
            if not some:
                continue
            bounds = np.minimum(ask(way, some), caps[some])  # (component, suffix)
            self.longer_bound = max(
                self.longer_bound, float(bounds[:, long[some]].max(initial=0.0))
            )
            bounds = np.where(long[some], 0.0, bounds)
            keep = bounds > self.best.cut
            self.dropped = max(self.dropped, float(bounds[~keep].max(initial=0.0)))
            self._push(stage, way, [nodes[n] for n in some], bounds, keep)

    def _push(
        self, stage: int, way: Way, nodes: list[Node], bounds: Array, keep: npt.NDArray[np.bool_]
    ) -> None:
        picks, which = np.nonzero(keep)
        if not picks.size:
            return
        kept = bounds[picks, which]
        order = np.argsort(-kept, kind="stable")
        if way.which is not None:
            picks = np.asarray(way.which)[picks]
        block = _Block(
            nodes,
            way.group.components,
            stage,
            way.after,
            kept[order],
            picks[order].astype(np.int32),
            which[order].astype(np.int32),
        )
        self.held += block.bytes
        self._wait(block, 0)

    def _wait(self, block: _Block, entry: int) -> None:
        """Put an entry of a block into the heap, if there is one."""
        if entry < len(block.bounds):
            heapq.heappush(self.heap, (-float(block.bounds[entry]), self._number, block, entry))
            self._number += 1
        else:
            self.held -= block.bytes

    def found(self, left: float) -> Found:
        """Settle the best paths, each valued by itself."""
        return self.settle(left, self.tree.size)


@np.errstate(over="ignore", under="ignore")
def rest_energy(tree: Tree, query: Query, paths: Iterable[Path]) -> float:
    """Bound Σ size² over the paths of a query that are not among `paths`.

    Exact where the tree's bounds are. What leaves the tree of listed suffixes is bounded component
    by component, what stops at them is valued.
    """
    rest = _rest(tree, query, paths)
    return float((rest**2).sum() + TINY * rest.any())


def root_bound(tree: Tree, query: Query) -> float:
    """Bound the size of every path of a query."""
    rest = _rest(tree, query, ())
    peak = float(rest.max(initial=0.0))
    if peak == 0 or not np.isfinite(peak):
        return peak
    return float(peak * np.sqrt(((rest / peak) ** 2).sum()) * (1 + 1e-9))


def _rest(tree: Tree, query: Query, paths: Iterable[Path]) -> Array:
    """Give sizes whose squares bound Σ size² over the paths of a query not among `paths`."""
    listed = set(paths)
    words: dict[Word, Node] = {}
    root = Node((), query.start, tree.network.depth, np.inf, tree.root())
    words[()] = root
    for path in sorted(listed):
        node = root
        for component in reversed(path.components):
            word = (component, *node.word)
            if word not in words:
                state, stage = query.step(node.state, component), tree.network.stage(component)
                assert state is not None and stage is not None  # a listed path matches the query
                carried = tree.longer(node.carried, component)
                words[word] = Node(word, state, stage, np.inf, carried)
            node = words[word]
    sizes = [
        tree.size(Path(source.label))
        for source in tree.network.sources
        if source.boundary is None
        and source.label in query.stops(query.start)
        and Path(source.label) not in listed
    ]
    nodes = sorted(words.values(), key=lambda node: -node.boundary)
    parts = [np.array(sizes), *_stopping(tree, query, nodes, listed), *_leaving(tree, words)]
    found = np.concatenate(parts)
    return np.where(np.isnan(found), np.inf, found)  # what overflowed on its way is no number


def _stopping(tree: Tree, query: Query, nodes: list[Node], listed: set[Path]) -> Iterator[Array]:
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
            yield tree.sizes(left, source.label) + tree.rounding(left, source.label)


def _leaving(tree: Tree, words: dict[Word, Node]) -> Iterator[Array]:
    """Yield the bounds of all continuations that no listed path takes."""
    children: dict[Word, list[Component]] = {}
    for word in words:
        if word:
            children.setdefault(word[1:], []).append(word[0])
    for stage, components in enumerate(tree.network.stages):
        nodes = [node for node in words.values() if node.boundary > stage]
        if not components or not nodes:
            continue
        ask, numbers = tree.bounds(stage, nodes), {c: n for n, c in enumerate(components)}
        for way in tree.ways(stage):
            some = [n for n, node in enumerate(nodes) if node.state == way.before]
            if not some:
                continue
            bounds = ask(way, some)  # (component, suffix)
            own = [way.group.components[n] for n in way.which or range(len(bounds))]
            rows = {component: row for row, component in enumerate(own)}
            for column, n in enumerate(some):
                for child in children.get(nodes[n].word, ()):
                    if child in numbers and child in rows:
                        bounds[rows[child], column] = 0.0
            yield bounds.ravel()


def _only(path: Path, _: int) -> Path:
    return path


def _path_at(source: str, nodes: list[Node]) -> Callable[[int], Path]:
    return lambda n: Path(source, nodes[n].word)
