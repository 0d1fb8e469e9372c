"""Bounds on what float64 rounding can do, derived from sizes, the machine's unit and magnitudes.

For frozen patterns the model is linear, so a rounding error made at one place reaches the result
only through the functional that reads that place: error = Σ ⟨functional, local error⟩. Each local
error is at most gamma(n) times the same expression with every number replaced by its size
(Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Sizes are floored at `TINY`,
since below it a number is rounded to a fixed grid and no longer to so many digits. Functionals and
streams are the computed ones; what that leaves out is of second order in the unit, and the whole
is doubled for it. (Second-order terms could only show where a stream and the functional that reads
it both cancel to the last digit at the same place: then the bound is itself at rounding level.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.model.weights import Attention, Weights

Array = npt.NDArray[Any]
UNIT = float(np.finfo(np.float64).eps) / 2
UNIT32 = float(np.finfo(np.float32).eps) / 2
TINY = 2.0**-1021  # UNIT * TINY is the smallest float: the error of one underflow


def gamma(steps: int, unit: float = UNIT) -> float:
    """Give γ_n = n u / (1 - n u), the relative error of n roundings one after another.

    >>> gamma(1) == 2.0**-53 / (1 - 2.0**-53)
    True
    """
    return steps * unit / (1 - steps * unit)


def stream_rounding(
    weights: Weights, patterns: Sequence[Array], streams: Sequence[Array], reads: Sequence[Array]
) -> float:
    """Bound the rounding of the dense pass as the functionals see it.

    `patterns[l]` (head, query, key); `streams[l]` and `reads[l]` (position, d_model), the stream
    before layer l and the functional that reads it.
    """
    total = gamma(1) * float(((abs(streams[0]) + TINY) * abs(reads[0])).sum())
    for index, block in enumerate(weights.blocks):
        local = _layer_size(block.attn, patterns[index], abs(streams[index]))
        heads, d_model, d_head = block.attn.W_V.shape
        # v and its bias, the mix over keys, W_O over all heads at once, bias and residual.
        steps = d_model + 1 + patterns[index].shape[-1] + heads * d_head + 2
        total += gamma(steps) * float((local * abs(reads[index + 1])).sum())
    return total


def constants_rounding(
    weights: Weights, patterns: Sequence[Array], reads: Sequence[Array]
) -> float:
    """Bound the rounding of the bias sources as the functionals see it."""
    total = 0.0
    for index, block in enumerate(weights.blocks):
        attn = block.attn
        if attn.b_V is None:
            continue
        size = np.zeros_like(reads[index + 1])
        for pattern, bias, out in zip(patterns[index], attn.b_V, attn.W_O, strict=True):
            size = size + np.outer(abs(pattern).sum(axis=1), abs(bias) @ abs(out) + TINY) + TINY
        size = size if attn.b_O is None else size + abs(attn.b_O)
        steps = patterns[index].shape[-1] + attn.b_V.shape[-1] + len(attn.b_V) + 2
        total += gamma(steps) * float((size * abs(reads[index + 1])).sum())
    return total


def _layer_size(attn: Attention, patterns: Array, stream: Array) -> Array:
    total = stream if attn.b_O is None else stream + abs(attn.b_O)
    for index, pattern in enumerate(patterns):
        values = stream @ abs(attn.W_V[index]) + TINY  # (position, d_head)
        if attn.b_V is not None:
            values = values + abs(attn.b_V[index])
        mixed = abs(pattern) @ values + TINY  # (position, d_head)
        total = total + mixed @ abs(attn.W_O[index]) + TINY  # (position, d_model)
    return total
