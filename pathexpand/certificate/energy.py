"""The energy of everything before a boundary, as a matrix of the stream at each position.

M[j] is the sum of f fᵀ over all prefixes of paths that reach a boundary at position j, f being what
a prefix brings there: (d_model, d_model), one for each state q of the query. The search keeps what
each component reads of it, in float32; here it is M itself, from boundary to boundary:

    M_0[j]     = Σ_{s born at 0} s[j] s[j]ᵀ
    M_{m+1}[i] = s_i² Nᵀ M_m[i] N + Σ_c (what component c brings) + Σ_{s born at m+1} s[i] s[i]ᵀ

with s_i N the norm that the stream itself passes, if any. With C = W_V W_O, K = W_Vᵀ M W_V and M
that of the state which the component leads to,

    a head        ρ(i) Σ_j (|A(i,j)| / t(j)) Cᵀ M[j] C,  ρ(i) = Σ_j |A(i,j)| t(j), t(j) = √tr K[j]
    a neuron      gate(i)² κ[i] w_outᵀ w_out,            κ = w_inᵀ M w_in
    a whole MLP   B_iᵀ M[i] B_i,                         B_i = W_in diag(gates(i)) W_out

The first is the Cauchy-Schwarz inequality, valid for any t > 0 (a position that brings nothing
is left out); the others are exact, their position maps being diagonal. A functional G (position,
d_model) on the stream that goes on with a component is worth, over all its completions,

    √(Σ value²) ≤ Σ_j √(yᵀ M[j] y),  y = Σ_i A(i,j) C G[i],  gate(j) w_in (w_out·G[j])  or B_j G[j],

by Minkowski's inequality: √energy is a norm, so what is read at different positions adds up. With
G = row ⊗ vector, which every suffix is until a whole MLP stands in it, this is the bound of the
search. Behind a whole MLP the search splits G into a piece for each position and adds up their
bounds; here the pieces are joined before they are bounded, which can only give less.

Rounding. Beside M goes a matrix D with -D ⪯ (M computed - M exact) ⪯ D. What one product can lose
is at most γ_n times the product of Frobenius norms, and D grows by that times the identity, where
it arises: in K, κ or behind W_O. D passes every later step as M does, and since these are sums of
congruences with weights of at least 0, it stays such a bound: for a head with the same ρ and t,
for a neuron as gate² times the loss of κ, for a whole MLP as B_iᵀ D B_i, for a norm as s² Nᵀ D N.
B_i and N are the computed ones; if a map is off by E, the form is off by (2|B| + |E|) |E| |M|. The
search has a t of its own, off by what rounding does to tr K: that changes ρ and 1/t in proportion,
and u by at most the sum of Σ |A| Δt / ρ over the stages (where K is no more than rounding, 1/t
may change beyond that, and D grows by ρ |A| Δt). Where what is held fixed may lie away from what
the search saw (`pathexpand.certificate.doubt`), D grows by twice that part, and a little, of M.

For a functional, u = Σ_j √(y M y) and √(y (M + D) y) differ by what is called its slack; to it
comes Σ_j |Δy[j]| √(|M| + |D|) for the rounding of the functional itself, whose error's length at
each position is kept with it (`pathexpand.certificate.reads`). So the true bound U, of exact
functionals and an exact M, has |U - u| ≤ slack. A claim is refused where even u - slack is above
it, and what passes is proven up to 2 slack: measured, the slack is 10⁻¹² to 10⁻⁷ of u on trained
and random models, 10⁻⁵ behind whole MLPs. Where M all but vanishes in what y reads, it is 10⁻⁶ of
the stream's own size, the most that squares tell in float64.

A claim that u itself is not above needs no D; where all are such, none is worked out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.held import Held
from pathexpand.certificate.lengths import lengths
from pathexpand.certificate.norm import FixedNorm
from pathexpand.certificate.part import Energy
from pathexpand.engine.rounding import gamma
from pathexpand.errors import LimitError
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
_MOST_BYTES = 4e9


class StreamEnergy:
    """M and its loss at one boundary, moved from each to the next.

    `field` (M or D, state, position, d_model, d_model) holds both, or M alone without an `account`
    of rounding, over `scale`², so that squares stay within float64. `other` is how far, in
    proportion, u may be off by the search's own choice of t. Raises `LimitError` where the field
    takes more than 4 GB.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> run = load("two-layer").run("to be or not to")
    >>> held = hold(run, run.target(), run.position(), same=True)
    >>> energy = StreamEnergy(held, run.model.query())
    >>> for _ in held.stages:
    ...     energy.advance(energy.kernels())
    >>> energy.boundary, energy.field.shape
    (2, (2, 1, 6, 192, 192))
    """

    def __init__(self, held: Held, query: Query, *, account: bool = True) -> None:
        """Start before the first stage."""
        self.held, self.query, self.boundary = held, query, 0
        shape = (1 + account, query.states, held.positions, held.width, held.width)
        needed = 1.5 * 8 * float(np.prod(shape, dtype=float))
        if needed > _MOST_BYTES:
            raise LimitError(
                "check of a certificate",
                wanted=f"at most {_MOST_BYTES / 1e9:.0f} GB of memory",
                got=f"{needed / 1e9:.1f} GB: {query.states} "
                f"state{'' if query.states == 1 else 's'} of the query × "
                f"{held.positions} positions × {held.width}²",
                remedy="shorten the prompt or simplify the query",
            )
        self.field, self.other = np.zeros(shape), 0.0
        self.scale = max(float(source.size.max(initial=0.0)) for source in held.sources) or 1.0
        self._add_sources()

    @property
    def energies(self) -> list[Energy]:
        """M and D of each state, as they are now and will be changed."""
        both = len(self.field) == 2
        return [
            Energy(matrix, self.field[1, state] if both else None)
            for state, matrix in enumerate(self.field[0])
        ]

    def kernels(self) -> list[Any]:
        """Give what each part of the stage at this boundary reads of them."""
        energies = self.energies
        return [part.kernels(energies) for part in self.held.stages[self.boundary].parts]

    def advance(self, kernels: Sequence[Any]) -> None:
        """Go past the stage at this boundary, given what its parts read."""
        stage = self.held.stages[self.boundary]
        other = 0.0
        for state, energy in enumerate(self.energies):
            if stage.norm is not None:
                _pass(stage.norm, energy)
            after = self.query.after(state, self.boundary)
            for (own, part), kernel in zip(stage.numbered(), kernels, strict=True):
                other = max(other, part.bring(kernel, after[own], energy))
            energy.lose(gamma(len(stage.parts) + 4) * energy.size)
        self.other += other
        self.boundary += 1
        self._rescale()
        self._add_sources()

    def _add_sources(self) -> None:
        for source in self.held.sources:
            if source.boundary != self.boundary:
                continue
            values = source.values / self.scale  # (position, d_model)
            off = lengths(source.blur() / self.scale)  # (position,)
            for state, energy in enumerate(self.energies):
                if source.label in self.query.stops(state):
                    matrix = energy.matrix
                    matrix += values[:, :, None] * values[:, None, :]
                    energy.lose((2 * lengths(values) + off) * off + gamma(4) * energy.size)

    def _rescale(self) -> None:
        """Make the largest number of M one, if there is any."""
        peak = float(abs(self.field[0]).max(initial=0.0))
        if peak > 0:
            self.field /= peak
            self.scale *= float(np.sqrt(peak))


def _pass(norm: FixedNorm, energy: Energy) -> None:
    """Send M and D past a norm of the stream."""
    size, width = energy.size, energy.matrix.shape[1]
    for part in (energy.matrix, energy.loss):
        if part is not None:
            half = np.swapaxes(norm.linear(part), 1, 2)
            part[:] = norm.linear(half) * (norm.scale**2)[:, None, None]
    if energy.loss is not None:
        energy.loss[:] += 3 * norm.doubt * energy.matrix
    energy.lose(gamma(4 * width + 32) * (norm.stretch * norm.scale) ** 2 * size)
