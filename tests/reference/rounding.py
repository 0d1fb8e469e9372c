"""How far two float64 passes over one model may be apart, and how far a run is from stored ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import Forward

Array = npt.NDArray[Any]
UNIT = float(np.finfo(np.float64).eps) / 2


def within(checkpoint: Checkpoint, positions: int) -> float:
    """Bound the difference of two passes over one model, relative to the largest number compared.

    A sum of n products, in any order, is off by at most n u times the sum of their sizes (Higham,
    section 3.1), and errors of successive steps add up to first order. So along the longest chain
    of sums a pass collects one u for each of their lengths: over d_model where attention and the
    MLP read the stream and where a norm takes its mean and its scale, over d_head in the scores,
    over the positions where a head mixes, over all heads and over d_mlp where they write.
    What an error becomes further on is a matter of the weights. Those compared here are random,
    of the order of one over the root of what they sum over, so that no step enlarges it by more
    than a small factor: 8 covers it, the sizes above the sums, and that there are two passes.
    """
    config = checkpoint.config
    norms = 6 * 2 * config.d_model
    layer = 2 * config.d_model + config.d_head + positions + config.n_heads * config.d_head
    steps = config.n_layers * (norms + layer + config.d_mlp) + 3 * config.d_model
    return 8 * steps * UNIT


def apart(ours: Array, theirs: Array, real: Array) -> float:
    """Give the largest difference at real positions, over the largest number there."""
    assert ours.shape == theirs.shape
    assert ours.dtype == np.float64
    return float(abs(ours - theirs)[real].max() / abs(theirs[real]).max())


def patterns_apart(run: Forward, theirs: list[Array]) -> float:
    """Give the largest difference of patterns (batch, head, query, key) at real queries."""
    assert len(run.patterns) == len(theirs)
    pairs = zip(run.patterns, theirs, strict=True)
    turned = ((np.swapaxes(one, 1, 2), np.swapaxes(other, 1, 2)) for one, other in pairs)
    return max((float(abs(one - other)[run.mask].max()) for one, other in turned), default=0.0)
