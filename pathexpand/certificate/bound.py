"""The claims on what is not listed: its energy, the two bounds, and that nothing outranks a row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pathexpand.certificate.finding import Compared, Finding, equal, judge
from pathexpand.certificate.frontier import Frontier, Left, Stops, Tree, frontiers, stops
from pathexpand.certificate.held import Held
from pathexpand.certificate.rows import NEAR
from pathexpand.certificate.suffix import grow, longest, read_words
from pathexpand.certificate.value import valued
from pathexpand.engine.rounding import gamma
from pathexpand.errors import PathExpandError
from pathexpand.symbolic import Path
from pathexpand.symbolic.query import Query
from pathexpand.table import PathTable


def check_bound(
    table: PathTable, held: Held, query: Query, paths: Sequence[Path], expanded: Sequence[str]
) -> tuple[Finding, ...]:
    """Check every claim on unlisted paths: they stop at an expanded suffix or lie beyond one.

    The expanded suffixes, each with its later parts, are a tree with the readout as its root. A
    path that stops in it is valued; one that leaves it does so at one head, behind which the
    energy of all prefixes bounds it. If nothing was expanded, the energy of all paths does.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> run = load("two-layer").run("to be or not to")
    >>> target, place, query = run.target(), run.position(), run.model.query()
    >>> held = hold(run, target, place, same_patterns=True)
    >>> [each.name for each in check_bound(run.paths(top=0), held, query, [], [])]
    ['remainder energy', 'bound', 'longer paths', 'certified']
    """
    try:
        words = read_words(expanded, held.network)
        tree = grow(held, query, words) if words else {}
    except PathExpandError as error:
        return (Finding("bound", False, 1.0, 0.0, str(error)),)
    listed = grow(held, query, [path.components for path in paths])
    beyond, around = frontiers(held, query, [tree, listed], max_order=table.max_order)
    claims = _Claims(table, held, query, paths, tree, beyond)
    return (
        _check_energy(table, held, around, stops(held, query, listed, paths)),
        claims.check_bound(),
        claims.check_longer(),
        claims.check_certified(),
    )


def _check_energy(table: PathTable, held: Held, around: Frontier, left: Stops) -> Finding:
    """Check that Σ value² over unlisted paths is under what is claimed, head by head and valued."""
    detail = "sum of squares around the listed paths"
    if table.remainder_energy is None:
        return Finding("remainder energy", True, 0.0, 0.0, "not claimed")
    energy = around.energy + float((left.sizes**2).sum())
    slack = around.energy_slack + gamma(len(left.ends) + 8) * energy
    slack += float((2 * left.sizes * left.slacks + left.slacks**2).sum())
    slack += 4 * sum(held.doubts) * energy
    compared = [Compared(energy, table.remainder_energy + slack, "Σ value² of unlisted paths")]
    return judge("remainder energy", compared, detail)


class _Claims:
    """The table's claims on unlisted paths, beside what is left in and beyond the expanded tree."""

    def __init__(
        self,
        table: PathTable,
        held: Held,
        query: Query,
        paths: Sequence[Path],
        tree: Tree,
        beyond: Frontier,
    ) -> None:
        self.table, self.held, self.tree, self.beyond = table, held, tree, beyond
        self.most = math.inf if table.max_order is None else table.max_order
        self.highest = longest(held.network, query)[held.network.depth][query.start]
        self.stops = stops(held, query, tree, paths)
        by_order = query.count_by_order()
        within = by_order if table.max_order is None else by_order[: table.max_order + 1]
        self.unlisted = sum(within) - len(table)
        # On another machine patterns differ, and energies in proportion: see `held`.
        self.room = 1 + 2 * sum(held.doubts)

    def check_bound(self) -> Finding:
        """Check the bound on unlisted paths of at most the order asked for."""
        if self.table.bound is None:
            return judge("bound", [equal(None, "a number", "bound")], "")
        some = self.stops.within(0, self.most)
        compared = self._compared(self.table.bound, self.beyond.short, some)
        detail = f"{len(self.tree):,} suffixes expanded, {len(some.ends):,} unlisted paths valued, "
        detail += "all others under the energies beyond"
        return judge("bound", compared, detail)

    def check_longer(self) -> Finding:
        """Check the bound on unlisted paths above the order asked for."""
        if self.highest <= self.most:
            return Finding("longer paths", True, 0.0, 0.0, "there are none")
        some = self.stops.within(self.most + 1, math.inf)
        compared = self._compared(self.table.longer_bound, self.beyond.longer, some)
        return judge("longer paths", compared, f"paths of more than {self.most} heads")

    def check_certified(self) -> Finding:
        """Check that no unlisted path outranks a row, where that is claimed."""
        if not self.table.certified:
            return Finding("certified", True, 0.0, 0.0, "not claimed: the search stopped early")
        if not self.table.rows or not self.unlisted:
            return Finding("certified", True, 0.0, 0.0, "nothing is left that could outrank a row")
        some = self.stops.within(0, self.most)
        last = abs(self.table.rows[-1].value) / NEAR
        compared = self._compared(last, self.beyond.short, some)
        return judge("certified", compared, "no unlisted path is larger than the last row")

    def _compared(self, bound: float, left: Left | None, some: Stops) -> Iterator[Compared]:
        if left is not None:
            subject = f"paths that end in {' > '.join(map(str, left.word)) or 'the logits'}"
            yield Compared(left.size, bound * self.room + left.slack, subject)
        if some.ends and some.sizes.max() <= bound:
            largest = int(some.sizes.argmax())
            yield Compared(float(some.sizes[largest]), bound, f"unlisted {some.path(largest)}")
        # What is above, if only by rounding, is valued again by itself.
        for n in np.flatnonzero(some.sizes > bound):
            known = valued(self.held, some.path(int(n)))
            single = Compared(
                abs(known.value), bound + known.slack, f"unlisted {some.path(int(n))}"
            )
            yield single
            if not single.holds:
                return
