"""How the paths of each order add up to the dense value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathexpand.errors import PathExpandError
from pathexpand.model.shown import shown
from pathexpand.plot.figure import new_axes
from pathexpand.plot.names import readable
from pathexpand.table.figures import Scale
from pathexpand.table.totals_table import TotalsTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RISES, _FALLS, _WHOLE = "0.45", "white", "0.15"  # shades; what falls is hatched, too


def order_waterfall(table: TotalsTable, *, ax: Axes | None = None) -> Axes:
    """Draw a bar for each order, each begun where the last one ended, up to the dense value.

    What falls is hatched. Where the table is of some paths only, a bar says what those outside
    the query add. Raises `PathExpandError` for totals that are not by order.

    >>> from pathexpand import load
    >>> table = load("two-layer").run("to be or not to").totals_table(by="order")
    >>> [each.get_text() for each in order_waterfall(table).get_xticklabels()]
    ['order 0', 'order 1', 'order 2', 'dense']
    """
    if not isinstance(table, TotalsTable) or table.by != "order":
        got = f"one by {table.by}" if isinstance(table, TotalsTable) else shown(table)
        raise PathExpandError("waterfall", wanted="a table of totals by order", got=got)
    steps = [(f"order {row.part}", row.value) for row in table.rows]
    if table.query != "*":
        steps.append(("outside", table.dense - table.total))
    ax = (
        new_axes(width=min(max(4.0, 0.75 * len(steps) + 1.8), 24.0), height=4.0)
        if ax is None
        else ax
    )
    write = Scale.of([table.dense, *(value for _, value in steps)]).write
    at = 0.0
    for place, (_, value) in enumerate(steps):
        _bar(
            ax, place, at, value, _RISES if value >= 0 else _FALLS, f"{_sign(value)}{write(value)}"
        )
        at += value
        ax.plot([place + 0.4, place + 0.6], [at, at], color="0.5", linewidth=0.8)
    _bar(ax, len(steps), 0.0, table.dense, _WHOLE, write(table.dense))
    names = [*(name for name, _ in steps), "dense"]
    ax.set_xticks(range(len(names)), names, rotation=90 if len(names) > 8 else 0)
    ax.axhline(0, color="0.5", linewidth=0.8)
    _make_room(ax)
    ax.set_ylabel("value")
    said = [table.target, *([table.query] if table.query != "*" else [])]
    ax.set_title("\n".join(map(readable, said)), fontsize=10)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def _bar(ax: Axes, place: int, start: float, value: float, color: str, text: str) -> None:
    hatch = "////" if color == _FALLS else None
    ax.bar(place, value, bottom=start, width=0.8, color=color, edgecolor="0.15", hatch=hatch)
    end = max(start, start + value)
    ax.annotate(
        text,
        (place, end),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8,
    )


def _make_room(ax: Axes) -> None:
    """Leave room over the bars, where the numbers are, and under those that fall below 0."""
    edges = [edge for bar in ax.patches for edge in (bar.get_y(), bar.get_y() + bar.get_height())]  # type: ignore[attr-defined]
    low, high = min(edges), max(edges)
    room = 0.08 * (high - low or 1.0)
    ax.set_ylim(low - room if low < 0 else low, high + room)


def _sign(value: float) -> str:
    return "+" if value > 0 else ""
