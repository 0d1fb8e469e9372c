"""The table of sums over all paths of each kind, none of them listed."""

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
class TotalsRow:
    """The sum over all paths of one kind, and its share of the dense value (None where that is 0).

    `paths` counts them, where that is known.

    >>> TotalsRow("order 0", 1, 2.0, 0.5).value
    2.0
    """

    part: str
    paths: int | None
    value: float
    share: float | None

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite."""
        check_finite(value=self.value, share=self.share)


@dataclass(frozen=True, slots=True, repr=False)
class TotalsTable(Table):
    """Sums over paths, by order, source, token, head or pair of heads.

    `total` sums every path of the query. With `parted` the rows part it; otherwise a path counts
    in every row that it passes through. `mlps` and `soft_cap` are as in `PathTable`. Raises
    `PathExpandError` for numbers that are not finite.

    >>> from pathexpand.api import load
    >>> load("two-layer").run("to be or not to").totals_table(by="order").parted
    True
    """

    model: str
    target: str
    position: int
    query: str
    by: str
    rows: tuple[TotalsRow, ...]
    total: float
    dense: float
    parted: bool
    mlps: str | None = None
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        """Refuse a table that contradicts itself."""
        check_finite(total=self.total, dense=self.dense, soft_cap=self.soft_cap)
        check_held(self.mlps, self.soft_cap)
        if self.position < 0:
            raise PathExpandError("table", wanted="a position of the prompt")

    def __len__(self) -> int:
        """Give the number of rows."""
        return len(self.rows)

    def __iter__(self) -> Iterator[TotalsRow]:
        """Yield the rows."""
        return iter(self.rows)

    def __getitem__(self, index: int) -> TotalsRow:
        """Give a row, counted from 0."""
        return self.rows[index]

    def to_records(self) -> list[dict[str, Any]]:
        """Give one dictionary a row, with plain numbers and texts."""
        return [asdict(row) for row in self.rows]

    def document(self) -> dict[str, Any]:
        """Give all the table holds as plain numbers, texts, lists and dictionaries."""
        return {
            "table": "totals",
            "model": self.model,
            "target": self.target,
            "position": self.position,
            "query": self.query,
            "by": self.by,
            "rows": self.to_records(),
            "total": self.total,
            "dense": self.dense,
            "parted": self.parted,
            "mlps": self.mlps,
            "soft_cap": self.soft_cap,
        }

    @classmethod
    def from_json(cls, text: str) -> TotalsTable:
        """Read what `to_json` wrote, exact to the last digit; raises `FileError`.

        >>> from pathexpand.api import load
        >>> table = load("two-layer").run("to be or not to").totals_table(by="head")
        >>> TotalsTable.from_json(table.to_json()) == table
        True
        """
        table = read(text, "totals")
        return cls(
            model=table.text("model"),
            target=table.text("target"),
            position=table.whole("position"),
            query=table.text("query"),
            by=table.text("by"),
            rows=tuple(_read_row(each) for each in table.records("rows")),
            total=table.number("total"),
            dense=table.number("dense"),
            parted=table.flag("parted"),
            mlps=table.text_if_any("mlps"),
            soft_cap=table.number_if_any("soft_cap"),
        )

    def sheet(self, *, ascii: bool = False) -> Sheet:
        """Lay the table out for printing; with `ascii`, in ASCII alone."""
        from pathexpand.table.totals_sheet import totals_sheet

        return totals_sheet(self, ascii=ascii)

    def _columns(self) -> list[str]:
        return [field.name for field in fields(TotalsRow)]


def _read_row(row: Record) -> TotalsRow:
    return TotalsRow(
        part=row.text("part"),
        paths=row.whole_or_none("paths"),
        value=row.number("value"),
        share=row.number_or_none("share"),
    )
