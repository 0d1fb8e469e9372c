"""A forward pass that can keep keys and values, and take a part's place.

It knows only causal models of sequential blocks: what it gives is compared with the package's own
dense pass (`check_form`), and a model that it does not follow is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pathexpand.errors import ModelError
from pathexpand.model.activation import gate
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import forward, logits, masked_softmax, project
from pathexpand.model.norm import normed
from pathexpand.model.parts import Array, Block, Mlp, Norm

Tokens = NDArray[np.int64]
Replace = Callable[[Array], Array]

LONGEST = 512  # positions: what only longer texts would show (a window) is out of reach


@dataclass(eq=False)
class Kept:
    """The keys and values of what was read before: a list over layers, (batch, kv_head, p, d)."""

    keys: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)

    @property
    def length(self) -> int:
        """The number of positions read before."""
        return self.keys[0].shape[2] if self.keys else 0

    def with_more(self, layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Append a layer's keys and values, and give all."""
        if layer == len(self.keys):
            self.keys.append(keys)
            self.values.append(values)
        else:
            self.keys[layer] = np.concatenate([self.keys[layer], keys], axis=2)
            self.values[layer] = np.concatenate([self.values[layer], values], axis=2)
        return self.keys[layer], self.values[layer]


def last_stream(
    checkpoint: Checkpoint,
    tokens: Tokens,
    *,
    kept: Kept | None = None,
    streams: Mapping[int, Replace] | None = None,
    mlps: Mapping[int, Replace] | None = None,
    dtype: type[np.floating] = np.float32,
) -> Array:
    """Give the stream after the last layer: (batch, position) to (batch, position, d_model).

    `streams` replace the stream before a layer by a function of it; `mlps` replace a layer's MLP
    by another function of what it reads. With `kept`, tokens follow those that were read before.
    """
    weights, config = checkpoint.weights, checkpoint.config
    kept = Kept() if kept is None else kept
    streams, mlps = streams or {}, mlps or {}
    places = np.broadcast_to(kept.length + np.arange(tokens.shape[1]), tokens.shape)
    stream = weights.embedded(tokens).astype(dtype)  # (batch, position, d_model)
    shift = None
    if config.positional_embedding_type in ("standard", "shortformer"):
        shift = weights.positions(places).astype(dtype)  # (batch, position, d_model)
        if config.positional_embedding_type == "standard":
            stream, shift = stream + shift, None
    for layer in range(config.n_layers):
        block = weights.block(layer, dtype)
        if layer in streams:
            stream = streams[layer](stream)
        reads = through(block.ln1, stream)
        stream = stream + attended(checkpoint, block, layer, reads, shift, places, kept)
        if block.mlp is not None:
            reads = through(block.ln2, stream)
            stream = stream + (mlps[layer](reads) if layer in mlps else written(block.mlp, reads))
    return stream


def attended(
    checkpoint: Checkpoint,
    block: Block,
    layer: int,
    reads: Array,
    shift: Array | None,
    places: Tokens,
    kept: Kept,
) -> Array:
    """Give what a layer's heads write, (batch, position, d_model), and keep keys and values."""
    attn, rotary = block.attn, checkpoint.config.rotary[layer]
    placed = reads if shift is None else reads + shift
    queries = project(placed, attn.W_Q, attn.b_Q)  # (batch, head, query, d_head)
    keys = project(placed, attn.W_K, attn.b_K)  # (batch, kv_head, query, d_head)
    values = project(reads, attn.W_V, attn.b_V)
    if rotary is not None:
        queries, keys = rotary.turn(queries, places), rotary.turn(keys, places)
    keys, values = kept.with_more(layer, keys, values)  # (batch, kv_head, key, d_head)
    batch, heads, size, d_head = queries.shape
    grouped = queries.reshape(batch, keys.shape[1], -1, d_head)  # (batch, kv_head, group·q, d_head)
    scores = (grouped @ np.swapaxes(keys, -1, -2)).reshape(batch, heads, size, -1)  # (…, q, key)
    scores /= scores.dtype.type(checkpoint.config.attn_scale[layer])
    seen = np.tri(size, keys.shape[2], places[0, 0], dtype=bool)  # (query, key)
    pattern = masked_softmax(scores, seen).reshape(batch, keys.shape[1], -1, keys.shape[2])
    mixed = (pattern @ values).reshape(batch, heads, size, d_head)  # (batch, head, query, d_head)
    flat = np.swapaxes(mixed, 1, 2).reshape(batch, size, -1)  # (batch, query, head * d_head)
    out: Array = flat @ attn.W_O.reshape(-1, attn.W_O.shape[-1])  # (batch, query, d_model)
    return out if attn.b_O is None else out + attn.b_O


def through(norm: Norm | None, stream: Array) -> Array:
    """Give a stream behind a norm, if there is one."""
    return stream if norm is None else normed(norm, stream)[0]


def written(mlp: Mlp, reads: Array) -> Array:
    """Give what an MLP writes, (batch, position, d_model)."""
    hidden = plus(reads @ mlp.W_in, mlp.b_in)  # (batch, position, d_mlp)
    opened = hidden if mlp.W_gate is None else plus(reads @ mlp.W_gate, mlp.b_gate)
    acted = gate(mlp.act, opened) * opened  # (batch, position, d_mlp)
    return plus((acted if mlp.W_gate is None else acted * hidden) @ mlp.W_out, mlp.b_out)


def plus(array: Array, bias: Array | None) -> Array:
    """Add a bias, if there is one."""
    return array if bias is None else array + bias


def losses(checkpoint: Checkpoint, stream: Array, tokens: Tokens) -> Array:
    """Give the loss in nats on each token but the first: (batch, position - 1)."""
    scores = logits(checkpoint.weights, stream[:, :-1])  # (batch, position - 1, d_vocab)
    scores = scores - scores.max(axis=-1, keepdims=True)
    normal = np.log(np.exp(scores).sum(axis=-1))  # (batch, position - 1)
    chosen: Array = np.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
    out: Array = normal - chosen
    return out


def check_form(checkpoint: Checkpoint) -> None:
    """Refuse a model that this pass does not follow, by running it; raises `ModelError`."""
    length = min(checkpoint.config.n_ctx, LONGEST)
    tokens = np.arange(length)[None] % checkpoint.config.d_vocab  # (1, position)
    dense = forward(checkpoint.weights, checkpoint.config, tokens, np.ones_like(tokens, dtype=bool))
    gap = np.abs(last_stream(checkpoint, tokens, dtype=np.float64) - dense.residual[-1]).max()
    if not gap <= 1e-9 * math.sqrt(checkpoint.config.d_model) * np.abs(dense.residual[-1]).max():
        raise ModelError(
            "model",
            wanted="causal, of sequential blocks, norms before them at most",
            got="another form",
            remedy="features are trained for the form of GPT-2 and Llama",
        )


def sample(
    checkpoint: Checkpoint, *, start: int, rows: int, length: int, seed: int | Sequence[int]
) -> Tokens:
    """Draw text from the model itself, at temperature 1: (row, 1 + length), from token `start`.

    Nothing is forbidden: a start token that the model draws ends one text and begins the next.
    Raises `ModelError`.
    """
    longest = min(checkpoint.config.n_ctx, LONGEST)
    if not 0 < length < longest:
        raise ModelError("length", wanted=f"1 to {longest - 1}", got=str(length))
    generator, kept = np.random.default_rng(seed), Kept()
    tokens = np.full((rows, 1 + length), start)  # (row, 1 + length)
    for place in range(length):
        stream = last_stream(checkpoint, tokens[:, place : place + 1], kept=kept)
        scores = logits(checkpoint.weights, stream[:, 0])  # (row, d_vocab)
        # The largest of scores with Gumbel noise is a draw from their softmax.
        noise = generator.gumbel(size=scores.shape)
        tokens[:, place + 1] = (scores + noise).argmax(axis=-1)
    return tokens
