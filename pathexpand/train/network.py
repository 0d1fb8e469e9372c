"""The attention-only transformer of the paper, in torch, under TransformerLens names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from pathexpand.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Holds the sizes of a network."""

    n_layers: int
    n_heads: int = 4
    d_model: int = 192
    d_head: int = 64
    d_vocab: int = 1024
    n_ctx: int = 128

    def __post_init__(self) -> None:
        """Refuse sizes that no network can have."""
        for name, size in asdict(self).items():
            least = 0 if name == "n_layers" else 1
            if size < least:
                raise ModelError(name, wanted=f"at least {least}", got=str(size))

    def of_weights(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight by its TransformerLens name."""
        inward = (self.n_heads, self.d_model, self.d_head)
        shapes: dict[str, tuple[int, ...]] = {"embed.W_E": (self.d_vocab, self.d_model)}
        if self.n_layers:
            shapes["pos_embed.W_pos"] = (self.n_ctx, self.d_model)
        shapes["unembed.W_U"] = (self.d_model, self.d_vocab)
        for layer in range(self.n_layers):
            for name in ("W_Q", "W_K", "W_V"):
                shapes[f"blocks.{layer}.attn.{name}"] = inward
            shapes[f"blocks.{layer}.attn.W_O"] = (self.n_heads, self.d_head, self.d_model)
        return shapes


@dataclass(frozen=True, kw_only=True)
class Network:
    """An attention-only transformer: no norm, no biases, no MLP, `shortformer` positions."""

    shape: Shape
    weights: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        """Refuse weights that do not have the names and shapes of the network."""
        wanted = self.shape.of_weights()
        if self.weights.keys() != wanted.keys():
            raise ModelError(
                "weights", wanted=", ".join(sorted(wanted)), got=", ".join(sorted(self.weights))
            )
        for name, size in wanted.items():
            if self.weights[name].shape != size:
                raise ModelError(name, wanted=str(size), got=str(tuple(self.weights[name].shape)))

    def logits(self, tokens: Tensor) -> Tensor:
        """Map token ids (row, position) to logits (row, position, d_vocab)."""
        x = self.weights["embed.W_E"][tokens]  # (row, position, d_model)
        for layer in range(self.shape.n_layers):
            x = x + self.written(layer, x)
        return x @ self.weights["unembed.W_U"]  # (row, position, d_vocab)

    def losses(self, tokens: Tensor) -> Tensor:
        """Return the loss in nats on each token but the first, (row, position)."""
        logits = self.logits(tokens[:, :-1])  # (row, position, d_vocab)
        return cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")

    def patterns(self, tokens: Tensor) -> Tensor:
        """Return every layer's attention patterns, (layer, row, head, query, key)."""
        x = self.weights["embed.W_E"][tokens]  # (row, position, d_model)
        patterns = []
        for layer in range(self.shape.n_layers):
            q, k, _ = self.projected(layer, x)  # (row, head, position, d_head)
            scores = q @ k.transpose(-1, -2) / math.sqrt(self.shape.d_head)  # (…, query, key)
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)  # (query, key)
            patterns.append(scores.masked_fill(later, -math.inf).softmax(-1))
            x = x + self.written(layer, x)
        return torch.stack(patterns)  # (layer, row, head, query, key)

    def written(self, layer: int, x: Tensor) -> Tensor:
        """Return what the heads of one layer add to the stream, (row, position, d_model)."""
        q, k, v = self.projected(layer, x)  # (row, head, position, d_head)
        z = scaled_dot_product_attention(q, k, v, is_causal=True)  # (row, head, position, d_head)
        flat = z.transpose(1, 2).flatten(2)  # (row, position, head * d_head)
        return flat @ self.weights[f"blocks.{layer}.attn.W_O"].flatten(0, 1)

    def projected(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of one layer, (row, head, position, d_head)."""
        attn = f"blocks.{layer}.attn."
        # Positions reach queries and keys, never values: that is the shortformer's form.
        placed = x + self.weights["pos_embed.W_pos"][: x.shape[1]]  # (row, position, d_model)
        return (
            by_head(placed, self.weights[attn + "W_Q"]),
            by_head(placed, self.weights[attn + "W_K"]),
            by_head(x, self.weights[attn + "W_V"]),
        )

    def rounded(self) -> Network:
        """Return the network as it is stored: its weights rounded to float16."""
        weights = {name: weight.detach().half().float() for name, weight in self.weights.items()}
        return Network(shape=self.shape, weights=weights)

    def trainable(self) -> Network:
        """Return the network with weights of its own that can be trained."""
        weights = {name: weight.clone().requires_grad_() for name, weight in self.weights.items()}
        return Network(shape=self.shape, weights=weights)


def by_head(x: Tensor, weight: Tensor) -> Tensor:
    """Apply every head's map: (row, position, d_model) to (row, head, position, d_head)."""
    n_heads, d_model, d_head = weight.shape
    flat = x @ weight.transpose(0, 1).reshape(d_model, n_heads * d_head)  # (…, head * d_head)
    return flat.view(*x.shape[:-1], n_heads, d_head).transpose(
        1, 2
    )  # (row, head, position, d_head)


def draw_network(shape: Shape, *, seed: int) -> Network:
    """Draw a network to start training from, the same one for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    shapes = shape.of_weights()
    weights = dict.fromkeys(shapes, torch.empty(0))
    # W_U is drawn last: the order of the draws is part of what a seed means.
    for name in sorted(shapes, key=lambda name: name == "unembed.W_U"):
        drawn = (
            sinusoids(shape)
            if name == "pos_embed.W_pos"
            else torch.randn(shapes[name], generator=generator) * first_scale(name, shape)
        )
        weights[name] = drawn.requires_grad_()
    return Network(shape=shape, weights=weights)


def first_scale(name: str, shape: Shape) -> float:
    """Return the standard deviation that a weight is drawn with."""
    if name == "embed.W_E":
        return 0.3
    if name.endswith("W_O"):
        return float((shape.n_heads * shape.d_head * 2 * shape.n_layers) ** -0.5)
    return float(shape.d_model**-0.5)


def sinusoids(shape: Shape) -> Tensor:
    """Return sinusoids of amplitude one half, (n_ctx, d_model), to start the positions from."""
    position = torch.arange(shape.n_ctx)[:, None]  # (n_ctx, 1)
    wave = torch.arange(shape.d_model // 2)[None, :]  # (1, d_model / 2)
    angle = position * torch.exp(-math.log(10_000.0) * 2 * wave / shape.d_model)
    return 0.5 * torch.cat([angle.sin(), angle.cos()], dim=1)  # (n_ctx, d_model)
