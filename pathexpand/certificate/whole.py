"""An MLP taken whole, its gates held fixed: at each position a linear map of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.lengths import frobenius, spectral
from pathexpand.certificate.part import After, Energy, Part, Which, sizes_of, stronger
from pathexpand.certificate.reads import Reads
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.symbolic import Component

Array = npt.NDArray[Any]
_TOGETHER = 2**22  # numbers of a neuron at a position that are worked out together


@dataclass(frozen=True, slots=True, eq=False)
class MlpKernel:
    """M and D as they are at the MLP, and the Frobenius norms of both at each position."""

    energy: Energy
    size: Array
    lost: Array


@dataclass(frozen=True, eq=False)
class WholeMlp(Part):
    """One MLP: at position i it is B_i = W_in diag(gates[i]) W_out.

    Shapes and `room` are those of `Neurons`. A functional row ⊗ vector becomes one for each
    position; they stay together as an array (position, d_model).
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
        """The size of the stream."""
        return len(self.W_in)

    def push(self, stream: Array, which: Which = None) -> Array:
        """Give (gates ∘ stream W_in) W_out."""
        out: Array = ((stream @ self.W_in) * self.gates) @ self.W_out
        return out

    def pull(self, reads: Array, which: Which = None) -> Array:
        """Give (gates ∘ reads W_outᵀ) W_inᵀ."""
        out: Array = ((reads @ self.W_out.T) * self.gates) @ self.W_in.T
        return out

    def blur(self, sizes: Array, unit: float, which: Which = None) -> Array:
        """Bound the rounding, and the doubt about the gates."""
        off = unit * (abs(self.gates) + TINY) + self.doubt * self.room
        out: Array = ((sizes @ abs(self.W_in) + TINY) * off) @ abs(self.W_out) + TINY
        return out

    def move(self, reads: Reads, index: int) -> Reads:
        """Send what is read at each position through the MLP there."""
        inner = reads.vectors @ self.W_out.T  # (n, neuron) or (n, position, neuron)
        shape = len(reads), len(self.gates), len(self.W_in)
        out, step = np.empty(shape), max(_TOGETHER // self.gates.size, 1)
        for start in range(0, len(reads), step):
            some = slice(start, start + step)
            each = inner[some] if reads.rows is None else inner[some, None, :]
            out[some] = (each * self.gates) @ self.W_in.T
        if reads.rows is not None:
            out *= reads.rows[:, :, None]
        lost = self._stretch * reads.lost + self._unsure * reads.sizes
        return Reads(None, out, lost)

    def kernels(self, energies: Sequence[Energy]) -> Sequence[MlpKernel]:
        """Give M and D themselves, as they are now."""
        found = []
        for energy in energies:
            loss = None if energy.loss is None else energy.loss.copy()
            lost = np.zeros(len(energy.matrix)) if loss is None else sizes_of(loss)
            found.append(MlpKernel(Energy(energy.matrix.copy(), loss), energy.size, lost))
        return found

    def bring(self, kernels: Sequence[MlpKernel], after: After, energy: Energy) -> float:
        """Add Bᵀ M B to M, and what it may lose to D."""
        (state,) = after
        if state is None:
            return 0.0
        before, size = kernels[state].energy, kernels[state].size
        for position, gates in enumerate(self.gates):
            through = (self.W_in * gates) @ self.W_out  # (d_model, d_model)
            for part, total in ((before.matrix, energy.matrix), (before.loss, energy.loss)):
                if part is not None and total is not None:
                    total[position] += through.T @ (part[position] @ through)
        # (B + E)ᵀ M (B + E) is off by at most (2 |B| + |E|) |E| |M|.
        off = self._unsure
        energy.lose((2 * self._stretch + off) * off * size)
        return 0.0

    def bounds(
        self, kernels: Sequence[MlpKernel], reads: Reads, after: After
    ) -> tuple[Array, Array]:
        """Give Σ_i √(yᵀ M[i] y) with y what each reads behind the MLP at i."""
        (state,) = after
        if state is None:
            return np.zeros((1, len(reads))), np.zeros((1, len(reads)))
        kernel, moved = kernels[state], self.move(reads, 0)
        vectors = np.swapaxes(moved.vectors, 0, 1)  # (position, n, d_model)
        peak = abs(vectors).max(axis=2, keepdims=True, initial=0.0)
        unit = vectors / np.where(peak == 0, 1.0, peak)
        forms = np.maximum(((unit @ kernel.energy.matrix) * unit).sum(axis=2), 0)  # (position, n)
        lost = np.zeros_like(forms)
        if kernel.energy.loss is not None:
            lost = np.maximum(((unit @ kernel.energy.loss) * unit).sum(axis=2), 0)
        rounding = gamma(4 * len(self.W_in) + 8) * kernel.size[:, None]
        lost = lost + rounding * (unit**2).sum(axis=2)
        u = (np.sqrt(forms) * peak[:, :, 0]).sum(axis=0)
        slack = (stronger(forms, lost) * peak[:, :, 0]).sum(axis=0)
        return u[None], (slack + moved.lost @ np.sqrt(kernel.size + kernel.lost))[None]

    @cached_property
    def _norms(self) -> tuple[float, float]:
        """The products of the spectral and of the Frobenius norms of W_in and W_out."""
        both = (self.W_in, self.W_out)
        one, other = (
            float(np.prod([norm(each) for each in both])) for norm in (spectral, frobenius)
        )
        return one, other

    @cached_property
    def _stretch(self) -> Array:
        """Bounds on the spectral norms of the maps: (position,)."""
        out: Array = abs(self.gates).max(axis=1, initial=0.0) * self._norms[0]
        return out

    @cached_property
    def _unsure(self) -> Array:
        """Bounds on how far the maps may be off, by rounding and by doubt: (position,)."""
        gates = abs(self.gates).max(axis=1, initial=0.0)
        room = self.doubt * self.room.max(axis=1, initial=0.0)
        out: Array = 2 * gamma(self.steps) * gates * self._norms[1] + room * self._norms[0]
        return out
