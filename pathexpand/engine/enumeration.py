"""Value every path of a sum, many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.value import Readout, empty_suffix
from pathexpand.frozen import FrozenStage, FrozenSum, Group, MlpGroup
from pathexpand.symbolic import Component

Array = npt.NDArray[Any]
Word = tuple[Component, ...]
_BLOCK = 4096  # suffixes extended together: enough for full speed, small in memory


@dataclass(frozen=True, slots=True)
class Valued:
    """Paths from one source, one a word of components, and their values (word,)."""

    source: str
    words: list[Word]
    values: Array


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Suffixes at one boundary; `owner` (piece,) says which word each of their pieces is of."""

    words: list[Word]
    rows: Array
    vectors: Array
    owner: npt.NDArray[np.intp]

    def values(self, source: Array) -> Array:
        """Give the worth of each suffix with a source (position, d_model) in front: (word,)."""
        each = ((self.rows @ source) * self.vectors).sum(axis=1)  # (piece,)
        total = np.zeros(len(self.words), dtype=each.dtype)
        np.add.at(total, self.owner, each)
        return total

    def cut(self, start: int, stop: int) -> _Block:
        """Give some of the words."""
        keep = (self.owner >= start) & (self.owner < stop)
        words = self.words[start:stop]
        return _Block(words, self.rows[keep], self.vectors[keep], self.owner[keep] - start)

    def past(self, stage: FrozenStage) -> _Block:
        """Carry them back past a stage."""
        if stage.carry is None:
            return self
        return _Block(self.words, *stage.carry.move(self.rows, self.vectors), self.owner)


def enumerate_values(
    frozen: FrozenSum, readout: Readout, *, max_order: int | None = None
) -> Iterator[Valued]:
    """Yield the value of every path of at most `max_order` components, in blocks.

    All suffixes at one boundary are extended by one stage together, so that a suffix shared by
    many paths is worked out once. At the boundary where a source is born every suffix there
    completes a path.
    """
    most = frozen.depth if max_order is None else max_order
    start = empty_suffix(frozen, readout)
    blocks = [(frozen.depth, _Block([()], start.rows, start.vectors, np.zeros(1, dtype=np.intp)))]
    if frozen.constant is not None:
        yield Valued(frozen.constant, [()], np.array([readout.constant], dtype=start.rows.dtype))
    while blocks:
        boundary, block = blocks.pop()
        for source in (s for s in frozen.sources if s.boundary == boundary):
            yield Valued(source.label, block.words, block.values(source.values))
        if boundary:
            longer = _extended(frozen.stages[boundary - 1], block, most)
            for at in range(0, len(longer.words), _BLOCK):
                blocks.append((boundary - 1, longer.cut(at, at + _BLOCK)))


def _extended(stage: FrozenStage, block: _Block, most: int) -> _Block:
    """Give the suffixes and all their extensions by one component of a stage."""
    short = [n for n, word in enumerate(block.words) if len(word) < most]
    parts = [block.past(stage)]
    if short:
        some = block if len(short) == len(block.words) else _chosen(block, short)
        parts += [
            _through(group, index, component, some)
            for group in stage.groups
            for index, component in enumerate(group.components)
        ]
    starts = np.cumsum([0, *(len(part.words) for part in parts[:-1])])
    return _Block(
        [word for part in parts for word in part.words],
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.owner + at for part, at in zip(parts, starts, strict=True)]),
    )


def _chosen(block: _Block, which: list[int]) -> _Block:
    keep = np.isin(block.owner, which)
    owner = np.searchsorted(which, block.owner[keep])
    words = [block.words[n] for n in which]
    return _Block(words, block.rows[keep], block.vectors[keep], owner)


def _through(group: Group, index: int, component: Component, block: _Block) -> _Block:
    words = [(component, *word) for word in block.words]
    if not isinstance(group, MlpGroup):
        return _Block(words, *group.move(block.rows, block.vectors, index), block.owner)
    # A whole MLP makes pieces of its own out of all pieces of one suffix.
    moved = [
        group.move(block.rows[block.owner == n], block.vectors[block.owner == n], index)
        for n in range(len(words))
    ]
    return _Block(
        words,
        np.concatenate([rows for rows, _ in moved]),
        np.concatenate([vectors for _, vectors in moved]),
        np.repeat(np.arange(len(words)), [len(rows) for rows, _ in moved]),
    )
