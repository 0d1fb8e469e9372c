"""Sums over all paths of each order, as steps that end at the dense value."""

from __future__ import annotations

from typing import Any

from pathexpand.page.colours import MINUS, PLUS
from pathexpand.table import TotalsTable
from pathexpand.table.figures import Scale, counted, percent

_FEW = 6  # orders that have room for all decimals
_SMALL = 0.02  # of the largest step


def order_view(orders: TotalsTable) -> Any:
    """Draw one step an order, from the sum of all shorter paths on, and the dense value.

    >>> from pathexpand.api import load
    >>> table = load("two-layer").run("to be or not to").totals_table(by="order")
    >>> order_view(table).title.text
    'All paths, order by order'
    """
    from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, Span
    from bokeh.plotting import figure

    scale = Scale.of([row.value for row in orders] + [orders.dense])
    steps, before = [], 0.0
    for row in orders:
        steps.append((before, before + row.value, row))
        before += row.value
    names = [row.part for row in orders]
    largest, few = max((abs(row.value) for row in orders), default=0.0), len(names) <= _FEW
    marks = [
        f"{'+' if row.value >= 0 else ''}{scale.write(row.value)}"
        if few
        else _mark(row.value, largest)
        for row in orders
    ]
    data = {
        "x": list(range(len(steps) + 1)),
        "bottom": [min(low, high) for low, high, _ in steps] + [min(0.0, orders.dense)],
        "top": [max(low, high) for low, high, _ in steps] + [max(0.0, orders.dense)],
        "colour": [PLUS if row.value >= 0 else MINUS for row in orders] + ["#444444"],
        "hatch": [" " if row.value >= 0 else "right_diagonal_line" for row in orders] + [" "],
        "mark": [*marks, (scale.write(orders.dense) if few else f"{orders.dense:.3g}")],
        "value": [scale.write(row.value) for row in orders] + [scale.write(orders.dense)],
        "share": [percent(row.share) for row in orders] + ["100%"],
        "paths": [counted(row.paths or 0, "path") for row in orders]
        + ["the model's own forward pass"],
        "name": [f"order {name}" for name in names] + ["dense"],
        "label": [max(low, high) for low, high, _ in steps] + [max(0.0, orders.dense)],
    }
    source = ColumnDataSource(data)
    plot = figure(
        title="All paths, order by order",
        height=260,
        sizing_mode="stretch_width",
        min_width=320,
        toolbar_location=None,
        tools="",
        x_axis_label="order: number of heads and MLPs a path passes through",
        name="orders",
    )
    bars = plot.vbar(
        x="x",
        bottom="bottom",
        top="top",
        width=0.7,
        source=source,
        fill_color="colour",
        line_color="colour",
        hatch_pattern="hatch",
        hatch_color="white",
        hatch_scale=8,
    )
    plot.text(
        x="x",
        y="label",
        text="mark",
        source=source,
        y_offset=-3,
        text_align="center",
        text_baseline="bottom",
        text_font_size="11px",
    )
    plot.add_layout(Span(location=0, dimension="width", line_color="#888888", line_width=1))
    plot.add_tools(
        HoverTool(
            renderers=[bars],
            tooltips=[("", "@name"), ("sum", "@value"), ("share", "@share"), ("", "@paths")],
        )
    )
    plot.xaxis.ticker = FixedTicker(ticks=data["x"])
    plot.xaxis.major_label_overrides = dict(enumerate([*names, "dense"]))
    plot.y_range.range_padding = 0.25
    plot.xgrid.visible = False
    return plot


def _mark(value: float, largest: float) -> str:
    """Write a step's size beside it, and of a small one the sign alone."""
    if abs(value) < _SMALL * largest:
        return "" if not value else "+" if value > 0 else "−"
    return f"{value:+.3g}".replace("-", "−")
