"""Fits a dictionary of features to what it reads and what it stands for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pathexpand.errors import PathExpandError
from pathexpand.model.parts import Array
from pathexpand.train.features.dictionary import Dictionary
from pathexpand.train.features.rows import Rows, distinct

BETAS = (0.9, 0.99)
GAIN = 0.03  # by how much the threshold follows the number of active features, a step
WIDE = 4.0  # so many times the wanted number of features is active at first
NARROWED = 0.3  # the part of the plan after which no more than wanted are active
COOLED = 0.6  # the part of the plan after which the learning rate falls
DEAD_AFTER = 300  # steps
REVIVED = 32  # dead features that may help a row
REVIVAL = 1 / 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Holds how many features there are, how many are active in a row, and how long to fit."""

    n_features: int
    active: int
    steps: int
    rows: int = 1024
    rate: float = 6e-3
    skip: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be fitted."""
        if not 0 < self.active < self.n_features:
            raise PathExpandError(
                "active features", wanted=f"1 to {self.n_features - 1}", got=str(self.active)
            )
        if self.steps < 1:
            raise PathExpandError("steps", wanted="at least 1", got=str(self.steps))

    def wanted(self, progress: float) -> float:
        """Return the wanted mean number of active features, from wide to narrow.

        >>> plan = Plan(n_features=300, active=20, steps=1)
        >>> plan.wanted(0.0), plan.wanted(1.0)
        (80.0, 20.0)
        """
        left = max(0.0, 1 - progress / NARROWED)
        return float(min(self.active * WIDE**left, self.n_features / 2))

    def factor(self, progress: float) -> float:
        """Return the part of the learning rate that is used, at this part of the plan."""
        return min(1.0, (1 - progress) / (1 - COOLED))


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Holds how far a fit has come: `fvu` is the mean over the steps since the last report."""

    step: int
    seconds: float
    fvu: float
    threshold: float


class Fit:
    """A fit under way.

    Inputs and outputs are brought to mean 0 and mean square 1 for it. One threshold, shared by
    all features, follows the number of active ones, so a feature's activation is a JumpReLU in
    training as it is at rest; rows of `W_dec` have length 1, so that activations can be compared.
    """

    def __init__(self, rows: Rows, plan: Plan, generator: np.random.Generator) -> None:
        """Start from rows of data: a feature reads like one of them and writes what was there.

        No two start alike; raises `PathExpandError` if the data has too few different rows.
        """
        self.plan, self.done = plan, 0
        self.mean_in, self.size_in = middle(rows.reads)
        self.mean_out, self.size_out = middle(rows.writes)
        order = generator.permutation(len(rows.reads))
        # One by one: few of very many rows are looked at.
        directions = (self.inward(rows.reads[row]).numpy() for row in order)
        chosen = order[distinct(directions, plan.n_features)]
        x = self.inward(rows.reads[chosen])  # (feature, d_in)
        y = self.outward(rows.writes[chosen])  # (feature, d_out)
        self.W_enc, self.W_dec = unit(x).requires_grad_(), unit(y).requires_grad_()
        self.b_enc = torch.zeros(plan.n_features, requires_grad=True)
        self.b_dec = torch.zeros(y.shape[1], requires_grad=True)
        self.skip = torch.zeros(x.shape[1], y.shape[1], requires_grad=True)
        self.trained = [self.W_enc, self.W_dec, self.b_enc, self.b_dec]
        self.trained += [self.skip] if plan.skip else []
        self.optimizer = torch.optim.Adam(self.trained, lr=plan.rate, betas=BETAS, fused=True)
        first = (x @ self.W_enc.detach().T).flatten()  # (feature * feature,)
        share = plan.wanted(0) / plan.n_features
        self.threshold = max(first.quantile(1 - share).item(), 1e-2)
        self.idle = torch.zeros(plan.n_features)

    def step(self, reads: Array, writes: Array) -> float:
        """Take one step on a batch, (row, d_in) and (row, d_out); return the loss, an FVU."""
        progress = self.done / self.plan.steps
        x = self.inward(reads)
        y = self.outward(writes)
        before = x @ self.W_enc.T + self.b_enc  # (row, feature)
        active = before > self.threshold
        error = y - self.b_dec - (before * active) @ self.W_dec - x @ self.skip  # (row, d_out)
        loss = error.square().sum(1).mean()
        self.idle = torch.where(active.any(0), 0, self.idle + 1)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss + REVIVAL * self.revival(before, error.detach()))
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate * self.plan.factor(progress)
        self.optimizer.step()
        with torch.no_grad():
            self.W_dec /= self.W_dec.norm(dim=1, keepdim=True)
        ratio = active.sum(1).float().mean().item() / self.plan.wanted(progress)
        self.threshold = max(self.threshold * np.exp(GAIN * np.clip(ratio - 1, -1, 1)), 1e-3)
        self.done += 1
        return float(loss.item())

    def revival(self, before: Tensor, error: Tensor) -> Tensor:
        """Return what dead features leave of the error, as a share: the largest may help."""
        dead = self.idle > DEAD_AFTER
        count = int(dead.sum())
        if not count:
            return torch.zeros(())
        helping = torch.relu(before[:, dead])  # (row, dead)
        least = helping.topk(min(REVIVED, count), dim=1).values[:, -1:]  # (row, 1)
        filled = (helping * (helping >= least)) @ self.W_dec[dead]  # (row, d_out)
        return (error - filled).square().mean() / error.square().mean()

    def inward(self, reads: Array) -> Tensor:
        """Return inputs as they are fitted, (row, d_in)."""
        return (torch.from_numpy(reads) - self.mean_in) / self.size_in

    def outward(self, writes: Array) -> Tensor:
        """Return outputs as they are fitted, (row, d_out)."""
        return (torch.from_numpy(writes) - self.mean_out) / self.size_out

    def finished(self) -> Dictionary:
        """Return the features in the data's units: an activation is the length of its output."""
        W_enc, W_dec, b_enc, b_dec, skip = (
            array.detach().double().numpy()
            for array in (self.W_enc, self.W_dec, self.b_enc, self.b_dec, self.skip)
        )
        mean_in, mean_out = self.mean_in.double().numpy(), self.mean_out.double().numpy()
        ratio = self.size_out / self.size_in
        turned = skip * ratio  # (d_in, d_out)
        return Dictionary(
            W_enc=W_enc * ratio,
            b_enc=(b_enc - W_enc @ mean_in / self.size_in) * self.size_out,
            threshold=np.full(self.plan.n_features, self.threshold * self.size_out),
            W_dec=W_dec,
            b_dec=b_dec * self.size_out + mean_out - mean_in @ turned,
            skip=turned if self.plan.skip else None,
        )


def fit(
    rows: Rows, plan: Plan, *, seed: int, report_every: int
) -> Iterator[tuple[Progress, Dictionary]]:
    """Fit features to rows, drawn at random, and report now and then."""
    generator = np.random.default_rng(seed)
    under_way = Fit(rows, plan, generator)
    started, total = time.monotonic(), 0.0
    for step in range(1, plan.steps + 1):
        drawn = generator.integers(len(rows.reads), size=plan.rows)
        total += under_way.step(rows.reads[drawn], rows.writes[drawn])
        if step % report_every == 0 or step == plan.steps:
            features = under_way.finished()
            yield (
                Progress(
                    step=step,
                    seconds=time.monotonic() - started,
                    fvu=total / ((step - 1) % report_every + 1),
                    threshold=float(features.threshold[0]),
                ),
                features,
            )
            total = 0.0


def middle(rows: Array) -> tuple[Tensor, float]:
    """Return the mean of rows, (d,), and the root of their mean square distance to it."""
    mean = rows.mean(axis=0, dtype=np.float64).astype(rows.dtype)  # (d,)
    return torch.from_numpy(mean), float(np.sqrt(np.square(rows - mean).sum(axis=1).mean()))


def unit(rows: Tensor) -> Tensor:
    """Return rows of length 1."""
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-6)
