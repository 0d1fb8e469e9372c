"""Fits a network to the curriculum, stage by stage."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from pathexpand.errors import PathExpandError
from pathexpand.train.curriculum import Curriculum, Share
from pathexpand.train.network import Network

BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.01
CLIP = 1.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Holds the plan of one stage: its learning rate and its share of repeated rows.

    The learning rate rises over `warm_up` steps to `rate`, then falls linearly to reach zero after
    `planned` steps; the share falls linearly to reach `share.last` there. A stage may stop before,
    after `steps`.
    """

    steps: int
    planned: int
    warm_up: int
    rate: float
    share: Share

    def __post_init__(self) -> None:
        """Refuse a stage that is longer than its plan."""
        if not 0 < self.steps <= self.planned:
            raise PathExpandError("steps", wanted=f"1 to {self.planned}", got=str(self.steps))

    def factor(self, step: int) -> float:
        """Return the part of the learning rate that is used after `step` steps."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        return max(0.0, (self.planned - step) / max(1, self.planned - self.warm_up))


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Holds how far a fit has come: `loss` is the mean over the steps since the last report."""

    step: int
    tokens: int
    seconds: float
    loss: float

    def after(self, before: Progress) -> Progress:
        """Count on from an earlier stage."""
        return Progress(
            step=before.step + self.step,
            tokens=before.tokens + self.tokens,
            seconds=before.seconds + self.seconds,
            loss=self.loss,
        )


def fit(
    network: Network,
    curriculum: Curriculum,
    stage: Stage,
    *,
    seed: int | Sequence[int],
    report_every: int,
) -> Iterator[Progress]:
    """Train `network` in place for one stage, one AdamW step a batch, and report now and then."""
    generator = np.random.default_rng(seed)
    weights = list(network.weights.values())
    optimizer = torch.optim.AdamW(
        weights, lr=stage.rate, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, stage.factor)
    started, total = time.monotonic(), 0.0
    for step in range(1, stage.steps + 1):
        share = stage.share.at((step - 1) / stage.planned)
        rows = torch.from_numpy(curriculum.batch(share, generator))  # (row, 1 + position)
        logits = network.logits(rows[:, :-1])  # (row, position, d_vocab)
        loss = cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        schedule.step()
        total += loss.item()
        if step % report_every == 0 or step == stage.steps:
            yield Progress(
                step=step,
                tokens=step * curriculum.rows * curriculum.length,
                seconds=time.monotonic() - started,
                loss=total / ((step - 1) % report_every + 1),
            )
            total = 0.0
