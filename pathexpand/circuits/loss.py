"""Next-token losses of many last streams in one pass over the vocabulary.

Logits of a large vocabulary are many and the unembedding is large: each piece of it is read once
for all streams, and what is kept of a piece is its part of the softmax.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import PathExpandError
from pathexpand.model.config import Config
from pathexpand.model.forward import capped
from pathexpand.model.rows import Rows

Array = npt.NDArray[Any]
_PIECE, _COLUMNS = 2**18, 128  # logits at once, which stay in the cache, and at least so many


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """What the unembedding reads at some positions, and what is added to its logits.

    Shapes: `rows` (n, d_model), `constant` (d_vocab_out,) or None.
    """

    rows: Array
    constant: Array | None = None


def losses(
    unembedding: Rows, config: Config, reads: Sequence[Read], labels: npt.NDArray[np.int64]
) -> Array:
    """Sum the cross-entropies of each read's rows with their labels (n,), in nats: (read,).

    Soft caps are applied. Raises `PathExpandError` where a read has no row for each label.

    >>> config = Config(n_layers=0, n_heads=0, d_model=2, d_head=0, d_vocab=4, n_ctx=1)
    >>> read = Read(np.zeros((3, 2)), np.log([1.0, 1.0, 1.0, 5.0]))
    >>> losses(Rows("W_U", np.ones((4, 2))), config, [read], np.array([0, 1, 2])).round(4)
    array([6.2383])
    """
    for read in reads:
        if len(read.rows) != len(labels):
            got = str(len(read.rows))
            raise PathExpandError("losses", wanted=f"{len(labels)} rows, one a label", got=got)
    sums = [_Softmax(read, labels) for read in reads]
    with np.errstate(over="ignore", invalid="ignore"):
        for at, columns in _pieces(unembedding, max(_PIECE // max(len(labels), 1), _COLUMNS)):
            for each in sums:
                each.add(at, columns, config)
        return np.array([each.loss() for each in sums])


def _pieces(unembedding: Rows, size: int) -> Iterator[tuple[slice, Array]]:
    """Yield the unembedding (d_vocab_out, d_model) in pieces of at most so many logits."""
    for chunk, columns in unembedding.chunks():
        for start in range(0, len(columns), size):
            piece = columns[start : start + size]
            first = chunk.start + start
            yield slice(first, first + len(piece)), piece


@dataclass(slots=True, eq=False)
class _Softmax:
    """The softmax of rows of logits, piece by piece: its largest logit, the sum, and the label's.

    The sum is of exp(logit − the largest so far), and is taken to the new largest as that grows.
    """

    read: Read
    labels: npt.NDArray[np.int64]
    top: Array = field(init=False)
    total: Array = field(init=False)
    wanted: Array = field(init=False)

    def __post_init__(self) -> None:
        """Begin before the first piece."""
        self.top = np.full(self.labels.shape, -np.inf)
        self.total, self.wanted = np.zeros((2, *self.labels.shape))

    def add(self, at: slice, columns: Array, config: Config) -> None:
        """Take in the logits of some columns (piece, d_model) of the unembedding."""
        values = self.read.rows @ columns.T  # (n, piece)
        if self.read.constant is not None:
            values += self.read.constant[at]
        values = capped(config, values)
        here = np.flatnonzero((self.labels >= at.start) & (self.labels < at.stop))
        self.wanted[here] = values[here, self.labels[here] - at.start]
        top = np.maximum(self.top, values.max(axis=1))
        values -= top[:, None]
        np.exp(values, out=values)
        self.total *= np.exp(self.top - top)
        self.total += values.sum(axis=1)
        self.top = top

    def loss(self) -> float:
        """Give the sum over rows of log Σ exp(logits) − the label's logit."""
        return float((np.log(self.total) + (self.top - self.wanted)).sum())
