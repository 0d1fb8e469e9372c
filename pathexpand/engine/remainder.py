"""The sum of the paths that were not listed, by its own route: never "dense minus listed"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import TINY, UNIT, gamma
from pathexpand.engine.value import Readout, Suffix, completed, empty_suffix, prepend
from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenSource, FrozenSum
from pathexpand.symbolic import Head, Path
from pathexpand.symbolic.query import Query, everything

Array = npt.NDArray[Any]
Word = tuple[Head, ...]


@dataclass(frozen=True, slots=True)
class Remainder:
    """The sum of the unlisted paths, their number, and a bound on the rounding of all values.

    `rounding` covers this sum and the listed values that it was split from; it is 0.0 where no
    streams were given to measure it with.
    """

    value: Any
    count: int
    rounding: float


@dataclass(slots=True)
class Listed:
    """The listed paths as a tree of suffixes, from the readout back."""

    suffixes: dict[Word, Suffix]
    children: dict[Word, set[Head]] = field(default_factory=dict)
    stops: set[tuple[Word, str]] = field(default_factory=set)

    def active(self, boundary: int) -> list[Word]:
        """Give the suffixes all of whose heads stand at or after a boundary."""
        return [word for word in self.suffixes if not word or word[0].layer >= boundary]


def listed_tree(frozen: FrozenSum, readout: Readout, paths: Iterable[Path]) -> Listed:
    """Arrange listed paths by their shared suffixes."""
    tree = Listed({(): empty_suffix(frozen, readout)})
    for path in paths:
        word: Word = ()
        for head in reversed(path.components):
            longer = (head, *word)
            if longer not in tree.suffixes:
                tree.suffixes[longer] = prepend(tree.suffixes[word], frozen, head)
                tree.children.setdefault(word, set()).add(head)
            word = longer
        tree.stops.add((word, path.source))
    return tree


def remainder(
    frozen: FrozenSum,
    readout: Readout,
    paths: Iterable[Path],
    *,
    query: Query | None = None,
    streams: Sequence[Array] | None = None,
) -> Remainder:
    """Sum every path of a query, by default of all, that is not among `paths`.

    One pass back from the readout carries the functional of everything not listed, one for each
    state of the query. At each layer it takes up, from each listed suffix, the heads that no
    listed path continues with, and at each boundary the sources that none stops at. `streams[l]`
    (position, d_model) is the stream before layer l; given, it turns every local rounding error
    into its effect on the result.
    """
    asked = everything(frozen.network()) if query is None else query
    tree = listed_tree(frozen, readout, paths)
    sizes = [None] * (len(frozen.layers) + 1) if streams is None else [abs(x) for x in streams]
    rest = _Rest(frozen, readout, asked, tree, measured=streams is not None)
    for boundary in reversed(range(len(frozen.layers) + 1)):
        for source in (s for s in frozen.sources if s.boundary == boundary):
            rest.stop(source, boundary)
        if boundary:
            rest.carry(boundary - 1, sizes[boundary - 1])
    if frozen.has_unembed_bias and "b_U" in asked.stops(asked.start):
        rest.stop_in_logits()
    rounding = rest.rounding
    if streams is not None:
        rounding += _suffix_rounding(frozen, tree, sizes)
    return Remainder(rest.value, rest.count, rounding)


class _Rest:
    """What is not listed, on its way back: a functional (position, d_model) a query state."""

    def __init__(
        self, frozen: FrozenSum, readout: Readout, query: Query, tree: Listed, *, measured: bool
    ) -> None:
        self.frozen, self.readout, self.query, self.tree = frozen, readout, query, tree
        self.measured = measured
        root = tree.suffixes[()]
        shape = (query.states, root.row.size, root.vector.size)
        self.free = np.zeros(shape, dtype=root.vector.dtype)
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
            self._add(completed(self.tree.suffixes[word], source).sum())
        self.count += sum(self.free_counts[q] for q in ending) + len(left)
        if self.measured:
            size = abs(self.free[ending]).sum(axis=0)
            suffixes = [self.tree.suffixes[word] for word in active]
            self.rounding += _stop_rounding(size, suffixes, source, self.query.states)

    def stop_in_logits(self) -> None:
        """Add the bias born in the logits, if it is not listed."""
        if ((), "b_U") not in self.tree.stops:
            self._add(self.readout.constant)
            self.count += 1

    def carry(self, index: int, size: Array | None) -> None:
        """Carry the functionals through a layer, with each unlisted step out of a suffix."""
        layer, active = self.frozen.layers[index], self.tree.active(index + 1)
        rows = np.stack([self.tree.suffixes[word].row for word in active])  # (suffix, position)
        vectors = np.stack([self.tree.suffixes[word].vector for word in active])
        out, counts = self.free.copy(), list(self.free_counts)
        spread = np.zeros(()) if size is None else abs(self.free).sum(axis=0)
        for number, head in enumerate(layer.heads):
            after = [self.query.step(q, head) for q in range(self.query.states)]
            fresh = [head not in self.tree.children.get(word, ()) for word in active]
            for state in sorted({each for each in after if each is not None}):
                come = [q for q, each in enumerate(after) if each == state]
                keep = [
                    new and self.states[word] in come
                    for new, word in zip(fresh, active, strict=True)
                ]
                counts[state] += sum(self.free_counts[q] for q in come) + sum(keep)
                reads = self.free[come].sum(axis=0) + rows[keep].T @ vectors[keep]
                pattern, w_v, w_o = layer.patterns[number], layer.W_V[number], layer.W_O[number]
                out[state] += (pattern.T @ (reads @ w_o.T)) @ w_v.T  # (position, d_model)
                if size is not None:
                    most = abs(self.free[come]).sum(axis=0)
                    most = most + abs(rows[keep]).T @ abs(vectors[keep])
                    mixed = abs(pattern).T @ (most @ abs(w_o).T + TINY) + TINY
                    spread = spread + mixed @ abs(w_v).T + TINY
        self.free, self.free_counts = out, counts
        if size is not None:
            # Roundings met by one product on its way: the sum over suffixes and states, three
            # matrix products, the sum over heads.
            steps = len(active) + sum(layer.W_V.shape) + rows.shape[1] + 2 + self.query.states
            self.rounding += gamma(steps) * float((spread * size).sum())

    def _add(self, part: Any) -> None:
        self.value = self.value + part
        if self.measured:
            # Any number of additions may follow one another: each is off by its own result.
            self.rounding += UNIT * abs(float(self.value))


def _state(query: Query, word: Word) -> int:
    state: int | None = query.start
    for head in reversed(word):
        state = None if state is None else query.step(state, head)
    if state is None:
        raise PathExpandError(
            f"suffix {' > '.join(map(str, word))}", wanted=f"a path of the query {query.text!r}"
        )
    return state


def _stop_rounding(free: Array, suffixes: list[Suffix], source: FrozenSource, states: int) -> float:
    values = abs(source.values)  # (position, d_model)
    total = float((free * values + TINY).sum())
    total += sum(float(abs(s.row) @ (values @ abs(s.vector) + TINY)) + TINY for s in suffixes)
    return gamma(sum(values.shape) + 2 + states) * total


def _suffix_rounding(frozen: FrozenSum, tree: Listed, sizes: Sequence[Any]) -> float:
    """Bound the effect of rounding in each suffix's own step: it reads the stream below it."""
    total = 0.0
    for word, suffix in tree.suffixes.items():
        if not word:
            continue
        head, before = word[0], tree.suffixes[word[1:]]
        layer, size = frozen.layers[head.layer], sizes[head.layer]
        w_v, w_o = abs(layer.W_V[head.index]), abs(layer.W_O[head.index])
        row = abs(before.row) @ abs(layer.patterns[head.index]) + TINY
        row *= gamma(before.row.size)
        vector = gamma(sum(w_v.shape)) * (w_v @ (w_o @ abs(before.vector) + TINY) + TINY)
        total += float((row @ size) @ abs(suffix.vector) + (abs(suffix.row) @ size) @ vector)
    return total
