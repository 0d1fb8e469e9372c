"""How a table of paths over a data set is laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathexpand.table.figures import Scale, counted, percent, small, upper
from pathexpand.table.held import dense_remark, mlps_line
from pathexpand.table.path_sheet import asked, claim, path_columns
from pathexpand.table.sheet import Closing, Column, Line, Sheet
from pathexpand.table.spelling import visible

if TYPE_CHECKING:
    from pathexpand.table.dataset_table import DatasetTable

_SIZES = {"rms": "root mean square of each path's values", "mean": "|mean| of each path's values"}


def dataset_sheet(table: DatasetTable, *, ascii: bool) -> Sheet:
    """Lay out a table of paths over a data set.

    >>> from pathexpand.api import load
    >>> sheet = dataset_sheet(load("zero-layer").dataset_paths([[1, 2], [3]]), ascii=True)
    >>> [line.label for line in sheet.closing]
    ['listed', 'remainder', 'sum', 'dense', 'gap']
    """
    return Sheet(
        head=(
            Line("model", visible(table.model, ascii=ascii)),
            Line("prompts", f"{table.prompts:,}, each read at its last token"),
            Line("target", visible(table.target, ascii=ascii)),
            *mlps_line(table.mlps),
            Line("ranked by", f"{_SIZES[table.by]} over the prompts"),
            *asked(table.query, ascii=ascii),
        ),
        columns=(*path_columns(table.rows, ascii=ascii), *_columns(table, ascii=ascii)),
        closing=_closing(table),
        claims=(*_fault(table), _claim(table), *_searched(table)),
        good=table.certified and table.closes,
    )


def _columns(table: DatasetTable, *, ascii: bool) -> tuple[Column, ...]:
    rows, write = table.rows, _scale(table).write
    errors = [row.standard_error for row in rows]
    written = tuple("-" if error is None else write(error) for error in errors)
    return (
        Column("rms", tuple(write(row.rms) for row in rows), right=True),
        Column("mean", tuple(write(row.mean) for row in rows), right=True),
        Column("+-" if ascii else "±", written, right=True, leave=2),
        Column("share", tuple(percent(row.share) for row in rows), right=True, leave=3),
    )


def _scale(table: DatasetTable) -> Scale:
    sums = [table.dense, table.sum, table.listed, table.remainder, table.outside]
    return Scale.of(sums + [row.rms for row in table.rows] + [row.mean for row in table.rows])


def _closing(table: DatasetTable) -> tuple[Closing, ...]:
    write = _scale(table).write

    def line(label: str, part: float, remark: str) -> Closing:
        share = percent(part / table.dense) if table.dense else "-"
        return Closing(label, write(part), share, remark)

    unlisted, outside = counted(table.remainder_count, "path"), counted(table.outside_count, "path")
    apart = (line("outside", table.outside, f"{outside} not in the query"),)
    return (
        line("listed", table.listed, f"{counted(len(table), 'path')}, mean over prompts"),
        line("remainder", table.remainder, unlisted),
        *(apart if table.outside_count else ()),
        line("sum", table.sum, counted(table.path_count, "path")),
        line("dense", table.dense, _dense(table)),
        Closing("gap", small(table.gap), "", f"rounding allows {upper(table.gap_bound, digits=2)}"),
    )


def _dense(table: DatasetTable) -> str:
    return dense_remark("mean of the model's own forward passes", table.soft_cap)


def _claim(table: DatasetTable) -> str:
    size = "an rms value" if table.by == "rms" else "a |mean|"
    return claim(table, table.remainder_count, size=size)


def _searched(table: DatasetTable) -> tuple[str, ...]:
    """Say how much was visited, where that is worth saying."""
    if table.visited is None or table.rounds is None or not table.remainder_count:
        return ()
    paths = counted(table.path_count, "path")
    return (
        f"{table.visited:,} of {paths} were valued in {counted(table.rounds, 'round')} over "
        "the prompts.",
    )


def _fault(table: DatasetTable) -> tuple[str, ...]:
    if table.closes:
        return ()
    return ("THE SUM DOES NOT CLOSE: the gap is larger than rounding explains.",)
