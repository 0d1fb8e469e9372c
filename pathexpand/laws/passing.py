"""How far rounding can take a whole dense pass from exact arithmetic, softmax and all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.laws.held import Held, HeldLayer, Side, held_of
from pathexpand.laws.rounded import gated, lengths, normed, opened
from pathexpand.model.forward import attention_scores
from pathexpand.model.weights import Attention, HeadNorm, Mlp, Norm

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class RunRounding:
    """How far rounding can take a run from exact arithmetic.

    `held` bounds the errors of all that is held fixed, `streams[l]` (position, d_model) those of
    the stream before layer l and, last, after all. Bounds grow with depth: where asked
    for, there are none from the layer on whose output they would be larger than the stream itself.
    """

    held: Held
    streams: tuple[Array, ...]

    @property
    def layers(self) -> int:
        """The number of layers that there are bounds for."""
        return len(self.held.layers)


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """Numbers, and bounds on how far they are off."""

    values: Array
    wide: Array

    def plus(self, other: _Known | Array | None) -> _Known:
        """Add what is known, or a bias."""
        if other is None:
            return self
        values = other.values if isinstance(other, _Known) else other
        wide = self.wide + (other.wide if isinstance(other, _Known) else 0)
        sizes = abs(self.values) + abs(values)
        return _Known(self.values + values, wide + gamma(1) * sizes)

    def times(self, matrix: Array) -> _Known:
        """Multiply by a matrix (…, n, m)."""
        sizes = abs(self.values) @ abs(matrix) + TINY
        wide = self.wide @ abs(matrix) + gamma(matrix.shape[-2]) * sizes + TINY
        return _Known(self.values @ matrix, wide)

    def scaled(self, factor: float) -> _Known:
        """Multiply by a number."""
        if factor == 1:
            return self
        values = self.values * factor
        return _Known(values, self.wide * abs(factor) + gamma(1) * abs(values))


def run_rounding(run: Run, *, stop: bool = True) -> RunRounding:
    """Carry a bound on rounding through the whole pass.

    Scores off by at most t move a softmax entry by at most the factor e^(2t): each weight is off
    by e^t and their sum by e^t. Gates rise with what they read, so they lie between those of its
    ends. Where not told to `stop`, bounds are carried on however large they are.

    >>> from pathexpand.laws import random_model
    >>> found = run_rounding(random_model(seed=1).run([3, 1, 4]))
    >>> float(found.held.layers[1].pattern.max()) < 1e-9
    True
    """
    return _Pass(run).rounding(stop=stop)


def pattern_rounding(run: Run, layer: int) -> Array:
    """Bound how far rounding takes a layer's pattern, on the run's own stream: (head, query, key).

    >>> from pathexpand import api
    >>> pattern_rounding(api.load("two-layer").run("to be"), 1).shape
    (4, 3, 3)
    """
    block, stream = run.model.weights.block(layer), run.dense.residual[layer][0]
    reads = _Known(stream, stream * 0)
    if block.ln1 is not None:
        reads, _ = _through(block.ln1, reads)
    return _Pass(run).pattern(layer, block.attn, reads).wide


class _Pass:
    """One dense pass done over, with how far each of its arrays may be off."""

    def __init__(self, run: Run) -> None:
        self.run, self.weights, self.config = run, run.model.weights, run.model.config

    def rounding(self, *, stop: bool) -> RunRounding:
        """Give the bounds of the whole run, or of the part that they say anything about."""
        dense, held = self.run.dense, held_of(self.run)
        values: Any = sum(Side(self.run.model, held).born(dense).values())
        sizes: Any = sum(Side(self.run.model, held, sizes=True).born(dense).values())
        stream = _Known(values, gamma(3) * sizes + TINY)
        embed_scales = []
        for norm in self.weights.embed_norms:
            stream, scale = _through(norm, stream)
            embed_scales.append(scale)
        stream = _Known(dense.residual[0][0], stream.wide)
        streams: list[Array] = [stream.wide]
        layers: list[HeldLayer] = []
        for layer in range(len(self.weights.blocks)):
            stream, fixed = self._layer(layer, stream)
            if stop and not stream.wide.max() <= abs(stream.values).max() + TINY:
                return RunRounding(Held(tuple(layers), tuple(embed_scales)), tuple(streams))
            streams.append(stream.wide)
            layers.append(fixed)
        whole = self._head(stream, Held(tuple(layers), tuple(embed_scales)))
        return RunRounding(whole, tuple(streams))

    def _layer(self, layer: int, stream: _Known) -> tuple[_Known, HeldLayer]:
        block, scales = self.weights.block(layer), {}

        def norm(name: str, known: _Known) -> _Known:
            each: Norm | None = getattr(block, name)
            if each is None:
                return known
            known, scales[name] = _through(each, known)
            return known

        reads = norm("ln1", stream)
        pattern = self.pattern(layer, block.attn, reads)
        made = norm("ln1_post", _attended(block.attn, reads, pattern))
        middle = norm("ln1_after", stream.plus(made.scaled(block.scale)))
        out, gates, written = middle, None, None
        if block.mlp is not None:
            reads = norm("ln2", stream if block.parallel else middle)
            made, gates = _mlp(block.mlp, reads)
            made = norm("ln2_post", made).scaled(block.scale)
            out, written = middle.plus(made), made.wide
        out = norm("ln2_after", out)
        # From here on, as the dense pass found it: that is off by as much.
        out = _Known(self.run.dense.residual[layer + 1][0], out.wide)
        return out, HeldLayer(pattern.wide, scales, gates, written)

    def pattern(self, layer: int, attn: Attention, reads: _Known) -> _Known:
        """Bound the pattern of a layer: (head, query, key)."""
        pattern = self.run.patterns[layer]
        config, dense = self.config, self.run.dense
        if config.positional_embedding_type == "shortformer" and self.weights.pos is not None:
            reads = reads.plus(self.weights.positions(dense.places[0]))
        rotary, places = config.rotary[layer], dense.places
        scores = abs(attention_scores(attn, reads.values[None], rotary, places)[0])
        off = _score_rounding(attn, reads, None if rotary is None else rotary.attention_factor)
        off, sizes = off / config.attn_scale[layer], scores / config.attn_scale[layer]
        if config.alibi:
            ahead = abs(places[0][:, None] - places[0])
            sizes = sizes + abs(np.array(config.alibi))[:, None, None] * ahead
        # Scaling, capping, taking off the largest, and the exponential itself.
        lost = np.where(pattern > 0, off + gamma(16) * (sizes + 1), 0.0).max(axis=2, initial=0.0)
        factor = np.expm1(2 * np.minimum(lost, 1e2)) + gamma(2 * pattern.shape[2] + 8)
        # However far the scores are off, an entry stays between 0 and 1.
        return _Known(pattern, np.minimum(pattern * factor[:, :, None] + TINY, 1.0))

    def _head(self, stream: _Known, held: Held) -> Held:
        """Bound what stands between the last stream and the unembedding."""
        norm, head = self.weights.final_norm, self.weights.transform
        if norm is not None:
            stream, scale = _through(norm, stream)
            held = replace(held, final_scale=scale)
        if head is None:
            return held
        hidden = stream.times(head.W).plus(head.b)
        _, gates = gated(head.act, hidden.values, hidden.wide)
        held = replace(held, transform_gates=gates)
        if head.norm is not None:
            active = _Known(*opened(head.act, hidden.values, hidden.wide))
            held = replace(held, transform_scale=_through(head.norm, active)[1])
        return held


def _through(norm: Norm, known: _Known) -> tuple[_Known, Array]:
    """Send what is known through a norm; give it, and how far the scale is off: (position,)."""
    found = normed(norm, known.values, known.wide)
    return _Known(found.values, found.wide), found.scale_wide


def _attended(attn: Attention, reads: _Known, pattern: _Known) -> _Known:
    """Bound what attention makes: (position, d_model)."""
    group = len(attn.W_O) // max(len(attn.W_V), 1)
    total = _Known(reads.values * 0, reads.values * 0)
    steps = sum(attn.W_O.shape[:2]) + len(attn.W_O)  # the sum over heads may be one product
    for head, w_o in enumerate(attn.W_O):
        seen = reads.times(attn.W_V[head // group])
        seen = seen.plus(None if attn.b_V is None else attn.b_V[head // group])
        own, off = pattern.values[head], pattern.wide[head]
        sizes = abs(seen.values) + seen.wide
        wide = off @ sizes + own @ seen.wide + gamma(len(own)) * (own @ sizes) + TINY
        mixed = _Known(own @ seen.values, wide).times(w_o)
        total = total.plus(_Known(mixed.values, mixed.wide + gamma(steps) * abs(mixed.values)))
        total = replace(total, wide=total.wide + gamma(steps) * ((own @ sizes) @ abs(w_o)))
    return total.plus(attn.b_O)


def _mlp(mlp: Mlp, reads: _Known) -> tuple[_Known, Array]:
    """Bound what an MLP makes, (position, d_model), and its gates (position, neuron)."""
    hidden = reads.times(mlp.W_in).plus(mlp.b_in)
    if mlp.W_gate is None:
        gates, off = gated(mlp.act, hidden.values, hidden.wide)
        active = _Known(*opened(mlp.act, hidden.values, hidden.wide))
    else:
        gate = reads.times(mlp.W_gate).plus(mlp.b_gate)
        gates, off = opened(mlp.act, gate.values, gate.wide)
        wide = abs(gates) * hidden.wide + (abs(hidden.values) + hidden.wide) * off
        values = gates * hidden.values
        active = _Known(values, wide + gamma(1) * abs(values) + TINY)
    return active.times(mlp.W_out).plus(mlp.b_out), off


def _score_rounding(attn: Attention, reads: _Known, turned: float | None) -> Array:
    """Bound the error of the unscaled scores, (head, query, key)."""
    sides = []
    for weight, bias, norm in (
        (attn.W_Q, attn.b_Q, attn.q_norm), (attn.W_K, attn.b_K, attn.k_norm)
    ):  # fmt: skip
        known = reads.times(weight).plus(None if bias is None else bias[:, None])
        sides.append(known if norm is None else _heads_normed(norm, known))
    query, key = sides
    group = len(attn.W_Q) // max(len(attn.W_K), 1)
    key = _Known(np.repeat(key.values, group, axis=0), np.repeat(key.wide, group, axis=0))
    if turned is not None:
        query, key = _length(query), _length(key)
    size, wide = np.swapaxes(abs(key.values), 1, 2), np.swapaxes(key.wide, 1, 2)
    own = abs(query.values)
    product = gamma(attn.W_Q.shape[2] + 8) * (own @ size + TINY)
    out: Array = query.wide @ size + own @ wide + query.wide @ wide + product
    return out * (1.0 if turned is None else turned**2)


def _length(known: _Known) -> _Known:
    """Give lengths (…, 1) in place of vectors (…, n): a turn keeps them, and those of errors."""
    length = lengths(known.values)
    return _Known(length[..., None], (lengths(known.wide) + gamma(8) * length)[..., None])


def _heads_normed(norm: HeadNorm, known: _Known) -> _Known:
    """Send queries or keys (head, position, d_head) through their norm."""
    heads, positions, d_head = known.values.shape

    def rows(array: Array) -> Array:
        return np.swapaxes(array, 0, 1).reshape(positions, -1) if norm.across else array

    def back(array: Array) -> Array:
        if not norm.across:
            return array
        return np.swapaxes(array.reshape(positions, heads, d_head), 0, 1)

    bare = Norm(norm.kind, None, None, norm.eps)
    found = normed(bare, rows(known.values), rows(known.wide))
    values, wide = back(found.values), back(found.wide)
    if norm.weight is not None:
        values, wide = values * norm.weight[:, None], wide * abs(norm.weight)[:, None]
    out = _Known(values, wide + gamma(1) * abs(values))
    return out.plus(None if norm.bias is None else norm.bias[:, None])
