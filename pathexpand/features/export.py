"""A graph as the JSON that circuit-tracer's and Neuronpedia's pages open.

Their pages know features, errors, tokens and logits. What else a graph has, constants above all, is
either summed up in fields of the nodes that read it ("drop") or written as bias nodes ("nodes"); in
both, what a node reads is still the sum of what is written: links, constant and pruned remainder.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pathexpand.errors import PathExpandError
from pathexpand.features.graph import Graph
from pathexpand.features.influence import compared, edge_influence, node_influence, prune
from pathexpand.features.paths import edge_paths
from pathexpand.features.replacement import Node
from pathexpand.model.shown import shown
from pathexpand.table.spelling import visible

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Constants = Literal["drop", "nodes"]
SLUG = re.compile(r"[A-Za-z0-9_.-]+")
_TYPES = {
    "feature": "cross layer transcoder",  # per-layer ones, too: the pages know no other
    "error": "mlp reconstruction error",
    "token": "embedding",
    "logit": "logit",
}
_PATHS = 3  # of a link that are written
_MOST_CARRIED = 500  # links whose paths are
_ORDER = ("feature", "error", "token", "mlp", "position", "constant", "logit")
_LAYER_LABEL = re.compile(r"L\d+(.+)")


def graph_json(
    graph: Graph,
    *,
    slug: str,
    scan: str | None = None,
    constants: Constants = "drop",
    nodes: float | None = None,
    edges: float | None = None,
    most_links: int | None = None,
    paths: bool = False,
) -> dict[str, Any]:
    """Give the document of a graph.

    `slug` names it and `scan` the model on those pages (by default its name, with "-" for what may
    not stand there). With `nodes` or `edges` the graph is pruned first, as `prune` does, 1 standing
    for the one not given; "influence" is always that in the graph as given. Of more than
    `most_links` links those that carry most influence are written. Whatever is left out counts in
    each node's "pruned_remainder".

    With `paths`, links that join a feature to something, at most the 500 largest, have "paths", the
    three largest paths of heads and skips that carry each, and "paths_rest", what the others add.
    Raises `PathExpandError` for names that no page takes, and for paths of a graph without a run.
    """
    if not isinstance(graph, Graph):
        raise PathExpandError("graph", wanted="a graph", got=shown(graph))
    _check(slug, constants, most_links)
    scan = re.sub(r"[^A-Za-z0-9_.-]+", "-", graph.model) if scan is None else scan
    _check_name("scan", scan)
    ranks = _cumulative(graph, closed=constants == "nodes")
    depth = 1 + max((each.layer for each in graph.nodes if each.layer is not None), default=0)
    kept = graph
    if nodes is not None or edges is not None:
        kept = prune(
            graph, nodes=1 if nodes is None else nodes, edges=1 if edges is None else edges
        )
    written = _Writer(kept, depth, compared(kept) | (constants == "nodes"))
    links, remainder = written.links(most_links)
    if paths:
        written.carry(links)
    document: dict[str, Any] = {
        "metadata": _metadata(kept, slug, scan, constants, nodes, edges),
        "qParams": {
            "pinnedIds": [],
            "supernodes": [],
            "linkType": "both",
            "clickedId": "",
            "sg_pos": "",
        },
        "nodes": [written.node(n, ranks[kept.nodes[n]], remainder[n]) for n in written.order],
        "links": links,
    }
    document["metadata"]["claims"] = _claims(document, constants)
    return document


def graph_text(document: dict[str, Any]) -> str:
    """Write a document in as little room as JSON takes, the same bytes each time.

    >>> graph_text({"nodes": [], "links": [0.1]})
    '{"nodes":[],"links":[0.1]}\\n'
    """
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def graph_metadata(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Give what stands in `graph-metadata.json` beside the files of these graphs.

    Raises `PathExpandError` for two graphs of one slug.

    >>> graph_metadata([{"metadata": {"slug": "one"}}])
    {'graphs': [{'slug': 'one'}]}
    """
    slugs = [document["metadata"]["slug"] for document in documents]
    for slug in slugs:
        if slugs.count(slug) > 1:
            raise PathExpandError("slugs", wanted="another for each graph", got=f"{slug} twice")
    return {"graphs": [document["metadata"] for document in documents]}


def plain_token(text: str) -> str:
    r"""Give a token's own text, from the one that shows it; bytes of no letter become U+FFFD.

    >>> plain_token("' Lily'"), plain_token(r"'\n'"), plain_token("<s>"), plain_token("#17")
    (' Lily', '\n', '<s>', '#17')
    """
    if not text.startswith(("'", "b'", '"', 'b"')):
        return text
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _quoted(text: str) -> str:
    r"""Write a token between quotes so that pages that look for quotes and "(p=" find theirs.

    >>> print(_quoted('say "(p="'))
    "say \x22\x28p=\x22"
    """
    inner = visible(plain_token(text)).replace('"', "\\x22").replace("(p=", "\\x28p=")
    return f'"{inner}"'


def _check(slug: str, constants: str, most_links: int | None) -> None:
    _check_name("slug", slug)
    if constants not in get_args(Constants):
        raise PathExpandError("constants", wanted="drop or nodes", got=shown(constants))
    if most_links is not None and (type(most_links) is not int or most_links < 0):
        raise PathExpandError("most links", wanted="a whole number", got=shown(most_links))


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not SLUG.fullmatch(name):
        wanted = "letters, digits, and the signs _ . - alone"
        raise PathExpandError(what, wanted=wanted, got=shown(name))


def _cumulative(graph: Graph, *, closed: bool) -> dict[Node, float]:
    """Give, for each node, the share of all influence that it and those with more have."""
    scores = node_influence(graph, closed=closed)
    order = np.argsort(-scores, kind="stable")
    sums = np.cumsum(scores[order])
    total = float(sums[-1]) if len(sums) else 0.0
    shares = np.minimum(sums / total, 1.0) if total else np.ones(len(sums))
    return {graph.nodes[n]: float(share) for n, share in zip(order, shares, strict=True)}


def _metadata(
    graph: Graph,
    slug: str,
    scan: str,
    constants: Constants,
    nodes: float | None,
    edges: float | None,
) -> dict[str, Any]:

    tokens = [plain_token(text) for text in graph.prompt]
    pruning = {"node_threshold": nodes, "edge_threshold": edges}
    set_ = {name: share for name, share in pruning.items() if share is not None}
    return {
        "slug": slug,
        "scan": scan,
        "prompt_tokens": tokens,
        "prompt": "".join(tokens),
        "schema_version": 1,
        **({"node_threshold": nodes} if nodes is not None else {}),
        "info": {
            "description": f"Attribution graph of {graph.model}, with remainders and constants.",
            "generator": {"name": "pathexpand", "version": version("pathexpand")},
        },
        **({"pruning_settings": set_} if set_ else {}),
        "closure": {
            "max_gap": float(abs(graph.gap).max(initial=0.0)),
            "max_bound": float(graph.gap_bound.max(initial=0.0)),
            "closes": graph.closes,
            "constants": constants,
            "dtype": "float64",
        },
    }


def _claims(document: dict[str, Any], constants: Constants) -> list[str]:
    layers = [node["layer"] for node in document["nodes"] if node["feature_type"] != "logit"]
    numbers = [int(layer) for layer in layers if layer != "E"]
    claims = [
        "What a node reads (preactivation) is its links + constant + pruned_remainder, to rounding."
    ]
    if constants == "drop":
        claims.append(
            "constant is the sum over biases, positions and the output of MLPs without features."
        )
    else:
        claims.append(
            "Neuronpedia's scores are wrong with bias nodes: they are taken for logits there."
        )
    if max(numbers, default=0) == 0:
        claims.append("Neuronpedia does not open graphs with nothing behind layer 0, as this one.")
    return claims


@dataclass(frozen=True, slots=True, eq=False)
class _Writer:
    """Writes the nodes and links of a graph whose model has `depth` layers.

    `own` says which of its nodes become nodes of the document (node,).
    """

    graph: Graph
    depth: int
    own: Mask

    @property
    def order(self) -> list[int]:
        """The nodes that are written; logits last, as pages expect them."""

        def key(n: int) -> tuple[int, int, int, int, int]:
            node = self.graph.nodes[n]
            layer, position = (-1 if x is None else x for x in (node.layer, node.position))
            return _ORDER.index(node.kind), layer, position, node.index or 0, n

        return sorted(map(int, np.flatnonzero(self.own)), key=key)

    def links(self, most: int | None) -> tuple[list[dict[str, Any]], Array]:
        """Give the links, by target and then by source, and what each row then lacks: (node,)."""
        graph = self.graph
        weights = np.where(self.own, graph.weights, 0.0)  # (target, source)
        remainder = graph.remainder.copy()
        count = int(np.count_nonzero(weights))
        if most is not None and most < count:
            scores = edge_influence(graph, closed=bool(self.own.all()))
            targets, sources = np.nonzero(weights)
            falling = np.argsort(-scores[targets, sources], kind="stable")[most:]
            cut = targets[falling], sources[falling]
            np.add.at(remainder, cut[0], weights[cut])
            weights[cut] = 0.0
        order = self.order
        ids = {n: self.identity(n) for n in order}
        links = [
            {"source": ids[order[s]], "target": ids[t], "weight": float(weights[t, order[s]])}
            for t in order
            for s in np.flatnonzero(weights[t, order])
        ]
        return links, remainder

    def carry(self, links: list[dict[str, Any]]) -> None:
        """Add to the largest links of features the paths that carry them."""
        numbers = {self.identity(n): n for n in self.order}
        kinds = [node.kind for node in self.graph.nodes]
        ends = [(numbers[link["source"]], numbers[link["target"]]) for link in links]
        own = [n for n, pair in enumerate(ends) if "feature" in (kinds[pair[0]], kinds[pair[1]])]
        own.sort(key=lambda n: -abs(links[n]["weight"]))
        for n in own[:_MOST_CARRIED]:
            found = edge_paths(self.graph, *ends[n], top=_PATHS)
            links[n]["paths"] = [{"path": p.label, "value": p.value} for p in found.paths]
            links[n]["paths_rest"] = found.remainder

    def node(self, n: int, influence: float, remainder: float) -> dict[str, Any]:
        """Give one node."""
        graph, node = self.graph, self.graph.nodes[n]
        identity = self.identity(n)
        found: dict[str, Any] = {
            "node_id": identity,
            "feature": self._number(node),
            "layer": self._layer(node),
            "ctx_idx": node.position or 0,
            "feature_type": _TYPES.get(node.kind, "bias"),
            "jsNodeId": identity,  # theirs repeats over positions, and nodes with it are merged
            "clerp": self._label(n),
            "token_prob": float(graph.logit_weights[n]) if node.kind == "logit" else 0.0,
            "is_target_logit": node.kind == "logit" and n == int(graph.logit_weights.argmax()),
        }
        if node.kind != "logit":
            found["influence"] = influence
        if node.activation is not None:
            found["activation"] = node.activation
        if node.kind in ("feature", "logit"):
            found["preactivation"] = node.value
            found["constant"] = float(graph.weights[n, ~self.own].sum())
            found["pruned_remainder"] = float(remainder)
        return found

    def identity(self, n: int) -> str:
        """Name a node as no other is named."""
        node = self.graph.nodes[n]
        place = "all" if node.position is None else str(node.position)
        layer = self._layer(node)
        if node.kind == "feature":
            return f"{layer}_{node.index}_{place}"
        if node.kind == "error":
            return f"{layer}_error_mlp_{place}"
        if node.kind in ("token", "logit"):
            token = f"x{n}" if node.token is None else str(node.token)
            return f"{layer}_{token}_{place}"
        return f"{layer}_bias_{_constant(node)}_{place}"

    def _layer(self, node: Node) -> str:
        if node.kind == "logit":
            return str(self.depth + 1)
        if node.layer is not None:
            return str(node.layer)
        return str(self.depth) if node.label == "b_U" else "E"

    def _number(self, node: Node) -> int | None:
        if node.kind == "feature" and node.index is not None:
            layer, index = node.layer or 0, node.index
            return (layer + index) * (layer + index + 1) // 2 + index  # Cantor's pairing
        if node.kind == "error":
            return -1
        if node.kind == "token":
            return node.position
        return node.token if node.kind == "logit" else None

    def _label(self, n: int) -> str:
        node = self.graph.nodes[n]
        if node.kind == "logit":
            return f"Output {_quoted(node.label)} (p={self.graph.logit_weights[n]:.3f})"
        if node.kind == "token":
            return f"Emb: {_quoted(self.graph.prompt[node.position or 0])}"
        if node.kind == "error":
            return f"Error of layer {node.layer}"
        if node.kind == "feature":
            return ""
        where = self._layer(node)
        return f"{'' if where == 'E' else 'L'}{where} Bias ({_constant(node)})"


def _constant(node: Node) -> str:
    """Name a constant without its layer."""
    if node.kind in ("mlp", "position"):
        return {"mlp": "mlp", "position": "pos"}[node.kind]
    own = _LAYER_LABEL.fullmatch(node.label)
    return re.sub(r"[^A-Za-z0-9.-]+", "_", own[1] if own else node.label)
