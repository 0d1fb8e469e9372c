"""A run made anew, with what is held fixed in it: the ground every check stands on."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.engine.rounding import gamma
from pathexpand.model.weights import Attention
from pathexpand.symbolic import Head, Network
from pathexpand.target import Target

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class HeldSource:
    """What is born in the stream once `boundary` layers are passed: `values` (position, d_model).

    `size` (position, d_model) is at least |values|; rounding is measured by it.
    """

    label: str
    boundary: int
    values: Array
    size: Array


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A run as the checks see it, up to the last position that the readout can see.

    Shapes: `patterns[l]` (head, query, key), `W_V[l]` (head, d_model, d_head), `W_O[l]`
    (head, d_head, d_model), `direction` (d_model,). `doubts[l]` is how far, in proportion, entries
    of the patterns may lie from those that the search saw: 0 where they are the same bit for bit.
    """

    patterns: tuple[Array, ...]
    W_V: tuple[Array, ...]
    W_O: tuple[Array, ...]
    sources: tuple[HeldSource, ...]
    position: int
    direction: Array
    constant: float
    network: Network
    doubts: tuple[float, ...]

    @property
    def positions(self) -> int:
        """The number of positions."""
        return int(self.sources[0].values.shape[0])

    @property
    def width(self) -> int:
        """The size of the stream."""
        return int(self.direction.size)

    @property
    def steps(self) -> int:
        """The most roundings that one product through one layer meets."""
        heads, _, d_head = self.W_V[0].shape if self.W_V else (0, 0, 0)
        return 2 * (self.positions + self.width + int(d_head) + int(heads)) + 8

    def source(self, label: str) -> HeldSource:
        """Give a source of the stream by its label."""
        return next(each for each in self.sources if each.label == label)

    def pattern(self, head: Head) -> Array:
        """Give a head's pattern (query, key)."""
        out: Array = self.patterns[head.layer][head.index]
        return out

    def maps(self, head: Head) -> tuple[Array, Array]:
        """Give a head's W_V (d_model, d_head) and W_O (d_head, d_model)."""
        return self.W_V[head.layer][head.index], self.W_O[head.layer][head.index]


def hold(run: Run, target: Target, position: int, *, same_patterns: bool) -> Held:
    """Hold a run fixed; `same_patterns` says that the search saw these very patterns.

    >>> from pathexpand.api import load
    >>> run = load("two-layer").run("to be or not to")
    >>> held = hold(run, run.target(), 2, same_patterns=True)
    >>> held.positions, held.sources[0].label
    (3, 'embed')
    """
    weights, config = run.model.weights, run.model.config
    size = position + 1 if config.attention_dir == "causal" else len(run.tokens)
    readout = target.readout(weights, position)
    attentions = [block.attn for block in weights.blocks]
    return Held(
        patterns=tuple(pattern[:, :size, :size] for pattern in run.patterns),
        W_V=tuple(each.W_V for each in attentions),
        W_O=tuple(each.W_O for each in attentions),
        sources=_sources(run, size),
        position=position,
        direction=readout.direction,
        constant=float(readout.constant),
        network=run.model.network,
        doubts=(0.0,) * len(attentions) if same_patterns else _doubts(run),
    )


def patterns_digest(run: Run) -> str:
    """Give the SHA-256 of a run's attention patterns, as float64 (hexadecimal).

    >>> from pathexpand.api import load
    >>> len(patterns_digest(load("two-layer").run("to be")))
    64
    """
    digest = hashlib.sha256()
    for pattern in run.patterns:
        digest.update(f"{pattern.shape}\n".encode())
        digest.update(pattern.astype("<f8").tobytes())
    return digest.hexdigest()


def _sources(run: Run, size: int) -> tuple[HeldSource, ...]:
    weights, places = run.model.weights, run.dense.places[0][:size]
    embed = weights.W_E[run.tokens[:size]]  # (position, d_model)
    found = [HeldSource("embed", 0, embed, abs(embed))]
    if run.model.config.positional_embedding_type == "standard" and weights.W_pos is not None:
        pos = weights.W_pos[places]  # (position, d_model)
        found.append(HeldSource("pos", 0, pos, abs(pos)))
    for layer, block in enumerate(weights.blocks):
        if block.attn.b_V is not None or block.attn.b_O is not None:
            pattern = run.patterns[layer][:, :size, :size]
            values = _constant(block.attn, pattern, absolute=False)
            spread = _constant(block.attn, abs(pattern), absolute=True)
            found.append(HeldSource(f"L{layer}bias", layer + 1, values, spread))
    return tuple(found)


def _constant(attn: Attention, pattern: Array, *, absolute: bool) -> Array:
    """Give what a layer writes into an empty stream (position, d_model), or how large at most."""

    def sized(array: Array) -> Array:
        return abs(array) if absolute else array

    heads, positions, _ = pattern.shape
    out = np.zeros((positions, attn.W_O.shape[2]))
    if attn.b_V is not None:
        rows = np.broadcast_to(sized(attn.b_V)[:, None], (heads, positions, attn.b_V.shape[1]))
        mixed = pattern @ rows  # (head, query, d_head)
        out = (mixed @ sized(attn.W_O)).sum(axis=0)  # (query, d_model)
    return out if attn.b_O is None else out + sized(attn.b_O)


def _doubts(run: Run) -> tuple[float, ...]:
    """Bound, layer by layer, how far another machine's patterns may be, in proportion.

    A softmax turns a change of at most δ in its scores into a factor of at most exp(2δ). δ is
    what rounding can do where scores are formed; what it did to the stream before is of the same
    kind, but not pushed through the layers in the worst case, where the bound would say nothing.
    Scores that overflow leave an infinite doubt.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = [_doubt(run, layer) for layer in range(len(run.patterns))]
    return tuple(each if each >= 0 else math.inf for each in found)


def _doubt(run: Run, layer: int) -> float:
    """Bound it in one layer; may be NaN."""
    weights, config = run.model.weights, run.model.config
    attn = weights.blocks[layer].attn
    reads = abs(run.dense.residual[layer][0])  # (position, d_model)
    if config.positional_embedding_type == "shortformer" and weights.W_pos is not None:
        reads = reads + abs(weights.W_pos[run.dense.places[0]])
    queries = reads @ abs(attn.W_Q)  # (head, position, d_head)
    keys = reads @ abs(attn.W_K)  # (head, position, d_head)
    if attn.b_Q is not None:
        queries = queries + abs(attn.b_Q)[:, None]
    if attn.b_K is not None:
        keys = keys + abs(attn.b_K)[:, None]
    scores = queries @ np.swapaxes(keys, 1, 2) / config.attn_scale[layer]
    steps = 2 * config.d_model + config.d_head + 6
    change = 2 * gamma(steps) * float(scores.max(initial=0.0))
    return float(np.expm1(2 * change)) + 2 * gamma(len(run.tokens) + 4)
