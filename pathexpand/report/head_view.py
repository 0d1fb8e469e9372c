"""A head: where it looks, what goes through it in all, and why it looks there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pathexpand.page.colours import MONO
from pathexpand.page.drawing import MOST_NAMES
from pathexpand.page.prose import prose
from pathexpand.report.contents import HeadPart, Report
from pathexpand.table import ScoreTable


@dataclass(frozen=True, slots=True, eq=False)
class HeadView:
    """The bokeh models of the view; explorer.js links them."""

    head: Any
    key: Any
    over: Any
    about: Any
    why: Any
    picture: Any
    cells: Any
    names: Any
    spots: Any
    tapped: Any


def head_view(report: Report) -> HeadView:
    """Make the view of a report's heads.

    >>> from pathexpand.api import load
    >>> view = head_view(load("two-layer").run("to be or not to").report(top=3))
    >>> view.head.options
    ['L1H3', 'L1H2']
    """
    from bokeh.models import ColumnDataSource, CustomJS, Select

    labels = [head.label for head in report.heads]
    cells = ColumnDataSource({name: [] for name in ("x", "y", "weight", "from", "to")})
    names = ColumnDataSource({name: [] for name in ("x", "y", "text", "angle", "align")})
    spots = ColumnDataSource({name: [] for name in ("x", "y", "colour", "width", "height")})
    tapped = ColumnDataSource({"x": [], "y": []})
    picture = _picture(report, cells, names, spots)
    picture.js_on_event(
        "tap",
        CustomJS(
            args={"tapped": tapped},
            code="tapped.data = {x: [Math.round(cb_obj.x)], y: [Math.round(-cb_obj.y)]};",
        ),
    )
    first = labels[0] if labels else ""
    return HeadView(
        head=Select(title="head", value=first, options=labels, name="of head", width=120),
        key=Select(title="why this key", options=[], name="key", width=170),
        over=Select(title="rather than", options=[], name="over", width=170),
        about=prose(name="about head"),
        why=prose(name="why"),
        picture=picture,
        cells=cells,
        names=names,
        spots=spots,
        tapped=tapped,
    )


def _picture(report: Report, cells: Any, names: Any, spots: Any) -> Any:
    from bokeh.core.properties import value
    from bokeh.models import HoverTool, LinearColorMapper, Range1d
    from bokeh.palettes import Greys256
    from bokeh.plotting import figure

    size = len(report.table.tokens)
    room = 0.3 * size + 1.0
    plot = figure(
        title="Attention: a row for each query, a column for each key",
        height=min(max(520, 17 * size), 900),
        min_width=320,
        sizing_mode="stretch_width",
        x_range=Range1d(-room, size),
        y_range=Range1d(-size, room),
        tools="pan,wheel_zoom,reset,save",
        toolbar_location="right",
        name="attention",
    )
    plot.toolbar.logo = None
    mapper = LinearColorMapper(palette=Greys256[::-1], low=0, high=1)
    squares = plot.rect(
        x="x",
        y="y",
        width=1,
        height=1,
        source=cells,
        fill_color={"field": "weight", "transform": mapper},
        line_color=None,
    )
    plot.rect(
        x="x",
        y="y",
        width="width",
        height="height",
        source=spots,
        fill_alpha=0,
        line_color="colour",
        line_width=2,
    )
    plot.text(
        x="x",
        y="y",
        text="text",
        source=names,
        angle="angle",
        text_align="align",
        text_baseline="middle",
        text_font_size="11px" if size <= MOST_NAMES // 2 else "9px",
        text_font=value(MONO),
    )
    plot.add_tools(
        HoverTool(
            renderers=[squares],
            tooltips=[("query", "@to"), ("key", "@from"), ("weight", "@weight{0.0000}")],
        )
    )
    plot.axis.visible = False
    plot.grid.visible = False
    return plot


def held(head: HeadPart) -> dict[str, Any]:
    """Give what explorer.js needs of a head, as plain data and arrays.

    >>> from pathexpand.api import load
    >>> report = load("two-layer").run("to be or not to").report(top=3)
    >>> sorted(held(report.heads[0]))
    ['key', 'least', 'most', 'query', 'total', 'weight', 'whys']
    """
    return {
        "total": head.total,
        "query": head.pattern.query,
        "key": head.pattern.key,
        "weight": head.pattern.weight,
        "least": head.pattern.least,
        "most": head.pattern.most,
        "whys": [_why(table) for table in head.whys],
    }


def _why(table: ScoreTable) -> dict[str, Any]:
    return {
        "query": table.query,
        "key": table.key,
        "over": table.over,
        "dense": table.dense,
        "attention": table.attention,
        "attention_over": table.attention_over,
        "rows": [[row.query_path, row.key_path, row.composition, row.value] for row in table],
        "remainder": table.remainder,
        "count": str(table.remainder_count),  # more than a number of JavaScript may hold
        "alibi": table.alibi,
        "bound": table.bound,
        "certified": table.certified,
        "sums": [[each.composition, each.value, str(each.pairs)] for each in table.compositions],
    }
