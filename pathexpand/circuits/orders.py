"""The last stream, and its logits, as a sum over paths of each order: at every position at once.

This is the ablation of the paper (Elhage et al. 2021, "Term importance analysis"): with all
patterns held fixed, paths of at most n heads alone. The paper runs the model once for each n; one
pass forward over the frozen sum gives every n.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.identities import Identity
from pathexpand.engine.rounding import TINY, LocalSizes, gamma
from pathexpand.engine.ways import ways
from pathexpand.errors import ModelError
from pathexpand.frozen import Carry, FrozenSum, MlpMode, Unembed, freeze, unembed
from pathexpand.frozen.norm import size_through, through
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import Forward, final_logits, forward
from pathexpand.model.prompt import Tokens
from pathexpand.symbolic.query import Query, everything

Array = npt.NDArray[Any]


def order_streams(
    frozen: FrozenSum, query: Query | None = None, *, max_order: int | None = None
) -> Array:
    """Sum the paths of each order in the last stream: (order, position, d_model).

    Order counts heads, and MLPs where they are components. A query sums its own paths alone. The
    streams are carried forward, one for each order and each state of the query, which reads paths
    backward: X'[q, n] = X[q, n] + Σ_c P_c X[q after c, n−1] C_c, and a source joins the states in
    which it may stop.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> from pathexpand.model.prompt import read_prompt
    >>> checkpoint = read_checkpoint("two-layer")
    >>> held = hold(checkpoint, read_prompt(checkpoint, "to be or not to"))
    >>> order_streams(held.frozen).shape[0]
    3
    """
    asked = everything(frozen.network()) if query is None else query
    most = frozen.depth if max_order is None else min(max_order, frozen.depth)
    values = frozen.sources[0].values
    streams = np.zeros((asked.states, most + 1, *values.shape), dtype=values.dtype)
    for boundary in range(frozen.depth + 1):
        for source in (each for each in frozen.sources if each.boundary == boundary):
            stopping = [q for q in range(asked.states) if source.label in asked.stops(q)]
            streams[stopping, 0] += source.values
        if boundary < frozen.depth:
            streams = _longer(frozen, boundary, streams, asked)
    out: Array = streams[asked.start]
    return out


def _longer(frozen: FrozenSum, index: int, streams: Array, query: Query) -> Array:
    """Carry streams (state, order, position, d_model) through a stage, each to the order above."""
    carry = frozen.stages[index].carry
    out = streams.copy() if carry is None else carry.push(streams)
    for way in ways(frozen, query, index):
        group = way.group if way.which is None else way.group.some(way.which)
        for order in range(min(index + 1, streams.shape[1] - 1)):  # higher ones are still 0
            if streams[way.after, order].any():
                out[way.before, order + 1] += group.push(streams[way.after, order])
    return out


def direct_streams(frozen: FrozenSum) -> tuple[Array, ...]:
    """Give what no component has moved, at each boundary: (position, d_model) each.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> from pathexpand.model.prompt import read_prompt
    >>> checkpoint = read_checkpoint("two-layer")
    >>> held = hold(checkpoint, read_prompt(checkpoint, "to be or not to"))
    >>> bool((direct_streams(held.frozen)[2] == held.frozen.sources[0].values).all())
    True
    """
    stream: Any = np.zeros_like(frozen.sources[0].values)
    found = []
    for boundary in range(frozen.depth + 1):
        for source in (each for each in frozen.sources if each.boundary == boundary):
            stream = stream + source.values
        found.append(stream)
        stream = past(frozen, stream, boundary, min(boundary + 1, frozen.depth))
    return tuple(found)


def past(frozen: FrozenSum, stream: Array, boundary: int, end: int | None = None) -> Array:
    """Take a stream (position, d_model) on from a boundary through no component."""
    for stage in frozen.stages[boundary:end]:
        stream = stream if stage.carry is None else stage.carry.push(stream)
    return stream


def onward(frozen: FrozenSum, stream: Array, boundary: int) -> Array:
    """Take a stream (position, d_model) on from a boundary through every choice of components."""
    for stage in frozen.stages[boundary:]:
        before = stream
        stream = before if stage.carry is None else stage.carry.push(before)
        for group in stage.groups:
            stream = stream + group.push(before)
    return stream


@dataclass(frozen=True, slots=True, eq=False)
class HeldRun:
    """One prompt's dense pass and the same as a sum of paths, with the way to its logits."""

    dense: Forward
    frozen: FrozenSum
    unembed: Unembed

    def logits(self, stream: Array, at: Any = slice(None)) -> Array:
        """Give the logits of parts of the last stream, constants left out.

        `stream` is (…, n, d_model) at the positions `at`, all of them if none are named;
        (…, n, d_vocab_out). The final norm's scale is that of the whole run.
        """
        return self.unembed.weights.unembedding.products(self.rows(stream, at))

    def rows(self, stream: Array, at: Any = slice(None)) -> Array:
        """Give what the unembedding reads of parts of the last stream: (…, n, d_model)."""
        scale = self.unembed.scale
        rows = through(self.unembed.weights.final_norm, stream)
        return rows if scale is None else rows * scale[at][:, None]

    @property
    def constant(self) -> Array:
        """What is born in the logits, at any position: (d_vocab_out,)."""
        return self.unembed.constant(0)


def hold(checkpoint: Checkpoint, tokens: Tokens, *, mlp: MlpMode = "source") -> HeldRun:
    """Run one prompt and hold fixed all that is not linear.

    Raises `ModelError` for a masked-token head and for numbers that leave the range of float64.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> from pathexpand.model.prompt import read_prompt
    >>> checkpoint = read_checkpoint("two-layer")
    >>> hold(checkpoint, read_prompt(checkpoint, [1, 2, 3])).frozen.positions
    3
    """
    weights = checkpoint.weights
    if weights.transform is not None:
        raise ModelError(
            f"model {checkpoint.config.model_name}",
            wanted="logits that read the stream through one norm at most",
            got="a masked-token head",
        )
    types = None if tokens.types is None else tokens.types[None]
    with np.errstate(over="ignore", invalid="ignore"):
        run = forward(weights, checkpoint.config, tokens.ids[None], tokens.mask[None], types=types)
    if not np.isfinite(run.residual[-1]).all():
        raise ModelError(
            f"model {checkpoint.config.model_name}",
            wanted="finite numbers",
            got="overflow in the last stream",
        )
    return HeldRun(run, freeze(weights, checkpoint.config, run, mlp=mlp), unembed(weights, run))


def order_logits(checkpoint: Checkpoint, tokens: Tokens, *, mlp: MlpMode = "source") -> Array:
    """Give the logits of all paths of order 0, of order below 2, below 3, …, and so of all.

    (step, position, d_vocab_out), before any soft cap. What is born in the logits (the output bias
    and what the final norm adds) belongs to order 0, so it is in each step.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> from pathexpand.model.prompt import read_prompt
    >>> checkpoint = read_checkpoint("two-layer")
    >>> order_logits(checkpoint, read_prompt(checkpoint, [1, 2, 3])).shape
    (3, 3, 1024)
    """
    held = hold(checkpoint, tokens, mlp=mlp)
    return held.logits(np.cumsum(order_streams(held.frozen), axis=0)) + held.constant


def order_identities(
    checkpoint: Checkpoint, tokens: Tokens, steps: Iterable[Array], *, mlp: MlpMode = "source"
) -> list[Identity]:
    """Compare the logits of each step with sums of single paths, and the last with the dense pass.

    `steps` (position, d_vocab_out) are what `order_logits` gives. Paths are listed and each is
    carried to the logits by itself, so this is for small models. The bound of each comparison is
    gamma(n) Σ |…| over every product of every path, n counting the roundings that can follow one
    another.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> from pathexpand.model.prompt import read_prompt
    >>> checkpoint = read_checkpoint("two-layer")
    >>> tokens = read_prompt(checkpoint, [1, 2, 3])
    >>> found = order_identities(checkpoint, tokens, order_logits(checkpoint, tokens))
    >>> [each.holds for each in found]
    [True, True, True, True]
    """
    held, steps = hold(checkpoint, tokens, mlp=mlp), list(steps)
    single = _single_paths(held.frozen)  # (order, position, d_model)
    bound = _Sizes(held).logits()
    found = []
    for order, got in enumerate(steps):
        wanted = held.logits(single[: order + 1].sum(axis=0)) + held.constant
        found.append(_worst(f"paths of order below {order + 1}", got - wanted, bound))
    dense = final_logits(checkpoint.weights, checkpoint.config, held.dense, 0)
    found.append(_worst("all paths and the dense pass", steps[-1] - dense, bound))
    return found


def _single_paths(frozen: FrozenSum) -> Array:
    """Add up what every single path adds to the last stream: (order, position, d_model)."""
    network, values = frozen.network(), frozen.sources[0].values
    out = np.zeros((frozen.depth + 1, *values.shape), dtype=values.dtype)
    born = {source.label: source for source in frozen.sources}
    for path in network.paths():
        if path.source not in born:
            continue  # in the logits
        source = born[path.source]
        stream, boundary = source.values, source.boundary
        for component in path.components:
            stage, group, index = frozen.places[component]
            stream = group.write(past(frozen, stream, boundary, stage), index)
            boundary = stage + 1
        out[path.order] += past(frozen, stream, boundary)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Sizes:
    """Bounds on the rounding of every logit, from the sizes of all that is added on the way."""

    held: HeldRun

    def logits(self) -> Array:
        """Bound the rounding of sums over paths and of the dense pass: (position, d_vocab_out)."""
        frozen, weights = self.held.frozen, self.held.unembed.weights
        size: Any = np.zeros_like(frozen.sources[0].values) + TINY
        for boundary in range(frozen.depth + 1):
            for source in (each for each in frozen.sources if each.boundary == boundary):
                size = size + abs(source.values)
            size = size + self._dense(boundary)
            if boundary < frozen.depth:
                size = self._pushed(boundary, size)
        norm, scale = weights.final_norm, self.held.unembed.scale
        rows = size_through(norm, size, scale)
        out: Array = rows @ abs(weights.W_U)
        out = out if weights.b_U is None else out + abs(weights.b_U)
        out *= 4 * gamma(self._steps())
        return out

    def _pushed(self, boundary: int, size: Array) -> Array:
        stage = self.held.frozen.stages[boundary]
        out = _past_size(stage.carry, size)
        for group in stage.groups:
            out = out + abs(group).push(size) + TINY
        return out

    def _dense(self, boundary: int) -> Any:
        """Give the sizes met inside the layers of the dense pass that end at a boundary."""
        frozen, run, weights = self.held.frozen, self.held.dense, self.held.unembed.weights
        last = [number for number, layer in enumerate(_layers(frozen)) if layer == boundary]
        total: Any = 0.0
        for layer in last:
            block = weights.block(layer)
            local = LocalSizes(block, run.layers[layer], run.residual[layer][0], 0)
            total = total + local.attention()[0]
            if block.mlp is not None:
                taken = f"L{layer}M" in {source.label for source in frozen.sources}
                total = total + (local.added_mlp() if taken else local.mlp())[0]
        return total

    def _steps(self) -> int:
        frozen, weights = self.held.frozen, self.held.unembed.weights
        positions, width = frozen.sources[0].values.shape
        groups = sum(group.steps for stage in frozen.stages for group in stage.groups)
        hidden = sum(
            0 if mlp is None else sum(mlp.W_in.shape) + 16
            for mlp in (weights.outline(layer).mlp for layer in range(len(weights.blocks)))
        )
        own = len(weights.blocks) * (8 * (width + 8) + positions)
        paths = frozen.network().count()
        return int(groups + hidden + own + len(frozen.sources) + paths + 4 * width)


def _layers(frozen: FrozenSum) -> list[int]:
    """Give the boundary behind each layer."""
    ends: dict[int, int] = {}
    layer = 0
    for number, stage in enumerate(frozen.stages):
        layer = stage.components[0].layer if stage.components else layer
        ends[layer] = number + 1
    return [ends[each] for each in sorted(ends)]


def _past_size(carry: Carry | None, size: Array) -> Array:
    return size if carry is None else size_through(carry.norm, size, carry.scale)


def _worst(subject: str, error: Array, bound: Array) -> Identity:
    error = np.where(np.isfinite(error), abs(error), np.inf)
    at = np.unravel_index(int(np.argmax(error / np.maximum(bound, TINY))), error.shape)
    return Identity(subject, float(error[at]), float(bound[at]))
