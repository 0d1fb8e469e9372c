"""The table of an analysis: named columns of plain values under a head, closed by sums and claims.

Path tables have classes of their own, because their numbers must add up. What an analysis of
circuits finds is a list of things with scores; one class holds them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pathexpand.errors import FileError, PathExpandError
from pathexpand.table.abstract import Table
from pathexpand.table.document import Record, check_finite, read
from pathexpand.table.sheet import Sheet

FieldKind = Literal["text", "token", "number", "share", "count", "flag"]
_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "token": (str,),
    "number": (int, float),
    "share": (int, float),
    "count": (int,),
    "flag": (bool,),
}


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name, what its values are, and whether it may be left out for want of room.

    "text" are names and labels, "token" a token's text made visible, "number" any number, "share" a
    part of 1, "count" a whole number, "flag" true or false. Columns with the largest `leave` go
    first; 0 stays. A value may be None, where there is none.

    >>> Field("score", "number").kind
    'number'
    """

    name: str
    kind: FieldKind
    leave: int = 0

    def __post_init__(self) -> None:
        """Refuse a kind that there is not."""
        if self.kind not in get_args(FieldKind):
            wanted = f"one of {', '.join(get_args(FieldKind))}"
            raise PathExpandError(f"field {self.name}", wanted=wanted, got=repr(self.kind))

    def check(self, value: Any) -> None:
        """Refuse a value that is not of the field's kind, or not finite."""
        if value is None:
            return
        fits = isinstance(value, _TYPES[self.kind])
        if not fits or (isinstance(value, bool) and self.kind != "flag"):
            raise PathExpandError(
                f"field {self.name}", wanted=f"a {self.kind}", got=repr(value)[:40]
            )
        if isinstance(value, float):
            check_finite(**{self.name: value})


@dataclass(frozen=True, slots=True)
class Summary:
    """A line under the rows: what it sums up, the number (None if words say it), a remark."""

    label: str
    value: float | None
    remark: str = ""

    def __post_init__(self) -> None:
        """Refuse a number that is not finite."""
        check_finite(**{self.label: self.value})


@dataclass(frozen=True, slots=True, repr=False)
class AnalysisTable(Table):
    """What an analysis found.

    `analysis` names it, `about` are labelled lines over the rows, `closing` lines under them, and
    `claims` say in plain sentences what the numbers are and are not. `good` is false where a
    reader should be warned. Raises `PathExpandError` for rows that do not fit the fields.

    >>> table = AnalysisTable("demo", (), (Field("head", "text"),), (("L0H1",), ("L1H0",)))
    >>> len(table), table.column("head")
    (2, ('L0H1', 'L1H0'))
    """

    analysis: str
    about: tuple[tuple[str, str], ...]
    fields: tuple[Field, ...]
    rows: tuple[tuple[Any, ...], ...]
    closing: tuple[Summary, ...] = ()
    claims: tuple[str, ...] = ()
    good: bool = True

    def __post_init__(self) -> None:
        """Refuse rows that do not fit the fields."""
        if len({field.name for field in self.fields}) < len(self.fields):
            raise PathExpandError(f"table of {self.analysis}", wanted="each field once")
        for number, row in enumerate(self.rows):
            if len(row) != len(self.fields):
                raise PathExpandError(
                    f"table of {self.analysis}, row {number}",
                    wanted=f"{len(self.fields)} values",
                    got=str(len(row)),
                )
            for field, value in zip(self.fields, row, strict=True):
                field.check(value)

    def __len__(self) -> int:
        """Give the number of rows."""
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a dictionary by field."""
        return iter(self.to_records())

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Give a row, counted from 0, as a dictionary by field."""
        return dict(zip(self._columns(), self.rows[index], strict=True))

    def column(self, name: str) -> tuple[Any, ...]:
        """Give the values of one field, row by row; raises `PathExpandError` if there is none."""
        if name not in self._columns():
            known = ", ".join(self._columns())
            raise PathExpandError(f"column {name!r}", wanted=f"one of {known}")
        place = self._columns().index(name)
        return tuple(row[place] for row in self.rows)

    def to_records(self) -> list[dict[str, Any]]:
        """Give one dictionary a row, with plain numbers and texts."""
        names = self._columns()
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def document(self) -> dict[str, Any]:
        """Give all the table holds as plain numbers, texts, lists and dictionaries."""
        return {
            "table": "analysis",
            "analysis": self.analysis,
            "about": [{"label": label, "text": text} for label, text in self.about],
            "fields": [
                {"name": each.name, "kind": each.kind, "leave": each.leave} for each in self.fields
            ],
            "rows": self.to_records(),
            "closing": [
                {"label": each.label, "value": each.value, "remark": each.remark}
                for each in self.closing
            ],
            "claims": [{"text": claim} for claim in self.claims],
            "good": self.good,
        }

    @classmethod
    def from_json(cls, text: str) -> AnalysisTable:
        """Read what `to_json` wrote, exact to the last digit; raises `FileError`.

        >>> table = AnalysisTable("demo", (), (Field("score", "number"),), ((0.1,),))
        >>> AnalysisTable.from_json(table.to_json()) == table
        True
        """
        table = read(text, "analysis")
        try:
            fields = tuple(
                Field(each.text("name"), each.text("kind"), each.whole("leave"))  # type: ignore[arg-type]
                for each in table.records("fields")
            )
            return cls(
                analysis=table.text("analysis"),
                about=tuple((e.text("label"), e.text("text")) for e in table.records("about")),
                fields=fields,
                rows=tuple(_read_row(each, fields) for each in table.records("rows")),
                closing=tuple(
                    Summary(e.text("label"), e.number_or_none("value"), e.text("remark"))
                    for e in table.records("closing")
                ),
                claims=tuple(each.text("text") for each in table.records("claims")),
                good=table.flag("good"),
            )
        except FileError:
            raise
        except PathExpandError as error:
            raise FileError("table", wanted="rows that fit its fields", got=str(error)) from None

    def sheet(self, *, ascii: bool = False) -> Sheet:
        """Lay the table out for printing; with `ascii`, in ASCII alone."""
        from pathexpand.table.analysis_sheet import analysis_sheet

        return analysis_sheet(self, ascii=ascii)

    def _columns(self) -> list[str]:
        return [field.name for field in self.fields]


def _read_row(row: Record, fields: tuple[Field, ...]) -> tuple[Any, ...]:
    return tuple(row.plain_or_none(field.name) for field in fields)
