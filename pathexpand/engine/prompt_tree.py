"""The paths of one run as a tree to search: sizes are |values|, bounds come from energies."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.energy import Energies
from pathexpand.engine.kernel import Moved, lengths, reader_of
from pathexpand.engine.rounding import TINY, UNIT, gamma
from pathexpand.engine.search import Node
from pathexpand.engine.value import Readout, empty_suffix, path_value
from pathexpand.engine.ways import Way, ways
from pathexpand.frozen import Carry, FrozenSum
from pathexpand.symbolic import Component, Network, Path
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """What a suffix carries: the boundary it stands at, and its pieces with their errors."""

    boundary: int
    moved: Moved


@dataclass(frozen=True, slots=True, eq=False)
class Stacked:
    """The pieces of many suffixes at one boundary; `owner` (piece,) says whose each is."""

    rows: Array
    vectors: Array
    lost: Array
    owner: Array
    count: int

    def by_suffix(self, pieces: Array) -> Array:
        """Add up over each suffix's pieces: (…, piece) to (…, suffix)."""
        return _added_up(pieces, self.owner, self.count)


class PromptTree:
    """The suffixes of one run.

    Each carries its row (position,), its vector (d_model,), and what rounding can have done to
    them: the 1-norm of the row's error and the 2-norm of the vector's. So bounds hold for the
    exact values of paths, however much cancels on the way. Behind an MLP taken whole a suffix has
    several of these; √energy is a norm, so their bounds add up to one for the suffix.
    """

    def __init__(
        self, frozen: FrozenSum, readout: Readout, query: Query, energy: Energies | None = None
    ) -> None:
        """Take a run cut at the readout's position; without energies nothing can be bounded."""
        self.frozen, self.readout = frozen, readout
        self.kernels = () if energy is None else energy.kernels
        self.network: Network = frozen.network()
        self.sources = {source.label: source for source in frozen.sources}
        self.most = {name: float(lengths(each.values).max()) for name, each in self.sources.items()}
        self.readers = [[reader_of(group) for group in stage.groups] for stage in frozen.stages]
        self._ways = [list(ways(frozen, query, n)) for n in range(frozen.depth)]

    def reading(self, readout: Readout) -> PromptTree:
        """Give the same run read otherwise; what does not depend on the readout is shared."""
        other = copy(self)
        other.readout = readout
        return other

    def ways(self, stage: int) -> list[Way]:
        """Give the ways of the query through a stage."""
        return self._ways[stage]

    def root(self) -> Carried:
        """Give the readout's row and direction, both exact."""
        suffix = empty_suffix(self.frozen, self.readout)
        lost = np.zeros((len(suffix.rows), 2))
        return Carried(suffix.boundary, Moved(suffix.rows, suffix.vectors, lost))

    def longer(self, carried: Carried, component: Component) -> Carried:
        """Put one more component in front."""
        stage, group, index = self.frozen.places[component]
        reader = self.readers[stage][self.frozen.stages[stage].groups.index(group)]
        return Carried(stage, reader.move(index, self._at(carried, stage + 1)))

    @np.errstate(over="ignore", invalid="ignore")
    def values(self, nodes: list[Node], source: str) -> Array:
        """Give the value of each suffix with a source in front: (suffix,)."""
        born = self.sources[source]
        at = self._stacked(nodes, born.boundary)
        return at.by_suffix(((at.rows @ born.values) * at.vectors).sum(axis=1))

    def sizes(self, nodes: list[Node], source: str) -> Array:
        """Give |value| of each suffix with a source in front: (suffix,)."""
        return abs(self.values(nodes, source))

    @np.errstate(over="ignore", invalid="ignore")
    def rounding(self, nodes: list[Node], source: str) -> Array:
        """Bound the rounding of these sizes: (suffix,)."""
        at = self._stacked(nodes, self.sources[source].boundary)
        size, length = abs(at.rows).sum(axis=1), lengths(at.vectors)  # (piece,)
        steps = gamma(at.rows.shape[1] + at.vectors.shape[1] + len(at.owner) - at.count)
        out = at.lost[:, 0] * length + (size + at.lost[:, 0]) * at.lost[:, 1]
        out = self.most[source] * (out + steps * size * length) + TINY * (1 + size + length)
        out = at.by_suffix(out)
        return np.where(np.isnan(out), np.inf, out)

    def bounds(self, stage: int, nodes: list[Node]) -> Callable[[Way, list[int]], Array]:
        """Prepare √energy of the suffixes continued by each component of a stage."""
        at = self._stacked(nodes, stage + 1)
        reads = [reader.read(at.rows, at.vectors, at.lost) for reader in self.readers[stage]]

        def ask(way: Way, some: list[int]) -> Array:
            kernel = self.kernels[stage][way.number][way.after]
            which = None if way.which is None else list(way.which)
            pieces = np.flatnonzero(np.isin(at.owner, some))
            each = kernel.bound(reads[way.number], which, pieces)  # (component, piece)
            return _added_up(each, np.searchsorted(some, at.owner[pieces]), len(some))

        return ask

    def size(self, path: Path) -> float:
        """Give |value| of one path."""
        return abs(float(path_value(self.frozen, self.readout, path)))

    def bytes(self, carried: Carried) -> int:
        """Give the memory that what a suffix carries takes."""
        moved = carried.moved
        return moved.rows.nbytes + moved.vectors.nbytes + moved.lost.nbytes

    def _at(self, carried: Carried, boundary: int) -> Moved:
        """Carry a suffix back to a boundary, through no component."""
        moved = carried.moved
        for stage in reversed(self.frozen.stages[boundary : carried.boundary]):
            if stage.carry is not None:
                moved = _past(stage.carry, moved)
        return moved

    def _stacked(self, nodes: list[Node], boundary: int) -> Stacked:
        moved = [self._at(node.carried, boundary) for node in nodes]
        sizes = [len(each.rows) for each in moved]
        return Stacked(
            np.concatenate([each.rows for each in moved]),
            np.concatenate([each.vectors for each in moved]),
            np.concatenate([each.lost for each in moved]),
            np.repeat(np.arange(len(nodes)), sizes),
            len(nodes),
        )


def _added_up(pieces: Array, owner: Array, count: int) -> Array:
    """Add up pieces (…, piece) over their owners: (…, owner); an owner may have none."""
    if np.array_equal(owner, np.arange(count)):
        return pieces
    total = np.zeros((count, *pieces.shape[:-1]), dtype=pieces.dtype)
    np.add.at(total, owner, np.moveaxis(pieces, -1, 0))
    return np.moveaxis(total, 0, -1)


@np.errstate(over="ignore", invalid="ignore")
def _past(carry: Carry, moved: Moved) -> Moved:
    """Carry pieces past a norm of the stream."""
    rows, vectors = carry.move(moved.rows, moved.vectors)
    lost = np.empty_like(moved.lost)
    lost[:, 0] = carry.scale.max(initial=0.0) * moved.lost[:, 0]
    lost[:, 0] += 2 * UNIT * abs(rows).sum(axis=1) + TINY
    steps = gamma(moved.vectors.shape[1] + 4)
    # Taking off a mean makes sizes twice as large at most.
    before = moved.lost[:, 1] + 2 * steps * lengths(moved.vectors)
    lost[:, 1] = carry.stretch * before + TINY
    return Moved(rows, vectors, lost)
