"""Queries: they match what a regular expression matches, count it, list it, and say what is wrong.

The oracle is Python's own `re`: each label becomes one letter, and a query is built together with
a pattern over these letters, by rules of its own.
"""

from __future__ import annotations

import contextlib
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
from pathexpand.symbolic import Head, Mlp, Network, Neuron, Path, Source
from pathexpand.symbolic import query as query_module
from pathexpand.symbolic import query_text as text_module
from pathexpand.symbolic.query import Query, everything, parse_query
from pathexpand.symbolic.query_text import (
    QUERY_LANGUAGE,
    ComponentStep,
    Pattern,
    Repeat,
    Series,
    SourceStep,
    negate,
)

from .strategies import networks as any_networks

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# --- random networks, and random queries with their oracle -------------------------------------


@st.composite
def attention_networks(draw: st.DrawFn) -> Network:
    depth = draw(st.sampled_from((3, 2, 4, 1, 0)))
    sizes = [draw(st.sampled_from((2, 3, 1, 0))) for _ in range(depth)]
    sources = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    return Network.attention_only(
        heads=tuple(sizes),
        positions=sources[0],
        biases=sources[1],
        unembed_bias=sources[2],
    )


def networks() -> st.SearchStrategy[Network]:
    """Draw networks of a few hundred paths, half of them with MLPs of all kinds."""
    return attention_networks() | any_networks(heads=st.sampled_from((1, 2, 0)))


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
        self.components = [each.label for each in network.components]
        labels = self.sources + self.components
        self.letter = {label: chr(0xE000 + number) for number, label in enumerate(labels)}

    def one_of(self, labels: Sequence[str]) -> str:
        return "[" + "".join(map(self.letter.__getitem__, labels)) + "]" if labels else "(?!)"

    def word(self, path: Path) -> str:
        return "".join(self.letter[label] for label in str(path).split(" > "))


SPANS = (
    {"*": range(100)}
    | {str(n): range(n, n + 1) for n in range(4)}
    | {f"{low}-{high}": range(low, high + 1) for high in range(4) for low in range(high)}
)


def layer_of(source: str) -> int | None:
    match = re.fullmatch(r"L(\d+)(bias|M|Mbias)", source)
    return None if match is None else int(match[1])


def source_labels(letters: Letters) -> st.SearchStrategy[tuple[str, list[str]]]:
    """Draw a label of sources with the sources that it names."""
    named = [(label, [label]) for label in letters.sources]
    mlps = {each.layer for each in letters.network.components if isinstance(each, Mlp)}
    for ending in ("bias", "M", "Mbias"):
        layers = [n for n in range(4) if f"L{n}{ending}" in letters.sources]
        for text, span in SPANS.items():
            inside = [n for n in layers if n in span]
            known = text == "*" or {span[0], span[-1]} <= set(inside)
            if inside and known and not (ending == "M" and mlps & set(span)):
                named.append((f"L{text}{ending}", [f"L{n}{ending}" for n in inside]))
    return st.sampled_from(named)


def component_labels(letters: Letters) -> st.SearchStrategy[tuple[str, list[str]]]:
    """Draw a label of components with the components that it names."""
    network = letters.network
    named = [("L*H*", [each for each in letters.components if "H" in each])]
    layers = [each.layer for each in network.components]
    depth = 1 + max([*layers, *filter(None, map(layer_of, letters.sources))], default=-1)
    for layer_text, layer_span in SPANS.items():
        deep = layer_text == "*" or layer_span[-1] < depth
        inside = [each for each in network.components if deep and each.layer in layer_span]
        for letter, kind in (("H", Head), ("N", Neuron)):
            of_kind = [each for each in inside if isinstance(each, kind)]
            for text, span in SPANS.items():
                ends = [] if text == "*" else [span[0], span[-1]]
                if of_kind and {each.index for each in of_kind}.issuperset(ends):
                    found = [each.label for each in of_kind if each.index in span]
                    named.append((f"L{layer_text}{letter}{text}", found))
        mlps = [each.label for each in inside if isinstance(each, Mlp)]
        if mlps and not any(f"L{layer}M" in letters.sources for layer in layer_span):
            named.append((f"L{layer_text}M", mlps))
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
def component_steps(draw: st.DrawFn, letters: Letters, depth: int = 2) -> Piece:
    kind = draw(st.integers(0, 9 if depth else 6))
    anything = letters.one_of(letters.components)
    if kind == 0:
        return Piece("*", anything + "*")
    if kind == 1:
        return Piece("+", anything + "+")
    if kind == 2:
        piece = Piece(".", anything)
    elif kind > 6:
        piece = draw(choices(component_series(letters, depth - 1)))
        piece = Piece(f"({piece.text})", piece.pattern)
    else:
        text, found = draw(atoms(component_labels(letters), letters.components))
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
def component_series(draw: st.DrawFn, letters: Letters, depth: int = 2) -> Piece:
    steps = draw(st.lists(component_steps(letters, depth), min_size=1, max_size=3))
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
        piece = draw(component_series(letters))
        return Piece(piece.text, letters.one_of(letters.sources) + piece.pattern)
    if kind == 2:
        start = draw(source_steps(letters))
    else:
        start = draw(choices(whole_series(letters, depth - 1)))
        start = Piece(f"({start.text})", start.pattern)
    return draw(joined((start, draw(component_series(letters)))))


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
    for path in side_by_side(case.network):
        assert not query.matches(path) and not others.matches(path)


def side_by_side(network: Network) -> Iterator[Path]:
    """Yield paths through a head and then the MLP beside it, and from constants beside it."""
    for number, stage in enumerate(network.stages, start=1):
        if stage and stage[0].rank < stage[-1].rank:
            yield Path(network.sources[0].label, (stage[0], stage[-1]))
            for source in network.sources:
                if source == Source(f"L{stage[0].layer}bias", number):
                    yield Path(source.label, (stage[-1],))


def by_order(paths: Sequence[Path]) -> tuple[int, ...]:
    orders = [path.order for path in paths]
    return tuple(map(orders.count, range(max(orders) + 1))) if orders else ()


def check_dead_ends(query: Query, paths: Sequence[Path], expected: Sequence[Path]) -> None:
    """A state is None exactly when no matching path ends in what was read."""
    live = {path.components[cut:] for path in expected for cut in range(path.order)}
    for path in paths:
        state: int | None = query.start
        for cut in reversed(range(path.order)):
            assert state is not None
            component, before = path.components[cut], state
            state = query.step(before, component)
            place = query.network.place(component)
            assert place is not None
            assert query.after(before, place[0])[place[1]] == state
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
        for component in path.components:
            state = None if state is None else self.step(state, component)
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
        if not negated or not isinstance(step, ComponentStep):
            return step
        layers = {each.layer for each in self.components - step.components}
        kept = (each for each in step.components if each.layer in layers)
        return ComponentStep(frozenset(kept))

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
        stopping = tuple(sources - stops for stops in table.stopping)
        return replace(table, stopping=stopping)

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
def states_are_merged_that_differ_one_stage_up(patch: pytest.MonkeyPatch) -> None:
    alike(patch, lambda levels: [levels[0], *levels[:-1]])


@broken
def dead_states_are_kept(patch: pytest.MonkeyPatch) -> None:
    alike(patch, lambda levels: [[kind + 1 for kind in kinds] for kinds in levels])


@broken
def constants_pass_through_their_own_stage(patch: pytest.MonkeyPatch) -> None:
    add = Query._add_stops

    def early(self: Query, counts: Any, ways: Any, network: Network, boundary: Any) -> None:
        shifted = boundary + 1 if boundary else boundary
        add(self, counts, ways, network, shifted)
        if boundary == 1:
            add(self, counts, ways, network, 1)

    patch.setattr(Query, "_add_stops", early)


@broken
def a_stage_must_be_passed_through(patch: pytest.MonkeyPatch) -> None:
    through = Query._through

    def no_residual(self: Query, ways: Any, stage: int, groups: tuple[int, ...]) -> Any:
        after = through(self, ways, stage, groups)
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
    more = query_module._Forward.one_more
    patch.setattr(query_module._Forward, "one_more", lambda self: [*more(self)[1:], 0])


@broken
def a_group_counts_once(patch: pytest.MonkeyPatch) -> None:
    through = Query._through
    patch.setattr(
        Query,
        "_through",
        lambda self, ways, stage, groups: through(self, ways, stage, tuple(set(groups))),
    )


@broken
def groups_are_merged_that_differ(patch: pytest.MonkeyPatch) -> None:
    merge = query_module._merge

    def by_first_state(groups: Any, moves: Any, stage: int) -> tuple[int, ...]:
        rows = [each[stage] for each in moves]
        found = merge(groups, [moves[0]], stage)
        for each, row in zip(moves[1:], rows[1:], strict=True):
            each[stage] = tuple(
                row[groups[found.index(number)]] for number in range(len(moves[0][stage]))
            )
        return found

    patch.setattr(query_module, "_merge", by_first_state)


@broken
def parallel_components_follow_each_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Network, "__contains__", lambda self, path: True)


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


NEURONS = Network.transformer(2, 3, 5, mlp="neurons", biases=True)
PARALLEL = Network.transformer(2, 3, 5, mlp="neurons", biases=True, parallel=True)
FROZEN = Network.transformer(2, 3, mlp="frozen", biases=True)
WHOLE = Network.transformer(2, 3, mlp="source", biases=True)


@pytest.mark.parametrize(
    ("network", "text", "count"),
    [
        (NEURONS, "embed > *", (4 * 6) ** 2),
        (PARALLEL, "embed > *", 9**2),
        (FROZEN, "embed > *", (4 * 2) ** 2),
        (NEURONS, "*", (4 * 6) ** 2 + 6 * 24 + 24 + 6 + 1),
        (PARALLEL, "*", 9**2 + 2 * 9 + 2),
        (NEURONS, "embed > .", 2 * (3 + 5)),
        (NEURONS, "embed > . > .", 9 + 25 + 4 * 15),
        (PARALLEL, "embed > . > .", 8 * 8),
        (NEURONS, "embed > L0H1 > L0N4", 1),
        (PARALLEL, "embed > L0H1 > L0N4", 0),
        (NEURONS, "embed > * > L1N4", 24 * 4),
        (PARALLEL, "embed > * > L1N4", 9),
        (NEURONS, "embed > * > L0N* > *", 4 * 5 * 24),
        (NEURONS, "embed > L*N2", 2),
        (NEURONS, "embed > L0-1N0-2", 6),
        (NEURONS, "embed > {L0N3, L1H*, L*N0-1}", 1 + 3 + 4),
        (NEURONS, "embed > !{L0N3, L1H*, L*N0-1}", 16 - 8),
        (NEURONS, "embed > !L0N3", 15),
        (NEURONS, "embed > (!L*N*)*", 16),
        (NEURONS, "embed > (L*N*)+", 5 + 5 + 25),
        (NEURONS, "L0bias > *", 6 * 24),
        (NEURONS, "L0Mbias > *", 24),
        (NEURONS, "L*Mbias > *", 24 + 1),
        (NEURONS, "!{L*bias, L1Mbias}", 2),
        (NEURONS, "not embed > *", 6 * 24 + 24 + 6 + 1),
        (FROZEN, "embed > L*M", 2),
        (FROZEN, "embed > L0M > L1M", 1),
        (FROZEN, "L1M", 2 + 2),
        (FROZEN, "!L0-1M > L0M", 3),
        (WHOLE, "L0M > *", 4),
        (WHOLE, "L*M > *", 4 + 1),
        (WHOLE, "L0-1M", 2),
        (WHOLE, "{L1M, embed} > *", 1 + 16),
        (WHOLE, "!L*M > L1H0", 1 + 1),
        (WHOLE, "any", 1 + 2 + 2),
    ],
)
def test_neurons_and_mlps_worked_out_by_hand(network: Network, text: str, count: int) -> None:
    query = parse_query(text, network)
    assert query.count() == count
    assert len(list(query.paths())) == count
    assert query.complement().count() == network.count() - count


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
    assert {query.step(0, head) for head in FULL.components} == {0}
    assert [len(set(each)) for each in query.groups] == [1] * 5
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


LARGE = Network.transformer(12, 12, 3072, mlp="neurons", positions=True, biases=True)


def test_thousands_of_neurons_are_no_burden() -> None:
    query = parse_query("embed > * > L3N* > L5H1", LARGE)
    assert query.count() == (13 * 3073) ** 3 * 13 * 3072
    assert [len(set(each)) for each in query.groups] == [1] * 10 + [2] + [1] * 13
    assert str(next(query.paths())) == "embed > L3N0 > L5H1"
    assert str(next(islice(query.paths(), 3072, None))) == "embed > L0H0 > L3N0 > L5H1"
    after = query.step(query.start, Head(5, 1))
    assert after is not None
    assert query.after(after, 7) == (query.step(after, Neuron(3, 7)),) * 3072
    assert everything(LARGE).count_by_order() == LARGE.count_by_order()
    assert query.count() + query.complement().count() == LARGE.count()


def test_thousands_of_paths_through_neurons_are_fine() -> None:
    paths = list(islice(parse_query("embed > . > .", LARGE).paths(), 40_000, 43_000))
    assert {path.order for path in paths} == {2}
    query = parse_query(" | ".join(map(str, paths)), LARGE)
    assert list(query.paths()) == paths
    assert query.complement().count() == LARGE.count() - 3000


def test_alternatives_that_begin_alike_share_their_states() -> None:
    neurons = [Neuron(1 + number % 2, number // 2) for number in range(5000)]
    paths = [Path("embed", (Head(0, number % 12), each)) for number, each in enumerate(neurons)]
    query = parse_query(" | ".join(map(str, paths)), LARGE)
    assert query.states == 14
    assert list(query.paths()) == sorted(paths)


def test_steps_of_different_pieces_are_not_taken_for_each_other() -> None:
    text = "embed > (L0H0 > (L1H0 > L2H0) | L0H1 > (L1H0 > L2H1))"
    assert parse_query(text, FULL).count() == 2
    text = "embed > (L0H0? > L1H0 > L2H0 | L0H1? > L1H0 > L2H1)"
    assert parse_query(text, FULL).count() == 4
    text = "embed > ((L0H0 > L1H0) > L2H0 | (L0H1 | L1H0 > L2H1)+ > L4H0)"
    assert parse_query(text, FULL).count() == 1 + 3


def test_thousands_of_neurons_are_listed() -> None:
    labels = [f"L{3 + n % 2}N{n}" for n in range(0, 3000, 7)]
    query = parse_query("pos > {" + ", ".join(labels) + "}", LARGE)
    listed = [Path("pos", (Neuron(3 + n % 2, n),)) for n in range(0, 3000, 7)]
    assert list(query.paths()) == sorted(listed)


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
    stages = tuple(
        tuple(each for each in stage if data.draw(st.booleans())) for stage in network.stages
    )
    part = Network(stages, network.sources[: data.draw(st.integers(1, len(network.sources)))])
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
        (Network.transformer(2, 12, 1, mlp="neurons"), "L0N0"),
        (Network.transformer(2, 12, 1, mlp="source"), "L0M"),
    ],
)
def test_another_network_is_refused(network: Network, label: str) -> None:
    check_refused(parse_query("*", SMALL), network, label)


def test_other_stages_are_refused() -> None:
    check_refused(parse_query("*", PARALLEL), NEURONS, "L0N0 in another stage")
    check_refused(parse_query("*", NEURONS), PARALLEL, "L0H0 in another stage")
    stages = (*NEURONS.stages[:2], (), *NEURONS.stages[2:])
    assert parse_query("*", NEURONS).count(Network(stages, NEURONS.sources[:1])) == 24**2
    late = Network(((), NEURONS.stages[1]), (Source("L0bias", 1),))
    beside = Network(((), NEURONS.stages[1]), (Source("L0bias", 2),))
    assert parse_query("*", NEURONS).count(late) == 6
    check_refused(parse_query("*", NEURONS), beside, "L0bias born elsewhere")
    assert parse_query("*", PARALLEL).count(beside) == 1
    check_refused(parse_query("*", PARALLEL), late, "L0bias born elsewhere")


def check_refused(query: Query, network: Network, label: str) -> None:
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
    ("groups", "moves", "stopping", "message"),
    [
        (((0, 0),), (), (), "states with moves and a set of sources each, got 0 states, 0 sets"),
        (((0, 0),), (((None,),),), (), "got 1 states, 0 sets"),
        (((0, 0),), (((None, None),),), (frozenset(),), r"moves of [1] groups, got [2]"),
        (((0, 1),), (((None,),),), (frozenset(),), r"moves of [2] groups, got [1]"),
        (((0, 1),), (((),),), (frozenset(),), r"moves of [2] groups, got [0]"),
        (((0, 1),), ((),), (frozenset(),), r"moves of [2] groups, got []"),
        (((0,),), (((None,),),), (frozenset(),), r"a group for each of [2], got [1]"),
        ((), ((),), (frozenset(),), r"a group for each of [2], got []"),
        (((1, 1),), (((None,),),), (frozenset(),), r"groups numbered from 0, got [1]"),
        (((0, 2),), (((None, 0),),), (frozenset(),), r"groups numbered from 0, got [0, 2]"),
        (((0, 1),), (((None, 1),),), (frozenset(),), "states below 1, got a move to 1"),
        (((0, 1),), (((None, -1),),), (frozenset(),), "states below 1, got a move to -1"),
        (((0, 0),), (((0,),),), (frozenset({"pos"}),), "sources of the network, got 'pos'"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    groups: query_module.Groups,
    moves: tuple[tuple[query_module.Row, ...], ...],
    stopping: tuple[frozenset[str], ...],
    message: str,
) -> None:
    with pytest.raises(CompositionError, match=re.escape(message)):
        Query("*", Network.attention_only(1, 2), groups, moves, stopping)


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


MIXED = Network(
    ((Head(0, 0),), (Head(1, 0),), (Mlp(1),), (Head(2, 0),), (Head(3, 0),), (Neuron(3, 0),)),
    (Source("embed", 0), Source("L0M", 1)),
)


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
            Network.attention_only(2, 1),
            "L0N1",
            "a source (embed) or a head (L0H0, L1H0), since the network has no neurons, got 'L0N1'",
        ),
        (Network.attention_only(2, 1), "L*N*", "a source (embed) or a head (L0H0, L1H0), since"),
        (Network.attention_only(0), "L*N*", "a source, since the network has no neurons, got"),
        (Network.attention_only(2, 1), "L0M", "a source (embed) or a head (L0H0, L1H0), got 'L0M'"),
        (
            NEURONS,
            "L0M",
            "a source (embed, L0bias, L0Mbias, L1bias, L1Mbias), a head (L0H0, L0H1, L0H2, L1H0, "
            "L1H1, L1H2) or a neuron (L0N0 … L1N4), got 'L0M'",
        ),
        (NEURONS, "L0N5", "neuron 0 to 4 of layer 0, got 'L0N5'"),
        (NEURONS, "L*N3-5", "neuron 0 to 4 of any layer, got 'L*N3-5'"),
        (NEURONS, "L2N0", "layer 0 to 1, got 'L2N0'"),
        (NEURONS, "wte", "a source (embed, L0bias, L0Mbias, L1bias, L1Mbias), a head ("),
        (NEURONS, "{L0N1, L0bias}", "a component like the others in the set, got 'L0bias'"),
        (NEURONS, "L2Mbias", "a source (embed, L0bias, L0Mbias, L1bias, L1Mbias), got 'L2Mbias'"),
        (NEURONS, "L0N1*", "> after a label, got '*'; repeat a label as (L0N1)*"),
        (FROZEN, "L2M", "layer 0 to 1, got 'L2M'"),
        (FROZEN, "L1-0M", "a range that rises, not 1-0, got 'L1-0M'"),
        (FROZEN, "L0N0", "a source (embed, L0bias, L0Mbias, L1bias, L1Mbias), a head ("),
        (FROZEN, "(L0M | embed) > {L0M, embed}", "a component like the others in the set"),
        (WHOLE, "L2M", "a source (embed, L0bias, L0M, L1bias, L1M) or a head ("),
        (
            WHOLE,
            "L0H0 > L1M",
            "a head, got 'L1M'; a source stands only at the start; . is any head",
        ),
        (
            MIXED,
            "L*M",
            "sources or components, not both, got 'L*M'; L0M is a source, L1M a component",
        ),
        (MIXED, "L0-1M", "sources or components, not both, got 'L0-1M'; L0M is a source"),
        (MIXED, "L2M", "a layer that has MLPs, got 'L2M'"),
        (MIXED, "L2N0", "a layer that has neurons, got 'L2N0'"),
        (
            Network(((Head(0, 1), Head(0, 4)),), Network.attention_only(1).sources),
            "L0H2",
            "head 1, 4 of layer 0, got 'L0H2'",
        ),
    ],
)
def test_what_a_network_lacks(network: Network, text: str, message: str) -> None:
    with pytest.raises(NotationError, match=f"column \\d+ .*: wanted {re.escape(message)}"):
        parse_query(text, network)


def test_an_mlp_is_a_source_or_a_component_as_the_network_says() -> None:
    assert [str(path) for path in parse_query("L0M", MIXED).paths()] == ["L0M"]
    assert [str(path) for path in parse_query("embed > L1M", MIXED).paths()] == ["embed > L1M"]
    assert str(next(parse_query("L0M > L1-1M", MIXED).paths())) == "L0M > L1M"


@relaxed
@given(cases(), st.data())
def test_a_wrong_label_is_found_where_it_stands(case: Case, data: st.DataObject) -> None:
    places = [match.span() for match in re.finditer(r"L[\d*-]+[HN][\d*-]*[\d*]", case.text)]
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
    *("?", "-", "é", "L0N1", "L*N*", "L0M", "L*M", "L*Mbias", "type", "embedbias", "L0-1N0"),
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


def shown(mlp: str) -> Network:
    sizes = {"positions": True, "biases": True, "unembed_bias": True}
    network = Network.transformer(4, 7, 211, mlp=mlp, **sizes)  # type: ignore[arg-type]
    first = (Source("type", 0), Source("embedbias", 0))
    return Network(network.stages, (*network.sources[:2], *first, *network.sources[2:]))


SHOWN = tuple(map(shown, ("neurons", "source", "frozen")))


def test_every_example_in_the_description_is_a_query() -> None:
    examples = list(documented())
    assert len(examples) > 35
    for text in examples:
        found = []
        for network in SHOWN:
            with contextlib.suppress(NotationError):
                found.append((network, parse_query(text, network)))
        assert found, text
        for network, query in found:
            assert query.count() + query.complement().count() == network.count()


def test_most_examples_are_queries_about_a_network_with_neurons() -> None:
    lacking = set()
    for text in documented():
        try:
            parse_query(text, SHOWN[0])
        except NotationError:
            lacking.add(text)
    assert lacking == {"L3M", "L*M"}
