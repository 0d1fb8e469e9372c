"""The energy of everything before a head: the ground on which whole subtrees are bounded.

Let M[j] be the sum of x xᵀ over all prefixes of paths that reach layer l at position j, x being
what a prefix brings there, and K^h[j] = W_Vᵀ M[j] W_V for a head h of layer l. A suffix that goes
on with h has, over all its completions,

    Σ contribution²  ≤  ‖a‖₁ Σ_j |a_j| yᵀ K^h[j] y,      a = row A^h,  y = W_O^h vector,

by the Cauchy-Schwarz inequality at each pattern, intermediate positions being summed; and

    Σ contribution²  =  Σ_j a_j² yᵀ K^h[j] y

where the intermediate positions of a path are part of its name. K goes from head to head through
virtual weights V = W_O^h W_V^h' of d_head × d_head; no matrix of the stream's size is formed:

    K^h'[i] = Σ_s (s[i] W_V^h')ᵀ (s[i] W_V^h') + Σ_h Vᵀ (ρ_h(i) Σ_j |A^h(i,j)| K^h[j]) V

with ρ_h(i) = Σ_j |A^h(i,j)|; for named positions (A^h(i,j))² stands in place of ρ|A|.

Rounding only ever enlarges K: each step adds to the diagonal what the step's own rounding can have
taken away, and since the map from K to K is monotone (a sum of congruences), that is enough. What
is not exactly 0 never becomes 0 (`FLOOR`), and what overflows makes a bound infinite, not wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import TINY, UNIT32, gamma
from pathexpand.frozen import FrozenLayer, FrozenSum
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
Grown = tuple[Array, Array]  # K and its sizes
Held = tuple[Array, Array, Array]  # K in float32, sizes, scale
FLOOR = 2.0**-960  # more than underflow can take from an energy, less than any that matters
_FLOOR32 = 2.0**-120  # the same in float32, for energies over the largest of their head


@dataclass(frozen=True, slots=True, eq=False)
class Energies:
    """K of every head, and how large it is.

    `kernels[l][q]` (head, d_head, position, d_head), in float32, belongs to suffixes that are in
    state q of the query once the head is read. It is K over `scales[l][q]` (head,), its largest
    size, so that float32 can hold it; `sizes[l][q]` (head, position) are the Frobenius norms of
    what is held. `named` says which of the two forms it is.
    """

    kernels: tuple[tuple[Array, ...], ...]
    sizes: tuple[tuple[Array, ...], ...]
    scales: tuple[tuple[Array, ...], ...]
    named: bool

    def largest(self, layer: int, state: int) -> Array:
        """Give the largest Frobenius norm of each head's K over the positions: (head,)."""
        held: Array = self.sizes[layer][state].max(axis=1, initial=0.0) * self.scales[layer][state]
        return held

    @np.errstate(over="ignore", invalid="ignore")
    def bound(self, layer: int, state: int, heads: list[int], rows: Array, inner: Array) -> Array:
        """Bound Σ contribution² of suffixes that go on with these heads, and take the root.

        `rows` (head, suffix, position) are the suffixes' rows behind the heads' patterns, `inner`
        (head, suffix, d_head) their vectors behind W_O. Gives (head, suffix).
        """
        kernel = self.kernels[layer][state]  # (head, d_head, position, d_head)
        kernel = kernel if len(heads) == len(kernel) else kernel[heads]
        count, d_head, positions, _ = kernel.shape
        row, row_peak = over_peak(rows)
        unit, peak = over_peak(inner)
        length = np.sqrt(np.einsum("hsb,hsb->hs", unit, unit))[:, :, None]  # (head, suffix, 1)
        low = (unit / np.where(length == 0, 1, length)).astype(np.float32)
        half = low @ kernel.reshape(count, d_head, -1)  # (head, suffix, position * d_head)
        half = half.reshape(count, -1, positions, d_head)
        forms = np.einsum("hstb,hsb->hst", half, low).astype(np.float64)
        # What float32 can have lost of the form and of K itself: this part of |y|² |K|.
        size = self.sizes[layer][state][heads][:, None]  # (head, 1, position)
        forms += gamma(2 * d_head + 8, UNIT32) * size + d_head**2 * _FLOOR32 * (size > 0)
        scale = np.sqrt(self.scales[layer][state][heads])[:, None]  # (head, 1)
        if self.named:
            energy = np.einsum("hst,hst->hs", row**2, forms)
        else:
            row = abs(row)
            energy = row.sum(axis=2) * np.einsum("hst,hst->hs", row, forms)
        energy = np.where(length[:, :, 0] == 0, 0.0, energy)  # (head, suffix)
        out = np.sqrt(energy) * (length * peak)[:, :, 0] * scale * row_peak[:, :, 0]
        out = np.maximum(out * (1 + 1e-9), TINY * (energy > 0))
        return np.where(np.isnan(out), np.inf, out)


@np.errstate(over="ignore", invalid="ignore")
def energies(frozen: FrozenSum, query: Query, *, named: bool = False) -> Energies:
    """Work out K for every head and query state, from the first layer to the last."""

    def seed(index: int, state: int) -> Grown:
        return _from_sources(frozen, index, query.stops(state))

    weights = [_weights(layer.patterns, named=named) for layer in frozen.layers]
    held = [
        tuple(_held(*grown) for grown in states)
        for states in grow(frozen.layers, weights, query, seed)
    ]
    kernels, sizes, scales = (
        tuple(tuple(each[n] for each in states) for states in held) for n in range(3)
    )
    return Energies(kernels, sizes, scales, named)


def grow(
    layers: Sequence[FrozenLayer],
    weights: Sequence[Array],
    query: Query,
    seed: Callable[[int, int], Grown],
) -> Iterator[list[Grown]]:
    """Yield K and its sizes for each state of the query, layer by layer.

    `seed` gives, for a layer and a state, what the sources alone bring, and what rounding can
    have taken from it. `weights` (head, query, key) carry K through each layer's positions.
    """
    mixed: list[list[Grown]] = []
    for index, layer in enumerate(layers):
        states = []
        for state in range(query.states):
            total, slack = seed(index, state)
            for early, earlier in enumerate(layers[:index]):
                after = [query.step(state, head) for head in earlier.heads]
                for number, w_v in enumerate(layer.W_V):
                    _bring(total[number], slack[number], earlier, w_v, mixed[early], after)
            slack += gamma(index + 1) * _norms(total)  # the additions over earlier layers
            diagonal = np.arange(total.shape[1])
            total[:, diagonal, :, diagonal] += slack
            states.append((total, _norms(total)))
        yield states
        if index + 1 < len(layers):  # nothing comes behind the last layer
            mixed.append([_mix(weights[index], *grown) for grown in states])


def over_peak(array: Array) -> tuple[Array, Array]:
    """Give an array over its largest sizes along the last axis, and these (1 in place of 0)."""
    peak = abs(array).max(axis=-1, keepdims=True, initial=0.0)
    peak = np.where(peak == 0, 1.0, peak)
    return array / peak, peak


def _norms(kernel: Array) -> Array:
    """Give the Frobenius norm of K at each position: (head, position); infinite if K is not finite.

    Squares neither over- nor underflow.
    """
    peak = abs(kernel).max(axis=(1, 3), initial=0.0)  # (head, position)
    some = np.where((peak == 0) | ~np.isfinite(peak), 1.0, peak)
    norms = some * np.sqrt(((kernel / some[:, None, :, None]) ** 2).sum(axis=(1, 3)))
    return np.where(np.isfinite(norms), norms, np.inf)


def _from_sources(frozen: FrozenSum, index: int, stops: frozenset[str]) -> Grown:
    """Give what sources bring to a layer's heads: K (head, d_head, position, d_head), and slack."""
    layer = frozen.layers[index]
    heads, d_model, d_head = layer.W_V.shape
    total = np.zeros((heads, d_head, frozen.positions, d_head))
    slack = np.zeros((heads, frozen.positions))
    for source in frozen.sources:
        if source.boundary <= index and source.label in stops:
            seen = source.values @ layer.W_V  # (head, position, d_head)
            total += np.einsum("hta,htb->hatb", seen, seen)
            most = abs(source.values) @ abs(layer.W_V)  # (head, position, d_head)
            slack += gamma(2 * d_model + 2) * (most**2).sum(axis=2)
            alive = np.outer(layer.W_V.any(axis=(1, 2)), source.values.any(axis=1))
            slack += FLOOR * alive  # (head, position)
    return total, slack


def _held(kernel: Array, size: Array) -> Held:
    """Give K in float32 over its largest size, the sizes over it, and that size."""
    largest = size.max(axis=1)  # (head,)
    scale = np.where(largest == 0, 1.0, largest)
    held = np.maximum(size / scale[:, None], TINY * (size > 0))
    return (kernel / scale[:, None, None, None]).astype(np.float32), held, scale


def _bring(
    total: Array,
    slack: Array,
    earlier: FrozenLayer,
    w_v: Array,
    mixed: list[Grown],
    after: list[int | None],
) -> None:
    """Add to one head's K (d_head, position, d_head) what all heads of an earlier layer bring."""
    live = [n for n, state in enumerate(after) if state is not None]
    if not live:
        return
    one = after[live[0]]
    if len(live) == len(after) and all(state == one for state in after) and one is not None:
        (middle, sizes), w_o = mixed[one], earlier.W_O
    else:
        middle = np.stack([mixed[after[n] or 0][0][n] for n in live])
        sizes = np.stack([mixed[after[n] or 0][1][n] for n in live])
        w_o = earlier.W_O[live]
    virtual = w_o @ w_v  # (head, d_head, d_head)
    heads, rows, positions, columns = middle.shape
    right = middle.reshape(heads, rows * positions, columns) @ virtual
    flat = right.reshape(heads * rows, positions * virtual.shape[2])
    total += (virtual.reshape(heads * rows, -1).T @ flat).reshape(total.shape)
    # Roundings on the way of one product: the mix, V twice, two products over rows and columns.
    steps = positions + 2 * w_v.shape[0] + columns + heads * rows + 8
    # |W_O| |W_V| bounds what V can have lost, so its size stands for V's own.
    scale = (w_o**2).sum(axis=(1, 2)) * (w_v**2).sum()  # (head,)
    slack += gamma(steps) * (scale @ sizes)
    slack += FLOOR * (w_o.any(axis=(1, 2)) & w_v.any()) @ (sizes > 0)  # (position,)


def _weights(patterns: Array, *, named: bool) -> Array:
    """Give what carries K through the patterns (head, query, key)."""
    size = abs(patterns)
    out: Array = size**2 if named else size * size.sum(axis=2, keepdims=True)
    return np.asarray(np.maximum(out, TINY * (size > 0)))


def _mix(weights: Array, kernel: Array, size: Array) -> Grown:
    """Carry K (head, d_head, key, d_head) and its size (head, key) behind the patterns."""
    mixed = weights[:, None] @ kernel  # (head, d_head, query, d_head)
    reached = ((weights > 0) & (size > 0)[:, None]).any(axis=2)  # (head, query)
    return mixed, np.maximum((weights @ size[:, :, None])[:, :, 0], FLOOR * reached)
