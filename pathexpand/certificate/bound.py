"""The claims on what is not listed: its energy, the two bounds, and that nothing outranks a row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pathexpand.certificate.finding import Compared, Finding, equal, judge
from pathexpand.certificate.frontier import Frontier, Left, frontiers
from pathexpand.certificate.held import Held
from pathexpand.certificate.rows import NEAR
from pathexpand.certificate.stops import Stops, stops
from pathexpand.certificate.suffix import Tree, longest, read_words
from pathexpand.certificate.value import valued
from pathexpand.engine.rounding import gamma
from pathexpand.errors import LimitError, PathExpandError
from pathexpand.symbolic import Path
from pathexpand.symbolic.query import Query
from pathexpand.table import PathTable


def check_bound(
    table: PathTable, held: Held, query: Query, paths: Sequence[Path], expanded: Sequence[str]
) -> tuple[Finding, ...]:
    """Check every claim on unlisted paths: they stop at an expanded suffix or lie beyond one.

    The expanded suffixes, each with its later parts, are a tree with the readout as its root. A
    path that stops in it is valued; one that leaves it does so at one component, behind which the
    energy of all prefixes bounds it. If nothing was expanded, the energy of all paths does.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> run = load("two-layer").run("to be or not to")
    >>> target, place, query = run.target(), run.position(), run.model.query()
    >>> held = hold(run, target, place, same=True)
    >>> [each.name for each in check_bound(run.paths(top=0), held, query, [], [])]
    ['remainder energy', 'bound', 'longer paths', 'certified']
    """
    try:
        tree = Tree(held, query, read_words(expanded, held.network))
    except LimitError:
        raise
    except PathExpandError as error:
        return (Finding("bound", False, 1.0, 0.0, str(error)),)
    # The energy that is claimed is that around the listed paths; around more it can only be less.
    trees, words = [tree], {path.components for path in paths}
    if not words <= set(tree.words):
        trees.append(Tree(held, query, words))
    left = [stops(held, query, each, paths) for each in trees]
    if _are_all_valued(table, query, len(set(paths)), left[0]):
        nothing = Frontier(held, query, tree, table.max_order)
        return _findings(table, held, query, left[:1], [nothing])
    findings: tuple[Finding, ...] = ()
    for account in (False, True):  # of rounding: it matters only where a claim fails without
        found = frontiers(held, query, trees, max_order=table.max_order, account=account)
        findings = _findings(table, held, query, left, found)
        if all(finding.holds for finding in findings):
            break
    return findings


def _are_all_valued(table: PathTable, query: Query, listed: int, left: Stops) -> bool:
    """Say whether all unlisted paths that anything is claimed of are valued one by one."""
    counts = query.count_by_order()
    if table.longer_bound is None and table.remainder_energy is None:
        most = len(counts) if table.max_order is None else table.max_order
        return len(left.within(0, most)) == sum(counts[: most + 1]) - listed
    return len(left) == sum(counts) - listed


def _findings(
    table: PathTable,
    held: Held,
    query: Query,
    left: Sequence[Stops],
    found: Sequence[Frontier],
) -> tuple[Finding, ...]:
    claims = _Claims(table, held, query, left[0], found[0])
    return (
        _check_energy(table, found[-1], left[-1]),
        claims.check_bound(),
        claims.check_longer(),
        claims.check_certified(),
    )


def _check_energy(table: PathTable, around: Frontier, left: Stops) -> Finding:
    """Check that Σ value² over unlisted paths is under what is claimed."""
    detail = "sum of squares around the listed paths"
    if table.remainder_energy is None:
        return Finding("remainder energy", True, 0.0, 0.0, "not claimed")
    energy = around.energy + float((left.sizes**2).sum())
    slack = around.energy_slack + gamma(len(left) + 8) * energy
    slack += float((2 * left.sizes * left.slacks + left.slacks**2).sum())
    compared = [Compared(energy, table.remainder_energy + slack, "Σ value² of unlisted paths")]
    return judge("remainder energy", compared, detail)


class _Claims:
    """The table's claims on unlisted paths, beside what is left in and beyond the expanded tree."""

    def __init__(
        self,
        table: PathTable,
        held: Held,
        query: Query,
        left: Stops,
        beyond: Frontier,
    ) -> None:
        self.table, self.held, self.stops, self.beyond = table, held, left, beyond
        self.most = math.inf if table.max_order is None else table.max_order
        self.highest = longest(held.network, query)[held.network.depth][query.start]
        by_order = query.count_by_order()
        within = by_order if table.max_order is None else by_order[: table.max_order + 1]
        self.unlisted = sum(within) - len(table)

    def check_bound(self) -> Finding:
        """Check the bound on unlisted paths of at most the order asked for."""
        if self.table.bound is None:
            return judge("bound", [equal(None, "a number", "bound")], "")
        some = self.stops.within(0, self.most)
        compared = self._compared(self.table.bound, self.beyond.short, some)
        detail = (
            f"{len(self.stops.tree):,} suffixes expanded, {len(some):,} unlisted paths valued, "
        )
        detail += "all others under the energies beyond" if self.beyond.short else "no others"
        return judge("bound", compared, detail)

    def check_longer(self) -> Finding:
        """Check the bound on unlisted paths above the order asked for."""
        bound = self.table.longer_bound
        if self.highest <= self.most:
            return Finding("longer paths", True, 0.0, 0.0, "there are none")
        if bound is None:
            return Finding("longer paths", True, 0.0, 0.0, "not claimed")
        some = self.stops.within(self.most + 1, math.inf)
        compared = self._compared(bound, self.beyond.longer, some)
        return judge("longer paths", compared, f"paths of more than {self.most} components")

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
            yield Compared(left.size, bound + left.slack, subject)
        if len(some) and some.sizes.max() <= bound:
            largest = int(some.sizes.argmax())
            yield Compared(float(some.sizes[largest]), bound, f"unlisted {some.path(largest)}")
        # What is above, if only by rounding, is valued again by itself.
        for n in np.flatnonzero(some.sizes > bound):
            path = some.path(int(n))
            known = valued(self.held, path)
            single = Compared(abs(known.value), bound + known.slack, f"unlisted {path}")
            yield single
            if not single.holds:
                return
