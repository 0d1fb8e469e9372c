"""Law 7 for attention: each pattern is the softmax of scores that are worked out one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.laws.passing import pattern_rounding
from pathexpand.laws.result import Deviation, LawResult, judged
from pathexpand.laws.rounded import normed
from pathexpand.model.rotary import Rotary
from pathexpand.model.weights import HeadNorm, Norm

Array = npt.NDArray[Any]


def check_patterns(run: Run) -> LawResult:
    """Check that each pattern row sums to 1, and that it is a softmax over the keys that are seen.

    A key is seen if it is real, not ahead of the query in a causal model, and within the layer's
    window; where none is, the row is 0. A row with a sink may sum to less. Scores are worked out
    anew, head by head, from the run's own stream.

    >>> from pathexpand import api
    >>> check_patterns(api.load("two-layer").run("to be")).holds
    True
    """
    deviations = []
    for layer, pattern in enumerate(run.patterns):
        seen, positions = seen_keys(run, layer), len(run.tokens)
        hidden = abs(pattern * ~seen).sum() + np.minimum(pattern, 0).sum()
        deviations.append(Deviation(abs(hidden), 0.0, f"layer {layer}, hidden keys"))
        sums = pattern.sum(axis=2) - seen.any(axis=1)
        if run.model.weights.outline(layer).attn.sinks is not None:
            sums = np.maximum(sums, 0)  # the rest of a row is the sink's
        bound = 2 * gamma(2 * positions + 2)
        deviations.append(Deviation(abs(sums).max(initial=0.0), bound, f"layer {layer}, row sums"))
        errors = abs(pattern - attention_rows(run, layer))
        bounds = 2 * pattern_rounding(run, layer) + TINY
        at = np.unravel_index(int(np.argmax(errors / bounds)), errors.shape)
        subject = "layer {}, head {}, query {}, key {}".format(layer, *map(int, at))
        deviations.append(Deviation(errors[at], bounds[at], subject))
    return judged("attention rows", deviations, f"{len(run.patterns)} layers")


def seen_keys(run: Run, layer: int) -> npt.NDArray[np.bool_]:
    """Say which keys each query of a layer sees: (query, key).

    >>> from pathexpand import api
    >>> seen_keys(api.load("two-layer").run("to be"), 0).sum(axis=1).tolist()
    [1, 2, 3]
    """
    mask, places, config = run.dense.mask[0], run.dense.places[0], run.model.config
    seen = np.tile(mask, (mask.size, 1))
    if config.attention_dir == "causal":
        seen &= np.tri(mask.size, dtype=bool)
    window = config.window[layer]
    return seen if window is None else seen & (abs(places[:, None] - places) < window)


def attention_rows(run: Run, layer: int) -> Array:
    """Work out the pattern of a layer by itself, head by head: (head, query, key).

    >>> from pathexpand import api
    >>> attention_rows(api.load("two-layer").run("to be"), 0).shape
    (4, 3, 3)
    """
    config, places = run.model.config, run.dense.places[0]
    attn = run.model.weights.block(layer).attn
    reads, rotary = _reads(run, layer), config.rotary[layer]
    queries = _vectors(reads, attn.W_Q, attn.b_Q, attn.q_norm, rotary, places)
    keys = _vectors(reads, attn.W_K, attn.b_K, attn.k_norm, rotary, places)
    seen, group = seen_keys(run, layer), len(attn.W_Q) // len(attn.W_K)
    out = np.zeros((len(queries), *seen.shape))
    for head, query in enumerate(queries):
        scores = np.einsum("qe,ke->qk", query, keys[head // group]) / config.attn_scale[layer]
        if config.attn_scores_soft_cap is not None:
            cap = config.attn_scores_soft_cap
            scores = cap * np.tanh(scores / cap)
        if config.alibi:
            scores = scores - config.alibi[head] * np.maximum(places[:, None] - places, 0)
        sink = -np.inf if attn.sinks is None else float(attn.sinks[head])
        for row in np.flatnonzero(seen.any(axis=1)):
            some = scores[row, seen[row]]
            top = max(float(some.max()), sink)
            weights = np.exp(some - top)
            out[head, row, seen[row]] = weights / (weights.sum() + np.exp(sink - top))
    return out


def _reads(run: Run, layer: int) -> Array:
    """Give what queries and keys are made of: (position, d_model)."""
    weights, stream = run.model.weights, run.dense.residual[layer][0]
    norm = weights.block(layer).ln1
    reads = stream if norm is None else normed(norm, stream, stream * 0).values
    if run.model.config.positional_embedding_type == "shortformer" and weights.pos is not None:
        reads = reads + weights.positions(run.dense.places[0])
    return reads


def _vectors(
    reads: Array,
    weight: Array,
    bias: Array | None,
    norm: HeadNorm | None,
    rotary: Rotary | None,
    places: npt.NDArray[np.int64],
) -> Array:
    """Give queries or keys: (head, position, d_head)."""
    out = np.stack([np.einsum("pd,de->pe", reads, each) for each in weight])
    out = out if bias is None else out + bias[:, None]
    if norm is not None:
        out = _heads_normed(norm, out)
    return out if rotary is None else _turned(rotary, out, places)


def _heads_normed(norm: HeadNorm, vectors: Array) -> Array:
    """Norm vectors (head, position, d_head), each or all heads' together."""
    bare = Norm(norm.kind, None, None, norm.eps)
    if norm.across:
        joined = np.concatenate(list(vectors), axis=1)  # (position, head * d_head)
        rows = normed(bare, joined, joined * 0).values
        out = np.stack(np.split(rows, len(vectors), axis=1))
    else:
        out = np.stack([normed(bare, each, each * 0).values for each in vectors])
    out = out if norm.weight is None else out * norm.weight[:, None]
    return out if norm.bias is None else out + norm.bias[:, None]


def _turned(rotary: Rotary, vectors: Array, places: npt.NDArray[np.int64]) -> Array:
    """Turn each pair of numbers, as a complex number, by its angle at each position."""
    frequencies = np.array(rotary.turning(int(places.max()) + 1))
    turn = rotary.attention_factor * np.exp(1j * places[:, None] * frequencies)
    half, out = rotary.width // 2, vectors.copy()
    adjacent = rotary.pairs == "adjacent"
    first = slice(0, rotary.width, 2) if adjacent else slice(0, half)
    second = slice(1, rotary.width, 2) if adjacent else slice(half, rotary.width)
    pairs = (vectors[..., first] + 1j * vectors[..., second]) * turn
    out[..., first], out[..., second] = pairs.real, pairs.imag
    return out
