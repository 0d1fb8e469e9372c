"""Value every path of a sum, many at a time, and keep the largest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.value import Readout, empty_suffix, path_value
from pathexpand.errors import LimitError
from pathexpand.frozen import FrozenSum
from pathexpand.symbolic import Head, Network, Path

Array = npt.NDArray[Any]
Word = tuple[Head, ...]
LIMIT = 2_000_000
_BLOCK = 4096  # suffixes extended together: enough for full speed, small in memory


@dataclass(frozen=True, slots=True)
class Valued:
    """Paths from one source, one a word of heads, and their values (word,)."""

    source: str
    words: list[Word]
    values: Array


@dataclass(frozen=True, slots=True)
class TopPaths:
    """The paths of largest |value|, largest first, and a bound on |value| of all the others.

    Equal values stand in the order of `Path`: fewer heads first, then source and heads.
    """

    paths: tuple[Path, ...]
    bound: float


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


def top_paths(
    frozen: FrozenSum,
    readout: Readout,
    top: int,
    *,
    max_order: int | None = None,
    limit: int = LIMIT,
) -> TopPaths:
    """Find the `top` paths of largest |value| among those of at most `max_order` heads.

    Raises `LimitError` where there are more than `limit` of them.
    """
    check_limit(frozen.network(), max_order, limit)
    kept: list[tuple[float, Path]] = []
    for valued in enumerate_values(frozen, readout, max_order=max_order):
        sizes = abs(np.asarray(valued.values, dtype=np.float64))
        for index in np.flatnonzero(sizes >= _floor(kept, top)):
            kept.append((float(sizes[index]), Path(valued.source, valued.words[index])))
        kept.sort(key=_by_size)
        last = kept[top][0] if len(kept) > top else 0.0
        kept = kept[: top + 1] + [e for e in kept[top + 1 :] if _floor(kept, top) < e[0] < last]
    exact = [(abs(float(path_value(frozen, readout, path))), path) for _, path in kept]
    exact.sort(key=_by_size)
    bound = exact[top][0] if len(exact) > top else 0.0
    return TopPaths(tuple(path for _, path in exact[:top]), bound)


def _floor(kept: list[tuple[float, Path]], top: int) -> float:
    """Give the size below which no path can be listed any more.

    A block's arithmetic may differ from a single path's in the last digits, so near-equals of the
    last kept value stay until they are valued one by one.
    """
    return kept[top][0] * (1 - 1e-9) if len(kept) > top else 0.0


def _by_size(entry: tuple[float, Path]) -> tuple[float, Path]:
    return -entry[0], entry[1]


def check_limit(network: Network, max_order: int | None, limit: int) -> None:
    """Refuse to enumerate more paths than `limit`, and say up to which order they fit."""
    by_order = network.count_by_order()
    wanted = sum(by_order if max_order is None else by_order[: max_order + 1])
    if wanted <= limit:
        return
    fits = 0
    while sum(by_order[: fits + 2]) <= limit:
        fits += 1
    raise LimitError(
        "paths",
        wanted=f"at most {limit:,} to enumerate",
        got=f"{wanted:,}",
        remedy=f"max order {fits} has {sum(by_order[: fits + 1]):,}",
    )
