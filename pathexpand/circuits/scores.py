"""Attention scores as sums over pairs of paths, ranked and closed; and why one key and not another.

log A(i, j) − log A(i, j′) = score(i, j) − score(i, j′) whatever the softmax is taken over, so the
pairs of a contrast are an exact signed answer to why a head looks at j rather than at j′.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.legs import Leg, legs
from pathexpand.circuits.pairs import FoundPairs, Pair, search_pairs
from pathexpand.engine.remainder import remainder
from pathexpand.engine.rounding import TINY, dense_rounding, gamma
from pathexpand.engine.search import Budget, Progress
from pathexpand.engine.total import functionals
from pathexpand.engine.value import Readout
from pathexpand.errors import PathExpandError, PromptError
from pathexpand.frozen import FrozenSum
from pathexpand.frozen.norm import size_through
from pathexpand.model.config import Config
from pathexpand.model.forward import Forward
from pathexpand.model.scores import LayerScores, layer_scores
from pathexpand.model.weights import Weights
from pathexpand.symbolic import Head, Path

Array = npt.NDArray[np.float64]
COMPOSITIONS = ("none", "Q", "K", "both")


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """One head on one row of a run, its scores worked out by the dense pass.

    `memory` is what its legs know in common.
    """

    weights: Weights
    config: Config
    run: Forward
    frozen: FrozenSum
    head: Head
    held: LayerScores
    row: int = 0
    memory: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, weights: Weights, config: Config, run: Forward, frozen: FrozenSum, head: Head
    ) -> Scored:
        """Take a run of one prompt."""
        held = layer_scores(weights, config, run, head.layer)
        return cls(weights, config, run, frozen, head, held)

    @property
    def pattern(self) -> Array:
        """The head's attention pattern: (query, key)."""
        out: Array = self.run.layers[self.head.layer].pattern[self.row, self.head.index]
        return out

    def sees(self, query: int, key: int) -> bool:
        """Say whether a query may look at a key at all."""
        places, window = self.run.places[self.row], self.config.window[self.head.layer]
        ahead = int(places[key] - places[query])
        masked = not bool(self.run.mask[self.row, key])
        future = self.config.attention_dir == "causal" and key > query
        return not (masked or future or (window is not None and abs(ahead) >= window))

    def legs(self, query: int, keys: tuple[int, ...]) -> tuple[Leg, Leg]:
        """Give the two legs of a score, or of one less another."""
        return legs(
            self.weights,
            self.config,
            self.run,
            self.frozen,
            self.held,
            self.head,
            query,
            keys,
            row=self.row,
            memory=self.memory,
        )

    def dense(self, query: int, keys: tuple[int, ...]) -> float:
        """Give the score by the dense pass, before a soft cap; or one less another."""
        return _signed(self.held.scores[self.head.index, query], keys)

    def alibi(self, query: int, keys: tuple[int, ...]) -> float | None:
        """Give what ALiBi adds to the score, which is no pair of paths; None without it."""
        alibi = self.held.alibi
        return None if alibi is None else _signed(alibi[self.head.index, query], keys)


def _signed(row: Array, keys: tuple[int, ...]) -> float:
    return float(row[keys[0]] - (row[keys[1]] if len(keys) > 1 else 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class ScorePairs:
    """The pairs of a score, closed: listed + remainder = dense but for the rounding.

    `compositions` gives the sum over the pairs of each kind of composition and their number.
    """

    found: FoundPairs
    listed: float
    remainder: float
    remainder_count: int
    pair_count: int
    compositions: dict[str, tuple[float, int]]
    dense: float
    rounding: float


def expand_score(
    scored: Scored,
    query: int,
    keys: tuple[int, ...],
    *,
    top: int,
    budget: Budget | None = None,
    report: Callable[[Progress], None] | None = None,
) -> ScorePairs:
    """Expand a score (or with two keys, the first's less the second's) into pairs of paths."""
    query_leg, key_leg = scored.legs(query, keys)
    found = search_pairs(query_leg, key_leg, scored.head, top=top, budget=budget, report=report)
    rest = _Rest(scored, query_leg, key_leg, [pair for pair, _ in found.pairs])
    counts = query_leg.frozen.network().count(), key_leg.frozen.network().count()
    dense = scored.dense(query, keys)
    listed = float(sum(value for _, value in found.pairs))
    size = sum(abs(value) for _, value in found.pairs) + abs(dense) + abs(rest.value)
    return ScorePairs(
        found=found,
        listed=listed,
        remainder=rest.value,
        remainder_count=counts[0] * counts[1] - len(found.pairs),
        pair_count=counts[0] * counts[1],
        compositions=compositions(query_leg, key_leg),
        dense=dense,
        rounding=rest.rounding + gamma(len(found.pairs) + 4) * size,
    )


def compositions(query: Leg, key: Leg) -> dict[str, tuple[float, int]]:
    """Sum all pairs of each kind of composition, none of them listed, and count them."""
    total, direct = (query.total(), key.total()), (query.direct(), key.direct())
    counts = [
        (leg.frozen.network().count_by_order()[0], leg.frozen.network().count())
        for leg in (query, key)
    ]
    parts = [
        {False: (first, orders[0]), True: (whole - first, orders[1] - orders[0])}
        for first, whole, orders in zip(direct, total, counts, strict=True)
    ]
    found = {}
    for name, (in_query, in_key) in zip(
        COMPOSITIONS, ((False, False), (True, False), (False, True), (True, True)), strict=True
    ):
        (left, some), (right, others) = parts[0][in_query], parts[1][in_key]
        # Of no pairs the sum is nothing, not what rounding makes of it.
        found[name] = (float(left @ right) if some * others else 0.0, some * others)
    return found


class _Rest:
    """The pairs that are not listed, summed by their own route: never "dense minus listed".

    Pairs of a listed query path are what remains of the key's paths read along that path's vector;
    all other pairs are what remains of the query's paths read along the key's total.
    """

    def __init__(self, scored: Scored, query: Leg, key: Leg, pairs: list[Pair]) -> None:
        self.scored, self.query, self.key = scored, query, key
        by_query: dict[Path, list[Path]] = {}
        for pair in pairs:
            by_query.setdefault(pair.query, []).append(pair.key)
        total, whole = key.total(), query.total()
        rest = remainder(query.frozen, query.readout(total), by_query, measured=True)
        self.value, self.rounding = float(rest.value), rest.rounding
        left = whole
        for path, keys in by_query.items():
            vector = query.vector(path)
            left = left - vector
            part = remainder(key.frozen, key.readout(vector), keys, measured=True)
            self.value += float(part.value)
            self.rounding += part.rounding
            size, steps = path_size(query, path)
            self.rounding += gamma(steps) * float(size @ abs(total))
        self.rounding += self._dense(query, query.readout(total))
        self.rounding += self._dense(key, key.readout(whole))
        self.rounding += self._dense(key, key.readout(left))
        self.rounding += self._reads()

    def _dense(self, leg: Leg, readout: Readout) -> float:
        """Bound the rounding of the stream before the head, as a readout sees it."""
        scored, positions = self.scored, self.scored.frozen.positions
        reads = [
            np.concatenate([read, np.zeros((positions - len(read), read.shape[1]))])
            for read in functionals(leg.frozen, readout)
        ]
        return dense_rounding(
            scored.weights,
            scored.run,
            scored.frozen,
            reads,
            row=scored.row,
            layers=scored.head.layer,
        )

    def _reads(self) -> float:
        """Bound the rounding of queries, keys and their product, here and in the dense pass."""
        d_model, d_head = self.query.ends[0].read.shape
        (own,) = self.query.ends
        size = sum(float(own.size @ end.size) for end in self.key.ends)
        # A norm before, W, a norm of queries or keys, the turn, the product, the scale.
        return 2 * gamma(2 * (2 * d_model + 2 * d_head) + 48) * size


def path_size(leg: Leg, path: Path) -> tuple[Array, int]:
    """Bound what is met on the way of a path to a leg's end: (d_head,), and the roundings there."""
    if path.source == leg.frozen.constant:
        return abs(leg.constant), 1
    source = next(each for each in leg.frozen.sources if each.label == path.source)
    stream, boundary, steps = abs(source.values) + TINY, source.boundary, 4
    stops = [leg.frozen.places[component] for component in path.components]
    for stage, group, index in [*stops, (leg.frozen.depth, None, 0)]:
        for each in leg.frozen.stages[boundary:stage]:
            if each.carry is not None:
                stream = size_through(each.carry.norm, stream, abs(each.carry.scale))
                steps += stream.shape[1] + 8
        if group is not None:
            stream = abs(group.only(index)).write(stream, 0)
            steps += group.steps
        boundary = stage + 1
    sizes = [stream[end.position] @ abs(end.read) for end in leg.ends]
    return np.sum(sizes, axis=0) + TINY, steps + stream.shape[1]


def check_key(scored: Scored, query: int, key: int) -> None:
    """Refuse a key that the query does not see."""
    if not scored.sees(query, key):
        raise PromptError(
            f"key {key}",
            wanted=f"a position that {scored.head} sees from {query}",
            got="one that its mask hides",
        )


def check_apart(key: int, over: int) -> tuple[int, int]:
    """Give the keys of a contrast; refuse one key twice."""
    if key == over:
        raise PathExpandError(
            "key and over", wanted="two positions", got=f"position {key} for both"
        )
    return key, over


def check_contrast(config: Config) -> None:
    """Refuse a contrast where the softmax does not see the scores as they are."""
    cap = config.attn_scores_soft_cap
    if cap is not None:
        raise PathExpandError(
            "why one key over another",
            wanted="scores that go into the softmax as they are",
            got=f"a soft cap of {cap:g} on them",
            remedy="expand the scores of both keys, before the cap",
        )
