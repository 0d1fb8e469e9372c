"""Rank paths from the weights alone, by the Frobenius norm of their end-to-end matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.enumeration import LIMIT, check_limit
from pathexpand.errors import PathExpandError
from pathexpand.frozen import bias_source
from pathexpand.lowrank import Factored
from pathexpand.model.weights import Weights
from pathexpand.symbolic import Head, Network, Path

Array = npt.NDArray[Any]
Word = tuple[Head, ...]


@dataclass(frozen=True, slots=True)
class NormRanking:
    """The paths of largest norm.

    `energy` is the sum of squared norms over all `path_count` paths, or over those of at most the
    order that was asked for. `bound` is the largest norm of a path valued but not listed.
    """

    paths: tuple[Path, ...]
    norms: tuple[float, ...]
    energy: float
    path_count: int
    certified: bool
    bound: float | None


def path_factors(weights: Weights, path: Path) -> dict[str, Array]:
    """Give a path's matrix as the chain of its factors, named, from source to logits.

    The source's rows are the vocabulary, the positions, or one constant: a bias as it is where
    every pattern row sums to 1.
    """
    if path.source == "b_U":
        if weights.b_U is None:
            raise _no_source(path)
        return {"b_U": weights.b_U[None]}  # (1, d_vocab_out)
    factors = {path.source: _source_rows(weights, path)}  # (inputs, d_model)
    for head in path.components:
        if head.layer >= len(weights.blocks) or head.index >= len(
            weights.blocks[head.layer].attn.W_V
        ):
            raise PathExpandError(f"path {path}", wanted="heads of the model", got=head.label)
        attn = weights.blocks[head.layer].attn
        factors[f"W_V {head.label}"] = attn.W_V[head.index]  # (d_model, d_head)
        factors[f"W_O {head.label}"] = attn.W_O[head.index]  # (d_head, d_model)
    return factors | {"W_U": weights.W_U}


def path_matrix(weights: Weights, path: Path) -> Factored:
    """Give a path's matrix from source to logits, kept in factors: (inputs, d_vocab_out)."""
    return Factored.product(list(path_factors(weights, path).values()))


def rank_by_norm(
    weights: Weights,
    network: Network,
    *,
    top: int,
    max_order: int | None = None,
    limit: int = LIMIT,
) -> NormRanking:
    """Rank paths by the Frobenius norm of their matrix from source to logits.

    Equal norms stand in the order of `Path`. Raises `LimitError` for more than `limit` paths.
    """
    check_limit(network, max_order, limit)
    counts = network.count_by_order()
    whole = max_order is None or max_order >= len(counts) - 1
    valued = [(norm, path) for path, norm in _norms(weights, network, max_order)]
    valued.sort(key=lambda each: (-each[0], each[1]))
    listed, left = valued[:top], valued[top:]
    return NormRanking(
        paths=tuple(path for _, path in listed),
        norms=tuple(norm for norm, _ in listed),
        energy=float(sum(norm * norm for norm, _ in valued)),
        path_count=network.count(),
        certified=whole,
        bound=(left[0][0] if left else 0.0) if whole else None,
    )


def _norms(
    weights: Weights, network: Network, max_order: int | None
) -> Iterator[tuple[Path, float]]:
    """Yield every path and its norm, through cores no larger than d_head × d_head.

    With W_U = L Q and source rows = Q' R (both Q orthonormal), ‖S OV¹ … OVᵏ W_U‖ is the norm of
    (R W_V¹)(W_O¹ W_V²) … (W_Oᵏ L), and the two end factors are made triangular in the same way.
    """
    readout = _triangle(weights.W_U.T).T  # (d_model, d_model): W_U up to an orthonormal factor
    most = len(network.layers) if max_order is None else max_order
    words: list[tuple[Word, Array]] = []
    for boundary in range(len(network.layers), -1, -1):
        for source in (s for s in network.sources if s.boundary == boundary):
            start = _triangle(_source_rows(weights, Path(source.label)))  # (rows, d_model)
            yield Path(source.label), _frobenius(start @ readout)
            entries: dict[Head, Array] = {}
            for word, core in words:
                head = word[0]
                if head not in entries:
                    attn = weights.blocks[head.layer].attn
                    entries[head] = _triangle(start @ attn.W_V[head.index])  # (rows, d_head)
                yield Path(source.label, word), _frobenius(entries[head] @ core)
        if boundary and most:
            words += _longer(weights, network.layers[boundary - 1], words, readout, most)
    if weights.b_U is not None and any(s.boundary is None for s in network.sources):
        yield Path("b_U"), _frobenius(weights.b_U)


def _longer(
    weights: Weights,
    heads: tuple[Head, ...],
    words: list[tuple[Word, Array]],
    readout: Array,
    most: int,
) -> list[tuple[Word, Array]]:
    """Give the words that start with a head of one layer, each with its core (d_head, d_head)."""
    out: list[tuple[Word, Array]] = []
    for head in heads:
        w_o = weights.blocks[head.layer].attn.W_O[head.index]  # (d_head, d_model)
        out.append(((head,), _triangle((w_o @ readout).T).T))  # (d_head, at most d_head)
        virtual: dict[Head, Array] = {}
        for word, core in words:
            if len(word) < most:
                if word[0] not in virtual:
                    attn = weights.blocks[word[0].layer].attn
                    virtual[word[0]] = w_o @ attn.W_V[word[0].index]  # (d_head, d_head)
                out.append(((head, *word), virtual[word[0]] @ core))
    return out


def _frobenius(array: Array) -> float:
    """Give the root of the sum of squares, which itself may be too small or large for a float."""
    peak = float(np.max(abs(array), initial=0.0))
    return peak * float(np.linalg.norm(array / peak)) if 0 < peak < np.inf else peak


def _triangle(matrix: Array) -> Array:
    """Give R of a QR decomposition, or the matrix itself where it is wide already."""
    if matrix.shape[0] <= matrix.shape[1]:
        return matrix
    return np.asarray(np.linalg.qr(matrix, mode="r"))


def _source_rows(weights: Weights, path: Path) -> Array:
    """Give the vectors a source can write: (inputs, d_model)."""
    if path.source == "embed":
        return weights.W_E
    if path.source == "pos" and weights.W_pos is not None:
        return weights.W_pos
    for layer, block in enumerate(weights.blocks):
        if path.source == f"L{layer}bias":
            whole = np.ones((block.attn.W_V.shape[0], 1, 1))  # (head, query, key): each row is 1
            return bias_source(block.attn, whole)
    raise _no_source(path)


def _no_source(path: Path) -> PathExpandError:
    return PathExpandError(f"path {path}", wanted="a source of this model", got=path.source)
