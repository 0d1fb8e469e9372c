"""Ask for paths by a query: an automaton that reads them backward, as the engine does.

The language is described in `pathexpand.symbolic.query_text`, and `QUERY_LANGUAGE` is that
description as text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any

from pathexpand.errors import CompositionError, LimitError
from pathexpand.symbolic.component import Component
from pathexpand.symbolic.network import Network
from pathexpand.symbolic.path import Path
from pathexpand.symbolic.query_text import (
    Choice,
    ComponentStep,
    Pattern,
    Repeat,
    Series,
    SourceStep,
    negate,
    read_query,
)

_MOST_STATES = 4096

# For each group of a stage's components, the next state, or None where nothing can match any more.
Row = tuple[int | None, ...]
# For each stage of the network and each of its components, the number of its group in the stage.
Groups = tuple[tuple[int, ...], ...]


def parse_query(text: str, network: Network) -> Query:
    """Read a query about the paths of a network.

    Raises `NotationError`, with the column, for text that is no query and for labels that the
    network does not have, and `LimitError` for a query that needs more than 4,096 states.

    >>> network = Network.attention_only(2, 12, positions=True)
    >>> query = parse_query("embed > * > L1H6", network)
    >>> query.count(), [str(path) for path in query.paths(max_order=1)]
    (13, ['embed > L1H6'])
    >>> parse_query("embed > * > L2H6", network)
    Traceback (most recent call last):
        ...
    pathexpand.errors.NotationError: column 13 of query 'embed > * > L2H6': wanted layer 0 to 1,
    got 'L2H6'
    """
    said = read_query(text, network)
    table = _read_backward(said.pattern, network)
    if said.negated:
        table = _complement(table, network)
    return _query(text.strip(), network, table)


def everything(network: Network) -> Query:
    """Return the query that matches every path; it has one state.

    >>> network = Network.attention_only(12, 12)
    >>> everything(network).count() == network.count()
    True
    """
    return parse_query("*", network)


@dataclass(frozen=True, slots=True)
class Query:
    """Some of the paths of a network, as a deterministic automaton that reads them backward.

    It starts in state `start`, steps from the last component to the first, and then stops at a
    source. States are numbered from 0 in a fixed order. Components of a stage that lead from every
    state to the same one form a group: `groups` holds for each stage the group of each component,
    `moves` for each state and stage the next state of each group or None, and `stopping` the
    sources for each state. Made by `parse_query`; raises `CompositionError` for tables that do not
    fit.

    >>> from pathexpand.symbolic import Head
    >>> query = parse_query("embed > L0H1", Network.attention_only(2, 2))
    >>> after = query.step(query.start, Head(0, 1))
    >>> query, query.states, after, query.stops(after)
    (Query(text='embed > L0H1'), 2, 1, frozenset({'embed'}))
    """

    text: str
    network: Network = field(repr=False)
    groups: Groups = field(repr=False)
    moves: tuple[tuple[Row, ...], ...] = field(repr=False)
    stopping: tuple[frozenset[str], ...] = field(repr=False)
    _known: dict[tuple[int, Row], Row] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse tables that are not those of an automaton over the network."""
        sizes = _group_numbers(self.groups, self.network)
        if not self.moves or len(self.stopping) != len(self.moves):
            raise CompositionError(
                "query",
                wanted="states with moves and a set of sources each",
                got=f"{len(self.moves)} states, {len(self.stopping)} sets",
            )
        for rows in self.moves:
            if [*map(len, rows)] != sizes:
                got = [*map(len, rows)]
                raise CompositionError("query", wanted=f"moves of {sizes} groups", got=str(got))
        different = set(chain.from_iterable(self.moves))
        targets = set(chain.from_iterable(different)) - {None}
        for after in sorted(targets - set(range(self.states)), key=repr):
            raise CompositionError(
                "query", wanted=f"states below {self.states}", got=f"a move to {after!r}"
            )
        known = {source.label for source in self.network.sources}
        for label in sorted(frozenset().union(*self.stopping) - known):
            raise CompositionError("query", wanted="sources of the network", got=repr(label))
        object.__setattr__(self, "_known", {})

    @property
    def start(self) -> int:
        """The state before anything is read."""
        return 0

    @property
    def states(self) -> int:
        """The number of states.

        >>> parse_query("* > L0H* > *", Network.attention_only(2, 2)).states
        2
        """
        return len(self.moves)

    def step(self, state: int, component: Component) -> int | None:
        """Return the state after one more component, which stands in front of those read so far.

        None means that no path of the network can match any more. Components come from ever lower
        stages, as they do in a path read backward.

        >>> from pathexpand.symbolic import Head
        >>> query = parse_query("* > L1H0", Network.attention_only(2, 2))
        >>> query.step(query.start, Head(1, 0)), query.step(query.start, Head(0, 0))
        (1, None)
        """
        place = self.network.place(component)
        if place is None:
            return None
        stage, number = place
        return self.moves[state][stage][self.groups[stage][number]]

    def after(self, state: int, stage: int) -> Row:
        """Return what `step` returns for each component of a stage, in their order.

        >>> query = parse_query("* > L1H0", Network.attention_only(2, 2))
        >>> query.after(query.start, 1), query.after(query.start, 0)
        ((1, None), (None, None))
        """
        key = stage, self.moves[state][stage]
        if key not in self._known:
            self._known[key] = tuple(map(key[1].__getitem__, self.groups[stage]))
        return self._known[key]

    def stops(self, state: int) -> frozenset[str]:
        """Return the labels of the sources that may stand in front of what was read so far.

        Whether such a source is born early enough for that is for the network to say.

        >>> query = parse_query("!pos > *", Network.attention_only(2, 2, positions=True))
        >>> query.stops(query.start)
        frozenset({'embed'})
        """
        return self.stopping[state]

    def matches(self, path: Path) -> bool:
        """Say whether this is a path of the network that the query asks for.

        >>> query = parse_query("* > L1H0", Network.attention_only(2, 2))
        >>> query.matches(Path.parse("embed > L0H1 > L1H0")), query.matches(Path("embed"))
        (True, False)
        """
        state = self.start
        for component in reversed(path.components):
            after = self.step(state, component)
            if after is None:
                return False
            state = after
        return path.source in self.stops(state) and path in self.network

    def complement(self) -> Query:
        """Return the query that matches exactly the other paths of the network.

        >>> other = parse_query("embed > L0H1", Network.attention_only(2, 2)).complement()
        >>> other.text, other.count()
        ('not embed > L0H1', 8)
        """
        table = _complement(_Table(self.groups, self.moves, self.stopping), self.network)
        return _query(negate(self.text), self.network, table)

    def count(self, network: Network | None = None) -> int:
        """Count the matching paths, exactly and without listing them.

        They are those of the query's own network, or of a part of it, with fewer components or
        sources. Raises `CompositionError` for any other network.

        >>> parse_query("* > L0H* > *", Network.attention_only(12, 12)).count()
        21505924728444
        """
        return sum(self.count_by_order(network))

    def count_by_order(self, network: Network | None = None) -> tuple[int, ...]:
        """Count the matching paths of order 0, 1, 2, …, like `count`.

        >>> parse_query("* > {L1H0, L1H2}", Network.attention_only(2, 12)).count_by_order()
        (0, 2, 24)
        """
        part = self._part(network)
        network = part.network
        counts = [0] * (network.depth + 1)
        ways = {self.start: [1]}  # for each state, the number of ways to get there, by order
        self._add_stops(counts, ways, network, None)
        for boundary in range(network.depth, -1, -1):
            self._add_stops(counts, ways, network, boundary)
            if boundary:
                ways = self._through(ways, *part.stages[boundary - 1])
        while counts and not counts[-1]:
            counts.pop()
        return tuple(counts)

    def paths(self, network: Network | None = None, max_order: int | None = None) -> Iterator[Path]:
        """Yield the matching paths lazily, in the order of `Network.paths`: none is tried in vain.

        >>> query = parse_query("* > L5H3 > * > L9H9", Network.attention_only(12, 12))
        >>> print(next(query.paths()), query.count(), sep=", ")
        embed > L5H3 > L9H9, 815730721
        """
        if max_order is not None and max_order < 0:
            raise LimitError("max_order", wanted="0 or more, or None", got=str(max_order))
        part = self._part(network)
        highest = sum(map(bool, part.network.stages))
        highest = highest if max_order is None else min(highest, max_order)
        return _Forward(self, part, highest).paths()

    def _part(self, network: Network | None) -> _Part:
        own = self.network
        if network is None or network is own:
            return _Part(own, tuple(enumerate(self.groups)))
        strange = _strange(network, own)
        if strange:
            raise CompositionError(
                f"query {self.text!r}",
                wanted="the network it was made for, or a part of that",
                got=f"one with {strange}",
            )
        stages = []
        for stage in network.stages:
            places = [place for each in stage if (place := own.place(each))]
            number = places[0][0] if places else 0
            stages.append((number, tuple(self.groups[number][place] for _, place in places)))
        return _Part(network, tuple(stages))

    def _add_stops(
        self,
        counts: list[int],
        ways: dict[int, list[int]],
        network: Network,
        boundary: int | None,
    ) -> None:
        born = [source.label for source in network.sources if source.boundary == boundary]
        for state, numbers in ways.items():
            stops = sum(label in self.stops(state) for label in born)
            for order, number in enumerate(numbers):
                counts[order] += stops * number

    def _through(
        self, ways: dict[int, list[int]], stage: int, groups: tuple[int, ...]
    ) -> dict[int, list[int]]:
        """Return the ways after a stage: past its components, or through one of them."""
        sizes = Counter(groups)
        after = {state: [*numbers, 0] for state, numbers in ways.items()}
        for state, numbers in ways.items():
            row = self.moves[state][stage]
            for group, size in sizes.items():
                following = row[group]
                if following is not None:
                    longer = after.setdefault(following, [0] * (len(numbers) + 1))
                    for order, number in enumerate(numbers):
                        longer[order + 1] += size * number
        return after


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a query's network: its stages' numbers in the whole, and its groups there."""

    network: Network
    stages: tuple[tuple[int, tuple[int, ...]], ...]


def _group_numbers(groups: Groups, network: Network) -> list[int]:
    """Return how many groups each stage has; refuse groups that do not fit the network."""
    if [*map(len, groups)] != [*map(len, network.stages)]:
        sizes = [*map(len, network.stages)]
        got = str([*map(len, groups)])
        raise CompositionError("query", wanted=f"a group for each of {sizes}", got=got)
    found = [set(each) for each in groups]
    for numbers in found:
        if numbers != set(range(len(numbers))):
            got = str(sorted(numbers, key=repr))
            raise CompositionError("query", wanted="groups numbered from 0", got=got)
    return [*map(len, found)]


def _strange(network: Network, whole: Network) -> str:
    """Name what keeps a network from being a part of another, if anything does."""
    labels = {source.label: source.boundary for source in whole.sources}
    for component in network.components:
        if whole.stage(component) is None:
            return component.label
    for source in network.sources:
        if source.label not in labels:
            return source.label
    met = [-1]
    for number, stage in enumerate(network.stages):
        inside = {whole.stage(component) for component in stage}
        if len(inside) > 1 or met[-1] in inside:
            return f"{stage[0]} in another stage"
        met += [each for each in inside if each is not None]
        for source in network.sources:
            born, earlier = labels[source.label], source.boundary
            if stage and earlier is not None and (number < earlier) != (met[-1] < (born or 0)):
                return f"{source.label} born elsewhere"
    return ""


# --- from a pattern to an automaton -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Table:
    groups: Groups
    moves: Sequence[Sequence[Row]]
    stopping: tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where a piece of a pattern can begin and end, as bit masks, and whether it may be empty."""

    first: int
    last: int
    empty: bool


class _Steps:
    """The steps of a pattern, numbered, each with the steps that may stand right before it."""

    def __init__(self) -> None:
        self.steps: list[SourceStep | ComponentStep] = []
        self.before: list[int] = []
        self.known: dict[tuple[frozenset[Any], int], _Ends] = {}

    def add(self, pattern: Pattern) -> _Ends:
        if isinstance(pattern, SourceStep):
            return self._shared(pattern.sources, pattern, 0)
        if isinstance(pattern, ComponentStep):
            return self._single(pattern)
        if isinstance(pattern, Series):
            return self._add_series(pattern)
        if isinstance(pattern, Choice):
            return self._add_choice(pattern)
        return self._add_repeat(pattern)

    def _single(self, step: SourceStep | ComponentStep) -> _Ends:
        self.steps.append(step)
        self.before.append(0)
        return _Ends(1 << len(self.steps) - 1, 1 << len(self.steps) - 1, empty=False)

    def _shared(self, what: frozenset[Any], step: SourceStep | ComponentStep, before: int) -> _Ends:
        """Add a step after which nothing more can be put before it, or the one like it."""
        if (what, before) not in self.known:
            self.known[what, before] = self._single(step)
            self._join(before, self.known[what, before].first)
        return self.known[what, before]

    def _add_series(self, pattern: Series) -> _Ends:
        whole = _Ends(0, 0, empty=True)
        for each in pattern.parts:
            if isinstance(each, ComponentStep) and not whole.empty:
                part = self._shared(each.components, each, whole.last)
            else:
                part = self.add(each)
                self._join(whole.last, part.first)
            first = whole.first | (part.first if whole.empty else 0)
            last = part.last | (whole.last if part.empty else 0)
            whole = _Ends(first, last, empty=whole.empty and part.empty)
        return whole

    def _add_choice(self, pattern: Choice) -> _Ends:
        first, last, empty = 0, 0, False
        for each in pattern.parts:
            part = self.add(each)
            first, last, empty = first | part.first, last | part.last, empty or part.empty
        return _Ends(first, last, empty=empty)

    def _add_repeat(self, pattern: Repeat) -> _Ends:
        part = self.add(pattern.part)
        if pattern.again:
            self._join(part.last, part.first)
        return _Ends(part.first, part.last, empty=part.empty or pattern.optional)

    def _join(self, earlier: int, later: int) -> None:
        for step in _bits(later):
            self.before[step] |= earlier

    def before_any(self, steps: int) -> int:
        found = 0
        for step in _bits(steps):
            found |= self.before[step]
        return found

    def groups(self, network: Network) -> tuple[Groups, list[list[int]]]:
        """Group the components that can be the same steps, and return these for each group."""
        components = dict.fromkeys(network.components, 0)
        by_set: dict[frozenset[Component], int] = {}
        for number, step in enumerate(self.steps):
            if isinstance(step, ComponentStep):
                by_set[step.components] = by_set.get(step.components, 0) | 1 << number
        always = 0
        for some, mask in by_set.items():
            if len(some) == len(components):
                always |= mask
                continue
            for component in some:
                components[component] |= mask
        groups, masks = [], []
        for stage in network.stages:
            numbers: dict[int, int] = {}
            found = map(components.__getitem__, stage)
            groups.append(tuple(numbers.setdefault(mask, len(numbers)) for mask in found))
            masks.append([mask | always for mask in numbers])
        return tuple(groups), masks

    def sources(self, steps: int) -> frozenset[str]:
        found = [self.steps[step] for step in _bits(steps)]
        return frozenset().union(*(each.sources for each in found if isinstance(each, SourceStep)))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def _read_backward(pattern: Pattern, network: Network) -> _Table:
    """Return the automaton whose states are the sets of steps that may be read next.

    It is worked out stage by stage, so a state has moves only into stages below the one in which
    it is first met.
    """
    steps = _Steps()
    sets = [steps.add(pattern).last]
    numbers = {0: None, sets[0]: 0}
    groups, masks = steps.groups(network)
    before = cache(steps.before_any)
    nowhere = [(None,) * len(each) for each in masks]
    moves: list[list[Row]] = [[*nowhere]]
    for stage in reversed(range(network.depth)):
        together = _union(masks[stage])
        for state, can_be in enumerate(tuple(sets)):
            if not can_be & together:
                continue
            row: list[int | None] = []
            for mask in masks[stage]:
                after = before(can_be & mask)
                if after not in numbers:
                    numbers[after] = len(sets)
                    sets.append(after)
                    moves.append([*nowhere])
                row.append(numbers[after])
            moves[state][stage] = tuple(row)
            _check_states(len(sets))
    return _Table(groups, moves, tuple(map(steps.sources, sets)))


def _union(masks: Sequence[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _check_states(number: int) -> None:
    if number > _MOST_STATES:
        raise LimitError(
            "query",
            wanted=f"one that needs at most {_MOST_STATES:,} states",
            got="one that needs more",
            remedy="ask for it in several queries, or with fewer optional and repeated steps",
        )


def _complement(table: _Table, network: Network) -> _Table:
    """Stop at all other sources, and go on where there was no way on."""
    sources = frozenset(source.label for source in network.sources)
    free = len(table.moves)
    go_on = cache(lambda row: tuple(free if after is None else after for after in row))
    moves = [[*map(go_on, rows)] for rows in table.moves]
    moves.append([(free,) * len(row) for row in moves[0]])
    stopping = (*(sources - stops for stops in table.stopping), sources)
    return _Table(table.groups, moves, stopping)


def _query(text: str, network: Network, table: _Table) -> Query:
    """Keep the states and moves that a path read backward can meet, in the order it meets them.

    In place of each state stands the first one met that agrees with it on all paths through the
    stages that are left. Whatever is read, the state that is reached then agrees with the true one
    on all that can still come, so the same paths match.
    """
    alike = _alike(table, network)
    met = [0]
    nowhere: list[Row] = [(None,) * len(row) for row in table.moves[0]]
    moves = [[*nowhere]]
    for stage in reversed(range(network.depth)):
        stands: dict[int, int | None] = {}
        for number, state in enumerate(met):
            stands.setdefault(alike[stage][state], number)
        stands[0] = None
        rows: dict[Row, Row] = {}
        for number, state in enumerate(tuple(met)):
            row = table.moves[state][stage]
            if row not in rows:
                found = []
                for after in row:
                    kind = 0 if after is None else alike[stage][after]
                    if after is not None and kind not in stands:
                        stands[kind] = len(met)
                        met.append(after)
                        moves.append([*nowhere])
                    found.append(stands[kind])
                rows[row] = tuple(found)
            moves[number][stage] = rows[row]
    groups = [_merge(numbers, moves, stage) for stage, numbers in enumerate(table.groups)]
    stopping = tuple(table.stopping[state] for state in met)
    return Query(text, network, tuple(groups), tuple(map(tuple, moves)), stopping)


def _merge(groups: tuple[int, ...], moves: list[list[Row]], stage: int) -> tuple[int, ...]:
    """Make one group of those that lead to the same states, in the moves too."""
    different = list(dict.fromkeys(rows[stage] for rows in moves))
    numbers: dict[Row, int] = {}
    merged = [numbers.setdefault(column, len(numbers)) for column in zip(*different, strict=True)]
    shorter = dict(zip(different, zip(*numbers, strict=True), strict=False))
    for rows in moves:
        rows[stage] = shorter.get(rows[stage], ())
    return tuple(map(merged.__getitem__, groups))


def _alike(table: _Table, network: Network) -> list[list[int]]:
    """Give states one number, at each boundary, if they agree on all paths through earlier stages.

    States that match none of these paths have number 0.
    """
    kinds = [0] * len(table.moves)
    levels = []
    for boundary in range(network.depth + 1):
        # What agreed before can differ by a source born here or by a component of the stage before.
        born = {each.label for each in network.sources if each.boundary == boundary}
        rows = [each[boundary - 1] if boundary else () for each in table.moves]
        through: dict[Row, tuple[int, ...]] = {}
        numbers: dict[object, int] = {}
        signs = []
        for kind, stops, row in zip(kinds, table.stopping, rows, strict=True):
            if row not in through:
                through[row] = tuple(0 if after is None else kinds[after] for after in row)
            signs.append((kind, stops & born, through[row]))
        if rows:
            numbers[0, frozenset(), (0,) * len(rows[0])] = 0
        kinds = [numbers.setdefault(sign, len(numbers)) for sign in signs]
        levels.append(kinds)
    return levels


# --- listing ----------------------------------------------------------------------------------


class _Forward:
    """The automaton walked from the source on, only where the rest of a path can follow.

    A set of states, as a bit mask, stands for a place between two components: from each of them,
    reading backward, what was chosen up to there matches.
    """

    def __init__(self, query: Query, part: _Part, highest: int) -> None:
        self.query = query
        self.network = part.network
        self.groups = [groups for _, groups in part.stages]
        self.highest = highest
        # For each stage and group, the moves from a state to the next.
        self.steps = [self.moves(stage, set(groups)) for stage, groups in part.stages]
        # For each order and boundary, the states that so many components after it can reach.
        self.reach = [[1 << query.start] * (self.network.depth + 1)]
        self.known: dict[tuple[int, int, int], tuple[tuple[int, dict[int, int]], ...]] = {}

    def moves(self, stage: int, groups: set[int]) -> dict[int, list[tuple[int, int]]]:
        found: dict[int, list[tuple[int, int]]] = {}
        ways: dict[Row, list[tuple[int, int]]] = {}
        for state, rows in enumerate(self.query.moves):
            row = rows[stage] if groups else ()
            if row not in ways:
                ways[row] = [
                    (group, after)
                    for group, after in enumerate(row)
                    if after is not None and group in groups
                ]
            for group, after in ways[row]:
                found.setdefault(group, []).append((state, after))
        return found

    def paths(self) -> Iterator[Path]:
        for order in range(self.highest + 1):
            for source in self.network.sources:
                born = self.network.depth if source.boundary is None else source.boundary
                for components in self.chains(self.stops(source.label, order, born), born, order):
                    yield Path(source.label, components)
            self.reach.append(self.one_more())

    def one_more(self) -> list[int]:
        reach = [0]
        for stage in reversed(range(self.network.depth)):
            later = self.reach[-1][stage + 1]
            found = reach[-1]
            for steps in self.steps[stage].values():
                for state, after in steps:
                    found |= (later >> state & 1) << after
            reach.append(found)
        return reach[::-1]

    def stops(self, source: str, order: int, boundary: int) -> int:
        states = range(self.query.states)
        found = sum(1 << state for state in states if source in self.query.stops(state))
        return found & self.reach[order][boundary]

    def chains(self, states: int, boundary: int, order: int) -> Iterator[tuple[Component, ...]]:
        """Yield the ways on from these states through `order` more, in lexicographic order."""
        if not states or not order:
            yield from [()] * bool(states)
            return
        chosen: list[Component] = []
        branches = [self.choices(states, boundary, order)]
        while branches:
            choice = next(branches[-1], None)
            if choice is None:
                branches.pop()
                if chosen:
                    chosen.pop()
                continue
            component, states, stage = choice
            missing = order - len(branches)
            if not missing:
                yield (*chosen, component)
                continue
            chosen.append(component)
            branches.append(self.choices(states, stage + 1, missing))

    def choices(
        self, states: int, boundary: int, order: int
    ) -> Iterator[tuple[Component, int, int]]:
        """Yield what `order` more can begin with, the states after each, and its stage."""
        key = states, boundary, order
        if key not in self.known:
            self.known[key] = tuple(
                (stage, between)
                for stage in range(boundary, self.network.depth)
                if (between := self.between(states, stage, order))
            )
        for stage, between in self.known[key]:
            components = zip(self.network.stages[stage], self.groups[stage], strict=True)
            for component, group in components:
                if group in between:
                    yield component, between[group], stage

    def between(self, states: int, stage: int, order: int) -> dict[int, int]:
        """Return the states after each group of a stage that `order` more can begin with."""
        found = {}
        for group, steps in self.steps[stage].items():
            mask = 0
            for state, after in steps:
                mask |= (states >> after & 1) << state
            mask &= self.reach[order - 1][stage + 1]
            if mask:
                found[group] = mask
        return found
