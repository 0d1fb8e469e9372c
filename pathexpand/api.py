"""What people call: a model, a run of it on a prompt, and the tables of their paths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.dataset import DatasetRanking, rank_over
from pathexpand.engine.norm import path_factors, path_matrix
from pathexpand.engine.ranking import Ranking, rank, rank_by_norm
from pathexpand.engine.rounding import constants_rounding, gamma, stream_rounding
from pathexpand.engine.rounds import By
from pathexpand.engine.sampling import Sample, sample_paths
from pathexpand.engine.search import Budget, Progress
from pathexpand.engine.total import Totals, functionals, head_totals, pair_totals, totals
from pathexpand.engine.value import Readout, path_stream, path_value_by_token
from pathexpand.errors import ModelError, PathExpandError, PromptError
from pathexpand.frozen import FrozenSum, freeze, network_of
from pathexpand.lowrank import Contraction, Factored, plan
from pathexpand.model.checkpoint import Checkpoint, checkpoint_from_state_dict, read_checkpoint
from pathexpand.model.config import Config
from pathexpand.model.forward import Forward, forward, logits
from pathexpand.model.prompt import Prompt, Tokens, pad, read_prompt
from pathexpand.model.tokenizer import Tokenizer, show_token
from pathexpand.symbolic import Head, Network, Path, equation
from pathexpand.symbolic.query import Query, everything, parse_query
from pathexpand.table import (
    NormRow,
    NormTable,
    PathRow,
    PathTable,
    SourceToken,
    TotalsRow,
    TotalsTable,
)
from pathexpand.table.dataset_table import DatasetRow, DatasetTable
from pathexpand.target import LogitTarget, Target, TargetLike, read_target

Array = npt.NDArray[Any]
TOTALS = ("order", "source", "token", "head", "pair")
Mask = Sequence[bool] | Sequence[int] | npt.NDArray[Any]


def load(name_or_directory: str | FilePath) -> Model:
    """Load a model: an embedded one by name, or a directory with `config.json` and weights.

    >>> load("two-layer")
    Model('two-layer': 2 layers × 4 heads, d_model 192, vocabulary 1024)
    """
    return Model(read_checkpoint(name_or_directory))


def from_state_dict(
    tensors: Mapping[str, npt.NDArray[Any]],
    config: Config | Mapping[str, Any],
    *,
    tokenizer: Tokenizer | None = None,
) -> Model:
    """Take a TransformerLens state dict, given as arrays, and its configuration as a mapping."""
    return Model(checkpoint_from_state_dict(tensors, config, tokenizer=tokenizer))


class Model:
    """An attention-only transformer whose paths can be asked for.

    Weights are read-only and a model never changes, so nothing computed from it can be stale.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Wrap a checkpoint that has been read and checked."""
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.weights = checkpoint.weights
        self.tokenizer = checkpoint.tokenizer
        self.network: Network = network_of(self.weights, self.config)

    def __repr__(self) -> str:
        """Name the model and its sizes."""
        c = self.config
        layers = f"{c.n_layers} layer{'' if c.n_layers == 1 else 's'}"
        return (
            f"Model({c.model_name!r}: {layers} × {c.n_heads} heads, d_model {c.d_model}, "
            f"vocabulary {c.d_vocab})"
        )

    def equation(self, *, notation: str = "paper", format: str = "text") -> str:
        """Write the model as a sum of paths.

        `notation` is "paper" (column vectors, read right to left) or "code" (row vectors, as the
        arrays are); `format` is "text" or "latex".

        >>> print(load("one-layer").equation())
        T = (Id ⊗ W_U) (Id ⊗ Id + Σ_{h∈L0} A^h ⊗ W_OV^h) (Id ⊗ W_E)
          = Id ⊗ W_U W_E                   [1]
          + Σ_{h∈L0} A^h ⊗ W_U W_OV^h W_E  [4]
        <BLANKLINE>
        [n] terms of each kind, 5 in all
        L0 = {L0H0, …, L0H3}
        """
        return equation(self.network, notation=notation, format=format)

    def run(
        self, prompt: Prompt, *, mask: Mask | None = None, prepend_bos: bool | None = None
    ) -> Run:
        """Run one prompt, given as text or as token ids (position,).

        Ids are used exactly as given; text gets the model's start token unless `prepend_bos` is
        false. `mask` (position,) is 1 at real tokens and 0 at padding.
        """
        tokens = read_prompt(self.checkpoint, prompt, mask=_mask(mask), prepend_bos=prepend_bos)
        return self._runs([tokens])[0]

    def runs(
        self,
        prompts: Sequence[Prompt],
        *,
        masks: Sequence[Mask] | None = None,
        prepend_bos: bool | None = None,
    ) -> list[Run]:
        """Run several prompts of any lengths in one padded batch; each run is as if run alone."""
        if isinstance(prompts, str) or not len(prompts):
            raise PromptError("prompts", wanted="a list of prompts", got=repr(prompts))
        if masks is not None and len(masks) != len(prompts):
            raise PromptError("masks", wanted=f"{len(prompts)}, one a prompt", got=str(len(masks)))
        each_mask = [None] * len(prompts) if masks is None else masks
        return self._runs(
            [
                read_prompt(self.checkpoint, prompt, mask=_mask(mask), prepend_bos=prepend_bos)
                for prompt, mask in zip(prompts, each_mask, strict=True)
            ]
        )

    def paths(
        self,
        *,
        top: int = 10,
        query: str | Query | None = None,
        max_order: int | None = None,
        centred: bool = False,
        budget: Budget | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> NormTable:
        """Rank paths from the weights alone, by the Frobenius norm of their end-to-end matrix.

        `centred` takes each input's mean over the output vocabulary off its row. The other
        options are those of `Run.paths`.

        >>> load("two-layer").paths(top=3).certified
        True
        """
        _check_counts(top, max_order)
        asked = self.query(query)
        found = rank_by_norm(
            self.weights,
            self.network,
            asked,
            top=top,
            centred=centred,
            max_order=max_order,
            budget=budget,
            report=report,
        )
        rows = tuple(
            NormRow(n, str(path), path.order, path.kind, norm, _ratio(norm * norm, found.energy))
            for n, (path, norm) in enumerate(
                zip(found.found.paths, found.norms, strict=True), start=1
            )
        )
        return NormTable(
            model=self.config.model_name,
            rows=rows,
            energy=found.energy,
            path_count=asked.count(),
            certified=found.found.certified,
            bound=found.found.bound,
            max_order=max_order,
            longer_bound=found.found.longer_bound,
            query=asked.text,
            centred=centred,
        )

    def dataset_paths(
        self,
        prompts: Iterable[Prompt],
        *,
        by: By = "rms",
        target: TargetLike | Target | None = None,
        targets: Iterable[TargetLike | Target | None] | None = None,
        masks: Iterable[Mask | None] | None = None,
        prepend_bos: bool | None = None,
        top: int = 10,
        query: str | Query | None = None,
        max_order: int | None = None,
        centred: bool = True,
        budget: Budget | None = None,
        rounds: int | None = None,
        cache: int = 2**28,
        report: Callable[[Progress], None] | None = None,
    ) -> DatasetTable:
        """Rank paths over many prompts by the root mean square, or the |mean|, of their values.

        `prompts` can be anything that can be iterated over again and again with the same result,
        of any length: one prompt is looked at at a time. Each is read at its last token, for one
        `target`, for its own out of `targets`, or where there is none for its most likely next
        token. The search makes one pass over the prompts a round and ends, certified, when no
        path that is left can be among those listed; a `budget`, a number of `rounds`, or Ctrl-C
        ends it sooner with a bound that holds (a first round, and two passes that value the listed
        paths and close the sum, are made in any case). `cache` is how many bytes of what the
        search needs of each prompt are kept from round to round. The other options are those of
        `Run.paths`. Raises `PathExpandError`, with the number of the prompt from 1.

        >>> table = load("two-layer").dataset_paths(["to be or not", "that is the"], top=3)
        >>> len(table), table.certified, table.closes
        (3, True, True)
        """
        _check_counts(top, max_order)
        _check_counts(cache, rounds, names=("cache", "rounds"))
        if by not in ("rms", "mean"):
            raise PathExpandError("by", wanted='"rms" or "mean"', got=repr(by))
        if target is not None and targets is not None:
            raise PathExpandError("target", wanted="one for all, or one a prompt", got="both")
        one = None if target is None else read_target(self.checkpoint, target, centred=centred)
        readings = _Readings(
            self, prompts, one, targets, masks, prepend_bos=prepend_bos, centred=centred
        )
        asked = self.query(query)
        found = rank_over(
            readings,
            self.network,
            asked,
            by=by,
            top=top,
            max_order=max_order,
            budget=budget,
            rounds=rounds,
            cache=cache,
            report=report,
        )
        return _dataset_table(self, found, by, readings.describe(), max_order, asked)

    def query(self, text: str | Query | None = None) -> Query:
        """Read a path query such as "embed > * > L1H2"; none is every path."""
        if isinstance(text, Query):
            return text
        return everything(self.network) if text is None else parse_query(text, self.network)

    def count(self, query: str | Query | None = None) -> int:
        """Count the paths, or those of a query, exactly and without listing them.

        >>> load("two-layer").count("embed > * > L1H2")
        5
        """
        return self.query(query).count()

    def path_matrix(self, path: Path | str) -> Factored:
        """Give a path's matrix from its source to the logits, in factors (inputs, d_vocab_out)."""
        return path_matrix(self.weights, _path(path))

    def contraction(self, path: Path | str) -> Contraction:
        """Give the cheapest order in which to multiply out a path's matrix, and what it costs.

        >>> print(load("one-layer").contraction("embed > L0H1"))  # doctest: +ELLIPSIS
        step  product ...
        """
        factors = path_factors(self.weights, _path(path))
        return plan([factor.shape for factor in factors.values()], names=list(factors))

    def _runs(self, prompts: list[Tokens]) -> list[Run]:
        batch = pad(prompts)
        with np.errstate(over="ignore", invalid="ignore"):
            dense = forward(self.weights, self.config, batch.ids, batch.mask)
        _check_finite(dense)
        return [Run(self, _row(dense, n, len(prompt.ids))) for n, prompt in enumerate(prompts)]


@dataclass(frozen=True, slots=True)
class SearchedPaths:
    """A table of ranked paths, the target it is about, and the suffixes that the search expanded.

    Each suffix is given by its heads from early to late; the empty one stands for the readout.
    """

    table: PathTable
    target: Target
    expanded: tuple[tuple[Head, ...], ...]


class Run:
    """One prompt run through a model, with its attention patterns then held fixed.

    Positions count from 0, or from the end if negative; where none is given, the last real token
    is meant. Where no target is given, the model's most likely next token there is meant.
    """

    def __init__(self, model: Model, dense: Forward) -> None:
        """Keep a model and one row of its dense forward pass."""
        self.model = model
        self.dense = dense

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """The token ids, (position,)."""
        tokens: npt.NDArray[np.int64] = self.dense.tokens[0]
        return tokens

    @property
    def patterns(self) -> tuple[Array, ...]:
        """The attention patterns, one array (head, query, key) a layer."""
        return tuple(pattern[0] for pattern in self.dense.patterns)

    @cached_property
    def frozen(self) -> FrozenSum:
        """The run as a sum of paths."""
        return freeze(self.model.weights, self.model.config, self.dense)

    def logits(self, position: int | None = None) -> Array:
        """Give the dense logits at a position: (d_vocab_out,)."""
        stream = self.dense.residual[-1][0, self.position(position)]
        with np.errstate(over="ignore", invalid="ignore"):
            out = logits(self.model.weights, stream)
        if out.dtype != object and not np.isfinite(out).all():
            raise _overflow("the logits")
        return out

    def position(self, given: int | None = None) -> int:
        """Give a position as counted from 0; raises `PromptError` if it is not one to read at."""
        mask = self.dense.mask[0]
        if given is None:
            return int(np.flatnonzero(mask)[-1])
        if isinstance(given, bool) or not isinstance(given, int | np.integer):
            raise PromptError("position", wanted="a whole number", got=repr(given))
        if not -mask.size <= given < mask.size:
            raise PromptError(
                f"position {given}", wanted=f"{-mask.size} to {mask.size - 1} for this prompt"
            )
        place: int = int(given) % int(mask.size)
        if not mask[place]:
            raise PromptError(f"position {given}", wanted="a real token", got="padding")
        return place

    def target(
        self,
        target: TargetLike | Target | None = None,
        *,
        position: int | None = None,
        centred: bool = True,
    ) -> Target:
        """Understand a target; with none given, take the most likely next token.

        A token's text or id; a pair or text "A-B" for a difference of two logits; an array
        (d_model,) for any direction. `centred` takes the vocabulary mean off a single logit.
        """
        if target is None:
            return LogitTarget(int(np.argmax(self.logits(position))), centred)
        return read_target(self.model.checkpoint, target, centred=centred)

    def paths(
        self,
        target: TargetLike | Target | None = None,
        *,
        position: int | None = None,
        top: int = 10,
        query: str | Query | None = None,
        max_order: int | None = None,
        centred: bool = True,
        budget: Budget | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> PathTable:
        """Rank the paths to a target by |value|, and close the sum.

        The search ends when no path that is left can be larger than those listed: the table is
        then certified, however many paths there are. A `budget`, or Ctrl-C, ends it sooner with
        a bound on what was not visited. `query` asks for some paths, `max_order` leaves those of
        more heads unranked (they stay in the remainder). `report` hears how the search stands.

        >>> table = load("two-layer").run("to be or not to").paths(top=3)
        >>> len(table), table.path_count, abs(table.gap) <= table.gap_bound
        (3, 25, True)
        """
        return self.searched_paths(
            target,
            position=position,
            top=top,
            query=query,
            max_order=max_order,
            centred=centred,
            budget=budget,
            report=report,
        ).table

    def searched_paths(
        self,
        target: TargetLike | Target | None = None,
        *,
        position: int | None = None,
        top: int = 10,
        query: str | Query | None = None,
        max_order: int | None = None,
        centred: bool = True,
        budget: Budget | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> SearchedPaths:
        """Rank the paths as `paths` does, and keep what a certificate is made of.

        >>> run = load("two-layer").run("to be or not to")
        >>> run.searched_paths(top=3).target == run.target()
        True
        """
        _check_counts(top, max_order)
        place = self.position(position)
        what = self.target(target, position=place, centred=centred)
        readout = what.readout(self.model.weights, place)
        streams = tuple(stream[0] for stream in self.dense.residual)
        with np.errstate(over="ignore", invalid="ignore"):
            dense = float(what.dense(self.model.weights, streams[-1][place]))
        if not math.isfinite(dense):
            raise _overflow("the logits")
        asked = self.model.query(query)
        found = rank(
            self.frozen,
            readout,
            asked,
            top=top,
            streams=streams,
            max_order=max_order,
            budget=budget,
            report=report,
        )
        size = sum(abs(row.value) for row in found.rows) + abs(found.outside) + abs(dense)
        rounding = found.rounding + gamma(len(found.rows) + 2) * size
        rounding += self._dense_rounding(what, readout)
        table = PathTable(
            model=self.model.config.model_name,
            tokens=tuple(self._source_token(n) for n in range(len(self.tokens))),
            position=place,
            target=what.describe(self.model.tokenizer),
            dense=dense,
            rows=self._rows(found, dense),
            listed=found.listed,
            remainder=found.remainder,
            remainder_count=found.remainder_count,
            gap=dense - (found.listed + found.remainder + found.outside),
            gap_bound=2 * rounding,
            path_count=self.model.network.count(),
            certified=found.found.certified,
            bound=_finite(found.found.bound),
            max_order=max_order,
            longer_bound=float(found.found.longer_bound),
            visited=found.found.visited,
            remainder_energy=_finite(found.remainder_energy),
            query=asked.text,
            outside=found.outside,
            outside_count=self.model.network.count() - asked.count(),
        )
        return SearchedPaths(table, what, found.found.expanded)

    def total(
        self,
        query: str | Query | None = None,
        *,
        target: TargetLike | Target | None = None,
        position: int | None = None,
        centred: bool = True,
    ) -> Totals:
        """Sum all paths of a query without listing them, split by order, source and token."""
        readout = self._readout(target, position, centred=centred)
        return totals(self.frozen, readout, self.model.query(query))

    def head_totals(
        self,
        *,
        target: TargetLike | Target | None = None,
        position: int | None = None,
        centred: bool = True,
    ) -> dict[str, float]:
        """Sum the paths that pass through each head, without listing them.

        A path of several heads counts under each, so these do not add up to the dense value.
        """
        found = head_totals(self.frozen, self._readout(target, position, centred=centred))
        return {head.label: float(value) for head, value in found.items()}

    def pair_totals(
        self,
        *,
        target: TargetLike | Target | None = None,
        position: int | None = None,
        centred: bool = True,
    ) -> dict[tuple[str, str], float]:
        """Sum the paths that pass through both heads of each pair, the earlier named first."""
        found = pair_totals(self.frozen, self._readout(target, position, centred=centred))
        return {(a.label, b.label): float(value) for (a, b), value in found.items()}

    def totals_table(
        self,
        *,
        by: str = "order",
        query: str | Query | None = None,
        target: TargetLike | Target | None = None,
        position: int | None = None,
        centred: bool = True,
    ) -> TotalsTable:
        """Tabulate sums over paths by "order", "source", "token", "head" or "pair" of heads.

        >>> table = load("two-layer").run("to be or not to").totals_table(by="order")
        >>> [row.paths for row in table]
        [1, 8, 16]
        """
        if by not in TOTALS:
            raise PathExpandError("totals", wanted=f"by one of {', '.join(TOTALS)}", got=repr(by))
        asked = self.model.query(query)
        if by in ("head", "pair") and asked.text != "*":
            raise PathExpandError(
                f"totals by {by}", wanted="no query", remedy="ask for the head in a query instead"
            )
        place = self.position(position)
        what = self.target(target, position=place, centred=centred)
        found = totals(self.frozen, what.readout(self.model.weights, place), asked)
        dense = float(what.dense(self.model.weights, self.dense.residual[-1][0, place]))
        return TotalsTable(
            model=self.model.config.model_name,
            target=what.describe(self.model.tokenizer),
            position=place,
            query=asked.text,
            by=by,
            rows=tuple(
                TotalsRow(part, paths, float(value), _ratio(float(value), dense))
                for part, paths, value in self._parts(by, found, asked, what, place)
            ),
            total=float(found.sum()),
            dense=dense,
            parted=by not in ("head", "pair"),
        )

    def _parts(
        self, by: str, found: Totals, asked: Query, what: Target, place: int
    ) -> Iterator[tuple[str, int | None, Any]]:
        if by == "order":
            counts = asked.count_by_order()
            for order, value in enumerate(found.by_order()):
                yield str(order), counts[order] if order < len(counts) else 0, value
        elif by == "source":
            yield from ((name, None, value) for name, value in found.by_source().items())
        elif by == "token":
            for position, value in enumerate(found.by_token()):
                yield f"{self._source_token(position).text} @{position}", None, value
        elif by == "head":
            heads = self.head_totals(target=what, position=place)
            yield from ((name, None, value) for name, value in heads.items())
        else:
            pairs = self.pair_totals(target=what, position=place)
            yield from ((" > ".join(pair), None, value) for pair, value in pairs.items())

    def sample(
        self,
        n: int,
        *,
        target: TargetLike | Target | None = None,
        position: int | None = None,
        query: str | Query | None = None,
        centred: bool = True,
        seed: int = 0,
    ) -> Sample:
        """Draw n paths with named positions, each with probability contribution² / Σ contribution².

        The same seed gives the same draws. What a sample can and cannot tell is said at
        `pathexpand.engine.sampling.Sample.estimate`.

        >>> sample = load("two-layer").run("to be or not to").sample(100, seed=1)
        >>> len(sample), str(sample.paths[0]).startswith("embed@")
        (100, True)
        """
        for name, value, least in (("n", n, 1), ("seed", seed, 0)):
            if type(value) is not int or value < least:
                wanted = f"a whole number of at least {least}"
                raise PathExpandError(name, wanted=wanted, got=repr(value))
        readout = self._readout(target, position, centred=centred)
        return sample_paths(self.frozen, readout, self.model.query(query), n, seed=seed)

    def count(self, query: str | Query | None = None) -> int:
        """Count the paths of a query, exactly and without listing them."""
        return self.model.count(query)

    def value(
        self,
        path: Path | str,
        target: TargetLike | Target | None = None,
        *,
        position: int | None = None,
        centred: bool = True,
    ) -> float:
        """Give one path's value."""
        split = self.value_by_token(path, target, position=position, centred=centred)
        return float(split.sum())

    def value_by_token(
        self,
        path: Path | str,
        target: TargetLike | Target | None = None,
        *,
        position: int | None = None,
        centred: bool = True,
    ) -> Array:
        """Give one path's value split by source token: (position,)."""
        readout = self._readout(target, position, centred=centred)
        return path_value_by_token(self.frozen, readout, _path(path))

    def path_logits(self, path: Path | str, *, position: int | None = None) -> Array:
        """Give what one path adds to every logit: (d_vocab_out,)."""
        weights, wanted = self.model.weights, _path(path)
        if wanted.source == "b_U" and weights.b_U is not None:
            return weights.b_U
        out: Array = path_stream(self.frozen, self.position(position), wanted) @ weights.W_U
        return out

    def _readout(
        self, target: TargetLike | Target | None, position: int | None, *, centred: bool
    ) -> Readout:
        place = self.position(position)
        what = self.target(target, position=place, centred=centred)
        return what.readout(self.model.weights, place)

    def _dense_rounding(self, what: Target, readout: Readout) -> float:
        weights = self.model.weights
        streams = tuple(stream[0] for stream in self.dense.residual)
        reads = functionals(self.frozen, readout)
        return (
            stream_rounding(weights, self.patterns, streams, reads)
            + constants_rounding(weights, self.patterns, reads)
            + what.rounding(weights, streams[-1][readout.position])
        )

    def _rows(self, found: Ranking, dense: float) -> tuple[PathRow, ...]:
        rows, running = [], 0.0
        for number, ranked in enumerate(found.rows, start=1):
            running += ranked.value
            at = ranked.strongest
            rows.append(
                PathRow(
                    rank=number,
                    path=str(ranked.path),
                    order=ranked.path.order,
                    kind=ranked.path.kind,
                    value=ranked.value,
                    share=_ratio(ranked.value, dense),
                    running=running,
                    source_token=None if at is None else self._source_token(at),
                    source_value=None if at is None else float(ranked.by_token[at]),
                    certain=abs(ranked.value) >= found.found.bound,
                )
            )
        return tuple(rows)

    def _source_token(self, position: int) -> SourceToken:
        token = int(self.tokens[position])
        return SourceToken(position, token, show_token(self.model.tokenizer, token))


class _Readings:
    """The prompts of a data set, read again from the start each time they are iterated over."""

    def __init__(
        self,
        model: Model,
        prompts: Iterable[Prompt],
        target: Target | None,
        targets: Iterable[TargetLike | Target | None] | None,
        masks: Iterable[Mask | None] | None,
        *,
        prepend_bos: bool | None,
        centred: bool,
    ) -> None:
        self.model, self.target, self.own_targets = model, target, targets is not None
        self.prepend_bos, self.centred = prepend_bos, centred
        given = {"prompts": prompts, "targets": targets, "masks": masks}
        self.streams = {name: each for name, each in given.items() if each is not None}
        for name, each in self.streams.items():
            _check_repeatable(name, each)
        self.digest: bytes | None = None

    def __iter__(self) -> Iterator[_Reading]:
        digest = blake2b()
        columns = zip_longest(*self.streams.values(), fillvalue=_NONE_LEFT)
        for number, column in enumerate(columns, start=1):
            row = dict(zip(self.streams, column, strict=True))
            for name in (name for name, each in row.items() if each is _NONE_LEFT):
                raise PromptError(name, wanted="as many prompts as targets and masks")
            with _about(number):
                mask = _mask(row.get("masks"))
                tokens = read_prompt(
                    self.model.checkpoint, row["prompts"], mask=mask, prepend_bos=self.prepend_bos
                )
            digest.update(tokens.ids.tobytes() + b"|" + tokens.mask.tobytes() + b"|")
            what = self.target if self.target is not None else row.get("targets")
            yield _Reading(self.model, number, tokens, what, centred=self.centred)
        if self.digest not in (None, digest.digest()):
            raise PromptError(
                "prompts", wanted="the same each time they are read", got="others than before"
            )
        self.digest = digest.digest()

    def describe(self) -> str:
        """Name the targets for a table's head."""
        if self.target is not None:
            return self.target.describe(self.model.tokenizer)
        whose = "own target, or " if self.own_targets else ""
        whose += "most likely next token"
        return f"each prompt's {whose}{', minus the vocabulary mean' if self.centred else ''}"


class _Reading:
    """One prompt of a data set, run when it is first asked for."""

    def __init__(
        self,
        model: Model,
        number: int,
        tokens: Tokens,
        target: TargetLike | Target | None,
        *,
        centred: bool,
    ) -> None:
        self.model, self.number, self.tokens = model, number, tokens
        self._given, self._centred = target, centred

    @cached_property
    def run(self) -> Run:
        with _about(self.number):
            return self.model._runs([self.tokens])[0]

    @cached_property
    def target(self) -> Target:
        run = self.run
        with _about(self.number):
            return run.target(self._given, centred=self._centred)

    @property
    def frozen(self) -> FrozenSum:
        return self.run.frozen

    @cached_property
    def readout(self) -> Readout:
        return self.target.readout(self.model.weights, self.run.position())

    @property
    def streams(self) -> tuple[Array, ...]:
        return tuple(stream[0] for stream in self.run.dense.residual)

    @property
    def dense(self) -> float:
        last = self.streams[-1][self.readout.position]
        return float(self.target.dense(self.model.weights, last))

    @property
    def dense_rounding(self) -> float:
        return self.run._dense_rounding(self.target, self.readout)


_NONE_LEFT: Any = object()


@contextmanager
def _about(number: int) -> Iterator[None]:
    """Say in an error which prompt of a data set it is about."""
    try:
        yield
    except PathExpandError as error:
        subject = f"prompt {number}: {error.subject}"
        raise type(error)(
            subject, wanted=error.wanted, got=error.got, remedy=error.remedy
        ) from error


def _check_repeatable(name: str, given: object) -> None:
    """Refuse what can be read only once: the search reads prompts once a round."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise PromptError(name, wanted=f"a list of {name}", got=repr(given)[:40])
    if isinstance(given, Iterator):
        raise PromptError(
            name,
            wanted="something that can be read several times",
            got=type(given).__name__,
            remedy=f"give a list, or an object whose __iter__ starts the {name} anew",
        )


def _dataset_table(
    model: Model, found: DatasetRanking, by: By, target: str, max_order: int | None, query: Query
) -> DatasetTable:
    rows = tuple(
        DatasetRow(
            rank=number,
            path=str(row.path),
            order=row.path.order,
            kind=row.path.kind,
            rms=row.rms,
            mean=row.mean,
            standard_error=row.standard_error,
            share=_ratio(row.mean, found.dense),
            certain=(row.rms if by == "rms" else abs(row.mean)) >= found.found.bound,
        )
        for number, row in enumerate(found.rows, start=1)
    )
    return DatasetTable(
        model=model.config.model_name,
        by=by,
        prompts=found.prompts,
        target=target,
        rows=rows,
        dense=found.dense,
        listed=found.listed,
        remainder=found.remainder,
        remainder_count=found.remainder_count,
        gap=found.dense - (found.listed + found.remainder + found.outside),
        gap_bound=2 * found.rounding,
        path_count=model.network.count(),
        certified=found.found.certified,
        bound=float(found.found.bound),
        max_order=max_order,
        longer_bound=float(found.found.longer_bound),
        visited=found.found.visited,
        rounds=found.rounds,
        query=query.text,
        outside=found.outside,
        outside_count=found.outside_count,
    )


def _row(dense: Forward, row: int, length: int) -> Forward:
    """Cut one prompt out of a padded batch, as a batch of one."""
    one = slice(row, row + 1)
    return Forward(
        tokens=dense.tokens[one, :length],
        mask=dense.mask[one, :length],
        places=dense.places[one, :length],
        patterns=tuple(pattern[one, :, :length, :length] for pattern in dense.patterns),
        residual=tuple(stream[one, :length] for stream in dense.residual),
    )


def _check_finite(dense: Forward) -> None:
    """Refuse a run whose numbers left the range of float64: nothing adds up there."""
    for layer, stream in enumerate(dense.residual):
        if stream.dtype != object and not np.isfinite(stream).all():
            raise _overflow("the embeddings" if not layer else f"layer {layer - 1}")


def _overflow(place: str) -> ModelError:
    return ModelError(
        "run",
        wanted="finite numbers",
        got=f"overflow in {place}",
        remedy="the weights are too large for float64",
    )


def _mask(mask: Mask | None) -> npt.NDArray[np.bool_] | None:
    return None if mask is None else np.asarray(mask)


def _path(path: Path | str) -> Path:
    return path if isinstance(path, Path) else Path.parse(path)


def _finite(number: float) -> float | None:
    """Give a bound, or None where it overflowed: then it says nothing."""
    return float(number) if math.isfinite(number) else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _check_counts(
    top: int, max_order: int | None, *, names: tuple[str, str] = ("top", "max_order")
) -> None:
    for name, value in zip(names, (top, max_order), strict=True):
        if value is not None and (type(value) is not int or value < 0):
            raise PathExpandError(name, wanted="a whole number of at least 0", got=repr(value))
