"""How a table of norms is laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathexpand.table.figures import Scale, counted, percent
from pathexpand.table.held import mlps_line
from pathexpand.table.path_sheet import asked, claim, path_columns
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
            Line("ranked by", _measure(table)),
            *mlps_line(table.mlps),
            *asked(table.query, ascii=ascii),
            Line("share", "part of the sum of squared norms"),
        ),
        columns=(
            *path_columns(rows, ascii=ascii),
            Column("norm", tuple(scale.write(row.norm) for row in rows), right=True),
            Column("share", tuple(percent(row.share) for row in rows), right=True, leave=3),
        ),
        closing=(),
        claims=(_listed(table), claim(table, table.path_count - len(table), size="a norm")),
        good=table.certified,
    )


def _listed(table: NormTable) -> str:
    energy = f"squared norms sum to {table.energy:.6g}"
    return f"{len(table):,} of {counted(table.path_count, 'path')} listed; {energy}."


def _measure(table: NormTable) -> str:
    rows = ", each row less its mean" if table.centred else ""
    return f"Frobenius norm of each path's matrix{rows}, from weights alone"
