"""Rows in columns that a reader sorts, scrolls and selects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

_ROW = 25  # pixels of a row
# Readable without colour, too.
_STYLE = """
.slick-cell.selected { background-color: #c9def2 !important; font-weight: 600; }
"""
_AROUND = 2  # rows that the heading and the scroll bar take


@dataclass(frozen=True, slots=True)
class GridColumn:
    """A column: the field it shows, its pixels, and how a number is written.

    `number` is a format of numbro, as bokeh's `NumberFormatter` takes it; a column without one
    shows text, `right` at its right end. `title` stands over it, by default the field's name;
    `said` is another field, whose text is shown while rows sort by this one.
    """

    field: str
    width: int
    number: str | None = None
    right: bool = False
    title: str = ""
    said: str = ""

    def made(self) -> Any:
        """Make bokeh's column."""
        from bokeh.models import (
            HTMLTemplateFormatter,
            NumberFormatter,
            StringFormatter,
            TableColumn,
        )

        align: Literal["left", "right"] = "right" if self.right or self.number else "left"
        formatter: Any = (
            StringFormatter(text_align=align, nan_format="")
            if self.number is None
            else NumberFormatter(format=self.number, text_align=align, nan_format="")
        )
        if self.said:
            # The dash escapes what is in the text.
            shown = f'<div style="text-align: {align}"><%- {self.said} %></div>'
            formatter = HTMLTemplateFormatter(template=shown)
        return TableColumn(
            field=self.field,
            title=self.title or self.field.replace("_", " "),
            width=self.width,
            formatter=formatter,
        )


def grid(
    source: Any, shown: Any, columns: Sequence[GridColumn], *, rows: int, name: str, styles: Any
) -> Any:
    """Make a grid that shows the rows of a source that a filter leaves, so many at once.

    >>> from bokeh.models import ColumnDataSource, IndexFilter
    >>> source = ColumnDataSource({"path": ["embed"]})
    >>> made = grid(source, IndexFilter(), [GridColumn("path", 90)], rows=4, name="all", styles={})
    >>> made.height
    150
    """
    from bokeh.models import CDSView, DataTable

    return DataTable(
        source=source,
        view=CDSView(filter=shown),
        columns=[column.made() for column in columns],
        index_position=None,
        reorderable=False,
        row_height=_ROW,
        height=_ROW * (rows + _AROUND),
        min_width=320,
        sizing_mode="stretch_width",
        autosize_mode="none",
        styles=styles,
        stylesheets=[_STYLE],
        name=name,
    )
