"""The sum of the paths that were not listed, by its own route: never "dense minus listed"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import TINY, UNIT, gamma
from pathexpand.engine.value import Readout, Suffix, completed, empty_suffix, prepend
from pathexpand.engine.ways import Way, ways
from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenSource, FrozenSum
from pathexpand.symbolic import Component, Path
from pathexpand.symbolic.query import Query, everything

Array = npt.NDArray[Any]
Word = tuple[Component, ...]


@dataclass(frozen=True, slots=True)
class Remainder:
    """The sum of the unlisted paths, their number, and a bound on the rounding of all values.

    `rounding` covers this sum and the listed values that it was split from; it is 0.0 where it
    was not asked for.
    """

    value: Any
    count: int
    rounding: float


@dataclass(slots=True)
class Listed:
    """The listed paths as a tree of suffixes, from the readout back."""

    frozen: FrozenSum
    suffixes: dict[Word, Suffix]
    children: dict[Word, set[Component]] = field(default_factory=dict)
    stops: set[tuple[Word, str]] = field(default_factory=set)

    def active(self, boundary: int) -> list[Word]:
        """Give the suffixes all of whose components stand at or after a boundary."""
        return [word for word, suffix in self.suffixes.items() if suffix.boundary >= boundary]


def listed_tree(frozen: FrozenSum, readout: Readout, paths: Iterable[Path]) -> Listed:
    """Arrange listed paths by their shared suffixes."""
    tree = Listed(frozen, {(): empty_suffix(frozen, readout)})
    for path in paths:
        word: Word = ()
        for component in reversed(path.components):
            longer = (component, *word)
            if longer not in tree.suffixes:
                tree.suffixes[longer] = prepend(tree.suffixes[word], frozen, component)
                tree.children.setdefault(word, set()).add(component)
            word = longer
        tree.stops.add((word, path.source))
    return tree


@np.errstate(over="ignore", invalid="ignore")
def remainder(
    frozen: FrozenSum,
    readout: Readout,
    paths: Iterable[Path],
    *,
    query: Query | None = None,
    measured: bool = False,
) -> Remainder:
    """Sum every path of a query, by default of all, that is not among `paths`.

    One pass back from the readout carries the functional of everything not listed, one for each
    state of the query. At each stage it takes up, from each listed suffix, the components that no
    listed path continues with, and at each boundary the sources that none stops at. If
    `measured`, the streams of the dense pass turn every local rounding error into its effect on
    the result.
    """
    asked = everything(frozen.network()) if query is None else query
    tree = listed_tree(frozen, readout, paths)
    rest = _Rest(frozen, readout, asked, tree, measured=measured)
    for boundary in reversed(range(frozen.depth + 1)):
        for source in (s for s in frozen.sources if s.boundary == boundary):
            rest.stop(source, boundary)
        if boundary:
            rest.carry(boundary - 1)
    if frozen.constant is not None and frozen.constant in asked.stops(asked.start):
        rest.stop_in_readout(frozen.constant)
    rounding = rest.rounding
    if measured:
        rounding += _suffix_rounding(frozen, tree)
    # What overflowed on its way bounds nothing.
    return Remainder(rest.value, rest.count, np.inf if np.isnan(rounding) else rounding)


class _Rest:
    """What is not listed, on its way back: a functional (position, d_model) a query state."""

    def __init__(
        self, frozen: FrozenSum, readout: Readout, query: Query, tree: Listed, *, measured: bool
    ) -> None:
        self.frozen, self.readout, self.query, self.tree = frozen, readout, query, tree
        self.measured = measured
        vector = tree.suffixes[()].vectors[0]
        shape = (query.states, frozen.positions, vector.size)
        self.free = np.zeros(shape, dtype=vector.dtype)
        self.free_counts = [0] * query.states
        self.states = {word: _state(query, word) for word in tree.suffixes}
        self.value: Any = 0
        self.count, self.rounding = 0, 0.0

    def stop(self, source: FrozenSource, boundary: int) -> None:
        """Add what starts at a source born at this boundary and is not listed."""
        ending = [q for q in range(self.query.states) if source.label in self.query.stops(q)]
        active = [word for word in self.tree.active(boundary) if self.states[word] in ending]
        left = [word for word in active if (word, source.label) not in self.tree.stops]
        free = self.free[ending].sum(axis=0)  # (position, d_model)
        self._add((free * source.values).sum(axis=1).sum())
        for word in left:
            self._add(completed(self.tree.suffixes[word], self.frozen, source).sum())
        self.count += sum(self.free_counts[q] for q in ending) + len(left)
        if self.measured:
            size = abs(self.free[ending]).sum(axis=0)
            near = [self.tree.suffixes[word].at(self.frozen, boundary) for word in active]
            self.rounding += _stop_rounding(size, near, source, self.query.states)

    def stop_in_readout(self, constant: str) -> None:
        """Add what is born in the readout, if it is not listed."""
        if ((), constant) not in self.tree.stops:
            self._add(self.readout.constant)
            self.count += 1

    def carry(self, index: int) -> None:
        """Carry the functionals through a stage, with each unlisted step out of a suffix."""
        stage = self.frozen.stages[index]
        active = self.tree.active(index + 1)
        leaving = _Leaving(self.frozen, self.tree, active, self.states, index + 1)
        out, counts = np.array(stage.past(self.free)), list(self.free_counts)
        taken = list(ways(self.frozen, self.query, index))
        size = abs(self.frozen.streams[index]) if self.measured else None
        if size is not None:
            # Every way adds to what passes the stage.
            passing, steps = abs(self.free) + TINY, len(taken) + 2
            if stage.carry is not None:
                passing, steps = stage.carry.pull_sizes(passing), steps + self.free.shape[2] + 8
                listed = stage.carry.pull_sizes(leaving.size + TINY) + TINY
                self.rounding += gamma(self.free.shape[2] + 8) * float((listed * size).sum())
            self.rounding += gamma(steps) * float(((passing + TINY) * size).sum())
        for way in taken:
            reads = self.free[way.before]
            if reads.any():
                out[way.after] += way.group.pull(reads, way.which)
            counts[way.after] += self.free_counts[way.before] * way.count
            rows, vectors, allowed, number = leaving.through(way)
            counts[way.after] += number
            if len(rows):
                out[way.after] += way.group.pull_pieces(rows, vectors, allowed)
            if size is not None:
                spread = _way_size(way, reads, rows, vectors, allowed)
                steps = len(rows) + way.group.steps + len(taken) + 4
                self.rounding += gamma(steps) * float((spread * size).sum())
        self.free, self.free_counts = out, counts

    def _add(self, part: Any) -> None:
        self.value = self.value + part
        if self.measured:
            # Any number of additions may follow one another: each is off by its own result.
            self.rounding += UNIT * abs(float(self.value))


class _Leaving:
    """The listed suffixes at a boundary, and the components that no listed path goes on with."""

    def __init__(
        self,
        frozen: FrozenSum,
        tree: Listed,
        active: list[Word],
        states: dict[Word, int],
        boundary: int,
    ) -> None:
        near = [tree.suffixes[word].at(frozen, boundary) for word in active]
        self.rows = np.concatenate([suffix.rows for suffix in near])  # (piece, position)
        self.vectors = np.concatenate([suffix.vectors for suffix in near])  # (piece, d_model)
        self.owner = np.repeat(np.arange(len(near)), [len(suffix.rows) for suffix in near])
        self.states = np.array([states[word] for word in active])
        self.children = [tree.children.get(word, set()) for word in active]

    @property
    def size(self) -> Array:
        """The sizes of all of them together: (position, d_model)."""
        out: Array = abs(self.rows).T @ abs(self.vectors)
        return out

    def through(self, way: Way) -> tuple[Array, Array, Array, int]:
        """Give the pieces that take a way, through which components, and how many steps that is.

        Rows (piece, position), vectors (piece, d_model), allowed (component, piece).
        """
        size = len(way.group.components)
        words = np.flatnonzero(self.states == way.before)
        allowed = np.zeros((size, len(words)), dtype=bool)
        allowed[slice(None) if way.which is None else list(way.which)] = True
        listed = set(way.group.components)
        for column, word in enumerate(words):
            for child in self.children[word] & listed:
                allowed[way.group.components.index(child), column] = False
        keep = np.isin(self.owner, words)
        columns = np.searchsorted(words, self.owner[keep])
        return self.rows[keep], self.vectors[keep], allowed[:, columns], int(allowed.sum())


def _state(query: Query, word: Word) -> int:
    state: int | None = query.start
    for component in reversed(word):
        state = None if state is None else query.step(state, component)
    if state is None:
        raise PathExpandError(
            f"suffix {' > '.join(map(str, word))}", wanted=f"a path of the query {query.text!r}"
        )
    return state


def _stop_rounding(free: Array, suffixes: list[Suffix], source: FrozenSource, states: int) -> float:
    values = abs(source.values)  # (position, d_model)
    total = float((free * values + TINY).sum())
    for suffix in suffixes:
        read = values @ abs(suffix.vectors).T + TINY  # (position, piece)
        total += float((abs(suffix.rows).T * read).sum()) + TINY
    return gamma(sum(values.shape) + 2 + states) * total


def _way_size(way: Way, reads: Array, rows: Array, vectors: Array, allowed: Array) -> Array:
    """Give the sizes (position, d_model) of all that is added up on one way."""
    group = abs(way.group)
    spread = np.full_like(reads, TINY)
    if reads.any():
        spread = spread + group.pull(abs(reads), way.which, floor=TINY)
    if len(rows):
        spread = spread + group.pull_pieces(abs(rows), abs(vectors), allowed, floor=TINY)
    return spread


def _suffix_rounding(frozen: FrozenSum, tree: Listed) -> float:
    """Bound the effect of rounding in each suffix's own step: it reads the stream below it.

    What happens to it on its way past norms of the stream is accounted for where it passes them.
    """
    total = 0.0
    sizes = [abs(stream) for stream in frozen.streams]
    for word in tree.suffixes:
        if not word:
            continue
        stage, group, index = frozen.places[word[0]]
        before = tree.suffixes[word[1:]].at(frozen, stage + 1)
        one = abs(group.only(index))
        most = one.pull(abs(before.rows).T @ abs(before.vectors) + TINY, floor=TINY)
        steps = one.steps + len(before.rows)
        total += gamma(steps) * float((most * sizes[stage]).sum())
    return total
