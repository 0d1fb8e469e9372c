"""How a table of norms is laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathexpand.table.figures import Scale, counted, percent, upper
from pathexpand.table.path_sheet import path_columns
from pathexpand.table.sheet import Column, Line, Sheet
from pathexpand.table.spelling import visible

if TYPE_CHECKING:
    from pathexpand.table.norm_table import NormTable


def norm_sheet(table: NormTable, *, ascii: bool) -> Sheet:
    """Lay out a table of norms.

    >>> from pathexpand.api import load
    >>> norm_sheet(load("zero-layer").paths(), ascii=True).columns[-2].name
    'norm'
    """
    rows, scale = table.rows, Scale.of([row.norm for row in table.rows])
    return Sheet(
        head=(
            Line("model", visible(table.model, ascii=ascii)),
            Line("ranked by", "Frobenius norm of each path's matrix, from weights alone"),
            Line("share", "part of the sum of squared norms"),
        ),
        columns=(
            *path_columns(rows, ascii=ascii),
            Column("norm", tuple(scale.write(row.norm) for row in rows), right=True),
            Column("share", tuple(percent(row.share) for row in rows), right=True, leave=3),
        ),
        closing=(),
        claims=(_listed(table), _claim(table)),
        good=table.certified,
    )


def _listed(table: NormTable) -> str:
    energy = f"squared norms sum to {table.energy:.6g}"
    return f"{len(table):,} of {counted(table.path_count, 'path')} listed; {energy}."


def _claim(table: NormTable) -> str:
    if len(table) == table.path_count:
        return "Complete: every path is listed."
    if table.certified and table.bound is not None:
        return f"Certified: each unlisted path has a norm of at most {upper(table.bound)}."
    if table.max_order is not None:
        heads = counted(table.max_order, "head")
        return f"Not certified: paths of more than {heads} were not ranked."
    return "Not certified: unlisted paths may be larger than listed ones."
