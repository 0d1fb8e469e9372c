"""Law 7: each layer adds to the stream what its heads, neurons and biases write, one by one.

A wrongly fused or transposed weight keeps its shape; only these sums see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.laws.held import Held, HeldLayer, LayerSums, Side, changed, held_of
from pathexpand.laws.result import Deviation, LawResult, judged
from pathexpand.laws.rounded import gated, normed, opened
from pathexpand.model.forward import logits
from pathexpand.model.weights import Mlp, Norm

Array = npt.NDArray[Any]
_LOGITS = 50_000_000  # products that are summed one by one


def check_layer_sums(run: Run) -> LawResult:
    """Check what each layer reads, makes and adds, against heads and neurons worked out one by one.

    Norms are worked out anew from mean and variance, and activation functions by formulas of their
    own. Looked at are the embeddings, in each layer the scale of every norm, the sum of the heads'
    outputs and biases, the gates, the sum of the neurons' outputs, and the stream behind; and last
    the final norm and the logits. What fails is named with its layer and by how much it is off.

    >>> from pathexpand import api
    >>> check_layer_sums(api.load("two-layer").run("to be")).holds
    True
    """
    # What an MLP wrote is what is checked here, so it is never taken as given.
    model = run.model if run.model.mlp != "source" else run.model.with_mlp("frozen")
    held = held_of(run)
    sides = _Sides(run, Side(model, held), Side(model, changed(held, abs), sizes=True))
    deviations = [*_embeddings(sides)]
    for layer in range(len(run.dense.layers)):
        deviations += _layer(sides, layer)
    deviations += [*_head(sides), *_logits(sides)]
    detail = f"{len(run.dense.layers)} layers, {len(run.tokens)} positions"
    return judged("layer sums", deviations, detail)


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """A run, and its arithmetic done over in numbers and in sizes."""

    run: Run
    exact: Side
    size: Side

    @property
    def held(self) -> Held:
        """What the dense pass found and held fixed."""
        return self.exact.held


def _embeddings(sides: _Sides) -> Iterator[Deviation]:
    """Check the first stream, and the norms in front of it."""
    dense, norms = sides.run.dense, sides.run.model.weights.embed_norms
    values: Any = sum(sides.exact.born(dense).values())
    sizes: Any = sum(sides.size.born(dense).values())
    wide = gamma(3) * (sizes + TINY)
    for number, norm in enumerate(norms):
        own, found = normed(norm, values, 2 * wide), sides.held.embed_scales[number]
        yield _worst(found - own.scale, own.scale_wide, f"scale of embedding norm {number}")
        values, wide = own.values, own.wide
    yield _worst(dense.residual[0][0] - values, wide, "embeddings")


def _layer(sides: _Sides, layer: int) -> Iterator[Deviation]:
    """Check one layer, on the stream that the dense pass brought to it."""
    dense, block = sides.run.dense, sides.run.model.weights.block(layer)
    trace, before = dense.layers[layer], dense.residual[layer][0]
    found, size = sides.exact.layer(layer, before), sides.size.layer(layer, abs(before))
    check = _Checks(layer, found, size, gamma(_steps(sides, layer)), sides.held.layers[layer])
    yield from check.scale("ln1", block.ln1, before, before * 0)
    yield from check.scale("ln1_post", block.ln1_post, found.attended, check.off("attended"))
    yield check.same(trace.attn_out, "attn_out", "attention output")
    yield from check.scale("ln1_after", block.ln1_after, found.added, check.off("added"))
    if trace.middle is not None:
        yield check.same(trace.middle, "middle", "stream behind attention")
    if block.mlp is not None:
        alone = block.parallel
        reads, wide = (before, before * 0) if alone else (found.middle, check.off("middle"))
        yield from check.scale("ln2", block.ln2, reads, wide)
        yield check.gates(block.mlp)
        yield from check.scale("ln2_post", block.ln2_post, found.mixed, check.off("mixed"))
        yield check.same(trace.mlp_out, "mlp_out", "MLP output")
    yield from check.scale("ln2_after", block.ln2_after, found.streamed, check.off("streamed"))
    yield check.same(dense.residual[layer + 1], "out", "stream behind it")


@dataclass(frozen=True, slots=True, eq=False)
class _Checks:
    """Compares what the dense pass found in one layer with what was worked out by itself."""

    layer: int
    found: LayerSums
    size: LayerSums
    rounding: float
    held: HeldLayer

    def off(self, name: str) -> Array:
        """Bound how far the dense pass and this one are apart."""
        return np.asarray(2 * self.rounding * (getattr(self.size, name) + TINY))

    def same(self, got: Array | None, name: str, subject: str) -> Deviation:
        """Compare one array of the trace."""
        assert got is not None  # the layer has it
        errors = got[0] - getattr(self.found, name)
        return _worst(errors, self.off(name), f"layer {self.layer}, {subject}")

    def scale(
        self, name: str, norm: Norm | None, values: Array | None, wide: Array
    ) -> Iterator[Deviation]:
        """Compare the scale of a norm, if there is one, with that of what it reads."""
        if norm is not None and values is not None:
            own, got = normed(norm, values, wide), self.held.scales[name]
            subject = f"layer {self.layer}, scale of {name}"
            yield _worst(got - own.scale, 2 * own.scale_wide, subject)

    def gates(self, mlp: Mlp) -> Deviation:
        """Compare the gates of an MLP with those of what it reads."""
        assert self.found.hidden is not None and self.held.gates is not None  # there is an MLP
        if self.found.opened is None:
            own, wide = gated(mlp.act, self.found.hidden, self.off("hidden"))
        else:
            own, wide = opened(mlp.act, self.found.opened, self.off("opened"))
        return _worst(self.held.gates - own, 2 * wide, f"layer {self.layer}, gates")


def _head(sides: _Sides) -> Iterator[Deviation]:
    """Check what stands between the last stream and the unembedding."""
    weights, last = sides.run.model.weights, sides.run.dense.residual[-1][0]
    values, wide = last, last * 0
    if weights.final_norm is not None:
        own = normed(weights.final_norm, values, wide)
        assert sides.held.final_scale is not None  # the model has one
        yield _worst(sides.held.final_scale - own.scale, 2 * own.scale_wide, "scale of final norm")
        values, wide = own.values, own.wide
    head, gates = weights.transform, sides.held.transform_gates
    if head is None or gates is None:
        return
    hidden = values @ head.W  # (position, d_model)
    sizes = abs(values) @ abs(head.W)
    if head.b is not None:
        hidden, sizes = hidden + head.b, sizes + abs(head.b)
    wide = wide @ abs(head.W) + gamma(len(head.W) + 1) * sizes + TINY
    own_gates, off = gated(head.act, hidden, wide)
    yield _worst(gates - own_gates, 2 * off, "gates of the head")
    if head.norm is not None and sides.held.transform_scale is not None:
        active, off = opened(head.act, hidden, wide)
        own = normed(head.norm, active, off)
        got = sides.held.transform_scale
        yield _worst(got - own.scale, 2 * own.scale_wide, "scale of the head's norm")


def _logits(sides: _Sides) -> Iterator[Deviation]:
    """Check the logits, each by itself, of as many of the last positions as time allows."""
    weights, last = sides.run.model.weights, sides.run.dense.residual[-1][0]
    rows, width = weights.unembedding, last.shape[1]
    count = min(max(_LOGITS // (rows.count * width), 1), len(last))
    some = range(len(last) - count, len(last))
    read = [sides.exact.read(last[n], n, constants=True) for n in some]  # (d_model,) each
    size = [sides.size.read(abs(last[n]), n, constants=True) for n in some]
    every = logits(weights, last[-count:])
    steps = width + 2 + (0 if weights.final_norm is None else width + 8)
    steps += 0 if weights.transform is None else 3 * (width + 8)
    for at, columns in rows.chunks():
        singly = np.einsum("pd,vd->pv", np.array(read), columns)
        sizes = np.einsum("pd,vd->pv", np.array(size), abs(columns)) + TINY
        if weights.b_U is not None:
            singly, sizes = singly + weights.b_U[at], sizes + abs(weights.b_U[at])
        yield _worst(every[:, at] - singly, 2 * gamma(steps) * sizes, "logits")


def _steps(sides: _Sides, layer: int) -> int:
    """Count the roundings, one after another, on the longest way through a layer."""
    block, held = sides.run.model.weights.outline(layer), sides.held.layers[layer]
    heads, d_head, width = map(int, block.attn.W_O.shape)
    steps: int = width + len(sides.run.tokens) + heads * (d_head + 1) + 6
    if block.mlp is not None:
        steps += width + len(block.mlp.W_out) + 6
    return steps + len(held.scales) * (width + 8)


def _worst(errors: Array, bounds: Array, subject: str) -> Deviation:
    errors, bounds = np.asarray(abs(errors)), np.asarray(bounds) + TINY
    at = np.unravel_index(int(np.argmax(errors / bounds)), errors.shape)
    place = ", ".join(str(int(n)) for n in at)
    subject = f"{subject} at ({place}), off by {float(errors[at]):.3g}"
    return Deviation(errors[at], bounds[at], subject)
