"""Induction heads found in the weights alone.

An induction head looks for what follows an earlier copy of the present token, and copies it. "A
Mathematical Framework for Transformer Circuits" (Elhage et al. 2021) reads both from eigenvalues:
its OV circuit copies, and its keys see through an earlier head, by the term

    Id ⊗ A^prev ⊗ W    with    W = W_E W_Q² (W_K²)ᵀ (W_V¹ W_O¹)ᵀ W_Eᵀ

in row vectors, whose eigenvalues are positive where a token attends to what stands behind its like.
They are those of a product of two (d_head, d_head) matrices. The earlier head must attend to the
token before; on learned positions that can be read from the weights too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.circuit import norm_claims
from pathexpand.circuits.composition import (
    Composition,
    check_top,
    composition,
    turned_queries,
)
from pathexpand.circuits.copying import copying, embedding_gram, positivity
from pathexpand.circuits.detection import visible_keys
from pathexpand.circuits.wiring import head_weights
from pathexpand.errors import PathExpandError
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import attention_scores, masked_softmax
from pathexpand.model.norm import normed
from pathexpand.progress import watched
from pathexpand.symbolic import Head
from pathexpand.table import AnalysisTable, Field, Summary
from pathexpand.table.abstract import Tabled

Array = npt.NDArray[Any]
_LONGEST = 256  # positions on which a previous-token head is looked for


@dataclass(frozen=True, slots=True)
class InductionPair:
    """What the weights say of one pair of heads as an induction circuit.

    `copying` is the later head's copying score; `matching` is Re Σλ / Σ|λ| of the K-composition
    term through both; `composed` is the K-composition score; `previous` is the earlier head's
    attention to the previous position, on positions alone, None without learned positions.
    `strength` is the product of all that there are, negative ones taken as 0, and of how far the
    K-composition lies above chance, as a part of itself.
    """

    earlier: Head
    later: Head
    copying: float
    matching: float
    composed: float
    previous: float | None
    strength: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InductionPlane(Tabled):
    """All pairs of heads on the paper's two axes: copying by OV, matching by K-composition.

    `pairs` stand in order of strength, the likeliest induction circuit first. `chance` is the
    K-composition score of random angles.
    """

    model: str
    pairs: tuple[InductionPair, ...]
    chance: float
    offset: int | None = None
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse pairs that are out of order."""
        strengths = [pair.strength for pair in self.pairs]
        if strengths != sorted(strengths, reverse=True):
            raise PathExpandError("induction pairs", wanted="the strongest first")

    @property
    def points(self) -> Array:
        """The two axes: (pair, 2), copying and matching."""
        return np.array([[pair.copying, pair.matching] for pair in self.pairs]).reshape(-1, 2)

    def table(self, *, top: int | None = 10) -> AnalysisTable:
        """List the pairs, strongest first.

        >>> from pathexpand import load
        >>> table = induction_plane(load("two-layer").checkpoint).table(top=1)
        >>> table[0]["earlier"], table[0]["later"]
        ('L0H3', 'L1H0')
        """
        shown = self.pairs[: check_top(top)]
        fields = (
            Field("earlier", "text"),
            Field("later", "text"),
            Field("copying", "number"),
            Field("matching", "number"),
            Field("K", "number", 1),
            Field("previous", "number", 2),
            Field("strength", "number"),
        )
        about = [("model", self.model)]
        if self.offset is not None:
            about.append(("offset", str(self.offset)))
        return AnalysisTable(
            "induction",
            tuple(about),
            fields,
            tuple(
                (
                    pair.earlier.label,
                    pair.later.label,
                    pair.copying,
                    pair.matching,
                    pair.composed,
                    pair.previous,
                    pair.strength,
                )
                for pair in shown
            ),
            (Summary("K by chance", self.chance, "K-composition at random angles"),),
            (
                "copying: Re Σλ / Σ|λ| of the later head's OV circuit.",
                "matching: the same of its K-composition term through the earlier head.",
                "previous: the earlier head's attention to the place before, on positions alone.",
                "strength: the product of these and of K's excess over chance (1 − chance / K).",
                *self.claims,
            ),
        )


@watched("looking for induction")
def induction_plane(checkpoint: Checkpoint, *, offset: int | None = None) -> InductionPlane:
    """Place every pair of heads of two layers on the paper's two axes, from weights alone.

    With rotary positions the query's `offset` from the key is needed. Raises `PathExpandError` for
    a model of fewer than two layers, of two vocabularies, or that sees both ways, and `ModelError`
    where the stream itself passes a norm.

    >>> from pathexpand import load
    >>> best = induction_plane(load("two-layer").checkpoint).pairs[0]
    >>> best.earlier.label, best.later.label, bool(best.copying > 0.9), bool(best.matching > 0.9)
    ('L0H3', 'L1H0', True, True)
    """
    config = checkpoint.config
    if config.attention_dir != "causal":
        raise PathExpandError("induction", wanted="a causal model", got="one that sees both ways")
    composed = composition(checkpoint, "K", offset=offset, samples=0)
    copies = copying(checkpoint, sample=0).scores  # (head,)
    matches = matching_scores(checkpoint, offset=offset)  # (earlier head, later head)
    previous = previous_by_position(checkpoint)
    return InductionPlane(
        model=config.model_name,
        pairs=_pairs(composed, copies, matches, previous),
        chance=composed.analytic,
        offset=offset,
        claims=(
            *((_POSITIONS,) if previous is not None else (_NO_POSITIONS,)),
            *norm_claims(checkpoint),
        ),
    )


def matching_scores(checkpoint: Checkpoint, *, offset: int | None = None) -> Array:
    """Give Re Σλ / Σ|λ| of each pair's K-composition term: (earlier head, later head).

    NaN where there is no pair. The eigenvalues are those of (W_V¹ᵀ G W_Q²)(W_K²ᵀ W_O¹ᵀ) with
    G = W_Eᵀ W_E.

    >>> from pathexpand import load
    >>> bool(matching_scores(load("two-layer").checkpoint)[3, 4] > 0.9)
    True
    """
    config, gram = checkpoint.config, embedding_gram(checkpoint)
    heads = config.n_heads
    out = np.full((config.n_layers * heads,) * 2, np.nan)
    written: list[tuple[Array, Array]] = []  # of each layer: W_Vᵀ G (head, n, d_model), and W_O
    for layer in range(config.n_layers):
        weights = head_weights(checkpoint, layer)
        W_Q = turned_queries(checkpoint, layer, weights.W_Q, offset)
        own = slice(layer * heads, (layer + 1) * heads)
        for before, (read, W_O) in enumerate(written):
            queries = read[:, None] @ W_Q  # (earlier, later, n, d_head)
            keys = np.swapaxes(W_O[:, None] @ weights.W_K, -1, -2)  # (earlier, later, d_head, n)
            rows = slice(before * heads, (before + 1) * heads)
            out[rows, own] = positivity(np.linalg.eigvals(queries @ keys))
        written.append((np.swapaxes(weights.W_V, 1, 2) @ gram, weights.W_O))
    return out


def previous_by_position(checkpoint: Checkpoint) -> Array | None:
    """Give each head's mean attention to the place before, on position embeddings alone: (head,).

    Each position embedding stands in the stream by itself, norms, biases, masks and windows as in
    the model; at most 256 positions are looked at. None where positions are not learned, or the
    context is of one position.

    >>> from pathexpand import load
    >>> previous_by_position(load("two-layer").checkpoint).argmax()
    np.int64(3)
    """
    config, weights = checkpoint.config, checkpoint.weights
    size = min(config.n_ctx, _LONGEST)
    if weights.pos is None or size < 2:
        return None
    places = np.arange(size)
    reads = weights.positions(places)[None]  # (1, position, d_model)
    if config.positional_embedding_type == "standard":
        for norm in weights.embed_norms:
            reads, _ = normed(norm, reads)
    found = []
    for layer in range(config.n_layers):
        block = weights.block(layer)
        # Shortformer positions are added behind the norm.
        bare = block.ln1 is None or config.positional_embedding_type == "shortformer"
        own = reads if block.ln1 is None or bare else normed(block.ln1, reads)[0]
        scores = attention_scores(block.attn, own)[0] / config.attn_scale[layer]
        if config.attn_scores_soft_cap is not None:
            scores = np.tanh(scores / config.attn_scores_soft_cap) * config.attn_scores_soft_cap
        seen = visible_keys(config, layer, size)
        sinks = block.attn.sinks
        pattern = masked_softmax(scores, seen, *(() if sinks is None else (sinks,)))
        found.append(np.diagonal(pattern, -1, axis1=1, axis2=2).mean(axis=-1))  # (head,)
    return np.concatenate(found) if found else None


_POSITIONS = "Positions stand alone in the stream here, as no prompt has them."
_NO_POSITIONS = "No learned positions: whether a head looks back takes a prompt."


def _pairs(
    composed: Composition, copies: Array, matches: Array, previous: Array | None
) -> tuple[InductionPair, ...]:
    """Put the pairs in order of strength; ties go by the heads' order."""
    found = []
    for one, other in np.argwhere(np.isfinite(composed.matrix)):
        score = float(composed.matrix[one, other])
        excess = 1 - composed.analytic / score if score > 0 else 0.0
        looks = None if previous is None else float(previous[one])
        factors = (copies[other], matches[one, other], excess, 1.0 if looks is None else looks)
        found.append(
            InductionPair(
                composed.heads[one],
                composed.heads[other],
                float(copies[other]),
                float(matches[one, other]),
                score,
                looks,
                float(np.prod(np.maximum(factors, 0))),
            )
        )
    return tuple(sorted(found, key=lambda pair: (-pair.strength, pair.earlier, pair.later)))
