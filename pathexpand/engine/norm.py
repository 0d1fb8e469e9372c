"""A path's matrix from source to logits, without a prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import PathExpandError
from pathexpand.frozen import bias_source
from pathexpand.lowrank import Factored
from pathexpand.model.weights import Weights
from pathexpand.symbolic import Path

Array = npt.NDArray[Any]


def path_factors(weights: Weights, path: Path) -> dict[str, Array]:
    """Give a path's matrix as the chain of its factors, named, from source to logits.

    The source's rows are the vocabulary, the positions, or one constant: a bias as it is where
    every pattern row sums to 1.
    """
    if path.source == "b_U":
        if weights.b_U is None:
            raise _no_source(path)
        return {"b_U": weights.b_U[None]}  # (1, d_vocab_out)
    factors = {path.source: source_rows(weights, path.source)}  # (inputs, d_model)
    for head in path.components:
        if head.layer >= len(weights.blocks) or head.index >= len(
            weights.blocks[head.layer].attn.W_V
        ):
            raise PathExpandError(f"path {path}", wanted="heads of the model", got=head.label)
        attn = weights.blocks[head.layer].attn
        factors[f"W_V {head.label}"] = attn.W_V[head.index]  # (d_model, d_head)
        factors[f"W_O {head.label}"] = attn.W_O[head.index]  # (d_head, d_model)
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
    for layer, block in enumerate(weights.blocks):
        if source == f"L{layer}bias":
            whole = np.ones((block.attn.W_V.shape[0], 1, 1))  # (head, query, key): each row is 1
            return bias_source(block.attn, whole)
    raise _no_source(Path(source))


def _no_source(path: Path) -> PathExpandError:
    return PathExpandError(f"path {path}", wanted="a source of this model", got=path.source)
