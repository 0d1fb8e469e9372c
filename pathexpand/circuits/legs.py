"""The two legs of an attention score: paths to a query and paths to a key.

A score is bilinear in the stream at two positions,

    score(i, j) = (x_i R_Q + c_Q) · (x_j R_K + c_K),

once the norms on the way are held fixed. R_Q and R_K (d_model, d_head) hold the norm before
attention with its scale at the position, W_Q or W_K, norms of queries and keys with their scales,
the turn of rotary positions, and (in R_Q) the attention scale; c_Q and c_K the biases. Each stream
is a sum of paths, so a score is a sum over pairs of paths (Elhage et al. 2021, "Path expansion of
attention scores").
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import TINY
from pathexpand.engine.total import frozen_streams
from pathexpand.engine.value import Readout, path_stream
from pathexpand.frozen import FrozenSource, FrozenSum
from pathexpand.frozen.norm import back, size_through
from pathexpand.model.config import Config
from pathexpand.model.forward import Forward
from pathexpand.model.parts import Attention
from pathexpand.model.rotary import Rotary
from pathexpand.model.scores import LayerScores
from pathexpand.model.weights import Weights
from pathexpand.symbolic import Head, Path

Array = npt.NDArray[Any]
Side = Literal["query", "key"]


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """Where a leg is read: x_position @ read + constant, (d_model, d_head) and (d_head,).

    `size` (d_head,) bounds what is met on the way from the dense stream, for rounding.
    """

    position: int
    read: Array
    constant: Array
    size: Array

    def times(self, factor: float) -> End:
        """Give it multiplied by a number."""
        size = abs(factor) * self.size
        return End(self.position, factor * self.read, factor * self.constant, size)


@dataclass(frozen=True, slots=True, eq=False)
class Leg:
    """Paths to a query, or to a key: the frozen sum before the head, and where it is read.

    Two ends make a contrast: what is read at one less what is read at the other. `memory` holds
    what was worked out for legs of the same head of the same run, by what it depends on.
    """

    frozen: FrozenSum
    ends: tuple[End, ...]
    memory: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Give what is known by a name, worked out where it is not known yet."""
        if name not in self.memory:
            self.memory[name] = make()
        return self.memory[name]

    @property
    def last(self) -> int:
        """The last position that is read."""
        return max(end.position for end in self.ends)

    @property
    def constant(self) -> Array:
        """What the biases bring: (d_head,)."""
        out: Array = np.sum([end.constant for end in self.ends], axis=0)
        return out

    def readout(self, vector: Array) -> Readout:
        """Read the leg along a vector (d_head,) of the other leg."""
        (first, *others) = self.ends
        also = tuple((end.position, end.read @ vector) for end in others)
        return Readout(first.position, first.read @ vector, float(self.constant @ vector), also)

    def read(self, stream: Array) -> Array:
        """Read a stream (position, d_model), the constant left out: (d_head,)."""
        out: Array = np.sum([stream[end.position] @ end.read for end in self.ends], axis=0)
        return out

    def vector(self, path: Path) -> Array:
        """Give what one path brings: (d_head,)."""
        if path.source == self.frozen.constant:
            return self.constant
        parts = [
            path_stream(self.frozen, end.position, path) @ end.read for end in self.ends
        ]  # each (d_head,)
        return np.asarray(np.sum(parts, axis=0))

    def total(self) -> Array:
        """Give the sum over all paths: (d_head,)."""
        return self.read(frozen_streams(self.frozen)[-1]) + self.constant

    def direct(self) -> Array:
        """Give the sum over the paths that pass through no component: (d_head,)."""
        total = self.constant
        for source in self.frozen.sources:
            total = total + self.vector(Path(source.label))
        return total


@dataclass(frozen=True, slots=True, eq=False)
class _Attending:
    """One head on one row of a run, with all that is held fixed in it."""

    weights: Weights
    config: Config
    run: Forward
    held: LayerScores
    head: Head
    row: int

    @property
    def attn(self) -> Attention:
        """The weights of the head's layer."""
        return self.weights.blocks[self.head.layer].attn

    def end(self, side: Side, position: int) -> End:
        """Give what the head reads at a position, as a query or as a key."""
        read, constant, size = self._normed(side, position, *self._raw(side, position))
        turned = self._turn(position)
        if turned is not None:
            read, constant, size = read @ turned, constant @ turned, size @ abs(turned)
        if side == "query":
            factor = 1 / self.config.attn_scale[self.head.layer]
            read, constant, size = read * factor, constant * factor, size * factor
        return End(position, read, constant, size + TINY)

    def _raw(self, side: Side, position: int) -> tuple[Array, Array, Array]:
        """Give what all heads read: (head, d_model, d_head), (head, d_head) and its size."""
        block, layer = self.weights.blocks[self.head.layer], self.head.layer
        attn, norm, trace = block.attn, block.ln1, self.run.layers[self.head.layer]
        W, b = (attn.W_Q, attn.b_Q) if side == "query" else (attn.W_K, attn.b_K)
        constant = np.zeros((len(W), W.shape[2])) if b is None else b
        size = abs(constant)
        if norm is not None and norm.bias is not None:
            constant = constant + norm.bias @ W
        scale = None if trace.scale1 is None else trace.scale1[self.row, position : position + 1]
        stream = abs(self.run.residual[layer][self.row, position]) + TINY
        sizes = size_through(norm, stream[None], scale)[0]  # (d_model,)
        shift = self._shift(position)
        if shift is not None:
            sizes = sizes + abs(shift)
            # Behind a norm the position is no longer something that the stream could bring.
            constant = constant if norm is None else constant + shift @ W
        read = back(norm, W)
        return read if scale is None else read * scale[0], constant, size + sizes @ abs(W)

    def sources(self, depth: int) -> tuple[FrozenSource, ...]:
        """Give what is born right in front of the head: positions that never enter the stream."""
        norm, pos = self.weights.blocks[self.head.layer].ln1, self.weights.pos
        if norm is not None or pos is None or not self._beside:
            return ()
        return (FrozenSource("pos", depth, self.weights.positions(self.run.places[self.row])),)

    @property
    def _beside(self) -> bool:
        return self.config.positional_embedding_type == "shortformer"

    def _shift(self, position: int) -> Array | None:
        """Give what a position adds to queries and keys beside the stream: (d_model,)."""
        if not self._beside or self.weights.pos is None:
            return None
        places = self.run.places[self.row, position : position + 1]
        out: Array = self.weights.positions(places)[0]
        return out

    def _index(self, side: Side) -> int:
        return self.head.index if side == "query" else int(self.attn.kv_of[self.head.index])

    def _normed(
        self, side: Side, position: int, read: Array, constant: Array, size: Array
    ) -> tuple[Array, Array, Array]:
        """Take the head's own part, through the norm of queries or keys with its scale fixed."""
        index = self._index(side)
        norm = self.attn.q_norm if side == "query" else self.attn.k_norm
        scales = self.held.q_scale if side == "query" else self.held.k_scale
        if norm is None or scales is None:
            return read[index], constant[index], size[index]
        if norm.kind == "layer":
            over = slice(None) if norm.across else slice(index, index + 1)
            mean = read[over].mean(axis=(0, 2))  # (d_model,)
            read, constant = read - mean[:, None], constant - constant[over].mean()
            size = size + size[over].mean()
        factor = np.full(read.shape[2], scales[index, position])
        factor = factor if norm.weight is None else factor * _of_head(norm.weight, index)
        bias = np.zeros_like(factor) if norm.bias is None else _of_head(norm.bias, index)
        return (
            read[index] * factor,
            constant[index] * factor + bias,
            size[index] * abs(factor) + abs(bias),
        )

    def _turn(self, position: int) -> Array | None:
        rotary = self.config.rotary[self.head.layer]
        if rotary is None:
            return None
        places = self.run.places[self.row]
        return turn(rotary, self.attn.W_Q.shape[2], int(places[position]), int(places.max()) + 1)


def legs(
    weights: Weights,
    config: Config,
    run: Forward,
    frozen: FrozenSum,
    held: LayerScores,
    head: Head,
    query: int,
    keys: Sequence[int],
    *,
    row: int = 0,
    memory: dict[Hashable, Any] | None = None,
) -> tuple[Leg, Leg]:
    """Give the two legs of a head's score at a query position for a key, or for one less another.

    `held` is what `pathexpand.model.scores.layer_scores` gives for the head's layer. `memory` is
    that of other legs of this head on this row of the run.
    """
    attending = _Attending(weights, config, run, held, head, row)
    depth = frozen.places[head][0]
    before = frozen.first(depth)
    beside = attending.sources(depth)
    signs = (1.0, -1.0)
    ends: dict[Side, tuple[End, ...]] = {
        "query": (attending.end("query", query),),
        "key": tuple(
            attending.end("key", key).times(sign)
            for key, sign in zip(keys, signs[: len(keys)], strict=True)
        ),
    }
    found, memory = {}, {} if memory is None else memory
    for side, some in ends.items():
        constant = f"b_{side[0].upper()}" if any(end.constant.any() for end in some) else None
        sources = (*before.sources, *beside)
        own = FrozenSum(sources, before.stages, before.streams, before.mask, constant)
        found[side] = Leg(own.until(max(end.position for end in some)), some, memory)
    return found["query"], found["key"]


def _of_head(rows: Array, index: int) -> Array:
    out: Array = rows[index if len(rows) > 1 else 0]
    return out


def turn(rotary: Rotary, d_head: int, place: int, length: int) -> Array:
    """Give the turn of rotary positions at a place of a prompt as a matrix (d_head, d_head).

    Queries and keys are rows and are multiplied from the right.

    >>> plain = Rotary(width=2, pairs="half", frequencies=(1.0,))
    >>> turn(plain, 3, 1, 2)[0].round(4)
    array([0.5403, 0.8415, 0.    ])
    """
    out, half = np.eye(d_head), rotary.width // 2
    for pair, frequency in enumerate(rotary.turning(length)):
        one, other = (2 * pair, 2 * pair + 1) if rotary.pairs == "adjacent" else (pair, half + pair)
        cos = np.cos(place * frequency) * rotary.attention_factor
        sin = np.sin(place * frequency) * rotary.attention_factor
        out[one, one], out[one, other] = cos, sin
        out[other, one], out[other, other] = -sin, cos
    return out
