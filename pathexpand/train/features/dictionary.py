"""A dictionary of features: what an SAE or a transcoder computes, in numpy, as it is stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pathexpand.errors import ModelError
from pathexpand.model.parts import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Dictionary:
    """Features that read one array and stand for another, or, in an SAE, for the same.

    Shapes, rows being features: `W_enc` (feature, d_in), `b_enc` and `threshold` (feature,),
    `W_dec` (feature, d_out), `b_dec` (d_out,), `skip` (d_in, d_out) or None. A feature is active
    where x · W_enc + b_enc is above its threshold (JumpReLU); raises `ModelError`.

    >>> one = Dictionary(
    ...     W_enc=np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
    ...     b_enc=np.zeros(3),
    ...     threshold=np.ones(3),
    ...     W_dec=np.array([[2.0], [3.0], [5.0]]),
    ...     b_dec=np.array([7.0]),
    ... )
    >>> one.encode(np.array([[1.0, 2.0]])).tolist()
    [[0.0, 2.0, 3.0]]
    >>> one(np.array([[1.0, 2.0]])).tolist()
    [[28.0]]
    """

    W_enc: Array
    b_enc: Array
    threshold: Array
    W_dec: Array
    b_dec: Array
    skip: Array | None = None

    def __post_init__(self) -> None:
        """Refuse shapes that do not meet, and thresholds below zero."""
        n_features, d_in = self.W_enc.shape
        d_out = self.W_dec.shape[1]
        wanted = {
            "b_enc": (n_features,),
            "threshold": (n_features,),
            "W_dec": (n_features, d_out),
            "b_dec": (d_out,),
            "skip": (d_in, d_out),
        }
        for name, shape in wanted.items():
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise ModelError(f"features {name}", wanted=str(shape), got=str(array.shape))
        if (self.threshold < 0).any():
            raise ModelError("features threshold", wanted="0 or more", got="less")

    def __call__(self, reads: Array) -> Array:
        """Give what the features make of what they read: (..., d_in) to (..., d_out)."""
        return self.decode(self.encode(reads), reads)

    def encode(self, reads: Array) -> Array:
        """Give every feature's activation, dense: (..., d_in) to (..., feature)."""
        before = reads @ self.W_enc.T + self.b_enc  # (..., feature)
        return np.where(before > self.threshold, before, 0).astype(before.dtype, copy=False)

    def decode(self, activations: Array, reads: Array) -> Array:
        """Give what activations write: (..., feature) to (..., d_out)."""
        written: Array = activations @ self.W_dec + self.b_dec  # (..., d_out)
        return written if self.skip is None else written + reads @ self.skip

    def cast(self, dtype: type[np.floating]) -> Dictionary:
        """Give the same features in another format."""
        skip = self.skip
        return Dictionary(
            W_enc=self.W_enc.astype(dtype),
            b_enc=self.b_enc.astype(dtype),
            threshold=self.threshold.astype(dtype),
            W_dec=self.W_dec.astype(dtype),
            b_dec=self.b_dec.astype(dtype),
            skip=None if skip is None else skip.astype(dtype),
        )
