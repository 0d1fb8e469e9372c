"""The energy of everything before a boundary, as a matrix of the stream at each position.

The search keeps K = W_Vᵀ M W_V, from head to head through virtual weights. Here it is M itself,
(d_model, d_model) a position, from boundary to boundary, one for each state q of the query:

    M_0[j]     = Σ_{s born at 0} s[j] s[j]ᵀ
    M_{m+1}[i] = M_m[i] + Σ_h ρ_h(i) Σ_j |A^h(i,j)| OV_hᵀ M_m[j] OV_h + Σ_{s born at m+1} s[i] s[i]ᵀ

with ρ_h(i) = Σ_j |A^h(i,j)|, the M_m behind head h being that of the state it leads to. A suffix
(row r, vector w) that goes on with h is worth, over all its completions,

    Σ value²  ≤  ‖a‖₁ Σ_j |a_j| w'ᵀ M[j] w',     a = r A^h,  w' = OV_h w

by the Cauchy-Schwarz inequality at each pattern.

Rounding. What a step can lose of M is at most γ_n times the step with every number replaced by
its size, hence, in Frobenius norm, times Σ |W_O|²|W_V|² ρ|A| |M|. That, times the identity, is a
matrix D ⪰ the loss; D goes through later steps as M does, and since these are congruences with
weights of at least 0, M + D stays an upper bound of the true M. With u² = the form of M and
s² = that of D, the true bound U has U² ≤ u² + s². A claim is refused where even
u - (√(u² + s²) - u) is above it. So what passes is proven up to 2(√(u² + s²) - u): measured, 10⁻¹¹
to 10⁻⁷ of u, on trained and random models. Where M all but vanishes in what w' reads, s is 10⁻⁶
of the stream's own size, the most that squares tell in float64. Functionals are the computed
ones, as in `pathexpand.engine.rounding`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.held import Held
from pathexpand.engine.rounding import gamma
from pathexpand.errors import LimitError
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
_MOST_BYTES = 4e9
_CHUNK = 512  # suffixes whose forms are worked out together


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """What the heads of one layer read of M and of D, its loss.

    `forms[:, q, h]` (2, position, d_head, d_head) are W_Vᵀ M_q W_V and W_Vᵀ D_q W_V; `sizes[q]`
    (position,) the Frobenius norms of M_q.
    """

    forms: Array
    sizes: Array


class StreamEnergy:
    """M and its loss at one boundary, moved from each to the next.

    `field` holds both over `scale`², so that squares stay within float64. Raises `LimitError`
    where it takes more than 4 GB.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> run = load("two-layer").run("to be or not to")
    >>> target, place, query = run.target(), run.position(), run.model.query()
    >>> held = hold(run, target, place, same_patterns=True)
    >>> energy = StreamEnergy(held, query)
    >>> for _ in held.patterns:
    ...     energy.advance(energy.kernels())
    >>> u, slack = energy.whole()
    >>> 0 < slack < 1e-6 * u
    True
    """

    def __init__(self, held: Held, query: Query) -> None:
        """Start before the first layer."""
        self.held, self.query, self.boundary = held, query, 0
        shape = (2, query.states, held.positions, held.width, held.width)
        needed = 1.5 * 8 * float(np.prod(shape, dtype=float))
        if needed > _MOST_BYTES:
            raise LimitError(
                "check of a certificate",
                wanted=f"at most {_MOST_BYTES / 1e9:.0f} GB of memory",
                got=f"{needed / 1e9:.1f} GB: {query.states} states of the query × "
                f"{held.positions} positions × {held.width}²",
                remedy="shorten the prompt or simplify the query",
            )
        self.field = np.zeros(shape)  # (M or D, state, position, d_model, d_model)
        self.scale = max(float(source.size.max(initial=0.0)) for source in held.sources) or 1.0
        self._add_sources()

    def kernels(self) -> Kernels:
        """Give what the heads of the layer at this boundary read."""
        w_v = self.held.W_V[self.boundary]  # (head, d_model, d_head)
        heads, _, d_head = w_v.shape
        shape = (2, self.query.states, heads, self.held.positions, d_head, d_head)
        forms = np.empty(shape)
        for head, each in enumerate(w_v):
            forms[:, :, head] = each.T @ (self.field @ each)
        return Kernels(forms, self._sizes())

    def advance(self, kernels: Kernels) -> None:
        """Go past the layer at this boundary, given what its heads read."""
        held, layer = self.held, self.boundary
        lost = kernels.sizes.copy()  # (state, position)
        for head in held.network.layers[layer]:
            w_v, w_o = held.maps(head)
            size = abs(held.pattern(head))
            weights = size * size.sum(axis=1, keepdims=True)  # (query, key)
            most = float((w_o**2).sum() * (w_v**2).sum())
            for state in range(self.query.states):
                after = self.query.step(state, head)
                if after is None:
                    continue
                flat = kernels.forms[:, after, head.index].reshape(2, held.positions, -1)
                mixed = (weights @ flat).reshape(2, held.positions, len(w_o), len(w_o))
                self.field[:, state] += w_o.T @ mixed @ w_o
                lost[state] += most * (weights @ kernels.sizes[after])
        self._lose(gamma(3 * held.steps) * lost)
        self.boundary += 1
        self._rescale()
        self._add_sources()

    def bounds(
        self, kernels: Kernels, state: int, head: int, rows: Array, inner: Array
    ) -> tuple[Array, Array]:
        """Give u and √(u² + s²) - u for suffixes that go on with a head and are then in `state`.

        `rows` (suffix, position) are those behind the head's pattern, `inner` (suffix, d_head) the
        vectors behind its W_O. Both answers are (suffix,).
        """
        forms, sizes = kernels.forms[:, state, head], kernels.sizes[state]
        d_head = forms.shape[-1]
        flat = np.swapaxes(forms, 1, 2).reshape(2, d_head, -1)  # (2, d_head, position * d_head)
        w_v = self.held.W_V[self.boundary][head]
        unit = gamma(3 * self.held.steps) * float((w_v**2).sum())
        parts = []
        length = abs(inner).max(axis=1, initial=0.0)  # (suffix,)
        unscaled = inner / np.where(length == 0, 1, length)[:, None]
        for start in range(0, len(rows), _CHUNK):
            some = unscaled[start : start + _CHUNK]
            half = (some @ flat).reshape(2, len(some), -1, d_head)
            each = np.einsum("ksjb,sb->ksj", half, some)  # (2, suffix, position)
            each[1] += unit * (some**2).sum(axis=1, keepdims=True) * sizes
            parts.append(_weighed(rows[start : start + _CHUNK], each))
        u, slack = np.concatenate(parts, axis=1) * (length * self.scale)
        return u, slack

    def whole(self) -> tuple[float, float]:
        """Give u and √(u² + s²) - u for all paths through the stream; all layers must be past."""
        held, state = self.held, self.query.start
        length = float(abs(held.direction).max()) or 1.0
        vector = held.direction / length
        forms = vector @ self.field[:, state, held.position] @ vector  # (2,)
        unit = gamma(3 * held.steps) * float(vector @ vector)
        forms[1] += unit * self._sizes()[state, held.position]
        u, slack = _weighed(np.ones((1, 1)), forms[:, None, None])
        return float(u[0]) * length * self.scale, float(slack[0]) * length * self.scale

    def _add_sources(self) -> None:
        for source in self.held.sources:
            if source.boundary != self.boundary:
                continue
            for state in range(self.query.states):
                if source.label in self.query.stops(state):
                    values = source.values / self.scale  # (position, d_model)
                    self.field[0, state] += values[:, :, None] * values[:, None, :]
                    size = ((source.size / self.scale) ** 2).sum(axis=1)  # (position,)
                    self._lose(gamma(2 * self.held.steps) * size, state)

    def _rescale(self) -> None:
        """Make the largest number of M one, if there is any."""
        peak = float(abs(self.field[0]).max(initial=0.0))
        if peak > 0:
            self.field /= peak
            self.scale *= float(np.sqrt(peak))

    def _lose(self, lost: Array, state: int | slice = slice(None)) -> None:
        """Add to D what a step may have lost, times the identity."""
        diagonal = np.arange(self.held.width)
        self.field[1, state, :, diagonal, diagonal] += lost

    def _sizes(self) -> Array:
        squares: Array = np.einsum("qjab,qjab->qj", self.field[0], self.field[0])
        out: Array = np.sqrt(squares)  # (state, position)
        return out


def _weighed(rows: Array, forms: Array) -> Array:
    """Give u and its slack, (2, suffix), from rows (suffix, pos) and forms (2, suffix, pos)."""
    size = abs(rows)
    squares = size.sum(axis=1) * (size * forms).sum(axis=2)  # (2, suffix)
    squares[1] += gamma(2 * rows.shape[1] + 8) * abs(squares[0])
    u = np.sqrt(np.maximum(squares[0], 0))
    return np.stack([u, np.sqrt(u**2 + np.maximum(squares[1], 0)) - u])
