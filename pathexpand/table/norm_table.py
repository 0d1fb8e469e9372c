"""The table of paths ranked from weights alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from pathexpand.errors import PathExpandError
from pathexpand.table.abstract import Table
from pathexpand.table.document import Record, check_finite, read
from pathexpand.table.held import check_held
from pathexpand.table.sheet import Sheet


@dataclass(frozen=True, slots=True)
class NormRow:
    """One path ranked by the norm of its matrix; `share` is its part of the squared norms.

    >>> NormRow(1, "embed", 0, "direct", 3.0, 0.9).norm
    3.0
    """

    rank: int
    path: str
    order: int
    kind: str
    norm: float
    share: float | None

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite."""
        check_finite(norm=self.norm, share=self.share)


@dataclass(frozen=True, slots=True, repr=False)
class NormTable(Table):
    """Paths ranked from weights alone, by the Frobenius norm of their end-to-end matrix.

    `energy` is the sum of squared norms over all paths of the query, listed or not. `path_count`
    counts them; `bound` and `longer_bound` are as in `PathTable`. Norms of paths do
    not add up to the norm of their sum, so there is no dense value to close against. Raises
    `PathExpandError` for numbers that are not finite or more rows than paths.

    >>> from pathexpand.api import load
    >>> len(load("zero-layer").paths())
    1
    """

    model: str
    rows: tuple[NormRow, ...]
    energy: float
    path_count: int
    certified: bool
    bound: float | None
    max_order: int | None = None
    longer_bound: float = 0.0
    query: str = "*"
    centred: bool = False
    mlps: str | None = None

    def __post_init__(self) -> None:
        """Refuse a table that contradicts itself."""
        check_finite(energy=self.energy, bound=self.bound)
        check_held(self.mlps)
        if [row.rank for row in self.rows] != [*range(1, len(self) + 1)]:
            raise PathExpandError("table", wanted="ranks 1, 2, 3, …")
        if len(self) > self.path_count:
            raise PathExpandError("table", wanted="no more rows than paths")
        if self.certified and self.bound is None:
            raise PathExpandError("table", wanted="a bound, as it is certified")

    def __len__(self) -> int:
        """Give the number of listed paths."""
        return len(self.rows)

    def __iter__(self) -> Iterator[NormRow]:
        """Yield the rows, largest norm first."""
        return iter(self.rows)

    def __getitem__(self, index: int) -> NormRow:
        """Give a row, counted from 0."""
        return self.rows[index]

    def to_records(self) -> list[dict[str, Any]]:
        """Give one dictionary a row, with plain numbers and texts.

        >>> from pathexpand.api import load
        >>> load("zero-layer").paths().to_records()[0]["rank"]
        1
        """
        return [asdict(row) for row in self.rows]

    def document(self) -> dict[str, Any]:
        """Give all the table holds as plain numbers, texts, lists and dictionaries.

        >>> from pathexpand.api import load
        >>> list(load("zero-layer").paths().document())[:3]
        ['table', 'model', 'rows']
        """
        return {
            "table": "norms",
            "model": self.model,
            "rows": self.to_records(),
            "energy": self.energy,
            "path_count": self.path_count,
            "certified": self.certified,
            "bound": self.bound,
            "max_order": self.max_order,
            "longer_bound": self.longer_bound,
            "query": self.query,
            "centred": self.centred,
            "mlps": self.mlps,
        }

    @classmethod
    def from_json(cls, text: str) -> NormTable:
        """Read what `to_json` wrote, exact to the last digit; raises `FileError`.

        >>> from pathexpand.api import load
        >>> table = load("zero-layer").paths()
        >>> NormTable.from_json(table.to_json()) == table
        True
        """
        table = read(text, "norms")
        return cls(
            model=table.text("model"),
            rows=tuple(_read_row(each) for each in table.records("rows")),
            energy=table.number("energy"),
            path_count=table.whole("path_count"),
            certified=table.flag("certified"),
            bound=table.number_or_none("bound"),
            max_order=table.whole_or_none("max_order"),
            longer_bound=table.number("longer_bound"),
            query=table.text("query"),
            centred=table.flag("centred"),
            mlps=table.text_if_any("mlps"),
        )

    def sheet(self, *, ascii: bool = False) -> Sheet:
        """Lay the table out for printing; with `ascii`, in ASCII alone.

        >>> from pathexpand.api import load
        >>> [column.name for column in load("zero-layer").paths().sheet().columns][-2:]
        ['norm', 'share']
        """
        from pathexpand.table.norm_sheet import norm_sheet

        return norm_sheet(self, ascii=ascii)

    def _columns(self) -> list[str]:
        return [field.name for field in fields(NormRow)]


def _read_row(row: Record) -> NormRow:
    return NormRow(
        rank=row.whole("rank"),
        path=row.text("path"),
        order=row.whole("order"),
        kind=row.text("kind"),
        norm=row.number("norm"),
        share=row.number_or_none("share"),
    )
