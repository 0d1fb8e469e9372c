"""Search for the largest paths over many prompts, in rounds: one pass over the prompts a round.

Over prompts p, a path's size is √(mean v_p²) or |mean v_p|, v_p being its value on p. With U_p the
bound on all completions of a suffix on p (`pathexpand.engine.energy`), every completion has

    √(mean v_p²) ≤ √(mean U_p²)      and      |mean v_p| ≤ mean |v_p| ≤ mean U_p,

so either size has a bound that adds up over prompts. Energies are large and prompts many: they are
worked out for one prompt at a time and then forgotten, or kept as far as a given memory allows. The
suffixes that wait, and what was added up for them, are all that is held between prompts.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from pathexpand.engine.best import Best
from pathexpand.engine.energy import Energies, energies
from pathexpand.engine.prompt_tree import PromptTree
from pathexpand.engine.rounding import gamma
from pathexpand.engine.search import Budget, Found, Hunt, Node, Progress
from pathexpand.engine.value import Readout
from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenSum
from pathexpand.symbolic import Component, Network, Path
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
Word = tuple[Component, ...]
By = Literal["rms", "mean"]
_FIRST, _MOST = 64, 4096  # suffixes in an early and in a late round
_BLOCK = 256  # suffixes bounded in one product


class Reading(Protocol):
    """One prompt of a data set and what is read of it."""

    @property
    def frozen(self) -> FrozenSum:
        """The prompt's run as a sum of paths."""

    @property
    def readout(self) -> Readout:
        """What its paths are valued for."""


@dataclass(frozen=True, slots=True)
class Stub:
    """A suffix that waits: its components from early to late, the query's state, its bound.

    `boundary` is the number of stages still before it.
    """

    word: Word
    state: int
    boundary: int
    bound: float


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One prompt, cut at its readout, with the energies of its heads."""

    frozen: FrozenSum
    readout: Readout
    energy: Energies

    @property
    def bytes(self) -> int:
        """The memory it takes, the model's weights not counted."""
        own = sum(source.values.nbytes for source in self.frozen.sources)
        own += sum(group.bytes for stage in self.frozen.stages for group in stage.groups)
        return own + self.energy.bytes


class Prompts:
    """The prompts of a data set, prepared one at a time; as many are kept as `cache` bytes hold.

    Raises `PathExpandError` where there is no prompt, or another number of them than before.
    """

    def __init__(self, readings: Iterable[Reading], query: Query, *, cache: int = 0) -> None:
        """Take readings that can be iterated over again and again."""
        self.readings, self.query, self.room = readings, query, cache
        self.kept: dict[int, Prepared] = {}
        self.count: int | None = None

    def prepared(self, depth: int) -> Iterator[Prepared]:
        """Yield every prompt, with the energies of the first `depth` stages at least.

        Most of the work is in the last stages, and few suffixes can still go on with those.
        """
        number = 0
        for number, reading in enumerate(self.readings, start=1):
            yield self.kept.get(number) or self._prepare(number, reading, depth)
        if not number or number != (self.count or number):
            wanted = "at least one" if self.count is None else f"{self.count} as before"
            raise PathExpandError("prompts", wanted=wanted, got=str(number))
        self.count = number

    def _prepare(self, number: int, reading: Reading, depth: int) -> Prepared:
        readout = reading.readout
        near = reading.frozen.until(readout.position)
        prepared = Prepared(near, readout, energies(near.first(depth), self.query))
        # What is kept must serve every later round.
        if depth >= near.depth and prepared.bytes <= self.room:
            self.room -= prepared.bytes
            self.kept[number] = prepared
        return prepared


class Round:
    """Suffixes expanded together: what is added up for them over the prompts.

    The paths that end at them are valued, and each suffix one head longer is bounded.
    """

    def __init__(self, network: Network, query: Query, batch: list[Stub], by: By) -> None:
        """Plan which products are needed; nothing here depends on a prompt."""
        self.network, self.query, self.batch, self.by = network, query, batch, by
        self.prompts = 0
        self.tree = _Tree([stub.word for stub in batch])
        self.stopping = {
            source.label: np.flatnonzero(
                [_stops(query, stub, source.label, source.boundary) for stub in batch]
            )
            for source in network.sources
        }
        self.values = {label: np.zeros(len(some)) for label, some in self.stopping.items()}
        self.active = [
            np.flatnonzero([stub.boundary > stage for stub in batch])
            for stage in range(network.depth)
        ]
        self.states = [
            {
                state: np.flatnonzero([batch[n].state == state for n in some])
                for state in _met(batch)
            }
            for some in self.active
        ]
        self.bounds = [
            np.zeros((len(components), len(some)))  # (component, suffix)
            for components, some in zip(network.stages, self.active, strict=True)
        ]

    def add(self, prompt: Prepared) -> None:
        """Add what one prompt has to say."""
        self.prompts += 1
        tree = PromptTree(prompt.frozen, prompt.readout, self.query, prompt.energy)
        nodes = self.tree.carry(tree, self.batch)
        for label, some in self.stopping.items():
            if not some.size:
                continue
            if label in tree.sources:
                values = tree.values([nodes[n] for n in some], label)  # (suffix,)
            else:
                values = np.full(1, float(prompt.readout.constant))
            self.values[label] = self._sum(self.values[label], values)
        for stage, some in enumerate(self.active):
            for at in range(0, len(some), _BLOCK):
                part = slice(at, at + _BLOCK)
                bounds = self._bound(tree, stage, part, [nodes[n] for n in some[part]])
                total = self.bounds[stage][:, part]
                self.bounds[stage][:, part] = self._sum(total, bounds)

    def _bound(self, tree: PromptTree, stage: int, part: slice, nodes: list[Node]) -> Array:
        """Bound some suffixes continued by each component of a stage: (component, suffix)."""
        groups = tree.frozen.stages[stage].groups
        starts = np.cumsum([0, *(len(group.components) for group in groups)])
        out = np.zeros((starts[-1], len(nodes)))
        if not starts[-1]:
            return out
        ask = tree.bounds(stage, nodes)
        for way in tree.ways(stage):
            every = self.states[stage].get(way.before, np.zeros(0, dtype=np.intp))
            some = every[(every >= part.start) & (every < part.stop)] - part.start
            if some.size:
                own = range(len(way.group.components)) if way.which is None else way.which
                rows = starts[way.number] + np.array(own)
                out[np.ix_(rows, some)] = ask(way, some.tolist())
        return out

    def _sum(self, total: Array, part: Array) -> Array:
        """Add up what either size needs: the root of squares, or the numbers with their signs."""
        out: Array = np.hypot(total, part) if self.by == "rms" else total + part
        return out

    def sizes(self, label: str) -> Array:
        """Give the sizes over all prompts of the paths from a source: (suffix,)."""
        return abs(self._over_prompts(self.values[label]))

    def continued(self, layer: int) -> Array:
        """Give bounds over all prompts on the suffixes with one head more: (head, suffix)."""
        # The sum over prompts is of positive numbers, each addition off by two units at most.
        return self._over_prompts(self.bounds[layer]) * (1 + gamma(2 * self.prompts + 8))

    def _over_prompts(self, total: Array) -> Array:
        return total / (np.sqrt(self.prompts) if self.by == "rms" else self.prompts)


class _Tree:
    """Suffixes and the shorter ones that they grow from: each is carried once on every prompt."""

    def __init__(self, words: list[Word]) -> None:
        every = {word[n:] for word in words for n in range(len(word) + 1)} | {()}
        self.every = sorted(every, key=lambda word: (len(word), word))

    def carry(self, tree: PromptTree, batch: list[Stub]) -> list[Node]:
        """Give the suffixes of a batch on one prompt."""
        carried: dict[Word, Any] = {(): tree.root()}
        for word in self.every[1:]:
            carried[word] = tree.longer(carried[word[1:]], word[0])
        return [
            Node(stub.word, stub.state, stub.boundary, stub.bound, carried[stub.word])
            for stub in batch
        ]


class DatasetHunt(Hunt):
    """The state of a search over prompts: suffixes waiting, and the best paths so far."""

    def __init__(
        self, network: Network, query: Query, *, by: By, top: int, max_order: int | None
    ) -> None:
        """Start with the empty suffix."""
        super().__init__(query, Best(top), network.depth if max_order is None else max_order)
        self.network, self.by, self.left = network, by, np.inf
        self.heap: list[tuple[float, int, Stub]] = []
        self.rounds, self._number = 0, 0
        self._push(Stub((), query.start, network.depth, np.inf))

    def pop(self, most: int) -> list[Stub]:
        """Take the suffixes above the cut, largest bound first, as many as a round may have."""
        batch: list[Stub] = []
        while self.heap and len(batch) < most and -self.heap[0][0] > self.best.cut:
            batch.append(heapq.heappop(self.heap)[2])
        return batch

    def take(self, done: Round) -> None:
        """Take in a round: its paths, and the suffixes that are still worth a look."""
        for label, some in done.stopping.items():
            words = [done.batch[n].word for n in some]
            self.best.offer(done.sizes(label), partial(_path_at, label, words))
        for layer, some in enumerate(done.active):
            stubs = [done.batch[n] for n in some]
            bounds = np.minimum(done.continued(layer), [stub.bound for stub in stubs])
            long = np.array([len(stub.word) >= self.max_order for stub in stubs], dtype=bool)
            self.longer_bound = max(self.longer_bound, float(bounds[:, long].max(initial=0.0)))
            bounds[:, long] = 0.0
            self._continue(layer, stubs, bounds)
        self.expanded += [stub.word for stub in done.batch]
        self.rounds += 1
        self.left = self._waiting

    def skip(self, done: Round) -> None:
        """Take from the first round no more than a bound on all paths."""
        sizes = [float(done.sizes(label).max(initial=0.0)) for label in done.stopping]
        bounds = [float(done.continued(n).max(initial=0.0)) for n in range(self.network.depth)]
        if self.max_order:
            sizes += bounds
        else:
            self.longer_bound = max(bounds, default=0.0)
        self.left = max(sizes, default=0.0)

    def _continue(self, layer: int, stubs: list[Stub], bounds: Array) -> None:
        components, keep = self.network.stages[layer], bounds > self.best.cut
        self.dropped = max(self.dropped, float(bounds[~keep].max(initial=0.0)))
        for row, column in zip(*np.nonzero(keep), strict=True):
            stub, component = stubs[column], components[row]
            state = self.query.step(stub.state, component)
            assert state is not None  # a component that leads nowhere has the bound 0
            bound = float(bounds[row, column])
            self._push(Stub((component, *stub.word), state, layer, bound))

    def _push(self, stub: Stub) -> None:
        heapq.heappush(self.heap, (-stub.bound, self._number, stub))
        self._number += 1

    @property
    def _waiting(self) -> float:
        """The largest bound of what waits; below 0 when nothing does."""
        return -self.heap[0][0] if self.heap else -1.0

    def progress(self, seconds: float) -> Progress:
        """Say how the search stands."""
        left = max(self.left, 0.0)
        return Progress(len(self.expanded), self.best.visited, left, self.best.cut, seconds)

    def kept(self) -> list[Path]:
        """Give every path that may still be listed, for each to be valued by itself."""
        return [path for _, path in self.best.settle(lambda path: 0.0)]

    def found(self, size: Callable[[Path], float]) -> Found:
        """Settle the best paths by their sizes."""
        return self.settle(self.left, size)


def hunt(
    prompts: Prompts,
    network: Network,
    query: Query,
    *,
    by: By,
    top: int,
    max_order: int | None = None,
    budget: Budget | None = None,
    rounds: int | None = None,
    report: Callable[[Progress], None] | None = None,
) -> DatasetHunt:
    """Search round by round until no suffix that waits can hold a path to be listed.

    When the budget is spent, or at Ctrl-C, the round that has begun is given up, and what the
    rounds before it found stays valid. Only the first round must be done in any case, as there is
    no bound without it.
    """
    state, limits = (
        DatasetHunt(network, query, by=by, top=top, max_order=max_order),
        Budget.given(budget),
    )
    start = time.monotonic()
    end = np.inf if limits.seconds is None else start + limits.seconds

    def take(done: Round) -> None:
        state.take(done)
        if report is not None:
            report(state.progress(time.monotonic() - start))

    first = Round(network, query, [heapq.heappop(state.heap)[2]], by)
    _complete(first, prompts, np.inf)
    if 0 in (limits.nodes, rounds, top):
        state.skip(first)
        return state
    try:
        take(first)
        while state.left > state.best.cut and (rounds is None or state.rounds < rounds):
            size = _size(state, limits)
            done = Round(network, query, state.pop(size), by)
            if not size or not _complete(done, prompts, end):
                break
            take(done)
    except KeyboardInterrupt:
        pass  # `left` bounds all that was not visited when the last round was done
    return state


def _size(state: DatasetHunt, limits: Budget) -> int:
    """Say how many suffixes the next round may have; 0 when the budget is spent.

    A round has at most as many suffixes as were expanded before it: what is expanded in vain,
    because the cut was still low, is no more than what was needed.
    """
    held = 500 * len(state.heap)
    if limits.memory is not None and held >= limits.memory:
        return 0
    size = min(_MOST, max(_FIRST, len(state.expanded)))
    return size if limits.nodes is None else min(size, max(limits.nodes - len(state.expanded), 0))


def _complete(done: Round, prompts: Prompts, end: float) -> bool:
    """Add every prompt to a round; give up, and say so, when the time is over."""
    for prompt in prompts.prepared(max(stub.boundary for stub in done.batch)):
        if time.monotonic() >= end:
            return False
        done.add(prompt)
    return True


def _stops(query: Query, stub: Stub, label: str, boundary: int | None) -> bool:
    """Say whether a source of the query can stand in front of a suffix."""
    early = not stub.word if boundary is None else stub.boundary >= boundary
    return early and label in query.stops(stub.state)


def _met(batch: list[Stub]) -> list[int]:
    return sorted({stub.state for stub in batch})


def _path_at(source: str, words: list[Word], number: int) -> Path:
    return Path(source, words[number])
