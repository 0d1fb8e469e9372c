"""Paths drawn at random, each as often as it matters: with probability c² / Σ c².

A *named* path says at which position each of its parts stands: `embed@3 > L0H1@5 > L1H2@9` starts
at the token of position 3, is read there by L0H1 at position 5, and there by L1H2 at position 9.
Its contribution is one product, c = A(9, 5) A(5, 3) · x W_V W_O … W_U, and a path's value is the
sum over its namings. For named paths the energy of a subtree is exact, and so a path can be drawn
step by step from the readout back: at each step, stop at a source or go on with a head and a key,
or with a neuron where it stands, each with its part of the energy. What head h and key j have to
offer a suffix with vector w is yᵀ K^h[j] y, with y = W_O^h w and the recursion of
`pathexpand.engine.energy`, A² for weights.

All draws whose components agree so far are carried on together, whatever their positions: the
vector that they read with is the same. (Behind an MLP taken whole it is not, so those cannot be
drawn through.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.energy import Seen, grow, source_seed
from pathexpand.engine.value import Readout
from pathexpand.engine.ways import Way, ways
from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenSource, FrozenSum, HeadGroup, MlpGroup, NeuronGroup
from pathexpand.symbolic import Component, Path
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
Word = tuple[Component, ...]
# What rounding can have taken from an energy, as a part of |K| |y|²: each key gets so much more, so
# that no path is out of reach. The probabilities are those really used: nothing is biased.
_REACH = 2.0**-44


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A path with the position of each part: of the source, then of each component where it writes.

    Raises `PathExpandError` for another number of positions, or one below 0.

    >>> print(NamedPath(Path.parse("embed > L0H1 > L1H2"), (3, 5, 9)))
    embed@3 > L0H1@5 > L1H2@9
    """

    path: Path
    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse a path with parts that have no position."""
        if len(self.positions) != self.path.order + 1 or min(self.positions) < 0:
            raise PathExpandError(
                f"path {self.path}",
                wanted=f"{self.path.order + 1} positions from 0",
                got=str(self.positions),
            )

    def __str__(self) -> str:
        """Write each part with its position."""
        parts = (self.path.source, *(head.label for head in self.path.components))
        return " > ".join(
            f"{part}@{place}" for part, place in zip(parts, self.positions, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """An unbiased estimate of a sum over all named paths, and how far it may be off.

    `standard_error` is worked out from the sample itself (None for a single draw).
    `effective_size` is (Σ|t|)² / Σt² for the terms t that were averaged: how many equal terms would
    tell as much. Where it is small, one or two draws made the estimate, and neither number is to
    be trusted.

    >>> Estimate(12.5, 0.5, 800.0).value
    12.5
    """

    value: float
    standard_error: float | None
    effective_size: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sample:
    """Named paths drawn with probability proportional to contribution².

    `contributions` and `probabilities` (draw,) belong to `paths`, which repeat as they were drawn.
    `energy` is Σ contribution² over all `named_count` named paths of the query. The probabilities
    are those that the draws were really made with, c² / energy but for rounding, so that no
    rounding biases an estimate. A draw that ends, by rounding alone, where nothing contributes
    names no path; it counts among the `draws`, as 0.

    >>> from pathexpand.api import load
    >>> sample = load("two-layer").run("to be or not to").sample(500, seed=1)
    >>> bool(abs(sample.probabilities - sample.contributions**2 / sample.energy).max() < 1e-9)
    True
    """

    paths: tuple[NamedPath, ...]
    contributions: Array
    probabilities: Array
    draws: int
    energy: float
    named_count: int
    seed: int

    def __len__(self) -> int:
        """Give the number of paths drawn."""
        return len(self.paths)

    def __repr__(self) -> str:
        """Say how many were drawn, out of how many."""
        paths = f"{self.draws:,} draws of {self.named_count:,} paths with named positions"
        return f"Sample({paths}, energy {self.energy:.6g}, seed {self.seed})"

    def estimate(self, function: Callable[[NamedPath, float], float]) -> Estimate:
        """Estimate Σ function(path, contribution) over all named paths of the query.

        The estimate is the mean of f / probability, that is of f energy / c². It is unbiased for
        every f that is 0 where c is 0: such paths are never drawn. Its variance for one draw is
        energy Σ (f/c)² - (Σ f)². It is small for an f that shrinks like c² or faster (shares of
        the energy: by head, by order, by source). For f = |c| it is energy · N - (Σ|c|)² with N
        named paths: finite, but with many paths so heavy in the tail that a sample sees none of
        the small ones, and then the estimate is mostly too low and the standard error far too
        small. For f = 1, a count, it is energy Σ 1/c²: of no use at all. `named_count` is exact;
        use it.

        >>> from pathexpand.api import load
        >>> sample = load("two-layer").run("to be or not to").sample(500, seed=1)
        >>> heads = sample.estimate(lambda named, c: c**2 * (named.path.order > 0))
        >>> heads.value < sample.energy, heads.standard_error < 0.05 * sample.energy
        (True, True)
        """
        values = [
            float(function(path, float(c)))
            for path, c in zip(self.paths, self.contributions, strict=True)
        ]
        return self._mean(np.array(values, dtype=np.float64) / self.probabilities)

    def absolute(self) -> Estimate:
        """Estimate Σ |contribution| over all named paths: how much cancels on the way to a logit.

        The terms are energy / |c|, heavy in the tail: read what `estimate` says of f = |c|.
        Whatever the sample says, the sum is at most √(N · energy) (`absolute_bound`), and the
        true standard error at most that over √draws.

        >>> from pathexpand.api import load
        >>> sample = load("two-layer").run("to be or not to").sample(500, seed=1)
        >>> sample.absolute().value < sample.absolute_bound
        True
        """
        return self._mean(abs(self.contributions) / self.probabilities)

    @property
    def absolute_bound(self) -> float:
        """√(N · energy), which Σ |contribution| cannot exceed, by the Cauchy-Schwarz inequality."""
        return float(np.sqrt(float(self.named_count)) * np.sqrt(self.energy))

    @property
    def effective_size(self) -> float:
        """The effective sample size of the estimate of Σ |contribution|."""
        return self.absolute().effective_size

    def _mean(self, terms: Array) -> Estimate:
        """Give the mean of the terms (path,), with a 0 for each draw that names no path."""
        mean = float(terms.sum()) / self.draws
        error = None
        if self.draws > 1:
            missing = self.draws - len(terms)
            spread = float(((terms - mean) ** 2).sum()) + missing * mean**2
            error = float(np.sqrt(spread / (self.draws - 1) / self.draws))
        squares = float((terms**2).sum())
        size = float(abs(terms).sum()) ** 2 / squares if squares else 0.0
        return Estimate(mean, error, size)


def sample_paths(
    frozen: FrozenSum, readout: Readout, query: Query, draws: int, *, seed: int
) -> Sample:
    """Draw named paths of a query with probability proportional to contribution².

    The same arguments give the same draws. Raises `PathExpandError` where every contribution is 0.
    """
    near = frozen.until(readout.position)
    walk = _Walk(near, readout, query, np.random.default_rng(seed), draws)
    energy = walk.energy()
    if not np.isfinite(energy):
        raise PathExpandError(
            "energy",
            wanted="a finite number",
            got=str(energy),
            remedy="weights this large overflow",
        )
    if energy == 0:
        raise PathExpandError(
            f"query {query.text!r}", wanted="a path that contributes something", got="none"
        )
    walk.run()
    ends = sorted(walk.ends, key=lambda end: end[0])
    return Sample(
        paths=tuple(named for _, named, _, _ in ends),
        contributions=np.array([contribution for _, _, contribution, _ in ends]),
        probabilities=np.array([probability for _, _, _, probability in ends]),
        draws=draws,
        energy=energy,
        named_count=named_count(near, readout, query),
        seed=seed,
    )


def named_energy(frozen: FrozenSum, readout: Readout, query: Query) -> float:
    """Give Σ contribution² over all named paths of a query, without drawing any."""
    near = frozen.until(readout.position)
    return _Walk(near, readout, query, np.random.default_rng(0), 0).energy()


def named_count(frozen: FrozenSum, readout: Readout, query: Query) -> int:
    """Count the named paths of a query: those whose every pattern entry is other than 0.

    One pass back from the readout counts, for each query state and position, the ways to get there.
    """
    found = np.zeros((query.states, frozen.positions), dtype=object)
    found[query.start, readout.position] = 1
    total = int(frozen.constant in query.stops(query.start))
    for boundary in reversed(range(frozen.depth + 1)):
        for source in (each for each in frozen.sources if each.boundary == boundary):
            ending = [q for q in range(query.states) if source.label in query.stops(q)]
            total += int(found[ending].sum())
        if boundary:
            found = _counts_through(frozen, query, boundary - 1, found)
    return total


def _counts_through(frozen: FrozenSum, query: Query, stage: int, counts: Array) -> Array:
    """Carry counts (state, position) back through a stage: past it, or through a component."""
    out = counts.copy()
    for way in ways(frozen, query, stage):
        group = way.group
        which = range(len(group.components)) if way.which is None else way.which
        if isinstance(group, HeadGroup):
            for head in which:
                open_keys = (group.patterns[head] != 0).astype(int).astype(object)  # (query, key)
                out[way.after] += counts[way.before] @ open_keys
        elif isinstance(group, NeuronGroup):
            alive = (group.gates[:, list(which)] != 0).sum(axis=1).astype(object)  # (position,)
            out[way.after] += counts[way.before] * alive
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Draws that agree in their components so far.

    `vector` (d_model,) is what they read the stream at `boundary` with; for each draw, `draws` is
    its number, `trail` (draw, order + 1) its positions from early to late, `scale` the product of
    its pattern entries and gates, `chance` the probability of its choices.
    """

    word: Word
    state: int
    boundary: int
    vector: Array
    draws: Array
    trail: Array
    scale: Array
    chance: Array

    @property
    def places(self) -> Array:
        """Where the draws stand now: (draw,)."""
        places: Array = self.trail[:, 0]
        return places


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """A way on: `energies` (position,) of all that begins with it, seen from each position.

    A source gives its `amounts` (position,). A head, or all neurons of a way, give the way, the
    `vector` that reads behind it, the `factor` (position,) of norms passed on the way there, and
    `offers`: of a head (query, key), of neurons (position, neuron).
    """

    energies: Array
    source: str = ""
    amounts: Array | None = None
    way: Way | None = None
    index: int = 0
    stage: int = 0
    vector: Array | None = None
    factor: Array | None = None
    offers: Array | None = None


class _Walk:
    """All draws on their way from the readout back to their sources."""

    def __init__(
        self,
        frozen: FrozenSum,
        readout: Readout,
        query: Query,
        rng: np.random.Generator,
        draws: int,
    ) -> None:
        self.frozen, self.readout, self.query, self.rng = frozen, readout, query, rng
        self.draws = draws
        groups = [group for stage in frozen.stages for group in stage.groups]
        if any(isinstance(group, MlpGroup) for group in groups):
            raise PathExpandError(
                "sample",
                wanted="MLPs taken as sources or neuron by neuron",
                got="MLPs taken whole",
                remedy='use mlp="neurons"',
            )
        self.seen = list(grow(frozen, query, source_seed(frozen, query), named=True))
        self.waiting: dict[int, list[_Group]] = defaultdict(list)
        self.ends: list[tuple[int, NamedPath, float, float]] = []

    def energy(self) -> float:
        """Give the energy of all paths."""
        place = self.readout.position
        choices = self._choices(self._root(), reach=0.0)
        return float(sum(choice.energies[place] for choice in choices))

    def run(self) -> None:
        """Carry all draws to their ends."""
        depth = self.frozen.depth
        self.waiting[depth].append(self._root())
        for boundary in reversed(range(depth + 1)):
            for group in sorted(self.waiting.pop(boundary, ()), key=lambda each: each.word):
                self._part(group, self._choices(group, reach=_REACH))

    def _root(self) -> _Group:
        return _Group(
            word=(),
            state=self.query.start,
            boundary=self.frozen.depth,
            vector=np.asarray(self.readout.direction, dtype=np.float64),
            draws=np.arange(self.draws),
            trail=np.full((self.draws, 1), self.readout.position),
            scale=np.ones(self.draws),
            chance=np.ones(self.draws),
        )

    def _choices(self, group: _Group, *, reach: float) -> list[_Choice]:
        """List the ways on from a group: every source, then every component of earlier stages."""
        stops = self.query.stops(group.state)
        at = self._carried(group)
        found = [
            self._stop(source, *at[source.boundary])
            for source in self.frozen.sources
            if source.boundary <= group.boundary and source.label in stops
        ]
        constant = self.frozen.constant
        if not group.word and constant is not None and constant in stops:
            amounts = np.zeros(self.frozen.positions)
            amounts[self.readout.position] = float(self.readout.constant)
            found.append(_Choice(amounts**2, source=constant, amounts=amounts))
        for stage in reversed(range(group.boundary)):
            for way in ways(self.frozen, self.query, stage):
                if way.before == group.state:
                    found += self._through(stage, way, *at[stage + 1], reach)
        return found

    def _carried(self, group: _Group) -> dict[int, tuple[Array, Array]]:
        """Give a group's vector at each earlier boundary, and the factors of norms passed."""
        vector, factor = group.vector, np.ones(self.frozen.positions)
        at = {group.boundary: (vector, factor)}
        for boundary in reversed(range(group.boundary)):
            carry = self.frozen.stages[boundary].carry
            if carry is not None:
                rows, vectors = carry.move(factor[None], vector[None])
                vector, factor = vectors[0], rows[0]
            at[boundary] = (vector, factor)
        return at

    def _stop(self, source: FrozenSource, vector: Array, factor: Array) -> _Choice:
        amounts = (source.values @ vector) * factor  # (position,)
        return _Choice(amounts**2, source=source.label, amounts=amounts)

    def _through(
        self, stage: int, way: Way, vector: Array, factor: Array, reach: float
    ) -> Iterator[_Choice]:
        """Yield each head of a way, or all its neurons, as a way on."""
        seen, group = self.seen[stage][way.number][way.after], way.group
        if seen is None:
            return
        which = range(len(group.components)) if way.which is None else way.which
        if isinstance(group, HeadGroup):
            for index in which:
                forms = _forms(seen, index, group.W_O[index] @ vector, reach)  # (key,)
                offers = (factor[:, None] * group.patterns[index]) ** 2 * forms  # (query, key)
                yield _Choice(
                    offers.sum(axis=1), "", None, way, index, stage, vector, factor, offers
                )
        elif isinstance(group, NeuronGroup):
            picked = list(which)
            read = group.W_out[picked] @ vector  # (neuron,)
            gates = factor[:, None] * group.gates[:, picked]  # (position, neuron)
            offers = gates**2 * (read**2 * seen.kernel[picked].T)
            yield _Choice(offers.sum(axis=1), "", None, way, 0, stage, vector, factor, offers)

    def _part(self, group: _Group, choices: list[_Choice]) -> None:
        """Let each draw of a group choose its way on."""
        if not choices:
            return  # only rounding can lead here: these draws name no path
        offers = np.stack([choice.energies for choice in choices])[:, group.places].T
        chosen, chance = _choose(self.rng, offers)  # (draw,)
        for number in np.unique(chosen[chance > 0]):
            some = np.flatnonzero((chosen == number) & (chance > 0))
            part = _taken(group, some, group.chance[some] * chance[some])
            choice = choices[number]
            if choice.way is None:
                self._end(part, choice)
            elif isinstance(choice.way.group, HeadGroup):
                self._through_head(part, choice, choice.way.group)
            elif isinstance(choice.way.group, NeuronGroup):
                self._through_neurons(part, choice, choice.way.group)

    def _end(self, group: _Group, choice: _Choice) -> None:
        assert choice.amounts is not None  # a source gives amounts
        values = group.scale * choice.amounts[group.places]
        path = Path(choice.source, group.word)
        for draw, trail, value, chance in zip(
            group.draws, group.trail, values, group.chance, strict=True
        ):
            named = NamedPath(path, tuple(int(place) for place in trail))
            self.ends.append((int(draw), named, float(value), float(chance)))

    def _through_head(self, group: _Group, choice: _Choice, heads: HeadGroup) -> None:
        """Let draws that go on with one head choose a key, and wait at that head's stage."""
        way, factor, vector, offers = choice.way, choice.factor, choice.vector, choice.offers
        assert way is not None and factor is not None and vector is not None and offers is not None
        keys, chance = _choose(self.rng, offers[group.places])
        some = np.flatnonzero(chance > 0)
        keys, part = keys[some], _taken(group, some, group.chance[some] * chance[some])
        head, places = choice.index, part.places
        self.waiting[choice.stage].append(
            _Group(
                word=(heads.components[head], *part.word),
                state=way.after,
                boundary=choice.stage,
                vector=heads.W_V[head] @ (heads.W_O[head] @ vector),
                draws=part.draws,
                trail=np.concatenate([keys[:, None], part.trail], axis=1),
                scale=part.scale * factor[places] * heads.patterns[head][places, keys],
                chance=part.chance,
            )
        )

    def _through_neurons(self, group: _Group, choice: _Choice, neurons: NeuronGroup) -> None:
        """Let draws that go on with some neuron choose which, and wait at its stage."""
        way, factor, vector, offers = choice.way, choice.factor, choice.vector, choice.offers
        assert way is not None and factor is not None and vector is not None and offers is not None
        picks, chance = _choose(self.rng, offers[group.places])
        which = np.arange(len(neurons.components)) if way.which is None else np.array(way.which)
        for pick in np.unique(picks[chance > 0]):
            some = np.flatnonzero((picks == pick) & (chance > 0))
            part, index = _taken(group, some, group.chance[some] * chance[some]), int(which[pick])
            places = part.places
            self.waiting[choice.stage].append(
                _Group(
                    word=(neurons.components[index], *part.word),
                    state=way.after,
                    boundary=choice.stage,
                    vector=neurons.W_in[:, index] * (neurons.W_out[index] @ vector),
                    draws=part.draws,
                    trail=np.concatenate([places[:, None], part.trail], axis=1),
                    scale=part.scale * factor[places] * neurons.gates[places, index],
                    chance=part.chance,
                )
            )


def _forms(seen: Seen, head: int, inner: Array, reach: float) -> Array:
    """Give what each key has to offer through a head: (key,)."""
    half = seen.kernel[head] @ inner  # (key, d_head)
    forms = half @ inner
    out: Array = np.maximum(forms, 0.0) + reach * seen.size[head] * float(inner @ inner)
    return out


def _choose(rng: np.random.Generator, offers: Array) -> tuple[Array, Array]:
    """Choose a column of each row of (row, option), with its part of the row for probability.

    A row of zeros has no choice to offer: its probability is 0.
    """
    sums = np.cumsum(offers, axis=1)
    total = sums[:, -1]
    # Below the total, so that no rounding leads past the last option that has a part.
    mark = np.minimum(rng.random(len(offers)) * total, np.nextafter(total, 0))
    chosen = np.minimum((sums <= mark[:, None]).sum(axis=1), offers.shape[1] - 1)
    part = offers[np.arange(len(offers)), chosen]
    return chosen, part / np.where(total == 0, 1.0, total)


def _taken(group: _Group, some: Array, chance: Array) -> _Group:
    return _Group(
        group.word,
        group.state,
        group.boundary,
        group.vector,
        group.draws[some],
        group.trail[some],
        group.scale[some],
        chance,
    )
