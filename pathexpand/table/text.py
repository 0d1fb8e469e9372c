"""A table as text for a terminal."""

from __future__ import annotations

import shutil
from io import StringIO
from typing import TYPE_CHECKING

from pathexpand.table.sheet import Closing, Column, Fitted, Sheet, parted
from pathexpand.table.shorten import width as cells
from pathexpand.table.shorten import wrap

if TYPE_CHECKING:
    from rich.table import Table as Grid
    from rich.text import Text

_NARROWEST = 40  # below this nothing sensible can be laid out
_REMARK = 20  # cells that a remark needs beside its number


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
    blocks: list[tuple[Grid | Text, int]] = [
        (_head(sheet, room), room),
        # Wider than the room rather than cut off: what is lost can look like the whole.
        *(
            (_rows(each, rule="-" if ascii else "─"), max(room, each.width))
            for each in parted(sheet.columns, room)
        ),
        (_closing(sheet.closing, room), room),
        (_claims(sheet), room),
    ]
    written = (_printed(block, wide, color) for block, wide in blocks)
    return "\n\n".join(each for each in written if each)


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
    for row in zip(*(column.cells for column in columns), strict=True):
        grid.add_row(
            *(Text(cell, _style(column, cell)) for column, cell in zip(columns, row, strict=True))
        )
    return grid


def _closing(lines: tuple[Closing, ...], room: int) -> Grid | Text:
    from rich.text import Text

    if not _beside(lines, room):
        return _closing_below(lines, room)
    grid = _grid()
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row(line.label, line.number, line.share, Text(line.remark))
    return grid


def _widths(lines: tuple[Closing, ...]) -> list[int]:
    parts = ("label", "number", "share")
    return [max((cells(getattr(each, part)) for each in lines), default=0) for part in parts]


def _beside(lines: tuple[Closing, ...], room: int) -> bool:
    """Say whether remarks have room beside the numbers, in lines that can be read."""
    left = room - sum(_widths(lines)) - 6
    return left >= min(max((cells(each.remark) for each in lines), default=0), _REMARK)


def _closing_below(lines: tuple[Closing, ...], room: int) -> Text:
    """Write each remark under its number."""
    from rich.text import Text

    label, number, share = _widths(lines)
    written = []
    for each in lines:
        line = Text(each.label.ljust(label + len(each.label) - cells(each.label)), "bold")
        line.append(f"  {each.number.rjust(number)}  {each.share.rjust(share)}", "not bold")
        if each.remark:
            remark = wrap(each.remark, room - 4).replace("\n", "\n    ")
            line.append(f"\n    {remark}", "not bold")
        written.append(line)
    return Text("\n").join(written)


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


def _printed(block: Grid | Text, room: int, color: bool) -> str:
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
        console.print(block)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
