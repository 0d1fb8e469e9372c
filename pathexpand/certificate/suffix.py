"""Suffixes of paths, as text and as what they read; and how far they can still be continued."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.held import Held
from pathexpand.certificate.reads import Reads
from pathexpand.errors import LimitError, NotationError, PathExpandError
from pathexpand.symbolic import Component, Mlp, Network, Neuron, parse_component
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.intp]
Word = tuple[Component, ...]
NEVER = -(10**9)  # components still to be read where no path of the query can be completed
_MOST_BYTES = 4e9


def write_words(words: Iterable[Word]) -> tuple[str, ...]:
    """Write suffixes as texts, leaving out those that another one extends.

    A suffix stands for itself and for every later part of it; the readout alone is the text "".

    >>> from pathexpand.symbolic import Head
    >>> write_words([(), (Head(1, 0),), (Head(0, 1), Head(1, 0)), (Neuron(1, 2),)])
    ('L0H1 > L1H0', 'L1N2')
    >>> write_words([()]), write_words([])
    (('',), ())
    """
    known = set(words)
    extended = {word[1:] for word in known if word}
    return tuple(" > ".join(map(str, word)) for word in sorted(known - extended))


def read_words(texts: Iterable[str], network: Network) -> set[Word]:
    """Read suffixes with all their later parts; raises `PathExpandError` for what is none.

    >>> sorted(map(len, read_words(["L0H1 > L1H0"], Network.attention_only(2, 2))))
    [0, 1, 2]
    """
    words: set[Word] = set()
    for text in texts:
        word = tuple(map(parse_component, text.split(" > "))) if text else ()
        if text != " > ".join(map(str, word)):
            raise NotationError(f"suffix {text!r}"[:60], wanted="labels as they are written")
        reached = 0
        for component in word:
            stage = network.stage(component)
            if stage is None:
                wanted = "components of the model"
                raise NotationError(f"suffix {text!r}", wanted=wanted, got=component.label)
            if stage < reached:
                wanted = "components of ever later stages"
                raise NotationError(f"suffix {text!r}", wanted=wanted, got=component.label)
            reached = stage + 1
        words.add(word)
    return _closed(words)


class Tree:
    """Suffixes with all their later parts, and what each reads of the stream.

    They are numbered, shorter ones first. For suffix n there is the number of the one without its
    first component, `parents[n]` (-1 for the readout), the state of the query behind it,
    `states[n]`, how many stages are before it, `boundaries[n]`, and how many components it has,
    `orders[n]`. Most read a row ⊗ a vector; with an MLP taken whole in them they are kept as whole
    functionals.
    """

    def __init__(self, held: Held, query: Query, words: Iterable[Word]) -> None:
        """Work out what they read, from the readout back.

        Raises `PathExpandError` for a suffix that no path of the query has, and `LimitError` where
        they take more than 4 GB.
        """
        self.held, self.query = held, query
        self.words = sorted(_closed(words), key=lambda word: (len(word), word))
        self.numbers = {word: n for n, word in enumerate(self.words)}
        self.orders = np.array([len(word) for word in self.words], dtype=np.intp)
        self.parents = np.array(
            [self.numbers[word[1:]] if word else -1 for word in self.words], dtype=np.intp
        )
        self.states = np.array(self._all_states(), dtype=np.intp)
        self.boundaries = np.array(
            [held.place(word[0])[0] if word else held.depth for word in self.words], dtype=np.intp
        )
        wide = np.array([_is_wide(word) for word in self.words], dtype=bool)
        self._slots = np.where(wide, np.cumsum(wide), np.cumsum(~wide)) - 1
        self._wide = wide
        self._allocate(int((~wide).sum()), int(wide.sum()))
        self._fill()

    def __len__(self) -> int:
        """Give their number."""
        return len(self.words)

    def parts(self, which: Numbers) -> Iterator[Numbers]:
        """Split some suffixes into those that are row ⊗ vector and those that are not."""
        for kind in (False, True):
            some = which[self._wide[which] == kind]
            if some.size:
                yield some

    def is_wide(self, which: Numbers) -> bool:
        """Say whether suffixes of one kind are no row ⊗ vector."""
        return bool(self._wide[which[0]])

    def at(self, boundary: int, which: Numbers) -> Reads:
        """Give what suffixes of one kind (see `parts`) read of the stream at a boundary."""
        slots = self._slots[which]
        lost = self._lost[which]
        if self.is_wide(which):
            reads = Reads(None, self._fields[slots], lost)
        else:
            reads = Reads(self._rows[slots], self._vectors[slots], lost)
        return self._past(boundary, self.boundaries[which], reads)

    def _past(self, boundary: int, own: Numbers, reads: Reads) -> Reads:
        """Carry functionals back, past the norms of the stream between."""
        for number in reversed(range(boundary, int(own.max(initial=0)))):
            norm = self.held.stages[number].norm
            passing = own > number
            if norm is None or not passing.any():
                continue
            moved = reads[passing].past(norm)
            for whole, some in (
                (reads.rows, moved.rows),
                (reads.vectors, moved.vectors),
                (reads.lost, moved.lost),
            ):
                if whole is not None:
                    whole[passing] = some
            reads = Reads(reads.rows, reads.vectors, reads.lost)
        return reads

    def _all_states(self) -> list[int]:
        states: list[int] = []
        state: int | None
        for word, parent in zip(self.words, self.parents, strict=True):
            state = self.query.step(states[parent], word[0]) if word else self.query.start
            if state is None:
                text = " > ".join(map(str, word))
                wanted = f"one of the query {self.query.text!r}"
                raise PathExpandError(f"suffix {text}", wanted=wanted)
            states.append(state)
        return states

    def _allocate(self, thin: int, wide: int) -> None:
        positions, width = self.held.positions, self.held.width
        needed = 8.0 * (thin * (2 * positions + width) + wide * positions * (width + 1))
        if needed > _MOST_BYTES:
            raise LimitError(
                "check of a certificate",
                wanted=f"at most {_MOST_BYTES / 1e9:.0f} GB of memory",
                got=f"{needed / 1e9:.1f} GB: {len(self):,} suffixes",
                remedy="ask for fewer rows, or stop the search sooner",
            )
        self._rows = np.empty((thin, positions))
        self._vectors = np.empty((thin, width))
        self._fields = np.empty((wide, positions, width))
        self._lost = np.zeros((len(self), positions))

    def _fill(self) -> None:
        if self.words:  # the readout is the first
            self._rows[0], self._vectors[0] = 0, self.held.direction
            self._rows[0, self.held.position] = 1
            self._lost[0] = self.held.read_lost * self._rows[0]
        for component, numbers in self._by_component():
            stage, part, index = self.held.place(component)
            before = self.parents[numbers]
            for kind in (False, True):
                some = np.flatnonzero(self._wide[before] == kind)
                if some.size:
                    moved = part.move(self.at(stage + 1, before[some]), index)
                    self._keep(numbers[some], moved)

    def _by_component(self) -> Iterator[tuple[Component, Numbers]]:
        """Yield suffixes of one length and first component, shorter ones first."""
        found: dict[tuple[int, Component], list[int]] = {}
        for n, word in enumerate(self.words):
            if word:
                found.setdefault((len(word), word[0]), []).append(n)
        for (_, component), numbers in found.items():
            yield component, np.array(numbers, dtype=np.intp)

    def _keep(self, which: Numbers, reads: Reads) -> None:
        slots = self._slots[which]
        self._lost[which] = reads.lost
        if reads.rows is None:
            self._fields[slots] = reads.vectors
        else:
            self._rows[slots], self._vectors[slots] = reads.rows, reads.vectors


def longest(network: Network, query: Query) -> list[list[int]]:
    """Give the most components that can still be read, by boundary and state of the query.

    `longest(…)[b][q]` is for a suffix in state q that has all stages before boundary b before it.

    >>> from pathexpand.symbolic.query import parse_query
    >>> network = Network.attention_only(2, 2)
    >>> longest(network, parse_query("embed > L0H1 > L1H0", network))[2]
    [2, 1, 0]
    """
    levels: list[list[int]] = []
    for boundary in range(network.depth + 1):
        born = {source.label for source in network.sources if source.boundary == boundary}
        level = list(levels[-1]) if levels else [NEVER] * query.states
        for state in range(query.states):
            if born & query.stops(state):
                level[state] = max(level[state], 0)
            for after in set(query.after(state, boundary - 1)) if boundary else ():
                if after is not None:
                    level[state] = max(level[state], 1 + levels[-1][after])
        levels.append(level)
    return levels


def _closed(words: Iterable[Word]) -> set[Word]:
    """Give suffixes with all their later parts."""
    found: set[Word] = set()
    for word in words:
        start = 0
        while start <= len(word) and word[start:] not in found:
            found.add(word[start:])
            start += 1
    return found


def _is_wide(word: Word) -> bool:
    """Say whether an MLP taken whole stands in a suffix, with no neuron in front of it."""
    first = next((each for each in word if isinstance(each, Mlp | Neuron)), None)
    return isinstance(first, Mlp)
