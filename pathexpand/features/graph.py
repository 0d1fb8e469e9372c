"""Attribution graphs: every feature and logit as a sum over what it reads, constants included.

A row of `weights` is a target, a column a source: what the source brings to the target's
pre-activation (of a feature) or to the logit less the vocabulary mean, by all heads and skips.
Rows sum to the target's value, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import gamma
from pathexpand.errors import LimitError, PathExpandError
from pathexpand.features.replacement import Node, Readers, Replacement, reading_norm
from pathexpand.features.unit import Unit
from pathexpand.frozen import Unembed
from pathexpand.frozen.norm import back
from pathexpand.model.forward import final_logits
from pathexpand.model.shown import shown
from pathexpand.page.paged import Paged
from pathexpand.symbolic import Head

if TYPE_CHECKING:
    import pandas

    from pathexpand.features.attention import AttentionScore
    from pathexpand.features.paths import EdgePaths

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.intp]
_BLOCK = 2**27  # bytes of readings that are carried back together
MOST = 12_000  # nodes of a graph whose weights are held whole
_NAMED = 5  # logits, or nodes that a name may mean, that a line names


@dataclass(frozen=True, slots=True, eq=False)
class Logits:
    """What a graph explains: tokens (n,), with the weight of each, (n,), mostly its probability."""

    tokens: Indices
    weights: Array

    def __repr__(self) -> str:
        """Give the first ids, and how many there are."""
        ids = ", ".join(map(str, self.tokens[:_NAMED].tolist()))
        more = ", …" if len(self.tokens) > _NAMED else ""
        return f"Logits({len(self.tokens)}: {ids}{more})"


@dataclass(frozen=True, slots=True, eq=False)
class Graph(Paged):
    """Nodes, and what each brings to each: `weights` (target, source), rows of no target are 0.

    `logit_weights` (node,) says how much each logit counts, 0 elsewhere. `gap` (node,) is how far
    a target's row is off its value, `gap_bound` (node,) how far rounding explains. `remainder`
    (node,) is what a row lost to pruning: row + remainder = value. `made` and `unembed` are the run
    it is of; a graph that was read from a file has none. `fit` says how well the features do.

    Graphs are equal if all they hold is, to the last bit, the run apart.
    """

    model: str
    prompt: tuple[str, ...]
    nodes: tuple[Node, ...]
    weights: Array
    logit_weights: Array
    gap: Array
    gap_bound: Array
    remainder: Array
    made: Replacement | None = None
    unembed: Unembed | None = None
    fit: str = ""

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit together."""
        count = len(self.nodes)
        fits = self.weights.shape == (count, count) and all(
            getattr(self, name).shape == (count,)
            for name in ("logit_weights", "gap", "gap_bound", "remainder")
        )
        if not fits:
            wanted = f"a weight for each pair of {count} nodes"
            raise PathExpandError("graph", wanted=wanted, got=f"{self.weights.shape}")
        if not self.fit and self.made is not None:
            object.__setattr__(self, "fit", self.made.fit)

    def __repr__(self) -> str:
        """Name its model, count nodes and edges, and say whether it closes.

        >>> from pathexpand.api import load
        >>> load("two-layer").run("to be or not to").graph()
        Graph('two-layer': 145 nodes, 1,843 edges, closes)
        """
        edges = int(np.count_nonzero(self.weights))
        closes = "closes" if self.closes else "does not close"
        return f"Graph({self.model!r}: {len(self.nodes):,} nodes, {edges:,} edges, {closes})"

    def _repr_html_(self) -> str:
        from pathexpand.features.graph_table import nodes_table

        return nodes_table(self)._repr_html_()

    def __eq__(self, other: object) -> bool:
        """Compare nodes, names and numbers; the run behind them may be another."""
        if not isinstance(other, Graph):
            return NotImplemented
        plain = (self.model, self.prompt, self.nodes) == (other.model, other.prompt, other.nodes)
        names = ("weights", "logit_weights", "gap", "gap_bound", "remainder")
        return plain and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in names
        )

    def __hash__(self) -> int:
        """Hash what equal graphs have in common."""
        return hash((self.model, self.prompt, len(self.nodes)))

    def page(self) -> str:
        """Give a page of HTML with the nodes over tokens and layers, their edges and head paths."""
        from pathexpand.features.graph_page import graph_page

        return graph_page(self)

    def paths(self, source: str | int, target: str | int, *, top: int = 10) -> EdgePaths:
        """Split an edge into the paths of heads (and skips) that carry it, ranked with a proof."""
        from pathexpand.features.paths import edge_paths

        return edge_paths(self, source, target, top=top)

    def save(self, file: str | FilePath) -> None:
        """Write it to a `.safetensors` file that `load_graph` reads, without the run behind it."""
        from pathexpand.features.graph_file import save_graph

        save_graph(self, file)

    def to_json(
        self,
        *,
        slug: str,
        scan: str | None = None,
        constants: Literal["drop", "nodes"] = "drop",
        nodes: float | None = None,
        edges: float | None = None,
        most_links: int | None = None,
        paths: bool = False,
    ) -> str:
        """Give the JSON that circuit-tracer's and Neuronpedia's pages open, as `graph_json` does.

        `slug` is its name there. Raises `PathExpandError` for names that no page takes.
        """
        from pathexpand.features.export import graph_json, graph_text

        document = graph_json(
            self,
            slug=slug,
            scan=scan,
            constants=constants,
            nodes=nodes,
            edges=edges,
            most_links=most_links,
            paths=paths,
        )
        return graph_text(document)

    def to_networkx(self) -> Any:
        """Give a `networkx.DiGraph`; raises `PathExpandError` without networkx."""
        from pathexpand.features.graph_frames import to_networkx

        return to_networkx(self)

    def to_pandas(self) -> dict[str, pandas.DataFrame]:
        """Give data frames "nodes" and "edges"; raises `PathExpandError` without pandas."""
        from pathexpand.features.graph_frames import to_pandas

        return to_pandas(self)

    def attention(
        self, head: str | Head, key: int, *, query: int | None = None, over: int | None = None
    ) -> AttentionScore:
        """Expand a head's attention score into pairs of this graph's nodes, query by key.

        Without `query`, the position whose logits are explained looks; with `over`, what is
        expanded is the score of one key less that of another. Raises `PathExpandError`.
        """
        from pathexpand.features.attention import attention_score

        if self.made is None:
            wanted = "a graph of a run"
            raise PathExpandError("attention", wanted=wanted, got="one read from a file")
        logits = (node.position for node in self.nodes if node.kind == "logit")
        own = next(logits, None)
        last = self.made.positions - 1 if own is None else own
        place = last if query is None else query
        return attention_score(self.made, head, place, key, over=over)

    @property
    def is_target(self) -> npt.NDArray[np.bool_]:
        """Which nodes read: features and logits (node,)."""
        return np.array([node.kind in ("feature", "logit") for node in self.nodes], dtype=bool)

    @property
    def values(self) -> Array:
        """What each target reads in all, 0 for other nodes: (node,)."""
        return np.array(
            [
                node.value if node.value is not None and target else 0.0
                for node, target in zip(self.nodes, self.is_target, strict=True)
            ]
        )

    @property
    def closes(self) -> bool:
        """Whether every target's row, and its remainder, sum to its value within rounding."""
        return bool((abs(self.gap) <= self.gap_bound).all())

    def __len__(self) -> int:
        """Give the number of nodes."""
        return len(self.nodes)

    def find(self, node: str | int) -> int:
        """Give a node's number, from its name such as "L3F17@4" or "' Lily'"; raises if none is."""
        if isinstance(node, int | np.integer) and not isinstance(node, bool):
            if not 0 <= node < len(self.nodes):
                wanted = f"a number from 0 to {len(self.nodes) - 1}"
                raise PathExpandError(f"node {node}", wanted=wanted)
            return int(node)
        named = isinstance(node, str)
        found = [
            n for n, each in enumerate(self.nodes) if named and node in (each.name, each.label)
        ]
        if len(found) == 1:
            return found[0]
        names = ", ".join(name_of(self.nodes[n]) for n in found[:_NAMED])
        if len(found) > _NAMED:
            names += f" and {len(found) - _NAMED} more"
        raise PathExpandError(
            f"node {shown(node)}",
            wanted="the name of one node, such as L3F17@4",
            got=f"that of {names}" if found else "none of this graph",
        )


def name_of(node: Node) -> str:
    """Name a node: what it is, and where.

    >>> name_of(Node("feature", "L3F17", 3, 4, index=17)), name_of(Node("constant", "L0bias", 0))
    ('L3F17@4', 'L0bias')
    """
    return node.name


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """All nodes of a run's graph, and its rows, one block of targets after another.

    The columns of the run come first, then what is born in encoders and logits, then the logits.
    """

    made: Replacement
    unembed: Unembed
    logits: Logits
    position: int
    names: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Array

    def __repr__(self) -> str:
        """Name its model, and count nodes and those that read."""
        size = f"{len(self.nodes):,} nodes, {self.targets:,} of which read"
        return f"Attribution({self.made.config.model_name!r}: {size})"

    @classmethod
    def of(
        cls,
        made: Replacement,
        unembed: Unembed,
        logits: Logits,
        *,
        names: Sequence[str],
        logit_names: Sequence[str],
        position: int,
    ) -> Attribution:
        """Take a run with units in it; `position` is where the logits are read."""
        _, values = logit_readers(made, unembed, logits, position)
        own = [Node("constant", f"L{layer}b_enc", layer) for layer in sorted(made.active)]
        last = [
            Node("logit", name, None, position, token=int(token), value=float(value))
            for name, token, value in zip(logit_names, logits.tokens, values, strict=True)
        ]
        nodes = (*made.nodes, *own, Node("constant", "b_U"), *last)
        return cls(made, unembed, logits, position, tuple(names), nodes, values)

    @property
    def logit_weights(self) -> Array:
        """How much each logit counts, 0 for other nodes: (node,)."""
        out = np.zeros(len(self.nodes))
        out[len(self.nodes) - len(self.logits.tokens) :] = self.logits.weights
        return out

    @property
    def targets(self) -> int:
        """The number of rows that are not 0."""
        return sum(len(active) for active in self.made.active.values()) + len(self.logits.tokens)

    def rows(self) -> Iterator[Rows]:
        """Yield all rows, from the logits back: what reads a node comes before its own row."""
        made, count, sources = self.made, len(self.nodes), len(self.made.nodes)
        end = count - len(self.logits.tokens)
        readers, values = logit_readers(made, self.unembed, self.logits, self.position)
        weights = np.zeros((count - end, count))
        weights[:, :sources], bound = made.measured_edges(readers)
        weights[:, end - 1] = readers.constants
        bound += _logit_rounding(made, self.unembed, self.logits, readers, self.position)
        yield Rows.of(np.arange(end, count), weights, values, bound)
        places = self._places()
        own = {layer: sources + n for n, layer in enumerate(sorted(made.active))}
        for layer in sorted(made.active, key=lambda each: -made.reads_at[each]):
            active, unit = made.active[layer], made.unit(layer)
            assert unit is not None  # what is active is of a unit
            readers = feature_readers(made, unit, active.positions, active.features)
            for some in _blocks(readers, count):
                one = readers.some(some)
                weights = np.zeros((len(one.positions), count))
                weights[:, :sources], bound = made.measured_edges(one)
                weights[:, own[layer]] = one.constants
                values = active.pre[some]
                bound += _read_rounding(made, one, values)
                yield Rows.of(places[layer][some], weights, values, bound)

    def _places(self) -> dict[int, Indices]:
        """Give the numbers of each unit's features, in the order in which they are active."""
        places: dict[int, list[int]] = {layer: [] for layer in self.made.active}
        for number, node in enumerate(self.made.nodes):
            if node.kind == "feature" and node.layer is not None:
                places[node.layer].append(number)
        return {layer: np.array(found, dtype=np.intp) for layer, found in places.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some targets `at` (n,), their `weights` (n, node), how far off these are, and may be."""

    at: Indices
    weights: Array
    gap: Array
    gap_bound: Array

    @classmethod
    def of(cls, at: Indices, weights: Array, values: Array, bound: Array) -> Rows:
        """Compare rows with the targets' values, rounding given but for that of the sum."""
        gap = values - weights.sum(axis=1)
        adding = gamma(weights.shape[1]) * abs(weights).sum(axis=1)
        return cls(at, weights, gap, 2 * (bound + adding))


def graph(whole: Attribution, *, report: Callable[[int, int], None] | None = None) -> Graph:
    """Work out the whole graph of a run with units in it.

    `report` is told how many rows are done, of how many. Raises `LimitError` for more nodes than
    can be held whole.
    """
    count = len(whole.nodes)
    if count > MOST:
        raise LimitError(
            "graph",
            wanted=f"at most {MOST:,} nodes held whole",
            got=f"{count:,}",
            remedy="have it pruned as it is made, or take a shorter prompt",
        )
    weights, gap, bound = np.zeros((count, count)), np.zeros(count), np.zeros(count)
    done = 0
    for rows in whole.rows():
        weights[rows.at], gap[rows.at], bound[rows.at] = rows.weights, rows.gap, rows.gap_bound
        done += len(rows.at)
        if report is not None:
            report(done, whole.targets)
    return Graph(
        whole.made.config.model_name,
        whole.names,
        whole.nodes,
        weights,
        whole.logit_weights,
        gap,
        bound,
        np.zeros(count),
        whole.made,
        whole.unembed,
    )


def _blocks(readers: Readers, nodes: int) -> Iterator[slice]:
    width = readers.directions.shape[1]
    reads = width * (int(readers.positions.max(initial=0)) + 1)
    each = max(1, _BLOCK // (8 * max(reads, nodes)))
    for start in range(0, len(readers.positions), each):
        yield slice(start, start + each)


def feature_readers(
    made: Replacement, unit: Unit, positions: Indices, features: Indices
) -> Readers:
    """Say what some features of a unit read of the stream, at some positions."""
    scale = made.active[unit.layer].scale[positions]
    rows = unit.reads(features) * scale[:, None]  # (n, d_in)
    constants = unit.constants(features)
    norm = reading_norm(unit, made.weights.blocks[unit.layer])
    scales = made.run.layers[unit.layer].scale2
    if norm is not None and scales is not None:
        constants = constants if norm.bias is None else constants + rows @ norm.bias
        rows = back(norm, rows.T).T * scales[made.row][positions][:, None]
    return Readers(made.reads_at[unit.layer], positions, rows, constants)


def logit_readers(
    made: Replacement, unembed: Unembed, logits: Logits, position: int
) -> tuple[Readers, Array]:
    """Say what logits less the vocabulary mean read of the last stream, and give their values."""
    weights = made.weights
    columns = weights.unembed(logits.tokens) - weights.mean_unembed[:, None]  # (d_model, n)
    bias = np.zeros(len(logits.tokens))
    if weights.b_U is not None:
        bias = weights.b_U[logits.tokens] - float(np.mean(weights.b_U))
    directions, constants = [], []
    for column, own in zip(columns.T, bias, strict=True):
        direction, beside = unembed.direction(position, column)
        directions.append(direction)
        constants.append(float(beside) + float(own))
    place = np.full(len(columns.T), position)
    readers = Readers(made.depth, place, np.array(directions), np.array(constants))
    dense = final_logits(weights, made.config, made.run, made.row, position)
    values: Array = dense[logits.tokens] - dense.mean()
    return readers, values


def _read_rounding(made: Replacement, readers: Readers, values: Array) -> Array:
    """Bound the rounding of reading the stream: twice, as the unit does and as the graph does."""
    stream = made.sizes[readers.boundary][0][readers.positions]  # (n, d_model)
    steps = gamma(4 * stream.shape[1] + 48)
    size = (abs(readers.directions) * stream).sum(axis=1) + abs(readers.constants) + abs(values)
    out: Array = 2 * steps * size
    return out


def _logit_rounding(
    made: Replacement, unembed: Unembed, logits: Logits, readers: Readers, position: int
) -> Array:
    last = made.run.residual[-1][made.row, position]
    rows, before = unembed.size(position, last)
    weights = made.weights
    size = rows @ abs(weights.unembed(logits.tokens)) + float(rows @ weights.mean_unembed_size)
    size = size + abs(readers.constants)
    steps = len(rows) + weights.unembedding.count + before + 4
    out: Array = 2 * gamma(steps) * np.asarray(size)
    return out
