"""The paths that stop at suffixes of a tree."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.held import Held, HeldSource
from pathexpand.certificate.lengths import lengths
from pathexpand.certificate.suffix import Numbers, Tree
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.symbolic import Path
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
_TOGETHER = 2**22  # numbers of suffixes that are worked out together


@dataclass(frozen=True, slots=True, eq=False)
class Stops:
    """Paths that stop at suffixes of a tree: their |values| (path,), and what they may be off by.

    Path n starts at `sources[labels[n]]` and goes on with suffix `numbers[n]` of the tree.
    """

    tree: Tree
    sources: tuple[str, ...]
    labels: Numbers
    numbers: Numbers
    sizes: Array
    slacks: Array

    def __len__(self) -> int:
        """Give their number."""
        return len(self.sizes)

    def path(self, n: int) -> Path:
        """Give a path, counted from 0."""
        return Path(self.sources[self.labels[n]], self.tree.words[self.numbers[n]])

    def within(self, least: float, most: float) -> Stops:
        """Give those with a number of components from `least` to `most`."""
        orders = self.tree.orders[self.numbers]
        kept = (least <= orders) & (orders <= most)
        own = (self.labels[kept], self.numbers[kept], self.sizes[kept], self.slacks[kept])
        return Stops(self.tree, self.sources, *own)


def stops(held: Held, query: Query, tree: Tree, listed: Collection[Path]) -> Stops:
    """Value the paths of a query that stop at suffixes of a tree and are not listed.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> run = load("two-layer").run("to be or not to")
    >>> held, query = hold(run, run.target(), run.position(), same=True), run.model.query()
    >>> found = stops(held, query, Tree(held, query, [()]), [Path("embed")])
    >>> [found.path(n).source for n in range(len(found))]
    []
    """
    known: dict[str, list[int]] = {}
    for path in listed:
        if path.components in tree.numbers:
            known.setdefault(path.source, []).append(tree.numbers[path.components])
    found = []
    if len(tree) and "b_U" in query.stops(query.start) and "b_U" not in known:
        size = abs(held.constant)
        found.append(
            (-1, np.zeros(1, dtype=np.intp), np.array([size]), np.array([held.constant_lost]))
        )
    for label, source in enumerate(held.sources):
        left = _stopping(query, tree, source)
        left[known.get(source.label, [])] = False
        for some in _together(held, tree, np.flatnonzero(left)):
            found.append((label, some, *_valued(held, source, tree, some)))
    labels = [np.full(len(numbers), label) for label, numbers, _, _ in found]
    numbers = [each[1] for each in found]
    values = [np.stack(each[2:]) for each in found]
    sizes, slacks = np.concatenate([np.zeros((2, 0)), *values], axis=1)
    own = (_joined(labels), _joined(numbers), sizes, slacks)
    names = (*(source.label for source in held.sources), "b_U")  # the last is number -1
    return Stops(tree, names, *own)


def _stopping(query: Query, tree: Tree, source: HeldSource) -> npt.NDArray[np.bool_]:
    """Say which suffixes a source may stand in front of."""
    ends = np.array([source.label in query.stops(state) for state in range(query.states)])
    out: npt.NDArray[np.bool_] = (tree.boundaries >= source.boundary) & ends[tree.states]
    return out


def _together(held: Held, tree: Tree, which: Numbers) -> Iterator[Numbers]:
    """Split suffixes into some of one kind, not too many for the memory."""
    for some in tree.parts(which):
        each = held.width * (held.positions if tree.is_wide(some) else 1)
        step = max(_TOGETHER // each, 1)
        yield from (some[start : start + step] for start in range(0, len(some), step))


def _valued(held: Held, source: HeldSource, tree: Tree, some: Numbers) -> tuple[Array, Array]:
    reads = tree.at(source.boundary, some)
    values = reads.completed(source.values)  # (n,)
    off = source.blur(2 * gamma(2 * held.steps))  # of the source, and of the product with it
    slack = reads.lost @ lengths(source.values) + (reads.sizes + reads.lost) @ lengths(off)
    return abs(values), slack + TINY


def _joined(numbers: list[Numbers]) -> Numbers:
    return np.concatenate([np.zeros(0, dtype=np.intp), *numbers])
