"""Law 4: the table's rows are the largest paths, in order, and nothing unlisted beats a bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from pathexpand.api import Run
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.search import Budget
from pathexpand.laws.cut import cut
from pathexpand.laws.reference import Reference, references
from pathexpand.laws.result import Deviation, LawResult, judged, unequal
from pathexpand.symbolic import Path
from pathexpand.table import PathTable
from pathexpand.target import Target, TargetLike


def check_top_paths(
    run: Run,
    target: TargetLike | Target | None = None,
    *,
    position: int | None = None,
    top: int = 10,
    query: str | None = None,
    max_order: int | None = None,
    budget: Budget | None = None,
) -> LawResult:
    """Check a table against brute force: every path evaluated by itself, by another route.

    Each listed value must be right, equal values stand in the order of `Path`, no unlisted path
    may be larger than the table's bounds, and their squares may not sum to more than its energy.
    A certified table must list the largest paths, and one that is not must have had a budget. A
    model with too many paths is cut to some of its heads first.

    >>> from pathexpand import api
    >>> check_top_paths(api.load("two-layer").run("to be"), top=3).holds
    True
    """
    place = run.position(position)
    what = run.target(target, position=place)
    small = cut(run)
    asked = small.run.model.query(query)
    table = small.run.paths(
        what, position=place, top=top, query=asked, max_order=max_order, budget=budget
    )
    most = math.inf if max_order is None else max_order
    known = {each.path: each for each in references(small.run, what, place)}
    every = {path: each for path, each in known.items() if asked.matches(path)}
    ranked = {path: each for path, each in every.items() if path.order <= most}
    listed = [Path.parse(row.path) for row in table.rows]
    rows = min(top, len(ranked)) if table.certified else min(top, len(ranked), len(table))
    deviations = [
        unequal(len(set(listed)), rows, "number of rows"),
        unequal(len(table), rows, "number of rows"),
        unequal(set(listed) <= set(ranked), True, "rows are paths of the query"),
        unequal(table.path_count, len(known), "path count"),
        unequal(table.outside_count, len(known) - len(every), "count outside the query"),
        unequal(table.remainder_count, len(every) - len(listed), "unlisted count"),
        unequal(table.certified or budget is not None, True, "certified"),
        unequal(table.bound is not None, True, "a bound"),
    ]
    if all(each.holds for each in deviations):
        left = {path: each for path, each in every.items() if path not in set(listed)}
        deviations += _values(table, listed, ranked)
        deviations += _order(table, listed)
        deviations += _bounded(table, left, most)
        deviations += _energy(table, left)
        deviations += _certain(table, listed, ranked)
        if table.certified:
            short = {path: each for path, each in left.items() if path.order <= most}
            deviations += _unlisted(small.run, what, table, [every[path] for path in listed], short)
    detail = f"{small.detail}, top {top}" + (f" of {asked.text!r}" if query else "")
    return judged("top paths", deviations, detail)


def _values(table: PathTable, listed: list[Path], every: dict[Path, Reference]) -> list[Deviation]:
    found = []
    for row, path in zip(table.rows, listed, strict=True):
        known = every[path]
        found.append(Deviation(abs(row.value - known.value), known.rounding, f"value of {path}"))
        found.append(unequal(row.order, path.order, f"order of {path}"))
        found.append(unequal(row.kind, path.kind, f"kind of {path}"))
        if row.source_token is not None and row.source_value is not None:
            part = known.values[row.source_token.position]
            most = abs(known.values).max()
            bound, subject = known.rounding, f"strongest token of {path}"
            found.append(Deviation(abs(row.source_value - part), bound, subject))
            found.append(Deviation(max(most - abs(part), 0), bound, subject))
    return found


def _order(table: PathTable, listed: list[Path]) -> list[Deviation]:
    found = []
    keys = [(-abs(row.value), path) for row, path in zip(table.rows, listed, strict=True)]
    for number, (one, other) in enumerate(pairwise(keys), start=2):
        found.append(unequal(one < other, True, f"row {number} after row {number - 1}"))
    return found


def _bounded(table: PathTable, left: dict[Path, Reference], most: float) -> Iterator[Deviation]:
    for path, known in left.items():
        bound = table.bound if path.order <= most else table.longer_bound
        over = max(abs(known.value) - (bound or 0.0), 0)
        yield Deviation(over, known.rounding, f"bound against {path}")


def _energy(table: PathTable, left: dict[Path, Reference]) -> Iterator[Deviation]:
    """Compare roots of energies: squares of rounding errors may be no floats."""
    if table.remainder_energy is None:
        return
    wanted = math.hypot(*(float(each.value) for each in left.values()))
    slack = math.hypot(*(float(each.rounding) for each in left.values()))
    slack += gamma(2 * len(left) + 4) * wanted + math.sqrt(TINY)
    over = max(wanted - math.sqrt(table.remainder_energy), 0.0)
    yield Deviation(over, slack, "energy of the remainder")


def _certain(
    table: PathTable, listed: list[Path], ranked: dict[Path, Reference]
) -> Iterator[Deviation]:
    """A row that is called certain is among the largest: no unlisted path is larger."""
    out = [each for path, each in ranked.items() if path not in set(listed)]
    largest = max(out, key=lambda each: abs(each.value), default=None)
    for row, path in zip(table.rows, listed, strict=True):
        if table.bound is not None:
            sure = abs(row.value) >= table.bound * (1 - 1e-9)
            yield unequal(row.certain, sure, f"certainty of {path}")
        if row.certain and largest is not None:
            over = max(abs(largest.value) - abs(row.value), 0)
            rounding = largest.rounding + ranked[path].rounding
            yield Deviation(over, rounding, f"certainty of {path}")


def _unlisted(
    run: Run, what: Target, table: PathTable, listed: list[Reference], left: dict[Path, Reference]
) -> list[Deviation]:
    found = []
    last = min(listed, key=lambda each: abs(each.value), default=None)
    if last is None:
        return []
    for path, known in left.items():
        size = abs(known.value)
        rounding = known.rounding + last.rounding
        found.append(Deviation(max(size - abs(last.value), 0), rounding, f"unlisted {path}"))
        if abs(size - abs(table.rows[-1].value)) <= rounding:
            value = abs(run.value(path, target=what, position=table.position))
            tie = (-value, path) < (-abs(table.rows[-1].value), last_path(table))
            found.append(unequal(tie and value == abs(table.rows[-1].value), False, f"tie {path}"))
    return found


def last_path(table: PathTable) -> Path:
    """Give the path of a table's last row.

    >>> from pathexpand import api
    >>> str(last_path(api.load("two-layer").run("to be").paths(top=25)))[:5]
    'embed'
    """
    return Path.parse(table.rows[-1].path)
