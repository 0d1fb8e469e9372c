"""What must hold of any checkpoint: each layer adds what its parts write, the logits what is read.

They are looked at on a short probe when a checkpoint is loaded. A weight that was split, transposed
or folded wrongly keeps its shape; only these sums see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import TINY, LocalSizes, gamma
from pathexpand.errors import ModelError
from pathexpand.frozen import frozen_layer, unembed
from pathexpand.model.blocks import Blocks
from pathexpand.model.config import Config
from pathexpand.model.forward import Forward, LayerTrace, forward, logits
from pathexpand.model.weights import Block, Weights

Array = npt.NDArray[Any]
_LONGEST, _COLUMNS = 7, 64  # tokens of the probe, and logits that are looked at


@dataclass(frozen=True, slots=True)
class Identity:
    """One sum: what it is of, how far off it is at worst, and what rounding allows there."""

    subject: str
    error: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether rounding explains the error."""
        return self.error <= self.bound


def check_identities(weights: Weights, config: Config) -> None:
    """Refuse a checkpoint on which a sum does not hold; raises `ModelError` naming the layer."""
    size = min(_LONGEST, config.n_ctx)
    if isinstance(weights.blocks, Blocks):  # a look at each layer is no reason to keep it
        weights = replace(weights, blocks=weights.blocks.passing())
    size = min(_LONGEST, config.n_ctx)
    tokens = (1 + 7919 * np.arange(size, dtype=np.int64))[None] % config.d_vocab
    with np.errstate(over="ignore", invalid="ignore"):
        for each in identities(weights, config, tokens):
            _require(each)


def _require(identity: Identity) -> None:
    if not np.isfinite(identity.error + identity.bound):
        raise ModelError(
            "probe of the weights",
            wanted="finite numbers",
            got=f"overflow in {identity.subject}",
            remedy="the weights are too large for float64",
        )
    if not identity.holds:
        raise ModelError(
            identity.subject,
            wanted="a sum of what its parts write",
            got=f"one that is off by {identity.error:.2g}, where rounding allows "
            f"{identity.bound:.2g}",
            remedy="the weights do not fit together as this architecture says",
        )


def identities(weights: Weights, config: Config, tokens: npt.NDArray[np.int64]) -> list[Identity]:
    """Give the sums of one prompt (1, position): of each layer's parts, and of the logits."""
    found: list[Identity] = []

    def watch(layer: int, block: Block, trace: LayerTrace, before: Array, after: Array) -> None:
        found.extend(_of_layer(layer, block, trace, before[0], after[0]))

    run = forward(weights, config, tokens, np.ones(tokens.shape, dtype=bool), watch=watch)
    return [*found, _logits(weights, run)]


def _of_layer(
    layer: int, block: Block, trace: LayerTrace, before: Array, last: Array
) -> Iterator[Identity]:
    """Yield the sums of one layer: its heads one by one, and its MLP as it was written."""
    local = LocalSizes(block, trace, before, 0)
    sizes = [local.attention()] + ([local.added_mlp()] if block.mlp is not None else [])
    stages = frozen_layer(layer, block, trace, last)
    if len(stages) < len(sizes):  # one sum
        sizes = [(sizes[0][0] + sizes[1][0], sum(steps for _, steps in sizes))]
    parts = ["attention", "MLP"] if len(stages) > 1 else [""]
    for part, (stage, born, after), (size, steps) in zip(parts, stages, sizes, strict=True):
        found = before if stage.carry is None else stage.carry.push(before)
        for group in stage.groups:
            found = found + group.push(before)
        for _, values in born:
            found = found + values
        subject = f"layer {layer} {part}".strip()
        yield _worst(subject, abs(found - after), 4 * gamma(steps + len(after)) * size)
        before = after


def _logits(weights: Weights, run: Forward) -> Identity:
    """Compare some logits at the last position with those of the frozen way there."""
    last, place = run.residual[-1][0, -1], run.tokens.shape[1] - 1
    every, way = logits(weights, last), unembed(weights, run)
    columns = np.unique(np.linspace(0, len(every) - 1, _COLUMNS).astype(np.int64))
    sizes, steps = way.size(place, last)
    found = (way.logits(place, last) + way.constant(place))[columns]
    size = sizes @ abs(weights.unembed(columns)) + TINY
    size = size if weights.b_U is None else size + abs(weights.b_U[columns])
    bound = 4 * gamma(2 * len(last) + steps + 4) * size
    return _worst("logits", abs(found - every[columns]), bound)


def _worst(subject: str, error: Array, bound: Array) -> Identity:
    error, bound = (np.where(np.isfinite(each), each, np.inf) for each in (error, bound))
    ratio = np.where(np.isfinite(error), error / np.maximum(bound, TINY), np.inf)
    at = np.unravel_index(int(np.argmax(ratio)), error.shape)
    return Identity(subject, float(error[at]), float(bound[at]))
