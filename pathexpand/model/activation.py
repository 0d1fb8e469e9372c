"""Activation functions, each as its gate: act(z) = gate(z) · z."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError
from pathexpand.model.shown import shown

Array = npt.NDArray[Any]


def gate(act: str, z: Array) -> Array:
    """Give act(z) / z, with the limit where z is 0, by a formula that divides by nothing.

    >>> gate("relu", np.array([-2.0, 0.0, 2.0])).tolist(), gate("silu", np.zeros(1)).tolist()
    ([0.0, 0.0, 1.0], [0.5])
    """
    return GATES[act](z)


def check_activation(act: object, key: str = "act_fn") -> str:
    """Give the name of an activation function that is known; raises `ModelError`.

    `key` is what it is called where it was written.
    """
    if not isinstance(act, str) or act not in GATES:
        raise ModelError(
            f"config {key} {shown(act)}: not supported",
            remedy=f"known activation functions are {', '.join(sorted(GATES))}",
        )
    return act


def _relu(z: Array) -> Array:
    return (z > 0).astype(z.dtype)


def _squared_relu(z: Array) -> Array:
    return np.maximum(z, 0)


def _sigmoid(z: Array) -> Array:
    # tanh overflows nowhere, and loses no more than a rounding of 1.
    out = np.tanh(0.5 * z)
    out += 1
    out *= 0.5
    return out


def _quick(z: Array) -> Array:
    return _sigmoid(z * z.dtype.type(1.702))


def _tanh_gelu(slope: float) -> Callable[[Array], Array]:
    """Give the gate of GELU's approximation 0.5 (1 + tanh(slope (z + 0.044715 z³)))."""

    def gate(z: Array) -> Array:
        number = z.dtype.type
        out = z * z
        out *= number(0.044715 * slope)
        out += number(slope)
        out *= z
        np.tanh(out, out=out)
        out += 1
        out *= number(0.5)
        return out

    return gate


def _log_tail(degree: int) -> list[float]:
    """Fit log(erfc(x) / t) + x² by a polynomial in u, for t = 2 / (2 + x) and x from 0 to 8.

    u runs from -1 to 1 as t runs from its least value to 1; the fit is exact at Chebyshev points.
    With degree 20 the distribution function below is off by 4e-16, with degree 8 by 2e-8.
    """

    def values(u: Any) -> Any:
        t = _LEAST + (u + 1) / 2 * (1 - _LEAST)
        pairs = [(2 / each - 2, each) for each in t.tolist()]
        return np.array([math.log(math.erfc(x) / each) + x * x for x, each in pairs])

    fitted = np.polynomial.chebyshev.chebinterpolate(values, degree)
    return [float(each) for each in np.polynomial.chebyshev.cheb2poly(fitted)]


def _gelu(z: Array) -> Array:
    """Give the normal distribution function, as erfc(|z| / √2) / 2 or 1 less it."""
    number = z.dtype.type
    x = np.abs(z)
    x *= number(math.sqrt(0.5))
    t = 2 / (2 + x)
    u = t - number(_LEAST)
    u *= number(2 / (1 - _LEAST))
    u -= 1
    np.maximum(u, -1, out=u)  # erfc is nothing beyond, whatever the polynomial says
    terms = _TAIL if z.dtype == np.float64 else _SHORT_TAIL
    tail = np.full_like(u, terms[-1])
    for term in terms[-2::-1]:
        tail *= u
        tail += number(term)
    x *= x
    tail -= x
    np.exp(tail, out=tail)
    tail *= t
    tail *= number(0.5)
    out: Array = np.where(z > 0, 1 - tail, tail)
    return out


_LEAST = 2 / (2 + 8)
_TAIL, _SHORT_TAIL = _log_tail(20), _log_tail(8)
GATES: dict[str, Callable[[Array], Array]] = {
    "relu": _relu,
    "relu2": _squared_relu,
    "gelu": _gelu,
    "gelu_python": _gelu,
    "gelu_new": _tanh_gelu(math.sqrt(2 / math.pi)),
    "gelu_python_tanh": _tanh_gelu(math.sqrt(2 / math.pi)),
    "gelu_accurate": _tanh_gelu(math.sqrt(2 / math.pi)),
    "gelu_pytorch_tanh": _tanh_gelu(math.sqrt(2 / math.pi)),
    "gelu_fast": _tanh_gelu(0.7978845608),
    "bloom_gelu": _tanh_gelu(0.79788456),
    "silu": _sigmoid,
    "swish": _sigmoid,
    "quick_gelu": _quick,
}
