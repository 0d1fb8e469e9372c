"""Merges features that are the same: one feature writes what all of them wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pathexpand.errors import ModelError
from pathexpand.model.parts import Array
from pathexpand.train.features.dictionary import Dictionary

ALIKE = 1e-3  # rows of W_dec at length 1, no farther apart, count as the same


@dataclass(frozen=True, kw_only=True)
class Merging:
    """Holds how many features a layer had and has, and how many of these only fill it up."""

    before: int
    after: int
    padding: int

    def __post_init__(self) -> None:
        """Refuse numbers that no merging gives; raises `ModelError`."""
        wanted = "0 or more, of no more features than before"
        if not 0 <= self.padding <= self.after <= self.before:
            raise ModelError("padding", wanted=wanted, got=str(self))


def rounded(features: Dictionary) -> Dictionary:
    """Give features as they are stored, in float16, in float64: those are what is compared."""
    return features.cast(np.float16).cast(np.float64)


def merged(layers: Sequence[Dictionary]) -> tuple[Dictionary, ...]:
    """Merge the features of each layer that are the same, and keep all layers equally wide.

    Nothing takes the place of the merged ones: the widest layer's width is everyone's, and a
    layer with fewer is filled up by features that are never active.

    >>> layer = Dictionary(
    ...     W_enc=np.array([[1.0], [2.0], [1.0]]),
    ...     b_enc=np.zeros(3),
    ...     threshold=np.ones(3),
    ...     W_dec=np.array([[3.0, 0.0], [5.0, 5.0], [0.0, 4.0]]),
    ...     b_dec=np.zeros(2),
    ... )
    >>> (one,) = merged([layer])
    >>> one.W_enc.tolist(), one.W_dec.tolist()
    ([[1.0], [2.0]], [[3.0, 4.0], [5.0, 5.0]])
    """
    apart = [merged_layer(features) for features in layers]
    width = max((len(features.b_enc) for features in apart), default=0)
    return tuple(padded(features, width) for features in apart)


def mergings(layers: Sequence[Dictionary]) -> tuple[Merging, ...]:
    """Tell what `merged` does to each layer."""
    left = [len(np.unique(firsts(features))) for features in layers]
    return tuple(
        Merging(before=len(features.b_enc), after=max(left), padding=max(left) - kept)
        for features, kept in zip(layers, left, strict=True)
    )


def merged_layer(features: Dictionary) -> Dictionary:
    """Merge features with equal encoder rows, biases and thresholds; what they write adds up.

    Features keep their order, a merged one the place of the first. The function stays the same:
    equal features have equal activations a, and a · row + a · row' = a · (row + row').
    """
    kept, member = np.unique(firsts(features), return_inverse=True)  # (kept,), (feature,)
    W_dec = np.zeros((len(kept), features.W_dec.shape[1]), dtype=features.W_dec.dtype)
    np.add.at(W_dec, member.reshape(-1), features.W_dec)
    return replace(
        features,
        W_enc=features.W_enc[kept],
        b_enc=features.b_enc[kept],
        threshold=features.threshold[kept],
        W_dec=W_dec,
    )


def firsts(features: Dictionary) -> NDArray[np.intp]:
    """Give each feature the index of the first one with the same encoder, (feature,)."""
    whole = [features.W_enc, features.b_enc[:, None], features.threshold[:, None]]
    read = np.concatenate(whole, axis=1)  # (feature, d_in + 2)
    _, first, group = np.unique(read, axis=0, return_index=True, return_inverse=True)
    return np.asarray(first[group.reshape(-1)])


def padded(features: Dictionary, width: int) -> Dictionary:
    """Add features that are never active: they read nothing, against a threshold of 1."""
    more = width - len(features.b_enc)

    def filled(array: Array, value: float = 0.0) -> Array:
        rest = np.full((more, *array.shape[1:]), value, dtype=array.dtype)  # (more, …)
        return np.concatenate([array, rest])  # (width, …)

    return replace(
        features,
        W_enc=filled(features.W_enc),
        b_enc=filled(features.b_enc),
        threshold=filled(features.threshold, 1.0),
        W_dec=filled(features.W_dec),
    )


def alike(features: Dictionary) -> dict[str, int]:
    """Count pairs with the same row of W_dec to 1e-3 of its length, and those equal throughout.

    Features that write nothing at all are no pair: they only fill up a layer.
    """
    length = np.linalg.norm(features.W_dec, axis=1)  # (feature,)
    writing = np.flatnonzero(length)
    rows = features.W_dec[writing] / length[writing, None]  # (writing, d_out)
    first, group = firsts(features)[writing], features.W_dec[writing]
    near = equal = 0
    for place in range(len(rows) - 1):
        close = np.linalg.norm(rows[place + 1 :] - rows[place], axis=1) <= ALIKE  # (later,)
        same = (first[place + 1 :] == first[place]) & (group[place + 1 :] == group[place]).all(1)
        near += int(close.sum())
        equal += int(same.sum())
    return {"decoder": near, "whole": equal}
