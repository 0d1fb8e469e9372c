"""The counts and sums that close a table, checked by sums of their own and by the dense pass."""

from __future__ import annotations

from collections.abc import Sequence

from pathexpand.api import Run
from pathexpand.certificate.finding import Compared, Finding, equal, judge
from pathexpand.certificate.held import Held
from pathexpand.certificate.suffix import Tree
from pathexpand.certificate.total import functionals, summed
from pathexpand.certificate.value import valued
from pathexpand.engine.rounding import gamma
from pathexpand.symbolic import Path
from pathexpand.symbolic.query import Query, everything
from pathexpand.table import PathTable
from pathexpand.target import Target

# How many times the rounding measured here the bound on the gap may be. It is measured by another
# route; over random models, honest bounds were at most once as large, and a tenth in the median.
_ROOM = 4
_NOTHING = 1e-200  # a bound on the gap that is no claim: the floors under rounding differ by route


def check_counts(table: PathTable, query: Query) -> Finding:
    """Check how many paths there are, in the query and outside it, and can have been valued.

    >>> from pathexpand.api import load
    >>> run = load("two-layer").run("to be or not to")
    >>> check_counts(run.paths(top=3), run.model.query()).holds
    True
    """
    every, inside = query.network.count(), query.count()
    compared = [
        equal(table.path_count, every, "number of paths"),
        equal(table.remainder_count, inside - len(table), "number of paths in the remainder"),
        equal(table.outside_count, every - inside, "number of paths outside the query"),
    ]
    # Anything from none, where listed paths are all worth 0, to every path of the query.
    could = table.visited is not None and 0 <= table.visited <= inside
    compared.append(equal(could, True, f"{table.visited} valued paths, of {inside}"))
    return judge("counts", compared, f"{every:,} paths, {inside:,} in the query")


def check_sums(
    table: PathTable, held: Held, query: Query, paths: Sequence[Path], run: Run, target: Target
) -> Finding:
    """Check that listed + remainder + outside = dense, and each of them by itself.

    Dense comes from the dense pass; the query's paths and the others are summed forward, the
    listed ones are valued one by one, and the remainder must be what they leave of the query. The
    bound on the gap is not that of the search digit by digit: it must lie between the gap itself
    and a few times the rounding that these sums are measured to have.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> run = load("two-layer").run("to be or not to")
    >>> target, place, query = run.target(), run.position(), run.model.query()
    >>> held = hold(run, target, place, same=True)
    >>> check_sums(run.paths(top=0), held, query, [], run, target).holds
    True
    """
    dense = run.dense_value(target, table.position)
    whole = summed(held, everything(held.network))
    inside = summed(held, query, Tree(held, query, [path.components for path in paths]))
    outside = summed(held, query.complement())
    each = [valued(held, path) for path in paths]
    rest = inside.value - sum(one.value for one in each)
    listed = float(sum(row.value for row in table.rows))
    size = sum(abs(row.value) for row in table.rows) + abs(table.remainder) + abs(table.outside)
    adding = gamma(len(table) + 4) * (size + abs(dense))
    dense_slack = 2 * _dense_rounding(held, run, target) + whole.rounding + adding
    rest_slack = inside.rounding + sum(one.slack for one in each) + adding
    all_slack = dense_slack + rest_slack + outside.rounding
    gap = table.dense - (table.listed + table.remainder + table.outside)
    compared = [
        Compared(abs(table.dense - dense), dense_slack, "dense value"),
        Compared(abs(inside.value + outside.value - dense), all_slack, "sum of all paths"),
        Compared(abs(table.listed - listed), adding, "listed sum"),
        Compared(abs(table.remainder - rest), rest_slack, "remainder"),
        Compared(abs(table.outside - outside.value), outside.rounding + adding, "outside"),
        equal(table.gap, gap, "gap"),
        Compared(abs(gap), all_slack, "gap between the sum and the dense value"),
        Compared(abs(gap), table.gap_bound, "gap under its own bound"),
    ]
    loose = Compared(table.gap_bound, _ROOM * all_slack + _NOTHING, "bound of the gap")
    compared += [] if loose.holds else [loose]
    return judge("sums", compared, "listed + remainder + outside = dense; each by its own route")


def _dense_rounding(held: Held, run: Run, target: Target) -> float:
    """Bound the rounding of the dense value: in each layer, and in reading the last stream."""
    last = run.dense.residual[-1][0, held.position]
    reads = functionals(held)
    inside = sum(float((off * abs(reads[boundary])).sum()) for boundary, off in held.dense)
    return inside + target.rounding(run.unembed, held.position, last)
