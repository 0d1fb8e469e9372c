"""What a run holds fixed, and the plain linear pass through a model with it.

Nothing here calls the path engine or the dense pass: heads are worked out one by one, norms and
biases are applied where they stand, and nothing is folded. `Sides` does the same arithmetic with
all numbers replaced by their sizes: whatever the order of its operations, an evaluation with at
most n roundings one after another is off by at most gamma(n) times that (Higham, Accuracy and
Stability of Numerical Algorithms, 3.1), plus what underflow can do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Model, Run
from pathexpand.engine.rounding import TINY
from pathexpand.model.forward import Forward, LayerTrace
from pathexpand.model.weights import Block, Norm, Transform, Weights

Array = npt.NDArray[Any]
NORMS = ("ln1", "ln1_post", "ln1_after", "ln2", "ln2_post", "ln2_after")


@dataclass(frozen=True, slots=True, eq=False)
class HeldLayer:
    """What one layer holds fixed.

    Shapes: `pattern` (head, query, key), `scales` (position,) by the name of the norm, `gates`
    (position, neuron), `written` (position, d_model): what the MLP added, where it is a source.
    """

    pattern: Array
    scales: Mapping[str, Array] = field(default_factory=dict)
    gates: Array | None = None
    written: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What a run holds fixed, or sizes that bound it.

    Shapes: `embed_scales`, `final_scale` and `transform_scale` (position,), `transform_gates`
    (position, d_model); None for what the model does not have.
    """

    layers: tuple[HeldLayer, ...]
    embed_scales: tuple[Array, ...] = ()
    final_scale: Array | None = None
    transform_gates: Array | None = None
    transform_scale: Array | None = None


def held_of(run: Run) -> Held:
    """Read what a run's dense pass found.

    >>> from pathexpand import api
    >>> len(held_of(api.load("two-layer").run("to be")).layers)
    2
    """
    dense = run.dense

    def row(array: Array | None) -> Array | None:
        return None if array is None else array[0]

    layers = []
    for trace in dense.layers:
        scales = {name: row(getattr(trace, f"scale{name[2:]}")) for name in NORMS}
        known = {name: scale for name, scale in scales.items() if scale is not None}
        layers.append(HeldLayer(trace.pattern[0], known, row(trace.gates), row(trace.mlp_out)))
    return Held(
        tuple(layers),
        tuple(scale[0] for scale in dense.embed_scales),
        row(dense.final_scale),
        row(dense.transform_gates),
        row(dense.transform_scale),
    )


def changed(value: Any, change: Callable[[Array], Array]) -> Any:
    """Apply a function to every array in a tree of dataclasses, tuples and mappings.

    >>> changed(HeldLayer(-np.ones((1, 1, 1))), abs).pattern.tolist()
    [[[1.0]]]
    """
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, tuple):
        return tuple(changed(each, change) for each in value)
    if isinstance(value, dict):
        return {name: changed(each, change) for name, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        return replace(value, **{name: changed(part, change) for name, part in parts.items()})
    return value


def joined(one: Any, other: Any, join: Callable[[Array, Array], Array]) -> Any:
    """Apply a function to each pair of arrays in two trees that are alike.

    >>> one = HeldLayer(np.ones((1, 1, 1)))
    >>> joined(one, one, lambda a, b: a + b).pattern.tolist()
    [[[2.0]]]
    """
    if isinstance(one, np.ndarray):
        return join(one, other)
    if isinstance(one, tuple):
        return tuple(joined(a, b, join) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return {name: joined(each, other[name], join) for name, each in one.items()}
    if is_dataclass(one) and not isinstance(one, type):
        parts = {
            each.name: (getattr(one, each.name), getattr(other, each.name)) for each in fields(one)
        }
        return replace(one, **{name: joined(*pair, join) for name, pair in parts.items()})
    return one


@dataclass(frozen=True, slots=True, eq=False)
class LayerSums:
    """One layer's arithmetic, each array (position, …): what is read, made and added.

    `attended` and `mixed` are what attention and the MLP make, before the norm behind them;
    `hidden` is what goes into the MLP's gates; `middle` is the stream between the two.
    """

    attended: Array
    attn_out: Array
    added: Array
    middle: Array
    out: Array
    hidden: Array | None = None
    opened: Array | None = None
    mixed: Array | None = None
    mlp_out: Array | None = None
    streamed: Array | None = None


@dataclass(frozen=True, eq=False)
class Side:
    """One way to do the arithmetic: with the numbers as they are, or with their sizes.

    With `sizes`, weights and what is held are taken as absolute values, a mean is added instead
    of taken off, and products are floored where they could underflow.
    """

    model: Model
    held: Held
    sizes: bool = False
    _blocks: dict[int, Block] = field(default_factory=dict, repr=False)

    @property
    def weights(self) -> Weights:
        """The model's weights, as they are."""
        return self.model.weights

    @cached_property
    def tiny(self) -> float:
        """What is added to a product of sizes: 0 for exact numbers, and where nothing is sized."""
        return TINY if self.sizes and not self.weights.exact else 0

    def of(self, array: Any) -> Any:
        """Give an array as this side sees it."""
        if array is None or not self.sizes:
            return array
        return abs(array)

    def block(self, layer: int) -> Block:
        """Give a layer as this side sees it."""
        if not self.sizes:
            return self.weights.block(layer)
        if layer not in self._blocks:
            block = self.weights.block(layer)
            if self.model.mlp == "source":
                block = replace(block, mlp=None)
            self._blocks[layer] = replace(changed(block, abs), scale=abs(block.scale))
        return self._blocks[layer]

    def matrix(self, norm: Norm | None, rows: Array) -> Array:
        """Send vectors (…, d_model) through a norm's matrix, its scale and constant left out."""
        if norm is None:
            return rows
        if norm.kind == "layer":
            mean = rows.sum(axis=-1, keepdims=True) / rows.shape[-1]
            rows = rows + mean if self.sizes else rows - mean
        return rows if norm.weight is None else rows * self.of(norm.weight) + self.tiny

    def normed(self, norm: Norm | None, scale: Array | None, rows: Array) -> Array:
        """Send a stream (position, d_model) through a whole norm."""
        if norm is None or scale is None:
            return rows
        out = self.matrix(norm, rows) * scale[:, None] + self.tiny
        return out if norm.bias is None else out + self.of(norm.bias)

    def head(self, block: Block, pattern: Array, reads: Array, index: int) -> Array:
        """Give what one head writes, its value bias included: (position, d_model)."""
        attn = block.attn
        shared = index // (len(attn.W_Q) // len(attn.W_V))
        values = reads @ attn.W_V[shared] + self.tiny  # (position, d_head)
        values = values if attn.b_V is None else values + attn.b_V[shared]
        out: Array = (pattern[index] @ values + self.tiny) @ attn.W_O[index] + self.tiny
        return out

    def layer(self, number: int, stream: Array) -> LayerSums:
        """Take a stream (position, d_model) through a layer."""
        block, held = self.block(number), self.held.layers[number]
        scales = held.scales
        reads = self.normed(block.ln1, scales.get("ln1"), stream)
        attended = stream * 0
        for index in range(len(held.pattern)):
            attended = attended + self.head(block, held.pattern, reads, index)
        attended = attended if block.attn.b_O is None else attended + block.attn.b_O
        attn_out = self.normed(block.ln1_post, scales.get("ln1_post"), attended)
        attn_out = times(attn_out, block.scale)
        added = stream + attn_out
        middle = self.normed(block.ln1_after, scales.get("ln1_after"), added)
        found = LayerSums(attended, attn_out, added, middle, middle)
        if self.weights.outline(number).mlp is not None:
            found = self._mlp(number, found, stream if block.parallel else middle)
        out = self.normed(block.ln2_after, scales.get("ln2_after"), found.out)
        return replace(found, out=out, streamed=found.out)

    def _mlp(self, number: int, found: LayerSums, before: Array) -> LayerSums:
        block, held = self.block(number), self.held.layers[number]
        if self.model.mlp == "source":  # what it wrote is held as it is
            return replace(found, out=found.middle + held.written, mlp_out=held.written)
        mlp = block.mlp
        assert mlp is not None and held.gates is not None  # asked only where there is one
        reads = self.normed(block.ln2, held.scales.get("ln2"), before)
        hidden = reads @ mlp.W_in + self.tiny  # (position, neuron)
        hidden = hidden if mlp.b_in is None else hidden + mlp.b_in
        opened = None
        if mlp.W_gate is not None:
            opened = reads @ mlp.W_gate + self.tiny
            opened = opened if mlp.b_gate is None else opened + mlp.b_gate
        mixed = (hidden * held.gates) @ mlp.W_out + self.tiny  # (position, d_model)
        mixed = mixed if mlp.b_out is None else mixed + mlp.b_out
        mlp_out = self.normed(block.ln2_post, held.scales.get("ln2_post"), mixed)
        mlp_out = times(mlp_out, block.scale)
        return replace(
            found,
            out=found.middle + mlp_out,
            hidden=hidden,
            opened=opened,
            mixed=mixed,
            mlp_out=mlp_out,
        )

    def born(self, dense: Forward) -> dict[str, Array]:
        """Give what the embedding adds up, by its label, before any norm: (position, d_model)."""
        weights, config, row = self.weights, self.model.config, 0
        found = {"embed": self.of(weights.embedded(dense.tokens[row]))}
        if config.positional_embedding_type == "standard" and weights.pos is not None:
            found["pos"] = self.of(weights.positions(dense.places[row]))
        if weights.types is not None:
            types = dense.tokens[row] * 0 if dense.types is None else dense.types[row]
            found["type"] = self.of(weights.types.at(types))
        return found

    def embedded(self, dense: Forward) -> dict[str, Array]:
        """Give what is born before the first layer, by its label: (position, d_model) each."""
        found = self.born(dense)
        for norm, scale in zip(self.weights.embed_norms, self.held.embed_scales, strict=True):
            found = {
                label: self.matrix(norm, rows) * scale[:, None] + self.tiny
                for label, rows in found.items()
            }
            if norm.bias is not None:
                added = found["embed"] * 0 + self.of(norm.bias)
                found["embedbias"] = found.get("embedbias", 0) + added
        return found

    def read(self, rows: Array, position: int, *, constants: bool) -> Array:
        """Send parts of the last stream (…, d_model) to what the unembedding reads."""
        weights, held = self.weights, self.held
        if weights.final_norm is not None and held.final_scale is not None:
            rows = self._read_through(
                weights.final_norm, held.final_scale, rows, position, constants
            )
        head: Transform | None = weights.transform
        if head is None or held.transform_gates is None:
            return rows
        rows = rows @ self.of(head.W) + self.tiny
        rows = rows + self.of(head.b) if constants and head.b is not None else rows
        rows = rows * held.transform_gates[position] + self.tiny
        if head.norm is not None and held.transform_scale is not None:
            rows = self._read_through(head.norm, held.transform_scale, rows, position, constants)
        return rows

    def _read_through(
        self, norm: Norm, scale: Array, rows: Array, position: int, constants: bool
    ) -> Array:
        rows = self.matrix(norm, rows) * scale[position] + self.tiny
        return rows + self.of(norm.bias) if constants and norm.bias is not None else rows


def held_run(
    model: Model,
    tokens: npt.NDArray[np.int64],
    mask: npt.NDArray[np.bool_],
    held: Held,
    *,
    types: npt.NDArray[np.int64] | None = None,
) -> Run:
    """Run a model linearly on token ids (position,), with what is held given: any kind of numbers.

    >>> from pathexpand import api
    >>> run = api.load("two-layer").run("to be")
    >>> again = held_run(run.model, run.tokens, run.dense.mask[0], held_of(run))
    >>> bool(np.allclose(again.dense.residual[-1], run.dense.residual[-1]))
    True
    """
    side, ids, real = Side(model, held), tokens[None], mask[None]
    places = np.maximum(np.cumsum(real, axis=1) - 1, 0)
    dense = Forward(ids, real, places, (), (), None if types is None else types[None])
    stream: Any = 0
    for part in side.embedded(dense).values():
        stream = stream + part
    streams, layers = [stream], []
    for number in range(len(model.weights.blocks)):
        found = side.layer(number, stream)
        stream = found.out
        streams.append(stream)
        layers.append(_trace(model, number, held.layers[number], found))
    whole = replace(
        dense,
        layers=tuple(layers),
        residual=tuple(stream[None] for stream in streams),
        embed_scales=tuple(scale[None] for scale in held.embed_scales),
        final_scale=_row(held.final_scale),
        transform_gates=_row(held.transform_gates),
        transform_scale=_row(held.transform_scale),
    )
    return Run(model, whole)


def _trace(model: Model, number: int, held: HeldLayer, found: LayerSums) -> LayerTrace:
    block = model.weights.outline(number)
    scales = {f"scale{name[2:]}": scale[None] for name, scale in held.scales.items()}
    return LayerTrace(
        pattern=held.pattern[None],
        attn_out=found.attn_out[None],
        gates=_row(held.gates),
        mlp_out=_row(found.mlp_out),
        middle=None if block.parallel or block.mlp is None else found.middle[None],
        **scales,
    )


def times(rows: Array, scale: float) -> Array:
    """Multiply, but keep exact numbers exact where a block has no scale of its own.

    >>> times(np.array([2.0]), 0.5)
    array([1.])
    """
    return rows if scale == 1 else rows * scale


def _row(array: Array | None) -> Array | None:
    return None if array is None else array[None]
