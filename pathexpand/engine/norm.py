"""A path's matrix from source to logits, without a prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import PathExpandError
from pathexpand.frozen import per_head
from pathexpand.lowrank import Factored
from pathexpand.model.weights import Block, Weights
from pathexpand.symbolic import Head, Path

Array = npt.NDArray[Any]


def check_at_rest(weights: Weights) -> None:
    """Refuse models whose paths have no matrix without a prompt: norms and MLPs depend on it."""
    norms = weights.final_norm is not None or weights.embed_norms or weights.transform is not None
    layers = range(len(weights.blocks))
    if norms or any(_depends_on_prompt(weights.outline(layer)) for layer in layers):
        raise PathExpandError(
            "paths from the weights alone",
            wanted="an attention-only model without norms",
            got="one whose norms or MLPs depend on the prompt",
            remedy="rank the paths of a prompt instead",
        )


def _depends_on_prompt(block: Any) -> bool:
    norms = (block.ln1, block.ln1_post, block.ln1_after, block.ln2, block.ln2_after)
    return block.mlp is not None or any(norm is not None for norm in norms)


def path_factors(weights: Weights, path: Path) -> dict[str, Array]:
    """Give a path's matrix as the chain of its factors, named, from source to logits.

    The source's rows are the vocabulary, the positions, or one constant: a bias as it is where
    every pattern row sums to 1.
    """
    check_at_rest(weights)
    if path.source == "b_U":
        if weights.b_U is None:
            raise _no_source(path)
        return {"b_U": weights.b_U[None]}  # (1, d_vocab_out)
    factors = {path.source: source_rows(weights, path.source)}  # (inputs, d_model)
    for head in path.components:
        if (
            not isinstance(head, Head)
            or head.layer >= len(weights.blocks)
            or head.index >= len(weights.blocks[head.layer].attn.W_O)
        ):
            raise PathExpandError(f"path {path}", wanted="heads of the model", got=head.label)
        w_v, w_o = head_maps(weights.blocks[head.layer])
        factors[f"W_V {head.label}"] = w_v[head.index]  # (d_model, d_head)
        factors[f"W_O {head.label}"] = w_o[head.index]  # (d_head, d_model)
    return factors | {"W_U": weights.W_U}


def path_matrix(weights: Weights, path: Path) -> Factored:
    """Give a path's matrix from source to logits, kept in factors: (inputs, d_vocab_out)."""
    return Factored.product(list(path_factors(weights, path).values()))


def unembed(weights: Weights, *, centred: bool) -> Array:
    """Give W_U, with the mean of its columns taken off if centred: (d_model, d_vocab_out)."""
    return weights.W_U - weights.mean_unembed[:, None] if centred else weights.W_U


def source_rows(weights: Weights, source: str) -> Array:
    """Give the vectors a source can write: (inputs, d_model)."""
    if source == "embed":
        return weights.W_E
    if source == "pos" and weights.W_pos is not None:
        return weights.W_pos
    if source == "type" and weights.W_type is not None:
        return weights.W_type
    for layer, block in enumerate(weights.blocks):
        if source == f"L{layer}bias":
            return _bias_row(block)
    raise _no_source(Path(source))


def head_maps(block: Block) -> tuple[Array, Array]:
    """Give W_V (head, d_model, d_head) and W_O (head, d_head, d_model), one for each query head."""
    w_o = block.attn.W_O
    return per_head(block.attn, block.attn.W_V), w_o if block.scale == 1 else w_o * block.scale


def _bias_row(block: Block) -> Array:
    """Give what the biases write where every pattern row sums to 1: (1, d_model)."""
    attn = block.attn
    total: Any = np.zeros((1, attn.W_O.shape[-1]), dtype=attn.W_O.dtype)
    if attn.b_V is not None:
        for bias, out in zip(per_head(attn, attn.b_V), attn.W_O, strict=True):
            total = total + (bias @ out)[None]
    total = total if attn.b_O is None else total + attn.b_O
    return np.asarray(total if block.scale == 1 else total * block.scale)


def _no_source(path: Path) -> PathExpandError:
    return PathExpandError(f"path {path}", wanted="a source of this model", got=path.source)
