"""The energy of everything before a component: the ground on which whole subtrees are bounded.

M[j] is the sum of f fᵀ over all prefixes of paths that reach a boundary at position j, f being what
a prefix brings there: (d_model, d_model). From stage to stage

    M'[i] = scale_i² Nᵀ M[i] N + Σ_s s[i] s[i]ᵀ
            + Σ_c ρ_c(i) Σ_j (|P_c(i, j)| / t_c(j)) C_cᵀ M[j] C_c

with N and the scale of the norm that the stream itself passes (if any) and ρ_c(i) = Σ_j |P_c(i, j)|
t_c(j): the Cauchy-Schwarz inequality, for any t > 0. We take t_c(j) = √tr K^c[j], what the head
typically sees at j, which is best where positions differ much. Where the positions of a path are
part of its name, P_c(i, j)² stands in place of it, and M is exact. For neurons and MLPs, whose
position map is diagonal, both forms are the same. Beside M there is one M for each state of a
query, of the prefixes that match from there on.

Rounding only ever enlarges M: each step adds to the diagonal what the step's own rounding can have
taken away, and since the map from M to M' is monotone (a sum of congruences), that is enough. What
is not exactly 0 never becomes 0 (`FLOOR`), and what overflows makes a bound infinite, not wrong.

The kernels that bound a suffix are in `pathexpand.engine.kernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.kernel import HeadKernel, Kernel, MlpKernel, NeuronKernel, times
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.ways import Way, ways
from pathexpand.frozen import Carry, FrozenSum, Group, HeadGroup, MlpGroup, NeuronGroup
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
_SAFE = 2.0**-800  # a sum of squares above this has lost nothing that matters to underflow
FLOOR = 2.0**-960  # more than underflow can take from an energy, less than any that matters
# Gives M's part from the sources born at a boundary that a state stops at, and what rounding can
# have taken from it: (position, d_model, d_model) and (position,).
Seed = Callable[[int, int], "Grown | None"]


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """M (position, d_model, d_model), rounding included, and its Frobenius norms (position,)."""

    matrix: Array
    size: Array


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What a group of one stage sees of M: K (head, position, d_head, d_head), κ or M itself.

    `size` has the norms of each: (head, position), (neuron, position) or (position,).
    """

    kernel: Array
    size: Array


@dataclass(frozen=True, slots=True, eq=False)
class Energies:
    """The kernels of every group: `kernels[stage][group][state]`.

    The state is that of the query once one of the group's components is read.
    """

    kernels: tuple[tuple[tuple[Kernel, ...], ...], ...]

    @property
    def bytes(self) -> int:
        """The memory they take."""
        return sum(k.bytes for stage in self.kernels for group in stage for k in group)


def energies(
    frozen: FrozenSum,
    query: Query,
    *,
    report: Callable[[int, int], None] | None = None,
) -> Energies:
    """Work out the kernels of all components and query states, from the first stage to the last.

    `report` is told how many stages are done, of how many, and may raise to give up.
    """
    stages = grow(frozen, query, source_seed(frozen, query))
    found = []
    for index, (stage, seen) in enumerate(zip(frozen.stages, stages, strict=True)):
        found.append(
            tuple(
                tuple(_kernel(group, each) for each in own)
                for group, own in zip(stage.groups, seen, strict=True)
            )
        )
        if report is not None:
            report(index + 1, frozen.depth)
    return Energies(tuple(found))


def grow(
    frozen: FrozenSum,
    query: Query,
    seed: Seed,
    *,
    named: bool = False,
) -> Iterator[list[list[Seen | None]]]:
    """Yield what each stage's groups see of M, by state of the query; `seed` gives what is born."""
    energy: list[Grown | None] = []
    for index, stage in enumerate(frozen.stages):
        with np.errstate(over="ignore", invalid="ignore"):  # but not while another's code runs
            if not index:
                energy = [seed(0, state) for state in range(query.states)]
            seen = [[_seen(group, each) for each in energy] for group in stage.groups]
        yield seen
        if index + 1 < frozen.depth:  # only the readout itself reads what the last stage writes
            with np.errstate(over="ignore", invalid="ignore"):
                energy = _behind(frozen, query, seed, index, energy, seen, named=named)


def _behind(
    frozen: FrozenSum,
    query: Query,
    seed: Seed,
    index: int,
    energy: list[Grown | None],
    seen: list[list[Seen | None]],
    *,
    named: bool,
) -> list[Grown | None]:
    """Send M, of each state of the query, past and through a stage."""
    carry, taken = frozen.stages[index].carry, list(ways(frozen, query, index))
    return [
        _total(
            [
                _carried(carry, energy[state]),
                seed(index + 1, state),
                *(
                    _through(way, seen[way.number][way.after], named)
                    for way in taken
                    if way.before == state
                ),
            ]
        )
        for state in range(query.states)
    ]


def measured(matrix: Array, slack: Array) -> Grown:
    """Enlarge M by what rounding can have taken from it, (position,)."""
    diagonal = np.arange(matrix.shape[1])
    matrix[:, diagonal, diagonal] += slack[:, None]
    return Grown(matrix, _norms(matrix))


def source_seed(frozen: FrozenSum, query: Query) -> Seed:
    """Give what the sources of a run bring."""

    def seed(boundary: int, state: int) -> Grown | None:
        born = [s for s in frozen.sources if s.boundary == boundary]
        born = [s for s in born if s.label in query.stops(state)]
        if not born:
            return None
        d_model = born[0].values.shape[1]
        total = np.zeros((frozen.positions, d_model, d_model))
        slack = np.zeros(frozen.positions)
        for source in born:
            values = source.values  # (position, d_model)
            total += values[:, :, None] * values[:, None, :]
            slack += gamma(len(born) + 1) * (values**2).sum(axis=1) + FLOOR * values.any(axis=1)
        return measured(total, slack)

    return seed


def _total(parts: Iterable[Grown | None]) -> Grown | None:
    """Add up, rounding included."""
    some = [each for each in parts if each is not None]
    if not some:
        return None
    if len(some) == 1:
        return some[0]
    matrix, size = some[0].matrix, some[0].size
    for each in some[1:]:
        matrix += each.matrix  # each M is used once, and is large
        size = size + each.size
    return measured(matrix, gamma(len(some)) * size)


def _carried(carry: Carry | None, energy: Grown | None) -> Grown | None:
    """Send M past a stage."""
    if carry is None or energy is None:
        return energy
    half = carry.push_rows(energy.matrix)  # (position, d_model, d_model)
    matrix = carry.push_rows(np.swapaxes(half, 1, 2))
    stretch = (carry.stretch * carry.scale) ** 2
    steps = 2 * matrix.shape[1] + 12
    return measured(matrix, gamma(steps) * stretch * energy.size + FLOOR * (energy.size > 0))


def _seen(group: Group, energy: Grown | None) -> Seen | None:
    """Give what a group sees of M."""
    if energy is None:
        return None
    if isinstance(group, HeadGroup):
        return _seen_by_heads(group, energy)
    if isinstance(group, NeuronGroup):
        return _seen_by_neurons(group, energy)
    return Seen(energy.matrix.copy(), energy.size)


def _seen_by_heads(group: HeadGroup, energy: Grown) -> Seen:
    heads, d_model, d_head = group.W_V.shape
    positions = len(energy.matrix)
    turned = np.ascontiguousarray(np.swapaxes(group.W_V, 1, 2))  # (head, d_head, d_model)
    kernel = np.empty((heads, positions, d_head, d_head), dtype=energy.matrix.dtype)
    for position, matrix in enumerate(energy.matrix):  # one at a time stays near the processor
        half = (matrix @ group.values).reshape(d_model, heads, d_head)
        kernel[:, position] = turned @ np.swapaxes(half, 0, 1)
    square = (group.W_V**2).sum(axis=(1, 2))  # (head,)
    slack = gamma(2 * d_model + 4) * np.outer(square, energy.size)  # (head, position)
    slack += FLOOR * np.outer(group.W_V.any(axis=(1, 2)), energy.size > 0)
    diagonal = np.arange(d_head)
    kernel[:, :, diagonal, diagonal] += slack[:, :, None]
    flat = kernel.reshape(heads * positions, d_head, d_head)
    return Seen(kernel, _norms(flat).reshape(heads, positions))


def _seen_by_neurons(group: NeuronGroup, energy: Grown) -> Seen:
    d_model, neurons = group.W_in.shape
    square = (group.W_in**2).sum(axis=0)  # (neuron,)
    kernel = np.empty((neurons, len(energy.matrix)))
    for position, matrix in enumerate(energy.matrix):  # together they would take much memory
        kernel[:, position] = ((matrix @ group.W_in) * group.W_in).sum(axis=0)
    slack = gamma(2 * d_model + 4) * np.outer(square, energy.size)  # (neuron, position)
    slack += FLOOR * np.outer(group.W_in.any(axis=0), energy.size > 0)
    kernel = np.maximum(kernel, 0) + slack
    kernel = np.where(np.isnan(kernel), np.inf, kernel)
    return Seen(kernel, kernel)


@np.errstate(over="ignore", invalid="ignore")
def _kernel(group: Group, seen: Seen | None) -> Kernel:
    """Hold what bounds the suffixes that go on with a group."""
    if isinstance(group, HeadGroup):
        heads, positions, d_head = len(group.W_V), group.patterns.shape[2], group.W_V.shape[2]
        if seen is None:
            nothing = np.zeros((heads, positions, d_head, d_head))
            return HeadKernel.of(nothing, np.zeros((heads, positions)))
        return HeadKernel.of(seen.kernel, seen.size)
    if isinstance(group, NeuronGroup):
        gates = abs(group.gates).T  # (neuron, position)
        if seen is None:
            return NeuronKernel.of(np.zeros(gates.shape))
        return NeuronKernel.of(times(np.sqrt(seen.kernel), gates))
    assert isinstance(group, MlpGroup)
    if seen is None:
        positions, d_model = len(group.gates), len(group.W_in)
        nothing = np.zeros((positions, d_model, d_model))
        return MlpKernel.of(nothing, np.zeros(positions))
    return MlpKernel.of(seen.kernel, seen.size)


def _through(way: Way, seen: Seen | None, named: bool) -> Grown | None:
    """Send energy through some components of a group."""
    if seen is None:
        return None
    group = way.group
    if way.which is not None:
        group, seen = group.some(way.which), _some(group, seen, list(way.which))
    if isinstance(group, HeadGroup):
        return _through_heads(group, seen, named=named)
    if isinstance(group, NeuronGroup):
        return _through_neurons(group, seen)
    assert isinstance(group, MlpGroup)
    return _through_mlp(group, seen)


def _some(group: Group, seen: Seen, which: list[int]) -> Seen:
    return seen if isinstance(group, MlpGroup) else Seen(seen.kernel[which], seen.size[which])


def _through_heads(group: HeadGroup, seen: Seen, *, named: bool) -> Grown:
    heads, d_head, d_model = group.W_O.shape
    positions = seen.kernel.shape[1]
    weights, factor = _weights(group.patterns, seen, named=named)  # (head, query, key)
    flat = seen.kernel.reshape(heads, positions, -1)  # (head, key, d_head * d_head)
    mixed = factor[:, :, None] * (weights @ flat)  # (head, query, d_head * d_head)
    size = factor * (weights @ seen.size[:, :, None])[:, :, 0]  # (head, query)
    reached = ((group.patterns != 0) & (seen.size > 0)[:, None]).any(axis=2)  # (head, query)
    size = np.maximum(size, FLOOR * reached)
    inner = np.swapaxes(mixed.reshape(heads, positions, d_head, d_head), 0, 1)
    # The mix, the factor, two products over the heads' own spaces and over all heads.
    steps = 2 * positions + heads * d_head + d_head + 12
    total = _squared(group, inner)
    if total is None:
        right = inner @ group.W_O  # (query, head, d_head, d_model)
        total = group.outputs.T @ right.reshape(positions, heads * d_head, d_model)
    else:
        # K = L Lᵀ + E with |E| ≤ γ_{n+1} |L| |Lᵀ| (Higham, theorem 10.3), and |L|² = tr K ≤ √n |K|.
        steps = int((steps + d_head + 2) * np.sqrt(d_head)) + 1
    square = (group.W_O**2).sum(axis=(1, 2))  # (head,)
    slack = gamma(steps) * (square @ size)  # (query,)
    slack += FLOOR * (group.W_O.any(axis=(1, 2)) @ reached)
    return measured(total, slack)


def _squared(group: HeadGroup, inner: Array) -> Array | None:
    """Give Σ_h W_Oᵀ K W_O for K (query, head, d_head, d_head) by way of roots of K.

    A product with its own transpose takes half the work. None where some K has no root: it is not
    positive, as where there is nothing to see.
    """
    try:
        roots = np.linalg.cholesky(inner)  # (query, head, d_head, d_head)
    except np.linalg.LinAlgError:
        return None
    positions, heads, d_head, _ = roots.shape
    d_model = group.W_O.shape[2]
    half = (np.swapaxes(roots, 2, 3) @ group.W_O).reshape(positions, heads * d_head, d_model)
    total = np.empty((positions, d_model, d_model))
    for each, out in zip(half, total, strict=True):
        np.matmul(each.T, each, out=out)  # numpy makes a symmetric product of this
    return total


def _weights(patterns: Array, seen: Seen, *, named: bool) -> tuple[Array, Array]:
    """Give what carries K through patterns (head, query, key), and a factor (head, query)."""
    sizes = abs(patterns)
    if named:
        return np.maximum(sizes**2, TINY * (sizes > 0)), np.ones(sizes.shape[:2])
    typical = np.sqrt(np.einsum("hjaa->hj", seen.kernel))  # (head, key)
    some = np.isfinite(typical) & (typical > 0)
    typical = np.where(some, typical, 1.0)
    # Where there is nothing to see, nothing is added: t may be as small as one likes.
    seen_there = np.where(seen.size > 0, typical, 0.0)
    return sizes / typical[:, None], (sizes * seen_there[:, None]).sum(axis=2)


def _through_neurons(group: NeuronGroup, seen: Seen) -> Grown:
    neurons, d_model = group.W_out.shape
    active = group.gates**2 * seen.kernel.T  # (position, neuron)
    alive = (group.gates != 0) & (seen.kernel.T > 0)
    active = np.maximum(active, FLOOR * alive)
    total = np.empty((len(active), d_model, d_model))
    for position, each in enumerate(active):
        total[position] = (group.W_out.T * each) @ group.W_out
    square = (group.W_out**2).sum(axis=1)  # (neuron,)
    slack = gamma(neurons + 6) * (active @ square) + FLOOR * (alive @ group.W_out.any(axis=1))
    return measured(total, slack)


def _through_mlp(group: MlpGroup, seen: Seen) -> Grown:
    d_model, neurons = group.W_in.shape
    total = np.empty_like(seen.kernel)
    square = (group.W_out**2).sum() * (group.W_in**2).sum()
    for position, gate in enumerate(group.gates):
        through = (group.W_in * gate) @ group.W_out  # (d_model, d_model)
        total[position] = through.T @ (seen.kernel[position] @ through)
    most = (group.gates**2).max(axis=1, initial=0.0) * square * seen.size  # (position,)
    reached = group.gates.any(axis=1) & (seen.size > 0) & group.W_in.any() & group.W_out.any()
    slack = gamma(2 * neurons + 2 * d_model + 8) * most + FLOOR * reached
    return measured(total, slack)


def _norms(matrix: Array) -> Array:
    """Give the Frobenius norm at each position; infinite where it is not finite."""
    squares = np.einsum("tij,tij->t", matrix, matrix)
    # Where squares neither over- nor underflow, one pass is enough.
    plain = np.isfinite(squares) & (squares > _SAFE)
    norms = np.sqrt(np.where(plain, squares, 0.0))
    for position in np.flatnonzero(~plain):
        peak = float(abs(matrix[position]).max(initial=0.0))
        some = peak if np.isfinite(peak) and peak > 0 else 1.0
        norms[position] = some * np.sqrt(((matrix[position] / some) ** 2).sum())
    out: Array = np.where(np.isfinite(norms), norms, np.inf)
    return out
