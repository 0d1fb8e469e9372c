"""Law 7: each layer adds to the stream what its heads and biases write, one head at a time.

A wrongly fused or transposed weight keeps its shape; only these sums see it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.laws.result import Deviation, LawResult, judged
from pathexpand.model.forward import logits

Array = npt.NDArray[Any]


def check_layer_sums(run: Run) -> LawResult:
    """Check that residual[l+1] - residual[l] is the sum of the heads' outputs and the biases.

    Heads are worked out one by one. The first stream must be the embeddings, and
    the logits what the unembedding makes of the last.

    >>> from pathexpand import api
    >>> check_layer_sums(api.load("two-layer").run("to be")).holds
    True
    """
    weights, streams = run.model.weights, [stream[0] for stream in run.dense.residual]
    positions, d_model = streams[0].shape
    deviations = [_start(run, streams[0])]
    for layer, block in enumerate(weights.blocks):
        attn, before = block.attn, streams[layer]
        written, sizes = np.zeros_like(before), abs(before) + abs(streams[layer + 1])
        for head, pattern in enumerate(run.patterns[layer]):
            added, size = _head_output(before, pattern, attn, head)
            written, sizes = written + added, sizes + size
        if attn.b_O is not None:
            written, sizes = written + attn.b_O, sizes + abs(attn.b_O)
        heads, _, d_head = attn.W_V.shape
        steps = d_model + positions + heads * (d_head + 1) + 6
        errors = abs(streams[layer + 1] - before - written)
        deviations.append(_worst(errors, 2 * gamma(steps) * (sizes + TINY), f"layer {layer}"))
    every = logits(weights, streams[-1])
    singly = np.array([streams[-1] @ column for column in weights.W_U.T]).T
    sizes = abs(streams[-1]) @ abs(weights.W_U) + TINY
    if weights.b_U is not None:
        singly, sizes = singly + weights.b_U, sizes + abs(weights.b_U)
    deviations.append(_worst(abs(every - singly), 2 * gamma(d_model + 1) * sizes, "logits"))
    return judged("layer sums", deviations, f"{len(weights.blocks)} layers, {positions} positions")


def check_patterns(run: Run) -> LawResult:
    """Check that each pattern row is 0 or more and sums to 1, or is 0 where no key can be seen.

    >>> from pathexpand import api
    >>> check_patterns(api.load("two-layer").run("to be")).holds
    True
    """
    mask = run.dense.mask[0]
    seen = np.tile(mask, (mask.size, 1))  # (query, key)
    if run.model.config.attention_dir == "causal":
        seen &= np.tri(mask.size, dtype=bool)
    deviations = []
    for layer, pattern in enumerate(run.patterns):
        hidden = abs(pattern * ~seen).sum() + np.minimum(pattern, 0).sum()
        deviations.append(Deviation(abs(hidden), 0.0, f"layer {layer}, hidden keys"))
        sums = abs(pattern.sum(axis=2) - seen.any(axis=1))
        bound = 2 * gamma(2 * mask.size + 2)
        deviations.append(Deviation(sums.max(initial=0.0), bound, f"layer {layer}, row sums"))
    return judged("attention rows", deviations, f"{len(run.patterns)} layers")


def _start(run: Run, stream: Array) -> Deviation:
    weights, config = run.model.weights, run.model.config
    wanted = np.array([weights.W_E[token] for token in run.tokens])
    sizes = abs(wanted)
    if config.positional_embedding_type == "standard" and weights.W_pos is not None:
        place = -1
        for position, real in enumerate(run.dense.mask[0]):
            place += bool(real)
            wanted[position] = wanted[position] + weights.W_pos[max(place, 0)]
            sizes[position] = sizes[position] + abs(weights.W_pos[max(place, 0)])
    return _worst(abs(stream - wanted), 2 * gamma(1) * (sizes + TINY), "embeddings")


def _head_output(before: Array, pattern: Array, attn: Any, head: int) -> tuple[Array, Array]:
    """Give what one head writes, (position, d_model), and its size."""
    values = before @ attn.W_V[head]  # (position, d_head)
    sizes = abs(before) @ abs(attn.W_V[head]) + TINY
    if attn.b_V is not None:
        values, sizes = values + attn.b_V[head], sizes + abs(attn.b_V[head])
    size = (abs(pattern) @ sizes + TINY) @ abs(attn.W_O[head])
    return (pattern @ values) @ attn.W_O[head], size


def _worst(errors: Array, bounds: Array, subject: str) -> Deviation:
    at = np.unravel_index(int(np.argmax(errors / bounds)), errors.shape)
    return Deviation(errors[at], bounds[at], f"{subject} at {tuple(map(int, at))}")
