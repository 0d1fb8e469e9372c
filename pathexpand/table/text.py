"""A table as text for a terminal."""

from __future__ import annotations

import shutil
from io import StringIO
from typing import TYPE_CHECKING

from pathexpand.table.sheet import Closing, Column, Fitted, Sheet, fit

if TYPE_CHECKING:
    from rich.table import Table as Grid

_NARROWEST = 40  # below this nothing sensible can be laid out


def text(
    sheet: Sheet, *, width: int | None = None, ascii: bool = False, color: bool = False
) -> str:
    """Lay a sheet out as text: the head, the rows, the closing lines and the claims.

    `width` counts terminal cells; None takes the terminal's own, or 80 where there is none.

    >>> print(text(Sheet((), (Column("rank", ("1", "2"), right=True),), (), (), True), ascii=True))
    rank
    ----
       1
       2
    """
    room = max(width or shutil.get_terminal_size((80, 24)).columns, _NARROWEST)
    fitted = fit(sheet.columns, room)
    blocks = [
        (_head(sheet, room), room),
        # Wider than the room rather than cut off: what is lost can look like the whole.
        (_rows(fitted, rule="-" if ascii else "─"), max(room, fitted.width)),
        (_closing(sheet.closing), room),
        (_claims(sheet), room),
    ]
    return "\n\n".join(_printed(block, wide, color) for block, wide in blocks if block.row_count)


def _head(sheet: Sheet, room: int) -> Grid:
    from rich.text import Text

    label_width = max((len(line.label) for line in sheet.head), default=0)
    grid = _grid()
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for line in sheet.head:
        grid.add_row(line.label, Text(line.within(room - label_width - 2)))
    return grid


def _rows(fitted: Fitted, *, rule: str) -> Grid:
    from rich.text import Text

    columns, grid = fitted.columns, _grid(show_header=True, gap=fitted.gap)
    for column in columns:
        justify = "right" if column.right else "left"
        grid.add_column(column.name, justify=justify, no_wrap=True, overflow="crop")  # type: ignore[arg-type]
    grid.add_row(*(rule * column.natural for column in columns))
    for cells in zip(*(column.cells for column in columns), strict=True):
        grid.add_row(
            *(Text(cell, _style(column, cell)) for column, cell in zip(columns, cells, strict=True))
        )
    return grid


def _closing(lines: tuple[Closing, ...]) -> Grid:
    from rich.text import Text

    grid = _grid()
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row(line.label, line.number, line.share, Text(line.remark))
    return grid


def _claims(sheet: Sheet) -> Grid:
    from rich.text import Text

    grid = _grid()
    grid.add_column(overflow="fold")
    for claim in sheet.claims:
        grid.add_row(Text(claim, "green" if sheet.good else "yellow"))
    return grid


def _grid(*, show_header: bool = False, gap: int = 2) -> Grid:
    from rich.table import Table as Grid

    return Grid(
        box=None,
        show_header=show_header,
        header_style="bold",
        pad_edge=False,
        padding=(0, gap, 0, 0),
    )


def _style(column: Column, cell: str) -> str:
    return "red" if column.right and cell.startswith("-") and cell != "-" else ""


def _printed(grid: Grid, room: int, color: bool) -> str:
    from rich.console import Console

    console = Console(
        file=StringIO(),
        width=room,
        force_terminal=color,
        force_jupyter=False,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with console.capture() as capture:
        console.print(grid)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
