"""What a suffix may still gain by going on with the components of one group.

Let M[j] be the sum of f fᵀ over all prefixes of paths that reach a stage at position j, f being
what a prefix brings there. A suffix row ⊗ vector that goes on with a component has, over all its
completions,

    √(Σ contribution²)  ≤  Σ_j |a_j| √(yᵀ M[j] y),

where (a_j, y) is the suffix behind the component: by Minkowski's inequality, intermediate
positions being summed. It is an equality where the suffix reads a single position.

Each kind of group has a reader, which works out what its components make of suffixes, and a
kernel, which holds just so much of M as it takes to bound them:

    heads     a = row A^h,     y = W_V W_O vector      K^h[j] = W_Vᵀ M[j] W_V
    neurons   a = row ∘ gate,  y = w_in (w_out·vector)  κ_n[j] = w_inᵀ M[j] w_in
    an MLP    a = row,         y depends on j           M[j] itself

√energy is a norm of (row, vector), linear in each: what rounding changed in them adds at most their
errors' own norms, times the root of the largest energy. `lost` (piece, 2) holds these errors: the
1-norm of the row's and the 2-norm of the vector's. Products of sizes that underflow become `TINY`,
so that they stay bounds whatever they are multiplied by later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import TINY, UNIT, UNIT32, gamma
from pathexpand.frozen import Group, HeadGroup, MlpGroup, NeuronGroup

Array = npt.NDArray[Any]
_FLOOR32 = 2.0**-120  # more than float32 can lose to underflow, for energies over their largest
_MORE = 1 + 1e-9  # covers the few roundings of a bound's own last steps


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """Suffixes one component longer: rows (piece, position), vectors (piece, d_model), errors."""

    rows: Array
    vectors: Array
    lost: Array


class Reader(ABC):
    """Puts a group's components in front of suffixes, and keeps account of rounding."""

    @abstractmethod
    def read(self, rows: Array, vectors: Array, lost: Array) -> Any:
        """Work out what the group's kernels need to know of these pieces."""

    @abstractmethod
    def move(self, index: int, moved: Moved) -> Moved:
        """Put one component in front of one suffix."""


class Kernel(ABC):
    """As much of M as bounds the suffixes that go on with a group's components."""

    @abstractmethod
    def bound(self, read: Any, which: list[int] | None, some: Array) -> Array:
        """Bound √energy of some pieces continued by some components: (component, piece)."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """The memory it takes."""


def reader_of(group: Group) -> Reader:
    """Give the reader for a group's kind."""
    if isinstance(group, HeadGroup):
        return HeadReader(group)
    if isinstance(group, NeuronGroup):
        return NeuronReader(group)
    assert isinstance(group, MlpGroup)  # there is no fourth kind
    return MlpReader(group)


# --- heads ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class HeadRead:
    """Pieces behind each head's pattern and W_O.

    `rows` (head, piece, position), `inner` (head, piece, d_head); `spread` (head, piece) bounds
    what the pieces' errors can add, in units of the root of the largest energy.
    """

    rows: Array
    inner: Array
    spread: Array


class HeadReader(Reader):
    """Reads suffixes behind heads.

    `row_sum` is the largest row sum of |pattern|; `reads` and `writes` bound the spectral norms of
    W_O and W_V, `all_reads` and `all_writes` their Frobenius norms: (head,) each.
    """

    @np.errstate(over="ignore", invalid="ignore")
    def __init__(self, group: HeadGroup) -> None:
        """Work out the norms."""
        self.group = group
        self.row_sum = abs(group.patterns).sum(axis=2).max(axis=1, initial=0.0) * _MORE
        self.all_writes, self.all_reads = _frobenius(group.W_V), _frobenius(group.W_O)
        self.reads = _spectral(group.W_O, self.all_reads)
        self.writes = _spectral(np.swapaxes(group.W_V, 1, 2), self.all_writes)

    @np.errstate(over="ignore", invalid="ignore")
    def read(self, rows: Array, vectors: Array, lost: Array) -> HeadRead:
        """Move the rows by the patterns, read the vectors along W_O."""
        heads, d_head, d_model = self.group.W_O.shape
        moved = rows @ self.group.patterns  # (head, piece, key)
        read = vectors @ self.group.outputs.T  # (piece, head * d_head)
        inner = np.swapaxes(read.reshape(len(rows), heads, d_head), 0, 1)  # (head, piece, d_head)
        row_lost = lost[:, 0] + times(gamma(rows.shape[1]), abs(rows).sum(axis=1))  # (piece,)
        row_lost = times(self.row_sum[:, None], row_lost)  # (head, piece)
        inner_lost = times(self.reads[:, None], lost[:, 1])
        inner_lost += times(gamma(d_model), self.all_reads[:, None], lengths(vectors))
        size = abs(moved).sum(axis=2) + row_lost
        return HeadRead(moved, inner, times(row_lost, lengths(inner)) + times(size, inner_lost))

    @np.errstate(over="ignore", invalid="ignore")
    def move(self, index: int, moved: Moved) -> Moved:
        """Move the row by the head's pattern and the vector through W_V W_O."""
        rows, vectors = self.group.move(moved.rows, moved.vectors, index)
        # What underflows is at least TINY, without asking what is 0: only what matters is moved.
        lost = np.empty_like(moved.lost)
        before = moved.lost[:, 0] + gamma(moved.rows.shape[1]) * abs(moved.rows).sum(axis=1) + TINY
        lost[:, 0] = before * self.row_sum[index] + TINY
        read = lengths(moved.vectors) * self.all_reads[index] + TINY
        steps = gamma(sum(self.group.W_V.shape[1:]))
        lost[:, 1] = (moved.lost[:, 1] * self.reads[index] + TINY) * self.writes[index] + TINY
        lost[:, 1] += steps * (read * self.all_writes[index] + TINY)
        return Moved(rows, vectors, lost)


@dataclass(frozen=True, slots=True, eq=False)
class HeadKernel(Kernel):
    """K of every head of a group, in float32 over its largest size so that this can hold it.

    `kernels` (head, d_head, position, d_head), `sizes` (head, position) their Frobenius norms and
    `scales` (head,) what both were divided by.
    """

    kernels: Array
    sizes: Array
    scales: Array

    @classmethod
    def of(cls, kernel: Array, sizes: Array) -> HeadKernel:
        """Hold K (head, position, d_head, d_head) with its sizes (head, position)."""
        largest = sizes.max(axis=1, initial=0.0)  # (head,)
        scale = np.where(largest == 0, 1.0, largest)
        with np.errstate(over="ignore", invalid="ignore"):
            held = (np.swapaxes(kernel, 1, 2) / scale[:, None, None, None]).astype(np.float32)
            part = np.maximum(sizes / scale[:, None], TINY * (sizes > 0))
        return cls(np.ascontiguousarray(held), part, scale)

    @property
    def bytes(self) -> int:
        """The memory it takes."""
        return self.kernels.nbytes + self.sizes.nbytes + self.scales.nbytes

    @np.errstate(over="ignore", invalid="ignore")
    def bound(self, read: HeadRead, which: list[int] | None, some: Array) -> Array:
        """Bound √energy of some pieces continued by some heads: (head, piece)."""
        heads = list(range(len(self.scales))) if which is None else which
        pick = np.ix_(np.array(heads), some)
        out = self._own(heads, read.rows[pick], read.inner[pick])
        largest = np.sqrt(self.sizes[heads].max(axis=1, initial=0.0) * self.scales[heads])
        out = out + times(largest[:, None] * _MORE, read.spread[pick])
        return np.where(np.isnan(out), np.inf, out)

    def _own(self, heads: list[int], rows: Array, inner: Array) -> Array:
        """Bound rows (head, piece, position) with inner (head, piece, d_head), as they are."""
        kernel = self.kernels if len(heads) == len(self.kernels) else self.kernels[heads]
        count, d_head, positions, _ = kernel.shape
        row, row_peak = _sizes_over_peak(rows)
        unit, peak = over_peak(inner)
        length = np.sqrt(np.einsum("hsb,hsb->hs", unit, unit))[:, :, None]  # (head, piece, 1)
        low = (unit / np.where(length == 0, 1, length)).astype(np.float32)
        half = low @ kernel.reshape(count, d_head, -1)  # (head, piece, position * d_head)
        half = half.reshape(count, -1, positions, d_head)
        forms = np.einsum("hstb,hsb->hst", half, low).astype(np.float64)
        # What float32 can have lost of the form and of K itself: this part of |y|² |K|.
        size = self.sizes[heads][:, None]  # (head, 1, position)
        forms += gamma(2 * d_head + 8, UNIT32) * size + d_head**2 * _FLOOR32 * (size > 0)
        scale = np.sqrt(self.scales[heads])[:, None]  # (head, 1)
        root = np.einsum("hst,hst->hs", row, np.sqrt(forms))  # (head, piece)
        return times(root * _MORE, length[:, :, 0], peak[:, :, 0], scale, row_peak[:, :, 0])


# --- neurons ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class NeuronRead:
    """Pieces and what each neuron's output reads of their vectors: `reads` (neuron, piece).

    `lost` (piece,) is the 1-norm of the rows' errors.
    """

    rows: Array
    reads: Array
    lost: Array


class NeuronReader(Reader):
    """Reads suffixes behind neurons; `inputs` and `outputs` (neuron,) are |w_in| and |w_out|."""

    def __init__(self, group: NeuronGroup) -> None:
        """Work out the norms."""
        self.group = group
        self.inputs, self.outputs = lengths(group.W_in.T), lengths(group.W_out)

    @np.errstate(over="ignore", invalid="ignore")
    def read(self, rows: Array, vectors: Array, lost: Array) -> NeuronRead:
        """Read the vectors along each neuron's output."""
        reads = abs(self.group.W_out @ vectors.T)  # (neuron, piece)
        error = lost[:, 1] + times(gamma(vectors.shape[1]), lengths(vectors))
        return NeuronRead(rows, reads + times(self.outputs[:, None], error), lost[:, 0])

    @np.errstate(over="ignore", invalid="ignore")
    def move(self, index: int, moved: Moved) -> Moved:
        """Gate the row, and read the vector along the neuron's output."""
        rows, vectors = self.group.move(moved.rows, moved.vectors, index)
        lost = np.empty_like(moved.lost)
        largest = abs(self.group.gates[:, index]).max(initial=0.0)
        lost[:, 0] = moved.lost[:, 0] * largest + 2 * UNIT * abs(rows).sum(axis=1) + TINY
        read = moved.lost[:, 1] + gamma(moved.vectors.shape[1] + 1) * lengths(moved.vectors) + TINY
        lost[:, 1] = (read * self.outputs[index] + TINY) * self.inputs[index] + TINY
        return Moved(rows, vectors, lost)


@dataclass(frozen=True, slots=True, eq=False)
class NeuronKernel(Kernel):
    """√(gate² κ) of every neuron, or a little more.

    `roots` (neuron, position) are over the largest of their neuron, `largest` (neuron, 1).
    """

    roots: Array
    largest: Array

    @classmethod
    def of(cls, roots: Array) -> NeuronKernel:
        """Hold roots (neuron, position)."""
        return cls(*_sizes_over_peak(roots))

    @property
    def bytes(self) -> int:
        """The memory it takes."""
        return self.roots.nbytes + self.largest.nbytes

    @np.errstate(over="ignore", invalid="ignore")
    def bound(self, read: NeuronRead, which: list[int] | None, some: Array) -> Array:
        """Bound √energy of some pieces continued by some neurons: (neuron, piece)."""
        pick = slice(None) if which is None else which
        root, reads = self.roots[pick], read.reads[pick]
        row, peak = _sizes_over_peak(read.rows[some])  # (piece, position), (piece, 1)
        reach = times(root @ row.T, peak.T) + read.lost[some] * root.any(axis=1, keepdims=True)
        out = times(reach * _MORE, self.largest[pick], reads[:, some])
        return np.where(np.isnan(out), np.inf, out)


# --- an MLP taken whole -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class MlpRead:
    """Pieces behind an MLP: at each position that they reach, a vector of its own.

    Entry n belongs to piece `owner[n]` at position `place[n]`: a row of `size` there, with an
    error of at most `row_lost`, and `vectors` (entry, d_model) with errors `lost` (entry,).
    """

    owner: Array
    place: Array
    size: Array
    row_lost: Array
    vectors: Array
    lost: Array
    pieces: int


class MlpReader(Reader):
    """Reads suffixes behind an MLP taken whole.

    `gate` (position,) are the largest gates; `reads` and `writes` bound the spectral norms of W_out
    and W_in, `all_reads` and `all_writes` their Frobenius norms.
    """

    def __init__(self, group: MlpGroup) -> None:
        """Work out the norms."""
        self.group = group
        self.gate = abs(group.gates).max(axis=1, initial=0.0)
        self.all_reads, self.all_writes = (
            _frobenius(group.W_out[None]),
            _frobenius(group.W_in[None]),
        )
        self.reads = _spectral(group.W_out.T[None], self.all_reads)
        self.writes = _spectral(group.W_in[None], self.all_writes)
        self.steps = gamma(sum(group.W_in.shape) + 2)

    @np.errstate(over="ignore", invalid="ignore")
    def read(self, rows: Array, vectors: Array, lost: Array) -> MlpRead:
        """Send each vector through the MLP at every position that its row reaches or may reach."""
        blurred = (lost[:, 0] > 0)[:, None]
        owner, place = np.nonzero((rows != 0) | blurred)
        read = (vectors @ self.group.W_out.T)[owner] * self.group.gates[place]
        through = read @ self.group.W_in.T  # (entry, d_model)
        error = self._lost(place, lost[owner, 1], lengths(vectors)[owner])
        return MlpRead(
            owner, place, abs(rows[owner, place]), lost[owner, 0], through, error, len(rows)
        )

    @np.errstate(over="ignore", invalid="ignore")
    def move(self, index: int, moved: Moved) -> Moved:
        """Give one piece for each position that the rows reach, or by rounding may reach."""
        rows, lost = moved.rows, moved.lost
        place = np.flatnonzero(((rows != 0) | (lost[:, :1] > 0)).any(axis=0))
        out_rows, out = self.group.move_at(rows, moved.vectors, place)
        size, length = abs(rows[:, place]).T, lengths(moved.vectors)  # (place, piece), (piece,)
        # What the pieces together read at each place, and how far off it may be.
        error = size @ lost[:, 1] + (lost[:, 0] * (length + lost[:, 1])).sum() + TINY
        error = error + gamma(len(rows)) * (size @ length)
        errors = np.zeros((len(place), 2))
        errors[:, 1] = self._lost(place, error, size @ length)
        return Moved(out_rows, out, errors)

    def _lost(self, place: Array, lost: Array, length: Array) -> Array:
        """Bound the errors behind the MLP of vectors that have a length and are off by `lost`."""
        carried = times(lost, self.reads, self.gate[place], self.writes)
        size = times(length, self.all_reads, self.gate[place], self.all_writes)
        return carried + times(self.steps, size)


@dataclass(frozen=True, slots=True, eq=False)
class MlpKernel(Kernel):
    """M itself (position, d_model, d_model), over its largest size; `sizes` (position,) over it."""

    kernel: Array
    sizes: Array
    scale: float

    @classmethod
    def of(cls, kernel: Array, sizes: Array) -> MlpKernel:
        """Hold M (position, d_model, d_model) with its sizes (position,)."""
        largest = float(sizes.max(initial=0.0)) or 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            held = np.maximum(sizes / largest, TINY * (sizes > 0))
            return cls(kernel / largest, held, largest)

    @property
    def bytes(self) -> int:
        """The memory it takes."""
        return self.kernel.nbytes + self.sizes.nbytes

    @np.errstate(over="ignore", invalid="ignore")
    def bound(self, read: MlpRead, which: list[int] | None, some: Array) -> Array:
        """Bound √energy of some pieces continued by the MLP: (1, piece)."""
        keep = np.isin(read.owner, some)
        owner, place = read.owner[keep], read.place[keep]
        unit, peak = over_peak(read.vectors[keep])  # (entry, d_model), (entry, 1)
        forms = np.empty(len(owner))
        for position in np.unique(place):
            at = place == position
            forms[at] = ((unit[at] @ self.kernel[position]) * unit[at]).sum(axis=1)
        square = (unit**2).sum(axis=1)
        forms = np.maximum(forms, 0) + gamma(2 * unit.shape[1] + 4) * square * self.sizes[place]
        root = times(np.sqrt(forms), peak[:, 0]) + times(
            np.sqrt(self.sizes[place]), read.lost[keep]
        )
        total = np.zeros(read.pieces)
        np.add.at(total, owner, times(root, read.size[keep] + read.row_lost[keep]))
        out = times(total[some][None] * _MORE, np.sqrt(self.scale))  # (1, piece)
        return np.where(np.isnan(out), np.inf, out)


# --- sizes ------------------------------------------------------------------------------------


def over_peak(array: Array) -> tuple[Array, Array]:
    """Give an array over its largest sizes along the last axis, and these (1 in place of 0)."""
    peak = abs(array).max(axis=-1, keepdims=True, initial=0.0)
    peak = np.where(peak == 0, 1.0, peak)
    return array / peak, peak


def lengths(array: Array) -> Array:
    """Give the lengths of vectors along the last axis, or a little more."""
    unit, peak = over_peak(array)
    out: Array = np.sqrt((unit**2).sum(axis=-1)) * peak[..., 0] * _MORE
    return out


def _sizes_over_peak(array: Array) -> tuple[Array, Array]:
    """Give sizes over the largest along the last axis, and these; only 0 becomes 0."""
    part, peak = over_peak(abs(array))
    return np.maximum(part, TINY * (array != 0)), peak


def times(first: Any, *others: Any) -> Array:
    """Multiply sizes; what underflows is at least `TINY`, so that a product of bounds is one."""
    out = np.asarray(first)
    for each in others:
        out = np.maximum(out * each, TINY * ((out > 0) & (np.asarray(each) > 0)))
    return out


def _frobenius(matrices: Array) -> Array:
    count, rows, columns = matrices.shape
    return lengths(matrices.reshape(count, rows * columns))


def _spectral(matrices: Array, frobenius: Array) -> Array:
    """Bound the spectral norms of matrices (n, small, large), by their small Gram matrices."""
    scale = np.where(frobenius == 0, 1.0, frobenius)[:, None, None]
    unit = matrices / scale  # of Frobenius norm 1, so that squares stay in range
    gram = unit @ np.swapaxes(unit, 1, 2)  # (n, small, small)
    largest = np.linalg.eigvalsh(gram).max(axis=1, initial=0.0)
    out: Array = np.sqrt(np.clip(largest, 0.0, None) + 1e-9) * frobenius
    return out
