"""Lengths of vectors and spectral norms of matrices, or a little more, whatever their scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_MORE = 1 + 1e-9  # covers the roundings of a length's own last steps


def lengths(array: Array) -> Array:
    """Give the lengths of vectors along the last axis, or a little more.

    >>> bool(5 <= lengths(np.array([3e200, 4e200])) / 1e200 < 5 + 1e-8)
    True
    """
    peak = abs(array).max(axis=-1, keepdims=True, initial=0.0)
    peak = np.where(peak == 0, 1.0, peak)
    out: Array = np.sqrt(((array / peak) ** 2).sum(axis=-1)) * peak[..., 0] * _MORE
    return out


def frobenius(matrices: Array) -> Array:
    """Give the Frobenius norms of matrices (…, n, m), or a little more."""
    return lengths(matrices.reshape(*matrices.shape[:-2], -1))


def spectral(matrices: Array) -> Array:
    """Bound the spectral norms of matrices (…, n, m), by the smaller of their Gram matrices.

    >>> bool(2 <= spectral(np.diag([2.0, 1.0])) < 2.001)
    True
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        matrices = np.swapaxes(matrices, -1, -2)
    whole = frobenius(matrices)
    unit = matrices / np.where(whole == 0, 1.0, whole)[..., None, None]
    gram = unit @ np.swapaxes(unit, -1, -2)  # of trace 1: its rounding is far below 1e-9
    largest = np.linalg.eigvalsh(gram).max(axis=-1, initial=0.0)
    out: Array = np.sqrt(np.clip(largest, 0.0, None) + 1e-9) * whole
    return out
