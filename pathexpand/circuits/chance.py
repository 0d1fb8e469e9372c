"""What a composition score is by chance, when two heads meet at a random angle.

A score depends on the two factors next to the stream: on their singular values, and on how their
singular directions lie to each other. Chance keeps the singular values and turns one factor by a
random rotation: then the directions meet in a corner of a random orthogonal matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import PathExpandError

Array = npt.NDArray[Any]

_ROOM = 2**21  # numbers of one batch of samples
_MOST = 64  # samples of a batch
_EQUAL = 1 - 1e-9  # where chance can give one value only, rounding must not make it smaller


@dataclass(frozen=True, slots=True, eq=False)
class Chance:
    """What chance gives for every pair: (writer, reader) each.

    `mean` and `sd` are those of the score, `p` is (1 + samples at least as large as the score) /
    (1 + samples).
    """

    mean: Array
    sd: Array
    p: Array
    samples: int

    def __post_init__(self) -> None:
        """Refuse arrays of different shapes."""
        if not self.mean.shape == self.sd.shape == self.p.shape:
            raise PathExpandError("chance", wanted="three arrays of one shape")


def squared_corners(
    rng: np.random.Generator, size: int, rows: int, columns: int, count: int
) -> Array:
    """Draw the squared entries of corners of random orthogonal matrices: (count, rows, columns).

    The matrices are (size, size) and of the uniform (Haar) distribution; nothing of that size is
    made. A Gaussian (size, columns) matrix is Q R with a uniform frame Q, and its rows below the
    corner matter through their own triangular factor alone, whose entries are known: chi on the
    diagonal, normal above (Bartlett 1933).

    >>> corner = squared_corners(np.random.default_rng(0), 7, 3, 2, 2000)
    >>> corner.shape, bool(abs(corner.mean() * 7 - 1) < 0.05)
    ((2000, 3, 2), True)
    """
    if not (0 < rows <= size and 0 < columns <= size):
        raise PathExpandError(
            "corner", wanted=f"1 to {size} rows and columns", got=f"{rows} and {columns}"
        )
    below = size - rows
    corner = rng.standard_normal((count, rows, columns))
    rest = (
        _triangles(rng, below, columns, count)
        if below >= columns
        else rng.standard_normal((count, below, columns))
    )
    frames = np.linalg.qr(np.concatenate([corner, rest], axis=1))[0]
    return np.asarray(np.square(frames[:, :rows]))  # the signs of columns are squared away


def spectrum_chance(
    scores: Array, writers: Array, readers: Array, *, size: int, samples: int, seed: int
) -> Chance:
    """Compare scores (writer, reader) with those of the same spectra at random angles.

    `writers` (writer, i) and `readers` (reader, j) hold the singular values of the factors next to
    the stream, each row of length 1, or 0; `size` is the width in which they meet. By chance
    score² = Σ_ij a_i² G_ij² b_j² with a corner G of a random orthogonal matrix. The same corners
    serve all pairs: each p-value holds by itself, but they are not independent of each other.

    >>> flat = np.full((1, 2), 0.5**0.5)
    >>> found = spectrum_chance(np.ones((1, 1)), flat, flat, size=7, samples=400, seed=0)
    >>> bool(abs(found.mean[0, 0] - (1 / 7) ** 0.5) < 0.03), bool(found.p[0, 0] < 0.01)
    (True, True)
    """
    total, square, above = (np.zeros(scores.shape) for _ in range(3))
    centre = size**-0.5  # near the mean, so that the sum of squares keeps its digits
    for drawn in _drawn(writers, readers, size=size, samples=samples, seed=seed):
        above += (drawn >= scores * _EQUAL).sum(axis=0)  # (sample, writer, reader) summed over
        drawn -= centre
        total += drawn.sum(axis=0)
        square += np.square(drawn).sum(axis=0)
    mean = total / samples
    sd = np.sqrt(np.maximum(square / samples - np.square(mean), 0))
    return Chance(mean + centre, sd, (1 + above) / (1 + samples), samples)


def _drawn(
    writers: Array, readers: Array, *, size: int, samples: int, seed: int
) -> Iterator[Array]:
    """Yield scores by chance in batches: (sample, writer, reader)."""
    rng = np.random.default_rng(seed)
    a = np.square(writers[:, :size])  # what is beyond the width is 0: a norm took it
    b = np.square(readers[:, :size]).T
    most = max(len(writers) * max(len(readers), writers.shape[1]), 1)
    step = min(max(_ROOM // most, 1), _MOST)
    for start in range(0, samples, step):
        count = min(step, samples - start)
        corners = squared_corners(rng, size, a.shape[1], b.shape[0], count)
        yield np.sqrt(a @ corners @ b)  # (writer, i) (sample, i, j) (j, reader)


def _triangles(rng: np.random.Generator, rows: int, columns: int, count: int) -> Array:
    """Draw the triangular factors of Gaussian (rows, columns) matrices: (count, columns, columns).

    Needs rows >= columns.
    """
    out = np.triu(rng.standard_normal((count, columns, columns)), 1)
    diagonal = np.sqrt(rng.chisquare(rows - np.arange(columns), (count, columns)))
    out[:, np.arange(columns), np.arange(columns)] = diagonal
    return out
