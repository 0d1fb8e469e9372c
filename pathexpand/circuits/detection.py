"""What a head attends to: the same, the previous, the first token, an equal one, the one behind.

Five behaviours have names in the literature ("A Mathematical Framework for Transformer Circuits",
Elhage et al. 2021; "In-context Learning and Induction Heads", Olsson et al. 2022). A head's score
is the attention that goes to the keys of a behaviour, averaged over the queries where there are
such keys, beside what uniform attention over the visible keys would give.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.composition import check_top
from pathexpand.errors import PathExpandError, PromptError
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.config import Config
from pathexpand.model.forward import forward
from pathexpand.model.prompt import Prompt, pad, read_prompt, start_token
from pathexpand.model.prompt import Tokens as PromptTokens
from pathexpand.model.shown import shown
from pathexpand.model.tokenizer import encode_prompt
from pathexpand.progress import tracked, watched
from pathexpand.symbolic import Head
from pathexpand.table import AnalysisTable, Field, Summary
from pathexpand.table.abstract import Tabled

Array = npt.NDArray[Any]
Tokens = npt.NDArray[np.int64]
Behaviour = Literal["previous", "duplicate", "induction", "current", "first"]
BEHAVIOURS: tuple[Behaviour, ...] = get_args(Behaviour)
MEANINGS: dict[Behaviour, str] = {
    "previous": "the token before",
    "duplicate": "earlier copies of the same token",
    "induction": "tokens that follow an earlier copy of the same token",
    "current": "the query's own place",
    "first": "the first place, from a later one",
}
_CAUSAL_ONLY = ("previous", "induction")
_LONGEST = 256  # positions of a piece of text: patterns grow with the square
_REPEAT = 50  # most random tokens that are repeated
_ROOM = 2**25  # numbers in the patterns of one batch


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Detection(Tabled):
    """How much each head does each behaviour, and what uniform attention would give.

    `scores` and `chance` are (head, behaviour), NaN where no query could show the behaviour (a
    window too narrow for it). `queries` counts, for each behaviour, the queries that could in the
    layer where the most can. `threshold` is the score from which a head is said to show it.
    """

    model: str
    read: str
    heads: tuple[Head, ...]
    behaviours: tuple[Behaviour, ...]
    scores: Array
    chance: Array
    queries: tuple[int, ...]
    threshold: float

    def __post_init__(self) -> None:
        """Refuse numbers that are not of these heads and behaviours, or no attention."""
        shape = (len(self.heads), len(self.behaviours))
        for name in ("scores", "chance"):
            found = getattr(self, name)
            if found.shape != shape:
                raise PathExpandError(name, wanted=f"shape {shape}", got=f"{found.shape}")
        if len(self.queries) != len(self.behaviours):
            raise PathExpandError("queries", wanted=f"{len(self.behaviours)} numbers")
        _check_threshold(self.threshold)

    def of(self, head: str | Head, behaviour: Behaviour) -> float:
        """Give one head's score; raises `PathExpandError` for what is not among these.

        >>> from pathexpand import load
        >>> round(detect(load("two-layer").checkpoint, batch=4).of("L0H3", "previous"), 1)
        1.0
        """
        given = head if isinstance(head, Head) else Head.parse(head)
        if given not in self.heads or behaviour not in self.behaviours:
            known = ", ".join(self.behaviours)
            wanted = f"a head up to {self.heads[-1]} and one of {known}"
            raise PathExpandError("score", wanted=wanted, got=f"{given}, {shown(behaviour)}")
        at = self.heads.index(given), self.behaviours.index(behaviour)
        return float(self.scores[at])

    def passing(self, behaviour: Behaviour) -> tuple[Head, ...]:
        """Give the heads whose score is at least the threshold, largest first.

        >>> from pathexpand import load
        >>> [head.label for head in detect(load("two-layer").checkpoint).passing("induction")]
        ['L1H0']
        """
        if behaviour not in self.behaviours:
            wanted = f"one of {', '.join(self.behaviours)}"
            raise PathExpandError("behaviour", wanted=wanted, got=shown(behaviour))
        values = self.scores[:, self.behaviours.index(behaviour)]
        order = np.argsort(-np.nan_to_num(values, nan=-1), kind="stable")
        return tuple(self.heads[n] for n in order if values[n] >= self.threshold)

    def table(self, *, top: int | None = None) -> AnalysisTable:
        """List the heads, in order or, with `top`, those with the largest score of any behaviour.

        >>> from pathexpand import load
        >>> detect(load("two-layer").checkpoint, batch=4).table(top=2).column("head")
        ('L0H3', 'L1H3')
        """
        order = np.arange(len(self.heads))
        if top is not None:
            largest = np.nan_to_num(self.scores, nan=-1).max(axis=1, initial=-1)
            order = np.argsort(-largest, kind="stable")[: check_top(top)]
        rows = tuple((self.heads[n].label, *map(_plain, self.scores[n])) for n in order)
        uniform = tuple(map(_plain, _mean_over_heads(self.chance)))
        return AnalysisTable(
            "heads",
            (("model", self.model), ("read", self.read)),
            (Field("head", "text"), *(Field(name, "number") for name in self.behaviours)),
            rows,
            tuple(
                Summary(f"chance {name}", value, f"{count:,} queries: {MEANINGS[name]}")
                for name, value, count in zip(self.behaviours, uniform, self.queries, strict=True)
            ),
            self._claims(),
        )

    def _claims(self) -> tuple[str, ...]:
        lines = []
        for name in self.behaviours:
            found = self.passing(name)
            some = ", ".join(head.label for head in found[:8])
            more = f" and {len(found) - 8} more" if len(found) > 8 else ""
            lines.append(f"{name}, at least {self.threshold:g}: {some or 'no head'}{more}.")
        lines.append("chance: uniform attention over the keys that each query sees.")
        return tuple(lines)


@watched("looking at heads")
def detect(
    checkpoint: Checkpoint,
    *,
    behaviours: Sequence[Behaviour] | None = None,
    batch: int = 16,
    length: int | None = None,
    seed: int = 0,
    threshold: float = 0.4,
) -> Detection:
    """Score every head on random tokens that are repeated once.

    Each of `batch` rows is the start token, if the model was trained with one, then `length`
    distinct tokens, none of them special, and the same again; without `length`, 50 or as many as
    the context holds. Raises `PathExpandError` for a context or a vocabulary that is too small, and
    where previous tokens or induction are asked of a model that sees both ways.

    >>> from pathexpand import load
    >>> found = detect(load("two-layer").checkpoint)
    >>> found.passing("previous")[0].label, found.passing("induction")[0].label
    ('L0H3', 'L1H0')
    """
    names = _checked(checkpoint.config, behaviours, threshold)
    for name, value, least in (("batch", batch, 1), ("length", length, 1), ("seed", seed, 0)):
        if name == "length" and value is None:
            continue
        if type(value) is not int or value < least:
            wanted = f"a whole number of at least {least}"
            raise PathExpandError(name, wanted=wanted, got=shown(value))
    rows = repeated_tokens(checkpoint, batch=batch, length=length, seed=seed)
    start = "" if _start(checkpoint) is None else "start token, then "
    count = rows.shape[1] // 2
    read = f"{batch} × ({start}{count} random tokens, twice)"
    return _detection(checkpoint, [PromptTokens(r, r >= 0) for r in rows], names, read, threshold)


@watched("looking at heads")
def detect_on(
    checkpoint: Checkpoint,
    prompts: Sequence[Prompt],
    *,
    behaviours: Sequence[Behaviour] | None = None,
    threshold: float = 0.4,
) -> Detection:
    """Score every head on texts, or on token ids that are used as given.

    A text longer than the context, or than 256 tokens, is read in pieces of that size. Raises
    `PromptError` for texts without a query that could show anything, `PathExpandError` where
    previous tokens or induction are asked of a model that sees both ways.

    >>> from pathexpand import load
    >>> found = detect_on(load("two-layer").checkpoint, ["to be or not to be, to be or not to be"])
    >>> found.passing("previous")[0].label, found.queries
    ('L0H3', (13, 7, 7, 14, 13))
    """
    names = _checked(checkpoint.config, behaviours, threshold)
    if isinstance(prompts, str):
        prompts = [prompts]
    if not isinstance(prompts, Iterable):
        raise PromptError("texts", wanted="a list of texts", got=shown(prompts))
    pieces = [piece for prompt in prompts for piece in _pieces(checkpoint, prompt)]
    if not pieces:
        raise PromptError("texts", wanted="at least one", got="none")
    size = sum(int(piece.mask.sum()) for piece in pieces)
    read = f"{size:,} tokens of text in {len(pieces)} piece{'s' if len(pieces) > 1 else ''}"
    return _detection(checkpoint, pieces, names, read, threshold)


def repeated_tokens(
    checkpoint: Checkpoint, *, batch: int, length: int | None = None, seed: int = 0
) -> Tokens:
    """Draw rows of distinct random tokens, repeated once, behind the start token if there is one.

    (batch, position). Special tokens are not drawn.

    >>> from pathexpand import load
    >>> repeated_tokens(load("two-layer").checkpoint, batch=3, length=5).shape
    (3, 11)
    """
    config, start = checkpoint.config, _start(checkpoint)
    allowed = _plain_tokens(checkpoint)
    before = 0 if start is None else 1
    most = min((config.n_ctx - before) // 2, len(allowed))
    count = min(most, _REPEAT) if length is None else length
    if not 2 <= count <= most:
        raise PathExpandError(
            "repeated tokens",
            wanted=f"2 to {most} of them" if most >= 2 else "a context of at least two repeats",
            got=str(count),
            remedy=f"context {config.n_ctx}, {len(allowed)} tokens that are not special",
        )
    rng = np.random.default_rng(seed)
    once = np.stack([rng.choice(allowed, count, replace=False) for _ in range(batch)])
    starts = np.full((batch, before), -1 if start is None else start)
    return np.concatenate([starts, once, once], axis=1).astype(np.int64)


def wanted_keys(tokens: Tokens, behaviour: Behaviour, *, causal: bool = True) -> Array:
    """Say which keys of each query belong to a behaviour: (position,) to (query, key), bool.

    In a causal model keys are earlier ones: a query never counts as its own copy, nor as the token
    that follows one.

    >>> wanted_keys(np.array([5, 7, 5]), "induction")[2]
    array([False,  True, False])
    """
    size = len(tokens)
    query, key = np.arange(size)[:, None], np.arange(size)
    if behaviour == "current":
        return np.asarray(query == key)
    if behaviour == "previous":
        return np.asarray(query - key == 1)
    if behaviour == "first":
        return np.asarray((key == 0) & (query > 0))
    same = tokens[:, None] == tokens  # (query, key)
    if behaviour == "duplicate":
        return np.asarray(same & (key < query if causal else key != query))
    follows = np.zeros((size, size), dtype=bool)
    follows[:, 1:] = same[:, :-1]  # key k follows k − 1, which is like the query
    return np.asarray(follows & (key < query))


def visible_keys(config: Config, layer: int, size: int) -> Array:
    """Say which keys each query of a layer sees: (query, key), bool.

    >>> from pathexpand import load
    >>> visible_keys(load("two-layer").config, 0, 3).sum(axis=1)
    array([1, 2, 3])
    """
    ahead = np.arange(size) - np.arange(size)[:, None]  # (query, key)
    seen = ahead <= 0 if config.attention_dir == "causal" else np.ones((size, size), dtype=bool)
    window = config.window[layer]
    return np.asarray(seen if window is None else seen & (abs(ahead) < window))


class _Sums:
    """Attention and chance, added up over queries: (layer, head, behaviour) and (layer, …)."""

    def __init__(self, config: Config, names: tuple[Behaviour, ...]) -> None:
        self.config, self.names = config, names
        self.mass = np.zeros((config.n_layers, config.n_heads, len(names)))
        self.chance = np.zeros((config.n_layers, len(names)))
        self.count = np.zeros((config.n_layers, len(names)), dtype=np.int64)

    def add(self, tokens: Tokens, patterns: Sequence[Array]) -> None:
        """Add one prompt's real tokens (position,) and its patterns (head, query, key) each."""
        causal = self.config.attention_dir == "causal"
        for place, name in enumerate(self.names):
            wanted = wanted_keys(tokens, name, causal=causal)
            for layer, pattern in enumerate(patterns):
                seen = visible_keys(self.config, layer, len(tokens))
                keys = wanted & seen
                able = keys.any(axis=1)  # queries that can show it
                self.mass[layer, :, place] += np.einsum("hqk,qk->h", pattern, keys)
                shares = keys.sum(axis=1)[able] / seen.sum(axis=1)[able]
                self.chance[layer, place] += shares.sum()
                self.count[layer, place] += int(able.sum())

    def means(self) -> tuple[Array, Array]:
        """Give scores and chance: (head of any layer, behaviour) both, NaN where nothing could."""
        heads = self.config.n_heads
        count = np.where(self.count == 0, np.nan, self.count)
        scores = self.mass / count[:, None, :]
        chance = np.repeat(self.chance / count, heads, axis=0)
        return scores.reshape(-1, len(self.names)), chance


def _detection(
    checkpoint: Checkpoint,
    prompts: Sequence[PromptTokens],
    names: tuple[Behaviour, ...],
    read: str,
    threshold: float,
) -> Detection:
    config = checkpoint.config
    sums = _Sums(config, names)
    batches = list(_batches(config, prompts))
    for batch in tracked(batches, "batches", len(batches)):
        padded = pad(batch)
        types = padded.types if checkpoint.weights.types is not None else None
        run = forward(checkpoint.weights, config, padded.ids, padded.mask, types=types)
        for row, prompt in enumerate(batch):
            size = len(prompt.ids)  # padding stands behind
            sums.add(prompt.ids, [each[row, :, :size, :size] for each in run.patterns])
    scores, chance = sums.means()
    queries = tuple(int(each) for each in sums.count.max(axis=0, initial=0))
    if not any(queries):
        raise PromptError("texts", wanted="a query that could show a behaviour", got="none")
    heads = tuple(
        Head(layer, head) for layer in range(config.n_layers) for head in range(config.n_heads)
    )
    return Detection(
        config.model_name, read, heads, names, scores, chance, queries, float(threshold)
    )


def _batches(config: Config, prompts: Sequence[PromptTokens]) -> Iterator[list[PromptTokens]]:
    """Yield prompts in batches whose patterns take bounded memory."""
    longest = max(len(prompt.ids) for prompt in prompts)
    each = max(config.n_layers * config.n_heads, 1) * longest**2
    step = max(_ROOM // each, 1)
    for start in range(0, len(prompts), step):
        yield list(prompts[start : start + step])


def _pieces(checkpoint: Checkpoint, prompt: Prompt) -> Iterator[PromptTokens]:
    """Yield a prompt whole if it fits, and a long text in pieces with a start token each."""
    size = min(checkpoint.config.n_ctx, _LONGEST)
    if not isinstance(prompt, str):
        yield read_prompt(checkpoint, prompt)
        return
    ids = encode_prompt(checkpoint.tokenizer, prompt, whole=False)
    if len(ids) <= size - 2:  # room for what the tokenizer puts around it
        yield read_prompt(checkpoint, prompt)
        return
    start = _start(checkpoint)
    before = [] if start is None else [start]
    step = max(size - len(before), 1)
    for at in range(0, len(ids), step):
        yield read_prompt(checkpoint, [*before, *ids[at : at + step]])


def _start(checkpoint: Checkpoint) -> int | None:
    """Give the token that a text starts with in this model, if there is one."""
    start, tokenizer = start_token(checkpoint), checkpoint.tokenizer
    if start is None or checkpoint.config.default_prepend_bos:
        return start
    if tokenizer is None:
        return None
    return start if tokenizer.adds_start or tokenizer.encode_whole("a")[:1] == [start] else None


def _plain_tokens(checkpoint: Checkpoint) -> Tokens:
    """Give the tokens that are not special and that the tokenizer knows."""
    tokens, start = np.arange(checkpoint.config.d_vocab), start_token(checkpoint)
    keep = np.ones(tokens.shape, dtype=bool) if start is None else tokens != start
    if checkpoint.tokenizer is not None:
        # Special tokens are shown in angle brackets, unknown ids as #1, all others in quotes.
        keep &= [checkpoint.tokenizer.show(int(token))[0] not in "<#" for token in tokens]
    return np.asarray(tokens[keep], dtype=np.int64)


def _checked(
    config: Config, behaviours: Sequence[Behaviour] | None, threshold: float
) -> tuple[Behaviour, ...]:
    """Check what was asked of the model."""
    _check_threshold(threshold)
    if config.n_layers == 0:
        raise PathExpandError("heads", wanted="a model with heads", got="one of no layers")
    if isinstance(behaviours, str):
        behaviours = [behaviours]  # type: ignore[list-item]  # checked below
    if behaviours is not None and not isinstance(behaviours, Iterable):
        wanted = f"some of {', '.join(BEHAVIOURS)}"
        raise PathExpandError("behaviours", wanted=wanted, got=shown(behaviours))
    names = BEHAVIOURS if behaviours is None else tuple(dict.fromkeys(behaviours))
    for name in names:
        if name not in BEHAVIOURS:
            wanted = f"one of {', '.join(BEHAVIOURS)}"
            raise PathExpandError("behaviour", wanted=wanted, got=shown(name))
    both = [name for name in names if name in _CAUSAL_ONLY]
    if config.attention_dir != "causal" and both:
        raise PathExpandError(
            f"behaviour {' and '.join(both)}",
            wanted="a causal model",
            got="one that sees both ways",
            remedy="ask for duplicate, current and first alone",
        )
    if not names:
        raise PathExpandError("behaviours", wanted="at least one", got="none")
    return names


def _check_threshold(threshold: object) -> None:
    good = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not good or not 0 < float(threshold) <= 1:  # type: ignore[arg-type]
        raise PathExpandError("threshold", wanted="a number from 0 to 1", got=shown(threshold))


def _mean_over_heads(values: Array) -> Array:
    """Give each behaviour's mean over the heads that could show it; NaN where none could."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0).sum(axis=0)
    out: Array = np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
    return out


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
