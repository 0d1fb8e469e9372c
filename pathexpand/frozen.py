"""The frozen sum: one run's sources and heads, with everything that is not linear held fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.model.config import Config
from pathexpand.model.forward import Forward
from pathexpand.model.weights import Attention, Weights
from pathexpand.symbolic import Head, Network, Source

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class FrozenSource:
    """An array (position, d_model) born in the stream once `boundary` layers are passed."""

    label: str
    boundary: int
    values: Array


@dataclass(frozen=True, slots=True, eq=False)
class FrozenLayer:
    """The heads of one layer: each a pattern ⊗ a low-rank map of the stream.

    Shapes: `patterns` (head, query, key), `W_V` (head, d_model, d_head),
    `W_O` (head, d_head, d_model).
    """

    heads: tuple[Head, ...]
    patterns: Array
    W_V: Array
    W_O: Array


@dataclass(frozen=True, slots=True, eq=False)
class FrozenSum:
    """A run as a sum of paths: sources pushed through every choice of later heads.

    `mask` (position,) is true at real tokens.
    """

    sources: tuple[FrozenSource, ...]
    layers: tuple[FrozenLayer, ...]
    mask: npt.NDArray[np.bool_]
    has_unembed_bias: bool

    @property
    def positions(self) -> int:
        """The number of positions."""
        return int(self.mask.size)

    def until(self, position: int) -> FrozenSum:
        """Give the same sum up to a position, if no earlier position reads a later one.

        Otherwise give the sum itself. Paths read at `position` are the same in both.
        """
        size = position + 1
        if any(np.any(layer.patterns[:, :size, size:]) for layer in self.layers):
            return self
        return FrozenSum(
            tuple(FrozenSource(s.label, s.boundary, s.values[:size]) for s in self.sources),
            tuple(
                FrozenLayer(layer.heads, layer.patterns[:, :size, :size], layer.W_V, layer.W_O)
                for layer in self.layers
            ),
            self.mask[:size],
            self.has_unembed_bias,
        )

    def network(self) -> Network:
        """Give the symbolic network whose terms are this sum's paths."""
        sources = [Source(each.label, each.boundary) for each in self.sources]
        if self.has_unembed_bias:
            sources.append(Source.named("b_U"))
        return Network(layers=tuple(layer.heads for layer in self.layers), sources=tuple(sources))


def freeze(weights: Weights, config: Config, run: Forward, *, row: int = 0) -> FrozenSum:
    """Freeze one row of a dense forward pass.

    Tokens and, where they enter the stream, positions are sources born before the first layer;
    a layer's biases are one source born after it.
    """
    sources = [FrozenSource("embed", 0, weights.W_E[run.tokens[row]])]
    if config.positional_embedding_type == "standard" and weights.W_pos is not None:
        sources.append(FrozenSource("pos", 0, weights.W_pos[run.places[row]]))
    layers = []
    for index, block in enumerate(weights.blocks):
        attn, patterns = block.attn, run.patterns[index][row]
        heads = tuple(Head(index, head) for head in range(len(attn.W_V)))
        layers.append(FrozenLayer(heads, patterns, attn.W_V, attn.W_O))
        if attn.b_V is not None or attn.b_O is not None:
            sources.append(FrozenSource(f"L{index}bias", index + 1, bias_source(attn, patterns)))
    return FrozenSum(tuple(sources), tuple(layers), run.mask[row], weights.b_U is not None)


def network_of(weights: Weights, config: Config) -> Network:
    """Give the symbolic network of a model, with the same sources as its frozen runs."""
    labels = ["embed"]
    if config.positional_embedding_type == "standard" and weights.W_pos is not None:
        labels.append("pos")
    for layer, block in enumerate(weights.blocks):
        if block.attn.b_V is not None or block.attn.b_O is not None:
            labels.append(f"L{layer}bias")
    if weights.b_U is not None:
        labels.append("b_U")
    layers = tuple(
        tuple(Head(layer, index) for index in range(len(block.attn.W_V)))
        for layer, block in enumerate(weights.blocks)
    )
    return Network(layers=layers, sources=tuple(Source.named(label) for label in labels))


def bias_source(attn: Attention, patterns: Array) -> Array:
    """Give what a layer's biases write: (head, query, key) to (query, d_model).

    b_V is seen through the pattern, so a head adds rowsum(A) b_V W_O: the whole of b_V W_O only
    where its row sums to 1, nothing where the row is masked.
    """
    total = np.zeros((patterns.shape[1], attn.W_O.shape[-1]), dtype=attn.W_O.dtype)
    if attn.b_V is not None:
        for pattern, bias, out in zip(patterns, attn.b_V, attn.W_O, strict=True):
            total = total + np.outer(pattern.sum(axis=1), bias @ out)  # (query, d_model)
    return total if attn.b_O is None else total + attn.b_O
