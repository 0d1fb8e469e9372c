"""How a table of totals is laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathexpand.table.figures import Scale, percent, whole
from pathexpand.table.held import dense_remark, mlps_line
from pathexpand.table.path_sheet import asked
from pathexpand.table.sheet import Closing, Column, Line, Sheet
from pathexpand.table.spelling import visible

if TYPE_CHECKING:
    from pathexpand.table.totals_table import TotalsTable


def totals_sheet(table: TotalsTable, *, ascii: bool) -> Sheet:
    """Lay out a table of totals.

    >>> from pathexpand.api import load
    >>> table = load("two-layer").run("to be or not to").totals_table(by="order")
    >>> [column.name for column in totals_sheet(table, ascii=True).columns]
    ['order', 'paths', 'value', 'share']
    """
    rows = table.rows
    scale = Scale.of([table.total, table.dense, *(row.value for row in rows)])
    counts = tuple("" if row.paths is None else whole(row.paths) for row in rows)
    names = tuple(visible(row.part, ascii=ascii) for row in rows)
    columns = (
        Column(table.by, names, literal=True, right=table.by == "order"),
        *((Column("paths", counts, right=True, leave=2),) if any(counts) else ()),
        Column("value", tuple(scale.write(row.value) for row in rows), right=True),
        Column("share", tuple(percent(row.share) for row in rows), right=True, leave=1),
    )
    share = percent(table.total / table.dense) if table.dense else "-"
    return Sheet(
        head=(
            Line("model", visible(table.model, ascii=ascii)),
            Line("position", str(table.position)),
            Line("target", visible(table.target, ascii=ascii)),
            *mlps_line(table.mlps),
            *asked(table.query, ascii=ascii),
        ),
        columns=columns,
        closing=(
            Closing("total", scale.write(table.total), share, "every path of the query"),
            Closing(
                "dense",
                scale.write(table.dense),
                "",
                dense_remark("the model's own forward pass", table.soft_cap),
            ),
        ),
        claims=(
            "The rows add up to the total."
            if table.parted
            else "A path counts in every row that it passes through.",
        ),
        good=True,
    )
