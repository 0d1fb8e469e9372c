"""Any table as a page: its head, its rows to sort, search, select and copy, its sums and claims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pathexpand.page.document import document
from pathexpand.page.grid import GridColumn, grid
from pathexpand.page.prose import escaped, prose
from pathexpand.page.script import script
from pathexpand.table.sheet import Sheet
from pathexpand.table.shorten import width

if TYPE_CHECKING:
    from pathexpand.table.abstract import Table

_ROWS = (2, 24)  # seen at once, at least and at most
_LETTER = 7.5  # pixels
_ROOM = (60, 420)  # pixels of a column, at least and at most
_FORMAT = "0.[000000]"  # decimals of numbers on the page; copied are all digits


def page(table: Table) -> str:
    """Write a table as a page of HTML.

    >>> from pathexpand.api import load
    >>> page(load("zero-layer").paths())[:15]
    '<!DOCTYPE html>'
    """
    from bokeh.models import (
        Button,
        Column,
        ColumnDataSource,
        CustomJS,
        IndexFilter,
        Row,
        TextInput,
    )

    sheet, records = table.sheet(), table.to_records()
    names = list(records[0]) if records else []
    rows = ColumnDataSource({name: _cells([each[name] for each in records]) for name in names})
    shown = IndexFilter(indices=list(range(len(records))))
    models = {
        "rows": rows,
        "shown": shown,
        "search": TextInput(title="rows with", name="search", width=240),
        "copy": Button(label="Copy as CSV", name="copy", width=120),
        "status": prose(name="status"),
    }
    bar = {"align-items": "flex-end", "gap": "0 1rem", "flex-wrap": "wrap"}
    root = Column(
        prose(head(sheet), name="head"),
        Row(models["search"], models["copy"], styles=bar),
        models["status"],
        grid(
            rows,
            shown,
            list(_columns(names, records)),
            rows=min(max(len(records), _ROWS[0]), _ROWS[1]),
            name="rows",
            styles={},
        ),
        prose(closing(sheet), name="closing"),
        sizing_mode="stretch_width",
    )
    data = {"names": names, "csv": table.to_csv().rstrip("\n").split("\n")}
    ready = CustomJS(
        args={"models": models, "data": data},
        code=script("page/rows.js"),
    )
    return document(root, title=title(sheet), ready=ready)


def title(sheet: Sheet) -> str:
    """Name a page after the first lines over its table.

    >>> from pathexpand.api import load
    >>> title(load("two-layer").run("to be").paths().sheet())
    "two-layer: 3 tokens: <|bos|> 'to' ' be'"
    """
    return ": ".join(line.text for line in sheet.head[:2])


def head(sheet: Sheet) -> str:
    """Write the lines over a table as markup.

    >>> from pathexpand.table.sheet import Line
    >>> head(Sheet((Line("model", "<b>"),), (), (), (), True))
    '<dl><dt>model</dt><dd class="mono" dir="ltr">&lt;b&gt;</dd></dl>'
    """
    lines = "".join(
        f'<dt>{escaped(line.label)}</dt><dd class="mono" dir="ltr">{escaped(line.text)}</dd>'
        for line in sheet.head
    )
    return f"<dl>{lines}</dl>"


def closing(sheet: Sheet) -> str:
    """Write the lines that close a table, and its claims, as markup.

    >>> closing(Sheet((), (), (), ("Certified.",), True))
    '<table></table><p class="good">Certified.</p>'
    """
    rows = "".join(
        f'<tr><td>{escaped(line.label)}</td><td class="n">{escaped(line.number)}</td>'
        f'<td class="n">{escaped(line.share)}</td><td>{escaped(line.remark)}</td></tr>'
        for line in sheet.closing
    )
    tone = "good" if sheet.good else "bad"
    claims = "".join(f'<p class="{tone}">{escaped(line)}</p>' for line in sheet.claims)
    return f"<table>{rows}</table>{claims}"


def _cells(values: list[Any]) -> Any:
    """Give a column's values: numbers as an array, so that they sort as such; else as they are."""
    if any(isinstance(value, float) for value in values):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return ["" if value is None else value for value in values]


def _columns(names: list[str], records: list[dict[str, Any]]) -> Iterator[GridColumn]:
    for name in names:
        values = [each[name] for each in records if each[name] is not None]
        number = any(isinstance(value, float) for value in values)
        right = bool(values) and all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in values
        )
        longest = max((10 if number else width(str(value)) for value in values), default=0)
        room = min(max(_LETTER * (max(longest, len(name)) + 2), _ROOM[0]), _ROOM[1])
        yield GridColumn(name, int(room), _FORMAT if number else None, right)
