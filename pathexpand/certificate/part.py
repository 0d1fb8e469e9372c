"""What the check needs to be able to do with components of one kind that stand side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.reads import Reads
from pathexpand.symbolic import Component

Array = npt.NDArray[Any]
Which = Sequence[int] | None
After = Sequence[int | None]  # the state of the query that each component leads to


@dataclass(frozen=True, slots=True, eq=False)
class Energy:
    """M and its loss D at one boundary and in one state: (position, d_model, d_model) each.

    D is None where it is not kept account of. `size` (position,) are the Frobenius norms of M.
    """

    matrix: Array
    loss: Array | None

    def lose(self, lost: Array) -> None:
        """Add to D what a step may have lost (position,), times the identity."""
        if self.loss is not None:
            diagonal = np.arange(self.loss.shape[1])
            self.loss[:, diagonal, diagonal] += lost[:, None]

    @property
    def size(self) -> Array:
        """The Frobenius norms of M: (position,)."""
        return sizes_of(self.matrix)


class Part(ABC):
    """Components of one kind that read one stream and add to the next.

    Each is a position map ⊗ a linear map. Streams are carried forward by `push`, functionals back
    by `pull`; `which` picks components by index, None means all. `doubt` is how far, in proportion,
    what is held fixed may lie from what the search saw.

    What a functional behind a component is worth over all its completions is bounded with M, the
    sum of f fᵀ over all prefixes: see `pathexpand.certificate.energy`.
    """

    components: tuple[Component, ...]
    doubt: float

    @property
    @abstractmethod
    def steps(self) -> int:
        """The number of roundings that may follow one another on the way through."""

    @property
    @abstractmethod
    def inner(self) -> int:
        """The numbers that `bounds` makes of a functional for each position."""

    @abstractmethod
    def push(self, stream: Array, which: Which = None) -> Array:
        """Give what components write on a stream: (…, position, d_model)."""

    @abstractmethod
    def pull(self, reads: Array, which: Which = None) -> Array:
        """Carry functionals (…, position, d_model) back through components, and sum."""

    @abstractmethod
    def blur(self, sizes: Array, unit: float, which: Which = None) -> Array:
        """Bound what a push of a stream of these sizes (position, d_model) may be off by.

        Each product may be off by `unit` of its size, and what is held fixed by the doubt.
        """

    @abstractmethod
    def move(self, reads: Reads, index: int) -> Reads:
        """Put one component in front of functionals."""

    @abstractmethod
    def kernels(self, energies: Sequence[Energy]) -> Any:
        """Give what components read of M and D, by state of the query."""

    @abstractmethod
    def bring(self, kernels: Any, after: After, energy: Energy) -> float:
        """Add to an energy what components bring, each from its state; None brings nothing.

        Gives how far, in proportion, the search's choice of t may change what was brought.
        """

    @abstractmethod
    def bounds(self, kernels: Any, reads: Reads, after: After) -> tuple[Array, Array]:
        """Bound what functionals are worth that go on with each component: (component, n).

        Gives u, and how far beyond u the true bound may lie.
        """


def sizes_of(matrices: Array) -> Array:
    """Give the Frobenius norms of matrices: (…, n, n) to (…)."""
    out: Array = np.sqrt(np.einsum("...ab,...ab->...", matrices, matrices))
    return out


def stronger(square: Array, lost: Array) -> Array:
    """Give √(square + lost) - √square without cancellation."""
    root = np.sqrt(square + lost) + np.sqrt(square)
    out: Array = lost / np.where(root == 0, 1.0, root)
    return out
