"""How much each kind of path matters to a model's loss over a corpus, its patterns held fixed.

The term importance analysis of Elhage et al. 2021: the next-token loss of all paths of order 0, of
order below 2, and so on, and what the paths of one layer or head add to the direct path alone or
take away when they are left out of the sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.ablation import COMPOSITIONS, check_streams, without_composition
from pathexpand.circuits.loss import Read, losses
from pathexpand.circuits.orders import (
    HeldRun,
    direct_streams,
    hold,
    onward,
    order_streams,
    past,
)
from pathexpand.circuits.wiring import parse_head
from pathexpand.engine.total import frozen_streams
from pathexpand.errors import ModelError, PathExpandError, PromptError
from pathexpand.frozen import MlpMode, network_of
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import read_stream
from pathexpand.model.prompt import Prompt, Tokens, read_prompt
from pathexpand.model.shown import shown
from pathexpand.progress import listener, watched
from pathexpand.symbolic import Component, Head, Mlp, Network
from pathexpand.symbolic.query import Query, everything, parse_query
from pathexpand.table.abstract import Tabled
from pathexpand.table.analysis_table import AnalysisTable
from pathexpand.table.figures import counted

Array = npt.NDArray[Any]
Part = Literal["order", "layer", "head", "composition"]
PARTS: tuple[Part, ...] = get_args(Part)
Kind = Literal["dense", "all", "order", "layer", "head", "query", "composition"]
Side = Literal["", "added", "removed"]
_MOST = 2**24  # numbers in the streams that are read together


@dataclass(frozen=True, slots=True)
class Variant:
    """A sum of paths whose loss is measured.

    `kind` and `label` say of which paths, `side` whether they join the direct path ("added") or
    are left out of the sum of all ("removed"). An order is the sum of all paths up to it, and a
    composition a run without it; "dense" is the model itself.
    """

    kind: Kind
    label: str = ""
    side: Side = ""


DENSE, ALL = Variant("dense"), Variant("all")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over the predicted tokens, and its standard error over prompts (None for one)."""

    value: float
    error: float | None


@dataclass(frozen=True, slots=True)
class Term:
    """What paths of one kind do to the loss, in nats a token; lower losses are better.

    `paths` counts them. `loss` is that of the sum up to an order, or of a run without a
    composition; `marginal` what it differs by from the order before (the uniform guess before
    order 0), or from the model itself. `added` is what the direct path's loss changes by when the
    paths join it, `removed` what that of all paths changes by when they are left out.
    """

    kind: Kind
    label: str
    paths: int | None = None
    loss: Estimate | None = None
    marginal: Estimate | None = None
    added: Estimate | None = None
    removed: Estimate | None = None


@dataclass(frozen=True, slots=True)
class ImportanceProgress:
    """How far an analysis is: prompts done, tokens predicted in them, seconds."""

    prompts: int
    predicted: int
    seconds: float

    def words(self) -> tuple[str, float | None]:
        """Say it to somebody who waits; what part that is, is not known.

        >>> ImportanceProgress(1, 20, 0.5).words()[0]
        '1 prompt, 20 tokens; Ctrl-C stops here'
        """
        prompts, tokens = counted(self.prompts, "prompt"), counted(self.predicted, "token")
        return f"{prompts}, {tokens}; Ctrl-C stops here", None


@dataclass(frozen=True, eq=False, repr=False)
class Importance(Tabled):
    """The loss of every variant on every prompt of a corpus.

    Shapes: `sums` (prompt, variant), in nats over all predicted tokens of a prompt; `predicted`
    (prompt,) counts these. `paths` counts the paths of a kind and label. `stopped` says that the
    corpus was not read to its end; `text` names it. Raises `PathExpandError` for arrays that do
    not fit.
    """

    model: str
    mlp: str
    vocabulary: int
    variants: tuple[Variant, ...]
    sums: Array
    predicted: npt.NDArray[np.int64]
    paths: dict[tuple[Kind, str], int]
    notes: tuple[str, ...] = ()
    stopped: bool = False
    text: str = ""

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit each other, and losses that are no numbers."""
        wanted = (len(self.predicted), len(self.variants))
        if self.sums.shape != wanted or not len(self.predicted):
            raise PathExpandError(
                "importance", wanted=f"losses of shape {wanted}", got=str(self.sums.shape)
            )
        if not np.isfinite(self.sums).all() or (self.predicted < 1).any():
            raise PathExpandError("importance", wanted="finite losses of at least one token each")

    @cached_property
    def columns(self) -> dict[Variant, int]:
        """Where each variant stands in `sums`."""
        return {variant: number for number, variant in enumerate(self.variants)}

    @property
    def uniform(self) -> float:
        """The loss of a uniform guess: log V nats a token."""
        return float(np.log(self.vocabulary))

    def loss(self, variant: Variant) -> Estimate:
        """Give a variant's mean loss in nats a token.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> found = importance(read_checkpoint("two-layer"), ["to be or not to be"])
        >>> 0 < found.loss(ALL).value < found.uniform
        True
        """
        return self._estimate(self._column(variant))

    def change(self, variant: Variant, base: Variant | None = None) -> Estimate:
        """Give how much a variant's loss differs from another's, or from a uniform guess's.

        The error is that of the difference, prompt by prompt.
        """
        own = self._column(variant)
        if base is None:
            return self._estimate(own - self.predicted * self.uniform)
        return self._estimate(own - self._column(base))

    def terms(self, kind: Part | Literal["query"] | None = None) -> tuple[Term, ...]:
        """Give what was measured, kind by kind: orders, layers, heads, queries, compositions."""
        kinds = (*PARTS[:3], "query", PARTS[3]) if kind is None else (kind,)
        found: list[Term] = []
        for each in kinds:
            labels = dict.fromkeys(v.label for v in self.variants if v.kind == each)
            found += self._terms(each, list(labels))
        return tuple(found)

    def table(self, by: Part | Literal["query"] | None = None) -> AnalysisTable:
        """Tabulate what was measured, all of it or one kind.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> found = importance(read_checkpoint("two-layer"), ["to be or not to be"])
        >>> found.table("order").column("paths")
        (None, 1, 8, 16)
        """
        from pathexpand.circuits.importance_table import importance_table

        return importance_table(self, by)

    @property
    def direct(self) -> Variant:
        """The direct path alone."""
        return Variant("order", "0")

    def _terms(self, kind: Any, labels: list[str]) -> Iterator[Term]:
        before: Variant | None = None
        for label in labels:
            term = Term(kind, label, self.paths.get((kind, label)))
            one = Variant(kind, label)
            if kind == "order":
                term = replace(term, loss=self.loss(one), marginal=self.change(one, before))
                before = one
            elif kind == "composition":
                term = replace(term, loss=self.loss(one), marginal=self.change(one, DENSE))
            else:
                term = replace(
                    term,
                    added=self.change(replace(one, side="added"), self.direct),
                    removed=self.change(replace(one, side="removed"), ALL),
                )
            yield term

    def _column(self, variant: Variant) -> Array:
        if variant not in self.columns:
            name = " ".join(each for each in (variant.kind, variant.label, variant.side) if each)
            raise PathExpandError(f"importance of {name}", wanted="a variant that was measured")
        out: Array = self.sums[:, self.columns[variant]]
        return out

    def _estimate(self, sums: Array) -> Estimate:
        """Give a mean over tokens from sums over prompts (prompt,), and its error as a ratio."""
        total = int(self.predicted.sum())
        mean, count = float(sums.sum()) / total, len(sums)
        if count == 1:
            return Estimate(mean, None)
        away = sums - mean * self.predicted  # (prompt,)
        spread = float(np.sqrt(count / (count - 1) * np.square(away).sum()))
        return Estimate(mean, spread / total)


@watched("measuring losses")
def importance(
    checkpoint: Checkpoint,
    prompts: Iterable[Prompt | Tokens],
    *,
    mlp: MlpMode = "source",
    parts: Sequence[Part] = PARTS,
    max_order: int | None = None,
    max_tokens: int | None = None,
    heads: Iterable[str | Head] | None = None,
    queries: Iterable[str] = (),
    report: Callable[[ImportanceProgress], None] | None = None,
) -> Importance:
    """Measure how much paths of each order, layer and head matter to the next-token loss.

    Each prompt is run once, its patterns, norm scales and gates are held fixed, and the last stream
    is summed for each variant at every position at once; the loss is the mean over all real
    tokens but each prompt's first. `mlp` says what an MLP is in a path, as everywhere: taken as a
    "source", what it wrote belongs to the direct path. `parts` chooses what is measured, `heads`
    of which heads (all, if not given), `queries` asks for any paths besides, such as
    "* > L1H*". `max_order` leaves higher orders in one sum. `max_tokens` ends the corpus after so
    many predicted tokens. Without Q- or K-composition, patterns are worked out again (see
    `without_composition`). Ctrl-C keeps the prompts that are done. `report` hears how far it is,
    in place of the line that a terminal or a notebook shows after a while.

    Raises `ModelError` for a model that does not predict the next token, and `PromptError`, with
    the number of the prompt from 1, for a prompt without two tokens.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> found = importance(read_checkpoint("two-layer"), ["to be or not to be, that is the"])
    >>> [term.label for term in found.terms("order")], len(found.terms("head"))
    (['0', '1', '2'], 8)
    """
    plan = _plan(checkpoint, mlp, parts, max_order, heads, queries)
    start, variants = time.monotonic(), tuple[Variant, ...]()
    done: list[tuple[list[float], int]] = []  # losses and predicted tokens, prompt by prompt
    stopped, heard = False, listener(report, ImportanceProgress.words)
    try:
        for tokens in _limited(checkpoint, prompts, max_tokens):
            found = _Measured(plan, tokens).losses()
            variants = tuple(found)
            done.append((list(found.values()), len(_predicted(tokens))))
            if heard is not None:
                seconds = time.monotonic() - start
                predicted = sum(number for _, number in done)
                heard(ImportanceProgress(len(done), predicted, seconds))
    except KeyboardInterrupt:
        if not done:
            raise
        stopped = True
    if not done:
        raise PromptError("prompts", wanted="at least one prompt", got="none")
    sums = np.array([losses for losses, _ in done])  # (prompt, variant)
    if not np.isfinite(sums).all():
        name = f"model {checkpoint.config.model_name}"
        raise ModelError(name, wanted="finite losses", got="overflow")
    return Importance(
        model=checkpoint.config.model_name,
        mlp=mlp,
        vocabulary=checkpoint.config.d_vocab_out,
        variants=variants,
        sums=sums,
        predicted=np.array([number for _, number in done]),
        paths=plan.counts(),
        notes=tuple(_notes(plan)),
        stopped=stopped,
    )


# --- what is asked for -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """What is to be measured, checked."""

    checkpoint: Checkpoint
    network: Network
    mlp: MlpMode
    parts: tuple[Part, ...]
    max_order: int
    heads: frozenset[Component]
    queries: tuple[Query, ...]

    @property
    def highest(self) -> int:
        """The highest order that any path has."""
        return len(everything(self.network).count_by_order()) - 1

    def counts(self) -> dict[tuple[Kind, str], int]:
        """Count the paths of each kind and label: of a layer those of order 1."""
        every = everything(self.network).count_by_order()
        found: dict[tuple[Kind, str], int] = {("order", "0"): every[0]}
        if "order" in self.parts:
            orders = enumerate(every[: self.max_order + 1])
            found |= {("order", str(n)): number for n, number in orders}
            found["order", _higher(self.max_order)] = sum(every[self.max_order + 1 :])
        for stage, components in enumerate(self.network.stages):
            born = [s for s in self.network.sources if s.boundary is not None]
            sources = sum((s.boundary or 0) <= stage for s in born)
            for component in components:
                key: tuple[Kind, str] = ("layer", _layer_label(component))
                found[key] = found.get(key, 0) + sources
                if component in self.heads:
                    through = parse_query(f"* > {component} > *", self.network).count()
                    found["head", str(component)] = through
        return found | {("query", query.text): query.count() for query in self.queries}


def _plan(
    checkpoint: Checkpoint,
    mlp: MlpMode,
    parts: Sequence[Part],
    max_order: int | None,
    heads: Iterable[str | Head] | None,
    queries: Iterable[str],
) -> _Plan:
    check_predicts(checkpoint)
    wrong = [part for part in parts if part not in PARTS]
    if isinstance(parts, str) or wrong:
        raise PathExpandError("parts", wanted=f"some of {', '.join(PARTS)}", got=shown(parts))
    if max_order is not None and (type(max_order) is not int or max_order < 0):
        raise PathExpandError("max_order", wanted="0 or more, or None", got=shown(max_order))
    if "composition" in parts:
        check_streams(checkpoint)
    network = network_of(checkpoint.weights, checkpoint.config, mlp=mlp)
    if isinstance(heads, str):
        heads = [heads]
    if isinstance(queries, str):
        queries = [queries]
    asked = list(queries) if isinstance(queries, Iterable) else [queries]
    for query in asked:
        if not isinstance(query, str):
            wanted = 'text such as "* > L1H*"'
            raise PathExpandError("queries", wanted=wanted, got=shown(query))
    some: Iterable[Component] = (
        (each for each in network.components if isinstance(each, Head))
        if heads is None
        else (parse_head(checkpoint.config, each) for each in heads)
    )
    return _Plan(
        checkpoint,
        network,
        mlp,
        tuple(part for part in PARTS if part in parts),
        network.depth if max_order is None else max_order,
        frozenset(some) if "head" in parts else frozenset(),
        tuple(parse_query(each, network) for each in asked),
    )


def check_predicts(checkpoint: Checkpoint) -> None:
    """Refuse a model that does not predict the next of the tokens it reads; raises `ModelError`.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> check_predicts(read_checkpoint("two-layer"))
    """
    config, weights = checkpoint.config, checkpoint.weights
    name = f"model {config.model_name}"
    wanted = "a causal model, whose loss is that of the next token"
    if config.attention_dir != "causal":
        raise ModelError(name, wanted=wanted, got=f"a {config.attention_dir} one")
    if weights.transform is not None:
        raise ModelError(name, wanted=wanted, got="one with a masked-token head")
    if config.d_vocab_out != config.d_vocab:
        got = f"{config.d_vocab} tokens and {config.d_vocab_out} logits"
        raise ModelError(name, wanted="a logit for each token that it reads", got=got)
    if weights.exact:
        raise ModelError(name, wanted="weights that are floats", got="exact numbers")


def _notes(plan: _Plan) -> Iterator[str]:
    """Say what a table must say of this model."""
    config, weights = plan.checkpoint.config, plan.checkpoint.weights
    outlines = [weights.outline(layer) for layer in range(config.n_layers)]
    if any(block.mlp is not None for block in outlines):
        yield {
            "source": "What an MLP wrote is a source of its own, part of the direct path.",
            "frozen": "Orders count heads and MLPs, whose gates are those of the whole run.",
            "neurons": "Orders count heads and neurons, whose gates are those of the whole run.",
        }[plan.mlp]
    if config.output_logits_soft_cap is not None:
        yield f"Sums pass the soft cap of {config.output_logits_soft_cap:g} before the softmax."


# --- the prompts -------------------------------------------------------------------------------


def _limited(
    checkpoint: Checkpoint, prompts: Iterable[Prompt | Tokens], max_tokens: int | None
) -> Iterator[Tokens]:
    """Yield prompts until so many tokens are predicted; the last is cut to fit."""
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        raise PromptError("prompts", wanted="a list of prompts", got=shown(prompts))
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise PathExpandError("max_tokens", wanted="1 or more, or None", got=shown(max_tokens))
    left = max_tokens
    for number, prompt in enumerate(prompts, start=1):
        tokens = _read(checkpoint, number, prompt)
        real = np.flatnonzero(tokens.mask)
        if left is not None and len(real) - 1 > left:
            size = int(real[left]) + 1
            types = None if tokens.types is None else tokens.types[:size]
            tokens = Tokens(tokens.ids[:size], tokens.mask[:size], types)
        yield tokens
        left = None if left is None else left - len(_predicted(tokens))
        if left == 0:
            return


def _read(checkpoint: Checkpoint, number: int, prompt: Prompt | Tokens) -> Tokens:
    with _about(number):
        if isinstance(prompt, Tokens):
            tokens = read_prompt(checkpoint, prompt.ids, mask=prompt.mask, types=prompt.types)
        else:
            tokens = read_prompt(checkpoint, prompt)
        if tokens.mask.sum() < 2:
            raise PromptError("length", wanted="at least two tokens", got="one")
    return tokens


@contextmanager
def _about(number: int) -> Iterator[None]:
    try:
        yield
    except PromptError as error:
        raise PromptError(
            f"prompt {number}: {error.subject}",
            wanted=error.wanted,
            got=error.got,
            remedy=error.remedy,
        ) from None


def _predicted(tokens: Tokens) -> npt.NDArray[np.intp]:
    """Give the positions of the tokens that are predicted: all real ones but the first."""
    return np.flatnonzero(tokens.mask)[1:]


# --- one prompt --------------------------------------------------------------------------------


class _Measured:
    """One prompt, and the loss of each variant on it in nats, summed over its tokens."""

    def __init__(self, plan: _Plan, tokens: Tokens) -> None:
        self.plan, self.tokens = plan, tokens
        self.held: HeldRun = hold(plan.checkpoint, tokens, mlp=plan.mlp)
        self.frozen = self.held.frozen
        self.at = np.flatnonzero(tokens.mask)[:-1]  # where the next token is predicted
        self.labels = tokens.ids[_predicted(tokens)]
        self.constant = self.held.constant
        self.direct = direct_streams(self.frozen)
        self.streams = frozen_streams(self.frozen)

    def losses(self) -> dict[Variant, float]:
        """Give the loss of every variant that is asked for, in a fixed order."""
        weights, config = self.plan.checkpoint.weights, self.plan.checkpoint.config
        reads, found = self._reads(), dict[Variant, float]()
        # Each pass over the unembedding serves as many as there is room for.
        together = max(_MOST // (len(self.at) * config.d_model), 1)
        while some := list(islice(reads, together)):
            sums = losses(weights.unembedding, config, [read for _, read in some], self.labels)
            found |= {variant: float(value) for (variant, _), value in zip(some, sums, strict=True)}
        return found

    def _reads(self) -> Iterator[tuple[Variant, Read]]:
        """Yield what the unembedding reads of every variant that is asked for."""
        parts = self.plan.parts
        yield DENSE, self._dense(self.held.dense.residual[-1][0])
        yield ALL, self._sum(self.streams[-1])
        yield from self._orders() if "order" in parts else self._direct()
        yield from self._layers() if "layer" in parts else ()
        yield from self._heads()
        for query in self.plan.queries:
            yield from self._query(query)
        yield from self._compositions() if "composition" in parts else ()

    def _direct(self) -> Iterator[tuple[Variant, Read]]:
        yield Variant("order", "0"), self._sum(self.direct[-1])

    def _orders(self) -> Iterator[tuple[Variant, Read]]:
        most, highest = self.plan.max_order, self.plan.highest
        total: Any = 0.0
        for order, stream in enumerate(order_streams(self.frozen, max_order=most)[: highest + 1]):
            total = total + stream
            yield Variant("order", str(order)), self._sum(total)
        if most < highest:
            yield Variant("order", _higher(most)), self._sum(self.streams[-1])

    def _layers(self) -> Iterator[tuple[Variant, Read]]:
        """Yield what the paths of order 1 through one layer's heads, or its MLP, are worth."""
        for stage, each in enumerate(self.frozen.stages):
            for group in each.groups:
                written = past(self.frozen, group.push(self.direct[stage]), stage + 1)
                label = _layer_label(group.components[0])
                yield from self._both("layer", label, written, written)

    def _heads(self) -> Iterator[tuple[Variant, Read]]:
        """Yield what each head's path of order 1 adds, and what all paths through it take away."""
        for stage, each in enumerate(self.frozen.stages):
            for group in each.groups:
                for index, head in enumerate(group.components):
                    if head not in self.plan.heads:
                        continue
                    alone = group.write(self.direct[stage], index)
                    whole = group.write(self.streams[stage], index)
                    yield from self._both(
                        "head",
                        str(head),
                        past(self.frozen, alone, stage + 1),
                        onward(self.frozen, whole, stage + 1),
                    )

    def _query(self, query: Query) -> Iterator[tuple[Variant, Read]]:
        """Yield what the query's paths beyond the direct one add, and all of them take away."""
        streams = order_streams(self.frozen, query)
        is_constant = self.frozen.constant in query.stops(query.start)
        added = self._sum(self.direct[-1] + streams[1:].sum(axis=0))
        yield Variant("query", query.text, "added"), added
        removed = self._sum(self.streams[-1] - streams.sum(axis=0), constant=not is_constant)
        yield Variant("query", query.text, "removed"), removed

    def _compositions(self) -> Iterator[tuple[Variant, Read]]:
        # In a single layer no head reads another: three runs would change nothing.
        for kind in COMPOSITIONS if self.plan.checkpoint.config.n_layers > 1 else ():
            run = without_composition(
                self.plan.checkpoint,
                self.tokens,
                kind,  # type: ignore[arg-type]
                mlp=self.plan.mlp,
            )
            yield Variant("composition", kind), self._dense(run.residual[-1][0])

    def _both(
        self, kind: Kind, label: str, added: Array, removed: Array
    ) -> Iterator[tuple[Variant, Read]]:
        yield Variant(kind, label, "added"), self._sum(self.direct[-1] + added)
        yield Variant(kind, label, "removed"), self._sum(self.streams[-1] - removed)

    def _sum(self, stream: Array, *, constant: bool = True) -> Read:
        """Read a part of the last stream (position, d_model), the final norm's scale held fixed."""
        is_born = constant and self.frozen.constant is not None
        return Read(self.held.rows(stream[self.at], self.at), self.constant if is_born else None)

    def _dense(self, stream: Array) -> Read:
        """Read a dense pass's last stream (position, d_model)."""
        weights = self.plan.checkpoint.weights
        return Read(read_stream(weights, stream[self.at]).stream, weights.b_U)


def _higher(order: int) -> str:
    return f"above {order}"


def _layer_label(component: Component) -> str:
    """Name the components of one kind in one layer."""
    if isinstance(component, Head):
        return f"L{component.layer} heads"
    return f"L{component.layer} {'MLP' if isinstance(component, Mlp) else 'neurons'}"
