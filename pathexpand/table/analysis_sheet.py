"""How the table of an analysis is laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pathexpand.table.figures import Scale, percent, whole
from pathexpand.table.path_sheet import mark
from pathexpand.table.sheet import Closing, Column, Line, Sheet
from pathexpand.table.shorten import shorten_end, shorten_path
from pathexpand.table.spelling import plain, visible

if TYPE_CHECKING:
    from pathexpand.table.analysis_table import AnalysisTable, Field

_LEAST = 10  # cells that a name or a token keeps when there is little room


def analysis_sheet(table: AnalysisTable, *, ascii: bool) -> Sheet:
    """Lay out the table of an analysis; each column of numbers has a scale of its own.

    >>> from pathexpand.table.analysis_table import AnalysisTable, Field
    >>> table = AnalysisTable("demo", (), (Field("score", "number"),), ((0.5,), (None,)))
    >>> analysis_sheet(table, ascii=True).columns[0].cells
    ('0.50000', '-')
    """
    scale = Scale.of([each.value for each in table.closing if each.value is not None])
    return Sheet(
        head=tuple(_line(label, text, ascii=ascii) for label, text in table.about),
        columns=tuple(
            _column(field, [row[place] for row in table.rows], ascii=ascii)
            for place, field in enumerate(table.fields)
        ),
        closing=tuple(
            Closing(
                _said(each.label, ascii=ascii),
                "" if each.value is None else scale.write(each.value),
                "",
                _said(each.remark, ascii=ascii),
            )
            for each in table.closing
        ),
        claims=tuple(_said(claim, ascii=ascii) for claim in table.claims),
        good=table.good,
    )


def _line(label: str, text: str, *, ascii: bool) -> Line:
    return Line(_said(label, ascii=ascii), _said(text, ascii=ascii))


def _said(text: str, *, ascii: bool) -> str:
    """Write our own words: signs have a spelling in ASCII."""
    return plain(text) if ascii else visible(text)


def _column(field: Field, values: list[Any], *, ascii: bool) -> Column:
    cells, name = tuple(_cells(field, values, ascii=ascii)), _said(field.name, ascii=ascii)
    if field.kind not in ("text", "token"):
        return Column(name, cells, right=field.kind != "flag", leave=field.leave)
    return Column(
        name,
        cells,
        literal=True,
        shorten=lambda row, room: _shorter(cells[row], room, mark(ascii=ascii)),
        least=_LEAST,
        leave=field.leave,
    )


def _cells(field: Field, values: list[Any], *, ascii: bool) -> list[str]:
    if field.kind == "number":
        scale = Scale.of([value for value in values if value is not None])
        return ["-" if value is None else scale.write(value) for value in values]
    if field.kind == "share":
        return [percent(value) for value in values]
    if field.kind == "count":
        return ["-" if value is None else whole(value) for value in values]
    if field.kind == "flag":
        return ["-" if value is None else ("yes" if value else "no") for value in values]
    if field.kind == "text":
        return ["" if value is None else _said(value, ascii=ascii) for value in values]
    return ["" if value is None else visible(value, ascii=ascii) for value in values]


def _shorter(text: str, room: int, mark: str) -> str:
    """Cut a name; of a path, what stands at both ends says most."""
    shorten = shorten_path if " > " in text else shorten_end
    return shorten(text, room, mark=mark)
