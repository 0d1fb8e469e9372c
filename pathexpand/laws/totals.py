"""Law 3: totals by order, source and token are the sums over single paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.engine.rounding import gamma
from pathexpand.engine.total import component_totals, pair_totals
from pathexpand.engine.value import Readout
from pathexpand.laws.closure import route_steps, totals_rounding
from pathexpand.laws.cut import cut
from pathexpand.laws.reference import Reference, references
from pathexpand.laws.result import Deviation, LawResult, judged, unequal
from pathexpand.symbolic import Head
from pathexpand.target import Target, TargetLike

Array = npt.NDArray[Any]


def check_totals(
    run: Run, target: TargetLike | Target | None = None, *, position: int | None = None
) -> LawResult:
    """Check every entry (order, source, token) of the totals, and their sums along each axis.

    So are the sums through each component, and through each pair of heads. Each is compared with
    the sum of single paths, each evaluated by itself. A model with too many paths is cut first.

    >>> from pathexpand import api
    >>> check_totals(api.load("two-layer").run("to be")).holds
    True
    """
    place = run.position(position)
    what = run.target(target, position=place)
    small = cut(run)
    readout = what.readout(small.run.unembed, place)
    found = small.run.total(target=what, position=place)
    every = list(references(small.run, what, place))
    paths = defaultdict(list)
    for each in every:
        paths[each.path.order, each.path.source].append(each)
    sources = sorted({source for _, source in paths})
    deviations = [unequal(sorted(found.sources), sources, "sources")]
    if not deviations[0].holds:
        return judged("totals", deviations, small.detail)
    own = totals_rounding(small.run, readout)
    values, bounds = np.zeros_like(found.values), np.zeros_like(found.values)
    for (order, source), group in paths.items():
        at = order, found.sources.index(source)
        values[at], bounds[at] = _sum(group)
    errors = abs(found.values - values)
    bounds = bounds + own
    for order, place_of, token in np.ndindex(*errors.shape):
        subject = f"order {order}, {found.sources[place_of]}, position {token}"
        error, bound = errors[order, place_of, token], bounds[order, place_of, token]
        deviations.append(Deviation(error, bound, subject))
    slack = bounds.sum()
    splits = {
        "by_order": (found.by_order(), values.sum(axis=(1, 2))),
        "by_source": (
            np.array([found.by_source()[source] for source in found.sources]),
            values.sum(axis=(0, 2)),
        ),
        "by_token": (found.by_token(), values.sum(axis=(0, 1))),
        "sum": (np.array([found.sum()]), values.sum().reshape(1)),
    }
    for name, (got, wanted) in splits.items():
        deviations.append(unequal(got.shape, wanted.shape, f"shape of {name}"))
        deviations.append(Deviation(abs(got - wanted).max(), slack, name))
    deviations += _through(small.run, readout, every)
    return judged("totals", deviations, small.detail)


def _through(run: Run, readout: Readout, every: list[Reference]) -> Iterator[Deviation]:
    """Compare sums through each component and each pair of heads with those of single paths."""
    single, double = component_totals(run.frozen, readout), pair_totals(run.frozen, readout)
    through: dict[object, list[Reference]] = defaultdict(list)
    for each in every:
        heads = [part for part in each.path.components if isinstance(part, Head)]
        for part in (*each.path.components, *combinations(heads, 2)):
            through[part].append(each)
    steps, positions = 2 * route_steps(run.frozen), run.frozen.positions
    found: list[tuple[Any, Any]] = [*single.items(), *double.items()]
    yield unequal({part for part, _ in found}, set(through), "components and pairs of heads")
    for part, value in found:
        group = through[part]
        wanted = sum(float(each.value) for each in group)
        size = sum(float(each.sizes.sum()) for each in group)
        most = max((each.steps for each in group), default=0) + len(group) + positions
        name = " and ".join(map(str, part)) if isinstance(part, tuple) else str(part)
        bound = 2 * gamma(steps + most) * size
        yield Deviation(abs(float(value) - wanted), bound, f"sum through {name}")


def _sum(group: list[Reference]) -> tuple[Array, Array]:
    """Add up paths token by token; give the sums and their bounds on rounding."""
    values = np.sum([each.values for each in group], axis=0)  # (position,)
    sizes = np.sum([each.sizes for each in group], axis=0)  # (position,)
    steps = max(each.steps for each in group) + len(group)
    return values, 2 * gamma(steps) * sizes
