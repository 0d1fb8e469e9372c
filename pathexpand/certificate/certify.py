"""Make a certificate from what a search found."""

from __future__ import annotations

import math

from pathexpand.api import Run, SearchedPaths
from pathexpand.certificate.architecture import architecture
from pathexpand.certificate.document import Certificate
from pathexpand.certificate.frontier import frontiers
from pathexpand.certificate.held import fixed_digest, hold
from pathexpand.certificate.suffix import Tree, Word, write_words
from pathexpand.errors import PathExpandError
from pathexpand.progress import watched

_KEPT = 50_000  # suffixes


@watched("writing the certificate")
def certify(run: Run, searched: SearchedPaths, *, source: str | None = None) -> Certificate:
    """Certify what a run's search found; `source` is where the model can be loaded from.

    By default that is the model's own name. All suffixes that the search expanded are kept, but
    of more than `_KEPT` only those without which the bound would not follow: to know these takes
    as long as a check. Nothing is checked here: that is for `check_certificate`. Raises
    `PathExpandError` where the search had no bound, and `LimitError` where more than `_KEPT` were
    expanded and the energies of the stream, or the suffixes, would take too much memory.

    >>> from pathexpand.api import load
    >>> run = load("two-layer").run("to be or not to")
    >>> certify(run, run.searched_paths(top=0)).expanded
    ()
    """
    table = searched.table
    if table.bound is None:
        raise PathExpandError("certificate", wanted="a table with a bound", got="none")
    few = len(searched.expanded) <= _KEPT
    kept = searched.expanded if few else _needed(run, searched, table.bound)
    return Certificate(
        source=run.model.config.model_name if source is None else source,
        mlp=run.model.mlp,
        weights=run.model.checkpoint.digest(),
        architecture=architecture(run.model),
        mask=tuple(bool(each) for each in run.dense.mask[0]),
        target=searched.target,
        fixed=fixed_digest(run),
        expanded=write_words(kept),
        table=table,
    ).sealed()


def _needed(run: Run, searched: SearchedPaths, bound: float) -> list[Word]:
    """Give the expanded suffixes behind which more may lie than the bounds say."""
    table = searched.table
    held = hold(run, searched.target, table.position, same=True)
    query = run.model.query(table.query)
    tree = Tree(held, query, searched.expanded)
    (frontier,) = frontiers(held, query, [tree], max_order=table.max_order)
    longer = math.inf if table.longer_bound is None else table.longer_bound
    return [left.word for left in frontier.inside if left.exceeds(bound, longer)]
