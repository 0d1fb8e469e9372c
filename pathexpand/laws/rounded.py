"""How far rounding can take each step of a pass that is not linear: norms, gates, attention.

Each function takes numbers and bounds on how far they are off, and bounds how far off the result
is, whichever way it is worked out. Bounds are entry by entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import TINY, gamma
from pathexpand.model.weights import Norm

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Normed:
    """A norm worked out by itself: its scale (position,), what comes out (position, d_model).

    `scale_wide` and `wide` bound how far each is off.
    """

    scale: Array
    scale_wide: Array
    values: Array
    wide: Array


def normed(norm: Norm, values: Array, wide: Array) -> Normed:
    """Norm vectors (position, d_model), each entry off by at most `wide`.

    >>> one = np.array([[1.0, -1.0]])
    >>> normed(Norm("layer", None, None, 0.0), one, 0 * one).scale
    array([1.])
    """
    size = values.shape[-1]
    centred, off = values, wide
    if norm.kind == "layer":
        centred = values - values.mean(axis=-1, keepdims=True)
        sizes = abs(values) + abs(values).mean(axis=-1, keepdims=True)
        off = wide + wide.mean(axis=-1, keepdims=True) + gamma(size + 2) * sizes
    off = off + TINY
    square = (centred**2).mean(axis=-1) + norm.eps
    lost = (2 * abs(centred) * off + off**2).mean(axis=-1)
    lost = lost + gamma(size + 4) * (((abs(centred) + off) ** 2).mean(axis=-1) + norm.eps)
    scale, scale_wide = _inverse_root(square, lost, norm.eps)
    weight = 1.0 if norm.weight is None else abs(norm.weight)
    out = centred * scale[..., None] * (1.0 if norm.weight is None else norm.weight)
    most = (scale + scale_wide)[..., None]
    spread = weight * (off * most + abs(centred) * scale_wide[..., None])
    spread = spread + gamma(4) * abs(out) + TINY
    if norm.bias is not None:
        out, spread = out + norm.bias, spread + gamma(1) * (abs(out) + abs(norm.bias))
    return Normed(scale, scale_wide, out, spread)


def _inverse_root(square: Array, lost: Array, eps: float) -> tuple[Array, Array]:
    """Give 1/√square, 0 where that is 0, and how far it is off where the square is by `lost`."""
    root = np.sqrt(square)
    scale = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)
    share = np.divide(lost, square, out=np.full_like(root, np.inf), where=square > 0)
    near = share < 0.5
    grown = np.divide(1.0, np.sqrt(1 - np.where(near, share, 0.0))) - 1
    # Whatever is lost, the square is not less than eps.
    most = 1 / math.sqrt(eps) if eps > 0 else math.inf
    wide = np.where(near, scale * grown, most) + gamma(6) * scale
    return scale, wide


# --- gates --------------------------------------------------------------------------------------

_PHI = math.sqrt(2 / math.pi)


def _sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


def _tanh_gelu(slope: float) -> Callable[[float], float]:
    return lambda z: 0.5 * (1 + math.tanh(slope * (z + 0.044715 * z * z * z)))


def _normal(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


# act(z) / z of every activation function; each rises with z.
GATES: dict[str, Callable[[float], float]] = {
    "relu": lambda z: float(z > 0),
    "relu2": lambda z: max(z, 0.0),
    "silu": _sigmoid,
    "swish": _sigmoid,
    "quick_gelu": lambda z: _sigmoid(1.702 * z),
    "gelu": _normal,
    "gelu_python": _normal,
    "gelu_fast": _tanh_gelu(0.7978845608),
    "bloom_gelu": _tanh_gelu(0.79788456),
    **dict.fromkeys(
        ("gelu_new", "gelu_python_tanh", "gelu_accurate", "gelu_pytorch_tanh"), _tanh_gelu(_PHI)
    ),
}


def gated(act: str, values: Array, wide: Array) -> tuple[Array, Array]:
    """Give act(z) / z by itself, and how far it is off where z is by `wide`.

    >>> gates, wide = gated("relu", np.array([2.0, 0.0]), np.array([0.1, 0.1]))
    >>> gates.tolist(), bool(wide[1] >= 1)
    ([1.0, 0.0], True)
    """
    gate = np.vectorize(GATES[act], otypes=[float])
    middle, low, high = gate(values), gate(values - wide), gate(values + wide)
    # tanh, exp and erf are off by a few units of what they give, and of their argument.
    own = gamma(64) * (1 + abs(middle))
    return middle, np.maximum(high - middle, middle - low) + own


def opened(act: str, values: Array, wide: Array) -> tuple[Array, Array]:
    """Give act(z) by itself, and how far it is off where z is by `wide`."""
    gates, off = gated(act, values, wide)
    spread = abs(gates) * wide + abs(values) * off + wide * off
    return gates * values, spread + gamma(2) * abs(gates * values) + TINY


# --- scores -------------------------------------------------------------------------------------


def lengths(vectors: Array) -> Array:
    """Give the lengths of vectors (…, n), or a little more."""
    return np.asarray(np.linalg.norm(vectors, axis=-1) * (1 + 1e-9) + TINY)
