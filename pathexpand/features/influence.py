"""Which nodes and edges of a graph matter: influence, pruning and scores.

Influence and the rules of pruning are those of circuit-tracer, so that its numbers compare: edges
are taken by size over their row's sum, and a node's influence is what reaches the logits from it,
each logit counting by its weight. There constants do not take part; beside these scores stand
closed ones, in which they do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import PathExpandError
from pathexpand.features.graph import Graph
from pathexpand.features.replacement import Node
from pathexpand.model.shown import shown

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
_COMPARED = ("feature", "error", "token", "logit")  # the nodes that circuit-tracer has
NODES, EDGES = 0.8, 0.98  # how much of the influence is kept, as circuit-tracer does
_LEAST = 1e-10  # a row's sum below this counts as this


@dataclass(frozen=True, slots=True)
class Scores:
    """How much of a graph its features and tokens explain, from 0 to 1.

    `replacement` is the influence of tokens over that of tokens and errors; `completeness` the part
    of what nodes read that comes from no error, each node counting by its influence.
    """

    replacement: float
    completeness: float


def compared(graph: Graph) -> Mask:
    """Say which nodes of a graph other tools have, too: (node,)."""
    return compared_kinds(graph.nodes)


def compared_kinds(nodes: tuple[Node, ...]) -> Mask:
    """Say which nodes are of a kind that other tools have, too: (node,)."""
    return np.array([node.kind in _COMPARED for node in nodes], dtype=bool)


def shares(weights: Array) -> Array:
    """Give each edge by size over the sum of its row: (target, source).

    >>> shares(np.array([[1.0, -3.0], [0.0, 0.0]])).tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    sizes = abs(weights)
    sizes /= np.maximum(sizes.sum(axis=1, keepdims=True), _LEAST)
    return np.asarray(sizes)


def influence(part: Array, logits: Array) -> Array:
    """Give what reaches the logits (node,) from each node, through shares (target, source).

    Σ_k w Aᵏ, which ends as nothing reads what it writes: (node,).

    >>> influence(np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([0.0, 0.5])).tolist()
    [0.5, 0.0]
    """
    total, reached = np.zeros(len(part)), np.asarray(logits, dtype=np.float64)
    for _ in range(len(part)):
        reached = reached @ part
        if not reached.any():
            break
        total += reached
    return total


def node_influence(graph: Graph, *, closed: bool = False) -> Array:
    """Give the influence of each node: (node,); constants have none unless `closed`."""
    keep = np.ones(len(graph), dtype=bool) if closed else compared(graph)
    return influence(_shares_among(graph.weights, keep), graph.logit_weights)


def _shares_among(weights: Array, keep: Mask) -> Array:
    """Give shares among some sources, the others left out."""
    return shares(weights if keep.all() else weights * keep)


def edge_influence(graph: Graph, *, closed: bool = False) -> Array:
    """Give the influence that passes along each edge: (target, source)."""
    keep = np.ones(len(graph), dtype=bool) if closed else compared(graph)
    part = _shares_among(graph.weights, keep)
    part *= (influence(part, graph.logit_weights) + graph.logit_weights)[:, None]
    return part


def cut_at(scores: Array, share: float) -> float:
    """Give the score at which the largest ones make up a share of their sum.

    >>> cut_at(np.array([1.0, 4.0, 3.0, 2.0]), 0.65)
    3.0
    """
    falling = np.sort(scores[scores > 0])[::-1]  # zeros add nothing, and most edges are zero
    if not falling.size:
        return 0.0
    at = int(np.searchsorted(np.cumsum(falling) / falling.sum(), share))
    if at < falling.size:
        return float(falling[at])
    return float(falling[-1]) if falling.size == scores.size else 0.0


def prune(graph: Graph, *, nodes: float = NODES, edges: float = EDGES) -> Graph:
    """Keep the nodes and edges that carry so much of the influence on the logits.

    Tokens, logits and constants stay. What a kept node's row loses becomes its `remainder`, so that
    the pruned graph still closes. Raises `PathExpandError` for shares outside 0 … 1.
    """
    if not isinstance(graph, Graph):
        raise PathExpandError("prune", wanted="a graph", got=shown(graph))
    check_shares(nodes, edges)
    keep = kept_nodes(graph.nodes, node_influence(graph), nodes)
    return prune_edges(only(graph, keep), edges)


def check_shares(nodes: float, edges: float) -> None:
    """Refuse what is no share."""
    for name, share in (("nodes", nodes), ("edges", edges)):
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
            raise PathExpandError(name, wanted="a share from 0 to 1", got=repr(share)[:40])


def kept_nodes(nodes: tuple[Node, ...], scores: Array, share: float) -> Mask:
    """Say which nodes stay: those of most influence, and all that is neither feature nor error."""
    kinds = np.array([node.kind for node in nodes])
    own = np.isin(kinds, _COMPARED)
    always = ~np.isin(kinds, ("feature", "error"))
    out: Mask = always | (scores >= cut_at(scores[own], share))
    return out


def only(graph: Graph, keep: Mask) -> Graph:
    """Give a graph on some of the nodes; what rows lose is added to their remainders."""
    which = np.flatnonzero(keep)
    lost = graph.weights[np.ix_(which, np.flatnonzero(~keep))].sum(axis=1)
    return replace(
        graph,
        nodes=tuple(graph.nodes[n] for n in which),
        weights=graph.weights[np.ix_(which, which)],
        logit_weights=graph.logit_weights[which],
        gap=graph.gap[which],
        gap_bound=graph.gap_bound[which],
        remainder=graph.remainder[which] + lost,
    )


def prune_edges(graph: Graph, share: float) -> Graph:
    """Keep the edges that carry a share of the influence, and the nodes that these connect."""
    kinds = np.array([node.kind for node in graph.nodes])
    own = compared(graph)
    passed = edge_influence(graph)
    stays = (passed >= cut_at(passed[np.ix_(own, own)], share)) & (graph.weights != 0)
    # Constants are what closes a row: their edges stay.
    stays[:, ~own] = graph.weights[:, ~own] != 0
    keep = _connected(kinds, stays, np.ones(len(kinds), dtype=bool))
    weights = np.where(stays & keep, graph.weights, 0.0)
    lost = (graph.weights - weights).sum(axis=1)
    return only(replace(graph, weights=weights, remainder=graph.remainder + lost), keep)


def _connected(kinds: npt.NDArray[Any], stays: Mask, keep: Mask) -> Mask:
    """Leave out features that read or write nothing kept, and errors that write nothing kept."""
    keep = keep.copy()
    feature, error = kinds == "feature", kinds == "error"
    compare = np.isin(kinds, _COMPARED)
    while True:
        edges = stays & keep[:, None] & keep
        reads, writes = (edges & compare).any(axis=1), edges.any(axis=0)
        left = keep & ~(feature & ~(reads & writes)) & ~(error & ~writes)
        if (left == keep).all():
            return keep
        keep = left


def scores(graph: Graph, *, closed: bool = False) -> Scores:
    """Score a graph; `closed` counts constants as explained, and MLPs without units as errors."""
    if not isinstance(graph, Graph):
        raise PathExpandError("scores", wanted="a graph", got=shown(graph))
    kinds = np.array([node.kind for node in graph.nodes])
    keep = np.ones(len(graph), dtype=bool) if closed else compared(graph)
    missed = np.isin(kinds, ("error", "mlp")) & keep
    explained = np.isin(kinds, ("token", "position", "constant")) & keep
    part = _shares_among(graph.weights, keep)
    found = influence(part, graph.logit_weights)
    told, lost = float(found[explained].sum()), float(found[missed].sum())
    counts = (found + graph.logit_weights) * keep
    whole = 1 - part[:, missed].sum(axis=1)
    total = float(counts.sum())
    return Scores(
        replacement=told / (told + lost) if told + lost else 1.0,
        completeness=float((whole * counts).sum()) / total if total else 1.0,
    )
