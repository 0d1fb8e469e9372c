"""Graphs too large to hold, pruned as they are made.

Rows come from the logits back, so that when a node's own row comes, all that reads the node has
passed: its influence is known for good. One pass gives the influence of every node, a second one
the rows of those that stay. Both hold a block of rows at a time, and the result is that of
`prune(graph(…))`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import LimitError
from pathexpand.features.graph import MOST, Attribution, Graph
from pathexpand.features.influence import (
    EDGES,
    NODES,
    check_shares,
    compared_kinds,
    kept_nodes,
    prune_edges,
    shares,
)

Array = npt.NDArray[Any]


def pruned_graph(
    whole: Attribution,
    *,
    nodes: float = NODES,
    edges: float = EDGES,
    report: Callable[[int, int], None] | None = None,
) -> Graph:
    """Make the graph of a run, pruned, without ever holding all of it.

    `report` is told how many rows are done, of how many: each is worked out twice. Raises
    `LimitError` where more nodes stay than can be held.
    """
    check_shares(nodes, edges)
    keep = kept_nodes(whole.nodes, streamed_influence(whole, report), nodes)
    which = np.flatnonzero(keep)
    count = len(which)
    if count > MOST:
        raise LimitError(
            "graph",
            wanted=f"at most {MOST:,} nodes that stay",
            got=f"{count:,}",
            remedy=f"keep less than {nodes:g} of the influence",
        )
    place = np.cumsum(keep) - 1
    weights, lost = np.zeros((count, count)), np.zeros(count)
    gap, bound = np.zeros(count), np.zeros(count)
    done = whole.targets
    for rows in whole.rows():
        some = keep[rows.at]
        at = place[rows.at[some]]
        weights[at] = rows.weights[some][:, which]
        lost[at] = rows.weights[some][:, ~keep].sum(axis=1)
        gap[at], bound[at] = rows.gap[some], rows.gap_bound[some]
        done += len(rows.at)
        if report is not None:
            report(done, 2 * whole.targets)
    small = Graph(
        whole.made.config.model_name,
        whole.names,
        tuple(whole.nodes[n] for n in which),
        weights,
        whole.logit_weights[which],
        gap,
        bound,
        lost,
        whole.made,
        whole.unembed,
    )
    return prune_edges(small, edges)


def streamed_influence(
    whole: Attribution, report: Callable[[int, int], None] | None = None
) -> Array:
    """Give the influence of every node in one pass over the rows: (node,)."""
    own = compared_kinds(whole.nodes)
    logits, found = whole.logit_weights, np.zeros(len(whole.nodes))
    done = 0
    for rows in whole.rows():
        found += (found[rows.at] + logits[rows.at]) @ shares(rows.weights * own)
        done += len(rows.at)
        if report is not None:
            report(done, 2 * whole.targets)
    return found
