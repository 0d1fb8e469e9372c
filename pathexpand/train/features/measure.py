"""Measures features: how much they leave out, how many are active, what the model makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.parts import Array
from pathexpand.train.features.dictionary import Dictionary
from pathexpand.train.features.passing import Replace, Tokens, last_stream, losses
from pathexpand.train.features.rows import AT_ONCE, Rows

ROWS_AT_ONCE = 8192


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Holds how well features stand for an array.

    `fvu` is the sum of squared errors over the sum of squared distances to the mean, all
    positions and dimensions together; `l0` the mean number of active features at a position;
    `dead` the number of features that are active nowhere.
    """

    fvu: float
    l0: float
    dead: int
    positions: int


def quality(features: Dictionary, rows: Rows) -> Quality:
    """Measure features on rows."""
    error = total = active = 0.0
    ever = np.zeros(len(features.b_enc), dtype=bool)  # (feature,)
    mean = rows.writes.mean(axis=0, dtype=np.float64)  # (d_out,)
    for start in range(0, len(rows.reads), ROWS_AT_ONCE):
        reads = rows.reads[start : start + ROWS_AT_ONCE]  # (row, d_in)
        writes = rows.writes[start : start + ROWS_AT_ONCE]  # (row, d_out)
        activations = features.encode(reads)  # (row, feature)
        error += squares(writes - features.decode(activations, reads))
        total += squares(writes - mean)
        active += np.count_nonzero(activations)
        ever |= activations.any(axis=0)
    return Quality(
        fvu=error / total,
        l0=active / len(rows.reads),
        dead=int(np.count_nonzero(~ever)),
        positions=len(rows.reads),
    )


def squares(array: Array) -> float:
    """Give the sum of squares, in float64."""
    return float(np.square(array, dtype=np.float64).sum())


def mean_loss(
    checkpoint: Checkpoint,
    tokens: Tokens,
    *,
    streams: Mapping[int, Replace] | None = None,
    mlps: Mapping[int, Replace] | None = None,
    dtype: type[np.floating] = np.float32,
) -> float:
    """Give the mean loss in nats a token with parts replaced, as in `last_stream`."""
    total = 0.0
    for start in range(0, len(tokens), AT_ONCE):
        part = tokens[start : start + AT_ONCE]  # (batch, position)
        stream = last_stream(checkpoint, part, streams=streams, mlps=mlps, dtype=dtype)
        total += float(losses(checkpoint, stream, part).sum(dtype=np.float64))
    return total / tokens[:, 1:].size


def constant(mean: Array) -> Replace:
    """Give a part that writes the same everywhere: what is lost when nothing is known."""

    def replaced(reads: Array) -> Array:
        return np.broadcast_to(mean, reads.shape[:-1] + mean.shape).astype(reads.dtype)

    return replaced
