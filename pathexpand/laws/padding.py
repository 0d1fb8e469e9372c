"""Law 9: padding and batches change nothing at the real tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Model, Run
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.laws.cut import cut, cut_to
from pathexpand.laws.held import Held, HeldLayer, changed, held_of, joined
from pathexpand.laws.passing import RunRounding, run_rounding
from pathexpand.laws.reference import Reference, references
from pathexpand.laws.result import Deviation, LawResult, judged
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import forward
from pathexpand.model.weights import Rows
from pathexpand.target import Target, TargetLike

Array = npt.NDArray[Any]


def check_padding(
    run: Run, target: TargetLike | Target | None = None, *, position: int | None = None
) -> LawResult:
    """Check that padding on the left, on the right or on both sides changes nothing.

    Each layer of a padded run must do with its own stream at the real tokens what it does with it
    unpadded. Compared with the unpadded run are streams and all that is held fixed, as far as
    rounding can be bounded from end to end, and every path's value (of a cut model where there are
    too many paths), which may differ by what differs in what is held.

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
    cuts = [cut_to(other, small.sizes) for _, other, _ in others]
    most = changed(held_of(small.run), abs)
    for (_, _, shift), each in zip(others, cuts, strict=True):
        gaps = _gaps(each, small.run, _real(alone, shift))
        most = joined(most, gaps, lambda size, gap: size + gap)
    pairs = list(
        zip(
            references(small.run, what, place, sizes=most),
            references(small.run, what, place),
            strict=True,
        )
    )
    deviations: list[Deviation] = []
    for (subject, other, shift), each in zip(others, cuts, strict=True):
        real = _real(alone, shift)
        deviations += _local(other, real, subject)
        deviations += _streams(alone, other, real, rounding, subject)
        deviations += _paths(small.run, each, what, place, shift, pairs, subject)
    detail = f"{len(others)} ways, {small.detail}"
    if rounding.layers < len(alone.dense.layers):
        detail += f"; streams from end to end through {rounding.layers} layers, else one by one"
    return judged(name, deviations, detail)


def _real(alone: Run, shift: int) -> slice:
    return slice(shift, shift + len(alone.tokens))


def _gaps(other: Run, alone: Run, real: slice) -> Held:
    """Give how far apart two runs are in what they hold fixed at the real tokens."""
    gaps: Held = joined(_at(held_of(other), real), held_of(alone), lambda a, b: abs(a - b))
    return gaps


# --- layer by layer -----------------------------------------------------------------------------


def _local(run: Run, real: slice, subject: str) -> Iterator[Deviation]:
    """Check that each layer does with its stream at the real tokens what it does with it alone."""
    for layer in range(len(run.dense.layers)):
        own = one_layer(run, layer, run.dense.residual[layer][0, real])
        rounding = run_rounding(own, stop=False)
        where = f"layer {layer} by itself, {subject}"
        pattern = run.patterns[layer]
        error = abs(pattern[:, real, real] - own.patterns[0])
        yield _worst(error, 2 * rounding.held.layers[0].pattern, f"pattern of {where}")
        outside = pattern[:, real].sum() - pattern[:, real, real].sum()
        bound = gamma(pattern.size) * max(pattern.sum(), TINY)
        yield Deviation(abs(outside), bound, f"attention to padding, {where}")
        error = abs(run.dense.residual[layer + 1][0, real] - own.dense.residual[1][0])
        yield _worst(error, 2 * rounding.streams[1], f"stream behind {where}")


def one_layer(run: Run, layer: int, stream: Array) -> Run:
    """Run one layer of a model on a stream (position, d_model), unpadded, as a model of its own.

    >>> from pathexpand import api
    >>> run = api.load("two-layer").run("to be")
    >>> one_layer(run, 1, run.dense.residual[1][0]).dense.residual[1].shape
    (1, 3, 192)
    """
    weights, config = run.model.weights, run.model.config
    alone = replace(
        weights,
        embed=Rows("stream", stream),
        blocks=(weights.block(layer),),
        types=None,
        embed_norms=(),
        final_norm=None,
        transform=None,
    )
    shifted = config.positional_embedding_type == "shortformer"
    settings = replace(
        config,
        n_layers=1,
        d_vocab=len(stream),
        positional_embedding_type="shortformer" if shifted else "none",
        attn_scale=config.attn_scale[layer : layer + 1],
        window=config.window[layer : layer + 1],
        rotary=config.rotary[layer : layer + 1],
        embed_scale=1.0,
    )
    tokens = np.arange(len(stream))[None]
    dense = forward(alone, settings, tokens, np.ones(tokens.shape, dtype=bool))
    return Run(Model(Checkpoint(settings, alone), mlp=run.model.mlp), dense)


# --- from end to end ------------------------------------------------------------------------------


def _streams(
    alone: Run, other: Run, real: slice, rounding: RunRounding, subject: str
) -> Iterator[Deviation]:
    for layer, wide in enumerate(rounding.streams):
        error = abs(other.dense.residual[layer][0, real] - alone.dense.residual[layer][0])
        yield _worst(error, 2 * wide, f"stream {layer}, {subject}")
    for name, (error, wide) in _named(_gaps(other, alone, real), rounding.held):
        yield _worst(error, 2 * wide, f"{name}, {subject}")


def _at(held: Held, real: slice) -> Held:
    """Take what is held at the real tokens."""

    def cut_layer(layer: HeldLayer) -> HeldLayer:
        some: HeldLayer = changed(replace(layer, pattern=layer.pattern[:0]), lambda a: a[real])
        return replace(some, pattern=layer.pattern[:, real, real])

    rest: Held = changed(replace(held, layers=()), lambda array: array[real])
    return replace(rest, layers=tuple(map(cut_layer, held.layers)))


def _named(one: Held, other: Held) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """Yield the arrays of one and another, with names, as far as the other goes."""
    for layer, (a, b) in enumerate(zip(one.layers, other.layers, strict=False)):
        yield f"pattern of layer {layer}", (a.pattern, b.pattern)
        for name, scale in a.scales.items():
            yield f"scale of {name} in layer {layer}", (scale, b.scales[name])
        for name in ("gates", "written"):
            if getattr(a, name) is not None:
                yield f"{name} of layer {layer}", (getattr(a, name), getattr(b, name))
    for number, (scale, bound) in enumerate(zip(one.embed_scales, other.embed_scales, strict=True)):
        yield f"scale of embedding norm {number}", (scale, bound)
    for name in ("final_scale", "transform_gates", "transform_scale"):
        if getattr(other, name) is not None:
            yield name.replace("_", " "), (getattr(one, name), getattr(other, name))


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


def _worst(errors: Array, bounds: Array, subject: str) -> Deviation:
    bounds = bounds + TINY
    at = np.unravel_index(int(np.argmax(errors / bounds)), errors.shape)
    return Deviation(errors[at], bounds[at], f"{subject} at {tuple(map(int, at))}")
