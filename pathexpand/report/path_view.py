"""The table of paths with its filters, what is said of a selected one, and the drawing of moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pathexpand.page.colours import MINUS, PLUS
from pathexpand.page.drawing import Drawing, drawing
from pathexpand.page.grid import GridColumn, grid
from pathexpand.page.prose import prose
from pathexpand.report.contents import Report
from pathexpand.table.figures import Scale

_ROWS = (4, 14)  # seen at once, at least and at most
# Ways to sort that can be chosen without a mouse; "-" is downwards.
_SORTS = (
    ("", "rank"),
    ("path", "path"),
    ("order", "order"),
    ("-order", "order, longest first"),
    ("-value", "value, largest first"),
    ("value", "value, smallest first"),
    ("at", "source"),
)
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
    sort: Any
    labels: Any


def path_view(report: Report) -> PathView:
    """Make the view of a report's paths.

    >>> from pathexpand.api import load
    >>> view = path_view(load("two-layer").run("to be or not to").report(top=3))
    >>> len(view.rows.data["value"])
    3
    """
    from bokeh.models import Button, ColumnDataSource, IndexFilter, Select, Slider

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
    drawn, points, labels = _drawing(report)
    return PathView(
        rows=rows,
        shown=shown,
        table=_grid(report, rows, shown),
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
        drawing=drawn.figure,
        lines=drawn.strokes,
        points=points,
        tokens=drawn.tokens,
        copy=Button(label="Copy as CSV", name="copy", width=110),
        clear=Button(label="Clear", name="clear", width=70),
        sort=Select(title="sort by", value="", options=list(_SORTS), name="sort", width=105),
        labels=labels,
    )


def _grid(report: Report, rows: Any, shown: Any) -> Any:
    number = _format(report)
    columns = (
        GridColumn("number", 45, right=True, title="rank", said="rank"),
        GridColumn("path", 225),
        GridColumn("order", 45, right=True),
        GridColumn("kind", 85),
        GridColumn("value", 80, number),
        GridColumn("share", 62, "0.0%"),
        GridColumn("running", 80, number),
        GridColumn("at", 130, title="source", said="source"),
    )
    seen = min(max(len(report.table), _ROWS[0]), _ROWS[1])
    return grid(rows, shown, columns, rows=seen, name="paths", styles={"flex": "1 1 700px"})


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
            title=title, value="", options=[("", "any"), *options], name=name, width=100
        )
    return made


def _components(report: Report) -> list[str]:
    """Name the components of the listed paths, in the order of the levels they write at."""
    found = {label for row in report.table for label in row.path.split(" > ")[1:]}
    order = {component.label: n for n, component in enumerate(report.network.components)}
    return sorted(found, key=order.__getitem__)


def _drawing(report: Report) -> tuple[Drawing, Any, Any]:
    """Make the drawing, the places in it that paths come to, and the components' names there."""
    from bokeh.models import ColumnDataSource

    made = drawing(report.levels, (-0.7, 1.0), name="drawing")
    points = ColumnDataSource({name: [] for name in ("x", "y")})
    labels = ColumnDataSource({name: [] for name in ("x", "y", "text", "align")})
    made.figure.scatter(
        x="x", y="y", source=points, size=6, fill_color="#ffffff", line_color="#333333"
    )
    made.figure.text(
        x="x",
        y="y",
        text="text",
        source=labels,
        text_align="align",
        text_baseline="bottom",
        text_font_size="11px",
        background_fill_color="#ffffff",
        background_fill_alpha=0.7,
    )
    return made, points, labels


def colours() -> dict[str, str]:
    """Give the colours that explorer.js draws in."""
    return {"plus": PLUS, "minus": MINUS}
