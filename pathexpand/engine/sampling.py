"""Paths drawn at random, each as often as it matters: with probability c² / Σ c².

A *named* path says at which position each of its parts stands: `embed@3 > L0H1@5 > L1H2@9` starts
at the token of position 3, is read there by L0H1 at position 5, and there by L1H2 at position 9.
Its contribution is one product, c = A(9, 5) A(5, 3) · x W_V W_O … W_U, and a path's value is the
sum over its namings. For named paths the energy of a subtree is exact, and so a path can be drawn
step by step from the readout back: at each step, stop at a source or go on with a head and a key,
each with its part of the energy. What head h and key j have to offer a suffix with vector w is
yᵀ K^h[j] y, with y = W_O^h w and the recursion of `pathexpand.engine.energy`, A² for weights; here
in float64 and without that module's allowance for rounding, as nothing is bounded.

All draws whose heads agree so far are carried on together, whatever their positions: the vector
that they read with is the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.value import Readout
from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenLayer, FrozenSource, FrozenSum
from pathexpand.symbolic import Head, Path
from pathexpand.symbolic.query import Query

Array = npt.NDArray[Any]
Word = tuple[Head, ...]
# What rounding can have taken from an energy, as a part of |K| |y|²: each key gets so much more, so
# that no path is out of reach. The probabilities are those really used: nothing is biased.
_REACH = 2.0**-44


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A path with the position of each part: of the source, then of each head where it writes.

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


@dataclass(frozen=True, slots=True, eq=False)
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
    ways = np.zeros((query.states, frozen.positions), dtype=object)
    ways[query.start, readout.position] = 1
    total = int(frozen.has_unembed_bias and "b_U" in query.stops(query.start))
    for boundary in reversed(range(len(frozen.layers) + 1)):
        for source in (each for each in frozen.sources if each.boundary == boundary):
            ending = [q for q in range(query.states) if source.label in query.stops(q)]
            total += int(ways[ending].sum())
        if boundary:
            ways = _ways_through(frozen.layers[boundary - 1], query, ways)
    return total


def _ways_through(layer: FrozenLayer, query: Query, ways: Array) -> Array:
    """Carry counts (state, position) back through a layer: past its heads, or through one."""
    out = ways.copy()
    for number, head in enumerate(layer.heads):
        open_keys = (layer.patterns[number] != 0).astype(int).astype(object)  # (query, key)
        for state in range(query.states):
            after = query.step(state, head)
            if after is not None:
                out[after] += ways[state] @ open_keys
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Draws that agree in their heads so far.

    `vector` (d_model,) is what they read the stream with; for each draw, `draws` is its number,
    `trail` (draw, order + 1) its positions from early to late, `scale` the product of its pattern
    entries, `chance` the probability of its choices.
    """

    word: Word
    state: int
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

    A source gives its `amounts` (position,), a head its number, state and `forms` (key,), the
    energy that each key has to offer.
    """

    energies: Array
    source: str = ""
    amounts: Array | None = None
    head: Head | None = None
    state: int = 0
    forms: Array | None = None


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
        self.squares = [squares(layer) for layer in frozen.layers]
        self.kernels = kernels(frozen, query, self.squares)
        self.sizes = [
            [np.sqrt((kernel**2).sum(axis=(1, 3))) for kernel in states] for states in self.kernels
        ]  # of K, for each layer and state: (head, position)
        self.waiting: dict[int, list[_Group]] = defaultdict(list)
        self.ends: list[tuple[int, NamedPath, float, float]] = []

    def energy(self) -> float:
        """Give the energy of all paths."""
        depth, place = len(self.frozen.layers), self.readout.position
        choices = self._choices(self._root(), depth, reach=0.0)
        return float(sum(choice.energies[place] for choice in choices))

    def run(self) -> None:
        """Carry all draws to their ends."""
        depth = len(self.frozen.layers)
        self.waiting[depth].append(self._root())
        for boundary in reversed(range(depth + 1)):
            for group in sorted(self.waiting.pop(boundary, ()), key=lambda each: each.word):
                self._part(group, self._choices(group, boundary, reach=_REACH))

    def _root(self) -> _Group:
        return _Group(
            word=(),
            state=self.query.start,
            vector=np.asarray(self.readout.direction, dtype=np.float64),
            draws=np.arange(self.draws),
            trail=np.full((self.draws, 1), self.readout.position),
            scale=np.ones(self.draws),
            chance=np.ones(self.draws),
        )

    def _choices(self, group: _Group, boundary: int, *, reach: float) -> list[_Choice]:
        """List the ways on from a group: every source, then every head of every earlier layer."""
        stops = self.query.stops(group.state)
        found = [
            self._stop(source, group)
            for source in self.frozen.sources
            if source.boundary <= boundary and source.label in stops
        ]
        if not group.word and self.frozen.has_unembed_bias and "b_U" in stops:
            amounts = np.zeros(self.frozen.positions)
            amounts[self.readout.position] = float(self.readout.constant)
            found.append(_Choice(amounts**2, source="b_U", amounts=amounts))
        for index in reversed(range(boundary)):
            found += self._heads(group, index, reach)
        return found

    def _stop(self, source: FrozenSource, group: _Group) -> _Choice:
        amounts = source.values @ group.vector  # (position,)
        return _Choice(amounts**2, source=source.label, amounts=amounts)

    def _heads(self, group: _Group, index: int, reach: float) -> list[_Choice]:
        """List the heads of a layer as ways on, in their order."""
        layer = self.frozen.layers[index]
        after = [self.query.step(group.state, head) for head in layer.heads]
        found: dict[int, _Choice] = {}
        for state in sorted({each for each in after if each is not None}):
            some = [n for n, each in enumerate(after) if each == state]
            inner = layer.W_O[some] @ group.vector  # (head, d_head)
            forms = self._forms(index, state, some, inner, reach)  # (head, key)
            energies = (self.squares[index][some] @ forms[:, :, None])[:, :, 0]  # (head, query)
            for n, form, energy in zip(some, forms, energies, strict=True):
                found[n] = _Choice(energy, head=layer.heads[n], state=state, forms=form)
        return [found[n] for n in sorted(found)]

    def _forms(self, index: int, state: int, some: list[int], inner: Array, reach: float) -> Array:
        """Give what each key has to offer through each head: (head, key)."""
        kernel = self.kernels[index][state]  # (head, d_head, position, d_head)
        kernel = kernel if len(some) == len(kernel) else kernel[some]
        heads, d_head, positions, _ = kernel.shape
        half = inner[:, None] @ kernel.reshape(heads, d_head, -1)  # (head, 1, position * d_head)
        forms = (half.reshape(heads, positions, d_head) @ inner[:, :, None])[:, :, 0]
        lengths = (inner**2).sum(axis=1, keepdims=True)  # (head, 1)
        out: Array = np.maximum(forms, 0.0) + reach * self.sizes[index][state][some] * lengths
        return out

    def _part(self, group: _Group, choices: list[_Choice]) -> None:
        """Let each draw of a group choose its way on."""
        if not choices:
            return  # only rounding can lead here: these draws name no path
        offers = np.stack([choice.energies for choice in choices])[:, group.places].T
        chosen, chance = _choose(self.rng, offers)  # (draw,)
        for number in np.unique(chosen[chance > 0]):
            some = np.flatnonzero((chosen == number) & (chance > 0))
            part = _taken(group, some, group.chance[some] * chance[some])
            if choices[number].head is None:
                self._end(part, choices[number])
            else:
                self._go_on(part, choices[number])

    def _end(self, group: _Group, choice: _Choice) -> None:
        assert choice.amounts is not None  # a source gives amounts
        values = group.scale * choice.amounts[group.places]
        path = Path(choice.source, group.word)
        for draw, trail, value, chance in zip(
            group.draws, group.trail, values, group.chance, strict=True
        ):
            named = NamedPath(path, tuple(int(place) for place in trail))
            self.ends.append((int(draw), named, float(value), float(chance)))

    def _go_on(self, group: _Group, choice: _Choice) -> None:
        """Let draws that go on with one head choose a key, and wait at that head's layer."""
        head = choice.head
        assert head is not None  # a choice that goes on has a head
        layer, at = self.frozen.layers[head.layer], group.places
        keys, chance = _choose(self.rng, self.squares[head.layer][head.index][at] * choice.forms)
        some = np.flatnonzero(chance > 0)
        keys, group = keys[some], _taken(group, some, group.chance[some] * chance[some])
        self.waiting[head.layer].append(
            _Group(
                word=(head, *group.word),
                state=choice.state,
                vector=layer.W_V[head.index] @ (layer.W_O[head.index] @ group.vector),
                draws=group.draws,
                trail=np.concatenate([keys[:, None], group.trail], axis=1),
                scale=group.scale * layer.patterns[head.index][group.places, keys],
                chance=group.chance,
            )
        )


def squares(layer: FrozenLayer) -> Array:
    """Give the weights that carry energy through a layer's positions: (head, query, key)."""
    out: Array = layer.patterns**2
    return out


def kernels(frozen: FrozenSum, query: Query, weights: Sequence[Array]) -> list[list[Array]]:
    """Give K of each layer and query state: (head, d_head, position, d_head).

    `weights` (head, query, key) carry K through each layer's positions.
    """
    found: list[list[Array]] = []
    mixed: list[list[Array]] = []  # K behind the patterns: what a head's output holds
    for index, layer in enumerate(frozen.layers):
        states = []
        for state in range(query.states):
            total = from_sources(frozen, index, query.stops(state))
            for early, earlier in enumerate(frozen.layers[:index]):
                for number, head in enumerate(earlier.heads):
                    after = query.step(state, head)
                    if after is not None:
                        total += _through(mixed[early][after][number], earlier, number, layer)
            states.append(total)
        found.append(states)
        mixed.append([weights[index][:, None] @ total for total in states])
    return found


def from_sources(frozen: FrozenSum, index: int, stops: frozenset[str]) -> Array:
    """Give what sources alone bring to a layer's heads: (head, d_head, position, d_head)."""
    w_v = frozen.layers[index].W_V
    heads, _, d_head = w_v.shape
    total = np.zeros((heads, d_head, frozen.positions, d_head))
    for source in frozen.sources:
        if source.boundary <= index and source.label in stops:
            seen = source.values @ w_v  # (head, position, d_head)
            total += np.einsum("hta,htb->hatb", seen, seen)
    return total


def _through(mixed: Array, earlier: FrozenLayer, number: int, layer: FrozenLayer) -> Array:
    """Carry K (d_head, position, d_head) from one head's output to every head of a later layer."""
    virtual = earlier.W_O[number] @ layer.W_V  # (head, d_head, d_head)
    rows, positions, columns = mixed.shape
    right = mixed.reshape(rows * positions, columns) @ virtual  # (head, rows * positions, d_head)
    right = right.reshape(len(virtual), rows, -1)  # (head, rows, positions * d_head)
    out: Array = np.swapaxes(virtual, 1, 2) @ right
    return out.reshape(len(virtual), virtual.shape[2], positions, -1)


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
        group.vector,
        group.draws[some],
        group.trail[some],
        group.scale[some],
        chance,
    )
