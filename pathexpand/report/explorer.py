"""The whole page: its views one under the other, and what links them."""

from __future__ import annotations

from typing import Any

from pathexpand.features.graph_page import graph_view
from pathexpand.page.document import document
from pathexpand.page.drawing import MOST_NAMES
from pathexpand.page.prose import prose
from pathexpand.page.script import script
from pathexpand.report.claims import claims
from pathexpand.report.contents import Report
from pathexpand.report.head_view import HeadView, head_view, held
from pathexpand.report.order_view import order_view
from pathexpand.report.path_view import KINDS, PathView, colours, decimals_of, path_view
from pathexpand.symbolic import Head, Mlp, Neuron, Path, format_term

_WRAP = {"flex-wrap": "wrap", "gap": "0 .9rem"}
_NO_HEADS = '<h2>Heads</h2><p class="quiet">No listed path leads through a head.</p>'
_KEYS = (
    "Click a row, or press ↑ and ↓; with Shift or Ctrl several. / goes to the query, Esc clears. "
    "Click a heading to sort; Clear takes everything back. What you choose stands in the page's "
    "address."
)


def explorer(report: Report) -> str:
    """Write a report as a page.

    >>> from pathexpand.api import load
    >>> page = explorer(load("two-layer").run("to be or not to").report(top=3))
    >>> page[:15], "<script src" in page
    ('<!DOCTYPE html>', False)
    """
    from bokeh.models import Column, CustomJS

    paths, heads = path_view(report), head_view(report)
    graph = None if report.graph is None else graph_view(report.graph)
    root = Column(
        prose(claims(report.table), name="claims"),
        _sums(report, paths),
        _paths(paths),
        paths.drawing,
        _heads(heads) if report.heads else prose(_NO_HEADS),
        *((graph.root,) if graph is not None else ()),
        sizing_mode="stretch_width",
    )
    models = {name: getattr(paths, name) for name in PathView.__slots__}
    models |= {f"head_{name}": getattr(heads, name) for name in HeadView.__slots__}
    args = {"models": models, "data": _data(report)}
    code = script("report/query.js", "report/explorer.js", "features/graph.js")
    if graph is not None:
        args |= {"graphModels": graph.models, "graphData": graph.data}
        code += "linkGraph(graphModels, graphData);"
    ready = CustomJS(args=args, code=code)
    title = f"{report.table.model}: paths to the {report.table.target}"
    return document(root, title=title, ready=ready)


def _sums(report: Report, paths: PathView) -> Any:
    from bokeh.models import Column, Row

    beside = Column(
        prose("<h2>How much a shorter list would leave</h2>"),
        paths.keep,
        paths.kept,
        sizing_mode="stretch_width",
        styles={"flex": "1 1 340px"},
    )
    steps = order_view(report.orders)
    steps.styles = {"flex": "1 1 420px"}
    return Row(steps, beside, sizing_mode="stretch_width", styles=_WRAP)


def _paths(view: PathView) -> Any:
    from bokeh.models import Column, Row

    view.detail.styles = {"flex": "1 1 340px", "align-self": "flex-start"}
    return Column(
        prose(f'<h2>Paths</h2><p class="quiet">{_KEYS}</p>'),
        Row(
            *view.filters.values(),
            view.sort,
            view.copy,
            view.clear,
            sizing_mode="stretch_width",
            styles=_BAR,
        ),
        view.status,
        Row(view.table, view.detail, sizing_mode="stretch_width", styles=_WRAP),
        sizing_mode="stretch_width",
    )


_BAR = _WRAP | {"align-items": "flex-end"}


def _heads(view: HeadView) -> Any:
    from bokeh.models import Column, Row

    said = Column(
        view.about,
        Row(view.key, view.over, styles=_WRAP),
        view.why,
        sizing_mode="stretch_width",
        styles={"flex": "1 1 480px"},
    )
    view.picture.styles = {"flex": "1 1 420px"}
    return Column(
        prose("<h2>Heads</h2>"),
        view.head,
        Row(view.picture, said, sizing_mode="stretch_width", styles=_WRAP),
        sizing_mode="stretch_width",
    )


def _data(report: Report) -> dict[str, Any]:
    """Give what the script needs beside the models, as plain data and arrays."""
    table, moves = report.table, report.moves
    return {
        "tokens": [token.text for token in table.tokens],
        "ids": [token.id for token in table.tokens],
        "position": table.position,
        "dense": table.dense,
        "listed": table.listed,
        "remainder": table.remainder,
        "outside": table.outside,
        "unlisted": str(table.remainder_count),  # more than a number of JavaScript may hold
        "bound": table.bound,
        "certified": table.certified,
        "max_order": table.max_order,
        "longer": table.longer_bound,
        "decimals": decimals_of(report),
        "kinds": list(KINDS),
        "columns": MOST_NAMES,
        "top": len(report.levels) - 1,
        "level": report.level_of,
        "formulas": _formulas(report),
        "network": _network(report),
        "moves": {
            "first": moves.first,
            "step": moves.step,
            "start": moves.start,
            "end": moves.end,
            "value": moves.value,
            "drawn": moves.drawn,
        },
        "nearby": report.nearby,
        "heads": {head.label: held(head) for head in report.heads},
        "colours": colours(),
    }


def _formulas(report: Report) -> dict[str, Any]:
    """Give the letters of the formula of any path: of sources whole, of components with a gap.

    A path's term is worked out by the symbolic layer; here only its pieces are taken apart.
    """
    found: dict[str, Any] = {"sources": {}, "components": {}}
    for source in report.network.sources:
        position, _, linear = format_term(Path(source.label).term()).partition(" ⊗ ")
        found["sources"][source.label] = [position, linear]
    for component in report.network.components:
        kind = component.label.rstrip("0123456789")[-1]
        if kind in found["components"]:
            continue
        born = next(
            each.label
            for each in report.network.sources
            if each.boundary is not None and _reads(component, each.label)
        )
        position, _, linear = format_term(Path(born, (component,)).term()).partition(" ⊗ ")
        last = format_term(Path(born).term()).partition(" ⊗ ")[2].split(" ")[-1]
        middle = linear.removeprefix("W_U ").removesuffix(f" {last}")
        label = component.label
        found["components"][kind] = [position.replace(label, "@"), middle.replace(label, "@")]
    return found


def _reads(component: Any, source: str) -> bool:
    from pathexpand.errors import CompositionError

    try:
        Path(source, (component,))
    except CompositionError:
        return False
    return True


def _network(report: Report) -> dict[str, Any]:
    """Say which labels there are, for queries: of each layer how many, or which."""
    network, found = report.network, {"heads": Head, "neurons": Neuron, "mlps": Mlp}
    depth = 1 + max((each.layer for each in network.components), default=-1)
    out: dict[str, Any] = {"sources": [source.label for source in network.sources]}
    for name, kind in found.items():
        layers: list[list[int]] = [[] for _ in range(depth)]
        for each in network.components:
            if isinstance(each, kind):
                layers[each.layer].append(0 if isinstance(each, Mlp) else each.index)
        out[name] = [
            len(some) if some == list(range(len(some))) else sorted(some) for some in layers
        ]
    return out
