"""A graph as a page: its nodes over tokens and layers, each with what it reads and who reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.features.graph import Graph
from pathexpand.features.graph_table import nodes_table, summary_table
from pathexpand.features.influence import edge_influence, node_influence
from pathexpand.page.colours import MINUS, PLUS
from pathexpand.page.document import document
from pathexpand.page.drawing import Drawing, drawing
from pathexpand.page.grid import GridColumn, grid
from pathexpand.page.prose import prose
from pathexpand.page.script import script
from pathexpand.table.page import closing, head

Array = npt.NDArray[Any]
_EDGES = 12_000  # in the page; the others are each target's remainder
_SPLIT = 150  # edges with their head paths
_PATHS = 4  # of each
_ROWS = 14  # seen at once
_COLUMNS = (
    GridColumn("node", 130),
    GridColumn("kind", 70),
    GridColumn("token", 120),
    *(GridColumn(name, 80, "0.0000") for name in ("activation", "reads", "influence")),
)
_SHAPES = {
    "feature": "circle",
    "error": "diamond",
    "mlp": "square",
    "token": "square",
    "position": "triangle",
    "constant": "inverted_triangle",
    "logit": "star",
}


@dataclass(frozen=True, slots=True, eq=False)
class GraphView:
    """The layout of a graph's view, the bokeh models in it, and what graph.js needs besides."""

    root: Any
    models: dict[str, Any]
    data: dict[str, Any]


def graph_page(graph: Graph) -> str:
    """Write a graph as a page of HTML.

    >>> from pathexpand.api import load
    >>> graph_page(load("two-layer").run("to be or not to").graph(prune=True))[:15]
    '<!DOCTYPE html>'
    """
    from bokeh.models import CustomJS

    view = graph_view(graph)
    code = script("features/graph.js") + "linkGraph(models, data);"
    ready = CustomJS(args={"models": view.models, "data": view.data}, code=code)
    return document(view.root, title=f"{graph.model}: attribution graph", ready=ready)


def graph_view(graph: Graph) -> GraphView:
    """Make the view of a graph."""
    from bokeh.models import (
        Column,
        IndexFilter,
        Row,
        Select,
        TextInput,
    )

    influence = node_influence(graph, closed=True)
    nodes, shown = _rows(graph, influence), IndexFilter(indices=[])
    kinds = list(dict.fromkeys(node.kind for node in graph.nodes))
    drawn, spots = _drawing(graph)
    models: dict[str, Any] = {
        "nodes": nodes,
        "shown": shown,
        "search": TextInput(title="nodes with", name="nodes with", width=220),
        "kind": Select(title="kind", value="", options=[("", "any"), *kinds_of(kinds)], width=130),
        "about": prose(name="about node"),
        "status": prose(name="graph status"),
        "drawing": drawn.figure,
        "strokes": drawn.strokes,
        "columns": drawn.tokens,
        "spots": spots,
    }
    wrap = {"flex-wrap": "wrap", "gap": "0 .9rem"}
    table = grid(nodes, shown, _COLUMNS, rows=_ROWS, name="nodes", styles={"flex": "1 1 520px"})
    models["table"] = table
    models["about"].styles = {"flex": "1 1 480px", "align-self": "flex-start"}
    sheet = nodes_table(graph, top=0).sheet()
    root = Column(
        prose(
            f"<h2>Attribution graph</h2>{head(sheet)}{closing(summary_table(graph).sheet())}",
            name="graph claims",
        ),
        Row(models["search"], models["kind"], styles=wrap),
        models["status"],
        Row(table, models["about"], sizing_mode="stretch_width", styles=wrap),
        drawn.figure,
        sizing_mode="stretch_width",
    )
    return GraphView(root, models, _data(graph, influence))


def kinds_of(kinds: list[str]) -> list[tuple[str, str]]:
    """Give kinds of nodes as choices.

    >>> kinds_of(["mlp", "logit"])
    [('mlp', 'MLP'), ('logit', 'logit')]
    """
    return [(kind, "MLP" if kind == "mlp" else kind) for kind in kinds]


def _rows(graph: Graph, influence: Array) -> Any:
    from bokeh.models import ColumnDataSource

    def numbers(values: list[float | None]) -> Array:
        return np.array([np.nan if each is None else each for each in values], dtype=np.float64)

    return ColumnDataSource(
        {
            "node": [node.name for node in graph.nodes],
            "kind": [node.kind for node in graph.nodes],
            "token": [_token(graph, node.position) for node in graph.nodes],
            "activation": numbers([node.activation for node in graph.nodes]),
            "reads": numbers([node.value for node in graph.nodes]),
            "influence": influence,
        }
    )


def _token(graph: Graph, position: int | None) -> str:
    return "" if position is None else graph.prompt[position]


def _drawing(graph: Graph) -> tuple[Drawing, Any]:
    """Make the drawing, and the nodes in it."""
    from bokeh.models import ColumnDataSource, HoverTool, TapTool

    top, count = _depth(graph) + 1, len(graph.nodes)
    levels = ["tokens", *(f"layer {layer}" for layer in range(top - 1)), "logits"]
    made = drawing(levels, (-2.2, len(graph.prompt) + 0.6), name="graph")
    spots = ColumnDataSource(
        {
            "x": np.zeros(count),
            "y": np.zeros(count),
            "shape": [_SHAPES[node.kind] for node in graph.nodes],
            "name": [node.name for node in graph.nodes],
            "token": [_token(graph, node.position) for node in graph.nodes],
            "alpha": np.ones(count),
            "width": np.ones(count),
        }
    )
    marks = made.figure.scatter(
        x="x",
        y="y",
        marker="shape",
        source=spots,
        size=9,
        fill_color="#ffffff",
        line_color="#222222",
        line_width="width",
        fill_alpha="alpha",
        line_alpha="alpha",
        nonselection_fill_alpha=0.25,
        nonselection_line_alpha=0.4,
    )
    made.figure.add_tools(
        HoverTool(renderers=[marks], tooltips="@name @token"), TapTool(renderers=[marks])
    )
    return made, spots


def _depth(graph: Graph) -> int:
    return 1 + max((node.layer for node in graph.nodes if node.layer is not None), default=-1)


def _level(graph: Graph, n: int) -> int:
    node, top = graph.nodes[n], _depth(graph) + 1
    if node.kind == "logit" or node.label == "b_U":
        return top
    return 0 if node.layer is None else node.layer + 1


def _data(graph: Graph, influence: Array) -> dict[str, Any]:
    """Give what the script needs beside the models, as plain data and arrays."""
    weights = graph.weights
    target, source = np.nonzero(weights)
    matter = edge_influence(graph, closed=True)[target, source]
    kept = np.sort(np.argsort(-matter, kind="stable")[:_EDGES])
    first = np.argsort(-matter[kept], kind="stable")
    lost = graph.remainder + weights.sum(axis=1)
    np.subtract.at(lost, target[kept], weights[target[kept], source[kept]])
    if len(kept) == len(target):
        lost = graph.remainder.copy()  # not what rounding makes of it
    edges = [(int(source[kept[e]]), int(target[kept[e]])) for e in first[:_SPLIT]]
    return {
        "tokens": list(graph.prompt),
        "name": [node.name for node in graph.nodes],
        "kind": [node.kind for node in graph.nodes],
        "position": [-1 if node.position is None else node.position for node in graph.nodes],
        "level": [_level(graph, n) for n in range(len(graph.nodes))],
        "activation": [node.activation for node in graph.nodes],
        "value": [node.value for node in graph.nodes],
        "influence": influence,
        "gap": graph.gap,
        "bound": graph.gap_bound,
        "lost": lost,
        "whole": len(kept) == len(target),
        "edges": {
            "source": source[kept].astype(np.int32),
            "target": target[kept].astype(np.int32),
            "weight": weights[target[kept], source[kept]],
        },
        "first": first.astype(np.int32)[:1000].tolist(),
        "paths": _split(graph, edges),
        "colours": {"plus": PLUS, "minus": MINUS},
    }


def _split(graph: Graph, edges: list[tuple[int, int]]) -> dict[str, Any]:
    """Split edges into their head paths; a graph that was read from a file has none."""
    found: dict[str, Any] = {}
    for source, target in edges if graph.made is not None else ():
        if graph.nodes[source].kind == "constant":
            continue
        paths = graph.paths(source, target, top=_PATHS)
        found[f"{source} {target}"] = {
            "rows": [[path.label, path.value] for path in paths.paths],
            "remainder": paths.remainder,
            "bound": paths.bound,
            "count": str(paths.count),  # more than a number of JavaScript may hold
        }
    return found
