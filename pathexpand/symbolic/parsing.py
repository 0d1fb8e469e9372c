"""Read terms and expansions back from text, pointing at the place of a mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pathexpand.errors import NotationError
from pathexpand.symbolic.expression import Expansion, Term
from pathexpand.symbolic.maps import (
    B_U,
    INPUT,
    LOGITS,
    STREAM,
    W_E,
    W_POS,
    W_TYPE,
    W_U,
    LinearMap,
    PositionMap,
    Space,
    attention,
    constant,
    gate,
    io,
    is_gated,
    ov,
)
from pathexpand.symbolic.style import NOTATIONS, check_choice

_TOKEN = re.compile(
    r"""(?P<tensor>⊗|\(x\))
      | (?P<arrow>→|->)
      | (?P<sign>[+−-])
      | (?P<times>·|\*)
      | (?P<colon>:)
      | (?P<number>\d+)
      | (?P<map>(?P<name>[A-Za-z]\w*)
                (?:\^(?P<power>\w+) | \^\{(?P<braced>\w+)\} | \[(?P<index>\w+)\])?)
      | (?P<space>\s+)
      | (?P<wrong>.)""",
    re.VERBOSE | re.ASCII,
)
_PLAIN = {each.name: each for each in (W_E, W_POS, W_TYPE, W_U, B_U)}
_LAYER = re.compile(r"L(?:0|[1-9]\d*)", re.ASCII)
_CONSTANT = re.compile(r"L(?:0|[1-9]\d*)M?|embed", re.ASCII)
_MAPS_WANTED = {
    "paper": "W_E, W_pos, W_U, b_U, b^L0, M^L0, W_OV^L0H1, W_IO^L0N1 or the like",
    "code": "W_E, W_pos, W_U, b_U, b[L0], M[L0], OV[L0H1], IO[L0N1] or the like",
}
_POSITIONS_WANTED = {
    "paper": "A^L0H1, G^L0N1 or the like",
    "code": "A[L0H1], G[L0N1] or the like",
}


def parse_term(text: str, *, notation: str = "paper") -> Term:
    """Read one term; raises `NotationError` with the column of what is wrong.

    >>> from pathexpand.symbolic import Path
    >>> print(Path.from_term(parse_term("A^L0H1 (x) W_U W_OV^L0H1 W_E")))
    embed > L0H1
    >>> parse_term("Id ⊗ W_E W_U")
    Traceback (most recent call last):
        ...
    pathexpand.errors.NotationError: column 6 of 'Id ⊗ W_E W_U': wanted a map from logits after
    W_U, got 'W_E'; words read from right to left
    """
    reader = _Reader(text, notation)
    term = reader.term()
    reader.take("end", "the end")
    return term


def parse_expansion(text: str, *, notation: str = "paper") -> Expansion:
    """Read a sum of terms with integer coefficients; equal terms are added up.

    Raises `NotationError` with the column of what is wrong.

    >>> parse_expansion("2 · Id ⊗ W_U W_E - Id ⊗ W_U W_E") == parse_expansion("Id ⊗ W_U W_E")
    True
    """
    reader = _Reader(text, notation)
    if reader.peek().text == "0" and reader.peek(ahead=1).kind != "times":
        return reader.zero()
    pairs = list(reader.weighted_terms())
    first = pairs[0][0]
    return Expansion.collect(pairs, first.source, first.target)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    name: str = ""
    label: str = ""
    brackets: bool = False


def _tokens(text: str) -> list[_Token]:
    found = []
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind != "space":
            label = match["power"] or match["braced"] or match["index"] or ""
            brackets = bool(match["index"])
            found.append(
                _Token(kind, match[0], match.start(), match["name"] or "", label, brackets)
            )
    return [*found, _Token("end", "the end", len(text))]


class _Reader:
    """Reads tokens one after the other."""

    def __init__(self, text: str, notation: str) -> None:
        check_choice("notation", notation, NOTATIONS)
        self.text = text
        self.notation = notation
        self.tokens = _tokens(text)
        self.next = 0

    def peek(self, *, ahead: int = 0) -> _Token:
        return self.tokens[min(self.next + ahead, len(self.tokens) - 1)]

    def take(self, kind: str, wanted: str) -> _Token:
        token = self.peek()
        if token.kind != kind:
            raise self.wrong(token, wanted)
        self.next += 1
        return token

    def wrong(self, token: _Token, wanted: str, remedy: str = "") -> NotationError:
        before = self.text[: token.start]
        line, column = before.count("\n") + 1, token.start - before.rfind("\n")
        place = f"column {column}" if "\n" not in self.text else f"line {line}, column {column}"
        shown = self.text.splitlines()[line - 1] if self.text.strip() else self.text
        if len(shown) > 60:
            cut = max(0, column - 30)
            shown = ("…" if cut else "") + shown[cut : cut + 60] + "…"
        got = token.text if token.kind == "end" else repr(token.text)
        return NotationError(f"{place} of {shown!r}", wanted=wanted, got=got, remedy=remedy)

    def zero(self) -> Expansion:
        self.take("number", "0")
        spaces = (INPUT, LOGITS)
        if self.peek().kind == "colon":
            self.take("colon", ":")
            source = self.take("map", "a space").text
            self.take("arrow", "→")
            spaces = (Space(source), Space(self.take("map", "a space").text))
        self.take("end", "the end")
        return Expansion({}, *spaces)

    def weighted_terms(self) -> Iterator[tuple[Term, int]]:
        first: Term | None = None
        while first is None or self.peek().kind != "end":
            coefficient = self.coefficient(signed=first is not None)
            start = self.peek()
            term = self.term()
            first = first or term
            if (term.source, term.target) != (first.source, first.target):
                wanted = f"a term from {first.source} to {first.target} like the first"
                raise self.wrong(start, wanted)
            yield term, coefficient

    def coefficient(self, *, signed: bool) -> int:
        sign = 1
        if signed or self.peek().kind == "sign":
            sign = 1 if self.take("sign", "+ or -").text == "+" else -1
        if self.peek().kind != "number":
            return sign
        number = int(self.take("number", "a number").text)
        self.take("times", "· after a coefficient")
        return sign * number

    def term(self) -> Term:
        positions: list[PositionMap] = []
        if self.peek().text == "Id":
            self.next += 1
        else:
            positions.append(self.position(self.take("map", "Id or " + self.positions_wanted)))
            while self.peek().kind == "map":
                positions.append(self.position(self.take("map", self.positions_wanted)))
        self.take("tensor", "⊗")
        token = self.peek()
        if token.text == "Id" or token.text.startswith("Id_"):
            self.next += 1
            space = Space(token.text[3:]) if token.text != "Id" else STREAM
            return Term(tuple(reversed(positions)), (), at=space)
        return Term(tuple(reversed(positions)), self.linear_word())

    @property
    def positions_wanted(self) -> str:
        return _POSITIONS_WANTED[self.notation]

    def position(self, token: _Token) -> PositionMap:
        gated = is_gated(token.label)
        if token.name != "AG"[gated] or not token.label or not self.own_style(token):
            raise self.wrong(token, self.positions_wanted)
        return gate(token.label) if gated else attention(token.label)

    def own_style(self, token: _Token) -> bool:
        return not token.label or token.brackets == (self.notation == "code")

    def linear_word(self) -> tuple[LinearMap, ...]:
        tokens = [self.take("map", _MAPS_WANTED[self.notation])]
        while self.peek().kind == "map":
            tokens.append(self.take("map", "a map"))
        maps = [self.linear(token) for token in tokens]
        if self.notation == "paper":
            tokens.reverse()
            maps.reverse()
        for number in range(1, len(maps)):
            earlier, later = maps[number - 1], maps[number]
            if later.source != earlier.target:
                direction = "right to left" if self.notation == "paper" else "left to right"
                raise self.wrong(
                    tokens[number],
                    f"a map from {earlier.target} after {tokens[number - 1].text}",
                    f"words read from {direction}",
                )
        return tuple(maps)

    def linear(self, token: _Token) -> LinearMap:
        if not token.label and token.name in _PLAIN:
            return _PLAIN[token.name]
        if token.label and self.own_style(token):
            gated = is_gated(token.label)
            name = token.name if self.notation == "paper" else f"W_{token.name}"
            if name == ("W_IO" if gated else "W_OV"):
                return io(token.label) if gated else ov(token.label)
            if token.name == "b" and _CONSTANT.fullmatch(token.label):
                return constant(f"{token.label}bias")
            if token.name == "M" and _LAYER.fullmatch(token.label):
                return constant(f"{token.label}M")
        raise self.wrong(token, _MAPS_WANTED[self.notation])
