"""Law 5 for queries and keys: changes of their basis leave every attention score as it is.

W_Q and W_K are read through the scores alone, so equal scores are equal tables. Where queries and
keys are turned by rotary positions, a change of basis commutes with that if it scales each turning
pair alike. Behind a norm of queries or keys it can only scale, and goes into the norm's weight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.laws.gauge import exact_basis
from pathexpand.laws.result import Deviation, LawResult, judged
from pathexpand.laws.rounded import lengths
from pathexpand.model.forward import attention_scores
from pathexpand.model.norm import normed
from pathexpand.model.rotary import Rotary
from pathexpand.model.weights import Attention, HeadNorm

Array = npt.NDArray[Any]


def check_score_gauge(run: Run, *, seed: int = 0) -> LawResult:
    """Check that W_Q → W_Q R, W_K → W_K R⁻ᵀ (and biases) leaves all attention scores as they are.

    R differs from key-value head to key-value head, and layer from layer. Each layer is looked at
    on the run's own stream.

    >>> from pathexpand import api
    >>> check_score_gauge(api.load("two-layer").run("to be")).holds
    True
    """
    config, places, deviations = run.model.config, run.dense.places, []
    for layer in range(len(run.dense.layers)):
        attn, rotary = run.model.weights.block(layer).attn, config.rotary[layer]
        reads = attention_reads(run, layer)
        right, left = _bases(attn, rotary, seed + 1000 * layer)
        turned = _turned(attn, right, left)
        errors = abs(
            attention_scores(turned, reads, rotary, places)
            - attention_scores(attn, reads, rotary, places)
        )
        bounds = 2 * _rounding(attn, right, left, reads, rotary) + TINY
        worst = np.unravel_index(int(np.argmax(errors / bounds)), errors.shape)
        subject = f"layer {layer}, head {worst[1]}, query {worst[2]}, key {worst[3]}"
        deviations.append(Deviation(errors[worst], bounds[worst], subject))
    return judged("score gauge", deviations, f"{len(deviations)} layers")


def attention_reads(run: Run, layer: int) -> Array:
    """Give what queries and keys of a layer are made of: (batch, position, d_model).

    >>> from pathexpand import api
    >>> attention_reads(api.load("two-layer").run("to be"), 0).shape
    (1, 3, 192)
    """
    weights, config = run.model.weights, run.model.config
    norm, reads = weights.outline(layer).ln1, run.dense.residual[layer]
    if norm is not None:
        reads, _ = normed(norm, reads)
    if config.positional_embedding_type == "shortformer" and weights.pos is not None:
        reads = reads + weights.positions(run.dense.places)
    return reads


def _bases(attn: Attention, rotary: Rotary | None, seed: int) -> tuple[Array, Array]:
    """Give R and R⁻ᵀ of each key-value head, (kv_head, d_head, d_head), exact inverses."""
    shared, _, d_head = attn.W_K.shape
    width = 0 if rotary is None else rotary.width
    scaled = attn.q_norm is not None or attn.k_norm is not None
    right, left = (np.zeros((shared, d_head, d_head)) for _ in range(2))
    for head in range(shared):
        # A norm that all heads share can hold one change alone.
        rng = np.random.default_rng(seed if scaled else seed + head)
        each = np.exp2(rng.integers(-2, 3, d_head))
        each[:width] = _by_pair(each[:width], rotary)
        right[head], left[head] = np.diag(each), np.diag(1 / each)
        if not scaled and width < d_head:
            basis = exact_basis(d_head - width, seed=seed + head)
            right[head, width:, width:] = basis.matrix
            left[head, width:, width:] = basis.inverse.T
    return right, left


def _by_pair(numbers: Array, rotary: Rotary | None) -> Array:
    """Make the numbers of each turning pair alike."""
    if rotary is None:
        return numbers
    half = numbers[: len(numbers) // 2]
    return np.repeat(half, 2) if rotary.pairs == "adjacent" else np.tile(half, 2)


def _turned(attn: Attention, right: Array, left: Array) -> Attention:
    """Change the basis of queries by R and of keys by R⁻ᵀ."""
    own = right[np.arange(len(attn.W_Q)) // (len(attn.W_Q) // len(attn.W_K))]  # (head, …)
    parts: dict[str, Any] = {}
    for name, basis, norm in (("Q", own, attn.q_norm), ("K", left, attn.k_norm)):
        weight, bias = getattr(attn, f"W_{name}"), getattr(attn, f"b_{name}")
        if norm is not None:
            parts[f"{name.lower()}_norm"] = _norm_scaled(norm, np.diagonal(basis[0]))
            continue
        parts[f"W_{name}"] = weight @ basis
        parts[f"b_{name}"] = None if bias is None else (bias[:, None] @ basis)[:, 0]
    return replace(attn, **parts)


def _norm_scaled(norm: HeadNorm, factor: Array) -> HeadNorm:
    weight = np.ones((1, len(factor))) if norm.weight is None else norm.weight
    return replace(
        norm, weight=weight * factor, bias=None if norm.bias is None else norm.bias * factor
    )


def _rounding(
    attn: Attention, right: Array, left: Array, reads: Array, rotary: Rotary | None
) -> Array:
    """Bound the rounding of the changed scores: (batch, head, query, key)."""
    heads, d_model, d_head = attn.W_Q.shape
    own = right[np.arange(heads) // (heads // len(attn.W_K))]
    queries = _sizes(attn.W_Q, attn.b_Q, attn.q_norm, abs(own), reads)
    keys = _sizes(attn.W_K, attn.b_K, attn.k_norm, abs(left), reads)
    keys = keys[:, np.arange(heads) // (heads // len(attn.W_K))]  # (batch, head, position, d_head)
    # On each side d_model and a bias, then d_head; and d_head more for the change of basis.
    steps = gamma(2 * (d_model + 2) + 3 * d_head + 2 + (0 if rotary is None else 8))
    if rotary is None:
        return np.asarray(steps * (queries @ np.swapaxes(keys, -1, -2) + TINY))
    # A turn keeps the length of each pair.
    length = lengths(queries)[..., None] * lengths(keys)[..., None, :]
    return np.asarray(steps * rotary.attention_factor**2 * length + TINY)


def _sizes(
    weight: Array, bias: Array | None, norm: HeadNorm | None, basis: Array, reads: Array
) -> Array:
    """Bound the sizes of queries or keys in the other basis: (batch, head, position, d_head)."""
    if norm is None:
        out = abs(reads)[:, None] @ (abs(weight) @ basis) + TINY
        return out if bias is None else out + (abs(bias)[:, None] @ basis)
    heads, _, d_head = weight.shape
    most = np.sqrt(heads * d_head if norm.across else d_head)
    out = most * (np.ones((1, d_head)) if norm.weight is None else abs(norm.weight))
    out = (out if norm.bias is None else out + abs(norm.bias)) * np.diagonal(basis[0])
    shape = (len(reads), heads, reads.shape[1], d_head)
    return np.broadcast_to(out[None, :, None], shape)
