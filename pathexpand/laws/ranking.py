"""Law 4: the table's rows are the largest paths, in order, and nothing unlisted beats the bound."""

from __future__ import annotations

import math
from itertools import pairwise

from pathexpand.api import Run
from pathexpand.laws.reference import Reference, cut, references
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
    max_order: int | None = None,
) -> LawResult:
    """Check a table against brute force: every path evaluated by itself, by another route.

    Each listed value must be right, no unlisted path larger than the last row or the table's
    bound, and equal values stand in the order of `Path`. A model with too many paths is cut to
    some of its heads first.

    >>> from pathexpand import api
    >>> check_top_paths(api.load("two-layer").run("to be"), top=3).holds
    True
    """
    place = run.position(position)
    what = run.target(target, position=place)
    small = cut(run)
    table = small.run.paths(what, position=place, top=top, max_order=max_order)
    most = math.inf if max_order is None else max_order
    readout = what.readout(small.run.model.weights, place)
    every = {each.path: each for each in references(small.run, readout)}
    ranked = {path: each for path, each in every.items() if path.order <= most}
    listed = [Path.parse(row.path) for row in table.rows]
    deviations = [
        unequal(len(set(listed)), min(top, len(ranked)), "number of rows"),
        unequal(set(listed) <= set(ranked), True, "rows are paths of the model"),
        unequal(table.path_count, len(every), "path count"),
        unequal(table.remainder_count, len(every) - len(listed), "unlisted count"),
        unequal(table.certified, len(ranked) == len(every), "certified"),
    ]
    if all(each.holds for each in deviations):
        deviations += _values(table, listed, ranked)
        deviations += _order(table, listed)
        deviations += _unlisted(small.run, what, table, [ranked[path] for path in listed], ranked)
    return judged("top paths", deviations, f"{small.detail}, top {top}")


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


def _unlisted(
    run: Run, what: Target, table: PathTable, listed: list[Reference], every: dict[Path, Reference]
) -> list[Deviation]:
    found = []
    last = min(listed, key=lambda each: abs(each.value), default=None)
    paths = {each.path for each in listed}
    for path, known in every.items():
        if path in paths:
            continue
        size = abs(known.value)
        if table.bound is not None:
            over = max(size - table.bound, 0)
            found.append(Deviation(over, known.rounding, f"bound against {path}"))
        if last is None:
            continue
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
