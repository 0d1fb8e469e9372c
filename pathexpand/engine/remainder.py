"""The sum of the paths that were not listed, by its own route: never "dense minus listed"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import TINY, UNIT, gamma
from pathexpand.engine.value import Readout, Suffix, completed, empty_suffix, prepend
from pathexpand.frozen import FrozenLayer, FrozenSource, FrozenSum
from pathexpand.symbolic import Head, Path

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
    streams: Sequence[Array] | None = None,
) -> Remainder:
    """Sum every path that is not among `paths`.

    One pass back from the readout carries the functional of everything not listed. At each layer
    it takes up, from each listed suffix, the heads that no listed path continues with, and at
    each boundary the sources that none stops at. `streams[l]` (position, d_model) is the stream
    before layer l; given, it turns every local rounding error into its effect on the result.
    """
    tree = listed_tree(frozen, readout, paths)
    root = tree.suffixes[()]
    sizes = [None] * (len(frozen.layers) + 1) if streams is None else [abs(x) for x in streams]
    free = np.zeros((root.row.size, root.vector.size), dtype=root.vector.dtype)
    value: Any = 0
    free_count, count, rounding = 0, 0, 0.0
    for boundary in reversed(range(len(frozen.layers) + 1)):
        active = tree.active(boundary)
        for source in (s for s in frozen.sources if s.boundary == boundary):
            left = [word for word in active if (word, source.label) not in tree.stops]
            for part in _stopping(free, [tree.suffixes[word] for word in left], source):
                value = value + part
                # Any number of additions may follow one another: each is off by its own result.
                rounding += 0.0 if streams is None else UNIT * abs(float(value))
            count += free_count + len(left)
            if streams is not None:
                rounding += _stop_rounding(free, [tree.suffixes[w] for w in active], source)
        if boundary:
            layer = frozen.layers[boundary - 1]
            carried = _carry(layer, free, tree, active, sizes[boundary - 1])
            free, rounding = carried.reads, rounding + carried.rounding
            free_count += len(layer.heads) * free_count + carried.taken
    if frozen.has_unembed_bias and ((), "b_U") not in tree.stops:
        value, count = value + readout.constant, count + 1
        rounding += 0.0 if streams is None else UNIT * abs(float(value))
    if streams is not None:
        rounding += _suffix_rounding(frozen, tree, sizes)
    return Remainder(value, count, rounding)


def _stopping(free: Array, suffixes: list[Suffix], source: FrozenSource) -> Iterator[Any]:
    """Yield what stops at a source: the free functional's reading of it, and each suffix's."""
    yield (free * source.values).sum(axis=1).sum()
    for suffix in suffixes:
        yield completed(suffix, source).sum()


@dataclass(frozen=True, slots=True)
class _Carried:
    reads: Array
    taken: int
    rounding: float


def _carry(
    layer: FrozenLayer, free: Array, tree: Listed, active: list[Word], size: Array | None
) -> _Carried:
    """Carry the free functional through a layer, with each unlisted step out of a suffix."""
    rows = np.stack([tree.suffixes[word].row for word in active])  # (suffix, position)
    vectors = np.stack([tree.suffixes[word].vector for word in active])  # (suffix, d_model)
    out, spread, taken = free, free if size is None else abs(free), 0
    for index, head in enumerate(layer.heads):
        keep = [head not in tree.children.get(word, ()) for word in active]
        taken += sum(keep)
        pattern, w_v, w_o = layer.patterns[index], layer.W_V[index], layer.W_O[index]
        reads = free + rows[keep].T @ vectors[keep]  # (position, d_model)
        out = out + (pattern.T @ (reads @ w_o.T)) @ w_v.T
        if size is not None:
            most = abs(free) + abs(rows[keep]).T @ abs(vectors[keep])
            mixed = abs(pattern).T @ (most @ abs(w_o).T + TINY) + TINY  # (position, d_head)
            spread = spread + mixed @ abs(w_v).T + TINY
    if size is None:
        return _Carried(out, taken, 0.0)
    # Roundings met by one product on its way: the sum over suffixes, three matrix products, the
    # sum over heads.
    steps = len(active) + sum(layer.W_V.shape) + rows.shape[1] + 2
    return _Carried(out, taken, gamma(steps) * float((spread * size).sum()))


def _stop_rounding(free: Array, suffixes: list[Suffix], source: FrozenSource) -> float:
    values = abs(source.values)  # (position, d_model)
    total = float((abs(free) * values + TINY).sum())
    total += sum(float(abs(s.row) @ (values @ abs(s.vector) + TINY)) + TINY for s in suffixes)
    return gamma(sum(values.shape) + 2) * total


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
