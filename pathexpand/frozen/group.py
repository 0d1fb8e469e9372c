"""Groups of components of one kind that stand side by side in a stage of the frozen sum.

Each is a sum of (position map ⊗ linear map), one a component. Everything the engine does with
components goes through the few methods here, so that it needs to know no kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pathexpand.symbolic import Component, Head, Mlp, Neuron

Array = npt.NDArray[Any]
Which = Sequence[int] | None
Pieces = tuple[Array, Array]  # rows (piece, position) and vectors (piece, d_model)


class Group(ABC):
    """Components of one kind in one stage.

    A functional (…, position, d_model) reads the stream behind the stage; carried back it reads
    the stream before it. `which` picks components by index, None means all. `floor` is added
    where a product of sizes could underflow.
    """

    components: tuple[Component, ...]

    @property
    @abstractmethod
    def bytes(self) -> int:
        """The memory that belongs to the run alone, the model's weights not counted."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """The number of roundings, one after another, that a product through the group can meet."""

    @abstractmethod
    def pull(self, reads: Array, which: Which = None, *, floor: float = 0) -> Array:
        """Carry functionals (…, position, d_model) back through components, and sum."""

    @abstractmethod
    def pull_pieces(
        self, rows: Array, vectors: Array, allowed: Array, *, floor: float = 0
    ) -> Array:
        """Carry Σ row ⊗ vector back, each through the components allowed (component, piece)."""

    @abstractmethod
    def push(self, stream: Array) -> Array:
        """Give what all components together write on a stream: (position, d_model)."""

    @abstractmethod
    def write(self, stream: Array, index: int) -> Array:
        """Give what one component writes on a stream (position, d_model)."""

    @abstractmethod
    def worth(self, reads: Array, stream: Array) -> Array:
        """Give what each component's output on a stream is worth to a functional: (component,)."""

    @abstractmethod
    def move(self, rows: Array, vectors: Array, index: int) -> Pieces:
        """Put one component in front of a functional Σ row ⊗ vector."""

    @abstractmethod
    def flow(self, rows: Array, vectors: Array, stream: Array, index: int) -> Array:
        """Part a functional's reading of what one component writes: (position read at, from)."""

    @abstractmethod
    def until(self, size: int) -> Group:
        """Give the group on the first positions."""

    @abstractmethod
    def some(self, which: Sequence[int]) -> Group:
        """Give some components as a group of their own."""

    def only(self, index: int) -> Group:
        """Give one component as a group of its own."""
        return self.some([index])

    @abstractmethod
    def __abs__(self) -> Group:
        """Give the group with all numbers replaced by their sizes."""


@dataclass(frozen=True, eq=False)
class HeadGroup(Group):
    """Attention heads: patterns (head, query, key) ⊗ W_V (head, d_model, d_head) W_O."""

    components: tuple[Head, ...]
    patterns: Array
    W_V: Array
    W_O: Array

    @property
    def bytes(self) -> int:
        """The patterns."""
        return self.patterns.nbytes

    @property
    def steps(self) -> int:
        """Two matrix products, the pattern, and the sum over heads."""
        heads, d_model, d_head = self.W_V.shape
        return int(d_model + self.patterns.shape[-1] + heads * d_head + d_head + 2)

    @cached_property
    def values(self) -> Array:
        """The W_V of all heads side by side: (d_model, head * d_head)."""
        out: Array = np.swapaxes(self.W_V, 0, 1).reshape(self.W_V.shape[1], -1)
        return out

    @cached_property
    def outputs(self) -> Array:
        """The W_O of all heads on top of each other: (head * d_head, d_model)."""
        out: Array = self.W_O.reshape(-1, self.W_O.shape[2])
        return out

    def pull(self, reads: Array, which: Which = None, *, floor: float = 0) -> Array:
        """Carry functionals back: Σ_h (A^h)ᵀ reads W_Oᵀ W_Vᵀ."""
        if which is not None and not len(which):
            return np.zeros_like(reads)
        heads, d_head, _ = self.W_O.shape
        inner = reads @ self.outputs.T + floor  # (…, query, head * d_head)
        inner = inner.reshape(*reads.shape[:-1], heads, d_head)
        moved = np.zeros_like(inner)
        for head in range(heads) if which is None else which:
            moved[..., head, :] = self.patterns[head].T @ inner[..., head, :] + floor
        out: Array = moved.reshape(*reads.shape[:-1], -1) @ self.values.T + floor
        return out  # (…, key, d_model)

    def pull_pieces(
        self, rows: Array, vectors: Array, allowed: Array, *, floor: float = 0
    ) -> Array:
        """Carry pieces back, each through the heads allowed."""
        heads, d_head, _ = self.W_O.shape
        inner = vectors @ self.outputs.T + floor  # (piece, head * d_head)
        inner = inner.reshape(len(rows), heads, d_head)
        moved = np.zeros((rows.shape[1], heads, d_head), dtype=vectors.dtype)
        for head in np.flatnonzero(allowed.any(axis=1)):
            keep = allowed[head]
            moved[:, head] = (rows[keep] @ self.patterns[head] + floor).T @ inner[keep, head]
            moved[:, head] += floor
        out: Array = moved.reshape(rows.shape[1], -1) @ self.values.T + floor
        return out  # (key, d_model)

    def push(self, stream: Array) -> Array:
        """Give Σ_h A^h stream W_V W_O."""
        seen = stream @ self.values  # (key, head * d_head)
        heads, _, d_head = self.W_V.shape
        seen = seen.reshape(-1, heads, d_head)
        mixed = np.stack(
            [pattern @ seen[:, n] for n, pattern in enumerate(self.patterns)], axis=1
        )  # (query, head, d_head)
        out: Array = mixed.reshape(len(stream), -1) @ self.outputs  # (query, d_model)
        return out

    def write(self, stream: Array, index: int) -> Array:
        """Give A^h stream W_V W_O."""
        out: Array = self.patterns[index] @ ((stream @ self.W_V[index]) @ self.W_O[index])
        return out

    def worth(self, reads: Array, stream: Array) -> Array:
        """Give Σ reads · (A^h stream W_V W_O) of each head."""
        written = self.patterns @ (stream @ self.W_V)  # (head, query, d_head)
        read = reads @ np.swapaxes(self.W_O, 1, 2)  # (head, query, d_head)
        out: Array = (written * read).sum(axis=2).sum(axis=1)
        return out

    def move(self, rows: Array, vectors: Array, index: int) -> Pieces:
        """Move the row by the head's pattern, the vector through W_V W_O."""
        moved = rows @ self.patterns[index]  # (piece, key)
        read = vectors @ self.W_O[index].T  # (piece, d_head)
        return moved, read @ self.W_V[index].T

    def flow(self, rows: Array, vectors: Array, stream: Array, index: int) -> Array:
        """Give Σ_p row_p[query] A^h[query, key] (stream[key] W_V W_O · vector_p)."""
        read = (vectors @ self.W_O[index].T) @ self.W_V[index].T  # (piece, d_model)
        out: Array = (rows.T @ (read @ stream.T)) * self.patterns[index]  # (query, key)
        return out

    def until(self, size: int) -> HeadGroup:
        """Cut the patterns."""
        return replace(self, patterns=self.patterns[:, :size, :size])

    def some(self, which: Sequence[int]) -> HeadGroup:
        """Take some heads."""
        pick, components = list(which), tuple(self.components[n] for n in which)
        return HeadGroup(components, self.patterns[pick], self.W_V[pick], self.W_O[pick])

    def __abs__(self) -> HeadGroup:
        """Give the heads with sizes in place of numbers."""
        return HeadGroup(self.components, abs(self.patterns), abs(self.W_V), abs(self.W_O))


@dataclass(frozen=True, eq=False)
class _Gated(Group):
    """What reads along W_in (d_model, neuron), through gates (position, neuron), along W_out."""

    components: tuple[Component, ...]
    gates: Array
    W_in: Array
    W_out: Array

    @property
    def bytes(self) -> int:
        """The gates."""
        return self.gates.nbytes

    @property
    def steps(self) -> int:
        """Two matrix products and the gate."""
        return sum(self.W_in.shape) + 3

    def push(self, stream: Array) -> Array:
        """Give gates ∘ (stream W_in) W_out."""
        out: Array = ((stream @ self.W_in) * self.gates) @ self.W_out
        return out

    def flow(self, rows: Array, vectors: Array, stream: Array, index: int) -> Array:
        """Give what is read where it is written: nothing moves."""
        written = self.write(stream, index)  # (position, d_model)
        return np.diag((rows.T * (written @ vectors.T)).sum(axis=1))

    def until(self, size: int) -> Self:
        """Cut the gates."""
        return replace(self, gates=self.gates[:size])

    def __abs__(self) -> Self:
        """Give the neurons with sizes in place of numbers."""
        return replace(self, gates=abs(self.gates), W_in=abs(self.W_in), W_out=abs(self.W_out))


@dataclass(frozen=True, eq=False)
class NeuronGroup(_Gated):
    """Neurons: gates (position, neuron) ⊗ columns of W_in (d_model, neuron) and rows of W_out."""

    components: tuple[Neuron, ...]

    def pull(self, reads: Array, which: Which = None, *, floor: float = 0) -> Array:
        """Carry functionals back: gates ∘ (reads W_outᵀ) W_inᵀ."""
        gates, w_in, w_out = self.gates, self.W_in, self.W_out
        if which is not None:
            pick = list(which)
            gates, w_in, w_out = gates[:, pick], w_in[:, pick], w_out[pick]
        inner = (reads @ w_out.T + floor) * gates + floor  # (…, position, neuron)
        out: Array = inner @ w_in.T + floor
        return out

    def pull_pieces(
        self, rows: Array, vectors: Array, allowed: Array, *, floor: float = 0
    ) -> Array:
        """Carry pieces back, each through the neurons allowed."""
        read = (vectors @ self.W_out.T + floor) * allowed.T  # (piece, neuron)
        inner = (rows.T @ read + floor) * self.gates + floor  # (position, neuron)
        out: Array = inner @ self.W_in.T + floor
        return out

    def write(self, stream: Array, index: int) -> Array:
        """Give what one neuron writes."""
        active = self.gates[:, index] * (stream @ self.W_in[:, index])  # (position,)
        return np.outer(active, self.W_out[index])

    def worth(self, reads: Array, stream: Array) -> Array:
        """Give Σ reads · output of each neuron."""
        active = (stream @ self.W_in) * self.gates  # (position, neuron)
        out: Array = (active * (reads @ self.W_out.T)).sum(axis=0)
        return out

    def move(self, rows: Array, vectors: Array, index: int) -> Pieces:
        """Gate the row, and read the vector along the neuron's output."""
        read = vectors @ self.W_out[index]  # (piece,)
        return rows * self.gates[:, index], np.outer(read, self.W_in[:, index])

    def some(self, which: Sequence[int]) -> NeuronGroup:
        """Take some neurons."""
        pick, components = list(which), tuple(self.components[n] for n in which)
        return NeuronGroup(components, self.gates[:, pick], self.W_in[:, pick], self.W_out[pick])


@dataclass(frozen=True, eq=False)
class MlpGroup(_Gated):
    """One MLP taken whole, its gates (position, neuron) held fixed.

    At each position it is a linear map of its own, so a functional row ⊗ vector becomes one piece
    for each position that the rows reach.
    """

    components: tuple[Mlp]

    def pull(self, reads: Array, which: Which = None, *, floor: float = 0) -> Array:
        """Carry functionals back: gates ∘ (reads W_outᵀ) W_inᵀ."""
        if which is not None and not len(which):
            return np.zeros_like(reads)
        inner = (reads @ self.W_out.T + floor) * self.gates + floor  # (…, position, neuron)
        out: Array = inner @ self.W_in.T + floor
        return out

    def pull_pieces(
        self, rows: Array, vectors: Array, allowed: Array, *, floor: float = 0
    ) -> Array:
        """Carry the pieces back that are allowed."""
        keep = allowed[0]
        return self.pull(rows[keep].T @ vectors[keep] + floor, floor=floor)

    def write(self, stream: Array, index: int) -> Array:
        """Give what the MLP writes."""
        return self.push(stream)

    def worth(self, reads: Array, stream: Array) -> Array:
        """Give Σ reads · output."""
        out: Array = np.atleast_1d((reads * self.push(stream)).sum(axis=1).sum())
        return out

    def move(self, rows: Array, vectors: Array, index: int) -> Pieces:
        """Give one piece for each position that the rows reach."""
        return self.move_at(rows, vectors, np.flatnonzero((rows != 0).any(axis=0)))

    def move_at(self, rows: Array, vectors: Array, places: Array) -> Pieces:
        """Give one piece for each of some positions (place,)."""
        reads = rows[:, places].T @ vectors  # (place, d_model)
        inner = (reads @ self.W_out.T) * self.gates[places]  # (place, neuron)
        one_hot = np.zeros((len(places), rows.shape[1]), dtype=rows.dtype)
        one_hot[np.arange(len(places)), places] = 1
        return one_hot, inner @ self.W_in.T

    def some(self, which: Sequence[int]) -> MlpGroup:
        """Give the MLP itself."""
        return self
