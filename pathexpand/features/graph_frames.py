"""Graphs for other libraries: networkx, and data frames of pandas."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from pathexpand.errors import PathExpandError
from pathexpand.features.graph import Graph, name_of
from pathexpand.features.influence import node_influence

if TYPE_CHECKING:
    import pandas


def nodes_and_edges(graph: Graph) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Give a record for each node and one for each weight that is not 0."""
    influence, closed = node_influence(graph), node_influence(graph, closed=True)
    nodes = [
        {
            "name": name_of(node),
            "kind": node.kind,
            "layer": node.layer,
            "position": node.position,
            "index": node.index,
            "token": node.token,
            "text": None if node.position is None else graph.prompt[node.position],
            "activation": node.activation,
            "value": node.value,
            "weight": float(graph.logit_weights[n]),
            "influence": float(influence[n]),
            "closed_influence": float(closed[n]),
            "remainder": float(graph.remainder[n]),
            "gap": float(graph.gap[n]),
            "gap_bound": float(graph.gap_bound[n]),
        }
        for n, node in enumerate(graph.nodes)
    ]
    targets, sources = np.nonzero(graph.weights)
    edges = [
        {
            "source": nodes[s]["name"],
            "target": nodes[t]["name"],
            "weight": float(graph.weights[t, s]),
        }
        for t, s in zip(targets, sources, strict=True)
    ]
    return nodes, edges


def to_networkx(graph: Graph) -> Any:
    """Give a `networkx.DiGraph` whose edges go from sources to targets.

    Raises `PathExpandError` where networkx is not installed.
    """
    networkx = _library("networkx", "pip install 'pathexpand[networkx]'")
    nodes, edges = nodes_and_edges(graph)
    made = networkx.DiGraph(model=graph.model, prompt=list(graph.prompt))
    for node in nodes:
        # None is no value of an attribute in the files that networkx writes.
        known = {key: value for key, value in node.items() if value is not None}
        made.add_node(known.pop("name"), **known)
    made.add_edges_from(
        (edge["source"], edge["target"], {"weight": edge["weight"]}) for edge in edges
    )
    return made


def to_pandas(graph: Graph) -> dict[str, pandas.DataFrame]:
    """Give two data frames, "nodes" and "edges".

    Raises `PathExpandError` where pandas is not installed.
    """
    pandas = _library("pandas", "pip install 'pathexpand[pandas]'")
    nodes, edges = nodes_and_edges(graph)
    frame = pandas.DataFrame(nodes)
    for name in ("layer", "position", "index", "token"):
        frame[name] = frame[name].astype("Int64")  # whole numbers that may be missing
    edge_frame = pandas.DataFrame(edges, columns=["source", "target", "weight"])
    return {"nodes": frame, "edges": edge_frame}


def _library(name: str, remedy: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise PathExpandError(f"graph for {name}", wanted=name, got="none", remedy=remedy) from None
