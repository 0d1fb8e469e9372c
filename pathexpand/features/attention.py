"""Attention scores over a graph's nodes: which features, tokens and constants a head compares.

With q_s what node s brings to the query and k_s to the key, score = Σ_s Σ_t q_s · k_t over all
pairs of nodes, the constants b_Q and b_K among them: exact, signed, for any key. The matrix of
pairs is never formed; it stays the product of two (node, d_head) factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.largest import largest
from pathexpand.circuits.legs import End, legs
from pathexpand.circuits.scores import Scored, check_apart, check_contrast, check_key
from pathexpand.circuits.wiring import parse_head
from pathexpand.engine.rounding import gamma
from pathexpand.errors import PathExpandError
from pathexpand.features.graph import name_of
from pathexpand.features.graph_table import check_top
from pathexpand.features.paths import share
from pathexpand.features.replacement import Node, Readers, Replacement
from pathexpand.frozen import freeze
from pathexpand.lowrank import Factored
from pathexpand.model.scores import layer_scores
from pathexpand.model.shown import shown
from pathexpand.symbolic import Head
from pathexpand.table import AnalysisTable, Field, Summary
from pathexpand.table.abstract import Tabled

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AttentionScore(Tabled):
    """A head's score as pairs of nodes: `queries` and `keys` (node, d_head), S = queries keysᵀ.

    The last row of each is the head's own constant. `score` is what the dense pass compares, ALiBi
    left out; with `over`, the score of `key` less that of `over`, to which `keys` then belong.
    """

    nodes: tuple[Node, ...]
    head: Head
    query: int
    key: int
    over: int | None
    queries: Array
    keys: Array
    score: float
    gap_bound: float

    @property
    def gap(self) -> float:
        """How far the pairs' sum is off the score."""
        return self.score - float(self.queries.sum(axis=0) @ self.keys.sum(axis=0))

    @property
    def closes(self) -> bool:
        """Whether rounding explains the gap."""
        return abs(self.gap) <= self.gap_bound

    def names(self, side: str) -> tuple[str, ...]:
        """Name the rows of a side, "query" or "key"."""
        own = f"b_{side[0].upper()}"
        return (*(name_of(node) for node in self.nodes), own)

    def by_query(self) -> Array:
        """Give what each query-side node brings with all keys: (node,)."""
        out: Array = self.queries @ self.keys.sum(axis=0)
        return out

    def by_key(self) -> Array:
        """Give what each key-side node brings with all queries: (node,)."""
        out: Array = self.keys @ self.queries.sum(axis=0)
        return out

    def pair(self, query: int | str, key: int | str) -> float:
        """Give the value of one pair, by names such as "L0F3@2" or by numbers.

        −1, or "b_Q" and "b_K", is the head's own constant. Raises `PathExpandError`.
        """
        return float(self.queries[self._row(query, "query")] @ self.keys[self._row(key, "key")])

    def _row(self, node: int | str, side: str) -> int:
        """Give the row of a node, or of the head's own constant."""
        names = self.names(side)
        if isinstance(node, str):
            found = [n for n, name in enumerate(names) if name == node]
            if len(found) != 1:
                wanted = f"the name of one node, such as L0F3@2, or {names[-1]}"
                got = f"that of {len(found)} nodes" if found else "none of this graph"
                raise PathExpandError(f"{side} node {shown(node)}", wanted=wanted, got=got)
            return found[0]
        whole = isinstance(node, int | np.integer) and not isinstance(node, bool)
        if not whole or not -1 <= node < len(names):
            wanted = f"a name, or a number from -1 to {len(names) - 1}"
            raise PathExpandError(f"{side} node", wanted=wanted, got=shown(node))
        return int(node)

    def table(self, top: int = 10) -> AnalysisTable:
        """Tabulate the largest pairs by size: exactly these, none larger was left out."""
        check_top(top)
        # None at all are asked of nobody: `largest` gives at least one.
        found = largest(Factored(self.queries, self.keys.T), max(top, 1), by="size")
        left, right = self.names("query"), self.names("key")
        rows, running = [], 0.0
        for rank, (row, column, value) in enumerate(
            zip(found.rows[:top], found.columns[:top], found.values[:top], strict=True), start=1
        ):
            running += float(value)
            part = share(float(value), self.score)
            rows.append((rank, left[row], right[column], float(value), part, running))
        count = len(left) * len(right)
        over = [] if self.over is None else [("over", str(self.over))]
        return AnalysisTable(
            "attention over nodes",
            (("head", self.head.label), ("query", str(self.query)), ("key", str(self.key)), *over),
            (
                Field("rank", "count"),
                Field("query node", "text"),
                Field("key node", "text"),
                Field("value", "number"),
                Field("share", "share", 1),
                Field("running", "number", 2),
            ),
            tuple(rows),
            (
                Summary("listed", running, f"{len(rows):,} of {count:,} pairs"),
                Summary("not listed", self.score - self.gap - running),
                Summary("score", self.score, "by the dense pass, before the softmax"),
                Summary("gap", self.gap, f"rounding allows {self.gap_bound:.1e}"),
            ),
            ("No pair that is not listed is larger.",),
            self.closes,
        )


def attention_score(
    made: Replacement, head: str | Head, query: int, key: int, *, over: int | None = None
) -> AttentionScore:
    """Expand a head's score over the nodes of a run with units in it.

    With `over`, the score of one key less that of another. Raises `PathExpandError` for a head that
    there is not, keys that the query does not see, and a contrast of capped scores.
    """
    head = parse_head(made.config, head)
    query = made.run.position(query, "query", row=made.row)
    key = made.run.position(key, "key", row=made.row)
    keys: tuple[int, ...] = (key,)
    if over is not None:
        check_contrast(made.config)
        over = made.run.position(over, "over", row=made.row)
        keys = check_apart(key, over)
    frozen = freeze(made.weights, made.config, made.run, row=made.row)
    held = layer_scores(made.weights, made.config, made.run, head.layer, row=made.row)
    scored = Scored(made.weights, made.config, made.run, frozen, head, held, made.row)
    for place in keys:
        check_key(scored, query, place)
    left, right = legs(
        made.weights, made.config, made.run, frozen, held, head, query, keys, row=made.row
    )
    boundary = made.attends_at[head.layer]
    beside = _beside(made, head)
    queries = _side(made, boundary, left.ends, beside)
    each = _side(made, boundary, right.ends, beside)
    bound = sum(_rounding(made, boundary, one, each.sum(axis=0)) for one in left.ends) + sum(
        _rounding(made, boundary, one, queries.sum(axis=0)) for one in right.ends
    )
    sizes = sum(float(left.ends[0].size @ end.size) for end in right.ends)
    bound += 2 * gamma(4 * sum(left.ends[0].read.shape) + 64) * sizes
    return AttentionScore(
        tuple(made.nodes),
        head,
        query,
        key,
        over,
        queries,
        each,
        scored.dense(query, keys),
        2 * float(bound),
    )


def _beside(made: Replacement, head: Head) -> dict[int, Array]:
    """Give what positions add to queries and keys beside the stream: by position (d_model,)."""
    beside = made.config.positional_embedding_type == "shortformer"
    if not beside or made.weights.pos is None or made.weights.blocks[head.layer].ln1 is not None:
        return {}
    rows = made.weights.positions(made.run.places[made.row])
    return dict(enumerate(rows))


def _side(made: Replacement, boundary: int, ends: Sequence[End], beside: dict[int, Array]) -> Array:
    """Give what each node brings to a query or key, and last the head's own constant."""
    d_head = ends[0].read.shape[1]
    total = np.zeros((len(made.nodes) + 1, d_head))
    for end in ends:
        readers = Readers(
            boundary,
            np.full(d_head, end.position),
            np.ascontiguousarray(end.read.T),
            end.constant,
        )
        total[:-1] += made.edges(readers).T
        total[-1] += end.constant
        if end.position in beside:
            total[-1] += beside[end.position] @ end.read
    return total


def _rounding(made: Replacement, boundary: int, end: End, other: Array) -> float:
    """Bound the rounding of the stream as one side reads it along the other's total."""
    direction = (end.read @ other)[None]
    readers = Readers(boundary, np.array([end.position]), direction, np.zeros(1))
    return float(made.rounding(readers)[0])
