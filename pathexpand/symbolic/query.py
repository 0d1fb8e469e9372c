"""Ask for paths by a query: an automaton that reads them backward, as the engine does.

The language is described in `pathexpand.symbolic.query_text`, and `QUERY_LANGUAGE` is that
description as text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate

from pathexpand.errors import CompositionError, LimitError
from pathexpand.symbolic.network import Network
from pathexpand.symbolic.path import Head, Path
from pathexpand.symbolic.query_text import (
    Choice,
    HeadStep,
    Pattern,
    Repeat,
    Series,
    SourceStep,
    negate,
    read_query,
)

_MOST_STATES = 4096

# For each state and head of the network, the next state, or None where nothing can match any more.
Moves = tuple[tuple[int | None, ...], ...]


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

    It starts in state `start`, steps from the last head to the first, and then stops at a source.
    States are numbered from 0 in a fixed order. `moves` holds for each state and each head of the
    network, numbered as they are listed, the next state or None, and `stopping` the sources for
    each state. Made by `parse_query`; raises `CompositionError` for tables that do not fit.

    >>> query = parse_query("embed > L0H1", Network.attention_only(2, 2))
    >>> after = query.step(query.start, Head(0, 1))
    >>> query, query.states, after, query.stops(after)
    (Query(text='embed > L0H1'), 2, 1, frozenset({'embed'}))
    """

    text: str
    network: Network = field(repr=False)
    moves: Moves = field(repr=False)
    stopping: tuple[frozenset[str], ...] = field(repr=False)
    _numbers: dict[Head, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse tables that are not those of an automaton over the network."""
        numbers = {head: number for number, head in enumerate(_heads(self.network))}
        sizes = {len(row) for row in self.moves}
        if not self.moves or sizes != {len(numbers)} or len(self.stopping) != len(self.moves):
            raise CompositionError(
                "query",
                wanted=f"states with {len(numbers)} moves and a set of sources each",
                got=f"{len(self.stopping)} sets, {sorted(sizes)} moves",
            )
        targets = {after for row in self.moves for after in row} - {None}
        for after in sorted(targets - set(range(self.states)), key=repr):
            raise CompositionError(
                "query", wanted=f"states below {self.states}", got=f"a move to {after!r}"
            )
        known = {source.label for source in self.network.sources}
        for label in sorted(frozenset().union(*self.stopping) - known):
            raise CompositionError("query", wanted="sources of the network", got=repr(label))
        object.__setattr__(self, "_numbers", numbers)

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

    def step(self, state: int, head: Head) -> int | None:
        """Return the state after one more head, which stands in front of those read so far.

        None means that no path of the network can match any more. Heads come from ever lower
        layers, as they do in a path read backward.

        >>> query = parse_query("* > L1H0", Network.attention_only(2, 2))
        >>> query.step(query.start, Head(1, 0)), query.step(query.start, Head(0, 0))
        (1, None)
        """
        number = self._numbers.get(head)
        return None if number is None else self.moves[state][number]

    def stops(self, state: int) -> frozenset[str]:
        """Return the labels of the sources that may stand in front of the heads read so far.

        Whether such a source is born early enough for those heads is for the network to say.

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
        for head in reversed(path.components):
            after = self.step(state, head)
            if after is None:
                return False
            state = after
        return path.source in self.stops(state)

    def complement(self) -> Query:
        """Return the query that matches exactly the other paths of the network.

        >>> other = parse_query("embed > L0H1", Network.attention_only(2, 2)).complement()
        >>> other.text, other.count()
        ('not embed > L0H1', 8)
        """
        table = _complement(_Table(self.moves, self.stopping), self.network)
        return _query(negate(self.text), self.network, table)

    def count(self, network: Network | None = None) -> int:
        """Count the matching paths, exactly and without listing them.

        They are those of the query's own network, or of a part of it, with fewer heads or
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
        network = self._part(network)
        counts = [0] * (network.depth + 1)
        ways = {self.start: [1]}  # for each state, the number of ways to get there, by order
        self._add_stops(counts, ways, network, None)
        for boundary in range(network.depth, -1, -1):
            self._add_stops(counts, ways, network, boundary)
            if boundary:
                ways = self._through(ways, network.layers[boundary - 1])
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
        network = self._part(network)
        highest = network.depth if max_order is None else min(network.depth, max_order)
        return _Forward(self, network, highest).paths()

    def _part(self, network: Network | None) -> Network:
        if network is None or network is self.network:
            return self.network
        own = {source.label for source in self.network.sources}
        strange = [head.label for head in _heads(network) if head not in self._numbers]
        strange += [source.label for source in network.sources if source.label not in own]
        if strange:
            raise CompositionError(
                f"query {self.text!r}",
                wanted="the network it was made for, or a part of that",
                got=f"one with {strange[0]}",
            )
        return network

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

    def _through(self, ways: dict[int, list[int]], layer: tuple[Head, ...]) -> dict[int, list[int]]:
        """Return the ways after a layer: past its heads, or through one of them."""
        after = {state: [*numbers, 0] for state, numbers in ways.items()}
        for state, numbers in ways.items():
            for following, heads in Counter(self.step(state, head) for head in layer).items():
                if following is not None:
                    longer = after.setdefault(following, [0] * (len(numbers) + 1))
                    for order, number in enumerate(numbers):
                        longer[order + 1] += heads * number
        return after


# --- from a pattern to an automaton -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Table:
    moves: Moves
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
        self.steps: list[SourceStep | HeadStep] = []
        self.before: list[int] = []

    def add(self, pattern: Pattern) -> _Ends:
        if isinstance(pattern, SourceStep | HeadStep):
            self.steps.append(pattern)
            self.before.append(0)
            return _Ends(1 << len(self.steps) - 1, 1 << len(self.steps) - 1, empty=False)
        if isinstance(pattern, Series):
            return self._add_series(pattern)
        if isinstance(pattern, Choice):
            return self._add_choice(pattern)
        return self._add_repeat(pattern)

    def _add_series(self, pattern: Series) -> _Ends:
        whole = _Ends(0, 0, empty=True)
        for each in pattern.parts:
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

    def with_head(self, network: Network) -> list[int]:
        """Return for each head the steps that it can be."""
        found = dict.fromkeys(_heads(network), 0)
        for step, each in enumerate(self.steps):
            for head in each.heads if isinstance(each, HeadStep) else ():
                found[head] |= 1 << step
        return list(found.values())

    def sources(self, steps: int) -> frozenset[str]:
        found = [self.steps[step] for step in _bits(steps)]
        return frozenset().union(*(each.sources for each in found if isinstance(each, SourceStep)))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def _read_backward(pattern: Pattern, network: Network) -> _Table:
    """Return the automaton whose states are the sets of steps that may be read next.

    It is worked out layer by layer, so a state has moves only into layers below the one in which
    it is first met.
    """
    steps = _Steps()
    sets = [steps.add(pattern).last]
    numbers = {0: None, sets[0]: 0}
    with_head = steps.with_head(network)
    before = cache(steps.before_any)
    rows: list[list[int | None]] = [[None] * len(with_head)]
    for columns in reversed(_columns(network)):
        for state, can_be in enumerate(tuple(sets)):
            for column in columns:
                after = before(can_be & with_head[column])
                if after not in numbers:
                    numbers[after] = len(sets)
                    sets.append(after)
                    rows.append([None] * len(with_head))
                rows[state][column] = numbers[after]
            _check_states(len(sets))
    return _Table(tuple(map(tuple, rows)), tuple(map(steps.sources, sets)))


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
    moves = [tuple(free if after is None else after for after in row) for row in table.moves]
    moves.append((free,) * len(_heads(network)))
    return _Table(tuple(moves), (*(sources - stops for stops in table.stopping), sources))


def _query(text: str, network: Network, table: _Table) -> Query:
    """Keep the states and moves that a path read backward can meet, in the order it meets them.

    In place of each state stands the first one met that agrees with it on all paths through the
    layers that are left. Whatever heads are read, the state that is reached then agrees with the
    true one on all that can still come, so the same paths match.
    """
    alike = _alike(table, network)
    met = [0]
    rows: list[list[int | None]] = [[None] * len(_heads(network))]
    for layer, columns in reversed(list(enumerate(_columns(network)))):
        stands: dict[int, int] = {}
        for number, state in enumerate(met):
            stands.setdefault(alike[layer][state], number)
        for number, state in enumerate(tuple(met)):
            for column in columns:
                after = table.moves[state][column]
                kind = 0 if after is None else alike[layer][after]
                if after is None or not kind:
                    continue
                if kind not in stands:
                    stands[kind] = len(met)
                    met.append(after)
                    rows.append([None] * len(rows[0]))
                rows[number][column] = stands[kind]
    moves = tuple(map(tuple, rows))
    return Query(text, network, moves, tuple(table.stopping[state] for state in met))


def _alike(table: _Table, network: Network) -> list[list[int]]:
    """Give states one number, at each boundary, if they agree on all paths through earlier layers.

    States that match none of these paths have number 0.
    """
    kinds = [0] * len(table.moves)
    levels = []
    for boundary, columns in enumerate((range(0), *_columns(network))):
        # What agreed before can differ by a source born here or by a head of the layer before.
        born = {each.label for each in network.sources if each.boundary == boundary}
        numbers: dict[object, int] = {(0, frozenset(), (0,) * len(columns)): 0}
        signs = []
        for kind, stops, row in zip(kinds, table.stopping, table.moves, strict=True):
            afters = (row[column] for column in columns)
            heads = tuple(0 if after is None else kinds[after] for after in afters)
            signs.append((kind, stops & born, heads))
        kinds = [numbers.setdefault(sign, len(numbers)) for sign in signs]
        levels.append(kinds)
    return levels


def _columns(network: Network) -> list[range]:
    """Return the columns that the heads of each layer have in a table of moves."""
    ends = list(accumulate(map(len, network.layers), initial=0))
    return list(map(range, ends, ends[1:]))


def _heads(network: Network) -> tuple[Head, ...]:
    return tuple(head for layer in network.layers for head in layer)


# --- listing ----------------------------------------------------------------------------------


class _Forward:
    """The automaton walked from the source on, only where the rest of a path can follow.

    A set of states, as a bit mask, stands for a place between two heads: from each of them,
    reading backward, what was chosen up to there matches.
    """

    def __init__(self, query: Query, network: Network, highest: int) -> None:
        self.query = query
        self.network = network
        self.highest = highest
        self.steps = {
            head: [
                (state, after)
                for state in range(query.states)
                if (after := query.step(state, head)) is not None
            ]
            for head in _heads(network)
        }
        # For each order and boundary, the states that so many heads after the boundary can reach.
        self.reach = [[1 << query.start] * (network.depth + 1)]
        self.known: dict[tuple[int, int, int], tuple[tuple[Head, int], ...]] = {}

    def paths(self) -> Iterator[Path]:
        for order in range(self.highest + 1):
            for source in self.network.sources:
                born = self.network.depth if source.boundary is None else source.boundary
                for heads in self.chains(self.stops(source.label, order, born), born, order):
                    yield Path(source.label, heads)
            self.reach.append(self.one_head_more())

    def one_head_more(self) -> list[int]:
        reach = [0]
        for layer in reversed(self.network.layers):
            later = self.reach[-1][self.network.depth + 1 - len(reach)]
            found = reach[-1]
            for state, after in {step for head in layer for step in self.steps[head]}:
                found |= (later >> state & 1) << after
            reach.append(found)
        return reach[::-1]

    def stops(self, source: str, order: int, boundary: int) -> int:
        states = range(self.query.states)
        found = sum(1 << state for state in states if source in self.query.stops(state))
        return found & self.reach[order][boundary]

    def chains(self, states: int, boundary: int, order: int) -> Iterator[tuple[Head, ...]]:
        """Yield the ways on from these states through `order` heads, in lexicographic order."""
        if not states or not order:
            yield from [()] * bool(states)
            return
        chosen: list[Head] = []
        branches = [iter(self.choices(states, boundary, order))]
        while branches:
            choice = next(branches[-1], None)
            if choice is None:
                branches.pop()
                if chosen:
                    chosen.pop()
                continue
            head, states = choice
            missing = order - len(branches)
            if not missing:
                yield (*chosen, head)
                continue
            chosen.append(head)
            branches.append(iter(self.choices(states, head.layer + 1, missing)))

    def choices(self, states: int, boundary: int, order: int) -> tuple[tuple[Head, int], ...]:
        """Return the heads that `order` more can begin with, and the states after each of them."""
        key = states, boundary, order
        if key not in self.known:
            found = []
            for layer in self.network.layers[boundary:]:
                for head in layer:
                    between = sum(
                        1 << state for state, after in self.steps[head] if states >> after & 1
                    )
                    between &= self.reach[order - 1][head.layer + 1]
                    if between:
                        found.append((head, between))
            self.known[key] = tuple(found)
        return self.known[key]
