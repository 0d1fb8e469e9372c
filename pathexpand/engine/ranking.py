"""The ranked paths of a run or of a model, and what is known of the paths not listed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.energy import energies
from pathexpand.engine.listing import is_shorter, list_all
from pathexpand.engine.norm_tree import NormTree
from pathexpand.engine.prompt_tree import PromptTree
from pathexpand.engine.remainder import Remainder, remainder
from pathexpand.engine.search import Budget, Found, Progress, rest_energy, search
from pathexpand.engine.value import Readout, path_value_by_token
from pathexpand.frozen import FrozenSum
from pathexpand.model.weights import Weights
from pathexpand.symbolic import Network, Path
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]


# The energy pass gets this long in any case: without it nothing is known of the unlisted paths.
_LEAST_SECONDS = 1.0


class _OutOfTime(Exception):  # noqa: N818
    """The budget's seconds are over before there is anything to search with."""


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
    """The listed paths of a query and what closes them.

    `remainder` sums the other paths of the query, `outside` those that do not match it;
    `remainder_energy` bounds Σ value² over the former. `rounding` bounds the float64 error of
    listed + remainder + outside. `found` says what was searched, and the bounds.
    """

    rows: tuple[RankedPath, ...]
    listed: float
    remainder: float
    remainder_count: int
    remainder_energy: float
    outside: float
    rounding: float
    found: Found


def rank(
    frozen: FrozenSum,
    readout: Readout,
    query: Query,
    *,
    top: int,
    max_order: int | None = None,
    budget: Budget | None = None,
    report: Callable[[Progress], None] | None = None,
) -> Ranking:
    """Rank the paths of a run by |value|.

    Stopped by Ctrl-C or by the budget's seconds (but not within the first second) before there are
    energies to search with, it lists nothing and bounds nothing, but still closes.
    """
    given = Budget.given(budget)
    limit = np.inf if given.seconds is None else given.seconds
    start, near = time.monotonic(), frozen.until(readout.last)

    def prepared(done: int, stages: int) -> None:
        seconds = time.monotonic() - start
        if report is not None:
            report(Progress(0, 0, np.inf, 0.0, seconds, done / stages))
        if done < stages and seconds >= max(limit, _LEAST_SECONDS):
            raise _OutOfTime

    energy: float | None = None
    listing: dict[str, Any] = {
        "top": top,
        "max_order": max_order,
        "budget": budget,
        "report": report,
    }
    try:
        # A search that is stopped early still has a bound; a list has none.
        if budget is None and is_shorter(near, query, max_order):
            found, energy = list_all(PromptTree(near, readout, query), query, **listing)
        else:
            tree = PromptTree(near, readout, query, energies(near, query, report=prepared))
            if budget is not None and budget.seconds is not None:
                left = max(limit - (time.monotonic() - start), 0.0)
                listing["budget"] = replace(budget, seconds=left)
            found = search(tree, query, **listing)
            with suppress(KeyboardInterrupt):  # the rows are there; only this is not known then
                energy = rest_energy(tree, query, found.paths)
    except (KeyboardInterrupt, _OutOfTime):
        longer = 0.0 if max_order is None else np.inf
        found = Found((), np.inf, longer, certified=False, visited=0, expanded=())
    rows = []
    for path in found.paths:
        # On the same cut as the search, so that every digit of the ranking is that of the values.
        split = path_value_by_token(near, readout, path)
        later = np.zeros(frozen.positions - near.positions, dtype=split.dtype)
        rows.append(RankedPath(path, float(split.sum()), np.concatenate([split, later])))
    rest = remainder(frozen, readout, found.paths, query=query, measured=True)
    others = query.complement()
    outside = Remainder(0.0, 0, 0.0)
    if others.count():
        outside = remainder(frozen, readout, (), query=others, measured=True)
    return Ranking(
        rows=tuple(rows),
        listed=float(sum(row.value for row in rows)),
        remainder=float(rest.value),
        remainder_count=rest.count,
        remainder_energy=np.inf if energy is None else energy,
        outside=float(outside.value),
        rounding=rest.rounding + (outside.rounding if outside.count else 0.0),
        found=found,
    )


@dataclass(frozen=True, slots=True)
class NormRanking:
    """The paths of a query with the largest norms.

    `energy` is the sum of squared norms over every path of the query, listed or not.
    """

    norms: tuple[float, ...]
    energy: float
    found: Found


def rank_by_norm(
    weights: Weights,
    network: Network,
    query: Query,
    *,
    top: int,
    centred: bool = False,
    max_order: int | None = None,
    budget: Budget | None = None,
    report: Callable[[Progress], None] | None = None,
) -> NormRanking:
    """Rank paths by the Frobenius norm of their matrix from source to logits.

    `centred` takes off each input's mean over the vocabulary, which a softmax does not see.
    """
    tree = NormTree(weights, network, query, centred=centred)
    found = search(tree, query, top=top, max_order=max_order, budget=budget, report=report)
    return NormRanking(
        norms=tuple(tree.size(path) for path in found.paths),
        energy=tree.energy(query),
        found=found,
    )
