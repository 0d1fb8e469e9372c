"""All weights of a transformer: layers read when asked for, tall matrices kept as stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pathexpand.model.blocks import FEW, Blocks, Kept, bytes_of, recast
from pathexpand.model.layout import wanted_shapes
from pathexpand.model.parts import (
    Array,
    Attention,
    Block,
    HeadNorm,
    Mlp,
    Norm,
    NormKind,
    Transform,
)
from pathexpand.model.rows import Rows

__all__ = [
    "Array",
    "Attention",
    "Block",
    "HeadNorm",
    "Mlp",
    "Norm",
    "NormKind",
    "Rows",
    "Transform",
    "Weights",
    "wanted_shapes",
]


@dataclass(frozen=True, eq=False)
class Weights:
    """All weights of a model.

    `embed` has one row a token, `unembedding` one a logit, `pos` one a position and `types` one a
    token type: all of width d_model. Once the embeddings are summed, the stream goes through
    `embed_norms`; after the last block through `final_norm` and `transform`. `b_U`
    (d_vocab_out,). All but `embed`, `unembedding` and `blocks` may be absent. What is handed out
    is float64 (or exact, for exact weights) and read-only.
    """

    embed: Rows
    unembedding: Rows
    blocks: Sequence[Block] = ()
    pos: Rows | None = None
    types: Rows | None = None
    b_U: Array | None = None
    embed_norms: tuple[Norm, ...] = ()
    final_norm: Norm | None = None
    transform: Transform | None = None

    @property
    def W_E(self) -> Array:  # noqa: N802
        """What each token adds to the stream: (d_vocab, d_model)."""
        return self.embed.whole()

    @property
    def W_U(self) -> Array:  # noqa: N802
        """The unembedding: (d_model, d_vocab_out)."""
        return self.unembedding.whole().T

    @property
    def W_pos(self) -> Array | None:  # noqa: N802
        """What each position adds to the stream, or to what attention reads: (n_ctx, d_model)."""
        return None if self.pos is None else self.pos.whole()

    @property
    def W_type(self) -> Array | None:  # noqa: N802
        """What each token type adds to the stream: (token type, d_model)."""
        return None if self.types is None else self.types.whole()

    @property
    def exact(self) -> bool:
        """Whether the weights are exact numbers (Python objects) and not floats."""
        return self.embed.stored.dtype == object

    def block(self, layer: int, dtype: npt.DTypeLike = np.float64) -> Block:
        """Give one layer with its numbers as float64 or float32; exact ones stay as they are."""
        if isinstance(self.blocks, Blocks):
            return self.blocks.get(layer, dtype)
        if self.exact or dtype == np.float64:
            return self.blocks[layer]
        found: Block = self._single.get(layer, lambda: recast(self.blocks[layer], dtype), bytes_of)
        return found

    def outline(self, layer: int) -> Block:
        """Give one layer but for the numbers of its matrices, which may be NaN: cheap to read.

        Which biases, norms and MLPs a layer has stands there, and what its biases are.
        """
        if isinstance(self.blocks, Blocks):
            return self.blocks.outline(layer)
        return self.blocks[layer]

    @cached_property
    def _single(self) -> Kept:
        return Kept(FEW)

    def embedded(self, tokens: npt.NDArray[np.int64]) -> Array:
        """Give what tokens add to the stream: (...) to (..., d_model)."""
        return self.embed.at(tokens)

    def positions(self, places: npt.NDArray[np.int64]) -> Array:
        """Give what places add to the stream: (...) to (..., d_model); nothing is zeros."""
        if self.pos is None:
            return np.zeros((*places.shape, self.embed.width))
        return self.pos.at(places)

    def unembed(self, columns: npt.NDArray[np.int64]) -> Array:
        """Give some columns of the unembedding: (n,) to (d_model, n)."""
        return self.unembedding.at(columns).T

    def logits(self, stream: Array) -> Array:
        """Give the logits of what the unembedding reads: (..., d_model) to (..., d_vocab_out)."""
        out = self.unembedding.products(stream)
        if self.b_U is None:
            return out
        return out + (self.b_U if out.dtype == object else self.b_U.astype(out.dtype))

    @cached_property
    def mean_unembed(self) -> Array:
        """The mean over the vocabulary of the unembedding's columns: (d_model,)."""
        return self.unembedding.mean()

    @cached_property
    def mean_unembed_size(self) -> Array:
        """The mean over the vocabulary of the columns' absolute values: (d_model,)."""
        return self.unembedding.mean(absolute=True)

    def named(self) -> Iterator[tuple[str, Array]]:
        """Yield each tensor with its TransformerLens name, in a fixed order, one at a time.

        A matrix too large to be cast up at once comes in pieces, each named with its rows.
        """
        yield from _rows("embed.W_E", self.embed)
        if self.pos is not None:
            yield from _rows("pos_embed.W_pos", self.pos)
        if self.types is not None:
            yield from _rows("type_embed.W_type", self.types)
        for index, norm in enumerate(self.embed_norms):
            yield from _norm("embed.ln" if index == 0 else f"embed.ln{index + 1}", norm)
        for layer, block in enumerate(self.blocks):
            yield from _block(f"blocks.{layer}", block)
        yield from _norm("ln_final", self.final_norm)
        if self.transform is not None:
            yield "mlm_head.W", self.transform.W
            if self.transform.b is not None:
                yield "mlm_head.b", self.transform.b
            yield from _norm("mlm_head.ln", self.transform.norm)
        yield from _rows("unembed.W_U", self.unembedding, turned=True)
        if self.b_U is not None:
            yield "unembed.b_U", self.b_U


def _rows(name: str, rows: Rows, *, turned: bool = False) -> Iterator[tuple[str, Array]]:
    if rows.is_small:
        yield name, rows.whole().T if turned else rows.whole()
        return
    for at, piece in rows.chunks():
        yield f"{name}[{at.start}:{at.stop}]", piece


def _norm(at: str, norm: Norm | HeadNorm | None) -> Iterator[tuple[str, Array]]:
    if norm is not None and norm.weight is not None:
        yield f"{at}.w", norm.weight
    if norm is not None and norm.bias is not None:
        yield f"{at}.b", norm.bias


def _block(at: str, block: Block) -> Iterator[tuple[str, Array]]:
    for part, own in (("attn", block.attn), ("mlp", block.mlp)):
        for field in fields(own) if own is not None else ():
            value = getattr(own, field.name)
            if isinstance(value, np.ndarray):
                yield f"{at}.{part}.{field.name}", value
            elif isinstance(value, HeadNorm):
                yield from _norm(f"{at}.{part}.{field.name}", value)
    for name in ("ln1", "ln2", "ln1_post", "ln2_post", "ln1_after", "ln2_after"):
        yield from _norm(f"{at}.{name}", getattr(block, name))
