"""Attention scores: their pairs of paths add up, and the ranked ones are the largest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.circuits.legs import Leg
from pathexpand.circuits.pairs import Pair
from pathexpand.circuits.scores import Scored, path_size
from pathexpand.engine.rounding import gamma
from pathexpand.engine.search import Budget
from pathexpand.laws.cut import cut
from pathexpand.laws.result import Deviation, LawResult, judged, not_applicable, unequal
from pathexpand.symbolic import Head, Path

Array = npt.NDArray[Any]
_MOST_HEADS = 12  # whose scores are expanded
_MOST_PAIRS = 20_000  # that are worked out one by one
_NODES = 50  # suffixes that are looked at for each head


def check_scores(run: Run, *, position: int | None = None, top: int = 5) -> LawResult:
    """Check that pairs of paths add up to the scores of the dense pass, and to log-attention.

    Some heads of every layer are looked at, at one query position and the two keys that get most
    attention there. Ranked pairs are compared with every pair of a model cut to some of its heads.

    >>> from pathexpand import api
    >>> check_scores(api.load("two-layer").run("to be or not to")).holds
    True
    """
    place = run.position(position)
    heads = sorted(each for each in run.frozen.places if isinstance(each, Head))
    if not heads:
        return not_applicable("attention scores", "no heads")
    some = heads[:: -(-len(heads) // _MOST_HEADS)]
    deviations = [each for head in some for each in _closes(run, head, place, top)]
    small = cut(run)
    deviations += _ranked(small.run, place, top)
    return judged("attention scores", deviations, f"{len(some)} heads, position {place}")


def _closes(run: Run, head: Head, place: int, top: int) -> Iterator[Deviation]:
    row = run.patterns[head.layer][head.index, place]
    keys = [int(key) for key in np.argsort(-row, kind="stable")[:2] if row[key] > 0]
    if not keys:
        return
    budget = Budget(nodes=_NODES)  # sums close however far the ranking came
    table = run.scores(head, place, keys[0], top=top, budget=budget)
    alone = _dense(run, head, place)
    total = sum(each.value for each in table.compositions) + (table.alibi or 0.0)
    yield Deviation(abs(alone[keys[0]] - table.sum), table.gap_bound, f"sum of {head}")
    yield Deviation(abs(alone[keys[0]] - total), table.gap_bound, f"compositions of {head}")
    yield unequal(sum(each.pairs for each in table.compositions), table.pair_count, "pairs")
    if len(keys) < 2 or run.model.config.attn_scores_soft_cap is not None:
        return
    why = run.why(head, place, keys[0], over=keys[1], top=top, budget=budget)
    logs = np.log(row[keys[0]]) - np.log(row[keys[1]])
    # The softmax rounds each weight by a few units of itself, and its exponent by units of what
    # goes into it: the scores and their maximum.
    lost = gamma(16) * (4 + 2 * float(abs(alone).max()))
    yield Deviation(abs(why.sum - logs), why.gap_bound + lost, f"log-attention of {head}")


def _dense(run: Run, head: Head, place: int) -> Array:
    """Give the dense scores of a query, ALiBi included: (key,)."""
    scored = Scored.of(run.model.weights, run.model.config, run.dense, run.frozen, head)
    row: Array = scored.held.scores[head.index, place]
    return row if scored.held.alibi is None else row + scored.held.alibi[head.index, place]


def _ranked(run: Run, place: int, top: int) -> Iterator[Deviation]:
    """Compare a ranking with every pair, each side worked forward by itself."""
    head = max(each for each in run.frozen.places if isinstance(each, Head))
    place = min(place, len(run.tokens) - 1)
    row = run.patterns[head.layer][head.index, place]
    if not row.any():
        return
    scored = Scored.of(run.model.weights, run.model.config, run.dense, run.frozen, head)
    key = int(np.argmax(row))
    legs = scored.legs(place, (key,))
    counts = [leg.frozen.network().count() for leg in legs]
    if counts[0] * counts[1] > _MOST_PAIRS:
        return
    table = run.scores(head, place, key, top=top)
    known = _every_pair(*legs)
    sizes = sorted((abs(value) for value, _ in known.values()), reverse=True)
    lost = max(lost for _, lost in known.values())
    for number, found in enumerate(table):
        pair = Pair(Path.parse(found.query_path), Path.parse(found.key_path))
        value, own = known.pop(pair)
        yield Deviation(abs(found.value - value), 2 * own, f"value of {pair.query} | {pair.key}")
        yield Deviation(abs(abs(found.value) - sizes[number]), 2 * lost, f"rank {number + 1}")
    if table.bound is not None:
        most = max((abs(value) for value, _ in known.values()), default=0.0)
        yield Deviation(max(most - table.bound, 0.0), 2 * lost, "bound on the unlisted")
    yield unequal(table.certified, True, "certified")


def _every_pair(query: Leg, key: Leg) -> dict[Pair, tuple[float, float]]:
    """Give each pair's value and what rounding can have done to it."""
    sides = []
    for leg in (query, key):
        paths = list(leg.frozen.network().paths())
        sides.append([(path, leg.vector(path), *path_size(leg, path)) for path in paths])
    found = {}
    for (p, u, u_size, u_steps), (q, v, v_size, v_steps) in product(*sides):
        lost = gamma(u_steps + v_steps + len(u) + 2) * float(u_size @ v_size)
        found[Pair(p, q)] = float(u @ v), lost
    return found
