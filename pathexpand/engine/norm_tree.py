"""Paths from the weights alone as a tree to search: sizes are Frobenius norms of their matrices.

The energy of a suffix is exact here: the sum of ‖S OV¹ … Y‖² over everything that can stand in
front of a suffix Y is tr(Yᵀ K Y), with K the Gram matrix of all of it, carried from stage to stage
as in `pathexpand.engine.energy` for a single position on which every pattern is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.energy import FLOOR, Grown, Seen, grow, measured
from pathexpand.engine.kernel import over_peak
from pathexpand.engine.norm import check_at_rest, head_maps, path_factors, source_rows, unembed
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.search import Node
from pathexpand.engine.ways import Way, ways
from pathexpand.frozen import FrozenStage, FrozenSum, HeadGroup
from pathexpand.lowrank import Factored
from pathexpand.model.weights import Weights
from pathexpand.symbolic import Component, Head, Network, Path
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
        check_at_rest(weights)
        self.weights, self.network, self.centred = weights, network, centred
        self.unembed = unembed(weights, centred=centred)
        self.rows = {
            source.label: triangle(source_rows(weights, source.label))
            for source in network.sources
            if source.boundary is not None
        }
        self.heads = _heads_at_rest(weights, network)
        stages = tuple(FrozenStage((group,)) for group in self.heads)
        rest = FrozenSum((), stages, (), np.ones(1, dtype=bool), constant=None)
        self._ways = [list(ways(rest, query, n)) for n in range(network.depth)]
        grown = grow(rest, query, self._seed(query), named=True)
        self.kernels = [stage[0] for stage in grown]  # by stage and state

    def ways(self, stage: int) -> list[Way]:
        """Give the ways of the query through a stage."""
        return self._ways[stage]

    def root(self) -> tuple[Array, None]:
        """Give the unembedding, triangular."""
        return triangle(self.unembed.T).T, None

    @np.errstate(over="ignore", invalid="ignore")
    def longer(self, carried: tuple[Array, Head | None], head: Component) -> tuple[Array, Head]:
        """Put W_O of a head in front, and keep only what norms can see."""
        assert isinstance(head, Head)  # there is nothing else without a prompt
        return triangle(self._behind(carried, head).T).T, head

    @np.errstate(over="ignore", invalid="ignore")
    def sizes(self, nodes: list[Node], source: str) -> Array:
        """Give the norm of each suffix with a source in front: (suffix,)."""
        return np.array([self._norm(source, node.carried) for node in nodes])

    def rounding(self, nodes: list[Node], source: str) -> Array:
        """Give 0: norms add nothing up that could cancel, so they keep nearly every digit."""
        return np.zeros(len(nodes))

    def bounds(self, stage: int, nodes: list[Node]) -> Callable[[Way, list[int]], Array]:
        """Prepare √energy of the suffixes continued by each head of a stage."""

        @np.errstate(over="ignore", invalid="ignore")
        def ask(way: Way, some: list[int]) -> Array:
            heads = range(len(way.group.components)) if way.which is None else way.which
            out = np.zeros((len(heads), len(some)))
            for row, n in enumerate(heads):
                kernel, size = self._kernel(stage, way.after, n)
                for column, m in enumerate(some):
                    head = way.group.components[n]
                    behind = self._behind(nodes[m].carried, head)  # (d_head, rank)
                    part, peak = over_peak(behind.ravel())
                    part = part.reshape(behind.shape)
                    energy = float(((kernel @ part) * part).sum())
                    lost = gamma(sum(behind.shape) + len(kernel) + 4) * size * (part**2).sum()
                    bound = float(np.sqrt(max(energy, 0.0) + lost) * peak[0])
                    out[row, column] = max(bound, TINY * (lost > 0))
            return np.where(np.isnan(out), np.inf, out * (1 + 1e-9))

        return ask

    @np.errstate(over="ignore", invalid="ignore")
    def energy(self, query: Query) -> float:
        """Give Σ norm² over every path of the query, exact but for rounding."""
        root, state = self.root(), query.start
        total = 0.0
        for source in self.network.sources:
            if source.label in query.stops(state):
                label = source.label
                free = source.boundary is None
                norm = self.size(Path(label)) if free else self._norm(label, root)
                total += norm * norm
        for stage, components in enumerate(self.network.stages):
            for number, head in enumerate(components):
                after = query.step(state, head)
                if after is not None:
                    kernel, _ = self._kernel(stage, after, number)
                    behind = self._behind(root, head)  # (d_head, rank)
                    total += float(((kernel @ behind) * behind).sum())
        return np.inf if np.isnan(total) else total  # what overflowed

    @np.errstate(over="ignore", invalid="ignore")
    def size(self, path: Path) -> float:
        """Give the norm of one path's matrix."""
        factors = list(path_factors(self.weights, path).values())
        factors[-1] = self._last(path, factors[-1])
        return Factored.product(factors).norm()

    def bytes(self, carried: tuple[Array, Head | None]) -> int:
        """Give the memory that what a suffix carries takes."""
        return carried[0].nbytes

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

    def _kernel(self, stage: int, state: int, head: int) -> tuple[Array, float]:
        """Give one head's K (d_head, d_head) and its size."""
        seen: Seen | None = self.kernels[stage][state]
        if seen is None:
            d_head = self.heads[stage].W_V.shape[2]
            return np.zeros((d_head, d_head)), 0.0
        return seen.kernel[head, 0], float(seen.size[head, 0])

    def _behind(self, carried: tuple[Array, Head | None], head: Component) -> Array:
        matrix, later = carried
        w_o = self.heads[head.layer].W_O[head.index]  # (d_head, d_model)
        if later is None:
            return np.asarray(w_o @ matrix)
        return np.asarray((w_o @ self.heads[later.layer].W_V[later.index]) @ matrix)

    def _seed(self, query: Query) -> Callable[[int, int], Grown | None]:
        def seed(boundary: int, state: int) -> Grown | None:
            born = [
                self.rows[source.label]
                for source in self.network.sources
                if source.boundary == boundary and source.label in query.stops(state)
            ]
            if not born:
                return None
            rows = np.concatenate(born)  # (rows, d_model)
            most = (rows**2).sum()
            slack = gamma(len(rows) + 2) * most + FLOOR * rows.any()
            return measured((rows.T @ rows)[None], np.array([slack]))

        return seed


def _heads_at_rest(weights: Weights, network: Network) -> list[HeadGroup]:
    """Give the heads of each layer at a single position on which every pattern is 1."""
    return [
        HeadGroup(
            tuple(each for each in components if isinstance(each, Head)),
            np.ones((len(components), 1, 1)),
            *head_maps(block),
        )
        for components, block in zip(network.stages, weights.blocks, strict=True)
    ]


def triangle(matrix: Array) -> Array:
    """Give R of a QR decomposition, or the matrix itself where it is wide already.

    >>> triangle(np.array([[3.0], [4.0]])).shape
    (1, 1)
    """
    if matrix.shape[0] <= matrix.shape[1]:
        return matrix
    return np.asarray(np.linalg.qr(matrix, mode="r"))
