"""Suffixes of paths, as text and as what they read; and how far they can still be continued."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.held import Held
from pathexpand.errors import NotationError, PathExpandError
from pathexpand.symbolic import Head, Network
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
Word = tuple[Head, ...]
NEVER = -(10**9)  # heads that can still be read where no path of the query can be completed


@dataclass(frozen=True, slots=True, eq=False)
class Suffix:
    """What a suffix reads: `row` (position,) and `vector` (d_model,), after the query's `state`.

    `size` (d_model,) is the vector with every product on its way taken by its size.
    """

    state: int
    row: Array
    vector: Array
    size: Array


def write_words(words: Iterable[Word]) -> tuple[str, ...]:
    """Write suffixes as texts, leaving out those that another one extends.

    A suffix stands for itself and for every later part of it; the readout alone is the text "".

    >>> write_words([(), (Head(1, 0),), (Head(0, 1), Head(1, 0)), (Head(1, 2),)])
    ('L0H1 > L1H0', 'L1H2')
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
    known = {head.label: head for layer in network.layers for head in layer}
    words: set[Word] = set()
    for text in texts:
        labels = text.split(" > ") if text else []
        strange = [label for label in labels if label not in known]
        if strange:
            raise NotationError(f"suffix {text!r}", wanted="heads of the model", got=strange[0])
        word = tuple(known[label] for label in labels)
        if any(one.layer >= other.layer for one, other in pairwise(word)):
            raise NotationError(f"suffix {text!r}", wanted="heads of ever later layers")
        words.add(word)
    return _closed(words)


def grow(held: Held, query: Query, words: Iterable[Word]) -> dict[Word, Suffix]:
    """Work out what suffixes and all their later parts read, from the readout back.

    Raises `PathExpandError` for a suffix that no path of the query has.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> run = load("two-layer").run("to be or not to")
    >>> target, place, query = run.target(), run.position(), run.model.query()
    >>> held = hold(run, target, place, same_patterns=True)
    >>> sorted(map(len, grow(held, query, [(Head(0, 1), Head(1, 0))])))
    [0, 1, 2]
    """
    row = np.zeros(held.positions)
    row[held.position] = 1
    found: dict[Word, Suffix] = {(): Suffix(query.start, row, held.direction, abs(held.direction))}
    for word in sorted(_closed(words) - {()}, key=len):
        later, head = found[word[1:]], word[0]
        state = query.step(later.state, head)
        if state is None:
            text = " > ".join(map(str, word))
            raise PathExpandError(f"suffix {text}", wanted=f"one of the query {query.text!r}")
        w_v, w_o = held.maps(head)
        found[word] = Suffix(
            state,
            later.row @ held.pattern(head),
            w_v @ (w_o @ later.vector),
            abs(w_v) @ (abs(w_o) @ later.size),
        )
    return found


def _closed(words: Iterable[Word]) -> set[Word]:
    """Give suffixes with all their later parts."""
    found: set[Word] = set()
    for word in words:
        start = 0
        while start <= len(word) and word[start:] not in found:
            found.add(word[start:])
            start += 1
    return found


def longest(network: Network, query: Query) -> list[list[int]]:
    """Give the most heads that can still be read, by boundary and state of the query.

    `longest(…)[b][q]` is for a suffix in state q that has all layers before boundary b before it.

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
            for head in network.layers[boundary - 1] if boundary else ():
                after = query.step(state, head)
                if after is not None:
                    level[state] = max(level[state], 1 + levels[-1][after])
        levels.append(level)
    return levels
