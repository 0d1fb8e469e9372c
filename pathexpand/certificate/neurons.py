"""MLP neurons: diagonal gates ⊗ w_in w_out, each of rank one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.lengths import lengths
from pathexpand.certificate.part import After, Energy, Part, Which, stronger
from pathexpand.certificate.reads import Reads
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.symbolic import Component

Array = npt.NDArray[Any]
_TOGETHER = 2**22  # numbers of a neuron at a position that are worked out together


@dataclass(frozen=True, slots=True, eq=False)
class NeuronKernels:
    """κ = w_inᵀ M w_in and its loss, (state, position, neuron) each."""

    kernel: Array
    loss: Array


@dataclass(frozen=True, eq=False)
class Neurons(Part):
    """The neurons of one MLP: `gates` (position, neuron), W_in and W_out, norms included.

    `room` (position, neuron) is what the doubt is a part of: a gate may be off by doubt · room.
    """

    components: tuple[Component, ...]
    gates: Array
    W_in: Array
    W_out: Array
    room: Array
    doubt: float = 0.0

    @property
    def steps(self) -> int:
        """Two products and the gate."""
        return sum(self.W_in.shape) + 4

    @property
    def inner(self) -> int:
        """One: neurons are taken a few at a time."""
        return 1

    def push(self, stream: Array, which: Which = None) -> Array:
        """Give (gates ∘ stream W_in) W_out."""
        gates, w_in, w_out = self._picked(self.gates, which)
        out: Array = ((stream @ w_in) * gates) @ w_out
        return out

    def pull(self, reads: Array, which: Which = None) -> Array:
        """Give (gates ∘ reads W_outᵀ) W_inᵀ."""
        gates, w_in, w_out = self._picked(self.gates, which)
        out: Array = ((reads @ w_out.T) * gates) @ w_in.T
        return out

    def blur(self, sizes: Array, unit: float, which: Which = None) -> Array:
        """Bound the rounding, and the doubt about the gates."""
        off = unit * (abs(self.gates) + TINY)
        off = off + self.doubt * self.room if self.doubt else off
        off, w_in, w_out = self._picked(off, which)
        out: Array = ((sizes @ abs(w_in) + TINY) * off) @ abs(w_out) + TINY
        return out

    def move(self, reads: Reads, index: int) -> Reads:
        """Gate the rows, and read the vectors along the neuron's output: w_in is left."""
        gate, read = self.gates[:, index], reads.vectors @ self.W_out[index]
        w_in = self.W_in[:, index]
        through = float(self._inputs[index] * self._outputs[index])
        lost = through * abs(gate) * (reads.lost + gamma(self.steps) * reads.sizes)
        lost += through * self.doubt * self.room[:, index] * reads.sizes
        if reads.rows is None:  # read is (n, position)
            return Reads(read * gate, np.tile(w_in, (len(reads), 1)), lost)
        return Reads(reads.rows * gate, np.outer(read, w_in), lost)

    def kernels(self, energies: Sequence[Energy]) -> NeuronKernels:
        """Give κ and its loss, rounding included."""
        kernel = np.stack([self._seen(energy.matrix) for energy in energies])
        loss = np.zeros_like(kernel)
        for state, energy in enumerate(energies):
            if energy.loss is not None:
                loss[state] = self._seen(energy.loss)
        size = np.stack([energy.size for energy in energies])  # (state, position)
        loss += gamma(2 * len(self.W_in) + 8) * size[:, :, None] * self._inputs**2
        return NeuronKernels(kernel, loss)

    def bring(self, kernels: NeuronKernels, after: After, energy: Energy) -> float:
        """Add W_outᵀ diag(gate² κ) W_out to M, and what it may lose to D."""
        kernel, loss = self._from(kernels, after)  # (position, neuron)
        active = self.gates**2 * kernel
        lost = self.gates**2 * loss
        if self.doubt:
            off = self.doubt * self.room
            lost = lost + (2 * abs(self.gates) + off) * off * (kernel + loss)
        for some, total in ((active, energy.matrix), (lost, energy.loss)):
            if total is not None:
                for position, each in enumerate(some):
                    total[position] += (self.W_out.T * each) @ self.W_out
        energy.lose(gamma(2 * self.steps) * (active @ self._outputs**2))
        return 0.0

    def bounds(self, kernels: NeuronKernels, reads: Reads, after: After) -> tuple[Array, Array]:
        """Give Σ_j |gate_j| √κ[j] |w_out · what is read at j|."""
        kernel, loss = self._from(kernels, after)
        root, more = np.sqrt(kernel), stronger(kernel, loss)  # (position, neuron)
        gates, most = abs(self.gates), np.sqrt(kernel + loss)
        u, slack = self._weighed(reads, gates * root, gates * more)
        off = (reads.lost + gamma(self.steps) * reads.sizes) @ (gates * most)  # (n, neuron)
        off += reads.sizes @ (self.doubt * self.room * most) if self.doubt else 0
        return u.T, (slack + off * self._outputs).T

    def _weighed(self, reads: Reads, *weights: Array) -> list[Array]:
        """Give Σ_j weight_j |w_out · what is read at j| for weights (position, neuron)."""
        if reads.rows is not None:
            along = abs(reads.vectors @ self.W_out.T)  # (n, neuron)
            return [(abs(reads.rows) @ weight) * along for weight in weights]
        found = [np.empty((len(reads), len(self.W_out))) for _ in weights]
        step = max(_TOGETHER // self.gates.size, 1)
        for start in range(0, len(reads), step):
            some = slice(start, start + step)
            along = abs(reads.vectors[some] @ self.W_out.T)  # (n, position, neuron)
            for out, weight in zip(found, weights, strict=True):
                out[some] = (along * weight).sum(axis=1)
        return found

    def _seen(self, matrix: Array) -> Array:
        """Give w_inᵀ matrix w_in of each neuron: (position, neuron)."""
        out = np.empty((len(matrix), self.W_in.shape[1]))
        for position, each in enumerate(matrix):  # together they would take much memory
            out[position] = ((each @ self.W_in) * self.W_in).sum(axis=0)
        return np.maximum(out, 0)

    def _from(self, kernels: NeuronKernels, after: After) -> tuple[Array, Array]:
        """Give each neuron's κ and its loss from its own state; 0 where that is None."""
        states = np.array([-1 if state is None else state for state in after])
        some = np.arange(len(states))
        kernel, loss = (
            np.where(states < 0, 0.0, each[states, :, some].T)
            for each in (kernels.kernel, kernels.loss)
        )
        return kernel, loss

    def _picked(self, gates: Array, which: Which) -> tuple[Array, Array, Array]:
        if which is None:
            return gates, self.W_in, self.W_out
        some = list(which)
        return gates[:, some], self.W_in[:, some], self.W_out[some]

    @cached_property
    def _inputs(self) -> Array:
        return lengths(self.W_in.T)

    @cached_property
    def _outputs(self) -> Array:
        return lengths(self.W_out)
