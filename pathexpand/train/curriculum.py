"""Draws the rows that the networks are trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pathexpand.errors import PathExpandError
from pathexpand.train.tokenizer import BOS_ID

Tokens = NDArray[np.int64]

SHORTEST_PERIOD = 6
LONGEST_PERIOD = 63


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Holds one corpus as token ids, split as its documents are."""

    name: str
    weight: float
    training: Tokens
    held_out: Tokens


@dataclass(frozen=True, kw_only=True)
class Share:
    """Holds the share of repeated rows, which falls linearly from `first` to `last`.

    >>> Share(first=0.5, last=0.1).at(0.25)
    0.4
    """

    first: float
    last: float

    def __post_init__(self) -> None:
        """Refuse what is no share."""
        for share in (self.first, self.last):
            if not 0 <= share <= 1:
                raise PathExpandError("share of repeated rows", wanted="0 to 1", got=str(share))

    def at(self, progress: float) -> float:
        """Return the share after this part of the plan, from 0 to 1."""
        return self.first + (self.last - self.first) * progress


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """Mixes rows of text with rows of repeated random tokens.

    Every row starts with BOS and has `length` tokens after it.
    """

    streams: tuple[Stream, ...]
    rows: int
    length: int
    vocabulary: int

    def __post_init__(self) -> None:
        """Refuse text shorter than a row."""
        for stream in self.streams:
            if len(stream.training) < self.length:
                raise PathExpandError(
                    f"corpus {stream.name}",
                    wanted=f"at least {self.length} tokens",
                    got=str(len(stream.training)),
                )

    def batch(self, share: float, generator: np.random.Generator) -> Tokens:
        """Draw one batch with this share of repeated rows, (row, 1 + length)."""
        # Rounding at random keeps the mean share exact.
        repeated = int(share * self.rows + generator.random())
        rows = [self.repeated_row(generator) for _ in range(repeated)]
        rows += [self.text_row(generator) for _ in range(self.rows - repeated)]
        return np.stack(rows)  # (row, 1 + length)

    def text_row(self, generator: np.random.Generator) -> Tokens:
        """Draw a corpus by its weight, then a place in it."""
        weights = np.array([stream.weight for stream in self.streams])
        chosen = generator.choice(len(self.streams), p=weights / weights.sum())
        text = self.streams[chosen].training
        start = generator.integers(len(text) - self.length + 1)
        return with_bos(text[start : start + self.length])

    def repeated_row(self, generator: np.random.Generator) -> Tokens:
        """Draw uniform random tokens and repeat them with a random period."""
        period = generator.integers(SHORTEST_PERIOD, LONGEST_PERIOD + 1)
        tokens = generator.integers(BOS_ID + 1, self.vocabulary, size=period)
        return with_bos(np.resize(tokens, self.length))


def with_bos(tokens: Tokens) -> Tokens:
    """Put BOS before a row of tokens."""
    return np.concatenate([np.array([BOS_ID]), tokens])
