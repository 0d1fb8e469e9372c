"""Attention heads: patterns (query, key) ⊗ W_V W_O."""

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


@dataclass(frozen=True, slots=True, eq=False)
class HeadKernels:
    """K = W_Vᵀ M W_V and its loss W_Vᵀ D W_V, (state, head, position, d_head, d_head) each.

    `sizes` and `lost` (state, head, position) are their Frobenius norms.
    """

    kernel: Array
    loss: Array
    sizes: Array
    lost: Array


@dataclass(frozen=True, eq=False)
class Heads(Part):
    """Heads of one layer: `patterns` (head, query, key), W_V and W_O with the norms around them."""

    components: tuple[Component, ...]
    patterns: Array
    W_V: Array
    W_O: Array
    doubt: float = 0.0

    @property
    def steps(self) -> int:
        """Two products, the pattern, and the sum over heads."""
        heads, d_model, d_head = self.W_V.shape
        return int(d_model + self.patterns.shape[2] + heads * d_head + d_head + 4)

    @property
    def inner(self) -> int:
        """The size of a head."""
        return int(self.W_V.shape[2])

    def push(self, stream: Array, which: Which = None) -> Array:
        """Give Σ A (stream W_V) W_O."""
        out = np.zeros_like(stream)
        for n in self._picked(which):
            out += self.patterns[n] @ (stream @ self.W_V[n]) @ self.W_O[n]
        return out

    def pull(self, reads: Array, which: Which = None) -> Array:
        """Give Σ Aᵀ (reads W_Oᵀ) W_Vᵀ."""
        out = np.zeros_like(reads)
        for n in self._picked(which):
            out += self.patterns[n].T @ (reads @ self.W_O[n].T) @ self.W_V[n].T
        return out

    def blur(self, sizes: Array, unit: float, which: Which = None) -> Array:
        """Bound the rounding, and the doubt about the patterns."""
        out = np.zeros_like(sizes)
        for n in self._picked(which):
            seen = abs(self.patterns[n]) @ (sizes @ abs(self.W_V[n]) + TINY)
            out += seen @ abs(self.W_O[n]) + TINY
        return (unit + self.doubt) * out

    def move(self, reads: Reads, index: int) -> Reads:
        """Move rows by the pattern, and vectors through W_V W_O."""
        pattern = self.patterns[index]
        vectors = (reads.vectors @ self.W_O[index].T) @ self.W_V[index].T
        both = self._writes[1][index] * self._reads[1][index]  # of Frobenius norms
        stretch = self._writes[0][index] * self._reads[0][index]
        lost = stretch * (reads.lost @ abs(pattern))
        unit = 2 * gamma(self.steps) * both + self.doubt * stretch
        lost += unit * (reads.sizes @ abs(pattern))
        if reads.rows is None:
            return Reads(None, pattern.T @ vectors, lost)
        return Reads(reads.rows @ pattern, vectors, lost)

    def kernels(self, energies: Sequence[Energy]) -> HeadKernels:
        """Give K and its loss, rounding included."""
        d_model = self.W_V.shape[1]
        kernel = np.stack([self._seen(energy.matrix) for energy in energies])
        loss = np.zeros_like(kernel)
        for state, energy in enumerate(energies):
            if energy.loss is not None:
                loss[state] = self._seen(energy.loss)
        square = self._writes[1] ** 2  # (head,)
        size = np.stack([energy.size for energy in energies])  # (state, position)
        rounding = gamma(2 * d_model + 8) * square[:, None] * size[:, None]  # (state, head, pos)
        diagonal = np.arange(self.W_V.shape[2])
        loss[..., diagonal, diagonal] += rounding[..., None]
        return HeadKernels(kernel, loss, sizes_of(kernel), sizes_of(loss))

    def bring(self, kernels: HeadKernels, after: After, energy: Energy) -> float:
        """Add Σ W_Oᵀ (ρ Σ |A| K / t) W_O to M, and what it may lose to D."""
        heads, d_head, d_model = self.W_O.shape
        positions = self.patterns.shape[1]
        mixed, other = np.zeros((2, positions, heads, d_head, d_head)), 0.0
        for n, state in enumerate(after):
            if state is not None:
                mixed[:, :, n], change = self._mixed(kernels, state, n)
                other = max(other, change)
        outputs = self.W_O.reshape(-1, d_model)
        for part, total in zip(mixed, (energy.matrix, energy.loss), strict=True):
            if total is not None:
                for position, each in enumerate(part):
                    total[position] += outputs.T @ (each @ self.W_O).reshape(-1, d_model)
        unit = gamma(2 * (heads * d_head + d_head) + 8)
        energy.lose(unit * sizes_of(mixed[0]) @ self._reads[1] ** 2)
        return other

    def _mixed(self, kernels: HeadKernels, state: int, n: int) -> tuple[Array, float]:
        """Give ρ Σ |A| K / t and its loss, (2, query, d_head, d_head), and what `bring` gives."""
        kernel, loss = kernels.kernel[state, n], kernels.loss[state, n]
        positions, d_head, _ = kernel.shape
        size = abs(self.patterns[n])  # (query, key)
        trace = np.maximum(np.einsum("jaa->j", kernel), 0)
        wrong = np.einsum("jaa->j", loss)
        typical = np.sqrt(trace + wrong)  # (key,)
        reach = size @ typical  # (query,)
        weights = reach[:, None] * size / np.where(typical == 0, np.inf, typical)
        flat = np.stack([kernel, loss]).reshape(2, positions, -1)
        mixed: Array = (weights @ flat).reshape(2, positions, d_head, d_head)
        # The search's own t, with all that it adds for rounding, may differ by so much. Where K
        # is no more than rounding, 1/t may be anything.
        other = stronger(trace, 5 * wrong)  # (key,)
        change = size @ other / np.where(reach == 0, 1.0, reach)
        lost = reach * (size @ np.where(trace < 100 * wrong, other, 0.0))
        lost += gamma(2 * positions + 8) * (weights @ kernels.sizes[state, n])
        mixed[1] += 3 * self.doubt * mixed[0]
        diagonal = np.arange(d_head)
        mixed[1][:, diagonal, diagonal] += lost[:, None]
        return mixed, float(change.max(initial=0.0))

    def bounds(self, kernels: HeadKernels, reads: Reads, after: After) -> tuple[Array, Array]:
        """Give Σ_j √(yᵀ K[j] y) with y what each reads behind a pattern and W_O."""
        u, slack = np.zeros((2, len(after), len(reads)))
        for n, state in enumerate(after):
            if state is not None:
                u[n], slack[n] = self._bounds(kernels, reads, state, n)
        return u, slack

    def _bounds(
        self, kernels: HeadKernels, reads: Reads, state: int, n: int
    ) -> tuple[Array, Array]:
        pattern, w_o = self.patterns[n], self.W_O[n]
        inner = reads.vectors @ w_o.T
        if reads.rows is None:
            inner = pattern.T @ inner  # (n, position, d_head)
        else:
            inner = (reads.rows @ pattern)[:, :, None] * inner[:, None, :]
        peak = abs(inner).max(axis=(1, 2), initial=0.0)  # (n,)
        unit = np.swapaxes(inner / np.where(peak == 0, 1.0, peak)[:, None, None], 0, 1)
        forms = ((unit @ kernels.kernel[state, n]) * unit).sum(axis=2)  # (position, n)
        sizes, lost = kernels.sizes[state, n], kernels.lost[state, n]
        own = (gamma(4 * w_o.shape[0] + 8) * sizes + lost)[:, None] * (unit**2).sum(axis=2)
        forms = np.maximum(forms, 0)
        u = np.sqrt(forms).sum(axis=0) * peak
        slack = stronger(forms, own).sum(axis=0) * peak
        spectral_norm, whole = self._reads[0][n], self._reads[1][n]
        off = spectral_norm * (reads.lost @ abs(pattern))  # (n, position)
        unsure = 2 * gamma(self.steps) * whole + self.doubt * spectral_norm
        off += unsure * (reads.sizes @ abs(pattern))
        return u, slack + off @ np.sqrt(sizes + lost)

    def _seen(self, matrix: Array) -> Array:
        """Give W_Vᵀ matrix W_V: (head, position, d_head, d_head)."""
        heads, d_model, d_head = self.W_V.shape
        values = np.swapaxes(self.W_V, 0, 1).reshape(d_model, -1)  # (d_model, head * d_head)
        out = np.empty((heads, len(matrix), d_head, d_head))
        for position, each in enumerate(matrix):
            half = (each @ values).reshape(d_model, heads, d_head)
            out[:, position] = np.swapaxes(self.W_V, 1, 2) @ np.swapaxes(half, 0, 1)
        return out

    def _picked(self, which: Which) -> Sequence[int]:
        return range(len(self.W_V)) if which is None else which

    @cached_property
    def _writes(self) -> tuple[Array, Array]:
        """Spectral and Frobenius norms of each W_V: (head,) each."""
        return spectral(self.W_V), frobenius(self.W_V)

    @cached_property
    def _reads(self) -> tuple[Array, Array]:
        """Spectral and Frobenius norms of each W_O: (head,) each."""
        return spectral(self.W_O), frobenius(self.W_O)
