"""The dense forward pass. It shares no arithmetic with the path engine: each checks the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import PromptError
from pathexpand.model.activation import gate
from pathexpand.model.config import Config
from pathexpand.model.norm import normed, normed_heads
from pathexpand.model.parts import Array, Attention, Block, HeadNorm, Mlp, Norm
from pathexpand.model.rotary import Rotary
from pathexpand.model.shown import shown
from pathexpand.model.weights import Weights

Tokens = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Edit = Callable[[int, str, Array], Array]
"""Gives what stands in place of an array: asked with the layer and the name of the place."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerTrace:
    """What one layer did: everything in it that is not linear, and what it wrote.

    Shapes: `pattern` (batch, head, query, key); `scale1` and `scale2` (batch, position), by which
    the norms before attention and the MLP multiplied, and so for those after (`_post` of what is
    written, `_after` of the stream); `gates` (batch, position, d_mlp): act(z) / z, or in a gated
    MLP act(g); `attn_out` and `mlp_out` (batch, position, d_model), what was really added to the
    stream; `middle`, the stream between the two. What a layer does not have is None; `middle` is,
    too, where the MLP does not read it.
    """

    pattern: Array
    attn_out: Array
    scale1: Array | None = None
    scale2: Array | None = None
    scale1_post: Array | None = None
    scale2_post: Array | None = None
    scale1_after: Array | None = None
    scale2_after: Array | None = None
    gates: Array | None = None
    mlp_out: Array | None = None
    middle: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """What one dense forward pass leaves behind.

    Shapes: `tokens`, `mask`, `places` and `types` (batch, position), the third counting real
    tokens from 0, the last None in a model without token types; `residual[l]`
    (batch, position, d_model), the stream before layer l and, last, after all; `embed_scales`,
    `final_scale` and `transform_scale` (batch, position), by which the norms after the embedding,
    after the last layer and in the head multiplied; `transform_gates` (batch, position, d_model).
    """

    tokens: Tokens
    mask: Mask
    places: Tokens
    layers: tuple[LayerTrace, ...]
    residual: tuple[Array, ...]
    types: Tokens | None = None
    embed_scales: tuple[Array, ...] = ()
    final_scale: Array | None = None
    transform_gates: Array | None = None
    transform_scale: Array | None = None

    @property
    def patterns(self) -> tuple[Array, ...]:
        """The attention pattern of each layer: (batch, head, query, key)."""
        return tuple(layer.pattern for layer in self.layers)

    def position(self, given: int, name: str = "position", *, row: int = 0) -> int:
        """Give a position of a row as counted from 0, from the end if it is negative.

        `name` is what the error calls it. Raises `PromptError` for what is no real token.
        """
        mask = self.mask[row]
        if isinstance(given, bool) or not isinstance(given, int | np.integer):
            raise PromptError(name, wanted="a whole number", got=shown(given))
        if not -mask.size <= given < mask.size:
            wanted = f"{-mask.size} to {mask.size - 1} for this prompt"
            raise PromptError(f"{name} {given}", wanted=wanted)
        place: int = int(given) % int(mask.size)
        if not mask[place]:
            raise PromptError(f"{name} {given}", wanted="a real token", got="padding")
        return place


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What the unembedding reads, and how the last norm and the head's transform got there.

    Shapes: `stream` (..., d_model), `final_scale` and `transform_scale` (...), `transform_gates`
    (..., d_model); None for what the model does not have.
    """

    stream: Array
    final_scale: Array | None = None
    transform_gates: Array | None = None
    transform_scale: Array | None = None


def forward(
    weights: Weights,
    config: Config,
    tokens: Tokens,
    mask: Mask,
    *,
    patterns: Sequence[Array] | None = None,
    types: Tokens | None = None,
    dtype: npt.DTypeLike = np.float64,
    watch: Callable[[int, Block, LayerTrace, Array, Array], None] | None = None,
    legs: Callable[[int, Block, Array, Array | None], tuple[Array, Array]] | None = None,
    edit: Edit | None = None,
) -> Forward:
    """Run the model on a batch, in float64 or, faster, in float32.

    `tokens` (batch, position); `mask` (batch, position) is true at real tokens: no query sees
    the others, and positions are counted over real tokens alone, so padding changes nothing.
    `types` (batch, position) are token types, 0 if not given. With `patterns` given, attention
    uses them in place of its own; exact number types then work throughout. `watch` is told of each
    layer as it is passed: its number, its weights, its trace, the stream before and behind it.
    `legs` is asked before each layer's pattern for what queries and what keys read in place of
    what values read, of which it is told, with the scale of the norm (batch, position) if any.
    `edit` may put something else in place of a layer's arrays, all that comes behind following: of
    the stream (batch, position, d_model) at "resid_pre", "resid_mid" and "resid_post"; of what the
    MLP writes, at "mlp_raw" and, as it is added to the stream, "mlp_out"; and of what each head
    mixes, "heads" (batch, head, position, d_head), before W_O.
    """
    places = np.maximum(np.cumsum(mask, axis=1) - 1, 0)  # (batch, position)
    if weights.types is not None and types is None:
        types = np.zeros_like(tokens)
    stream, embed_scales = _embedded(weights, config, tokens, places, types, dtype)
    shift = None
    if config.positional_embedding_type == "shortformer" and weights.pos is not None:
        shift = _cast(weights.positions(places), dtype)
    seen = _visible(config, mask)  # (batch, 1, query, key)
    residual, layers = [stream], []
    for layer in range(len(weights.blocks)):
        block = weights.block(layer, dtype)
        if edit is not None:
            stream = residual[-1] = edit(layer, "resid_pre", stream)

        def attend(
            reads: Array, scale: Array | None, layer: int = layer, block: Block = block
        ) -> Array:
            if patterns is not None:
                return patterns[layer]
            if legs is None:
                shifted = reads if shift is None else reads + shift
                return _pattern(block.attn, config, layer, shifted, places, seen)
            queries, keys = legs(layer, block, reads, scale)
            if shift is not None:
                queries, keys = queries + shift, keys + shift
            return _pattern(block.attn, config, layer, queries, places, seen, keys)

        at = None if edit is None else partial(edit, layer)
        trace, stream = _layer(block, stream, attend, at)
        if watch is not None:
            watch(layer, block, trace, residual[-1], stream)
        layers.append(trace)
        residual.append(stream)
    last = read_stream(weights, stream)
    return Forward(
        tokens,
        mask,
        places,
        tuple(layers),
        tuple(residual),
        types if weights.types is not None else None,
        embed_scales,
        last.final_scale,
        last.transform_gates,
        last.transform_scale,
    )


def read_stream(weights: Weights, stream: Array) -> Reading:
    """Take last streams (..., d_model) through the final norm and the head's transform."""
    final_scale = transform_scale = gates = None
    if weights.final_norm is not None:
        stream, final_scale = normed(weights.final_norm, stream)
    head = weights.transform
    if head is not None:
        stream = stream @ _cast(head.W, stream.dtype)
        if head.b is not None:
            stream = stream + _cast(head.b, stream.dtype)
        gates = gate(head.act, stream)  # (..., d_model)
        stream = stream * gates
        if head.norm is not None:
            stream, transform_scale = normed(head.norm, stream)
    return Reading(stream, final_scale, gates, transform_scale)


def logits(weights: Weights, stream: Array) -> Array:
    """Give the logits of last streams, before a soft cap: (..., d_model) to (..., d_vocab_out)."""
    return weights.logits(read_stream(weights, stream).stream)


def final_logits(
    weights: Weights,
    config: Config,
    run: Forward,
    row: int | slice = slice(None),
    position: int | slice = slice(None),
) -> Array:
    """Give a run's logits before the soft cap, of all positions or some: (..., d_vocab_out)."""
    return logits(weights, run.residual[-1][row, position])


def capped(config: Config, logits: Array) -> Array:
    """Apply the model's soft cap to logits, if it has one.

    >>> sizes = dict(n_layers=0, n_heads=1, d_model=1, d_head=1, d_vocab=1, n_ctx=1)
    >>> capped(Config(**sizes, output_logits_soft_cap=30.0), np.array([30.0])).round(4)
    array([22.8478])
    """
    cap = config.output_logits_soft_cap
    return logits if cap is None else _soft_cap(logits.copy(), cap)


def attention_scores(
    attn: Attention,
    reads: Array,
    rotary: Rotary | None = None,
    places: Tokens | None = None,
    *,
    keys_read: Array | None = None,
) -> Array:
    """Give query-key products before scaling: (batch, position, d_model) to (batch, head, q, k).

    With rotary positions, queries and keys are turned by their `places` (batch, position). Keys
    read `keys_read`, if that is given, in place of `reads`.
    """
    queries = project(reads, attn.W_Q, attn.b_Q)  # (batch, head, position, d_head)
    read = reads if keys_read is None else keys_read
    keys = project(read, attn.W_K, attn.b_K)  # (batch, kv_head, position, d_head)
    queries, keys = _normed(attn.q_norm, queries), _normed(attn.k_norm, keys)
    if rotary is not None and places is not None:
        queries, keys = rotary.turn(queries, places), rotary.turn(keys, places)
    batch, heads, size, d_head = queries.shape
    grouped = queries.reshape(batch, keys.shape[1], -1, d_head)  # (batch, kv_head, group·q, d_head)
    out = grouped @ np.swapaxes(keys, -1, -2)  # (batch, kv_head, group·q, k)
    return out.reshape(batch, heads, size, -1)  # (batch, head, query, key)


def masked_softmax(scores: Array, visible: Mask, sinks: Array | None = None) -> Array:
    """Take the softmax over visible keys; a query that sees no key gets a row of zeros.

    `sinks` (head,) join each head's softmax and are left out of what is given.

    >>> masked_softmax(np.zeros((2, 2)), np.array([[True, True], [False, False]]))
    array([[0.5, 0.5],
           [0. , 0. ]])
    """
    out = np.where(visible, scores, scores.dtype.type(-np.inf))
    top = np.max(out, axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sinks = sinks[:, None, None].astype(out.dtype, copy=False)
        top = np.maximum(top, sinks)
    top = np.where(np.isfinite(top), top, 0)
    out -= top
    np.exp(out, out=out)
    total = out.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks - top)
    out /= np.where(total == 0, 1, total)
    return out


def _embedded(
    weights: Weights,
    config: Config,
    tokens: Tokens,
    places: Tokens,
    types: Tokens | None,
    dtype: npt.DTypeLike,
) -> tuple[Array, tuple[Array, ...]]:
    """Give the stream before the first layer, and the scales of the norms in front of it."""
    stream = weights.embedded(tokens)  # (batch, position, d_model)
    if config.positional_embedding_type == "standard" and weights.pos is not None:
        stream = stream + weights.positions(places)
    if weights.types is not None and types is not None:
        stream = stream + weights.types.at(types)
    stream, scales = _cast(stream, dtype), []
    for norm in weights.embed_norms:
        stream, scale = normed(norm, stream)
        scales.append(scale)
    return stream, tuple(scales)


def _layer(
    block: Block, stream: Array, attend: Any, edit: Callable[[str, Array], Array] | None = None
) -> tuple[LayerTrace, Array]:
    """Take the stream (batch, position, d_model) through one layer."""
    edit = edit or _as_it_is
    reads, scale1 = _through(block.ln1, stream)
    pattern = attend(reads, scale1)
    attn_out, scale1_post = _through(
        block.ln1_post, _attention_output(block.attn, reads, pattern, edit)
    )
    attn_out = attn_out if block.scale == 1 else attn_out * block.scale
    after, scale1_after = _through(block.ln1_after, stream + attn_out)
    after = edit("resid_mid", after)
    mlp_out = gates = scale2 = scale2_post = None
    out = after
    if block.mlp is not None:
        same = block.parallel and block.ln2 is block.ln1
        reads, scale2 = (
            (reads, scale1) if same else _through(block.ln2, stream if block.parallel else after)
        )
        written, gates = mlp_output(block.mlp, reads)
        mlp_out, scale2_post = _through(block.ln2_post, edit("mlp_raw", written))
        mlp_out = edit("mlp_out", mlp_out if block.scale == 1 else mlp_out * block.scale)
        out = after + mlp_out
    out, scale2_after = _through(block.ln2_after, out)
    out = edit("resid_post", out)
    return LayerTrace(
        pattern=pattern,
        attn_out=attn_out,
        scale1=scale1,
        scale2=scale2,
        scale1_post=scale1_post,
        scale2_post=scale2_post,
        scale1_after=scale1_after,
        scale2_after=scale2_after,
        gates=gates,
        mlp_out=mlp_out,
        middle=None if block.parallel or block.mlp is None else after,
    ), out


def _as_it_is(place: str, array: Array) -> Array:
    return array


def _through(norm: Norm | None, stream: Array) -> tuple[Array, Array | None]:
    return (stream, None) if norm is None else normed(norm, stream)


def _pattern(
    attn: Attention,
    config: Config,
    layer: int,
    reads: Array,
    places: Tokens,
    seen: Mask,
    keys_read: Array | None = None,
) -> Array:
    """Give a layer's attention pattern: (batch, position, d_model) to (batch, head, q, k)."""
    rotary = config.rotary[layer]
    # Without rotary positions, scores are a function of the two alone.
    scores = (
        attention_scores(attn, reads, keys_read=keys_read)
        if rotary is None
        else attention_scores(attn, reads, rotary, places, keys_read=keys_read)
    )
    scores /= scores.dtype.type(config.attn_scale[layer])
    if config.attn_scores_soft_cap is not None:
        scores = _soft_cap(scores, config.attn_scores_soft_cap)
    window = config.window[layer]
    if config.alibi or window is not None:
        ahead = places[:, None, None, :] - places[:, None, :, None]  # (batch, 1, query, key)
        if config.alibi:
            slopes = np.array(config.alibi, dtype=scores.dtype)[:, None, None]  # (head, 1, 1)
            scores += slopes * np.minimum(ahead, 0)
        if window is not None:
            seen = seen & (abs(ahead) < window)
    return masked_softmax(scores, seen, *(() if attn.sinks is None else (attn.sinks,)))


def _soft_cap(values: Array, cap: float) -> Array:
    """Give cap · tanh(values / cap), in place."""
    values /= cap
    np.tanh(values, out=values)
    values *= cap
    return values


def _attention_output(
    attn: Attention, reads: Array, pattern: Array, edit: Callable[[str, Array], Array]
) -> Array:
    values = project(reads, attn.W_V, attn.b_V)  # (batch, kv_head, position, d_head)
    batch, heads, size, keys = pattern.shape
    grouped = pattern.reshape(batch, values.shape[1], -1, keys)  # (batch, kv_head, group·q, k)
    mixed = (grouped @ values).reshape(batch, heads, size, -1)  # (batch, head, query, d_head)
    rows = np.swapaxes(edit("heads", mixed), 1, 2)  # (batch, query, head, d_head)
    flat = rows.reshape(batch, size, -1)  # (batch, query, head * d_head)
    out: Array = flat @ attn.W_O.reshape(-1, attn.W_O.shape[-1])  # (batch, query, d_model)
    return out if attn.b_O is None else out + attn.b_O


def mlp_output(mlp: Mlp, reads: Array) -> tuple[Array, Array]:
    """Give what an MLP writes, (batch, position, d_model), and its gates (…, d_mlp)."""
    hidden = _plus(reads @ mlp.W_in, mlp.b_in)  # (batch, position, d_mlp)
    if mlp.W_gate is None:
        gates = gate(mlp.act, hidden)
    else:
        opened = _plus(reads @ mlp.W_gate, mlp.b_gate)
        gates = gate(mlp.act, opened)
        gates *= opened
    hidden *= gates
    return _plus(hidden @ mlp.W_out, mlp.b_out), gates


def _plus(array: Array, bias: Array | None) -> Array:
    if bias is not None:
        array += bias
    return array


def project(reads: Array, weight: Array, bias: Array | None) -> Array:
    """Give queries, keys or values of streams (batch, position, d_model)."""
    heads, d_model, d_head = weight.shape
    joined = np.swapaxes(weight, 0, 1).reshape(d_model, -1)  # (d_model, head * d_head)
    out = (reads @ joined).reshape(*reads.shape[:2], heads, d_head)
    if bias is not None:
        out = out + bias
    return np.swapaxes(out, 1, 2)  # (batch, head, position, d_head)


def _normed(norm: HeadNorm | None, vectors: Array) -> Array:
    return vectors if norm is None else normed_heads(norm, vectors)


def _visible(config: Config, mask: Mask) -> Mask:
    size = mask.shape[1]
    seen = np.ones((size, size), dtype=bool)
    if config.attention_dir == "causal":
        seen = np.tril(seen)
    return mask[:, None, None, :] & seen  # (batch, 1, query, key)


def _cast(array: Array, dtype: npt.DTypeLike) -> Array:
    """Give floats in a format; exact numbers stay as they are."""
    return array if array.dtype == object else array.astype(dtype, copy=False)
