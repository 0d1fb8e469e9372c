"""Attention scores of a run, expanded into pairs of paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pathexpand.api.given import check_counts, finite, ratio
from pathexpand.circuits.scores import (
    Scored,
    ScorePairs,
    check_apart,
    check_contrast,
    check_key,
    expand_score,
)
from pathexpand.circuits.wiring import parse_head
from pathexpand.engine.search import Budget, Progress
from pathexpand.errors import PathExpandError
from pathexpand.progress import listener, watched
from pathexpand.symbolic import Head
from pathexpand.table.score_table import CompositionSum, ScoreRow, ScoreTable

if TYPE_CHECKING:
    from pathexpand.api.run import Run


@watched("expanding a score")
def score_table(
    run: Run,
    head: Head | str,
    query: int | None,
    key: int | None,
    *,
    top: int,
    budget: Budget | None,
    report: Callable[[Progress], None] | None,
) -> ScoreTable:
    """Expand one score and tabulate its pairs."""
    check_counts(top, None)
    scored, place = _scored(run, head, query)
    keys = (_key(run, scored, place, key),)
    found = _expanded(scored, place, keys, top, budget, report)
    return _tabulated(run, scored, place, keys, found)


@watched("expanding a score")
def why_table(
    run: Run,
    head: Head | str,
    query: int | None,
    key: int | None,
    over: int | None,
    *,
    top: int,
    budget: Budget | None,
    report: Callable[[Progress], None] | None,
) -> ScoreTable:
    """Expand one score less another, by default the next best's, and tabulate its pairs."""
    check_counts(top, None)
    check_contrast(run.model.config)
    scored, place = _scored(run, head, query)
    first = _key(run, scored, place, key)
    other = (
        _next(scored.pattern[place], first, place) if over is None else run.position(over, "over")
    )
    keys = check_apart(first, other)
    check_key(scored, place, other)
    found = _expanded(scored, place, keys, top, budget, report)
    return _tabulated(run, scored, place, keys, found)


def why_each(
    run: Run, head: Head, query: int, keys: Sequence[int], *, top: int, budget: Budget | None
) -> Iterator[ScoreTable]:
    """Expand what a head gives each of some keys over each other; what they share is found once.

    Where the model caps its scores, each key's own score.
    """
    scored, place = _scored(run, head, query)
    capped = run.model.config.attn_scores_soft_cap is not None
    for some in combinations(keys, 1 if capped or len(keys) < 2 else 2):
        found = expand_score(scored, place, some, top=top, budget=budget)
        yield _tabulated(run, scored, place, some, found)


def _expanded(
    scored: Scored,
    place: int,
    keys: tuple[int, ...],
    top: int,
    budget: Budget | None,
    report: Callable[[Progress], None] | None,
) -> ScorePairs:
    heard = listener(report, Progress.words)
    return expand_score(scored, place, keys, top=top, budget=budget, report=heard)


def _scored(run: Run, head: Head | str, query: int | None) -> tuple[Scored, int]:
    """Give the head's scores, and the position of the query."""
    place, found = run.position(query, "query"), parse_head(run.model.config, head)
    return Scored.of(run.model.weights, run.model.config, run.dense, run.frozen, found), place


def _key(run: Run, scored: Scored, query: int, key: int | None) -> int:
    """Give a key that the query sees, by default the one that gets most attention."""
    row = scored.pattern[query]
    if key is None and not row.any():
        wanted = "a position that sees some key"
        raise PathExpandError(f"position {query}", wanted=wanted, got="one that is masked")
    place = int(np.argmax(row)) if key is None else run.position(key, "key")
    check_key(scored, query, place)
    return place


def _next(row: npt.NDArray[np.float64], key: int, query: int) -> int:
    """Give the key that gets most attention beside a given one."""
    others = np.array([0.0 if n == key else weight for n, weight in enumerate(row)])
    if not others.any():
        wanted = "a position that sees two keys"
        raise PathExpandError(f"position {query}", wanted=wanted, got="no other key than this one")
    return int(np.argmax(others))


def _tabulated(
    run: Run, scored: Scored, query: int, keys: tuple[int, ...], found: ScorePairs
) -> ScoreTable:
    key, over = keys[0], keys[1] if len(keys) > 1 else None
    alibi = scored.alibi(query, keys)
    dense = found.dense + (alibi or 0.0)
    summed = found.listed + found.remainder + (alibi or 0.0)
    pattern = scored.pattern[query]
    return ScoreTable(
        model=run.model.config.model_name,
        tokens=run.source_tokens,
        head=scored.head.label,
        query=query,
        key=key,
        over=over,
        attention=float(pattern[key]),
        attention_over=None if over is None else float(pattern[over]),
        dense=dense,
        rows=_rows(found, dense),
        listed=found.listed,
        remainder=found.remainder,
        remainder_count=found.remainder_count,
        alibi=alibi,
        gap=dense - summed,
        gap_bound=2 * found.rounding,
        pair_count=found.pair_count,
        certified=found.found.certified,
        bound=finite(found.found.bound),
        visited=found.found.visited,
        compositions=tuple(
            CompositionSum(name, value, count)
            for name, (value, count) in found.compositions.items()
        ),
        soft_cap=run.model.config.attn_scores_soft_cap,
    )


def _rows(found: ScorePairs, dense: float) -> tuple[ScoreRow, ...]:
    rows, running = [], 0.0
    for number, (pair, value) in enumerate(found.found.pairs, start=1):
        running += value
        rows.append(
            ScoreRow(
                rank=number,
                query_path=str(pair.query),
                key_path=str(pair.key),
                composition=pair.composition,
                value=value,
                share=ratio(value, dense),
                running=running,
                certain=abs(value) >= found.found.bound * (1 - 1e-9),
            )
        )
    return tuple(rows)
