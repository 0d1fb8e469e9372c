"""Norms of the stream, of queries and of keys, with the scale that each used."""

from __future__ import annotations

import numpy as np

from pathexpand.model.parts import Array, HeadNorm, Norm


def normed(norm: Norm, stream: Array) -> tuple[Array, Array]:
    """Norm a stream (..., d_model); give it, and the scale 1 / sqrt(var + eps): (...).

    Where there is nothing to scale and eps is 0, the scale is 0.

    >>> norm = Norm("layer", np.array([2.0, 1.0]), np.array([1.0, 1.0]), eps=0.0)
    >>> normed(norm, np.array([[1.0, -1.0], [3.0, 3.0]]))[0].tolist()
    [[3.0, 0.0], [1.0, 1.0]]
    """
    out = stream - stream.mean(axis=-1, keepdims=True) if norm.kind == "layer" else stream
    scale = inverse_root(mean_square(out), norm.eps)  # (...)
    out = out * scale[..., None]
    if norm.weight is not None:
        out *= norm.weight.astype(out.dtype, copy=False)
    if norm.bias is not None:
        out += norm.bias.astype(out.dtype, copy=False)
    return out, scale


def normed_heads(norm: HeadNorm, vectors: Array) -> Array:
    """Norm queries or keys (batch, head, position, d_head), each head or all together."""
    axes = (1, 3) if norm.across else (3,)
    out = vectors - vectors.mean(axis=axes, keepdims=True) if norm.kind == "layer" else vectors
    square = np.square(out).mean(axis=axes, keepdims=True)
    out = out * inverse_root(square, norm.eps)
    for part, join in ((norm.weight, np.multiply), (norm.bias, np.add)):
        if part is not None:
            join(out, part[:, None, :].astype(out.dtype, copy=False), out=out)
    return out


def mean_square(vectors: Array) -> Array:
    """Give the mean of the squares: (..., n) to (...)."""
    out: Array = np.einsum("...n,...n->...", vectors, vectors) / vectors.dtype.type(
        vectors.shape[-1]
    )
    return out


def inverse_root(square: Array, eps: float) -> Array:
    """Give 1 / sqrt(square + eps), and 0 where both are 0."""
    root = np.sqrt(square + square.dtype.type(eps))
    out: Array = np.divide(1, root, out=np.zeros_like(root), where=root != 0)
    return out
