"""Queries: they match what a regular expression matches, count it, list it, and say what is wrong.

The oracle is Python's own `re`: each label becomes one letter, and a query is built together with
a pattern over these letters, by rules of its own.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import FrozenInstanceError, dataclass, replace
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pathexpand.errors import CompositionError, LimitError, NotationError
from pathexpand.symbolic import Head, Network, Path
from pathexpand.symbolic import query as query_module
from pathexpand.symbolic import query_text as text_module
from pathexpand.symbolic.query import Query, everything, parse_query
from pathexpand.symbolic.query_text import (
    QUERY_LANGUAGE,
    HeadStep,
    Pattern,
    Repeat,
    Series,
    SourceStep,
    negate,
)

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# --- random networks, and random queries with their oracle -------------------------------------


@st.composite
def networks(draw: st.DrawFn) -> Network:
    depth = draw(st.sampled_from((3, 2, 4, 1, 0)))
    sizes = [draw(st.sampled_from((2, 3, 1, 0))) for _ in range(depth)]
    sources = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    return Network.attention_only(
        heads=tuple(sizes),
        positions=sources[0],
        biases=sources[1],
        unembed_bias=sources[2],
    )


@dataclass(frozen=True)
class Piece:
    """A part of a query's text, and what it means."""

    text: str
    pattern: str


class Letters:
    """One letter for each label of a network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.sources = [source.label for source in network.sources]
        self.heads = [f"L{head.layer}H{head.index}" for head in all_heads(network)]
        labels = self.sources + self.heads
        self.letter = {label: chr(0xE000 + number) for number, label in enumerate(labels)}

    def one_of(self, labels: Sequence[str]) -> str:
        return "[" + "".join(map(self.letter.__getitem__, labels)) + "]" if labels else "(?!)"

    def word(self, path: Path) -> str:
        return "".join(self.letter[label] for label in str(path).split(" > "))


def all_heads(network: Network) -> list[Head]:
    return [head for layer in network.layers for head in layer]


def source_labels(letters: Letters) -> st.SearchStrategy[tuple[str, list[str]]]:
    """Draw a label of sources with the sources that it names."""
    named = [(label, [label]) for label in letters.sources]
    constants = [label for label in letters.sources if label.endswith("bias")]
    if constants:
        named.append(("L*bias", constants))
        named.append((f"L0-{len(constants) - 1}bias", constants))
        named.append((f"L{len(constants) - 1}-{len(constants) - 1}bias", constants[-1:]))
    return st.sampled_from(named)


def head_labels(letters: Letters) -> st.SearchStrategy[tuple[str, list[str]]]:
    """Draw a label of heads with the heads that it names."""
    heads = all_heads(letters.network)
    spans = {"*": range(100)} | {str(n): range(n, n + 1) for n in range(4)}
    spans |= {f"{low}-{high}": range(low, high + 1) for high in range(4) for low in range(high)}
    named = []
    for layers, layer_range in spans.items():
        for indices, index_range in spans.items():
            inside = [head for head in heads if head.layer in layer_range]
            ends = [] if indices == "*" else [index_range[0], index_range[-1]]
            known = {head.index for head in inside}
            deep = layers == "*" or layer_range[-1] < letters.network.depth
            if deep and (inside or layers == "*") and known.issuperset(ends):
                found = [head.label for head in inside if head.index in index_range]
                named.append((f"L{layers}H{indices}", found))
    return st.sampled_from(named)


@st.composite
def atoms(
    draw: st.DrawFn, labels: st.SearchStrategy[tuple[str, list[str]]], alphabet: list[str]
) -> tuple[str, list[str]]:
    """Draw a label, a set of labels, or a negation of these."""
    text, found = draw(labels)
    if draw(st.booleans()):
        members = [(text, found), *draw(st.lists(labels, max_size=2))]
        comma = draw(st.sampled_from((",", ", ", " , ")))
        text = "{" + comma.join(member for member, _ in members) + "}"
        found = [label for label in alphabet if any(label in each for _, each in members)]
    if draw(st.integers(0, 2)) == 0:
        text = "!" + draw(st.sampled_from(("", " "))) + text
        found = [label for label in alphabet if label not in found]
    return text, found


@st.composite
def source_steps(draw: st.DrawFn, letters: Letters) -> Piece:
    if draw(st.integers(0, 5)) == 0:
        return Piece("any", letters.one_of(letters.sources))
    text, found = draw(atoms(source_labels(letters), letters.sources))
    return Piece(text, letters.one_of(found))


@st.composite
def head_steps(draw: st.DrawFn, letters: Letters, depth: int = 2) -> Piece:
    kind = draw(st.integers(0, 9 if depth else 6))
    anything = letters.one_of(letters.heads)
    if kind == 0:
        return Piece("*", anything + "*")
    if kind == 1:
        return Piece("+", anything + "+")
    if kind == 2:
        piece = Piece(".", anything)
    elif kind > 6:
        piece = draw(choices(head_series(letters, depth - 1)))
        piece = Piece(f"({piece.text})", piece.pattern)
    else:
        text, found = draw(atoms(head_labels(letters), letters.heads))
        piece = Piece(text, letters.one_of(found))
    mark = draw(st.sampled_from(("", "", "?", "*", "+")))
    bare = piece.text if mark != "*" or piece.text[-1] in ".})" else f"({piece.text})"
    return Piece(bare + mark, f"(?:{piece.pattern}){mark}")


@st.composite
def joined(draw: st.DrawFn, pieces: Sequence[Piece]) -> Piece:
    arrow = draw(st.sampled_from((" > ", ">", "->", " → ", "\n> ")))
    text = arrow.join(piece.text for piece in pieces)
    return Piece(text, "".join(piece.pattern for piece in pieces))


@st.composite
def head_series(draw: st.DrawFn, letters: Letters, depth: int = 2) -> Piece:
    steps = draw(st.lists(head_steps(letters, depth), min_size=1, max_size=3))
    return draw(joined(steps))


@st.composite
def choices(draw: st.DrawFn, parts: st.SearchStrategy[Piece]) -> Piece:
    found = draw(st.lists(parts, min_size=1, max_size=2))
    bar = draw(st.sampled_from((" | ", "|")))
    pattern = "|".join(piece.pattern for piece in found)
    return Piece(bar.join(piece.text for piece in found), f"(?:{pattern})")


@st.composite
def whole_series(draw: st.DrawFn, letters: Letters, depth: int = 1) -> Piece:
    """Draw a piece that a query can be: with a source, with none, or with a choice of starts."""
    kind = draw(st.integers(0, 3 if depth else 2))
    if kind == 0:
        return draw(source_steps(letters))
    if kind == 1:
        piece = draw(head_series(letters))
        return Piece(piece.text, letters.one_of(letters.sources) + piece.pattern)
    if kind == 2:
        start = draw(source_steps(letters))
    else:
        start = draw(choices(whole_series(letters, depth - 1)))
        start = Piece(f"({start.text})", start.pattern)
    return draw(joined((start, draw(head_series(letters)))))


@dataclass(frozen=True)
class Case:
    """A query about a network, and the paths it should match."""

    network: Network
    text: str
    pattern: str
    negated: bool

    def expected(self) -> list[Path]:
        letters = Letters(self.network)
        wanted = re.compile(self.pattern)
        return [
            path
            for path in self.network.paths()
            if (wanted.fullmatch(letters.word(path)) is not None) != self.negated
        ]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    network = draw(networks())
    piece = draw(choices(whole_series(Letters(network))))
    negated = draw(st.integers(0, 4)) == 0
    return Case(network, "not " * negated + piece.text, piece.pattern, negated)


# --- the law ------------------------------------------------------------------------------------


def check_law(case: Case) -> None:
    query = query_module.parse_query(case.text, case.network)
    paths = list(case.network.paths())
    expected = case.expected()
    assert [path for path in paths if query.matches(path)] == expected
    assert query.count() == len(expected)
    assert query.count_by_order() == by_order(expected)
    assert list(query.paths()) == expected
    others = query.complement()
    left = [path for path in paths if path not in expected]
    assert [path for path in paths if others.matches(path)] == left
    assert others.count() == len(left)
    check_dead_ends(query, paths, expected)


def by_order(paths: Sequence[Path]) -> tuple[int, ...]:
    orders = [path.order for path in paths]
    return tuple(map(orders.count, range(max(orders) + 1))) if orders else ()


def check_dead_ends(query: Query, paths: Sequence[Path], expected: Sequence[Path]) -> None:
    """A state is None exactly when no matching path ends in the heads that were read."""
    live = {path.components[cut:] for path in expected for cut in range(path.order)}
    for path in paths:
        state: int | None = query.start
        for cut in reversed(range(path.order)):
            assert state is not None
            state = query.step(state, path.components[cut])
            assert (state is not None) == (path.components[cut:] in live)
            if state is None:
                break


@relaxed
@given(cases())
def test_a_query_matches_what_the_oracle_matches(case: Case) -> None:
    check_law(case)


# --- the law catches broken automata -----------------------------------------------------------


Breaker = Callable[[pytest.MonkeyPatch], None]
BROKEN: dict[str, Breaker] = {}


def broken(function: Breaker) -> Breaker:
    BROKEN[function.__name__] = function
    return function


@broken
def steps_follow_in_the_wrong_direction(patch: pytest.MonkeyPatch) -> None:
    join = query_module._Steps._join
    patch.setattr(
        query_module._Steps, "_join", lambda self, earlier, later: join(self, later, earlier)
    )


@broken
def a_path_is_read_forward(patch: pytest.MonkeyPatch) -> None:
    def matches(self: Query, path: Path) -> bool:
        state: int | None = self.start
        for head in path.components:
            state = None if state is None else self.step(state, head)
        return state is not None and path.source in self.stops(state)

    patch.setattr(Query, "matches", matches)


def repeat_signs(patch: pytest.MonkeyPatch, change: Callable[[Repeat], Repeat]) -> None:
    add = query_module._Steps._add_repeat
    patch.setattr(
        query_module._Steps, "_add_repeat", lambda self, pattern: add(self, change(pattern))
    )


@broken
def plus_is_treated_as_star(patch: pytest.MonkeyPatch) -> None:
    repeat_signs(patch, lambda each: replace(each, optional=each.optional or each.again))


@broken
def star_is_treated_as_plus(patch: pytest.MonkeyPatch) -> None:
    repeat_signs(patch, lambda each: replace(each, optional=each.optional and not each.again))


@broken
def star_is_treated_as_question_mark(patch: pytest.MonkeyPatch) -> None:
    repeat_signs(patch, lambda each: replace(each, again=each.again and not each.optional))


@broken
def negation_forgets_the_other_layers(patch: pytest.MonkeyPatch) -> None:
    single = text_module._Reader.single

    def forgetful(self: text_module._Reader) -> Pattern:
        negated = self.peek().text == "!"
        step = single(self)
        if not negated or not isinstance(step, HeadStep):
            return step
        layers = {head.layer for head in self.heads - step.heads}
        return HeadStep(frozenset(head for head in step.heads if head.layer in layers))

    patch.setattr(text_module._Reader, "single", forgetful)


@broken
def negation_is_dropped(patch: pytest.MonkeyPatch) -> None:
    single = text_module._Reader.single
    patch.setattr(text_module._Reader, "single", lambda self: (self.skip("!"), single(self))[1])


@broken
def a_missing_source_means_the_first_one(patch: pytest.MonkeyPatch) -> None:
    read = text_module._Reader.from_source

    def from_first(self: text_module._Reader, pattern: Pattern) -> Pattern:
        found = read(self, pattern)
        if isinstance(found, Series) and text_module._first_source(pattern) is None:
            found = Series((SourceStep(frozenset(self.sources[:1])), pattern))
        return found

    patch.setattr(text_module._Reader, "from_source", from_first)


@broken
def a_query_may_be_empty_in_the_middle(patch: pytest.MonkeyPatch) -> None:
    def add_series(self: query_module._Steps, pattern: Series) -> query_module._Ends:
        ends = [self.add(each) for each in pattern.parts]
        for earlier, later in pairwise(ends):  # an empty part in between is not stepped over
            self._join(earlier.last, later.first)
        return query_module._Ends(ends[0].first, ends[-1].last, empty=False)

    patch.setattr(query_module._Steps, "_add_series", add_series)


@broken
def the_complement_does_not_go_on(patch: pytest.MonkeyPatch) -> None:
    def complement(table: query_module._Table, network: Network) -> query_module._Table:
        sources = frozenset(source.label for source in network.sources)
        return query_module._Table(table.moves, tuple(sources - stops for stops in table.stopping))

    patch.setattr(query_module, "_complement", complement)


@broken
def the_complement_keeps_the_sources(patch: pytest.MonkeyPatch) -> None:
    complement = query_module._complement

    def keeping(table: query_module._Table, network: Network) -> query_module._Table:
        turned = complement(table, network)
        return replace(turned, stopping=(*table.stopping, turned.stopping[-1]))

    patch.setattr(query_module, "_complement", keeping)


def alike(patch: pytest.MonkeyPatch, change: Callable[[list[list[int]]], list[list[int]]]) -> None:
    original = query_module._alike
    patch.setattr(query_module, "_alike", lambda table, network: change(original(table, network)))


@broken
def states_are_merged_that_differ_one_layer_up(patch: pytest.MonkeyPatch) -> None:
    alike(patch, lambda levels: [levels[0], *levels[:-1]])


@broken
def dead_states_are_kept(patch: pytest.MonkeyPatch) -> None:
    alike(patch, lambda levels: [[kind + 1 for kind in kinds] for kinds in levels])


@broken
def constants_pass_through_their_own_layer(patch: pytest.MonkeyPatch) -> None:
    add = Query._add_stops

    def early(self: Query, counts: Any, ways: Any, network: Network, boundary: Any) -> None:
        shifted = boundary + 1 if boundary else boundary
        add(self, counts, ways, network, shifted)
        if boundary == 1:
            add(self, counts, ways, network, 1)

    patch.setattr(Query, "_add_stops", early)


@broken
def a_layer_must_be_passed_through(patch: pytest.MonkeyPatch) -> None:
    through = Query._through

    def no_residual(self: Query, ways: Any, layer: tuple[Head, ...]) -> Any:
        after = through(self, ways, layer)
        return {
            state: [
                number - (ways.get(state, []) + [0] * len(numbers))[order]
                for order, number in enumerate(numbers)
            ]
            for state, numbers in after.items()
        }

    patch.setattr(Query, "_through", no_residual)


@broken
def the_list_turns_back_too_early(patch: pytest.MonkeyPatch) -> None:
    more = query_module._Forward.one_head_more
    patch.setattr(query_module._Forward, "one_head_more", lambda self: [*more(self)[1:], 0])


@pytest.mark.parametrize("name", BROKEN)
def test_the_law_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN[name](monkeypatch)
    law = settings(
        max_examples=1000,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )(given(cases())(check_law))
    with pytest.raises(AssertionError):
        law()


# --- single queries, with what they mean worked out by hand ------------------------------------


FULL = Network.attention_only(heads=(7, 2, 5, 3, 6), positions=True, biases=True, unembed_bias=True)
SMALL = Network.attention_only(2, 12, positions=True)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("*", 2 * 13**2),
        ("+", 2 * 13**2 - 2),
        ("any", 2),
        ("embed", 1),
        ("embed > *", 13**2),
        ("embed > * > L1H6", 13),
        ("* > {L1H0, L1H2}", 2 * 2 * 13),
        ("* > L0H* > *", 2 * 12 * 13),
        ("embed > (!L0H3)*", 12 * 13),
        (".", 2 * 24),
        ("L*H*", 2 * 24),
        ("L*H3", 2 * 2),
        ("(L0H*)*", 2 * 13),
        ("!{embed} > L0H0-4 > L1H11", 5),
        ("L0-1H0->L1H1", 2),
        ("pos > (L0H1 > L1H2 | L0H3)", 2),
        ("embed > L0H1 | pos > L1H2 | L0H0", 4),
        ("(embed | pos > L0H1) > L1H2", 2),
        ("embed > L0H1? > L1H2", 2),
        ("!L0H*", 2 * 12),
        ("not embed > L0H1", 2 * 13**2 - 1),
        ("not (embed > * | pos > *)", 0),
        ("not *", 0),
        ("!{embed, pos} > *", 0),
        ("L1H0 > L0H0", 0),
    ],
)
def test_counts_worked_out_by_hand(text: str, count: int) -> None:
    query = parse_query(text, SMALL)
    assert query.count() == count
    assert len(list(query.paths())) == count
    assert query.complement().count() == SMALL.count() - count


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("*", 1),
        ("+", 2),
        ("embed > *", 1),
        ("embed > (!L0H3)*", 1),
        ("* > L0H* > *", 2),
        ("L0H1 > *", 2),
        ("* > L4H1", 2),
        (" > ".join([".?"] * 5), 1),
        ("* > * > (* | +)", 1),
        ("not *", 1),
        ("L1H0 > L0H0", 1),
        ("b_U > *", 1),
    ],
)
def test_few_states(text: str, states: int) -> None:
    assert parse_query(text, FULL).states == states


def test_everything_is_one_state_that_steps_and_stops_everywhere() -> None:
    query = everything(FULL)
    assert (query.states, query.start, query.text) == (1, 0, "*")
    assert {query.step(0, head) for head in all_heads(FULL)} == {0}
    assert query.stops(0) == {source.label for source in FULL.sources}
    assert query.count_by_order() == FULL.count_by_order()
    assert list(query.paths(max_order=2)) == list(FULL.paths(max_order=2))


@relaxed
@given(networks())
def test_everything_matches_everything(network: Network) -> None:
    assert list(everything(network).paths()) == list(network.paths())
    assert everything(network).count_by_order() == network.count_by_order()
    nothing = everything(network).complement()
    assert (nothing.count(), nothing.count_by_order(), list(nothing.paths())) == (0, (), [])


@relaxed
@given(networks(), st.data())
def test_a_path_as_it_is_printed_asks_for_itself(network: Network, data: st.DataObject) -> None:
    paths = list(network.paths())
    path = data.draw(st.sampled_from(paths))
    assert list(parse_query(str(path), network).paths()) == [path]


@relaxed
@given(cases())
def test_text_and_query_belong_together(case: Case) -> None:
    query = parse_query(case.text, case.network)
    assert query.text == case.text
    assert parse_query(query.text, case.network) == query
    other = query.complement()
    assert list(parse_query(other.text, case.network).paths()) == list(other.paths())
    assert list(other.complement().paths()) == list(query.paths())
    assert negate(negate(query.text)) == query.text


@relaxed
@given(networks(), st.data())
def test_a_list_of_paths_asks_for_these(network: Network, data: st.DataObject) -> None:
    paths = list(network.paths())
    some = data.draw(st.lists(st.sampled_from(paths), min_size=1))
    query = parse_query(" | ".join(map(str, some)), network)
    assert list(query.paths()) == [path for path in paths if path in some]


def test_thousands_of_alternatives_are_fine() -> None:
    network = Network.attention_only(12, 12)
    paths = list(islice(network.paths(), 100, 3100))
    query = parse_query(" | ".join(map(str, paths)), network)
    assert list(query.paths()) == paths
    assert query.complement().count() == network.count() - 3000


def test_a_large_network_is_counted_and_listed_without_enumeration() -> None:
    network = Network.attention_only(60, 64, positions=True)
    query = parse_query("embed > * > L30H7 > * > L59H*", network)
    assert query.count() == 65**30 * 65**28 * 64
    assert [str(path) for path in islice(query.paths(), 2)] == [
        "embed > L30H7 > L59H0",
        "embed > L30H7 > L59H1",
    ]
    deep = Network.attention_only(2000, 1)
    query = parse_query("embed > * > L1000H0 > *", deep)
    assert query.count() == 2**1999
    assert str(next(query.paths())) == "embed > L1000H0"
    last = parse_query(" > ".join(f"L{layer}H63" for layer in range(60)), network)
    assert [path.order for path in last.paths()] == [60, 60]


def test_paths_stop_at_the_highest_order() -> None:
    query = parse_query("* > L1H0 > *", FULL)
    some = list(query.paths(max_order=2))
    assert some == [path for path in FULL.paths(2) if Head(1, 0) in path.components]
    assert list(query.paths(max_order=0)) == []
    with pytest.raises(LimitError, match="max_order: wanted 0 or more, or None, got -1"):
        query.paths(max_order=-1)


@relaxed
@given(cases(), st.data())
def test_a_part_of_the_network_is_counted_too(case: Case, data: st.DataObject) -> None:
    network = case.network
    layers = tuple(
        tuple(head for head in layer if data.draw(st.booleans())) for layer in network.layers
    )
    part = Network(layers, network.sources[: data.draw(st.integers(1, len(network.sources)))])
    inside = set(part.paths())
    expected = [path for path in case.expected() if path in inside]
    query = parse_query(case.text, network)
    assert list(query.paths(part)) == expected
    assert query.count(part) == len(expected)
    assert query.count_by_order(part) == by_order(expected)


@pytest.mark.parametrize(
    ("network", "label"),
    [
        (Network.attention_only(heads=(12, 13)), "L1H12"),
        (Network.attention_only(3, 12), "L2H0"),
        (Network.attention_only(2, 12, biases=True), "L0bias"),
    ],
)
def test_another_network_is_refused(network: Network, label: str) -> None:
    query = parse_query("*", SMALL)
    for ask in (query.count, query.count_by_order, query.paths):
        with pytest.raises(CompositionError, match=f"made for, or a part of that, got .* {label}"):
            ask(network)


def test_a_path_of_another_network_does_not_match() -> None:
    query, others = parse_query("*", SMALL), parse_query("*", SMALL).complement()
    for text in ("embed > L0H12", "L0bias > L1H0", "embed > L0H1 > L2H0", "b_U"):
        assert not query.matches(Path.parse(text))
        assert not others.matches(Path.parse(text))
    assert query.step(query.start, Head(2, 0)) is None


# --- a query is a value ------------------------------------------------------------------------


def test_a_query_is_a_value() -> None:
    query = parse_query("* > L0H1", SMALL)
    assert query == parse_query(" * > L0H1\n", SMALL)
    assert hash(query) == hash(parse_query("* > L0H1", SMALL))
    assert query != parse_query("* > L0H1", Network.attention_only(2, 12))
    assert query != parse_query("* > L0H2", SMALL)
    again = pickle.loads(pickle.dumps(query))
    assert again == query
    assert again.count() == query.count()
    assert repr(query) == "Query(text='* > L0H1')"
    with pytest.raises(FrozenInstanceError):
        query.text = "*"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("moves", "stopping", "message"),
    [
        ((), (), "2 moves and a set of sources each, got 0 sets"),
        (((None,),), (frozenset(),), "states with 2 moves"),
        (((None, None),), (), "got 0 sets"),
        (((None, 1),), (frozenset(),), "states below 1, got a move to 1"),
        (((None, -1),), (frozenset(),), "states below 1, got a move to -1"),
        (((0, 0),), (frozenset({"pos"}),), "sources of the network, got 'pos'"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    moves: query_module.Moves, stopping: tuple[frozenset[str], ...], message: str
) -> None:
    with pytest.raises(CompositionError, match=message):
        Query("*", Network.attention_only(1, 2), moves, stopping)


def test_too_many_states_are_refused() -> None:
    network = Network.attention_only(20, 2)
    fits = parse_query(" > ".join(["."] * 8 + ["L*H1 > *"]), network)
    assert fits.states == 512
    text = " > ".join(["."] * 15 + ["L*H1 > *"])
    with pytest.raises(LimitError, match="query: wanted one that needs at most 4,096 states"):
        parse_query(text, network)


# --- what is wrong, and where ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("embed >", "column 8 of query 'embed >': wanted a step such as L0H1, *, { or (, got the"),
        ("embed > > L0H1", "column 9 .* got '>'"),
        ("L0H1 L1H0", "column 6 .* wanted >, | or the end, got 'L1H0'"),
        ("(L0H1 L1H0)", "column 7 .* wanted >, | or ), got 'L1H0'"),
        ("L0H1*", "column 5 .* wanted > after a label, got '*'; repeat a label as (L0H1)*"),
        ("!L0H3* > L1H0", "column 6 .* repeat a label as (!L0H3)*"),
        ("L0H* * > L1H0", "column 6 .* got '*'; a step is repeated by one sign right after it"),
        ("**", "column 2 .* got '*'; a step is repeated by one sign right after it"),
        ("(L0H1)?+", "column 8 .* got '+'; a step is repeated by one sign right after it"),
        ("(L0H1", "column 6 .* wanted >, | or ), got the end"),
        ("L0H1)", "column 5 .* wanted >, | or the end, got ')'"),
        ("()", "column 2 .* got ')'"),
        ("{}", "column 2 .* wanted a label in a set, got '}'"),
        ("{L0H1", "column 6 .* wanted , or } in a set, got the end"),
        ("{L0H1 | L0H2}", "column 7 .* wanted , or } in a set, got '|'"),
        ("{embed, L0H1}", "column 9 .* wanted a source like the others in the set, got 'L0H1'"),
        ("{L0H1, embed}", "column 8 .* wanted a head like the others in the set, got 'embed'"),
        ("{L0H1, !L0H2}", "column 8 .* wanted a label in a set, got '!'"),
        ("{any}", "column 2 .* wanted a label, got 'any'; any is a step of its own"),
        ("embed > pos", "column 9 .* wanted a head, got 'pos'; a source stands only at the start"),
        ("* > embed", "column 5 .* wanted a head, got 'embed'; a source stands only"),
        ("L0H1 > (L1H0 | any)", "column 16 .* wanted a head, got 'any'"),
        ("(L0H1 > !{pos}) > .", "column 9 .* wanted a head, got '!'"),
        ("embed*", "column 1 .* wanted a source once, got 'embed'; only heads are optional or"),
        ("(L0H1 | {embed} > L1H0)+", "column 9 .* wanted a source once, got '{'"),
        ("!any", "column 2 .* wanted a label, got 'any'"),
        ("!*", "column 2 .* wanted a label or a set after !, got '*'"),
        ("!(L0H1)", "column 2 .* wanted a label or a set after !, got '('"),
        ("not", "column 4 .* got the end"),
        ("* > not L0H1", "column 5 .* got 'not'; not stands at the very start, ! before a step"),
        ("L0H1 | ", "column 7 .* got the end"),
        ("L0H1, L0H2", "column 5 .* got ','"),
        ("L01H1", "column 1 .* or a head (L0H0 … L4H5), got 'L01H1'"),
        ("embed > L0", "column 9 .* got 'L0'"),
        ("L* > L1H0", "column 1 .* got 'L*'"),
        ("wte > *", "column 1 .* wanted a source (embed … b_U) or a head (L0H0 … L4H5), got 'wte'"),
        ("embed > L5H0", "column 9 of query 'embed > L5H0': wanted layer 0 to 4, got 'L5H0'"),
        ("embed > L0-5H0", "column 9 .* wanted layer 0 to 4, got 'L0-5H0'"),
        ("embed > L1H2", "column 9 .* wanted head 0 to 1 of layer 1, got 'L1H2'"),
        ("L1-3H0-5", "column 1 .* wanted head 0 to 4 of layer 1-3, got 'L1-3H0-5'"),
        ("L*H7", "column 1 .* wanted head 0 to 6 of any layer, got 'L*H7'"),
        ("L3-1H0", "column 1 .* wanted a range that rises, not 3-1, got 'L3-1H0'"),
        ("L5bias", "column 1 .* wanted a source (embed … b_U), got 'L5bias'"),
        ("L" + "9" * 5000 + "H0", "column 1 of query 'L9999.*…': .* got 'L9999.*…'"),
        ("*\t>\tx", "column 5 of query '* > x': .* got 'x'"),
        ("embed >\n  L0H1 >\n L0H99", "line 3, column 2 of query ' L0H99': .* got 'L0H99'"),
        ("* >\N{NO-BREAK SPACE}L0H9", "column 5 of query '* > L0H9': .* got 'L0H9'"),
        ("* > \N{LATIN SMALL LETTER E WITH ACUTE}", "column 5 of query .* got 'é'"),
        ("L0H1 >\n\n", "column 7 of query 'L0H1 >': .* got the end"),
        ("(" * 101 + "." + ")" * 101, "column 101 .* wanted at most 100 parentheses inside each"),
        ("L0H1 > " * 40 + "L0H44" + " > L0H1" * 40, "column 281 of query '….* L0H44 .*…': "),
        ("", "query: wanted steps such as embed > * > L1H6, got nothing; * alone asks for all"),
        (" \n", "query: wanted steps such as embed > * > L1H6, got nothing"),
    ],
)
def test_an_error_points_at_the_place(text: str, message: str) -> None:
    with pytest.raises(NotationError) as caught:
        parse_query(text, FULL)
    told = str(caught.value)
    assert re.match(".*".join(map(re.escape, message.split(".*"))), told), told
    assert "\n" not in told
    assert len(told) < 300


@pytest.mark.parametrize(
    ("network", "text", "message"),
    [
        (Network.attention_only(0), "L0H*", "a source, since the network has no heads, got 'L0H*'"),
        (Network.attention_only(heads=(0, 3)), "L0H*", "a layer that has heads, got 'L0H*'"),
        (Network.attention_only(2, 1), "pos", "a source (embed) or a head (L0H0, L1H0), got"),
        (Network.attention_only(2, 1), "L*bias", "a source (embed), got 'L*bias'"),
        (Network.attention_only(2, 1), "L0H1", "head 0 of layer 0, got 'L0H1'"),
        (Network.attention_only(1, 1), "L1H0", "layer 0, got 'L1H0'"),
        (
            Network(((Head(0, 1), Head(0, 4)),), Network.attention_only(1).sources),
            "L0H2",
            "head 1, 4 of layer 0, got 'L0H2'",
        ),
    ],
)
def test_what_a_network_lacks(network: Network, text: str, message: str) -> None:
    with pytest.raises(NotationError, match=f"column 1 .*: wanted {re.escape(message)}"):
        parse_query(text, network)


@relaxed
@given(cases(), st.data())
def test_a_wrong_label_is_found_where_it_stands(case: Case, data: st.DataObject) -> None:
    places = [match.span() for match in re.finditer(r"L[\d*-]+H[\d*-]*[\d*]", case.text)]
    if not places:
        return
    start, end = data.draw(st.sampled_from(places))
    text = case.text[:start] + "L77H0" + case.text[end:]
    line, column = text[:start].count("\n") + 1, start - text[:start].rfind("\n")
    place = f"line {line}, column {column}" if "\n" in text else f"column {column}"
    with pytest.raises(NotationError, match=f"^{place} of query .*, got 'L77H0'"):
        parse_query(text, case.network)


TOKENS = (
    *("embed", "pos", "L0bias", "L*bias", "b_U", "any", "not", "L0H1", "L1H*", "L*H0", "L0-1H0"),
    *("L9H9", "foo", " ", "\n", ">", "->", "→", "(", ")", "{", "}", ",", "|", "!", ".", "*", "+"),
    *("?", "-", "é"),
)


@relaxed
@given(networks(), st.lists(st.sampled_from(TOKENS), max_size=9).map("".join))
def test_any_text_is_a_query_or_a_notation_error(network: Network, text: str) -> None:
    try:
        query = parse_query(text, network)
    except NotationError as error:
        assert "\n" not in str(error)
    else:
        assert query.count() + query.complement().count() == network.count()


# --- the language as it is documented ----------------------------------------------------------


def documented() -> Iterator[str]:
    for line in QUERY_LANGUAGE.splitlines():
        if line.startswith("  "):
            left = re.split(r"\s{2,}", line.strip())[0]
            yield from re.split(r", (?![^{]*\})", left)


def test_every_example_in_the_description_is_a_query() -> None:
    examples = list(documented())
    assert len(examples) > 25
    for text in examples:
        assert parse_query(text, SHOWN).count() + parse_query(text, SHOWN).complement().count() == (
            SHOWN.count()
        )


SHOWN = Network.attention_only(4, 7, positions=True, biases=True, unembed_bias=True)
