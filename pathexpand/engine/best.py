"""The largest values seen so far, with ties kept until each is worked out by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.symbolic import Path

# Paths valued in a block may differ from the same path valued alone in the last digits. So that
# equal paths are ranked by the rule for ties and not by their rounding, whatever is this near to
# the last place stays until the end.
_NEAR = 1 - 1e-9


class Best:
    """Keeps the largest of the paths offered: `top` of them, one more, and near-equals.

    Equal values stand in the order of `Path`: fewer heads first, then source and heads.
    """

    def __init__(self, top: int, *, floor: float = 0.0) -> None:
        """Keep `top` paths, none of them smaller than `floor`."""
        self.top, self._floor = top, floor
        self._kept: list[tuple[float, Path]] = []
        self._lost: dict[Path, float] = {}
        self.visited = 0
        self.passed = 0.0  # what bounds the exact sizes of all that was offered and let go

    @property
    def cut(self) -> float:
        """The size below which a path cannot be listed; the floor while places are free."""
        if self.top == 0:
            return np.inf
        return max(self._size(self.top - 1), self._floor) * _NEAR

    def offer(
        self,
        values: npt.NDArray[Any],
        path_at: Callable[[int], Path],
        lost: npt.NDArray[Any] | None = None,
    ) -> None:
        """Take note of some paths: their values, and the path that each index stands for.

        `lost` bounds the rounding of each value.
        """
        sizes = abs(np.asarray(values, dtype=np.float64))
        lost = np.zeros_like(sizes) if lost is None else lost
        self.visited += sizes.size
        stays = sizes >= max(self._size(self.top), self._floor) * _NEAR
        most = np.where(np.isnan(sizes), np.inf, sizes + lost)[
            ~stays
        ]  # what overflowed is no number
        self.passed = max(self.passed, float(most.max(initial=0.0)))
        fresh = [(float(sizes[n]), path_at(int(n))) for n in np.flatnonzero(stays)]
        if not fresh:
            return
        rounding = lost[stays].tolist()
        self._lost |= {path: each for (_, path), each in zip(fresh, rounding, strict=True)}
        self._kept = ranked([*self._kept, *fresh])
        last = self._size(self.top)
        rest = self._kept[self.top + 1 :]
        near = [entry for entry in rest if last * _NEAR < entry[0] < last]
        for size, path in (entry for entry in rest if not last * _NEAR < entry[0] < last):
            self.passed = max(self.passed, size + self._lost.pop(path))
        self._kept = self._kept[: self.top + 1] + near

    @property
    def kept(self) -> tuple[tuple[float, Path], ...]:
        """What may still be listed, as (size, path), largest first."""
        return tuple(self._kept)

    def settle(self, value: Callable[[Path], float]) -> list[tuple[float, Path]]:
        """Value what was kept one by one and give it as (|value|, path), largest first."""
        exact = [(abs(value(path)), path) for _, path in self._kept]
        return sorted(exact, key=_by_size)

    def most(self, size: float, path: Path) -> float:
        """Give the most that a kept path's exact size can be."""
        return size + self._lost.get(path, 0.0)

    def _size(self, index: int) -> float:
        return self._kept[index][0] if len(self._kept) > index else 0.0


def ranked(entries: list[tuple[float, Path]]) -> list[tuple[float, Path]]:
    """Sort sizes with their paths, largest first, equal ones as `Path` sorts."""
    return sorted(entries, key=_by_size)


def _by_size(entry: tuple[float, Path]) -> tuple[float, Path]:
    return -entry[0], entry[1]
