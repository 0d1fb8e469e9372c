"""What a layer's attention compares, as the dense pass works it out: scores and frozen scales."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pathexpand.model.config import Config
from pathexpand.model.forward import Forward, attention_scores, project
from pathexpand.model.norm import inverse_root, normed
from pathexpand.model.parts import Array, HeadNorm
from pathexpand.model.weights import Weights


@dataclass(frozen=True, slots=True, eq=False)
class LayerScores:
    """The attention scores of one layer on one prompt, before a soft cap and the mask.

    `scores` (head, query, key) are query-key products divided by the model's scale; `alibi`
    (head, query, key), or None, is added to them. `q_scale` (head, position) and `k_scale`
    (kv_head, position) are what norms of queries and keys multiplied by, None without such norms.
    """

    scores: Array
    alibi: Array | None
    q_scale: Array | None
    k_scale: Array | None


def layer_scores(
    weights: Weights, config: Config, run: Forward, layer: int, *, row: int = 0
) -> LayerScores:
    """Work out the scores of one layer from the stream that a run left before it."""
    attn = weights.blocks[layer].attn
    one = slice(row, row + 1)
    reads, norm, places = run.residual[layer][one], weights.blocks[layer].ln1, run.places[one]
    if norm is not None:
        reads, _ = normed(norm, reads)
    if config.positional_embedding_type == "shortformer" and weights.pos is not None:
        reads = reads + weights.positions(places)
    scores = attention_scores(attn, reads, config.rotary[layer], places)[0]
    alibi = None
    if config.alibi:
        ahead = np.minimum(places[0][None, :] - places[0][:, None], 0)  # (query, key)
        alibi = np.array(config.alibi)[:, None, None] * ahead
    return LayerScores(
        scores / config.attn_scale[layer],
        alibi,
        _scale(attn.q_norm, project(reads, attn.W_Q, attn.b_Q)),
        _scale(attn.k_norm, project(reads, attn.W_K, attn.b_K)),
    )


def _scale(norm: HeadNorm | None, vectors: Array) -> Array | None:
    """Give what a norm of queries or keys (batch, head, position, d_head) multiplies by."""
    if norm is None:
        return None
    axes = (1, 3) if norm.across else (3,)
    if norm.kind == "layer":
        vectors = vectors - vectors.mean(axis=axes, keepdims=True)
    square = np.square(vectors).mean(axis=axes)  # (batch, head, position) or (batch, position)
    scale = inverse_root(square, norm.eps)
    heads = vectors.shape[1]
    each = scale[:, None] if norm.across else scale
    out: Array = np.broadcast_to(each, (1, heads, scale.shape[-1]))[0]
    return out
