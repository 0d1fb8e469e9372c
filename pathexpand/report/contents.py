"""What an explorer holds: a table of paths, where they move, their sums, and their heads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.page.paged import Paged
from pathexpand.symbolic import Network
from pathexpand.table import PathTable, ScoreTable, TotalsTable

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """The largest parts of what moves along each row's path.

    Row n has the parts `first[n]` to `first[n + 1]`, first (row + 1,); the other arrays are
    (part,). `step` 0 says where a path starts (`start` is `end`), step m what its m-th component
    carries from the position `start` to the position `end`. `drawn` counts the rows that have
    their parts here.
    """

    first: npt.NDArray[np.int32]
    step: npt.NDArray[np.uint8]
    start: npt.NDArray[np.uint16]
    end: npt.NDArray[np.uint16]
    value: npt.NDArray[np.float32]
    drawn: int


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """The entries of an attention pattern that are not too small to see, (entry,) each.

    `least` says below which weight entries are left out, `most` how many a query has at most.
    """

    query: npt.NDArray[np.uint16]
    key: npt.NDArray[np.uint16]
    weight: npt.NDArray[np.float32]
    least: float
    most: int

    @classmethod
    def of(cls, pattern: Array, *, least: float = 5e-4, most: int = 32) -> Pattern:
        """Take the entries (query, key) of most weight.

        >>> Pattern.of(np.array([[1.0, 0.0], [0.25, 0.75]]), most=1).key.tolist()
        [0, 1]
        """
        kept = abs(pattern) >= least
        if pattern.shape[1] > most:
            order = np.argsort(-abs(pattern), axis=1, kind="stable")[:, most:]
            np.put_along_axis(kept, order, False, axis=1)
        query, key = np.nonzero(kept)
        return cls(
            query.astype(np.uint16),
            key.astype(np.uint16),
            pattern[kept].astype(np.float32),
            least,
            most,
        )


@dataclass(frozen=True, slots=True, eq=False)
class HeadPart:
    """A head: the sum over all paths through it, where it looks, and why.

    `whys` are expansions of its scores from one query: of one key over another, or where the
    model caps its scores, of one key each.
    """

    label: str
    total: float
    pattern: Pattern
    whys: tuple[ScoreTable, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Report(Paged):
    """All that an explorer shows of one target of a run.

    `levels` name the heights of the drawing, from the tokens to the logits, and `level_of` gives
    the height at which each source is born and each component writes. `nearby` holds the values of
    paths that are not listed but are one component shorter than one that is.

    >>> from pathexpand.api import load
    >>> report = load("two-layer").run("to be or not to be").report(top=5)
    >>> report
    Report('two-layer': 5 paths, 4 heads)
    """

    table: PathTable
    network: Network
    levels: tuple[str, ...]
    level_of: dict[str, int]
    moves: Moves
    orders: TotalsTable
    heads: tuple[HeadPart, ...]
    nearby: dict[str, float] = field(default_factory=dict)
    graph: Any = None

    def __repr__(self) -> str:
        """Name the model, and count what is in it."""
        size = f"{len(self.table):,} paths, {len(self.heads)} heads"
        return f"Report({self.table.model!r}: {size})"

    def page(self) -> str:
        """Give the page: HTML with all its scripts, which asks no network for anything.

        Raises `PathExpandError` where bokeh is not installed.
        """
        from pathexpand.report.explorer import explorer

        return explorer(self)

    def _repr_html_(self) -> str:
        # The page takes some megabytes, so a notebook holds it only where it is asked for.
        hint = "<div><code>.show()</code> opens the explorer here.</div>"
        return self.table._repr_html_() + hint
