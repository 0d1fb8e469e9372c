"""The prompts of a data set, read as often as the search needs them, and its table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from pathexpand.api.given import Mask, as_mask, ratio
from pathexpand.engine.dataset import DatasetRanking
from pathexpand.engine.rounds import By
from pathexpand.engine.value import Readout
from pathexpand.errors import PathExpandError, PromptError
from pathexpand.frozen import FrozenSum
from pathexpand.model.prompt import Prompt, Tokens, read_prompt
from pathexpand.symbolic.query import Query
from pathexpand.table.dataset_table import DatasetRow, DatasetTable
from pathexpand.target import DirectionTarget, Target, TargetLike

if TYPE_CHECKING:
    from pathexpand.api.model import Model
    from pathexpand.api.run import Run

Array = npt.NDArray[Any]


class Readings:
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
        centred: bool | None,
    ) -> None:
        """Keep what was given, after checking that it can be read more than once."""
        self.model, self.target, self.own_targets = model, target, targets is not None
        self.prepend_bos, self.centred = prepend_bos, centred
        given = {"prompts": prompts, "targets": targets, "masks": masks}
        self.streams = {name: each for name, each in given.items() if each is not None}
        for name, each in self.streams.items():
            check_repeatable(name, each)
        self.digest: bytes | None = None

    def __iter__(self) -> Iterator[Reading]:
        """Yield each prompt in turn; raises `PromptError` if they are not those of last time."""
        digest = blake2b()
        columns = zip_longest(*self.streams.values(), fillvalue=_NONE_LEFT)
        for number, column in enumerate(columns, start=1):
            row = dict(zip(self.streams, column, strict=True))
            for name in (name for name, each in row.items() if each is _NONE_LEFT):
                raise PromptError(name, wanted="as many prompts as targets and masks")
            with _about(number):
                mask = as_mask(row.get("masks"))
                tokens = read_prompt(
                    self.model.checkpoint, row["prompts"], mask=mask, prepend_bos=self.prepend_bos
                )
            digest.update(tokens.ids.tobytes() + b"|" + tokens.mask.tobytes() + b"|")
            what = self.target if self.target is not None else row.get("targets")
            yield Reading(self.model, number, tokens, what, centred=self.centred)
        if self.digest not in (None, digest.digest()):
            raise PromptError(
                "prompts", wanted="the same each time they are read", got="others than before"
            )
        self.digest = digest.digest()

    @property
    def soft_cap(self) -> float | None:
        """The cap that the targets are read before, if there is one."""
        is_logit = not isinstance(self.target, DirectionTarget)
        return self.model.config.output_logits_soft_cap if is_logit else None

    def describe(self) -> str:
        """Name the targets for a table's head."""
        if self.target is not None:
            return self.target.describe(self.model.tokenizer)
        whose = "own target, or " if self.own_targets else ""
        whose += "most likely next token"
        return f"each prompt's {whose}{', minus the vocabulary mean' if self.centred else ''}"


class Reading:
    """One prompt of a data set, run when it is first asked for."""

    def __init__(
        self,
        model: Model,
        number: int,
        tokens: Tokens,
        target: TargetLike | Target | None,
        *,
        centred: bool | None,
    ) -> None:
        """Keep a prompt that has been read, and its number, counted from 1."""
        self.model, self.number, self.tokens = model, number, tokens
        self._given, self._centred = target, centred

    @cached_property
    def run(self) -> Run:
        """The prompt, run by itself."""
        with _about(self.number):
            return self.model.run_tokens([self.tokens])[0]

    @cached_property
    def target(self) -> Target:
        """What its paths are valued for."""
        run = self.run
        with _about(self.number):
            return run.target(self._given, centred=self._centred)

    @property
    def frozen(self) -> FrozenSum:
        """The run as a sum of paths."""
        return self.run.frozen

    @cached_property
    def readout(self) -> Readout:
        """The reading at its last token."""
        return self.target.readout(self.run.unembed, self.run.position())

    @property
    def dense(self) -> float:
        """The target's value by the dense pass."""
        return self.run.dense_value(self.target, self.readout.position)

    @property
    def dense_rounding(self) -> float:
        """A bound on the rounding of the dense value."""
        return self.run.dense_rounding(self.target, self.readout)


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


def check_repeatable(name: str, given: object) -> None:
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


def dataset_table(
    model: Model,
    found: DatasetRanking,
    by: By,
    readings: Readings,
    max_order: int | None,
    query: Query,
) -> DatasetTable:
    """Lay out a ranking over a data set as a table."""
    rows = tuple(
        DatasetRow(
            rank=number,
            path=str(row.path),
            order=row.path.order,
            kind=row.path.kind,
            rms=row.rms,
            mean=row.mean,
            standard_error=row.standard_error,
            share=ratio(row.mean, found.dense),
            certain=(row.rms if by == "rms" else abs(row.mean)) >= found.found.bound,
        )
        for number, row in enumerate(found.rows, start=1)
    )
    return DatasetTable(
        model=model.config.model_name,
        by=by,
        prompts=found.prompts,
        target=readings.describe(),
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
        mlps=model.mlps,
        soft_cap=readings.soft_cap,
    )
