"""The dense forward pass. It shares no arithmetic with the path engine: each checks the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.model.config import Config
from pathexpand.model.weights import Attention, Weights

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """What one dense forward pass leaves behind.

    Shapes: `tokens`, `mask` and `places` (batch, position), the last counting real tokens from 0;
    `patterns[l]` (batch, head, query, key); `residual[l]` (batch, position, d_model), the stream
    before layer l and, last, after all.
    """

    tokens: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    places: npt.NDArray[np.int64]
    patterns: tuple[Array, ...]
    residual: tuple[Array, ...]


def forward(
    weights: Weights,
    config: Config,
    tokens: npt.NDArray[np.int64],
    mask: npt.NDArray[np.bool_],
    *,
    patterns: Sequence[Array] | None = None,
) -> Forward:
    """Run the model on a batch.

    `tokens` (batch, position); `mask` (batch, position) is true at real tokens: no query sees
    the others, and positions are counted over real tokens alone, so padding changes nothing.
    With `patterns` given, attention uses them in place of its own; exact number types then work
    throughout.
    """
    places = np.maximum(np.cumsum(mask, axis=1) - 1, 0)  # (batch, position)
    stream = weights.W_E[tokens]  # (batch, position, d_model)
    if config.positional_embedding_type == "standard" and weights.W_pos is not None:
        stream = stream + weights.W_pos[places]
    visible = _visible(config, mask)  # (batch, 1, query, key)
    residual, used = [stream], []
    for layer, block in enumerate(weights.blocks):
        if patterns is None:
            reads = stream
            if config.positional_embedding_type == "shortformer" and weights.W_pos is not None:
                reads = stream + weights.W_pos[places]
            scores = attention_scores(block.attn, reads) / config.attn_scale[layer]
            pattern = masked_softmax(scores, visible)
        else:
            pattern = patterns[layer]
        stream = stream + _attention_output(block.attn, stream, pattern)
        residual.append(stream)
        used.append(pattern)
    return Forward(tokens, mask, places, tuple(used), tuple(residual))


def logits(weights: Weights, stream: Array) -> Array:
    """Give the logits of final residual vectors: (..., d_model) to (..., d_vocab_out)."""
    out = stream @ weights.W_U
    return out if weights.b_U is None else out + weights.b_U


def attention_scores(attn: Attention, reads: Array) -> Array:
    """Give query-key products before scaling: (batch, position, d_model) to (batch, head, q, k)."""
    queries = _per_head(reads, attn.W_Q, attn.b_Q)  # (batch, head, position, d_head)
    keys = _per_head(reads, attn.W_K, attn.b_K)  # (batch, head, position, d_head)
    out: Array = queries @ np.swapaxes(keys, -1, -2)  # (batch, head, query, key)
    return out


def masked_softmax(scores: Array, visible: npt.NDArray[np.bool_]) -> Array:
    """Take the softmax over visible keys; a query that sees no key gets a row of zeros.

    >>> masked_softmax(np.zeros((2, 2)), np.array([[True, True], [False, False]]))
    array([[0.5, 0.5],
           [0. , 0. ]])
    """
    shown = np.where(visible, scores, -np.inf)
    top = np.max(shown, axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(shown - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    out: Array = weights / np.where(total == 0, 1.0, total)
    return out


def _attention_output(attn: Attention, stream: Array, pattern: Array) -> Array:
    values = _per_head(stream, attn.W_V, attn.b_V)  # (batch, head, position, d_head)
    mixed = pattern @ values  # (batch, head, query, d_head)
    rows = np.swapaxes(mixed, 1, 2)  # (batch, query, head, d_head)
    flat = rows.reshape(*rows.shape[:2], -1)  # (batch, query, head * d_head)
    out: Array = flat @ attn.W_O.reshape(-1, attn.W_O.shape[-1])  # (batch, query, d_model)
    return out if attn.b_O is None else out + attn.b_O


def _per_head(stream: Array, weight: Array, bias: Array | None) -> Array:
    heads, d_model, d_head = weight.shape
    joined = np.swapaxes(weight, 0, 1).reshape(d_model, -1)  # (d_model, head * d_head)
    out = (stream @ joined).reshape(*stream.shape[:2], heads, d_head)
    if bias is not None:
        out = out + bias
    return np.swapaxes(out, 1, 2)  # (batch, head, position, d_head)


def _visible(config: Config, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    size = mask.shape[1]
    seen = np.ones((size, size), dtype=bool)
    if config.attention_dir == "causal":
        seen = np.tril(seen)
    return mask[:, None, None, :] & seen  # (batch, 1, query, key)
