"""A run in which units stand for MLPs or streams: what is born where, and what reads it.

The stream is a sum of vectors, each born at one place: tokens, positions, biases, what active
features write, what a unit misses (its error), and the output of MLPs that no unit stands for.
Patterns, norm scales and the set of active features are held fixed, so that what reads the stream
anywhere (a feature's encoder, a logit, a query) is a sum over them: heads and linear skips are all
that carries one to the other. Nothing is left out, so every sum closes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import TINY, LocalSizes, gamma
from pathexpand.errors import ModelError
from pathexpand.features.encode import Active
from pathexpand.features.unit import Unit, UnitSet
from pathexpand.frozen import FrozenStage, Group, MlpGroup, frozen_layer
from pathexpand.frozen.freeze import embedding_sources
from pathexpand.frozen.norm import back, through
from pathexpand.model.config import Config
from pathexpand.model.forward import Forward, mlp_output
from pathexpand.model.norm import normed
from pathexpand.model.parts import Block, Norm
from pathexpand.model.weights import Weights
from pathexpand.symbolic import Mlp

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.intp]
_STREAMS = ("resid_pre", "resid_mid")  # hooks of transcoders that read in front of the norm
_ON_STREAM = ("resid_pre", "resid_mid", "resid_post")


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """A node of a graph: something that is born in the stream, or reads it.

    `kind` is feature, error, mlp (the output of an MLP that no unit stands for), token, position,
    constant or logit. `layer` and `position` are None where there is none (constants are taken over
    all positions). `index` is the feature's, `token` the token's id. `activation` is what a feature
    writes by, `value` what a target reads: a pre-activation, or a logit less the vocabulary mean.

    >>> node = Node("feature", "L3F17", 3, 4, index=17)
    >>> node, node.name, Node("constant", "L0bias", 0).name
    (Node('L3F17@4', feature), 'L3F17@4', 'L0bias')
    """

    kind: str
    label: str
    layer: int | None = None
    position: int | None = None
    index: int | None = None
    token: int | None = None
    activation: float | None = None
    value: float | None = None

    @property
    def name(self) -> str:
        """What it is and, where it stands at a position, which."""
        return self.label if self.position is None else f"{self.label}@{self.position}"

    def __repr__(self) -> str:
        """Give its name and kind."""
        return f"Node({self.name!r}, {self.kind})"


@dataclass(frozen=True, slots=True, eq=False)
class Born:
    """Vectors (piece, d_model) born at one boundary, at positions (piece,), each of a column."""

    positions: Indices
    columns: Indices
    vectors: Array


@dataclass(frozen=True, slots=True, eq=False)
class Readers:
    """Readings of the stream at a boundary: positions (n,), directions (n, d_model), constants."""

    boundary: int
    positions: Indices
    directions: Array
    constants: Array

    def some(self, which: slice) -> Readers:
        """Give some of them."""
        return Readers(
            self.boundary, self.positions[which], self.directions[which], self.constants[which]
        )


@dataclass(slots=True, eq=False)
class Replacement:
    """One row of a run with units in it.

    `stages[b]` leads from boundary b to b + 1; None cuts the stream: an SAE stands for it there.
    `born[b]` is what is born at a boundary and `sizes[b]` what is met there (position, d_model)
    with the roundings it took; `nodes` says what the columns are; `active[layer]` what a unit is on
    for, `reads_at[layer]` the boundary where it reads, `attends_at[layer]` that where heads read.
    `fit` says in words how well the units stand for what they stand for.
    """

    weights: Weights
    config: Config
    run: Forward
    units: UnitSet
    row: int = 0
    zero_positions: int = 0
    stages: list[FrozenStage | None] = field(default_factory=list)
    born: list[list[Born]] = field(default_factory=lambda: [[]])
    sizes: list[tuple[Array, int]] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    active: dict[int, Active] = field(default_factory=dict)
    reads_at: dict[int, int] = field(default_factory=dict)
    attends_at: dict[int, int] = field(default_factory=dict)
    fit: str = ""

    def __repr__(self) -> str:
        """Name its model and units, and count its columns."""
        size = f"{len(self.nodes):,} columns at {self.positions:,} positions"
        return f"Replacement({self.config.model_name!r} with {self.units!r}: {size})"

    @property
    def depth(self) -> int:
        """The number of stages."""
        return len(self.stages)

    @property
    def positions(self) -> int:
        """The number of positions."""
        return int(self.run.mask.shape[1])

    def unit(self, layer: int) -> Unit | None:
        """Give a layer's unit, if it has one."""
        return self.units.unit(layer) if layer in self.units.layers else None

    def edges(self, readers: Readers) -> Array:
        """Give what each column brings to each reading, by all ways: (n, column)."""
        return self.measured_edges(readers)[0]

    def measured_edges(self, readers: Readers) -> tuple[Array, Array]:
        """Give the edges (n, column), and what bounds the rounding of each reading's sum (n,)."""
        out = np.zeros((len(readers.positions), len(self.nodes)))
        total = np.zeros(len(readers.positions))
        for boundary, reads in self.back(readers):
            for born in self.born[boundary]:
                _add(out, reads, born)
            total += self._lost(boundary, reads)
        return out, total + gamma(16) * abs(readers.constants)

    def _lost(self, boundary: int, reads: Array) -> Array:
        size, steps = self.sizes[boundary]
        out: Array = gamma(steps) * np.einsum("npd,pd->n", abs(reads), size)
        return out

    def rounding(self, readers: Readers) -> Array:
        """Bound the rounding of these sums and of the dense pass behind them: (n,)."""
        total = np.zeros(len(readers.positions))
        for boundary, reads in self.back(readers):
            total += self._lost(boundary, reads)
        out: Array = total + gamma(16) * abs(readers.constants)
        return out

    def back(self, readers: Readers) -> Iterator[tuple[int, Array]]:
        """Carry the readings back: at each boundary, what reads the stream (n, position, d_model).

        It ends at the embedding, or where an SAE stands for all that came before.
        """
        count, width = readers.directions.shape
        reads = np.zeros((count, self.positions, width))
        reads[np.arange(count), readers.positions] = readers.directions
        boundary = readers.boundary
        yield boundary, reads
        while boundary:
            stage = self.stages[boundary - 1]
            if stage is None:
                return
            reads = stage.pull(reads)
            boundary -= 1
            yield boundary, reads


def _add(out: Array, reads: Array, born: Born) -> None:
    """Add the products of readings (n, position, d_model) with pieces to their columns."""
    for position in np.unique(born.positions):
        at = born.positions == position
        # At one position no column is born twice in one piece of work.
        out[:, born.columns[at]] += reads[:, position] @ born.vectors[at].T  # (n, piece)


def replacement(
    weights: Weights,
    config: Config,
    run: Forward,
    units: UnitSet,
    *,
    row: int = 0,
    zero_positions: int = 0,
    fit: str = "",
) -> Replacement:
    """Put units into a run.

    At the first `zero_positions` positions features are left out and MLPs taken whole, but for
    skips: features say nothing at start tokens that they were not trained on. Raises `ModelError`
    for SAEs of what an MLP or attention writes (what they read is no sum over the stream), and for
    transcoders that do not stand for an MLP.
    """
    for unit in units:
        if unit.kind == "sae" and unit.hook_in not in _ON_STREAM:
            wanted = "SAEs on the stream, or transcoders"
            raise ModelError("graph", wanted=wanted, got=f"SAEs on {unit.hook_in}")
        block = weights.outline(unit.layer)
        if unit.hook_in == "resid_mid" and (block.mlp is None or block.parallel):
            got = "resid_mid of a layer without one"
            raise ModelError("graph", wanted="a stream between attention and MLP", got=got)
        inputs = ("mlp_in", "ln2_normalized", "resid_pre" if block.parallel else "resid_mid")
        if unit.kind == "transcoder" and (
            unit.hook_in not in inputs or unit.hook_out not in ("mlp_out", "mlp_raw")
        ):
            wanted = f"transcoders from {', '.join(inputs)} to mlp_out or mlp_raw"
            raise ModelError("graph", wanted=wanted, got=f"{unit.hook_in} to {unit.hook_out}")
    made = Replacement(weights, config, run, units, row, zero_positions, fit=fit)
    _Builder(made).build()
    return made


class _Builder:
    """Goes through the layers, noting what is born and who reads where."""

    def __init__(self, made: Replacement) -> None:
        self.made, self.row = made, made.row
        # What features wrote for layers to come: by target layer.
        self.waiting: dict[int, list[tuple[Indices, Indices, Array]]] = {}

    def build(self) -> None:
        self._embedding()
        for layer in range(len(self.made.weights.blocks)):
            _LayerBuilder(self, layer).build()

    def past(self, stage: FrozenStage | None, size: Array, steps: int) -> None:
        """Go on to the next boundary."""
        self.made.stages.append(stage)
        self.made.born.append([])
        self.made.sizes.append((size, steps))

    def node(self, node: Node) -> int:
        """Note a column."""
        self.made.nodes.append(node)
        return len(self.made.nodes) - 1

    def one(self, label: str, values: Array, layer: int | None = None) -> None:
        """Note an array (position, d_model) that is one constant."""
        if values.any():
            column = self.node(Node("constant", label, layer))
            at = np.arange(len(values))
            self.made.born[-1].append(Born(at, np.full(len(at), column), values))

    def each(self, kind: str, label: str, values: Array, layer: int | None = None) -> None:
        """Note an array (position, d_model) that is a node at each position where it is not 0."""
        places = np.flatnonzero(values.any(axis=1))
        tokens = self.made.run.tokens[self.row]
        columns = [
            self.node(
                Node(kind, label, layer, int(n), token=int(tokens[n]) if kind == "token" else None)
            )
            for n in places
        ]
        self.made.born[-1].append(Born(places, np.array(columns, dtype=np.intp), values[places]))

    def features(self, layer: int, active: Active) -> Indices:
        """Note each active feature."""
        found = zip(active.positions, active.features, active.pre, active.act, strict=True)
        return np.array(
            [
                self.node(
                    Node(
                        "feature",
                        f"L{layer}F{feature}",
                        layer,
                        int(position),
                        index=int(feature),
                        activation=float(act),
                        value=float(pre),
                    )
                )
                for position, feature, pre, act in found
            ],
            dtype=np.intp,
        )

    def _embedding(self) -> None:
        made = self.made
        size = np.zeros_like(made.run.residual[0][self.row])
        for source in embedding_sources(made.weights, made.config, made.run, self.row):
            size = size + abs(source.values)
            kind = {"embed": "token", "pos": "position"}.get(source.label)
            if kind is None:
                self.one(source.label, source.values)
            else:
                self.each(kind, source.label, source.values)
        made.sizes.append((size + TINY, 8 + 4 * size.shape[1] * len(made.weights.embed_norms)))


class _LayerBuilder:
    """One layer: its heads, its unit, and what its MLP adds."""

    def __init__(self, builder: _Builder, layer: int) -> None:
        self.builder, self.made, self.layer = builder, builder.made, layer
        self.row = self.made.row
        self.block: Block = self.made.weights.blocks[layer]
        self.trace = self.made.run.layers[layer]
        unit = self.made.unit(layer)
        self.sae = unit if unit is not None and unit.kind == "sae" else None
        self.coder = unit if unit is not None and unit.kind == "transcoder" else None

    def build(self) -> None:
        """Note all that the layer does."""
        made, block = self.made, self.block
        before, last = made.run.residual[self.layer][self.row], made.run.residual[self.layer + 1]
        passed = frozen_layer(
            self.layer, block, self.trace, last[self.row], row=self.row, mlp="frozen"
        )
        local = LocalSizes(block, self.trace, before, self.row)
        self._stand_in("resid_pre", before)
        if block.parallel:
            self._read()
        made.attends_at[self.layer] = made.depth
        (first, born, middle), *others = passed
        heads = tuple(group for group in first.groups if not isinstance(group, MlpGroup))
        size, steps = local.attention()
        groups = (*heads, *(self._skip() if block.parallel else ()))
        self.builder.past(FrozenStage(groups, first.carry), size, 2 * steps + 8)
        for label, values in born:
            if label == f"L{self.layer}bias":
                self.builder.one(label, values, self.layer)
        if others:
            self._stand_in("resid_mid", middle)
            self._read()
            size, steps = local.mlp()
            self.builder.past(FrozenStage(self._skip(), others[0][0].carry), size, 2 * steps + 8)
        if block.mlp is not None:
            self._written()
        self._stand_in("resid_post", last[self.row])

    # --- streams ------------------------------------------------------------------------------

    def _stand_in(self, hook: str, stream: Array) -> None:
        """Let an SAE stand for the stream: what comes before acts through its features alone."""
        unit, made = self.sae, self.made
        if unit is None or unit.hook_in != hook:
            return
        active = _from(unit.encode(stream), made.zero_positions)
        made.active[self.layer], made.reads_at[self.layer] = active, made.depth
        size, steps = made.sizes[made.depth]
        self.builder.past(None, size + abs(stream), steps + unit.features + unit.d_in + 16)
        columns = self.builder.features(self.layer, active)
        vectors = _decoded(unit, active, self.layer)
        made.born[-1].append(Born(active.positions, columns, vectors))
        # The mean that a unit takes off and gives back is held fixed, as its scale is.
        constant = active.back[:, None] * unit.b_dec + active.shift
        constant[: made.zero_positions] = 0
        rest = stream - _summed(active.positions, vectors, stream) - constant
        self.builder.each("error", f"L{self.layer}E", rest, self.layer)
        self.builder.one(f"L{self.layer}b_dec", constant, self.layer)

    # --- MLPs ---------------------------------------------------------------------------------

    def _stream(self) -> Array:
        """Give what the MLP reads, before its norm: (position, d_model)."""
        middle = self.trace.middle
        before = self.made.run.residual[self.layer]
        stream: Array = (before if self.block.parallel or middle is None else middle)[self.row]
        return stream

    def _behind_norm(self) -> Array:
        stream = self._stream()
        return stream if self.block.ln2 is None else normed(self.block.ln2, stream)[0]

    def _input(self, unit: Unit) -> Array:
        if unit.hook_in in _STREAMS:
            return self._stream()
        norm = reading_norm(unit, self.block)
        return self._stream() if norm is None else normed(norm, self._stream())[0]

    def _read(self) -> None:
        """Let a transcoder read."""
        unit, made = self.coder, self.made
        if unit is None:
            return
        active = _from(unit.encode(self._input(unit)), made.zero_positions)
        made.active[self.layer], made.reads_at[self.layer] = active, made.depth
        columns = self.builder.features(self.layer, active)
        for target in unit.writes:
            vectors = _decoded(unit, active, target)
            waiting = self.builder.waiting.setdefault(target, [])
            waiting.append((active.positions, columns, vectors))

    def _skip(self) -> tuple[Group, ...]:
        """Give a transcoder's linear skip as a component of its own."""
        unit, made = self.coder, self.made
        if unit is None or unit.skip is None:
            return ()
        gates = np.ones((made.positions, unit.skip.shape[1]))
        w_in = unit.skip
        if unit.hook_in not in _STREAMS and self.trace.scale2 is not None:
            gates = gates * self.trace.scale2[self.row][:, None]
            w_in = back(reading_norm(unit, self.block), w_in)
        w_out, scale = self._out(np.eye(unit.skip.shape[1]))
        return (MlpGroup((Mlp(self.layer),), gates * scale[:, None], w_in, w_out),)

    def _is_raw(self) -> bool:
        return self.coder is not None and self.coder.hook_out == "mlp_raw"

    def _out(self, rows: Array) -> tuple[Array, Array]:
        """Give rows (…, d_model) as they reach the stream, and a factor for each position."""
        block, trace, scale = self.block, self.trace, np.ones(self.made.positions)
        if self._is_raw():
            rows = through(block.ln2_post, rows)
            if trace.scale2_post is not None:
                scale = scale * trace.scale2_post[self.row]
            scale = scale * block.scale
        rows = through(block.ln2_after, rows)
        if trace.scale2_after is not None:
            scale = scale * trace.scale2_after[self.row]
        return rows, scale

    def _put(self, positions: Indices, columns: Indices, vectors: Array) -> None:
        """Send vectors into the stream, through the norms behind the MLP."""
        rows, scale = self._out(vectors)
        self.made.born[-1].append(Born(positions, columns, rows * scale[positions][:, None]))

    def _written(self) -> None:
        """Note what is born as the MLP's output: features, error and constants, or all of it."""
        made, unit = self.made, self.coder
        assert self.block.mlp is not None and self.trace.mlp_out is not None  # it has an MLP
        output = self.trace.mlp_out[self.row]
        if self._is_raw():
            output = mlp_output(self.block.mlp, self._behind_norm()[None])[0][0]
        rest = output.copy()
        for positions, columns, vectors in self.builder.waiting.pop(self.layer, []):
            rest -= _summed(positions, vectors, rest)
            self._put(positions, columns, vectors)
        constant = np.zeros_like(rest)
        first = made.positions if unit is None else made.zero_positions
        if unit is not None:
            constant[first:], linear = self._constants(unit, first)
            rest -= constant + linear
        whole = np.where(np.arange(len(rest))[:, None] < first, rest, 0.0)
        for kind, label, values in (
            ("mlp", f"L{self.layer}M", whole),
            ("error", f"L{self.layer}E", rest - whole),
        ):
            places = np.flatnonzero(values.any(axis=1))
            found = [self.builder.node(Node(kind, label, self.layer, int(n))) for n in places]
            self._put(places, np.array(found, dtype=np.intp), values[places])
        if constant.any():
            column = self.builder.node(Node("constant", f"L{self.layer}b_dec", self.layer))
            at = np.arange(len(constant))
            self._put(at, np.full(len(at), column), constant)
        self._norm_biases()

    def _constants(self, unit: Unit, first: int) -> tuple[Array, Array]:
        """Give a transcoder's constant where it stands, and what its skip carries: both arrays."""
        active = self.made.active[self.layer]
        bias = np.outer(active.back, unit.b_dec)[first:]  # (position, d_out)
        linear = np.zeros((self.made.positions, unit.d_out))
        if unit.skip is not None:
            norm = reading_norm(unit, self.block)
            beta = 0 if norm is None or norm.bias is None else norm.bias @ unit.skip
            linear = self._input(unit) @ unit.skip - beta
            bias = bias + beta
        return bias, linear

    def _norm_biases(self) -> None:
        """Note what the norms behind an MLP add."""
        made, block = self.made, self.block
        total = np.zeros((made.positions, made.run.residual[0].shape[2]))
        post, after = block.ln2_post, block.ln2_after
        if self._is_raw() and post is not None and post.bias is not None:
            total += through(after, np.tile(post.bias * block.scale, (made.positions, 1)))
            if self.trace.scale2_after is not None:
                total *= self.trace.scale2_after[self.row][:, None]
        if after is not None and after.bias is not None:
            total += after.bias
        self.builder.one(f"L{self.layer}Mbias", total, self.layer)


def reading_norm(unit: Unit, block: Block) -> Norm | None:
    """Give the norm between the stream and what a unit reads, if there is one."""
    norm = block.ln2
    if norm is None or unit.hook_in not in ("mlp_in", "ln2_normalized"):
        return None
    return norm if unit.hook_in == "mlp_in" else replace(norm, weight=None, bias=None)


def _decoded(unit: Unit, active: Active, target: int) -> Array:
    """Give what each active feature writes: (n, d_out)."""
    factor = active.act * active.back[active.positions]
    vectors: Array = factor[:, None] * unit.decoder(active.features, target)
    return vectors


def _from(active: Active, first: int) -> Active:
    """Leave out what is active before a position."""
    keep = active.positions >= first
    return replace(
        active,
        positions=active.positions[keep],
        features=active.features[keep],
        pre=active.pre[keep],
        act=active.act[keep],
    )


def _summed(positions: Indices, vectors: Array, like: Array) -> Array:
    """Add up vectors (piece, d_model) by position."""
    total = np.zeros_like(like)
    np.add.at(total, positions, vectors)
    return total
