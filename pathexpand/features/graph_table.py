"""Graphs in the terminal: their nodes, the edges of one node, and how well they explain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pathexpand.errors import PathExpandError
from pathexpand.features.graph import Graph, name_of
from pathexpand.features.influence import compared, node_influence, scores
from pathexpand.features.replacement import Node
from pathexpand.model.shown import shown
from pathexpand.table import AnalysisTable, Field, Summary
from pathexpand.table.shorten import shorten_tokens

Array = npt.NDArray[Any]
Direction = Literal["incoming", "outgoing"]
_PROMPT_ROOM = 64  # cells of the prompt over a table
_NAMED = 3  # logits or constants that a line names


def nodes_table(graph: Graph, *, top: int = 10, whole: Graph | None = None) -> AnalysisTable:
    """List the nodes with most influence on the logits.

    Of a pruned graph, `whole` is what it was pruned from: influence and shares are of that one, as
    pruning changes them. "closes" says whether what a feature reads is explained within rounding.
    Logits stand over the table, constants in "closed" scores alone. Raises `PathExpandError` for a
    negative `top`, and for nodes that the whole graph has not.
    """
    check_top(top)
    base = graph if whole is None else whole
    found = dict(zip(base.nodes, node_influence(base), strict=True))
    missing = [node for node in graph.nodes if node not in found]
    if missing:
        raise PathExpandError("whole", wanted=f"a graph with {name_of(missing[0])}", got="another")
    own = compared(graph) & np.array([node.kind != "logit" for node in graph.nodes], dtype=bool)
    influence = np.array([found[node] for node in graph.nodes])
    total = float(sum(found.values()))
    order = [int(n) for n in np.argsort(-influence, kind="stable") if own[n]]
    of_whole = ("Influence is that in the whole graph.",) if whole is not None else ()
    running, rows = 0.0, []
    for rank, n in enumerate(order[:top], start=1):
        node = graph.nodes[n]
        running += float(influence[n])
        rows.append(
            (
                rank,
                name_of(node),
                _text(graph, n),
                node.activation,
                node.value,
                float(influence[n]),
                running / total if total else None,
                _closes(graph, n) if node.kind == "feature" else None,
            )
        )
    return AnalysisTable(
        "graph nodes",
        _about(graph),
        (
            Field("rank", "count"),
            Field("node", "text"),
            Field("token", "token", 1),
            Field("activation", "number"),
            Field("reads", "number", 2),
            Field("influence", "number"),
            Field("up to here", "share"),
            Field("closes", "flag", 3),
        ),
        tuple(rows),
        (
            *_sizes(graph, whole),
            Summary("listed", running, f"{len(rows):,} of {len(order):,} nodes, by influence"),
            *_scored(base, "graph" if whole is None else "whole"),
            _largest_gap(graph),
        ),
        (*_claims(graph, whole), *of_whole),
        graph.closes,
    )


def edges_table(
    graph: Graph,
    node: str | int,
    *,
    top: int = 10,
    direction: Direction | None = None,
) -> AnalysisTable:
    """List the largest edges of a node, signed.

    "incoming" are what it reads and add up to its value: listed, not listed, constants, and in a
    pruned graph the remainder; "outgoing" are what it brings to others. Without a direction,
    incoming for what reads and outgoing for the rest. Shares are of the sum of |weight| over all
    that the target reads. Raises `PathExpandError` for nodes without such edges.
    """
    check_top(top)
    n = graph.find(node)
    reads = bool(graph.is_target[n])
    if direction is None:
        direction = "incoming" if reads else "outgoing"
    if direction == "outgoing":
        return _outgoing(graph, n, top)
    if direction != "incoming":
        raise PathExpandError("direction", wanted="incoming or outgoing", got=shown(direction))
    if not reads:
        name = name_of(graph.nodes[n])
        raise PathExpandError(f"node {name}", wanted="one that reads", got=a_kind(graph.nodes[n]))
    return _incoming(graph, n, top)


def summary_table(graph: Graph, *, whole: Graph | None = None) -> AnalysisTable:
    """Count and score a graph, beside the `whole` one if it was pruned.

    Replacement and completeness are as circuit-tracer defines them, without constants; the closed
    ones count constants, too.
    """
    graphs = {"graph": graph} if whole is None else {"whole": whole, "pruned": graph}
    rows: list[tuple[str, *tuple[int, ...]]] = []
    for kind in ("feature", "error", "mlp", "token", "position", "constant", "logit"):
        counts = [sum(node.kind == kind for node in each.nodes) for each in graphs.values()]
        if any(counts):
            rows.append((f"{kind} nodes", *counts))
    rows.append(("edges", *(int(np.count_nonzero(each.weights)) for each in graphs.values())))
    return AnalysisTable(
        "graph",
        _about(graph),
        (Field("what", "text"), *(Field(name, "count") for name in graphs)),
        tuple(rows),
        (
            *(line for name, each in graphs.items() for line in _scored(each, name)),
            _largest_gap(graph),
        ),
        _claims(graph, whole),
        graph.closes,
    )


def _incoming(graph: Graph, n: int, top: int) -> AnalysisTable:
    row = graph.weights[n]
    gross = float(abs(row).sum())
    constant = np.array([each.kind == "constant" for each in graph.nodes], dtype=bool)
    order = [int(s) for s in np.argsort(-abs(row), kind="stable") if row[s] and not constant[s]]
    running, rows = 0.0, []
    for rank, s in enumerate(order[:top], start=1):
        running += float(row[s])
        rows.append(
            (rank, name_of(graph.nodes[s]), _text(graph, s), *_weighed(row[s], gross), running)
        )
    rest = float(row[order[top:]].sum())
    left = len(order) - len(rows)
    lost = float(graph.remainder[n])
    closing = [
        Summary("listed", running, f"{len(rows):,} of {len(order):,} edges"),
        Summary("not listed", rest, _each(abs(row[order[top]]) if left else None, left)),
        Summary("constants", float(row[constant].sum()), _constants(graph, row, constant)),
        *([Summary("remainder", lost, "edges that were pruned")] if lost else []),
        Summary("value", float(graph.values[n]), _meaning(graph, n)),
        Summary("gap", float(graph.gap[n]), f"rounding allows {graph.gap_bound[n]:.1e}"),
    ]
    return AnalysisTable(
        "graph edges into a node",
        (
            ("model", graph.model),
            ("node", name_of(graph.nodes[n])),
            ("token", _text(graph, n) or ""),
        ),
        (
            Field("rank", "count"),
            Field("source", "text"),
            Field("token", "token", 1),
            Field("weight", "number"),
            Field("share", "share"),
            Field("running", "number", 2),
        ),
        tuple(rows),
        tuple(closing),
        (f"share: |weight| of the sum of |weight| over {'kept' if lost else 'all'} edges.",),
        _closes(graph, n),
    )


def _outgoing(graph: Graph, n: int, top: int) -> AnalysisTable:
    column = graph.weights[:, n]
    order = [int(t) for t in np.argsort(-abs(column), kind="stable") if column[t]]
    if not order:
        raise PathExpandError(f"node {name_of(graph.nodes[n])}", wanted="one that others read")
    rows = tuple(
        (
            rank,
            name_of(graph.nodes[t]),
            _text(graph, t),
            *_weighed(column[t], float(abs(graph.weights[t]).sum())),
        )
        for rank, t in enumerate(order[:top], start=1)
    )
    left = len(order) - len(rows)
    return AnalysisTable(
        "graph edges out of a node",
        (
            ("model", graph.model),
            ("node", name_of(graph.nodes[n])),
            ("token", _text(graph, n) or ""),
        ),
        (
            Field("rank", "count"),
            Field("target", "text"),
            Field("token", "token", 1),
            Field("weight", "number"),
            Field("share", "share"),
        ),
        rows,
        (
            Summary("edges", None, f"{len(rows):,} of {len(order):,} listed"),
            *([Summary("not listed", None, _each(abs(column[order[top]]), left))] if left else []),
        ),
        ("share: |weight| of the sum of |weight| over all edges of the target.",),
        graph.closes,
    )


def _about(graph: Graph) -> tuple[tuple[str, str], ...]:
    logits = [n for n, node in enumerate(graph.nodes) if node.kind == "logit"]
    logits.sort(key=lambda n: -graph.logit_weights[n])
    named = [f"{graph.nodes[n].label} {graph.logit_weights[n]:.3f}" for n in logits[:_NAMED]]
    more = f" and {len(logits) - _NAMED} more" if len(logits) > _NAMED else ""
    return (
        ("model", graph.model),
        *((("features", graph.fit),) if graph.fit else ()),
        ("prompt", shorten_tokens(graph.prompt, _PROMPT_ROOM)),
        ("logits", ", ".join(named) + more),
    )


def _sizes(graph: Graph, whole: Graph | None) -> tuple[Summary, ...]:
    """Count nodes and edges, in words: they are on no scale with scores."""
    sizes = [
        (len(each), np.count_nonzero(each.weights)) for each in (graph, whole) if each is not None
    ]
    nodes, edges = (
        " of ".join(f"{count:,}" for count in counts) for counts in zip(*sizes, strict=True)
    )
    return Summary("nodes", None, nodes), Summary("edges", None, edges)


def _scored(graph: Graph, name: str) -> tuple[Summary, ...]:
    """Score a graph, as circuit-tracer does and closed; `name` says which graph it is."""
    plain, closed = scores(graph), scores(graph, closed=True)
    said = "as circuit-tracer scores" if _is_comparable(graph) else "MLPs left out: not comparable"
    return (
        Summary(
            f"{name} replacement",
            plain.replacement,
            f"completeness {plain.completeness:.4f}, {said}",
        ),
        Summary(
            f"{name} closed",
            closed.replacement,
            f"completeness {closed.completeness:.4f}, constants counted",
        ),
    )


def _largest_gap(graph: Graph) -> Summary:
    """Give the largest gap of what reads."""
    targets = np.flatnonzero(graph.is_target)
    if not targets.size:
        return Summary("largest gap", 0.0, "nothing reads")
    n = int(targets[np.argmax(abs(graph.gap[targets]))])
    said = f"{name_of(graph.nodes[n])}, rounding allows {graph.gap_bound[n]:.1e}"
    return Summary("largest gap", float(abs(graph.gap[n])), said)


def _claims(graph: Graph, whole: Graph | None) -> tuple[str, ...]:
    pruned = whole is not None or bool(graph.remainder.any())
    of = "What is kept and what is pruned add up" if pruned else "What is in the graph adds up"
    end = "up to rounding" if graph.closes else "only up to a gap that rounding does not explain"
    closed = f"{of} to what each feature and logit reads, {end}."
    bare = _bare_layers(graph)
    if not bare:
        return (closed,)
    one = len(bare) == 1
    mlps = "its MLP is one node" if one else "their MLPs are one node each"
    named = f"{_layers(bare)} {'has' if one else 'have'} no features"
    return closed, f"{named}: {mlps} at each position."


def _bare_layers(graph: Graph) -> list[int]:
    """Give the layers whose MLPs no features stand for: each layer with features has a b_enc."""
    own = {node.layer for node in graph.nodes if node.label == f"L{node.layer}b_enc"}
    mlps = {node.layer for node in graph.nodes if node.kind == "mlp" and node.layer is not None}
    return sorted(mlps - own)


def _layers(layers: Sequence[int]) -> str:
    """Name layers, runs of them by their ends.

    >>> _layers([3]), _layers([0, 2, 3, 4, 7])
    ('Layer 3', 'Layers 0, 2 to 4 and 7')
    """
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    said: list[str] = []
    for run in runs:
        said += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    last = said.pop()
    listed = f"{', '.join(said)} and {last}" if said else last
    return f"Layer{'' if len(layers) == 1 else 's'} {listed}"


def _is_comparable(graph: Graph) -> bool:
    """Say whether other tools would have the same nodes, constants apart.

    An MLP that is a node beside features is none of theirs; at positions that were left out it is
    a constant there, too.
    """
    if _bare_layers(graph):
        return False
    kinds = ("feature", "error")
    places = {(node.layer, node.position) for node in graph.nodes if node.kind in kinds}
    return not any(
        node.kind == "mlp" and (node.layer, node.position) in places for node in graph.nodes
    )


def _closes(graph: Graph, n: int) -> bool:
    return bool(abs(graph.gap[n]) <= graph.gap_bound[n])


def _text(graph: Graph, n: int) -> str | None:
    position = graph.nodes[n].position
    return None if position is None else graph.prompt[position]


def a_kind(node: Node) -> str:
    """Name a node's kind with its article.

    >>> a_kind(Node("error", "L1E", 1, 4)), a_kind(Node("mlp", "L1M", 1, 4))
    ('an error', 'an MLP')
    """
    return {"error": "an error", "mlp": "an MLP"}.get(node.kind, f"a {node.kind}")


def _kind(graph: Graph, n: int) -> str:
    return graph.nodes[n].kind


def _meaning(graph: Graph, n: int) -> str:
    logit = _kind(graph, n) == "logit"
    return "the logit less the vocabulary mean" if logit else "its pre-activation"


def _weighed(weight: float, gross: float) -> tuple[float, float | None]:
    return float(weight), abs(float(weight)) / gross if gross else None


def _each(most: float | None, left: int) -> str:
    return f"{left:,} edges of at most {most:.4g}" if most is not None else "no edge"


def _constants(graph: Graph, row: Array, constant: Sequence[bool] | Array) -> str:
    """Name the largest constants."""
    found = [int(s) for s in np.argsort(-abs(row), kind="stable") if constant[s] and row[s]]
    named = ", ".join(f"{name_of(graph.nodes[s])} {row[s]:.3g}" for s in found[:_NAMED])
    more = len(found) - _NAMED
    return f"{named} and {more} more" if more > 0 else named or "none"


def check_top(top: int) -> None:
    """Refuse a number of rows that is not whole, or below 0.

    >>> check_top(3)
    """
    whole = isinstance(top, int | np.integer) and not isinstance(top, bool)
    if not whole or top < 0:
        raise PathExpandError("top", wanted="a whole number of at least 0", got=shown(top))
