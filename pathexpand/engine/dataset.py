"""The ranked paths of a data set: by root mean square or |mean| of their values over prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pathexpand.engine.remainder import remainder
from pathexpand.engine.rounding import gamma
from pathexpand.engine.rounds import By, Prompts, Reading, hunt
from pathexpand.engine.search import Budget, Found, Progress
from pathexpand.engine.value import path_value
from pathexpand.symbolic import Network, Path
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]


class DenseReading(Reading, Protocol):
    """One prompt of a data set, with what its dense pass says."""

    @property
    def dense(self) -> float:
        """The dense value of what is read."""

    @property
    def dense_rounding(self) -> float:
        """A bound on the rounding of the dense value."""


@dataclass(frozen=True, slots=True)
class MeanPath:
    """A path over a data set: the root mean square and the mean of its values over the prompts.

    `standard_error` is that of the mean (None for a single prompt).
    """

    path: Path
    rms: float
    mean: float
    standard_error: float | None


@dataclass(frozen=True, slots=True)
class DatasetRanking:
    """The listed paths of a query over a data set and what closes their means.

    `dense`, `listed`, `remainder` and `outside` are means over the prompts, as in `Ranking`;
    `rounding` bounds the float64 error of listed + remainder + outside - dense. `rounds` counts
    the passes over the prompts that the search made.
    """

    rows: tuple[MeanPath, ...]
    prompts: int
    dense: float
    listed: float
    remainder: float
    remainder_count: int
    outside: float
    outside_count: int
    rounding: float
    rounds: int
    found: Found


def rank_over(
    readings: Iterable[DenseReading],
    network: Network,
    query: Query,
    *,
    by: By,
    top: int,
    max_order: int | None = None,
    budget: Budget | None = None,
    rounds: int | None = None,
    cache: int = 0,
    report: Callable[[Progress], None] | None = None,
) -> DatasetRanking:
    """Rank the paths of a query over prompts that can be read again and again.

    The search makes one pass over them a round; two more, without energies, value each listed
    path by itself and close the sum. `cache` is how many bytes of prepared prompts to keep.
    """
    prompts = Prompts(readings, query, cache=cache)
    state = hunt(
        prompts,
        network,
        query,
        by=by,
        top=top,
        max_order=max_order,
        budget=budget,
        rounds=rounds,
        report=report,
    )
    prompts.kept.clear()
    moments = _moments(readings, state.kept())
    found = state.found(lambda path: getattr(moments[path], by))
    zero = MeanPath(Path("embed"), 0.0, 0.0, 0.0 if (prompts.count or 0) > 1 else None)
    rows = []
    for path in found.paths:
        known = moments.get(path, zero)  # what was not visited is 0 throughout
        rows.append(MeanPath(path, known.rms, known.mean, known.standard_error))
    return _closed(readings, query, rows, found, state.rounds)


def _moments(readings: Iterable[DenseReading], paths: list[Path]) -> dict[Path, MeanPath]:
    """Value each path by itself on every prompt."""
    total, middle, spread, root = (np.zeros(len(paths)) for _ in range(4))
    number = 0
    for number, reading in enumerate(readings, start=1):
        values = np.array(
            [float(path_value(reading.frozen, reading.readout, path)) for path in paths]
        )
        total += values
        root = np.hypot(root, values)
        # Welford's recurrence: the spread about a mean that moves with each prompt.
        away = values - middle
        middle += away / number
        spread += away * (values - middle)
    errors = np.sqrt(spread / max(number - 1, 1) / number)
    return {
        path: MeanPath(
            path,
            rms=float(root[n] / np.sqrt(number)),
            mean=float(total[n] / number),
            standard_error=float(errors[n]) if number > 1 else None,
        )
        for n, path in enumerate(paths)
    }


def _closed(
    readings: Iterable[DenseReading],
    query: Query,
    rows: list[MeanPath],
    found: Found,
    rounds: int,
) -> DatasetRanking:
    """Sum what is not listed, prompt by prompt, by its own route."""
    others = query.complement()
    sums, sizes = np.zeros(3), np.zeros(4)  # dense, remainder, outside; the same and the listed
    rounding, number = 0.0, 0
    for reading in readings:
        number += 1
        frozen, readout = reading.frozen, reading.readout
        rest = remainder(frozen, readout, found.paths, query=query, measured=True)
        outside = remainder(frozen, readout, (), query=others, measured=True)
        parts = np.array([reading.dense, float(rest.value), float(outside.value)])
        listed = sum(abs(float(path_value(frozen, readout, path))) for path in found.paths)
        sums += parts
        sizes += [*abs(parts), listed]
        rounding += rest.rounding + (outside.rounding if outside.count else 0.0)
        rounding += reading.dense_rounding
    dense, left, others_mean = (float(each) for each in sums / number)
    rounding += gamma(number + len(rows) + 4) * float(sizes.sum())
    return DatasetRanking(
        rows=tuple(rows),
        prompts=number,
        dense=dense,
        listed=float(sum(row.mean for row in rows)),
        remainder=left,
        remainder_count=query.count() - len(rows),
        outside=others_mean,
        outside_count=others.count(),
        rounding=rounding / number,
        rounds=rounds,
        found=found,
    )
