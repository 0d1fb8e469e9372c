"""Skip-trigrams of one head: source … destination → output, on one scale for all destinations.

A head of a one-layer model does one thing: where the present token is b (the destination) and a
stands somewhere before it (the source), it attends to a and raises c ("A Mathematical Framework for
Transformer Circuits", Elhage et al. 2021). The paper reads e^score(a,b) beside the OV row, which
cannot be compared between destinations: a softmax divides by what else there is to attend to. Here
that is said outright. In a context of n tokens where a stands once and the other n − 1 are
average ones, the head gives a the weight

    A(a, b) = e^s(a,b) / (e^s(a,b) + (n − 1) · mean over a′ of e^s(a′,b))

with s the attention score, and the effect is A(a, b) · (OV[a, c] − mean over c′ of OV[a, c′]), in
nats of c's logit. With flat scores A is 1/n. The mean is over the vocabulary, or as often as each
token occurs in a corpus.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.circuit import Circuit, ov, qk, read_token
from pathexpand.circuits.largest import (
    By,
    check_by,
    check_count,
    first_of,
    row_bounds,
    subset,
)
from pathexpand.errors import PathExpandError
from pathexpand.lowrank import Factored
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.shown import shown
from pathexpand.model.tokenizer import show_token
from pathexpand.progress import watched
from pathexpand.symbolic import Head
from pathexpand.table.abstract import Tabled
from pathexpand.table.analysis_table import AnalysisTable, Field
from pathexpand.table.figures import counted

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

CONTEXT = 16  # tokens, unless it is said
_ENTRIES = 2**22  # scores worked out at once


@dataclass(frozen=True, slots=True)
class SkipTrigram:
    """One skip-trigram, by token ids: what it is worth, and the two factors of that.

    `attention` is A(source, destination), `logit` the centred OV entry; `effect` their product.
    """

    source: int
    destination: int
    output: int
    effect: float
    attention: float
    logit: float


@dataclass(frozen=True, slots=True)
class Bug:
    """Two skip-trigrams of one source, and the two that come along whether wanted or not.

    The head keeps where to look (source, destination) and what to say (source, output) apart, so
    one destination's output is raised at the other, too. `seen` says whether this destination and
    output follow one another in a given text, None without one.
    """

    wanted: SkipTrigram
    other: SkipTrigram
    unwanted: SkipTrigram
    seen: bool | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SkipTrigrams:
    """The circuits of one head, with what its attention is measured against; made by
    `skip_trigrams`.

    `attending` and `writing` are its QK and its centred OV circuit. `usual` (destination,) is
    log mean e^score of each destination, over the sources that are `usual_of`.
    """

    checkpoint: Checkpoint
    head: Head
    attending: Circuit
    writing: Circuit
    usual: Floats
    context: int
    usual_of: str

    def __repr__(self) -> str:
        """Name the head and the size of a context."""
        return f"SkipTrigrams({self.head}, in a context of {self.context})"

    def _repr_html_(self) -> str:
        from pathexpand.table.markup import card
        from pathexpand.table.sheet import Line
        from pathexpand.table.spelling import visible

        lines = [Line(label, visible(text)) for label, text in self.about()]
        return card(lines, "Ask for top(k), bugs(found), attention(source), logits(source).")

    def attention(self, source: int | str) -> Floats:
        """Give how far each destination attends to a source: (destination,)."""
        token = read_token(self.checkpoint, source, self.attending.matrix.shape[1])
        attention: Floats = self._attention(self._excess(token))
        return attention

    def logits(self, source: int | str) -> Floats:
        """Give what a source does to each output at full attention: (output,), of mean 0."""
        return self.writing.row(source)

    @watched("ranking skip-trigrams")
    def top(self, k: int, *, by: By = "value", sources: object = None) -> FoundTrigrams:
        """Give the k largest skip-trigrams of all, exactly, by value or by absolute value.

        `sources` (ids) looks at these alone. Every source is bounded by its largest attention and
        its largest logit; they are worked out in the order of that bound until it falls below the
        k-th effect. Of equal ones those of lower source, destination and output come first.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> found = skip_trigrams(read_checkpoint("one-layer"), "L0H1")
        >>> len(found.top(3).found)
        3
        """
        check_count("top", k)
        check_by(by)
        ids = subset(sources, self.attending.matrix.shape[1], "sources")
        bounds = self._bounds(ids, by)
        kept: list[tuple[float, int, int, int]] = []  # a heap, its least first
        for place in np.argsort(-bounds, kind="stable"):
            if len(kept) == k and bounds[place] < kept[0][0]:
                break
            for entry in self._of_source(int(ids[place]), k, by):
                if len(kept) < k:
                    heapq.heappush(kept, entry)
                elif entry > kept[0]:
                    heapq.heapreplace(kept, entry)
                else:
                    break  # the source's own fall
        places = [(-a, -b, -c) for _, a, b, c in sorted(kept, reverse=True)]
        return FoundTrigrams(self, tuple(self.value(*each) for each in places))

    def of_source(self, source: int | str, k: int, *, by: By = "value") -> FoundTrigrams:
        """Give the k largest skip-trigrams of one source token."""
        token = read_token(self.checkpoint, source, self.attending.matrix.shape[1])
        return self.top(k, by=by, sources=[token])

    def value(self, source: int, destination: int, output: int) -> SkipTrigram:
        """Give one skip-trigram, by token ids."""
        attention = float(self.attention(source)[destination])
        logit = float(self.logits(source)[output])
        return SkipTrigram(source, destination, output, attention * logit, attention, logit)

    @watched("looking for bugs")
    def bugs(self, found: FoundTrigrams, *, text: object = None) -> FoundBugs:
        """List what the strong skip-trigrams of one source bring along unasked.

        Strong (a, b) → c and (a, b′) → c′ force (a, b) → c′ and (a, b′) → c: the paper's "bugs".
        They are listed for every two in `found` that share a source, the largest first, without
        those that are in `found` themselves. `text` is a sequence of token ids: where b c′ occurs
        in it, the combination is no mistake.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> trigrams = skip_trigrams(read_checkpoint("one-layer"), "L0H1")
        >>> bugs = trigrams.bugs(trigrams.top(30), text=[1, 2, 3])
        >>> {bug.seen for bug in bugs.found} <= {True, False}
        True
        """
        pairs = None if text is None else bigrams_of(self.checkpoint, text)
        listed = {(each.source, each.destination, each.output) for each in found.found}
        bugs: dict[tuple[int, int, int], Bug] = {}
        for one in found.found:
            for other in found.found:
                key = (one.source, one.destination, other.output)
                apart = one.destination != other.destination and one.output != other.output
                if one.source != other.source or not apart or key in listed or key in bugs:
                    continue
                effect = one.attention * other.logit
                unwanted = SkipTrigram(*key, effect, one.attention, other.logit)
                seen = None if pairs is None else key[1:] in pairs
                bugs[key] = Bug(one, other, unwanted, seen)
        ranked = sorted(bugs.values(), key=lambda bug: -abs(bug.unwanted.effect))
        return FoundBugs(self, tuple(ranked))

    def claims(self) -> tuple[str, ...]:
        """Say what the numbers are and what they leave out."""
        normal = (
            f"Effect: nats of the output's logit where the source stands once in a context of "
            f"{self.context} tokens, the other {self.context - 1} being average ones "
            f"({self.usual_of}) for the destination. Without that, rows of different destinations "
            "could not be compared."
        )
        if self.checkpoint.config.rotary[self.head.layer] is not None:
            normal += " All of them are taken at the offset of the source."
        own = ("What positions add", "What biases add", "What positions and biases", "Norms:")
        more = [each for each in self.attending.claims if each.startswith(own)]
        return (normal, *more, *(each for each in self.attending.claims if "caps" in each))

    def about(self) -> tuple[tuple[str, str], ...]:
        """Give the lines over a table."""
        return (
            ("model", self.checkpoint.config.model_name),
            ("head", self.attending.name),
            ("context", f"{counted(self.context, 'token')}, {self.usual_of}"),
        )

    def show(self, token: int) -> str:
        """Write one token so that a reader sees every character."""
        return show_token(self.checkpoint.tokenizer, token)

    def _excess(self, source: int) -> Floats:
        """Give how far a source's score lies over the usual one: (destination,)."""
        matrix = self.attending.matrix
        scores: Floats = matrix.left @ matrix.right[:, source]
        return scores - self.usual

    def _attention(self, excess: Any) -> Any:
        with np.errstate(over="ignore"):  # e^∞ there means no attention
            return 1.0 / (1.0 + (self.context - 1) * np.exp(-excess))

    def _bounds(self, ids: Indices, by: By) -> Floats:
        """Bound the largest effect of each source from above: (source,)."""
        matrix, usual = self.attending.matrix, self.usual[None]
        # −usual as one more index in the middle: s(a, b) − usual(b) is again a factored matrix
        right = np.concatenate([matrix.left.T, -usual])  # (d_head + 1, destination)
        ones = np.ones((len(ids), 1))
        left = np.concatenate([matrix.right[:, ids].T, ones], axis=1)  # (source, d_head + 1)
        attention = self._attention(row_bounds(Factored(left, right)))
        logits = row_bounds(
            Factored(self.writing.matrix.left[ids], self.writing.matrix.right), by=by
        )
        # where every logit is below 0, the least attention gives the largest effect, below 0
        bounds = np.where(logits > 0, attention * logits, 0.0)
        return np.asarray(bounds * (1 + 1e-9))

    def _of_source(self, source: int, k: int, by: By) -> list[tuple[float, int, int, int]]:
        """Give one source's k largest, as (rank key, −source, −destination, −output)."""
        attention, logits = self.attention(source), self.logits(source)
        wide = min(k, len(attention))
        if by == "size":
            outputs = first_of(abs(logits), min(k, len(logits)))
            destinations = first_of(attention, wide)
        else:
            outputs = first_of(logits, min(k, len(logits)))
            destinations = first_of(attention, wide)
            if logits[outputs[-1]] < 0:  # what lowers least stands where attention is least
                destinations = np.union1d(destinations, first_of(-attention, wide))
        effects = np.outer(attention[destinations], logits[outputs])  # (destination, output)
        keys = (abs(effects) if by == "size" else effects).ravel()
        entries = [
            (float(keys[at]), -source, -int(destinations[i]), -int(outputs[j]))
            for at in np.flatnonzero(keys >= keys[first_of(keys, min(k, len(keys)))[-1]])
            for i, j in [divmod(int(at), len(outputs))]
        ]
        return sorted(entries, reverse=True)[:k]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FoundTrigrams(Tabled):
    """Skip-trigrams of one head, largest first."""

    trigrams: SkipTrigrams
    found: tuple[SkipTrigram, ...]

    def table(self) -> AnalysisTable:
        """Give them as a table.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> found = skip_trigrams(read_checkpoint("one-layer"), "L0H1").top(2)
        >>> found.table().column("effect")[0] > 0
        True
        """
        own = self.trigrams
        rows = tuple(
            (
                *_shown(own, each),
                each.effect,
                each.attention,
                each.logit,
            )
            for each in self.found
        )
        fields = (*_fields(), Field("attention", "number", leave=1), Field("logit", "number", 2))
        return AnalysisTable("skip-trigrams", own.about(), fields, rows, (), own.claims())


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FoundBugs(Tabled):
    """What a head's skip-trigrams bring along unasked, largest first."""

    trigrams: SkipTrigrams
    found: tuple[Bug, ...]

    def table(self, top: int = 20) -> AnalysisTable:
        """Give the largest as a table.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> trigrams = skip_trigrams(read_checkpoint("one-layer"), "L0H1")
        >>> len(trigrams.bugs(trigrams.top(30)).table(2)) <= 2
        True
        """
        check_count("top", top)
        own = self.trigrams
        rows = []
        for bug in self.found[:top]:
            because = ", ".join(
                f"{own.show(each.destination)} → {own.show(each.output)}"
                for each in (bug.wanted, bug.other)
            )
            rows.append((*_shown(own, bug.unwanted), bug.unwanted.effect, bug.seen, because))
        fields = (
            *_fields(),
            Field("in the text", "flag", leave=1),
            Field("because of", "text", leave=2),
        )
        claims = (
            "A head that looks at (source, destination) and says (source, output) cannot help these"
            " combinations of two skip-trigrams with one source.",
        )
        return AnalysisTable(
            "skip-trigram bugs", own.about(), fields, tuple(rows), (), claims + own.claims()
        )


@watched("reading skip-trigrams")
def skip_trigrams(
    checkpoint: Checkpoint,
    head: str | Head,
    *,
    offset: int | None = None,
    context: int = CONTEXT,
    corpus: object = None,
) -> SkipTrigrams:
    """Read the skip-trigrams of one head from the weights.

    `context` is the number of tokens that the head chooses among, `corpus` a sequence of token ids
    that says how often each stands there (without one all are alike). Rotary positions need an
    `offset`, destination minus source, which is taken for the average tokens, too. Raises
    `PathExpandError`.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> found = skip_trigrams(read_checkpoint("one-layer"), "L0H1", context=8)
    >>> found.context, found.usual.shape
    (8, (1024,))
    """
    check_count("context", context)
    attending = qk(checkpoint, head, offset=offset)
    writing = ov(checkpoint, head, centred=True)
    counts = None if corpus is None else token_counts(checkpoint, corpus)
    return SkipTrigrams(
        checkpoint,
        head if isinstance(head, Head) else Head.parse(head),
        attending,
        writing,
        _usual(attending.matrix, counts),
        int(context),
        "over the vocabulary" if counts is None else f"over {int(counts.sum()):,} tokens of text",
    )


def token_counts(checkpoint: Checkpoint, corpus: object) -> Floats:
    """Count how often each token occurs in a sequence of ids: (d_vocab,).

    Raises `PathExpandError` for what is no such sequence.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> token_counts(read_checkpoint("one-layer"), [3, 3, 1])[:4].tolist()
    [0.0, 1.0, 0.0, 2.0]
    """
    count = checkpoint.config.d_vocab
    return np.bincount(token_ids(checkpoint, corpus), minlength=count).astype(np.float64)


def token_ids(checkpoint: Checkpoint, corpus: object, *, least: int = 1) -> Indices:
    """Give a sequence of token ids as an array (position,), checked.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> token_ids(read_checkpoint("one-layer"), [3, 3, 1])
    array([3, 3, 1])
    """
    count = checkpoint.config.d_vocab
    wanted = f"at least {counted(least, 'token id')} from 0 to {count - 1}"
    if isinstance(corpus, str):
        raise PathExpandError("corpus", wanted=wanted, got="text", remedy="encode it first")
    try:
        ids = np.asarray(corpus)
    except ValueError:
        raise PathExpandError("corpus", wanted=wanted, got=shown(corpus)) from None
    mixed = isinstance(corpus, list | tuple) and any(isinstance(n, bool) for n in corpus)
    if mixed or ids.ndim != 1 or ids.size < least or ids.dtype.kind not in "iu":
        raise PathExpandError("corpus", wanted=wanted, got=shown(corpus))
    if ids.min() < 0 or ids.max() >= count:
        got = f"id {int(ids.min()) if ids.min() < 0 else int(ids.max())}"
        raise PathExpandError("corpus", wanted=wanted, got=got)
    return ids.astype(np.int64)


def bigrams_of(checkpoint: Checkpoint, corpus: object) -> set[tuple[int, int]]:
    """Give the pairs of tokens that follow one another in a sequence of ids.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> sorted(bigrams_of(read_checkpoint("one-layer"), [3, 3, 1]))
    [(3, 1), (3, 3)]
    """
    ids = token_ids(checkpoint, corpus).tolist()
    return set(pairwise(ids))


def _usual(matrix: Factored, counts: Floats | None) -> Floats:
    """Give log mean over the keys of e^score, for each query: (query,)."""
    keys = np.arange(matrix.shape[1]) if counts is None else np.flatnonzero(counts)
    right = matrix.right[:, keys]  # (d_head, key)
    shares = np.ones(len(keys)) if counts is None else counts[keys]
    shares = shares / shares.sum()
    out = np.empty(matrix.shape[0])
    step = max(_ENTRIES // len(keys), 1)
    for start in range(0, len(out), step):
        scores = matrix.left[start : start + step] @ right  # (query, key)
        top = scores.max(axis=1)
        scores -= top[:, None]
        np.exp(scores, out=scores)
        out[start : start + step] = top + np.log(scores @ shares)
    return out


def _fields() -> tuple[Field, ...]:
    return (
        Field("source", "token"),
        Field("source id", "count", leave=5),
        Field("destination", "token"),
        Field("destination id", "count", leave=4),
        Field("output", "token"),
        Field("output id", "count", leave=3),
        Field("effect", "number"),
    )


def _shown(own: SkipTrigrams, each: SkipTrigram) -> tuple[Any, ...]:
    ids = (each.source, each.destination, each.output)
    return tuple(value for token in ids for value in (own.show(token), token))
