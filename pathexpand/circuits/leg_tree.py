"""The paths of one leg of a score, sized by all that they can be worth with the other leg.

For a query path p with its vector u_p (d_head,), Σ_q (u_p · v_q)² = u_pᵀ G u_p with
G = Σ_q v_q v_qᵀ over all key paths q. G is bounded by energies as `pathexpand.engine.energy` works
them out: it is what a head reading keys would see of M at the key's position. With G = L Lᵀ, the
size of a path is |Lᵀ u_p|, the root of a sum of squares over the d_head columns of L; each column
is an ordinary readout, so that what bounds a suffix along each of them bounds it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.legs import Leg
from pathexpand.engine.energy import Energies, energies, grow, source_seed
from pathexpand.engine.kernel import Moved, lengths
from pathexpand.engine.prompt_tree import Carried, PromptTree, Stacked
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.search import Node
from pathexpand.engine.value import Readout, path_stream
from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenStage, FrozenSum, HeadGroup, MlpGroup
from pathexpand.symbolic import Component, Head, Path
from pathexpand.symbolic.query import Query, everything

Array = npt.NDArray[Any]


def gram_bound(leg: Leg, head: Head) -> Array:
    """Bound Σ_q v_q v_qᵀ over all paths of a leg from above: (d_head, d_head), positive.

    Exact but for rounding where no path passes through two heads; otherwise intermediate positions
    are summed. The two ends of a contrast are bounded one by one: (x + y)² ≤ (1 + t) x² +
    (1 + 1/t) y² for any t > 0.
    """
    # An end of a contrast is read with a sign, which a square does not see.
    each = [
        leg.once(
            ("seen", end.position, leg.frozen.constant),
            partial(_seen, leg.frozen, end.read, end.position, head),
        )
        for end in leg.ends
    ]
    total = each[0]
    for other in each[1:]:
        one, two = float(np.trace(total)), float(np.trace(other))
        t = np.sqrt(two / one) if one > 0 and two > 0 else 1.0
        total = (1 + t) * total + (1 + 1 / t) * other
    total = total + np.outer(leg.constant, leg.constant)
    slack = gamma(16 + len(total)) * float(np.trace(total))
    found: Array = total + slack * np.eye(len(total))
    if not np.isfinite(found).all():
        wanted = "finite numbers"
        raise PathExpandError(f"score of {head}", wanted=wanted, got="overflow in the energies")
    return found


def _seen(frozen: FrozenSum, read: Array, position: int, head: Head) -> Array:
    """Give readᵀ M read at a position, M being the energy of all that reaches the head."""
    size = frozen.positions
    stage = FrozenStage(
        (HeadGroup((head,), np.zeros((1, size, size)), read[None], np.zeros((1, *read.T.shape))),)
    )
    longer = FrozenSum(
        frozen.sources, (*frozen.stages, stage), frozen.streams, frozen.mask, frozen.constant
    )
    query = everything(longer.network())
    (*_, last) = grow(longer, query, source_seed(longer, query))
    seen = last[0][query.start]
    if seen is None:
        return np.zeros((read.shape[1], read.shape[1]))
    out: Array = seen.kernel[0, position]
    return (out + out.T) / 2


def root_of(gram: Array) -> Array:
    """Give L (d_head, d_head) with L Lᵀ no smaller than a positive matrix.

    >>> gram = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> L = root_of(gram)
    >>> bool(np.linalg.eigvalsh(L @ L.T - gram).min() >= -1e-15)
    True
    """
    values, vectors = np.linalg.eigh(gram)
    # What eigh is off by is a small multiple of the largest value (backward stable).
    slack = gamma(64 * len(gram)) * abs(values).max(initial=0.0)
    out: Array = vectors * np.sqrt(np.maximum(values, 0.0) + slack)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class LegCarried(Carried):
    """What a suffix carries: its pieces along every column of L; `columns` (piece,) says which."""

    columns: Array


class LegTree(PromptTree):
    """The suffixes of a leg; each is sized along all columns of L together."""

    def __init__(self, leg: Leg, root: Array, query: Query, energy: Energies) -> None:
        """Take a leg with one end, and L (d_head, column)."""
        (end,) = leg.ends
        self.leg, self.root_matrix = leg, root
        self.directions = end.read @ root  # (d_model, column)
        self.constants = end.constant @ root  # (column,)
        self.count = root.shape[1]
        # Rounding of the directions themselves.
        self.blur = gamma(len(root) + 1) * lengths((abs(end.read) @ abs(root)).T) + TINY
        none = Readout(end.position, self.directions[:, 0], 0.0)
        super().__init__(leg.frozen, none, query, energy)

    def root(self) -> LegCarried:
        """Give every column as a piece."""
        rows = np.zeros((self.count, self.frozen.positions))
        rows[:, self.readout.position] = 1
        lost = np.stack([np.zeros(self.count), self.blur], axis=1)
        moved = Moved(rows, np.ascontiguousarray(self.directions.T), lost)
        return LegCarried(self.frozen.depth, moved, np.arange(self.count))

    def longer(self, carried: Carried, component: Component) -> LegCarried:
        """Put one more component in front, column by column where a piece becomes several."""
        assert isinstance(carried, LegCarried)  # what root gives
        stage, group, index = self.frozen.places[component]
        reader = self.readers[stage][self.frozen.stages[stage].groups.index(group)]
        at, columns = self._at(carried, stage + 1), carried.columns
        if not isinstance(group, MlpGroup):
            return LegCarried(stage, reader.move(index, at), columns)
        parts = [
            reader.move(index, Moved(at.rows[own], at.vectors[own], at.lost[own]))
            for own in (columns == column for column in range(self.count))
        ]
        return LegCarried(
            stage,
            Moved(
                np.concatenate([part.rows for part in parts]),
                np.concatenate([part.vectors for part in parts]),
                np.concatenate([part.lost for part in parts]),
            ),
            np.repeat(np.arange(self.count), [len(part.rows) for part in parts]),
        )

    def sizes(self, nodes: list[Node], source: str) -> Array:
        """Give the size of each suffix with a source in front: (suffix,)."""
        return self._together(self.values(nodes, source))

    @np.errstate(over="ignore", invalid="ignore")
    def rounding(self, nodes: list[Node], source: str) -> Array:
        """Bound the rounding of these sizes: (suffix,)."""
        return self._together(super().rounding(nodes, source))

    def bounds(self, stage: int, nodes: list[Node]) -> Callable[[Any, list[int]], Array]:
        """Prepare √energy of the suffixes continued by each component of a stage."""
        each = super().bounds(stage, nodes)

        def ask(way: Any, some: list[int]) -> Array:
            columns = [n * self.count + column for n in some for column in range(self.count)]
            return self._together(each(way, columns))

        return ask

    def size(self, path: Path) -> float:
        """Give the size of one path."""
        if path.source == self.frozen.constant:
            return float(lengths(self.constants))
        stream = path_stream(self.frozen, self.readout.position, path)
        return float(lengths(stream @ self.directions))

    def _together(self, along: Array) -> Array:
        """Take columns together: (…, suffix * column) to (…, suffix)."""
        return lengths(along.reshape(*along.shape[:-1], -1, self.count))

    def _stacked(self, nodes: list[Node], boundary: int) -> Stacked:
        """Stack pieces with an owner for each suffix and column."""
        stacked = super()._stacked(nodes, boundary)
        carried: list[Any] = [node.carried for node in nodes]
        columns = np.concatenate([each.columns for each in carried])
        owner = stacked.owner * self.count + columns
        count = len(nodes) * self.count
        return Stacked(stacked.rows, stacked.vectors, stacked.lost, owner, count)


def leg_energies(leg: Leg) -> tuple[Query, Energies]:
    """Give the query of every path of a leg, and the energies that bound its suffixes."""
    query = everything(leg.frozen.network())
    found = leg.once(
        ("energies", leg.frozen.positions, leg.frozen.constant),
        lambda: energies(leg.frozen, query),
    )
    return query, found
