"""Strokes over tokens and levels: what is carried from where to where, its size and its sign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pathexpand.page.colours import MONO

MOST_NAMES = 64  # tokens that can all be named along a side
_NAMES = 105  # pixels that slanted names of tokens take
_FRAME = 50  # pixels of title and margins
_HEIGHTS = (340, 900)  # pixels of a drawing, at least and at most
_LEVEL = 60  # pixels of a level


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A figure, the strokes in it, and the names of tokens below; scripts fill both."""

    figure: Any
    strokes: Any
    tokens: Any


def drawing(levels: Sequence[str], columns: tuple[float, float], *, name: str) -> Drawing:
    """Make a drawing of levels from the bottom to the top, over columns of tokens.

    >>> drawing(["tokens", "logits"], (-0.7, 3), name="all").figure.height
    340
    """
    from bokeh.core.properties import value
    from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, Range1d
    from bokeh.plotting import figure

    top = len(levels) - 1
    pixels = min(max(_HEIGHTS[0], _LEVEL * len(levels) + _NAMES + _FRAME), _HEIGHTS[1])
    plot = figure(
        title="Nothing is drawn yet",  # scripts say what is; room is left for it
        height=pixels,
        min_width=320,
        sizing_mode="stretch_width",
        x_range=Range1d(*columns),
        y_range=Range1d(*heights(top, pixels)),
        tools="pan,xwheel_zoom,reset,save",
        toolbar_location="right",
        name=name,
    )
    plot.toolbar.logo = None
    strokes = ColumnDataSource({each: [] for each in _STROKE})
    lines = plot.multi_line(
        xs="xs",
        ys="ys",
        source=strokes,
        line_color="colour",
        line_width="width",
        line_dash="dash",
        line_alpha=0.75,
    )
    plot.text(
        x="x",
        y="y",
        text="mark",
        source=strokes,
        text_align="center",
        text_baseline="middle",
        text_font_size="15px",
        text_font_style="bold",
        text_color="colour",
        background_fill_color="#ffffff",
        background_fill_alpha=0.8,
    )
    plot.add_tools(HoverTool(renderers=[lines], tooltips="@said"))
    tokens = ColumnDataSource({each: [] for each in ("x", "y", "text")})
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
    plot.xaxis.visible = False
    plot.xgrid.visible = False
    plot.yaxis.ticker = FixedTicker(ticks=list(range(top + 1)))
    plot.yaxis.major_label_overrides = dict(enumerate(levels))
    return Drawing(plot, strokes, tokens)


_STROKE = ("xs", "ys", "colour", "width", "dash", "said", "x", "y", "mark", "path")


def heights(top: int, pixels: int) -> tuple[float, float]:
    """Give the ends of the vertical axis, so that names of tokens fit in below 0.

    >>> low, high = heights(3, 400)
    >>> high, round(low, 2)
    (3.4, -1.46)
    """
    high = top + 0.4
    return -high * _NAMES / (pixels - _FRAME - _NAMES), high
