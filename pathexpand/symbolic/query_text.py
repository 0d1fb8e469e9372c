"""Queries: regular expressions over the labels of sources and components.

A query says which paths are meant, step by step from the source to the logits:

  embed > * > L1H6      from the embedding, through anything or nothing, to L1H6
  * > L0H* > *          through at least one head of layer 0
  embed > (!L0H3)*      from the embedding and not through L0H3
  * > L3N210            to the logits through neuron 210 of layer 3
  not embed > L0H1      all paths but this one

Steps are separated by > (or -> or →). The first step may be a source; if it is
not, any source is meant.

  embed, pos, L0bias    this source; so too b_U
  type, embedbias       token types, the constant of a norm after the embedding
  L3M, L3Mbias          the output of layer 3's MLP, the constants of that MLP
  L*bias, L0-3bias      a constant of any layer, of layers 0 to 3; so too L*M
  {embed, pos}          one of these sources
  !pos, !{pos, L*bias}  any source but these
  any                   any source; alone it means the direct paths

All other steps are components: heads, and neurons or whole MLPs where the
network has them.

  L1H6, L3N210          this head, this neuron
  L3M                   the whole MLP of layer 3, where it is a component
  L1H*, L*H6, L0-3H*    one head of a layer, of a number, of layers 0 to 3
  L1H0-5                one of heads 0 to 5
  L3N*, L0-3N0-99, L*M  one neuron, one MLP in the same way
  {L0H1, L3N*}          one of these components
  !L0H1, !{L0H1, L3N*}  one component, but none of these
  .                     one component, any
  *                     any number of any components, also none
  +                     at least one of any components
  (L0H1 > L1H2 | L0H3)  one piece or the other
  (L0H1 > L1H2)?        ? right after a step makes it optional
  {L0H1, L1H*}+         + right after a step takes it at least once
  (L1H*)*               * right after ) or } or . takes it any number of times

Without parentheses | parts the whole query: embed > L0H1 | L0H3 asks for
embed > L0H1, and for L0H3 from any source. L0H* is one head of layer 0. To
repeat a label with *, put it in parentheses: (L0H*)*.
The word not, at the very start, asks for all paths that the rest of the query
does not match. Labels that the network does not have are refused. In a shell,
put the query in single quotes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pathexpand.errors import NotationError
from pathexpand.symbolic.component import Component, Head, Mlp, Neuron, parse_component
from pathexpand.symbolic.network import Network
from pathexpand.symbolic.source import source_key

QUERY_LANGUAGE = __doc__ or ""

_DEEPEST = 100
_WIDEST = 60
_NUMBER = r"(?:0|[1-9]\d{0,8})"
_SPAN = rf"(?:\*|{_NUMBER}(?:-{_NUMBER})?)"
_TOKEN = re.compile(
    rf"""(?P<arrow>→|->|>)
      | (?P<label>L(?P<layer>{_SPAN})(?:(?P<kind>[HN])(?P<index>{_SPAN})|(?P<rest>M|M?bias))(?!\w))
      | (?P<word>L\*\w*|\w+)
      | (?P<repetition>[?*+])
      | (?P<sign>[(){{}}|,!.])
      | (?P<space>(?u:\s+))
      | (?P<wrong>.)""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_KINDS: dict[str, type[Component]] = {"H": Head, "N": Neuron, "": Mlp}
_WORDS: dict[type[Component], str] = {Head: "a head", Neuron: "a neuron", Mlp: "an MLP"}
_PLURALS: dict[type[Component], str] = {Head: "heads", Neuron: "neurons", Mlp: "MLPs"}
_MLP = re.compile(r"L\d+M", re.ASCII)
_STEP_WANTED = "a step such as L0H1, *, { or ("


@dataclass(frozen=True, slots=True)
class SourceStep:
    """One of these sources; `at` is where the text says so."""

    sources: frozenset[str]
    at: int = 0


@dataclass(frozen=True, slots=True)
class ComponentStep:
    """One of these components."""

    components: frozenset[Component]


@dataclass(frozen=True, slots=True)
class Series:
    """All parts, one after the other."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the parts."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part that may be left out if `optional`, and come again and again if `again`."""

    part: Pattern
    optional: bool
    again: bool


Pattern = SourceStep | ComponentStep | Series | Choice | Repeat


@dataclass(frozen=True, slots=True)
class QueryText:
    """What a query says: a pattern whose words all start with a source, and whether it is negated.

    >>> read_query("not *", Network.attention_only(2, 2)).negated
    True
    """

    pattern: Pattern
    negated: bool


def read_query(text: str, network: Network) -> QueryText:
    """Read a query about a network; raises `NotationError` with the column of what is wrong.

    >>> network = Network.attention_only(2, 2)
    >>> print(*read_query("embed > L0H1", network).pattern.parts[1].components)
    L0H1
    >>> read_query("embed > L0H1 L1H0", network)
    Traceback (most recent call last):
        ...
    pathexpand.errors.NotationError: column 14 of query 'embed > L0H1 L1H0': wanted >, | or the
    end, got 'L1H0'
    """
    if not text.strip():
        raise NotationError(
            "query",
            wanted="steps such as embed > * > L1H6",
            got="nothing",
            remedy="* alone asks for all paths",
        )
    reader = _Reader(text.rstrip(), network)
    negated = reader.skip("not")
    pattern = reader.choice("the end")
    return QueryText(reader.from_source(pattern), negated)


def negate(text: str) -> str:
    """Write the query that matches all other paths.

    >>> negate("embed > *"), negate("not embed > *")
    ('not embed > *', 'embed > *')
    """
    rest, found = re.subn(r"^\s*not\b\s*", "", text)
    return rest if found else f"not {text}"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    layers: str = ""
    letter: str = ""  # H, N or M in the label of a component
    numbers: str = ""
    ending: str = ""  # what follows the layer in a label without a number: M, bias or Mbias


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind != "space":
            groups = ("layer", "kind", "index", "rest")
            found = (match[group] or "" for group in groups)
            yield _Token(kind, match[0], match.start(), *found)
    yield _Token("end", "the end", len(text))


class _Reader:
    """Reads tokens one after the other, and looks their labels up in the network."""

    def __init__(self, text: str, network: Network) -> None:
        self.text = text
        self.network = network
        self.components = frozenset(network.components)
        self.sources = tuple(source.label for source in network.sources)
        self.tokens = list(_tokens(text))
        self.known: dict[str, ComponentStep] = {}
        self.kinds = _by_kind(network)
        met = [layer for by_layer in self.kinds.values() for layer in by_layer]
        met += [key[0] for label in self.sources if (key := source_key(label))]
        self.layers = 1 + max(met, default=-1)
        self.next = 0
        self.depth = 0

    def peek(self) -> _Token:
        return self.tokens[self.next]

    def skip(self, text: str) -> bool:
        """Step over the next token if it is this one."""
        found = self.peek().text == text
        self.next += found
        return found

    def wrong(self, token: _Token, wanted: str, remedy: str = "") -> NotationError:
        got = token.text if token.kind == "end" else repr(_shortened(token.text))
        return NotationError(_place(self.text, token.start), wanted=wanted, got=got, remedy=remedy)

    # --- longer pieces ---

    def choice(self, end: str) -> Pattern:
        """Read alternatives up to a closing parenthesis or the end of the text."""
        parts = [self.series()]
        while self.skip("|"):
            parts.append(self.series())
        token = self.peek()
        if token.text != end:
            once = "a step is repeated by one sign right after it"
            remedy = once if token.kind == "repetition" else ""
            raise self.wrong(token, f">, | or {end}", remedy)
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def series(self) -> Pattern:
        parts = [self.step()]
        while self.peek().kind == "arrow":
            self.next += 1
            parts.append(self.step())
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def step(self) -> Pattern:
        token = self.peek()
        if token.text in ("*", "+"):
            self.next += 1
            return Repeat(ComponentStep(self.components), optional=token.text == "*", again=True)
        part = self.group() if self.skip("(") else self.single()
        last, mark = self.tokens[self.next - 1], self.peek()
        # A repetition touches its step: in "(L0H1) * > L1H0" a > is more likely to be missing.
        if mark.kind != "repetition" or mark.start > last.start + len(last.text):
            return part
        if mark.text == "*" and last.kind == "label":
            remedy = f"repeat a label as ({self.text[token.start : mark.start]})*"
            raise self.wrong(mark, "> after a label", remedy)
        self.next += 1
        return Repeat(part, optional=mark.text in "?*", again=mark.text in "*+")

    def group(self) -> Pattern:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.wrong(
                self.tokens[self.next - 1], f"at most {_DEEPEST} parentheses inside each other"
            )
        part = self.choice(")")
        self.next += 1
        self.depth -= 1
        return part

    # --- single steps ---

    def single(self) -> Pattern:
        start = self.peek().start
        if self.skip("."):
            return ComponentStep(self.components)
        if self.skip("any"):
            return SourceStep(frozenset(self.sources), start)
        if not self.skip("!"):
            return self.braces() if self.skip("{") else self.label(_STEP_WANTED)
        wanted = "a label or a set after !"
        step = self.braces() if self.skip("{") else self.label(wanted)
        if isinstance(step, ComponentStep):
            return ComponentStep(self.components - step.components)
        return SourceStep(frozenset(self.sources) - step.sources, start)

    def braces(self) -> SourceStep | ComponentStep:
        start = self.tokens[self.next - 1].start
        components: frozenset[Component] = frozenset()
        sources: frozenset[str] = frozenset()
        first = None
        while first is None or self.skip(","):
            token = self.peek()
            step = self.label("a label in a set")
            first = first or step
            if type(step) is not type(first):
                kind = f"a {self.word}" if isinstance(first, ComponentStep) else "a source"
                raise self.wrong(token, f"{kind} like the others in the set")
            if isinstance(step, ComponentStep):
                components |= step.components
            else:
                sources |= step.sources
        if not self.skip("}"):
            raise self.wrong(self.peek(), ", or } in a set")
        if isinstance(first, ComponentStep):
            return ComponentStep(components)
        return SourceStep(sources, start)

    def label(self, wanted: str) -> SourceStep | ComponentStep:
        """Read one label; `wanted` is said of anything else that stands there."""
        token = self.peek()
        found: SourceStep | ComponentStep
        if token.kind == "label" and self.is_component(token):
            if token.text not in self.known:
                self.known[token.text] = self.component_label(token)
            found = self.known[token.text]
        elif token.kind == "label":
            found = self.layer_source(token)
        elif token.text in self.sources:
            found = SourceStep(frozenset({token.text}), token.start)
        elif token.kind == "word":
            raise self.unknown(token)
        else:
            raise self.wrong(token, wanted)
        self.next += 1
        return found

    @property
    def word(self) -> str:
        """What the network's components are called."""
        return "head" if self.kinds.keys() <= {Head} else "component"

    def unknown(self, token: _Token) -> NotationError:
        if token.text == "any":
            return self.wrong(token, "a label", "any is a step of its own")
        if token.text == "not":
            return self.wrong(token, "a step", "not stands at the very start, ! before a step")
        return self.wrong(token, self.labels_wanted())

    def labels_wanted(self) -> str:
        wanted = [f"a source ({_listed(self.sources)})"]
        for kind, by_layer in self.kinds.items():
            labels = [each.label for layer in by_layer.values() for each in layer]
            wanted.append(f"{_WORDS[kind]} ({_listed(labels)})")
        *others, last = wanted if self.kinds else [*wanted, "a head (none)"]
        return f"{', '.join(others)} or {last}"

    # --- labels of components ---

    def is_component(self, token: _Token) -> bool:
        """Say whether a label names components; an MLP is one, or a source, as the network says."""
        if token.ending != "M":
            return not token.ending
        span = self.span(token, token.layers)
        inside = [layer for layer in self.kinds.get(Mlp, ()) if layer in span]
        sources = [layer for layer in self.layers_with("M") if layer in span]
        if inside and sources:
            remedy = f"L{sources[0]}M is a source, L{inside[0]}M a component"
            raise self.wrong(token, "sources or components, not both", remedy)
        return Mlp in self.kinds and not sources

    def component_label(self, token: _Token) -> ComponentStep:
        if "*" not in token.text and "-" not in token.text:
            single = parse_component(token.text)
            if single in self.components:  # found at once, also among thousands of neurons
                return ComponentStep(frozenset({single}))
        kind = _KINDS[token.letter]
        by_layer = self.kinds.get(kind, {})
        layers, numbers = self.span(token, token.layers), self.span(token, token.numbers or "*")
        if not by_layer and (kind is not Head or layers.ends or numbers.ends):
            lacking = f"since the network has no {_PLURALS[kind]}"
            if kind is Neuron and any(_MLP.fullmatch(source) for source in self.sources):
                lacking = "since MLPs are sources here, and not taken neuron by neuron"
            wanted = self.labels_wanted() if self.kinds else "a source"
            raise self.wrong(token, f"{wanted}, {lacking}")
        if any(layer >= self.layers for layer in layers.ends):
            raise self.wrong(token, f"layer {_numbers(range(self.layers))}")
        inside = [each for layer in by_layer if layer in layers for each in by_layer[layer]]
        if layers.ends and not inside:
            raise self.wrong(token, f"a layer that has {_PLURALS[kind]}")
        if numbers.ends:
            known = {each.index for each in inside}
            if not known.issuperset(numbers.ends):
                where = "any layer" if token.layers == "*" else f"layer {token.layers}"
                name = _WORDS[kind].split()[-1]
                raise self.wrong(token, f"{name} {_numbers(known)} of {where}")
            inside = [each for each in inside if each.index in numbers]
        return ComponentStep(frozenset(inside))

    # --- labels of sources ---

    def layers_with(self, ending: str) -> dict[int, str]:
        """Return the sources of layers whose labels end so, by layer."""
        keys = {label: source_key(label) for label in self.sources}
        return {
            key[0]: label for label, key in keys.items() if key and label == f"L{key[0]}{ending}"
        }

    def layer_source(self, token: _Token) -> SourceStep:
        span, known = self.span(token, token.layers), self.layers_with(token.ending)
        if not known or not known.keys() >= set(span.ends):
            sources = f"a source ({_listed(self.sources)})"
            raise self.wrong(token, self.labels_wanted() if token.ending == "M" else sources)
        found = frozenset(label for layer, label in known.items() if layer in span)
        return SourceStep(found, token.start)

    def span(self, token: _Token, text: str) -> _Span:
        ends = () if text == "*" else tuple(map(int, text.split("-")))
        if ends and ends[0] > ends[-1]:
            raise self.wrong(token, f"a range that rises, not {text}")
        return _Span(ends)

    # --- sources ---

    def from_source(self, pattern: Pattern) -> Pattern:
        """Return the pattern with any source in front of each alternative that names none."""
        named = _first_source(pattern)
        if named is None:
            return Series((SourceStep(frozenset(self.sources)), pattern))
        if isinstance(pattern, Choice):
            return Choice(tuple(map(self.from_source, pattern.parts)))
        if isinstance(pattern, Series):
            first, *rest = pattern.parts
            for later in filter(None, map(_first_source, rest)):
                remedy = f"a source stands only at the start; . is any {self.word}"
                raise self.misplaced(later, f"a {self.word}", remedy)
            return Series((self.from_source(first), *rest))
        if isinstance(pattern, Repeat):
            remedy = f"only {self.word}s are optional or repeated"
            raise self.misplaced(named, "a source once", remedy)
        return pattern

    def misplaced(self, source: SourceStep, wanted: str, remedy: str) -> NotationError:
        token = next(token for token in self.tokens if token.start == source.at)
        return self.wrong(token, wanted, remedy)


@dataclass(frozen=True, slots=True)
class _Span:
    """The numbers between the ends, both included; all numbers if there are no ends."""

    ends: tuple[int, ...]

    def __contains__(self, number: int) -> bool:
        return not self.ends or self.ends[0] <= number <= self.ends[-1]


def _by_kind(network: Network) -> dict[type[Component], dict[int, list[Component]]]:
    """Return the components by kind and layer, heads first."""
    found: dict[type[Component], dict[int, list[Component]]] = {Head: {}, Neuron: {}, Mlp: {}}
    for stage in network.stages:
        for component in stage:
            found[type(component)].setdefault(component.layer, []).append(component)
    return {kind: by_layer for kind, by_layer in found.items() if by_layer}


def _first_source(pattern: Pattern) -> SourceStep | None:
    if isinstance(pattern, SourceStep):
        return pattern
    if isinstance(pattern, ComponentStep):
        return None
    parts = (pattern.part,) if isinstance(pattern, Repeat) else pattern.parts
    return next(filter(None, map(_first_source, parts)), None)


# --- what an error shows ----------------------------------------------------------------------


def _place(text: str, start: int) -> str:
    """Say where in the text something stands, in one line: line and column count from 1."""
    before = text[:start]
    line, column = before.count("\n") + 1, start - before.rfind("\n")
    shown = re.sub(r"\s", " ", text.split("\n")[line - 1])  # one column each, also for a tab
    if len(shown) > _WIDEST:
        cut = max(0, min(column - _WIDEST // 2, len(shown) - _WIDEST))
        shown = "…" * (cut > 0) + shown[cut:][:_WIDEST] + "…" * (cut + _WIDEST < len(shown))
    place = f"column {column}" if "\n" not in text else f"line {line}, column {column}"
    return f"{place} of query {shown!r}"


def _shortened(text: str) -> str:
    return text if len(text) <= _WIDEST else text[:_WIDEST] + "…"


def _listed(labels: Collection[str]) -> str:
    """Name a few labels, or the first and the last of many."""
    if not labels:
        return "none"
    first, *_, last = [*labels, *labels]
    return ", ".join(labels) if len(labels) <= 6 else f"{first} … {last}"


def _numbers(numbers: Collection[int]) -> str:
    ordered = sorted(numbers)
    if len(ordered) > 1 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]} to {ordered[-1]}"
    return _listed([str(number) for number in ordered])
