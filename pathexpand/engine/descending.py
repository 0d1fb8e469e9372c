"""The paths of a query one after another, largest first, for as long as somebody asks."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.best import Best
from pathexpand.engine.search import Tree, TreeHunt
from pathexpand.symbolic import Path
from pathexpand.symbolic.query import Query


@dataclass(frozen=True, slots=True)
class Sized:
    """A path and what bounds its exact size: the size as computed, and what rounding took."""

    path: Path
    size: float
    lost: float

    @property
    def most(self) -> float:
        """The most that the size can be."""
        return self.size + self.lost


class Descending:
    """Hands out paths in falling order of the most that their size can be.

    `floor` says below which size paths do not matter any more; it may rise while the search goes
    on, and what falls below it is let go. `nodes` counts the suffixes that were expanded.
    """

    def __init__(self, tree: Tree, query: Query, floor: Callable[[], float]) -> None:
        """Start with nothing looked at."""
        self._waiting = _Waiting(floor)
        self._hunt = TreeHunt(tree, query, self._waiting)

    @property
    def nodes(self) -> int:
        """The number of suffixes that were expanded."""
        return len(self._hunt.expanded)

    @property
    def bound(self) -> float:
        """A bound on every path not handed out, whatever the floor."""
        return max(self._ahead, self._hunt.dropped, self._waiting.passed)

    @property
    def _ahead(self) -> float:
        return max(self._hunt.left, self._waiting.largest, 0.0)

    def step(self) -> Sized | None:
        """Expand some suffixes; give the next path if it is known by then."""
        if self._hunt.left > self._waiting.largest:
            self._hunt.expand(self._hunt.pop())
        if self._waiting.largest >= max(self._hunt.left, 0.0):
            return self._waiting.take()
        return None

    @property
    def is_over(self) -> bool:
        """Whether nothing that is left reaches the floor."""
        return self._ahead <= self._waiting.cut


class _Waiting(Best):
    """Paths that wait to be handed out."""

    def __init__(self, floor: Callable[[], float]) -> None:
        super().__init__(0)
        self._low = floor
        self._heap: list[tuple[float, Path, Sized]] = []

    @property
    def cut(self) -> float:
        """The floor."""
        return self._low()

    @property
    def largest(self) -> float:
        """The most that the size of a waiting path can be; below 0 where none waits."""
        return -self._heap[0][0] if self._heap else -1.0

    def offer(
        self,
        values: npt.NDArray[Any],
        path_at: Callable[[int], Path],
        lost: npt.NDArray[Any] | None = None,
    ) -> None:
        """Take in the paths that reach the floor."""
        sizes = abs(np.asarray(values, dtype=np.float64))
        lost = np.zeros_like(sizes) if lost is None else lost
        most = np.where(np.isnan(sizes), np.inf, sizes + lost)
        self.visited += sizes.size
        stays = most > self.cut
        self.passed = max(self.passed, float(most[~stays].max(initial=0.0)))
        for n in np.flatnonzero(stays):
            path = path_at(int(n))
            sized = Sized(path, float(sizes[n]), float(lost[n]))
            heapq.heappush(self._heap, (-float(most[n]), path, sized))

    def take(self) -> Sized:
        """Hand out the largest."""
        return heapq.heappop(self._heap)[2]
