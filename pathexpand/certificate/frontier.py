"""Everything that leaves a tree of suffixes: the paths that stop in it, the subtrees beyond it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.energy import StreamEnergy
from pathexpand.certificate.held import Held, HeldSource
from pathexpand.certificate.suffix import Suffix, Word, longest
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.symbolic import Head, Path
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
Tree = dict[Word, Suffix]


@dataclass(frozen=True, slots=True)
class Left:
    """A subtree: its paths all end in `word`, and none has a |value| above `size` (± `slack`).

    `short` says whether paths of at most the order asked for are among them, `longer` whether
    others are.
    """

    word: Word
    size: float
    slack: float
    short: bool
    longer: bool

    def exceeds(self, bound: float, longer_bound: float) -> bool:
        """Say whether some of the paths may be larger than is claimed, rounding set aside.

        >>> left = Left((), 2.0, 0.5, short=True, longer=False)
        >>> left.exceeds(1.4, 0.0), left.exceeds(1.5, 0.0)
        (True, False)
        """
        least = self.size - self.slack
        return (self.short and least > bound) or (self.longer and least > longer_bound)


@dataclass(slots=True)
class Frontier:
    """What leaves a tree: `inside`, subtrees at its own suffixes; `short` and `longer`, beyond it.

    Of the subtrees beyond it only the largest are kept: with paths of at most the order asked
    for, and with longer ones. `energy` is Σ size², `energy_slack` what rounding may add to it.
    """

    inside: dict[Word, Left] = field(default_factory=dict)
    short: Left | None = None
    longer: Left | None = None
    energy: float = 0.0
    energy_slack: float = 0.0

    def beyond(self, left: Left) -> None:
        """Take note of the largest of some subtrees beyond the tree."""
        for kind, is_so in (("short", left.short), ("longer", left.longer)):
            known: Left | None = getattr(self, kind)
            if is_so and (known is None or known.size - known.slack < left.size - left.slack):
                setattr(self, kind, left)


def frontiers(
    held: Held, query: Query, trees: Sequence[Tree], *, max_order: int | None
) -> list[Frontier]:
    """Bound what leaves each of some trees of suffixes, in one pass over the layers.

    A tree that is empty leaves the whole, as one subtree. Raises `LimitError` where the energies
    do not fit into memory.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> run = load("two-layer").run("to be or not to")
    >>> held = hold(run, run.target(), run.position(), same_patterns=True)
    >>> whole, = frontiers(held, run.model.query(), [{}], max_order=None)
    >>> whole.short.size >= abs(run.paths(top=1)[0].value)
    True
    """
    found = [_Growing(tree, max_order) for tree in trees]
    reach = longest(held.network, query)
    energy = StreamEnergy(held, query)
    for layer, heads in enumerate(held.network.layers):
        kernels = energy.kernels()
        for growing in found:
            for state, words in growing.active(layer):
                rows = np.stack([growing.tree[word].row for word in words])  # (suffix, position)
                vectors = np.stack([growing.tree[word].vector for word in words])  # (…, d_model)
                for head in heads:
                    after = query.step(state, head)
                    if after is None:
                        continue
                    behind = rows @ held.pattern(head)
                    inner = vectors @ held.maps(head)[1].T  # (suffix, d_head)
                    u, slack = energy.bounds(kernels, after, head.index, behind, inner)
                    growing.note(words, head, u, slack, reach[layer][after])
        energy.advance(kernels)
    whole, loose = _everything(held, query, *energy.whole())
    for growing in found:
        growing.note_whole(whole, loose, reach[held.network.depth][query.start])
    return [growing.frontier for growing in found]


class _Growing:
    """A tree, and its frontier as far as the layers have been seen."""

    def __init__(self, tree: Tree, max_order: int | None) -> None:
        self.tree, self.frontier = tree, Frontier()
        self.most = math.inf if max_order is None else max_order
        self.with_head: dict[Head, list[Word]] = {}
        for word in filter(None, tree):
            self.with_head.setdefault(word[0], []).append(word)

    def active(self, layer: int) -> Iterator[tuple[int, list[Word]]]:
        """Yield the suffixes that have a layer before them, by state of the query."""
        words = [word for word in self.tree if not word or word[0].layer > layer]
        for state in sorted({self.tree[word].state for word in words}):
            yield state, [word for word in words if self.tree[word].state == state]

    def note(self, words: list[Word], head: Head, u: Array, slack: Array, reach: int) -> None:
        """Take note of the subtrees that some suffixes have at a head."""
        lengths = np.array([len(word) + 1 for word in words])
        longer, short = lengths + reach > self.most, lengths <= self.most

        def left(n: int, word: Word) -> Left:
            return Left(word, float(u[n]), float(slack[n]), bool(short[n]), bool(longer[n]))

        beyond = np.ones(len(words), dtype=bool)
        if head in self.with_head:
            places = {word: n for n, word in enumerate(words)}
            for word in self.with_head[head]:
                n = places.get(word[1:])
                if n is not None:
                    beyond[n] = False
                    self.frontier.inside[word] = left(n, word)
        self.frontier.energy += float((u[beyond] ** 2).sum())
        self.frontier.energy_slack += float(((u + slack)[beyond] ** 2 - u[beyond] ** 2).sum())
        for kind in (short, longer):
            some = np.flatnonzero(kind & beyond)
            if some.size:
                n = int(some[np.argmax((u - slack)[some])])
                self.frontier.beyond(left(n, (head, *words[n])))

    def note_whole(self, u: float, slack: float, reach: int) -> None:
        """Take note of the subtree that holds every path."""
        whole = Left((), u, slack, True, reach > self.most)
        if self.tree:
            self.frontier.inside[()] = whole
        else:
            self.frontier.beyond(whole)
            self.frontier.energy, self.frontier.energy_slack = u**2, 2 * u * slack + slack**2


def _everything(held: Held, query: Query, u: float, slack: float) -> tuple[float, float]:
    """Add the constant, which never enters the stream, to the energy of all paths."""
    if "b_U" in query.stops(query.start):
        u = math.hypot(u, held.constant)
    return u, slack + gamma(8) * u


@dataclass(frozen=True, slots=True, eq=False)
class Stops:
    """Paths that stop at suffixes of a tree: their |values| (path,), and what rounding may do."""

    ends: list[tuple[str, Word]]
    sizes: Array
    slacks: Array

    def path(self, n: int) -> Path:
        """Give a path, counted from 0."""
        return Path(*self.ends[n])

    def within(self, least: float, most: float) -> Stops:
        """Give those with a number of heads from `least` to `most`."""
        kept = [n for n, (_, word) in enumerate(self.ends) if least <= len(word) <= most]
        return Stops([self.ends[n] for n in kept], self.sizes[kept], self.slacks[kept])


def stops(held: Held, query: Query, tree: Tree, listed: Collection[Path]) -> Stops:
    """Value the paths of a query that stop at suffixes of a tree and are not listed.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> from pathexpand.certificate.suffix import grow
    >>> run = load("two-layer").run("to be or not to")
    >>> held, query = hold(run, run.target(), run.position(), same_patterns=True), run.model.query()
    >>> ("embed", ()) in stops(held, query, grow(held, query, []), [Path("embed")]).ends
    False
    """
    known = {(path.source, path.components) for path in listed}
    ends: list[tuple[str, Word]] = []
    sizes, slacks = [np.zeros(0)], [np.zeros(0)]
    if tree and "b_U" in query.stops(query.start) and ("b_U", ()) not in known:
        ends.append(("b_U", ()))
        sizes.append(np.array([abs(held.constant)]))
        slacks.append(gamma(2) * sizes[-1])
    for source in held.sources:
        words = [
            word
            for word, suffix in tree.items()
            if (not word or word[0].layer >= source.boundary)
            and source.label in query.stops(suffix.state)
            and (source.label, word) not in known
        ]
        if words:
            ends += [(source.label, word) for word in words]
            for found, more in zip(
                (sizes, slacks), _stopping(held, source, tree, words), strict=True
            ):
                found.append(more)
    return Stops(ends, np.concatenate(sizes), np.concatenate(slacks))


def _stopping(held: Held, source: HeldSource, tree: Tree, words: list[Word]) -> tuple[Array, Array]:
    rows = np.stack([tree[word].row for word in words])  # (suffix, position)
    vectors = np.stack([tree[word].vector for word in words])  # (suffix, d_model)
    most = np.stack([tree[word].size for word in words])  # (suffix, d_model)
    values = ((rows @ source.values) * vectors).sum(axis=1)  # (suffix,)
    spread = ((abs(rows) @ source.size) * most).sum(axis=1)  # (suffix,)
    orders = np.array([len(word) for word in words])
    units = np.array([4 * gamma((1 + n) * held.steps) for n in range(orders.max() + 1)])[orders]
    if any(held.doubts):
        born = held.doubts[source.boundary - 1] if source.boundary else 0.0
        units += [born + sum(held.doubts[head.layer] for head in word) for word in words]
    return abs(values), units * spread + TINY
