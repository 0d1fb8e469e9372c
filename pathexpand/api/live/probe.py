"""Whether an object computes what we read out of it: both are run on a few tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api.live.tensors import as_array, at_rest, loaded_torch, token_tensor
from pathexpand.errors import ModelError
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.config import Config
from pathexpand.model.forward import capped, forward, read_stream
from pathexpand.model.shown import cut

_LENGTH = 8
_REMEDY = (
    "it does not compute what its weights and configuration say (hooks, adapters, a forward pass "
    "of its own?); check=False takes them all the same"
)


def check_logits(
    checkpoint: Checkpoint, module: Any, run: Callable[[Any], Any], *, headless: bool = False
) -> None:
    """Compare the logits that an object gives for a few tokens with ours.

    `run` maps token ids (1, position) to logits (1, position, d_vocab_out), or for a `headless`
    model to the stream that an unembedding would read; `module` has its dropout switched off
    meanwhile. Half of the digits of the object's number format (float32 at best: many norms are
    computed in it) must agree, relative to the largest logit; a wrong reading costs them all.
    Raises `ModelError`.
    """
    ids = probe_tokens(checkpoint.config)  # (1, position)
    try:
        with at_rest(module):
            given = run(token_tensor(module, ids))
    except Exception as error:  # whatever the object's own code raises
        raise ModelError(
            "model",
            wanted=f"one that runs on {ids.size} tokens",
            got=cut(f"{type(error).__name__}: {' '.join(str(error).split())}", 200),
            remedy="check=False takes its weights without running it",
        ) from error
    theirs = as_array("logits", given).astype(np.float64)
    ours = _own(checkpoint, ids, headless=headless)
    if theirs.shape != ours.shape:
        got = f"shape {theirs.shape}"
        raise ModelError("model", wanted=f"logits of shape {ours.shape}", got=got, remedy=_REMEDY)
    size = float(abs(theirs).max())
    apart = float(abs(theirs - ours).max()) / (size or 1.0)
    allowed = half_digits(given.dtype)
    if not apart <= allowed:
        what = "last stream" if headless else "logits"
        raise ModelError(
            f"model: its {what} on {ids.size} tokens and ours",
            wanted=f"a difference of at most {allowed:.1e} of the largest",
            got=f"{apart:.1e}",
            remedy=_REMEDY,
        )


def probe_tokens(config: Config) -> npt.NDArray[np.int64]:
    """Give a few ids from all over a vocabulary: (1, position).

    They are fewer than what makes rotary angles grow, which the object would not forget, and
    than what it forgets an earlier growth at.

    >>> probe_tokens(Config(n_layers=0, n_heads=0, d_model=1, d_head=0, d_vocab=100, n_ctx=4))
    array([[20, 40, 60, 80]])
    """
    longest = [each.longest for each in config.rotary if each is not None and each.longest]
    length = max(min(_LENGTH, config.n_ctx, *(each - 1 for each in longest)), 1)
    return (np.arange(1, length + 1) * config.d_vocab // (length + 1))[None]


def half_digits(dtype: Any) -> float:
    """Give the square root of a torch number format's rounding step, of float32's at best."""
    step = max(float(loaded_torch().finfo(dtype).eps), float(np.finfo(np.float32).eps))
    return math.sqrt(step)


def _own(checkpoint: Checkpoint, ids: npt.NDArray[np.int64], *, headless: bool) -> Any:
    weights, config = checkpoint.weights, checkpoint.config
    everywhere = np.ones(ids.shape, dtype=bool)
    # float32 takes half the time and memory of float64 for a large model, and suffices here.
    with np.errstate(over="ignore", invalid="ignore"):
        dense = forward(weights, config, ids, everywhere, dtype=np.float32)
        reading = read_stream(weights, dense.residual[-1])  # (1, position, d_model)
        if headless:
            return reading.stream
        return capped(config, weights.logits(reading.stream))  # (1, position, d_vocab_out)
