"""Attribution graphs: every feature and logit as a sum over what it reads, constants included.

A row of `weights` is a target, a column a source: what the source brings to the target's
pre-activation (of a feature) or to the logit less the vocabulary mean, by all heads and skips.
Rows sum to the target's value, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from pathexpand.features.paths import EdgePaths

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.intp]
_BLOCK = 2**27  # bytes of readings that are carried back together
_MOST = 12_000  # nodes of a graph whose weights are held whole


@dataclass(frozen=True, slots=True, eq=False)
class Logits:
    """What a graph explains: tokens (n,), with the weight of each, (n,), mostly its probability."""

    tokens: Indices
    weights: Array


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes, and what each brings to each: `weights` (target, source), rows of no target are 0.

    `logit_weights` (node,) says how much each logit counts, 0 elsewhere. `gap` (node,) is how far
    a target's row is off its value, `gap_bound` (node,) how far rounding explains. `remainder`
    (node,) is what a row lost to pruning: row + remainder = value. `made` and `unembed` are the run
    it is of; a graph that was read from a file has none.
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

    def paths(self, source: str | int, target: str | int, *, top: int = 10) -> EdgePaths:
        """Split an edge into the paths of heads (and skips) that carry it, ranked with a proof."""
        from pathexpand.features.paths import edge_paths

        return edge_paths(self, source, target, top=top)

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
        found = [n for n, each in enumerate(self.nodes) if node in (name_of(each), each.label)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(name_of(self.nodes[n]) for n in found[:5])
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
    return node.label if node.position is None else f"{node.label}@{node.position}"


def graph(
    made: Replacement,
    unembed: Unembed,
    logits: Logits,
    *,
    names: Sequence[str],
    logit_names: Sequence[str],
    position: int,
    report: Callable[[int, int], None] | None = None,
) -> Graph:
    """Work out the graph of a run with units in it.

    `position` is where the logits are read. Raises `LimitError` for more nodes than can be held.
    """
    sources = len(made.nodes)
    count = sources + len(logits.tokens) + sum(1 for _ in _own_labels(made)) + 1
    if count > _MOST:
        raise LimitError(
            "graph",
            wanted=f"at most {_MOST:,} nodes",
            got=f"{count:,}",
            remedy="take a shorter prompt, or units with fewer active features",
        )
    nodes = list(made.nodes)
    own = {}
    for layer, label in _own_labels(made):
        own[layer] = len(nodes)
        nodes.append(Node("constant", label, layer))
    end = len(nodes)
    nodes.append(Node("constant", "b_U"))
    weights = np.zeros((count, count))
    gap, bound = np.zeros(count), np.zeros(count)
    rows = _feature_rows(made)
    done, total = 0, sum(len(at) for _, at, _, _ in rows) + len(logits.tokens)
    for layer, at, readers, values in rows:
        for some in _blocks(readers):
            one = readers.some(some)
            weights[at[some], :sources] = made.edges(one)
            weights[at[some], own[layer]] = one.constants
            bound[at[some]] = made.rounding(one) + _read_rounding(made, layer, one, values[some])
            done += len(at[some])
            if report is not None:
                report(done, total)
    readers, values = logit_readers(made, unembed, logits, position)
    at = np.arange(end + 1, count)
    weights[at, :sources], weights[at, end] = made.edges(readers), readers.constants
    bound[at] = made.rounding(readers) + _logit_rounding(made, unembed, logits, readers, position)
    for n, (token, value) in enumerate(zip(logits.tokens, values, strict=True)):
        nodes.append(
            Node("logit", logit_names[n], None, position, token=int(token), value=float(value))
        )
    targets = np.array([node.value if node.kind in ("feature", "logit") else 0.0 for node in nodes])
    gap = np.where(bound > 0, targets.astype(np.float64) - weights.sum(axis=1), 0.0)
    bound = 2 * (bound + gamma(count) * abs(weights).sum(axis=1))
    counts = np.zeros(count)
    counts[at] = logits.weights
    return Graph(
        made.config.model_name,
        tuple(names),
        tuple(nodes),
        weights,
        counts,
        gap,
        bound,
        np.zeros(count),
        made,
        unembed,
    )


def _own_labels(made: Replacement) -> Iterator[tuple[int, str]]:
    """Yield the constants of each unit's encoder."""
    for layer in sorted(made.active):
        yield layer, f"L{layer}b_enc"


def _blocks(readers: Readers) -> Iterator[slice]:
    width = readers.directions.shape[1]
    each = max(1, _BLOCK // (8 * width * (int(readers.positions.max(initial=0)) + 1)))
    for start in range(0, len(readers.positions), each):
        yield slice(start, start + each)


def _feature_rows(made: Replacement) -> list[tuple[int, Indices, Readers, Array]]:
    """Give, for each unit, the rows of its features, what they read, and their values."""
    places = {
        (node.layer, node.position, node.index): n
        for n, node in enumerate(made.nodes)
        if node.kind == "feature"
    }
    found = []
    for layer, active in sorted(made.active.items()):
        unit = made.unit(layer)
        assert unit is not None  # what is active is of a unit
        at = np.array(
            [
                places[layer, int(position), int(feature)]
                for position, feature in zip(active.positions, active.features, strict=True)
            ],
            dtype=np.intp,
        )
        readers = feature_readers(made, unit, active.positions, active.features)
        found.append((layer, at, readers, active.pre))
    return found


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


def _read_rounding(made: Replacement, layer: int, readers: Readers, values: Array) -> Array:
    """Bound the rounding of reading the stream: twice, as the unit does and as the graph does."""
    stream = made.sizes[readers.boundary][0][readers.positions]  # (n, d_model)
    steps = gamma(4 * stream.shape[1] + 48)
    size = (abs(readers.directions) * stream).sum(axis=1) + abs(readers.constants) + abs(values)
    return 2 * steps * size


def _logit_rounding(
    made: Replacement, unembed: Unembed, logits: Logits, readers: Readers, position: int
) -> Array:
    last = made.run.residual[-1][made.row, position]
    rows, before = unembed.size(position, last)
    weights = made.weights
    size = rows @ abs(weights.unembed(logits.tokens)) + float(rows @ weights.mean_unembed_size)
    size = size + abs(readers.constants)
    return 2 * gamma(len(rows) + weights.unembedding.count + before + 4) * np.asarray(size)
