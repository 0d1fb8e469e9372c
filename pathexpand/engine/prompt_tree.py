"""The paths of one run as a tree to search: sizes are |values|, bounds come from energies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.energy import Energies, over_peak
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.search import Node
from pathexpand.engine.value import Readout, Suffix, empty_suffix, path_value, prepend
from pathexpand.frozen import FrozenLayer, FrozenSum
from pathexpand.symbolic import Head, Network, Path

Array = npt.NDArray[Any]
Carried = tuple[Array, Array, Array]  # row, vector, errors of both


class PromptTree:
    """The suffixes of one run.

    Each carries its row (position,), its vector (d_model,), and what rounding can have done to
    them: the 1-norm of the row's error and the 2-norm of the vector's. So bounds hold for the
    exact values of paths, however much cancels on the way.
    """

    def __init__(self, frozen: FrozenSum, readout: Readout, energy: Energies) -> None:
        """Take a run cut at the readout's position, and the energies of its heads."""
        self.frozen, self.readout, self.energy = frozen, readout, energy
        self.network: Network = frozen.network()
        self.sources = {source.label: source.values for source in frozen.sources}
        self.most = {name: float(_lengths(each).max()) for name, each in self.sources.items()}
        self.norms = [_HeadNorms.of(layer) for layer in frozen.layers]

    def root(self) -> Carried:
        """Give the readout's row and direction, both exact."""
        suffix = empty_suffix(self.frozen, self.readout)
        return suffix.row, suffix.vector, np.zeros(2)

    @np.errstate(over="ignore", invalid="ignore")
    def longer(self, carried: Carried, head: Head) -> Carried:
        """Move the row by the head's pattern and the vector through W_V W_O."""
        row, vector, lost = carried
        suffix = prepend(Suffix(row, vector), self.frozen, head)
        norms, n = self.norms[head.layer], head.index
        steps = sum(self.frozen.layers[head.layer].W_V.shape[1:])
        moved = norms.row_sum[n] * (lost[0] + gamma(row.size) * abs(row).sum())
        through = norms.write[n] * norms.read[n] * lost[1]
        through += gamma(steps) * norms.all_[n] * float(np.linalg.norm(vector))
        return suffix.row, suffix.vector, np.array([moved, through])

    def sizes(self, nodes: list[Node], source: str) -> Array:
        """Give |value| of each suffix with a source in front: (suffix,)."""
        rows = np.stack([node.carried[0] for node in nodes])  # (suffix, position)
        vectors = np.stack([node.carried[1] for node in nodes])  # (suffix, d_model)
        return abs(((rows @ self.sources[source]) * vectors).sum(axis=1))

    @np.errstate(over="ignore", invalid="ignore")
    def rounding(self, nodes: list[Node], source: str) -> Array:
        """Bound the rounding of these sizes: (suffix,)."""
        rows, vectors, lost = _stacked(nodes)
        size, length = abs(rows).sum(axis=1), _lengths(vectors)  # (suffix,)
        steps = gamma(rows.shape[1] + vectors.shape[1])
        out = lost[:, 0] * length + (size + lost[:, 0]) * lost[:, 1] + steps * size * length
        out = self.most[source] * out + TINY
        return np.where(np.isnan(out), np.inf, out)

    @np.errstate(over="ignore", invalid="ignore")
    def bounds(self, layer: int, nodes: list[Node]) -> Callable[[int, list[int], list[int]], Array]:
        """Prepare √energy of the suffixes continued by each head of a layer.

        √energy is a norm of (row, vector), linear in each: what rounding changed in them adds at
        most their errors' own norms, times the root of the largest K.
        """
        rows, vectors, lost = _stacked(nodes)
        at, norms = self.frozen.layers[layer], self.norms[layer]
        heads, d_head, d_model = at.W_O.shape
        moved = rows @ at.patterns  # (head, suffix, key)
        read = vectors @ at.W_O.reshape(-1, d_model).T  # (suffix, head * d_head)
        inner = np.swapaxes(read.reshape(len(nodes), heads, d_head), 0, 1)  # (head, suffix, d_head)
        row_lost = lost[:, 0] + gamma(rows.shape[1]) * abs(rows).sum(axis=1)  # (suffix,)
        row_lost = norms.row_sum[:, None] * row_lost  # (head, suffix)
        inner_lost = norms.read[:, None] * lost[:, 1]
        inner_lost = inner_lost + gamma(d_model) * norms.all_read[:, None] * _lengths(vectors)
        size = abs(moved).sum(axis=2) + row_lost
        spread = row_lost * _lengths(inner) + size * inner_lost  # (head, suffix)

        @np.errstate(over="ignore", invalid="ignore")
        def ask(state: int, which: list[int], some: list[int]) -> Array:
            pick = np.ix_(which, some)
            bound = self.energy.bound(layer, state, which, moved[pick], inner[pick])
            root = np.sqrt(self.energy.largest(layer, state)[which])[:, None]  # (head, 1)
            bound = bound + root * spread[pick]
            return np.where(np.isnan(bound), np.inf, bound)

        return ask

    def size(self, path: Path) -> float:
        """Give |value| of one path."""
        return abs(float(path_value(self.frozen, self.readout, path)))


def _stacked(nodes: list[Node]) -> Carried:
    """Give rows (suffix, position), vectors (suffix, d_model) and errors (suffix, 2)."""
    rows, vectors, lost = (np.stack([node.carried[n] for node in nodes]) for n in range(3))
    return rows, vectors, lost


def _lengths(array: Array) -> Array:
    """Give the lengths of vectors along the last axis, or a little more."""
    unit, peak = over_peak(array)
    out: Array = np.sqrt((unit**2).sum(axis=-1)) * peak[..., 0] * (1 + 1e-9)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _HeadNorms:
    """What a layer's heads can make of errors, one number a head.

    `row_sum` is the largest row sum of |pattern|; `read` and `write` bound the spectral norms of
    W_O and W_V, `all_read` the Frobenius norm of W_O, `all_` the product of both Frobenius norms.
    """

    row_sum: Array
    read: Array
    write: Array
    all_read: Array
    all_: Array

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")
    def of(cls, layer: FrozenLayer) -> _HeadNorms:
        row_sum = abs(layer.patterns).sum(axis=2).max(axis=1, initial=0.0) * (1 + 1e-9)
        write = _frobenius(layer.W_V)
        read = _frobenius(layer.W_O)
        return cls(
            row_sum,
            _spectral(layer.W_O, read),
            _spectral(np.swapaxes(layer.W_V, 1, 2), write),
            read,
            read * write,
        )


def _frobenius(matrices: Array) -> Array:
    heads, rows, columns = matrices.shape
    return _lengths(matrices.reshape(heads, rows * columns))


def _spectral(wide: Array, frobenius: Array) -> Array:
    """Bound the spectral norms of matrices (head, small, large), by their small Gram matrices."""
    scale = np.where(frobenius == 0, 1.0, frobenius)[:, None, None]
    unit = wide / scale  # of Frobenius norm 1, so that squares stay in range
    gram = unit @ np.swapaxes(unit, 1, 2)  # (head, small, small)
    largest = np.linalg.eigvalsh(gram).max(axis=1, initial=0.0)
    out: Array = np.sqrt(np.clip(largest, 0.0, None) + 1e-9) * frobenius
    return out
