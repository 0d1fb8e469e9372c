"""Small transformers of every architecture, made to be unlike each other wherever it matters.

Sizes are different primes, weights do not commute, every bias is there and no weight of a norm is
1: what is symmetric hides mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pathexpand.api import Model
from pathexpand.frozen import MlpMode
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.config import Config, Direction
from pathexpand.model.rotary import Rotary, linear_rotary
from pathexpand.model.weights import (
    Attention,
    Block,
    HeadNorm,
    Mlp,
    Norm,
    NormKind,
    Rows,
    Transform,
    Weights,
)

Array = npt.NDArray[Any]
Fill = Callable[[tuple[int, ...]], Array]
Positions = Literal["standard", "shortformer", "rotary", "alibi", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """An architecture: its sizes, and all that can be there or not.

    `norms` names the norms that each block has, `affine` says whether norms have weights and
    biases, `head_norm` whether queries and keys have a norm each or one across the heads. `mlp`
    is how MLPs are taken; without `d_mlp` there is none.

    >>> Design().n_heads % Design().n_key_value_heads
    0
    """

    n_layers: int = 2
    n_heads: int = 4
    n_key_value_heads: int = 2
    d_model: int = 7
    d_head: int = 3
    d_mlp: int = 5
    d_vocab: int = 13
    d_vocab_out: int = 11
    n_ctx: int = 6
    positions: Positions = "standard"
    direction: Direction = "causal"
    window: int | None = None
    sinks: bool = False
    biases: bool = True
    norm: NormKind = "layer"
    norms: tuple[str, ...] = ("ln1", "ln2")
    affine: bool = True
    final_norm: bool = True
    embed_norms: int = 0
    head_norm: Literal["each", "across"] | None = None
    act: str = "gelu"
    gated: bool = False
    parallel: bool = False
    residual_scale: float = 1.0
    types: int = 0
    transform: bool = False
    attn_scale: float | None = None
    score_cap: float | None = None
    mlp: MlpMode = "source"


def build(design: Design, fill: Fill, *, number: Callable[[float], Any] = float) -> Model:
    """Make a model of a design; `fill` gives each array by its shape.

    `number` turns the design's own numbers into those of the weights' kind.

    >>> build(Design(n_layers=1), lambda shape: np.ones(shape)).config.d_mlp
    5
    """
    parts = _Parts(design, fill, number)
    stream = design.d_model
    pos = design.positions in ("standard", "shortformer")
    weights = Weights(
        embed=Rows("embed.W_E", fill((design.d_vocab, stream))),
        unembedding=Rows("unembed.W_U", fill((design.d_vocab_out, stream))),
        blocks=tuple(parts.block() for _ in range(design.n_layers)),
        pos=Rows("pos_embed.W_pos", fill((design.n_ctx, stream))) if pos else None,
        types=Rows("type_embed.W_type", fill((design.types, stream))) if design.types else None,
        b_U=parts.bias((design.d_vocab_out,)),
        embed_norms=tuple(parts.norm() for _ in range(design.embed_norms)),
        final_norm=parts.norm() if design.final_norm else None,
        transform=parts.transform() if design.transform else None,
    )
    return Model(Checkpoint(config_of(design), weights), mlp=design.mlp)


def random_transformer(design: Design, *, seed: int, scale: float = 1.0) -> Model:
    """Make a random model of a design, the same for the same arguments.

    Weights have standard deviation `scale` over the root of the size they sum over.

    >>> random_transformer(Design(), seed=1).network.depth
    2
    """
    rng = np.random.default_rng(seed)

    def fill(shape: tuple[int, ...]) -> Array:
        rows = shape[-2] if len(shape) > 1 else 1
        return np.asarray(rng.normal(size=shape) * scale / np.sqrt(max(rows, 1)))

    return build(design, fill)


def config_of(design: Design) -> Config:
    """Give the configuration of a design."""
    layers, heads = design.n_layers, design.n_heads
    standard = design.positions if design.positions in ("standard", "shortformer") else "none"
    return Config(
        n_layers=layers,
        n_heads=heads,
        n_key_value_heads=design.n_key_value_heads,
        d_model=design.d_model,
        d_head=design.d_head,
        d_mlp=design.d_mlp,
        act_fn=design.act if design.d_mlp else None,
        d_vocab=design.d_vocab,
        d_vocab_out=design.d_vocab_out,
        n_ctx=design.n_ctx,
        positional_embedding_type=standard,
        attention_dir=design.direction,
        attn_scale=() if design.attn_scale is None else (design.attn_scale,) * layers,
        window=tuple(design.window if n % 2 == 0 else None for n in range(layers)),
        rotary=(_rotary(design),) * layers,
        alibi=_slopes(design),
        attn_scores_soft_cap=design.score_cap,
        model_name="random",
    )


def _rotary(design: Design) -> Rotary | None:
    width = design.d_head // 2 * 2
    if design.positions != "rotary" or not width:
        return None
    return linear_rotary(width, "half" if width % 4 else "adjacent", 100.0, 1)


def _slopes(design: Design) -> tuple[float, ...]:
    if design.positions != "alibi":
        return ()
    return tuple(2.0 ** -(head + 1) for head in range(design.n_heads))


@dataclass(frozen=True, slots=True)
class _Parts:
    """Fills the parts of a model."""

    design: Design
    fill: Fill
    number: Callable[[float], Any]

    def bias(self, shape: tuple[int, ...]) -> Array | None:
        return self.fill(shape) if self.design.biases else None

    def norm(self) -> Norm:
        shape = (self.design.d_model,)
        if not self.design.affine:
            return Norm(self.design.norm, None, None, 1e-5)
        bias = self.bias(shape) if self.design.norm == "layer" else None
        return Norm(self.design.norm, self.fill(shape), bias, 1e-5)

    def head_norm(self, heads: int) -> HeadNorm | None:
        kind = self.design.head_norm
        if kind is None:
            return None
        count = heads if kind == "across" else 1
        return HeadNorm("rms", self.fill((count, self.design.d_head)), None, 1e-5, kind == "across")

    def block(self) -> Block:
        design = self.design
        mlp = self.mlp() if design.d_mlp else None
        kept = [each for each in design.norms if mlp is not None or not each.startswith("ln2")]
        norms: dict[str, Any] = {name: self.norm() for name in kept}
        return Block(
            self.attention(),
            mlp,
            design.parallel,
            scale=self.number(design.residual_scale),
            **norms,
        )

    def attention(self) -> Attention:
        design = self.design
        heads, shared, stream, head = (
            design.n_heads, design.n_key_value_heads, design.d_model, design.d_head
        )  # fmt: skip
        return Attention(
            W_Q=self.fill((heads, stream, head)),
            W_K=self.fill((shared, stream, head)),
            W_V=self.fill((shared, stream, head)),
            W_O=self.fill((heads, head, stream)),
            b_Q=self.bias((heads, head)),
            b_K=self.bias((shared, head)),
            b_V=self.bias((shared, head)),
            b_O=self.bias((stream,)),
            q_norm=self.head_norm(heads),
            k_norm=self.head_norm(shared),
            sinks=self.fill((heads,)) if design.sinks else None,
        )

    def mlp(self) -> Mlp:
        stream, inner = self.design.d_model, self.design.d_mlp
        gated = self.design.gated
        return Mlp(
            W_in=self.fill((stream, inner)),
            W_out=self.fill((inner, stream)),
            act=self.design.act,
            W_gate=self.fill((stream, inner)) if gated else None,
            b_in=self.bias((inner,)),
            b_gate=self.bias((inner,)) if gated else None,
            b_out=self.bias((stream,)),
        )

    def transform(self) -> Transform:
        stream = self.design.d_model
        return Transform(
            self.fill((stream, stream)), self.bias((stream,)), self.design.act, self.norm()
        )
