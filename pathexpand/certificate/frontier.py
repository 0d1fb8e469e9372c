"""Everything that leaves a tree of suffixes: the subtrees beyond it, bounded by their energies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.energy import StreamEnergy
from pathexpand.certificate.held import Held
from pathexpand.certificate.lengths import lengths
from pathexpand.certificate.stops import stops
from pathexpand.certificate.suffix import NEVER, Numbers, Tree, Word, longest
from pathexpand.engine.rounding import gamma
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
_TOGETHER = 2**22  # numbers of suffixes and components that are worked out together


@dataclass(frozen=True, slots=True)
class Left:
    """A subtree: its paths all end in `word`, and none has a |value| above `size` (± `slack`).

    `short` says whether paths of at most the order asked for are among them, `longer` whether
    others are.
    """

    word: Word
    size: float
    slack: float
    short: bool
    longer: bool

    def exceeds(self, bound: float, longer_bound: float) -> bool:
        """Say whether some of the paths may be larger than is claimed, rounding set aside.

        >>> left = Left((), 2.0, 0.5, short=True, longer=False)
        >>> left.exceeds(1.4, 0.0), left.exceeds(1.5, 0.0)
        (True, False)
        """
        least = self.size - self.slack
        return (self.short and least > bound) or (self.longer and least > longer_bound)


@dataclass(frozen=True, slots=True, eq=False)
class _Met:
    """Bounds of some suffixes that go on with the components of a part: (component, suffix).

    `number` is the stage, `own` where the part's components stand in it, `after` the states that
    they lead to.
    """

    number: int
    own: slice
    some: Numbers
    after: Sequence[int | None]
    u: Array
    slack: Array

    @property
    def are_some(self) -> npt.NDArray[np.bool_]:
        """Which components lead anywhere: (component,)."""
        return np.array([state is not None for state in self.after])


class Frontier:
    """What leaves a tree, as far as the stages have been seen.

    Of the subtrees beyond it only the largest are kept: `short` with paths of at most the order
    asked for, `longer` with others. `energy` is Σ size² over all of them, `energy_slack` what may
    be wrong with that. `inside` gives the subtrees at the tree's own suffixes. A tree that is
    empty leaves the whole, as one subtree.
    """

    def __init__(self, held: Held, query: Query, tree: Tree, max_order: int | None) -> None:
        """Start before the first stage."""
        self.held, self.query, self.is_empty = held, query, not len(tree)
        self.tree = Tree(held, query, [()]) if self.is_empty else tree
        self.most = math.inf if max_order is None else max_order
        self.reach = longest(held.network, query)
        self.short: Left | None = None
        self.longer: Left | None = None
        self.energy, self.energy_slack = 0.0, 0.0
        self._sizes, self._slacks = np.zeros((2, len(self.tree)))
        # Bounds of all that goes on from the readout, and their slacks.
        self._root: list[tuple[Array, Array]] = []
        # Where the first component of each suffix stands: its stage, and its number there.
        places = [held.network.place(word[0]) if word else None for word in self.tree.words]
        self._first = np.array([place or (-1, -1) for place in places], dtype=np.intp)

    def take(self, number: int, energy: StreamEnergy, kernels: Sequence[Any]) -> None:
        """Take note of all subtrees whose first component is in a stage."""
        stage, tree = self.held.stages[number], self.tree
        own_rounding = gamma(2 * self.held.positions + 16)  # that of the sums in u itself
        for state in range(self.query.states):
            after = self.query.after(state, number)
            active = np.flatnonzero((tree.boundaries > number) & (tree.states == state))
            for some in self._together(number, active):
                reads = tree.at(number + 1, some)
                for (own, part), kernel in zip(stage.numbered(), kernels, strict=True):
                    if any(each is not None for each in after[own]):
                        u, slack = part.bounds(kernel, reads, after[own])
                        slack = slack + (energy.other + own_rounding) * u
                        met = energy.scale * u, energy.scale * slack
                        self._note(_Met(number, own, some, after[own], *met))

    def finish(self) -> None:
        """Take note of the subtree that holds every path."""
        root = stops(self.held, self.query, Tree(self.held, self.query, [()]), [])
        parts = [*self._root, (root.sizes, root.slacks)]
        sizes, slacks = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
        peak = float(sizes.max(initial=0.0)) or 1.0
        size = peak * math.sqrt(float(((sizes / peak) ** 2).sum()))
        # √Σ is a norm: what is wrong with each adds at most its own.
        slack = float(lengths(slacks)) + gamma(len(sizes) + 8) * size
        reach = self.reach[self.held.depth][self.query.start]
        if self.is_empty:
            self._beyond(Left((), size, slack, True, reach > self.most))
            self._add_energy(sizes, slacks)
        else:
            self._sizes[0], self._slacks[0] = size, slack

    @property
    def inside(self) -> Iterator[Left]:
        """The subtrees at the tree's own suffixes."""
        if self.is_empty:
            return
        tree = self.tree
        for n, word in enumerate(tree.words):
            order, reach = len(word), self.reach[tree.boundaries[n]][tree.states[n]]
            size, slack = float(self._sizes[n]), float(self._slacks[n])
            yield Left(word, size, slack, order <= self.most, order + reach > self.most)

    def _together(self, number: int, active: Numbers) -> Iterator[Numbers]:
        """Split suffixes into some of one kind, not too many for the memory."""
        stage, held = self.held.stages[number], self.held
        most = max((part.inner for part in stage.parts), default=1)
        for some in self.tree.parts(active):
            inner = held.width if self.tree.is_wide(some) else most
            step = max(_TOGETHER // max(len(stage.components), held.positions * inner), 1)
            yield from (some[start : start + step] for start in range(0, len(some), step))

    def _note(self, met: _Met) -> None:
        """Take note of the subtrees that suffixes have at components."""
        beyond = np.repeat(met.are_some[:, None], len(met.some), axis=1)  # (component, suffix)
        if met.some[0] == 0:  # the readout
            self._root.append((met.u[met.are_some, 0], met.slack[met.are_some, 0]))
        self._note_inside(met, beyond)
        if self.is_empty:
            return
        self._add_energy(met.u[beyond], met.slack[beyond])
        reach = [NEVER if state is None else self.reach[met.number][state] for state in met.after]
        orders = self.tree.orders[met.some] + 1
        longer = orders + np.array(reach)[:, None] > self.most
        kinds = beyond & (orders <= self.most), beyond & longer
        for kind in kinds:
            if kind.any():
                at = np.where(kind, met.u - met.slack, -np.inf).argmax()
                row, column = divmod(int(at), len(met.some))
                component = self.held.stages[met.number].components[met.own][row]
                word = (component, *self.tree.words[met.some[column]])
                sizes = float(met.u[row, column]), float(met.slack[row, column])
                self._beyond(Left(word, *sizes, *(bool(each[row, column]) for each in kinds)))

    def _note_inside(self, met: _Met, beyond: Array) -> None:
        """Keep the bounds of the tree's own suffixes, and say that they are not beyond it."""
        place = np.full(len(self.tree), -1)
        place[met.some] = np.arange(len(met.some))
        children = np.flatnonzero(self._first[:, 0] == met.number)
        rows, columns = self._first[children, 1] - met.own.start, place[self.tree.parents[children]]
        here = (columns >= 0) & (rows >= 0) & (rows < len(met.after))
        at = rows[here], columns[here]
        self._sizes[children[here]], self._slacks[children[here]] = met.u[at], met.slack[at]
        beyond[at] = False

    def _add_energy(self, u: Array, slack: Array) -> None:
        energy = float((u**2).sum())
        self.energy += energy
        self.energy_slack += float(((2 * u + slack) * slack).sum()) + gamma(u.size + 8) * energy

    def _beyond(self, left: Left) -> None:
        for kind, is_so in (("short", left.short), ("longer", left.longer)):
            known: Left | None = getattr(self, kind)
            if is_so and (known is None or known.size - known.slack < left.size - left.slack):
                setattr(self, kind, left)


def frontiers(
    held: Held,
    query: Query,
    trees: Sequence[Tree],
    *,
    max_order: int | None,
    account: bool = True,
) -> list[Frontier]:
    """Bound what leaves each of some trees of suffixes, in one pass over the stages.

    Without an `account` of the rounding in the energies, slacks leave that out. Raises
    `LimitError` where the energies do not fit into memory.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> run = load("two-layer").run("to be or not to")
    >>> held, query = hold(run, run.target(), run.position(), same=True), run.model.query()
    >>> whole, = frontiers(held, query, [Tree(held, query, [])], max_order=None)
    >>> whole.short.size >= abs(run.paths(top=1)[0].value)
    True
    """
    found = [Frontier(held, query, tree, max_order) for tree in trees]
    energy = StreamEnergy(held, query, account=account)
    for number in range(held.depth):
        kernels = energy.kernels()
        for frontier in found:
            frontier.take(number, energy, kernels)
        if number + 1 < held.depth:  # nothing reads what the last stage writes but the readout
            energy.advance(kernels)
    for frontier in found:
        frontier.finish()
    return found
