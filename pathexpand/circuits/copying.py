"""Copying: whether a head writes the token that it reads, for all heads at once.

The OV circuit of a head through the vocabulary, W_E W_V W_O W_U, copies where its eigenvalues are
positive: Re Σλ / Σ|λ| is 1 then, and −1 where each token speaks against itself ("A Mathematical
Framework for Transformer Circuits", Elhage et al. 2021). They are those of W_O (W_U W_E) W_V, of
d_head numbers; W_U W_E is (d_model, d_model), and summed over the vocabulary once. The same of the
QK circuit, from W_Kᵀ (W_Eᵀ W_E) W_Q, says whether a token attends to its like.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.circuit import norm_claims, parse_chain
from pathexpand.circuits.composition import check_offset, check_top, turned_queries
from pathexpand.circuits.wiring import (
    HeadWeights,
    check_chain,
    head_weights,
    unembedded,
)
from pathexpand.errors import PathExpandError
from pathexpand.frozen.norm import back, through
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.rows import Rows
from pathexpand.model.shown import shown
from pathexpand.progress import tracked, watched
from pathexpand.symbolic import Head
from pathexpand.table import AnalysisTable, Field, Summary
from pathexpand.table.abstract import Tabled

Array = npt.NDArray[Any]
CircuitName = Literal["OV", "QK"]
_CHUNK = 2048  # tokens whose embedding and unembedding are cast up at once
_ROOM = 2**24  # numbers of one block of logits


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Spectra(Tabled):
    """The eigenvalues of one circuit of every head, through the vocabulary.

    `heads` are labels, a virtual head's such as "L0H3 > L1H0". `eigenvalues` (head, n) are complex,
    largest modulus first; the circuit's other ones are 0. `scores` (head,) are Re Σλ / Σ|λ|, 0
    where all are 0. Over the `sampled` tokens (all of them where it is d_vocab), `diagonal` (head,)
    is the share of positive diagonal entries, and `own_top` (head,), where it was asked for, the
    share of tokens that are among the `top` largest entries of their own row.
    """

    model: str
    circuit: CircuitName
    heads: tuple[str, ...]
    eigenvalues: Array
    d_vocab: int
    sampled: int = 0
    diagonal: Array | None = None
    top: int = 0
    own_top: Array | None = None
    offset: int | None = None
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse numbers that are not of these heads."""
        if self.eigenvalues.ndim != 2 or len(self.eigenvalues) != len(self.heads):
            got = f"an array of shape {self.eigenvalues.shape}"
            raise PathExpandError("eigenvalues", wanted=f"{len(self.heads)} rows", got=got)
        for name in ("diagonal", "own_top"):
            found = getattr(self, name)
            if found is not None and found.shape != (len(self.heads),):
                raise PathExpandError(name, wanted="one share a head", got=f"{found.shape}")

    @property
    def scores(self) -> Array:
        """The copying (OV) or matching (QK) score of each head: (head,)."""
        return positivity(self.eigenvalues)

    def of(self, head: str | Head) -> float:
        """Give one head's score; raises `PathExpandError` for a head that is not among these.

        >>> from pathexpand import load
        >>> round(copying(load("one-layer").checkpoint).of("L0H1"), 2)
        1.0
        """
        label = str(head)
        if label not in self.heads:
            raise PathExpandError(f"head {shown(label)}", wanted=f"one of {len(self.heads)}")
        return float(self.scores[self.heads.index(label)])

    def table(self, *, top: int | None = None) -> AnalysisTable:
        """List the heads, largest score first; ties go by the heads' order.

        >>> from pathexpand import load
        >>> copying(load("two-layer").checkpoint).table(top=1).column("head")
        ('L1H0',)
        """
        name = "copying" if self.circuit == "OV" else "matching"
        scores = self.scores
        columns: list[tuple[Field, Array]] = [
            (Field(name, "number"), scores),
            (Field("largest |λ|", "number", 1), abs(self.eigenvalues).max(axis=1, initial=0)),
        ]
        if self.diagonal is not None:
            columns.append((Field("diagonal > 0", "share"), self.diagonal))
        if self.own_top is not None:
            columns.append((Field(f"own in top {self.top}", "share"), self.own_top))
        order = np.argsort(-scores, kind="stable")[: check_top(top)]
        about = [("model", self.model), ("circuit", f"{self.circuit} through the vocabulary")]
        if self.offset is not None:
            about.append(("offset", str(self.offset)))
        return AnalysisTable(
            name,
            tuple(about),
            (Field("head", "text"), *(field for field, _ in columns)),
            tuple((self.heads[n], *(float(values[n]) for _, values in columns)) for n in order),
            (Summary("mean", float(scores.mean()), f"of all {len(scores)} heads"),),
            (f"{name}: Re Σλ / Σ|λ|, from −1 to 1.", *self._sampled(), *self.claims),
        )

    def _sampled(self) -> tuple[str, ...]:
        if self.diagonal is None and self.own_top is None:
            return ()
        which = "all" if self.sampled == self.d_vocab else f"{self.sampled:,} of"
        return (f"Shares are over {which} {self.d_vocab:,} tokens.",)


def positivity(eigenvalues: Array) -> Array:
    """Give Re Σλ / Σ|λ| over the last axis, 0 where all are 0.

    >>> positivity(np.array([[3 + 4j, 3 - 4j], [0, 0]]))
    array([0.6, 0. ])
    """
    sizes = abs(eigenvalues).sum(axis=-1)
    out: Array = np.divide(
        eigenvalues.real.sum(axis=-1), sizes, out=np.zeros(sizes.shape), where=sizes > 0
    )
    return out


@watched("scoring copying")
def copying(
    checkpoint: Checkpoint,
    heads: Sequence[str | Head] | None = None,
    *,
    sample: int = 2000,
    top: int = 0,
    seed: int = 0,
) -> Spectra:
    """Give the eigenvalues and copying scores of the OV circuits of all heads, or some.

    `heads` may hold virtual heads ("L0H3 > L1H0", earlier first). `sample` tokens, drawn once for
    all heads (all where there are no more), give the shares: of positive diagonal entries and, with
    `top`, of tokens among the `top` largest entries of their row; 0 leaves them out. Raises
    `PathExpandError` where input and output vocabularies differ, `ModelError` where the stream
    itself passes a norm, or a masked-token head stands before the logits.

    >>> from pathexpand import load
    >>> found = copying(load("two-layer").checkpoint, ["L1H0", "L0H3 > L1H0"])
    >>> found.heads, found.eigenvalues.shape, bool(found.of("L1H0") > 0.5)
    (('L1H0', 'L0H3 > L1H0'), (2, 64), True)
    """
    for name, value in (("sample", sample), ("top", top), ("seed", seed)):
        if type(value) is not int or value < 0:
            raise PathExpandError(name, wanted="a whole number of at least 0", got=shown(value))
    config = checkpoint.config
    if config.d_vocab != config.d_vocab_out:
        raise PathExpandError(
            "copying",
            wanted="one vocabulary for input and output",
            got=f"{config.d_vocab} tokens in and {config.d_vocab_out} out",
        )
    chains = _chains(checkpoint, heads)
    for chain in chains:
        check_chain(checkpoint, chain, ends=True)
    unembedded(checkpoint, np.zeros((0, config.d_model)))  # refuses a head that is not linear
    middle = unembedded_embedding(checkpoint)
    tokens = _sample(config.d_vocab, sample, seed)
    found, diagonal, own = [], [], []
    for ends in tracked(_ends(checkpoint, chains), "heads", len(chains)):
        found.append(_eigenvalues(ends.back @ middle @ ends.front))
        diagonal.append(_positive_diagonal(checkpoint, ends, tokens) if sample else 0)
        own.append(_own_in_top(checkpoint, ends, tokens, top) if sample and top else 0)
    cap = config.output_logits_soft_cap
    return Spectra(
        model=config.model_name,
        circuit="OV",
        heads=tuple(" > ".join(each.label for each in chain) for chain in chains),
        eigenvalues=_stacked(found),
        d_vocab=config.d_vocab,
        sampled=len(tokens),
        diagonal=np.array(diagonal, dtype=np.float64) if sample else None,
        top=top,
        own_top=np.array(own, dtype=np.float64) if sample and top else None,
        claims=(
            *norm_claims(checkpoint),
            *(("Logits are taken before their soft cap.",) if cap is not None else ()),
        ),
    )


@watched("scoring matching")
def matching(checkpoint: Checkpoint, *, offset: int | None = None) -> Spectra:
    """Give the eigenvalues and matching scores of the QK circuits of all heads.

    Rows are destination tokens, columns source tokens; scores are divided by the attention scale.
    With rotary positions an `offset` (query minus key) is needed. Raises `PathExpandError` and
    `ModelError` like `copying`.

    >>> from pathexpand import load
    >>> matching(load("one-layer").checkpoint).eigenvalues.shape
    (4, 64)
    """
    config = checkpoint.config
    check_offset(checkpoint, offset)
    chains = _chains(checkpoint, None)
    check_chain(checkpoint, chains[-1])
    middle, found = embedding_gram(checkpoint), []
    for layer in tracked(range(config.n_layers), "layers", config.n_layers):
        weights = head_weights(checkpoint, layer)
        for head in range(config.n_heads):
            W_Q = turned_queries(checkpoint, layer, weights.W_Q[head], offset)
            core = weights.W_K[head].T @ middle @ W_Q  # (d_head, d_head)
            found.append(_eigenvalues(core / config.attn_scale[layer]))
    cap = config.attn_scores_soft_cap
    return Spectra(
        model=config.model_name,
        circuit="QK",
        heads=tuple(chain[0].label for chain in chains),
        eigenvalues=_stacked(found),
        d_vocab=config.d_vocab,
        offset=offset,
        claims=(
            *norm_claims(checkpoint),
            *(("Scores are taken before their soft cap.",) if cap is not None else ()),
        ),
    )


def unembedded_embedding(checkpoint: Checkpoint) -> Array:
    """Give W_U W_E, summed over the vocabulary in pieces: (d_model, d_model).

    Norms at both ends are folded in. Needs one vocabulary for both.

    >>> from pathexpand import load
    >>> unembedded_embedding(load("one-layer").checkpoint).shape
    (192, 192)
    """
    weights = checkpoint.weights
    out = back(weights.final_norm, _summed(weights.unembedding, weights.embed))
    for norm in weights.embed_norms:
        out = through(norm, out)
    return out


def embedding_gram(checkpoint: Checkpoint) -> Array:
    """Give W_Eᵀ W_E, summed over the vocabulary in pieces, norms folded in: (d_model, d_model).

    >>> from pathexpand import load
    >>> embedding_gram(load("one-layer").checkpoint).shape
    (192, 192)
    """
    weights = checkpoint.weights
    out = _summed(weights.embed, weights.embed)
    for norm in weights.embed_norms:
        out = through(norm, through(norm, out).T)  # symmetric, so once from each side
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """An OV circuit, virtual or not: `front` (d_model, n) times `back` (n, d_model)."""

    front: Array
    back: Array


def _ends(checkpoint: Checkpoint, chains: Sequence[tuple[Head, ...]]) -> Iterator[_Ends]:
    """Give both ends of each chain of heads, reading each layer once while it is the same."""
    kept: dict[int, HeadWeights] = {}
    for chain in chains:
        wanted = {head.layer for head in chain}
        for layer in [each for each in kept if each not in wanted]:
            del kept[layer]
        for layer in sorted(wanted - set(kept)):
            kept[layer] = head_weights(checkpoint, layer)
        fronts = [kept[head.layer].W_V[head.index] for head in chain]
        backs = [kept[head.layer].W_O[head.index] for head in chain]
        # Each head's W_O with the next one's W_V: (d_head, d_head).
        turns = [backs[one] @ fronts[other] for one, other in pairwise(range(len(chain)))]
        yield _Ends(fronts[0], reduce(np.matmul, [*turns, backs[-1]]))


def _summed(left: Rows, right: Rows) -> Array:
    """Give leftᵀ right, a sum over the rows of both: (width, width)."""
    out = np.zeros((left.width, right.width))
    for start in range(0, left.count, _CHUNK):
        at = np.arange(start, min(start + _CHUNK, left.count))
        out += left.at(at).T @ right.at(at)
    return out


def _eigenvalues(core: Array) -> Array:
    """Give eigenvalues, largest modulus first; equal ones by real, then by imaginary part."""
    values = np.linalg.eigvals(core).astype(np.complex128)  # (n,)
    return np.asarray(values[np.lexsort((-values.imag, -values.real, -abs(values)))])


def _stacked(found: list[Array]) -> Array:
    """Put eigenvalues of every head in one array, with zeros where some have fewer."""
    out = np.zeros((len(found), max(len(each) for each in found)), dtype=complex)
    for row, each in zip(out, found, strict=True):
        row[: len(each)] = each
    return out


def _sample(size: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Draw some tokens, in rising order; all where there are no more."""
    if count >= size:
        return np.arange(size)
    return np.sort(np.random.default_rng(seed).choice(size, count, replace=False))


def _rows_of(checkpoint: Checkpoint, tokens: npt.NDArray[np.int64], front: Array) -> Array:
    """Give what tokens bring to the middle of a circuit: (token, n)."""
    rows = checkpoint.weights.embed.at(tokens)  # (token, d_model)
    for norm in checkpoint.weights.embed_norms:
        rows = through(norm, rows)
    out: Array = rows @ front
    return out


def _columns_of(checkpoint: Checkpoint, tokens: npt.NDArray[np.int64], rows: Array) -> Array:
    """Give what the middle of a circuit writes to tokens' logits: (n, token)."""
    weights = checkpoint.weights
    out: Array = through(weights.final_norm, rows) @ weights.unembed(tokens)
    return out


def _positive_diagonal(checkpoint: Checkpoint, ends: _Ends, tokens: npt.NDArray[np.int64]) -> float:
    """Give the share of tokens whose diagonal entry is positive."""
    positive = 0
    for start in range(0, len(tokens), _CHUNK):
        some = tokens[start : start + _CHUNK]
        rows = _rows_of(checkpoint, some, ends.front)
        columns = _columns_of(checkpoint, some, ends.back)
        positive += int((np.einsum("tn,nt->t", rows, columns) > 0).sum())
    return positive / len(tokens)


def _own_in_top(
    checkpoint: Checkpoint, ends: _Ends, tokens: npt.NDArray[np.int64], top: int
) -> float:
    """Give the share of tokens with fewer than `top` entries of their row above their own."""
    step, inside = max(_ROOM // checkpoint.config.d_vocab_out, 1), 0
    for start in range(0, len(tokens), step):
        some = tokens[start : start + step]
        entries = unembedded(checkpoint, _rows_of(checkpoint, some, ends.front) @ ends.back)
        own = entries[np.arange(len(some)), some]
        inside += int(((entries > own[:, None]).sum(axis=1) < top).sum())
    return inside / len(tokens)


def _chains(checkpoint: Checkpoint, heads: Sequence[str | Head] | None) -> list[tuple[Head, ...]]:
    """Read the heads that were asked for, virtual ones as chains; all of them where none were."""
    config = checkpoint.config
    if heads is None:
        heads = [
            Head(layer, head) for layer in range(config.n_layers) for head in range(config.n_heads)
        ]
    if isinstance(heads, str | Head):
        heads = [heads]
    if not isinstance(heads, Iterable):
        raise PathExpandError("heads", wanted="a list of heads", got=shown(heads))
    found = [parse_chain(checkpoint, each) for each in heads]
    if not found:
        got = "none" if config.n_layers else "a model of no layers"
        raise PathExpandError("heads", wanted="at least one head", got=got)
    return found
