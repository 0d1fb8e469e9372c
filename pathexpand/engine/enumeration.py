"""Value every path of a sum, many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.value import Readout, empty_suffix
from pathexpand.frozen import FrozenSum
from pathexpand.symbolic import Head

Array = npt.NDArray[Any]
Word = tuple[Head, ...]
_BLOCK = 4096  # suffixes extended together: enough for full speed, small in memory


@dataclass(frozen=True, slots=True)
class Valued:
    """Paths from one source, one a word of heads, and their values (word,)."""

    source: str
    words: list[Word]
    values: Array


def enumerate_values(
    frozen: FrozenSum, readout: Readout, *, max_order: int | None = None
) -> Iterator[Valued]:
    """Yield the value of every path of at most `max_order` heads, in blocks.

    All suffixes at one boundary are extended by one layer together, so that a suffix shared by
    many paths is worked out once. At the boundary where a source is born every suffix there
    completes a path.
    """
    most = len(frozen.layers) if max_order is None else max_order
    start = empty_suffix(frozen, readout)
    words: list[Word] = [()]
    blocks = [(len(frozen.layers), words, start.row[None], start.vector[None])]
    if frozen.has_unembed_bias:
        yield Valued("b_U", words, np.array([readout.constant], dtype=start.row.dtype))
    while blocks:
        boundary, words, rows, vectors = blocks.pop()
        for source in (s for s in frozen.sources if s.boundary == boundary):
            yield Valued(source.label, words, ((rows @ source.values) * vectors).sum(axis=1))
        if boundary:
            longer = _extended(frozen, boundary - 1, words, rows, vectors, most)
            for at in range(0, len(longer[0]), _BLOCK):
                part = slice(at, at + _BLOCK)
                blocks.append((boundary - 1, longer[0][part], longer[1][part], longer[2][part]))


def _extended(
    frozen: FrozenSum, index: int, words: list[Word], rows: Array, vectors: Array, most: int
) -> tuple[list[Word], Array, Array]:
    """Give the suffixes and all their extensions by one head of a layer."""
    layer = frozen.layers[index]
    short = np.array([len(word) < most for word in words])
    if not short.any():
        return words, rows, vectors
    all_words, all_rows, all_vectors = list(words), [rows], [vectors]
    for head in layer.heads:
        w_v, w_o = layer.W_V[head.index], layer.W_O[head.index]
        all_words += [(head, *word) for word in words if len(word) < most]
        all_rows.append(rows[short] @ layer.patterns[head.index])  # (word, key)
        all_vectors.append((vectors[short] @ w_o.T) @ w_v.T)  # (word, d_model)
    return all_words, np.concatenate(all_rows), np.concatenate(all_vectors)
