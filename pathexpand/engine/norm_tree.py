"""Paths from the weights alone as a tree to search: sizes are Frobenius norms of their matrices.

The energy of a suffix is exact here: the sum of ‖S OV¹ … Y‖² over everything that can stand in
front of a suffix Y is tr(Yᵀ K Y), with K the Gram matrix of all of it, carried from head to head
through virtual weights as in `pathexpand.engine.energy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.energy import FLOOR, Grown, grow, over_peak
from pathexpand.engine.norm import path_factors, source_rows, unembed
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.search import Node
from pathexpand.frozen import FrozenLayer
from pathexpand.lowrank import Factored
from pathexpand.model.weights import Weights
from pathexpand.symbolic import Head, Network, Path
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]


class NormTree:
    """The suffixes of a model's paths; each carries its matrix up to an orthonormal factor.

    The empty suffix carries W_U as (d_model, rank); one that starts with a head carries what
    follows the head's W_V, (d_head, rank). With `centred`, W_U has its mean column taken off.
    """

    def __init__(
        self, weights: Weights, network: Network, query: Query, *, centred: bool = False
    ) -> None:
        """Work out the Gram matrices of every head for every state of the query."""
        self.weights, self.network, self.centred = weights, network, centred
        self.unembed = unembed(weights, centred=centred)
        self.rows = {
            source.label: triangle(source_rows(weights, source.label))
            for source in network.sources
            if source.boundary is not None
        }
        self.heads = [block.attn for block in weights.blocks]
        self.kernels = self._kernels(query)

    def root(self) -> tuple[Array, None]:
        """Give the unembedding, triangular."""
        return triangle(self.unembed.T).T, None

    def longer(self, carried: tuple[Array, Head | None], head: Head) -> tuple[Array, Head]:
        """Put W_O of a head in front, and keep only what norms can see."""
        return triangle(self._behind(carried, head).T).T, head

    def sizes(self, nodes: list[Node], source: str) -> Array:
        """Give the norm of each suffix with a source in front: (suffix,)."""
        return np.array([self._norm(source, node.carried) for node in nodes])

    def rounding(self, nodes: list[Node], source: str) -> Array:
        """Give 0: norms add nothing up that could cancel, so they keep nearly every digit."""
        return np.zeros(len(nodes))

    def bounds(self, layer: int, nodes: list[Node]) -> Callable[[int, list[int], list[int]], Array]:
        """Prepare √energy of the suffixes continued by each head of a layer."""
        heads = self.network.layers[layer]

        @np.errstate(over="ignore", invalid="ignore")
        def ask(state: int, which: list[int], some: list[int]) -> Array:
            out = np.zeros((len(which), len(some)))
            for row, n in enumerate(which):
                kernel, size = self._kernel(layer, state, n)
                for column, m in enumerate(some):
                    behind = self._behind(nodes[m].carried, heads[n])  # (d_head, rank)
                    part, peak = over_peak(behind.ravel())
                    part = part.reshape(behind.shape)
                    energy = float(((kernel @ part) * part).sum())
                    lost = gamma(sum(behind.shape) + len(kernel) + 4) * size * (part**2).sum()
                    bound = float(np.sqrt(max(energy, 0.0) + lost) * peak[0])
                    out[row, column] = max(bound, TINY * (lost > 0))
            return np.where(np.isnan(out), np.inf, out * (1 + 1e-9))

        return ask

    def energy(self, query: Query) -> float:
        """Give Σ norm² over every path of the query, exact but for rounding."""
        root, state = self.root(), query.start
        total = 0.0
        for source in self.network.sources:
            if source.label in query.stops(state):
                label = source.label
                free = source.boundary is None
                total += (self.size(Path(label)) if free else self._norm(label, root)) ** 2
        for layer, heads in enumerate(self.network.layers):
            for number, head in enumerate(heads):
                after = query.step(state, head)
                if after is not None:
                    kernel, _ = self._kernel(layer, after, number)
                    behind = self._behind(root, head)  # (d_head, rank)
                    total += float(((kernel @ behind) * behind).sum())
        return total

    def size(self, path: Path) -> float:
        """Give the norm of one path's matrix."""
        factors = list(path_factors(self.weights, path).values())
        factors[-1] = self._last(path, factors[-1])
        return Factored.product(factors).norm()

    def _last(self, path: Path, factor: Array) -> Array:
        if path.source != "b_U":
            return self.unembed
        return factor - factor.mean() if self.centred else factor

    def _norm(self, source: str, carried: tuple[Array, Head | None]) -> float:
        matrix, head = carried
        front = self.rows[source]
        if head is not None:
            front = front @ self.heads[head.layer].W_V[head.index]  # (rows, d_head)
        part, peak = over_peak((front @ matrix).ravel())
        return float(np.linalg.norm(part) * peak[0])

    def _kernel(self, layer: int, state: int, head: int) -> tuple[Array, float]:
        """Give one head's K (d_head, d_head) and its size."""
        kernel, size = self.kernels[layer][state]
        return kernel[head, :, 0], float(size[head, 0])

    def _behind(self, carried: tuple[Array, Head | None], head: Head) -> Array:
        matrix, later = carried
        w_o = self.heads[head.layer].W_O[head.index]  # (d_head, d_model)
        if later is None:
            return np.asarray(w_o @ matrix)
        return np.asarray((w_o @ self.heads[later.layer].W_V[later.index]) @ matrix)

    @np.errstate(over="ignore", invalid="ignore")
    def _kernels(self, query: Query) -> list[list[Grown]]:
        """Give K (head, d_head, 1, d_head) of each layer and state: one position, all weight 1."""
        layers = [
            FrozenLayer(heads, np.ones((len(heads), 1, 1)), attn.W_V, attn.W_O)
            for heads, attn in zip(self.network.layers, self.heads, strict=True)
        ]

        def seed(index: int, state: int) -> Grown:
            w_v = layers[index].W_V
            heads, d_model, d_head = w_v.shape
            total, slack = np.zeros((heads, d_head, 1, d_head)), np.zeros((heads, 1))
            for source in self.network.sources:
                born = source.boundary
                if born is None or born > index or source.label not in query.stops(state):
                    continue
                rows = self.rows[source.label]
                seen = rows @ w_v  # (head, rows, d_head)
                total[:, :, 0] += np.swapaxes(seen, 1, 2) @ seen
                most = (rows**2).sum() * (w_v**2).sum(axis=(1, 2))  # (head,)
                slack[:, 0] += gamma(2 * d_model + len(rows) + 2) * most
                slack[:, 0] += FLOOR * (w_v.any(axis=(1, 2)) & rows.any())
            return total, slack

        weights = [layer.patterns for layer in layers]
        return list(grow(layers, weights, query, seed))


def triangle(matrix: Array) -> Array:
    """Give R of a QR decomposition, or the matrix itself where it is wide already.

    >>> triangle(np.array([[3.0], [4.0]])).shape
    (1, 1)
    """
    if matrix.shape[0] <= matrix.shape[1]:
        return matrix
    return np.asarray(np.linalg.qr(matrix, mode="r"))
