"""The direct path from token to logits read as bigrams, beside the bigrams of a text.

A zero-layer model can only learn which token follows which: W_U W_E approximates the bigram
log-likelihood ("A Mathematical Framework for Transformer Circuits", Elhage et al. 2021). In larger
models the direct path keeps that part which nothing else says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.circuit import norm_claims
from pathexpand.circuits.largest import check_count, entries, largest
from pathexpand.circuits.skip_trigrams import token_ids
from pathexpand.circuits.wiring import check_crossing, embedding, unembedding
from pathexpand.errors import PathExpandError
from pathexpand.lowrank import Factored
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.tokenizer import show_token
from pathexpand.progress import watched
from pathexpand.table.analysis_table import AnalysisTable, Field, Summary

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_ENTRIES = 2**22  # logits worked out at once
_PAIRS = 2**14  # and single pairs


@dataclass(frozen=True, slots=True, eq=False)
class TextBigrams:
    """How often each pair of tokens follow one another in a text, most often first.

    Shapes: `tokens`, `nexts` and `counts` (pair,); `observed` (pair,) is the log-probability of the
    second token after the first in the text.
    """

    tokens: Indices
    nexts: Indices
    counts: Indices
    observed: Floats

    @classmethod
    def of(cls, checkpoint: Checkpoint, corpus: object) -> TextBigrams:
        """Count the pairs of a sequence of token ids.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> pairs = TextBigrams.of(read_checkpoint("zero-layer"), [1, 2, 1, 2, 3])
        >>> pairs.counts.tolist(), np.exp(pairs.observed).round(2).tolist()
        ([2, 1, 1], [1.0, 0.5, 0.5])
        """
        ids = token_ids(checkpoint, corpus, least=2)
        pairs, counts = np.unique(np.stack([ids[:-1], ids[1:]]), axis=1, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        (tokens, nexts), counts = pairs[:, order], counts[order]
        totals = np.bincount(tokens, weights=counts)
        return cls(tokens, nexts, counts, np.log(counts / totals[tokens]))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bigrams:
    """The direct path's log-probability of each next token; made by `bigrams`.

    `matrix` (d_vocab, d_vocab_out) is factored: W_E W_U and the bias of the logits, less each
    row's log Σ e^logit.
    """

    checkpoint: Checkpoint
    matrix: Factored

    def __repr__(self) -> str:
        """Name the model."""
        return f"Bigrams({self.checkpoint.config.model_name!r})"

    def _repr_html_(self) -> str:
        from pathexpand.table.markup import card
        from pathexpand.table.sheet import Line
        from pathexpand.table.spelling import visible

        lines = [Line(label, visible(text)) for label, text in self._about()]
        return card(lines, "Ask for top(k), row(token), compare(token ids).", *self._claims())

    def row(self, token: int) -> Floats:
        """Give the log-probability of each token after one: (d_vocab_out,)."""
        out: Floats = self.matrix.left[token] @ self.matrix.right
        return out

    @watched("ranking bigrams")
    def top(self, k: int) -> AnalysisTable:
        """Give the k most probable pairs, exactly.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> bigrams(read_checkpoint("zero-layer")).top(3).column("log p")[0] < 0
        True
        """
        found = largest(self.matrix, k)
        rows = tuple(
            (*self._pair(token, after), value, float(np.exp(value)))
            for token, after, value in zip(
                found.rows.tolist(), found.columns.tolist(), found.values.tolist(), strict=True
            )
        )
        fields = (*_fields(), Field("log p", "number"), Field("p", "share"))
        return AnalysisTable("bigrams", self._about(), fields, rows, (), self._claims())

    @watched("comparing bigrams")
    def compare(self, corpus: object, top: int = 20) -> AnalysisTable:
        """Set the model's bigrams beside those of a text, the most frequent first.

        `corpus` is a sequence of token ids. Under the rows stand, over all pairs of the text: the
        model's mean −log p, the text's own (no model of bigrams does better on it), their
        difference, and the correlation of the two log-probabilities, each pair counted as often as
        it occurs. Raises `PathExpandError`.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> table = bigrams(read_checkpoint("zero-layer")).compare([5, 6, 5, 6, 7])
        >>> table.column("count")
        (2, 1, 1)
        """
        check_count("top", top)
        pairs = TextBigrams.of(self.checkpoint, corpus)
        if pairs.nexts.max() >= self.matrix.shape[1]:
            raise PathExpandError("corpus", wanted="tokens that the model writes", got="others")
        model = np.concatenate(
            [
                entries(self.matrix, pairs.tokens[at : at + _PAIRS], pairs.nexts[at : at + _PAIRS])
                for at in range(0, len(pairs.counts), _PAIRS)
            ]
        )
        rows = tuple(
            (
                *self._pair(int(pairs.tokens[n]), int(pairs.nexts[n])),
                int(pairs.counts[n]),
                float(pairs.observed[n]),
                float(model[n]),
            )
            for n in range(min(top, len(model)))
        )
        fields = (
            *_fields(),
            Field("count", "count"),
            Field("log p in the text", "number"),
            Field("log p", "number"),
        )
        about = (*self._about(), ("text", f"{int(pairs.counts.sum()):,} pairs of tokens"))
        closing = _closing(pairs, model)
        return AnalysisTable("bigrams", about, fields, rows, closing, self._claims())

    def _pair(self, token: int, after: int) -> tuple[Any, ...]:
        tokenizer = self.checkpoint.tokenizer
        return show_token(tokenizer, token), token, show_token(tokenizer, after), after

    def _about(self) -> tuple[tuple[str, str], ...]:
        return (("model", self.checkpoint.config.model_name), ("path", "embed to the logits"))

    def _claims(self) -> tuple[str, ...]:
        biased = self.checkpoint.weights.b_U is not None
        claims = [
            "log p: the softmax of the direct path W_E W_U"
            + (" and the bias of the logits" if biased else "")
            + " alone, in nats."
        ]
        if self.checkpoint.config.n_layers:
            claims.append("What the layers add is left out.")
        if self.checkpoint.config.output_logits_soft_cap is not None:
            claims.append("The model caps its logits: these are before the cap.")
        return (*claims, *norm_claims(self.checkpoint))


@watched("reading bigrams")
def bigrams(checkpoint: Checkpoint) -> Bigrams:
    """Read the direct path of a model as bigrams.

    Rows go by in blocks: nothing as large as the vocabulary squared is made. Raises `ModelError`
    where the stream itself passes a norm on the way.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> model = bigrams(read_checkpoint("zero-layer"))
    >>> round(float(np.exp(model.row(7)).sum()), 9)
    1.0
    """
    check_crossing(checkpoint, -1, 4 * checkpoint.config.n_layers)
    weights = checkpoint.weights
    W_E, W_U = embedding(checkpoint), unembedding(checkpoint)
    bias = np.zeros(W_U.shape[1]) if weights.b_U is None else weights.b_U
    left = np.empty((W_E.shape[0], W_E.shape[1] + 2))  # (d_vocab, d_model + 2)
    right = np.empty((W_U.shape[0] + 2, W_U.shape[1]))  # (d_model + 2, d_vocab_out)
    left[:, :-2], left[:, -2], left[:, -1] = W_E, 1.0, 0.0
    right[:-2], right[-2], right[-1] = W_U, bias, 1.0
    del W_E, W_U
    step = max(_ENTRIES // right.shape[1], 1)
    for start in range(0, len(left), step):
        logits = left[start : start + step] @ right  # (token, d_vocab_out)
        top = logits.max(axis=1)
        logits -= top[:, None]
        left[start : start + step, -1] = -(top + np.log(np.exp(logits, out=logits).sum(axis=1)))
    for factor in (left, right):
        factor.setflags(write=False)  # a Factored copies what can still be written
    return Bigrams(checkpoint, Factored(left, right))


def _closing(pairs: TextBigrams, model: Floats) -> tuple[Summary, ...]:
    shares = pairs.counts / pairs.counts.sum()
    own, other = -float(shares @ pairs.observed), -float(shares @ model)
    centred = [each - shares @ each for each in (pairs.observed, model)]
    spread = np.sqrt(float(shares @ centred[0] ** 2) * float(shares @ centred[1] ** 2))
    correlation = float(shares @ (centred[0] * centred[1])) / spread if spread else None
    return (
        Summary("model", other, "nats a pair: mean −log p"),
        Summary("text", own, "nats a pair: mean −log p in the text"),
        Summary("difference", other - own, "nats a pair: KL of the text's pairs from the model's"),
        Summary("correlation", correlation, "of both log p, over the text's pairs"),
    )


def _fields() -> tuple[Field, ...]:
    return (
        Field("token", "token"),
        Field("token id", "count", leave=2),
        Field("next", "token"),
        Field("next id", "count", leave=1),
    )
