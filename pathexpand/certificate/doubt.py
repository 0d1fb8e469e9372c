"""How far what is held fixed may lie from what the search held fixed, on another machine.

Bounds on what rounding can do where a pattern, a scale or a gate is worked out. What it did to the
stream before is of the same kind, but not pushed through the layers in the worst case, where the
bound would say nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.block import FixedBlock
from pathexpand.certificate.lengths import lengths
from pathexpand.engine.rounding import gamma
from pathexpand.model.config import Config
from pathexpand.model.weights import HeadNorm

Array = npt.NDArray[Any]
_STEEPEST = 1.2  # no activation that is not a step, and no gate of one, is steeper


def attention_doubt(
    fixed: FixedBlock, config: Config, layer: int, stream: Array, shift: Array | None
) -> float:
    """Bound it for a layer's patterns and the norms around them, in proportion.

    `stream` (position, d_model) is what the layer reads, `shift` what its queries and keys read
    besides. A softmax turns a change of at most δ in its scores into a factor of at most exp(2δ).
    Scores that overflow leave an infinite doubt.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scores = _scores_off(fixed, config, layer, stream, shift)
        found = float(np.expm1(2 * scores)) + 2 * gamma(len(stream) + 4)
        found += _norms_doubt(fixed, "1", stream)
    return found if found >= 0 else math.inf


def mlp_doubt(fixed: FixedBlock, stream: Array) -> float:
    """Bound it for a layer's gates, as a part of 1 + |gate|, and the norms around them."""
    mlp, gates = fixed.block.mlp, fixed.gates
    assert mlp is not None and gates is not None  # asked only where there is one
    opens, bias = (mlp.W_in, mlp.b_in) if mlp.W_gate is None else (mlp.W_gate, mlp.b_gate)
    norm = fixed.norms.get("ln2")
    sizes = abs(stream) if norm is None else norm.size(abs(stream))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        off = sizes @ abs(opens)  # (position, neuron)
        off = gamma(2 * len(opens) + 16) * (off if bias is None else off + abs(bias))
        found = _STEEPEST * float((off / (1 + abs(gates))).max(initial=0.0)) + gamma(32)
        if mlp.act == "relu" and mlp.W_gate is None:  # its gate is a step
            reads = stream if norm is None else norm.applied(stream)
            inner = reads @ opens if bias is None else reads @ opens + bias
            found += float(((abs(inner) <= off) & (off > 0)).any())
        found += _norms_doubt(fixed, "2", stream)
    return found if found >= 0 else math.inf


def _norms_doubt(fixed: FixedBlock, which: str, stream: Array) -> float:
    """Bound it for the scales of the norms around attention or the MLP, all together."""
    found = 0.0
    for name, norm in fixed.norms.items():
        if name.startswith(f"ln{which}"):
            # What a norm behind reads is not kept; it is as large as what its scale undoes.
            known = stream if name == f"ln{which}" else None
            found += norm.scale_doubt(known, stream.shape[1])
    return found


def _scores_off(
    fixed: FixedBlock, config: Config, layer: int, stream: Array, shift: Array | None
) -> float:
    attn, norm = fixed.block.attn, fixed.norms.get("ln1")
    reads = stream if norm is None else norm.applied(stream)
    sizes = abs(stream) if norm is None else norm.size(abs(stream))
    if shift is not None:
        reads, sizes = reads + shift, sizes + abs(shift)
    queries = _sizes(reads, sizes, attn.W_Q, attn.b_Q, attn.q_norm)  # (head, position, d_head)
    keys = _sizes(reads, sizes, attn.W_K, attn.b_K, attn.k_norm)
    most = float((lengths(queries).max(axis=1) * lengths(keys).max(axis=1)[attn.kv_of]).max())
    rotary = config.rotary[layer]
    turned = 1.0 if rotary is None else rotary.attention_factor**2
    slopes = max(map(abs, config.alibi), default=0.0) * len(stream)
    steps = 2 * config.d_model + 3 * config.d_head + 32
    return 2 * gamma(steps) * (2 * turned * most / config.attn_scale[layer] + slopes)


def _sizes(
    reads: Array, sizes: Array, weight: Array, bias: Array | None, norm: HeadNorm | None
) -> Array:
    """Bound what is met on the way to queries or keys (head, position, d_head)."""
    out: Array = sizes @ abs(weight)
    out = out if bias is None else out + abs(bias)[:, None]
    if norm is None:
        return out
    axes = (0, 2) if norm.across else (2,)
    true = reads @ weight if bias is None else reads @ weight + bias[:, None]
    if norm.kind == "layer":
        true = true - true.mean(axis=axes, keepdims=True)
        out = out + out.mean(axis=axes, keepdims=True)
    out = out / np.sqrt((true**2).mean(axis=axes, keepdims=True) + norm.eps)
    out = out if norm.weight is None else out * abs(norm.weight)[:, None]
    return out if norm.bias is None else out + abs(norm.bias)[:, None]
