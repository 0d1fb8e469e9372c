"""Queries in a page: query.js matches what Python matches, and refuses what Python refuses.

The oracle is `parse_query`, which has one of its own; what errors say is compared too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as File
from random import Random
from typing import Any

import pytest

import pathexpand
from pathexpand.errors import LimitError, NotationError, PathExpandError
from pathexpand.symbolic import Head, Mlp, Network, Neuron, Path, Source
from pathexpand.symbolic.query import parse_query
from pathexpand.symbolic.query_text import SourceStep, read_query

from ..symbolic import test_query as queries

SCRIPT = (File(pathexpand.__file__).parent / "report" / "query.js").read_text(encoding="utf-8")

# For each query, the paths that it matches as a text of 0 and 1, or why it is refused.
ANSWERS = """
const [network, paths, texts] = arguments;
return texts.map((text) => {
  try {
    const matches = compileQuery(text, network);
    return paths.map((path) => Number(matches(path))).join("");
  } catch (error) {
    return `${error}`;
  }
});
"""


def described(network: Network) -> dict[str, Any]:
    """Describe a network as query.js wants it."""
    layers = 1 + max((each.layer for each in network.components), default=-1)
    found: dict[str, Any] = {"sources": [source.label for source in network.sources]}
    for name, kind in (("heads", Head), ("neurons", Neuron), ("mlps", Mlp)):
        of_kind = [each for each in network.components if isinstance(each, kind)]
        indices = [[each.index for each in of_kind if each.layer == n] for n in range(layers)]
        found[name] = [len(each) if each == [*range(len(each))] else each for each in indices]
    return found


@dataclass(frozen=True)
class Batch:
    """Queries about a network, and what Python says of its paths."""

    network: Network
    paths: Sequence[Path]
    texts: Sequence[str]

    @cached_property
    def expected(self) -> list[str]:
        return [answer(text, self.network, self.paths) for text in self.texts]

    def told(self, browser: Any, script: str = SCRIPT) -> list[str]:
        paths = [str(path) for path in self.paths]
        return browser.execute_script(script + ANSWERS, described(self.network), paths, self.texts)

    def differences(self, browser: Any, script: str = SCRIPT) -> list[tuple[str, str, str]]:
        rows = zip(self.texts, self.expected, self.told(browser, script), strict=True)
        return [row for row in rows if row[1] != row[2]]


def answer(text: str, network: Network, paths: Sequence[Path]) -> str:
    try:
        query = parse_query(text, network)
    except NotationError as error:
        return f"Error: {shortened(error)}"
    return "".join(str(int(query.matches(path))) for path in paths)


def shortened(error: PathExpandError) -> str:
    """Write an error without the text around its column."""
    place = error.subject.split(" of query ")[0]
    told = {"wanted": error.wanted, "got": error.got, "remedy": error.remedy}
    return str(PathExpandError(place, **told))


# --- random queries -----------------------------------------------------------------------------


class Writer:
    """Writes queries about a network: most of them right, with labels that it has.

    From a seed, since hypothesis would take half a minute to draw as many.
    """

    def __init__(self, network: Network, seed: int) -> None:
        self.random = Random(seed)
        self.sources = [source.label for source in network.sources]
        self.components = ["L*H*"]
        for layer in queries.SPANS:
            numbered = [f"{letter}{number}" for letter in "HN" for number in queries.SPANS]
            for ending in (*numbered, "M", "bias", "Mbias"):
                self.sort(f"L{layer}{ending}", network)

    def sort(self, label: str, network: Network) -> None:
        try:
            said = read_query(f"({label})", network).pattern
        except NotationError:
            return
        named = self.sources if isinstance(said, SourceStep) else self.components
        named.append(label)

    def one(self, labels: Sequence[str]) -> str:
        """Write a label, a set of labels, or a negation of these."""
        text = self.random.choice(labels)
        if self.random.random() < 0.3:
            comma = self.random.choice((",", ", ", " , "))
            text = f"{{{comma.join(self.random.choices(labels, k=self.random.randint(1, 3)))}}}"
        return self.random.choice(("", "", "!", "! ")) + text

    def step(self, depth: int) -> str:
        kind = self.random.random()
        if kind < 0.2:
            return self.random.choice("*+")
        if kind < 0.3:
            text = "."
        elif kind < 0.5 and depth:
            text = f"({self.choice(lambda: self.series(depth - 1))})"
        else:
            text = self.one(self.components)
        mark = self.random.choice(("", "", "", "?", "*", "+"))
        return f"({text}){mark}" if mark == "*" and text[-1] not in ".})" else text + mark

    def series(self, depth: int) -> str:
        return self.joined([self.step(depth) for _ in range(self.random.randint(1, 3))])

    def joined(self, steps: Sequence[str]) -> str:
        return self.random.choice((" > ", ">", "->", " → ", "\n> ")).join(steps)

    def choice(self, write: Callable[[], str]) -> str:
        times = self.random.choice((1, 1, 2))
        return self.random.choice((" | ", "|")).join(write() for _ in range(times))

    def whole(self, depth: int = 2) -> str:
        """Write a piece that a query can be: with a source, with none, or with a choice of them."""
        kind = self.random.random()
        if kind < 0.1:
            return self.one(self.sources)
        if kind < 0.5:
            return self.series(2)
        start = self.random.choice(("any", self.one(self.sources), self.one(self.sources)))
        if kind < 0.6 and depth:
            start = f"({self.choice(lambda: self.whole(depth - 1))})"
        return self.joined([start, self.series(2)])

    def query(self) -> str:
        return self.random.choice(("", "", "", "not ")) + self.choice(self.whole)

    def damaged(self, text: str) -> str:
        """Put a wrong piece between others or over them, or leave some out, once or twice."""
        for _ in range(self.random.choice((1, 1, 2))):
            pieces = re.findall(r"L[\w*-]*|\w+|->|.", text, re.DOTALL)
            start = self.random.randint(0, len(pieces))
            labels = (*self.random.sample(self.sources, 1), *self.random.sample(self.components, 1))
            wrong = (*labels, *queries.TOKENS, *'(){}|,!.*+?> \t\x1c\ufeff𝕃"', "")
            pieces[start : start + self.random.choice((0, 0, 1, 2))] = [self.random.choice(wrong)]
            text = "".join(pieces)
        return text


EVERYTHING = {"positions": True, "biases": True, "unembed_bias": True}
NETWORKS = (
    Network.attention_only(2, 2),
    Network.attention_only(3, 3),
    Network.attention_only(heads=(2, 0, 3), **EVERYTHING),
    Network.attention_only(0),
    Network.transformer(2, 2, 3, mlp="neurons", **EVERYTHING),
    Network.transformer(2, 2, 2, mlp="neurons", parallel=True, biases=True),
    Network.transformer(3, 2, mlp="source", positions=True),
    Network.transformer(3, 2, mlp="frozen", biases=True),
    queries.MIXED,
    Network(((Head(0, 1), Head(0, 4)), (Head(2, 0), Head(2, 1))), (Source("embed", 0),)),
)
NUMBER = 300


def batch(seed: int, network: Network) -> Batch:
    writer = Writer(network, seed)
    texts = [writer.query() for _ in range(NUMBER)]
    return Batch(network, list(network.paths()), [*texts, *map(writer.damaged, texts)])


def refused() -> list[Batch]:
    """Return what the tests of the language say is refused: each kind of error."""
    (places,) = queries.test_an_error_points_at_the_place.pytestmark
    (lacking,) = queries.test_what_a_network_lacks.pytestmark
    texts = [text for text, _ in places.args[1]]
    return [
        Batch(queries.FULL, [], texts),
        *(Batch(network, [], [text]) for network, text, _ in lacking.args[1]),
    ]


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    return [batch(seed, network) for seed, network in enumerate(NETWORKS)]


@pytest.mark.parametrize("number", range(len(NETWORKS)))
def test_a_page_matches_and_refuses_as_python_does(
    browser: Any, batches: list[Batch], number: int
) -> None:
    assert batches[number].differences(browser) == []


def test_the_batches_say_something(batches: list[Batch]) -> None:
    whole = {(n, text) for n, each in enumerate(batches) for text in each.texts[:NUMBER]}
    assert len(whole) > 2000
    answers = [told for each in batches for told in each.expected]
    accepted = [told for told in answers if not told.startswith("Error")]
    assert len(accepted) > 2000
    assert sum("0" in told and "1" in told for told in accepted) > 1000
    errors = [told for told in answers if told.startswith("Error")]
    assert len(errors) > 1000
    faults = {told.split("wanted ")[1].split(", got")[0] for told in errors}
    assert {re.sub(r"\d+|\(.*", "", fault) for fault in faults} >= {
        *("a source ", ">, | or the end", ">, | or )", "> after a label", "a step", "layer  to "),
        *("a label or a set after !", "a label in a set", ", or } in a set", "a source once"),
    }


# --- a wrong script is seen ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("return optional ? loop : once;", "return loop;"),
        ("states(parts[0], again ? loop : next)", "states(parts[0], next)"),
        ("loop.either = [once, next];", "loop.either = [once];"),
        ("now.includes(end) !== negated", "now.includes(end)"),
        ("now.includes(end) !== negated", "(now.length > 0) !== negated"),
        ("test: not ? (each) => !test(each) : test, at", "test, at"),
        ("members.some(", "members.every("),
        ("each.letter === letter && ", ""),
        ("ends[0] <= n && n <= ends.at(-1)", "ends[0] <= n && n < ends.at(-1)"),
        ("parts: parts.map(fromSource)", "parts"),
        ("parts.reduceRight(", "parts.reduce("),
        (r"(?!\w)", ""),
        ("|| sign.start > last.end", ""),
        ("lines.at(-1).length + 1", "lines.at(-1).length"),
        ("first < last && last - first === sorted.length - 1", "first < last"),
        ("if (sources.includes(text)) return {", 'if (kind === "word") return {'),
        ('"M" in kinds && source === undefined', '"M" in kinds'),
    ],
)
def test_a_wrong_script_is_seen(browser: Any, batches: list[Batch], right: str, wrong: str) -> None:
    assert SCRIPT.count(right) == 1
    script = SCRIPT.replace(right, wrong)
    assert any(each.differences(browser, script) for each in (*batches, *refused()))


# --- the language as it is documented, and its errors -------------------------------------------


@pytest.mark.parametrize("network", queries.SHOWN, ids=("neurons", "source", "frozen"))
def test_every_example_in_the_description_says_the_same(browser: Any, network: Network) -> None:
    some = tuple(
        tuple(each for each in stage if each.index in (0, 1, 2, 3, 6, 99, 210))
        for stage in network.stages
    )
    paths = list(Network(some, network.sources).paths(max_order=3))
    short, long = ([each for each in paths if (each.order > 1) == more] for more in (False, True))
    chosen = short + Random(0).sample(long, 1500)
    examples = Batch(network, chosen, list(queries.documented()))
    assert examples.differences(browser) == []
    assert sum("0" in told and "1" in told for told in examples.expected) > 30


def test_errors_say_the_same(browser: Any) -> None:
    found = refused()
    assert len(found[0].texts) > 50
    assert len(found) > 20
    for each in found:
        assert all(told.startswith("Error") for told in each.expected)
        assert each.differences(browser) == []


def test_thousands_of_neurons_are_no_burden(browser: Any) -> None:
    texts = ["embed > * > L3N3071 > *", "L*N3072", "{L3N*, L0-11N7}+ > L5H1", "wte"]
    paths = list(map(Path.parse, ("embed > L3N3071", "pos > L3N3070 > L4N7 > L5H1", "L3Mbias")))
    assert Batch(queries.LARGE, paths, texts).differences(browser) == []


# --- in a page ----------------------------------------------------------------------------------


def test_the_script_can_stand_in_a_page(browser: Any, tmp_path: File) -> None:
    assert SCRIPT.isascii()
    assert "</" not in SCRIPT and "<!--" not in SCRIPT
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><title>.</title><script>\n{SCRIPT}</script>")
    browser.get(page.as_uri())
    ask = "return compileQuery('embed → L0H1', {sources: ['embed'], heads: [2]})(arguments[0])"
    assert browser.execute_script(ask, "embed > L0H1") is True
    assert browser.execute_script(ask, "embed > L0H0") is False


def test_what_is_no_path_of_the_network_never_matches(browser: Any) -> None:
    paths = ["pos", "pos > L0H1", "L0H1", "", "embed > L0", "embed > ", "embed > embed", "embed"]
    network = described(Network.attention_only(2, 2))
    for text, last in (("*", "1"), ("not *", "0"), ("not L1H0", "1")):
        told = browser.execute_script(SCRIPT + ANSWERS, network, paths, [text])
        assert told == ["0" * 7 + last]


def test_what_cannot_be_seen_is_told_by_its_code(browser: Any) -> None:
    texts = ["* >\u200bL0H1", "\x07", "\U000e0041", "'", "\\"]
    told = Batch(Network.attention_only(1, 1), [], texts).told(browser)
    assert [each.split("got ")[1] for each in told] == [
        *(r"'\u200b'", r"'\u0007'", r"'\ue0041'", "'''", "'\\'"),
    ]


def test_an_error_repeats_no_more_than_words_and_single_signs(browser: Any) -> None:
    texts = ["<img src=x onerror=alert(1)>", "* > <b>", "embed > (! L0H1* > <b>)", "<" * 99]
    for told in Batch(Network.attention_only(2, 2), [], texts).told(browser):
        assert not re.search(r"<\w", told), told


# --- no query takes it long ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("(((L*H0)*)*)* > L0H1", False),
        ("(" * 99 + "L*H0" + ")*" * 99 + " > L0H1", False),
        ("(" * 99 + "L*H0" + ")+" * 99, True),
        ("((* > *)* > (* > *)+)* > L0H1", False),
        ("(" * 99 + "*" + " > *)?" * 99, True),
        (".? > " * 60 + ". > " * 59 + ".", True),
        (".? > " * 60 + ". > " * 60 + ".", False),
        ("(. > .)* > L*H1 > " + ". > " * 30 + ".", False),
        ("* > " * 3000 + "L59H0", True),
        ("(L*H0 | . | {L*H0} | *)* > " * 300 + "L0H1", False),
    ],
)
def test_no_query_takes_long(browser: Any, text: str, matched: bool) -> None:
    network = Network.attention_only(60, 2)
    longest = Path("embed", tuple(Head(layer, 0) for layer in range(60)))
    told = Batch(network, [longest] * 20, [text]).told(browser)
    assert told == [str(int(matched)) * 20]
    if len(text) < 1000:
        with suppress(LimitError):  # which a page has no need of
            assert parse_query(text, network).matches(longest) == matched
