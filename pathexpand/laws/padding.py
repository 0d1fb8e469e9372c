"""Law 9: padding and batches change nothing at the real tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.laws.reference import Reference, cut, cut_to, references
from pathexpand.laws.result import Deviation, LawResult, judged
from pathexpand.model.forward import attention_scores
from pathexpand.model.weights import Attention
from pathexpand.target import Target, TargetLike

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class RunRounding:
    """How far rounding can take a run from exact arithmetic, patterns included.

    `patterns[l]` (head, query, key) and `streams[l]` (position, d_model) bound each entry's error.
    """

    patterns: tuple[Array, ...]
    streams: tuple[Array, ...]


def run_rounding(run: Run) -> RunRounding:
    """Carry a bound on rounding through the whole pass, softmax included.

    Scores off by at most t move a softmax entry by at most the factor e^(2t): each weight is off
    by e^t and their sum by e^t. Everything else is linear and adds gamma(n) of its size. Bounds
    grow with depth; for a deep model they can be too wide to say much, and are still bounds.

    >>> from pathexpand.laws import random_model
    >>> float(run_rounding(random_model(seed=1).run([3, 1, 4])).patterns[1].max()) < 1e-9
    True
    """
    weights, config = run.model.weights, run.model.config
    streams = [stream[0] for stream in run.dense.residual]
    bounds, moved = [gamma(1) * abs(streams[0]) + TINY], []
    for layer, block in enumerate(weights.blocks):
        reads, wide = streams[layer], bounds[-1]
        if config.positional_embedding_type == "shortformer" and weights.W_pos is not None:
            reads = reads + weights.W_pos[run.dense.places[0]]
            wide = wide + gamma(1) * abs(reads)
        scores = _score_rounding(block.attn, reads, wide) / config.attn_scale[layer]
        pattern = run.patterns[layer]
        sizes = abs(attention_scores(block.attn, reads[None])[0]) / config.attn_scale[layer]
        # Dividing by the scale, taking off the largest, and the exponential itself.
        off = np.where(pattern > 0, scores + gamma(8) * (sizes + 1), 0.0).max(axis=2)
        factor = np.expm1(2 * np.minimum(off, 1e2)) + gamma(2 * pattern.shape[2] + 8)
        # However far the scores are off, an entry stays between 0 and 1.
        moved.append(np.minimum(pattern * factor[:, :, None] + TINY, 1.0))  # (head, query, key)
        bounds.append(wide_layer(block.attn, streams[layer], pattern, bounds[-1], moved[-1]))
    return RunRounding(tuple(moved), tuple(bounds))


def wide_layer(attn: Attention, stream: Array, pattern: Array, wide: Array, moved: Array) -> Array:
    """Bound a layer's output given bounds on its input stream and its pattern: (position, d_model).

    >>> zero, one = np.zeros((1, 1)), np.ones((1, 1))
    >>> attn = Attention(one[None], one[None], one[None], one[None])
    >>> bool(wide_layer(attn, one, one[None], zero, zero[None])[0, 0] < 1e-14)
    True
    """
    out = wide + gamma(len(pattern) * attn.W_V.shape[2] + 2) * abs(stream)
    if attn.b_O is not None:
        out = out + gamma(2) * abs(attn.b_O)
    steps = stream.shape[1] + len(stream) + len(pattern) * attn.W_V.shape[2] + 4
    for head, (w_v, w_o) in enumerate(zip(attn.W_V, attn.W_O, strict=True)):
        sizes = abs(stream) @ abs(w_v) + TINY  # (position, d_head)
        if attn.b_V is not None:
            sizes = sizes + abs(attn.b_V[head])
        mixed = moved[head] @ sizes + pattern[head] @ (wide @ abs(w_v))
        mixed = mixed + gamma(steps) * (pattern[head] @ sizes) + TINY
        out = out + mixed @ abs(w_o) + TINY
    return np.asarray(out)


def check_padding(
    run: Run, target: TargetLike | Target | None = None, *, position: int | None = None
) -> LawResult:
    """Check that padding on the left, on the right or on both sides changes nothing.

    Compared with the unpadded prompt are patterns, streams, the dense value and every path's
    value (of a cut model where there are too many paths).

    >>> from pathexpand import api
    >>> check_padding(api.load("two-layer").run("to be")).holds
    True
    """
    model, mask = run.model, run.dense.mask[0]
    ids = [int(token) for token in run.tokens[mask]]
    alone = model.run(ids)
    place = int(mask[: run.position(position)].sum())
    what = run.target(target, position=position)
    others = []
    for left, right in ((2, 0), (0, 3), (1, 2)):
        padded = [ids[-1]] * left + ids + [ids[0]] * right
        real = [0] * left + [1] * len(ids) + [0] * right
        others.append((f"{left} left, {right} right", model.run(padded, mask=real), left))
    return _same("padding", alone, place, what, others)


def check_batch(
    run: Run, target: TargetLike | Target | None = None, *, position: int | None = None
) -> LawResult:
    """Check that a prompt in a batch, with longer or shorter company, is as if run alone.

    >>> from pathexpand import api
    >>> check_batch(api.load("two-layer").run("to be")).holds
    True
    """
    model, mask = run.model, run.dense.mask[0]
    ids = [int(token) for token in run.tokens[mask]]
    alone = model.run(ids)
    place = int(mask[: run.position(position)].sum())
    what = run.target(target, position=position)
    longer = (ids[::-1] * 2)[: model.config.n_ctx]
    shorter = ids[: max(len(ids) // 2, 1)]
    others = [
        ("after a longer one", model.runs([longer, ids])[1], 0),
        ("before a shorter one", model.runs([ids, shorter])[0], 0),
    ]
    return _same("batch", alone, place, what, others)


def _same(
    name: str, alone: Run, place: int, what: Target, others: list[tuple[str, Run, int]]
) -> LawResult:
    """Compare runs of the same tokens, each shifted by so many positions, with the first."""
    rounding, small = run_rounding(alone), cut(alone)
    patterns = [
        pattern[: small.heads] + 2 * wide[: small.heads]
        for pattern, wide in zip(alone.patterns, rounding.patterns, strict=True)
    ][: small.layers]
    readout = what.readout(alone.model.weights, place)
    paths = [
        (most, own)
        for most, own in zip(
            references(small.run, readout, patterns=patterns),
            references(small.run, readout),
            strict=True,
        )
    ]
    deviations: list[Deviation] = []
    for subject, other, shift in others:
        real = slice(shift, shift + len(alone.tokens))
        deviations += _streams(alone, other, real, rounding, subject)
        cut_other = cut_to(other, small.layers, small.heads)
        deviations += _paths(small.run, cut_other, what, place, shift, paths, subject)
    return judged(name, deviations, f"{len(others)} ways, {small.detail}")


def _streams(
    alone: Run, other: Run, real: slice, rounding: RunRounding, subject: str
) -> Iterator[Deviation]:
    for layer, pattern in enumerate(alone.patterns):
        error = abs(other.patterns[layer][:, real, real] - pattern)
        yield _worst(error, 2 * rounding.patterns[layer], f"pattern of layer {layer}, {subject}")
        outside = other.patterns[layer][:, real].sum() - other.patterns[layer][:, real, real].sum()
        bound = gamma(other.patterns[layer].size) * max(pattern.sum(), TINY)
        yield Deviation(abs(outside), bound, f"attention to padding, {subject}")
    for layer, stream in enumerate(alone.dense.residual):
        error = abs(other.dense.residual[layer][0, real] - stream[0])
        yield _worst(error, 2 * rounding.streams[layer], f"stream {layer}, {subject}")


def _paths(
    alone: Run,
    other: Run,
    what: Target,
    place: int,
    shift: int,
    paths: list[tuple[Reference, Reference]],
    subject: str,
) -> Iterator[Deviation]:
    for most, own in paths:
        one = alone.value_by_token(own.path, target=what, position=place)
        padded = other.value_by_token(own.path, target=what, position=place + shift)
        error = abs(padded[shift : shift + len(one)] - one)
        bound = most.sizes - own.sizes + 2 * gamma(own.steps + len(one)) * most.sizes + TINY
        yield _worst(error, bound, f"{own.path}, {subject}")
        elsewhere = abs(padded).sum() - abs(padded[shift : shift + len(one)]).sum()
        rounding = gamma(len(padded)) * abs(padded).sum()
        yield Deviation(abs(elsewhere), rounding, f"{own.path} at padding, {subject}")


def _score_rounding(attn: Attention, reads: Array, wide: Array) -> Array:
    """Bound the error of the unscaled scores, (head, query, key), given one on what is read."""
    sides = []
    for weight, bias in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K)):
        values = reads @ weight  # (head, position, d_head)
        sizes = abs(reads) @ abs(weight) + TINY
        if bias is not None:
            values, sizes = values + bias[:, None], sizes + abs(bias)[:, None]
        sides.append((abs(values), wide @ abs(weight) + gamma(reads.shape[1] + 1) * sizes))
    (query, query_off), (key, key_off) = sides
    key, key_off = np.swapaxes(key, 1, 2), np.swapaxes(key_off, 1, 2)
    product = gamma(query.shape[2]) * (query @ key + TINY)
    out: Array = query_off @ key + query @ key_off + query_off @ key_off + product
    return out


def _worst(errors: Array, bounds: Array, subject: str) -> Deviation:
    bounds = bounds + TINY
    at = np.unravel_index(int(np.argmax(errors / bounds)), errors.shape)
    return Deviation(errors[at], bounds[at], f"{subject} at {tuple(map(int, at))}")
