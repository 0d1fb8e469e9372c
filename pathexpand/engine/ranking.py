"""The ranked paths of a run, closed by a remainder and held against the dense pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.enumeration import LIMIT, top_paths
from pathexpand.engine.remainder import remainder
from pathexpand.engine.value import Readout, path_value_by_token
from pathexpand.frozen import FrozenSum
from pathexpand.symbolic import Path

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class RankedPath:
    """A path, its value, and how the value splits by source position (position,)."""

    path: Path
    value: float
    by_token: Array

    @property
    def strongest(self) -> int | None:
        """The source position with the largest part of the value, if the path starts at tokens."""
        if self.path.source == "b_U" or not np.any(self.by_token):
            return None
        return int(np.argmax(abs(self.by_token)))


@dataclass(frozen=True, slots=True)
class Ranking:
    """The listed paths and what closes them.

    `path_count` counts every path of the sum. `bound` is the largest |value| that an unlisted
    path can have; it is None, and `certified` false, where longer paths were left out unseen.
    `rounding` bounds the float64 error of listed + remainder.
    """

    rows: tuple[RankedPath, ...]
    listed: float
    remainder: float
    remainder_count: int
    path_count: int
    certified: bool
    bound: float | None
    rounding: float


def rank(
    frozen: FrozenSum,
    readout: Readout,
    *,
    top: int,
    streams: tuple[Array, ...],
    max_order: int | None = None,
    limit: int = LIMIT,
) -> Ranking:
    """Rank the paths of a run by |value|. `streams[l]` (position, d_model) measures rounding."""
    found = top_paths(frozen, readout, top, max_order=max_order, limit=limit)
    rows = []
    for path in found.paths:
        split = path_value_by_token(frozen, readout, path)
        rows.append(RankedPath(path, float(split.sum()), split))
    rest = remainder(frozen, readout, found.paths, streams=streams)
    whole = max_order is None or max_order >= len(frozen.layers)
    return Ranking(
        rows=tuple(rows),
        listed=float(sum(row.value for row in rows)),
        remainder=float(rest.value),
        remainder_count=rest.count,
        path_count=frozen.network().count(),
        certified=whole,
        bound=found.bound if whole else None,
        rounding=rest.rounding,
    )
