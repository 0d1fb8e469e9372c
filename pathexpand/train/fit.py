"""Fits a network to the curriculum."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from pathexpand.train.curriculum import Curriculum
from pathexpand.train.network import Network

LEARNING_RATE = 3e-3
BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.01
WARM_UP = 200
CLIP = 1.0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Holds how far a fit has come: `loss` is the mean over the steps since the last report."""

    step: int
    tokens: int
    seconds: float
    loss: float


def fit(
    network: Network, curriculum: Curriculum, *, steps: int, seed: int, report_every: int
) -> Iterator[Progress]:
    """Train `network` in place, one AdamW step a batch, and report now and then."""
    generator = np.random.default_rng(seed)
    weights = list(network.weights.values())
    optimizer = torch.optim.AdamW(
        weights, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    started, total = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        rows = torch.from_numpy(curriculum.batch((step - 1) / steps, generator))
        logits = network.logits(rows[:, :-1])  # (row, position, d_vocab)
        loss = cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        schedule.step()
        total += loss.item()
        if step % report_every == 0 or step == steps:
            yield Progress(
                step=step,
                tokens=step * curriculum.rows * curriculum.length,
                seconds=time.monotonic() - started,
                loss=total / ((step - 1) % report_every + 1),
            )
            total = 0.0


def rate(step: int, steps: int) -> float:
    """Return the share of the learning rate: a linear warm-up, then a linear fall to zero."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return max(0.0, (steps - step) / max(1, steps - WARM_UP))
