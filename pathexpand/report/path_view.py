"""The table of paths with its filters, what is said of a selected one, and the drawing of moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pathexpand.page.colours import MINUS, MONO, PLUS
from pathexpand.page.prose import prose
from pathexpand.page.tokens import heights
from pathexpand.report.contents import Report
from pathexpand.table.figures import Scale

_ROW = 25  # pixels of a row
_MOST_ROWS = 14  # rows seen at once
KINDS = ("direct", "head", "neuron", "MLP", "virtual head", "composed")


@dataclass(frozen=True, slots=True, eq=False)
class PathView:
    """The bokeh models of the view; explorer.js links them."""

    rows: Any
    shown: Any
    table: Any
    filters: dict[str, Any]
    keep: Any
    kept: Any
    status: Any
    detail: Any
    drawing: Any
    lines: Any
    points: Any
    tokens: Any
    copy: Any
    clear: Any


def path_view(report: Report) -> PathView:
    """Make the view of a report's paths.

    >>> from pathexpand.api import load
    >>> view = path_view(load("two-layer").run("to be or not to").report(top=3))
    >>> len(view.rows.data["value"])
    3
    """
    from bokeh.models import Button, CDSView, ColumnDataSource, IndexFilter, Slider

    table = report.table
    rows = ColumnDataSource(
        {
            "path": [row.path for row in table],
            "kinds": np.array([KINDS.index(row.kind) for row in table], dtype=np.uint8),
            "certain": np.array([row.certain for row in table], dtype=np.uint8),
            "value": np.array([row.value for row in table], dtype=np.float64),
            "at": np.array(
                [-1 if row.source_token is None else row.source_token.position for row in table],
                dtype=np.int32,
            ),
        }
    )
    # Nothing is shown until explorer.js has worked out the other columns: the grid reads a row's
    # cells when it comes into view.
    shown = IndexFilter(indices=[])
    view = CDSView(filter=shown)
    drawing, lines, points, tokens = _drawing(report)
    return PathView(
        rows=rows,
        shown=shown,
        table=_grid(report, rows, view),
        filters=_filters(report),
        keep=Slider(
            start=0,
            end=100,
            step=0.5,
            value=100,
            title="Keep the top share of Σ|value| of the listed paths, in %",
            sizing_mode="stretch_width",
            name="keep",
        ),
        kept=prose(name="kept"),
        status=prose(name="status"),
        detail=prose(name="detail"),
        drawing=drawing,
        lines=lines,
        points=points,
        tokens=tokens,
        copy=Button(label="Copy as CSV", name="copy", width=110),
        clear=Button(label="Clear", name="clear", width=70),
    )


def _grid(report: Report, rows: Any, view: Any) -> Any:
    from bokeh.models import DataTable, NumberFormatter, StringFormatter, TableColumn

    number = NumberFormatter(format=_format(report), text_align="right")
    share = NumberFormatter(format="0.0%", text_align="right")
    plain = StringFormatter(text_align="right")
    columns = (
        ("rank", "rank", 45, plain),
        ("path", "path", 225, StringFormatter()),
        ("order", "order", 45, plain),
        ("kind", "kind", 85, StringFormatter()),
        ("value", "value", 80, number),
        ("share", "share", 62, share),
        ("running", "running", 80, number),
        ("source", "source", 130, StringFormatter()),
    )
    height = _ROW * (min(max(len(report.table), 4), _MOST_ROWS) + 2)
    return DataTable(
        source=rows,
        view=view,
        columns=[
            TableColumn(field=field, title=title, width=width, formatter=formatter)
            for field, title, width, formatter in columns
        ],
        index_position=None,
        selectable=True,
        sortable=True,
        reorderable=False,
        editable=False,
        row_height=_ROW,
        height=height,
        min_width=320,
        sizing_mode="stretch_width",
        autosize_mode="none",
        name="paths",
    )


def _format(report: Report) -> str:
    """Give the format of values: as many decimals as the printed table has."""
    decimals = decimals_of(report)
    return "0.0000e+0" if decimals is None else f"0.{'0' * decimals}" if decimals else "0"


def decimals_of(report: Report) -> int | None:
    """Say how many decimals values are written with, or None for powers of ten.

    >>> from pathexpand.api import load
    >>> decimals_of(load("two-layer").run("to be or not to").report(top=3))
    4
    """
    table = report.table
    numbers = [table.dense, table.listed, table.remainder, *(row.value for row in table)]
    return Scale.of(numbers).decimals


def _filters(report: Report) -> dict[str, Any]:
    from bokeh.models import Select, TextInput

    table = report.table
    orders = sorted({row.order for row in table})
    kinds = [kind for kind in KINDS if any(row.kind == kind for row in table)]
    places = sorted({row.source_token.position for row in table if row.source_token is not None})
    tokens = [(str(n), f"{n}  {table.tokens[n].text}") for n in places]
    choices: dict[str, tuple[str, list[tuple[str, str]]]] = {
        "order": ("order", [(str(order), str(order)) for order in orders]),
        "kind": ("kind", [(kind, kind) for kind in kinds]),
        "head": ("through", [(label, label) for label in _components(report)]),
        "sign": ("sign", [("+", "+ adds"), ("-", "− takes away")]),
        "source": ("source token", tokens),
    }
    made: dict[str, Any] = {
        "query": TextInput(
            title="query, such as  * > L1H0",
            placeholder="*",
            name="query",
            min_width=170,
            sizing_mode="stretch_width",
        )
    }
    for name, (title, options) in choices.items():
        made[name] = Select(
            title=title, value="", options=[("", "any"), *options], name=name, width=115
        )
    return made


def _components(report: Report) -> list[str]:
    """Name the components of the listed paths, in the order of the levels they write at."""
    found = {label for row in report.table for label in row.path.split(" > ")[1:]}
    order = {component.label: n for n, component in enumerate(report.network.components)}
    return sorted(found, key=order.__getitem__)


def _drawing(report: Report) -> tuple[Any, Any, Any, Any]:
    from bokeh.core.properties import value
    from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, Range1d
    from bokeh.plotting import figure

    names: tuple[str, ...] = (
        "xs",
        "ys",
        "colour",
        "width",
        "dash",
        "path",
        "said",
        "x",
        "y",
        "mark",
    )
    lines = ColumnDataSource({name: [] for name in names})
    points = ColumnDataSource({name: [] for name in ("x", "y", "label")})
    tokens = ColumnDataSource({name: [] for name in ("x", "y", "text")})
    top = len(report.levels) - 1
    height = min(max(330, 60 * len(report.levels) + 160), 900)
    plot = figure(
        title="Where the selected paths start, and what moves them where",
        height=height,
        min_width=320,
        sizing_mode="stretch_width",
        x_range=Range1d(-0.6, 1),
        y_range=Range1d(*heights(top, height)),
        tools="pan,xwheel_zoom,reset,save",
        toolbar_location="right",
        name="drawing",
    )
    plot.toolbar.logo = None
    strokes = plot.multi_line(
        xs="xs",
        ys="ys",
        source=lines,
        line_color="colour",
        line_width="width",
        line_dash="dash",
        line_alpha=0.75,
        line_cap="butt",
    )
    plot.scatter(x="x", y="y", source=points, size=6, fill_color="#ffffff", line_color="#333333")
    plot.text(
        x="x", y="y", text="label", source=points, x_offset=6, y_offset=-3, text_font_size="11px"
    )
    plot.text(
        x="x",
        y="y",
        text="mark",
        source=lines,
        text_align="center",
        text_baseline="middle",
        text_font_size="15px",
        text_font_style="bold",
        text_color="colour",
        background_fill_color="#ffffff",
        background_fill_alpha=0.8,
    )
    plot.text(
        x="x",
        y="y",
        text="text",
        source=tokens,
        angle=-0.7,
        y_offset=6,
        text_baseline="top",
        text_font_size="12px",
        text_font=value(MONO),
    )
    plot.add_tools(HoverTool(renderers=[strokes], tooltips=[("path", "@path"), ("", "@said")]))
    plot.xaxis.visible = False
    plot.xgrid.visible = False
    plot.yaxis.ticker = FixedTicker(ticks=list(range(top + 1)))
    plot.yaxis.major_label_overrides = dict(enumerate(report.levels))
    return plot, lines, points, tokens


def colours() -> dict[str, str]:
    """Give the colours that explorer.js draws in."""
    return {"plus": PLUS, "minus": MINUS}
