"""Which features are on: activation functions over pre-activations, kept as a sparse list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
Activation = Literal["relu", "jumprelu", "topk", "groupmax", "gated", "identity"]
TopkRule = Literal["relu_then_topk", "topk_then_relu", "topk"]


@dataclass(frozen=True, slots=True, eq=False)
class Active:
    """The features of one layer that are on, sorted by position and then by feature.

    Shapes: `positions`, `features`, `pre` and `act` (n,): where, which, the pre-activation and the
    activation. Where the unit has a norm of its own, it multiplied each input by `scale`
    (position,), and decoded vectors are multiplied by `back` (position,) and get `shift`
    (position, 1) added: 1, 1 and 0 without. All three are held fixed.
    """

    positions: Indices
    features: Indices
    pre: Array
    act: Array
    scale: Array
    back: Array
    shift: Array

    def __len__(self) -> int:
        """Give the number of features that are on, over all positions."""
        return int(self.positions.size)

    def at(self, position: int) -> slice:
        """Give where the features of one position stand in the list."""
        start, stop = np.searchsorted(self.positions, (position, position + 1))
        return slice(int(start), int(stop))


@dataclass(slots=True)
class Collected:
    """Features that are on, gathered piece by piece."""

    parts: list[tuple[Indices, Indices, Array, Array]]

    def add(self, positions: Indices, features: Indices, pre: Array, act: Array) -> None:
        """Add some, in any order."""
        on = act != 0
        self.parts.append((positions[on], features[on], pre[on], act[on]))

    def sorted(self, scale: Array, back: Array, shift: Array) -> Active:
        """Give them all, sorted by position and then by feature."""
        none = np.zeros(0, np.int64)
        empty = (none, none, np.zeros(0), np.zeros(0))
        joined = [np.concatenate(each) for each in zip(empty, *self.parts, strict=True)]
        order = np.lexsort((joined[1], joined[0]))
        positions, features, pre, act = (each[order] for each in joined)
        return Active(positions, features, pre, act, scale, back, shift)


def on_above(pieces: Iterator[tuple[int, Array, Array]]) -> Collected:
    """Keep what is strictly above its threshold.

    Each piece is where its features start, their pre-activations (position, n), and whether each
    is on (position, n).
    """
    found = Collected([])
    for start, pre, on in pieces:
        positions, columns = np.nonzero(on)
        values = pre[positions, columns]
        found.add(positions, columns + start, values, values)
    return found


def on_top(pieces: Iterator[tuple[int, Array, Array]], k: int, *, rectified: bool) -> Collected:
    """Keep the k features of each position with the highest rank; of equal ones, the lower index.

    Each piece is where its features start, their pre-activations and their ranks (position, n).
    With `rectified`, those at or below 0 are off; otherwise negative activations stay.
    """
    best: tuple[Indices, Array, Array] | None = None
    for start, pre, rank in pieces:
        features = np.broadcast_to(np.arange(start, start + pre.shape[1]), pre.shape)
        joined = (features, pre, rank)
        if best is not None:
            joined = tuple(np.concatenate(pair, axis=1) for pair in zip(best, joined, strict=True))  # type: ignore[assignment]
        keep = highest(joined[2], k)  # (position, n), as many in each row
        best = tuple(each[keep].reshape(len(keep), -1) for each in joined)  # type: ignore[assignment]
    found = Collected([])
    if best is None:
        return found
    features, pre, _ = best
    positions = np.broadcast_to(np.arange(len(pre))[:, None], pre.shape)
    act = np.maximum(pre, 0) if rectified else pre
    found.add(positions.ravel(), features.ravel(), pre.ravel(), act.ravel())
    return found


def highest(values: Array, k: int) -> npt.NDArray[np.bool_]:
    """Mark the k largest of each row (all, if there are fewer); of equal ones the first.

    >>> highest(np.array([[1.0, 3.0, 3.0, 3.0]]), 2).tolist()
    [[False, True, True, False]]
    """
    count = values.shape[1]
    if k >= count:
        return np.ones(values.shape, dtype=bool)
    least = np.partition(values, count - k, axis=1)[:, count - k, None]
    above, equal = values > least, values == least
    room = k - above.sum(axis=1, keepdims=True)
    out: npt.NDArray[np.bool_] = above | (equal & (np.cumsum(equal, axis=1) <= room))
    return out
