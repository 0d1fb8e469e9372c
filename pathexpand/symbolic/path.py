"""Heads, and the paths that run from a source through them to the logits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from operator import index

from pathexpand.errors import CompositionError, NotationError
from pathexpand.symbolic.expression import Term
from pathexpand.symbolic.maps import (
    B_U,
    W_E,
    W_POS,
    W_U,
    LinearMap,
    attention,
    constant,
    natural_key,
    ov,
)

_NUMBER = r"(0|[1-9]\d{0,8})"  # no network has 10^9 layers, and Python reads no endless number
_MOST = 10**9 - 1
_HEAD = re.compile(f"L{_NUMBER}H{_NUMBER}", re.ASCII)
_BIAS = re.compile(f"L{_NUMBER}bias", re.ASCII)
_ARROW = re.compile(r"->|→|>")
_PLAIN_SOURCES = {"embed": W_E, "pos": W_POS, "b_U": B_U}
_SOURCES_WANTED = "embed, pos, b_U or a layer's constant such as L0bias"


@dataclass(frozen=True, slots=True, order=True)
class Head:
    """An attention head, by its layer and its index in the layer, both counted from 0.

    Heads sort by layer, then index. Raises `NotationError` for negative numbers and for those of
    more than nine digits.

    >>> Head(0, 1).label, Head.parse("L0H1") == Head(0, 1)
    ('L0H1', True)
    """

    layer: int
    index: int

    def __post_init__(self) -> None:
        """Refuse what is not two counting numbers; numpy's integers become plain ones."""
        try:
            layer, head = index(self.layer), index(self.index)
        except TypeError:
            layer = head = -1
        if not (0 <= layer <= _MOST and 0 <= head <= _MOST):
            raise NotationError(
                "head",
                wanted="a layer and an index from 0, of at most nine digits",
                got=f"{_shown(self.layer)}, {_shown(self.index)}",
            )
        object.__setattr__(self, "layer", layer)
        object.__setattr__(self, "index", head)

    @property
    def label(self) -> str:
        """The label users type, such as L0H1."""
        return f"L{self.layer}H{self.index}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read a label; surrounding spaces do not matter.

        >>> Head.parse("L1H6")
        Head(layer=1, index=6)
        """
        match = _HEAD.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise NotationError("head", wanted="a label such as L0H1", got=_shown(text))
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        """Return the label."""
        return self.label


def first_layer_after(source: str) -> int | None:
    """Return the first layer that reads this source, or None for one born in the logits.

    Raises `NotationError` for a label that is no source.

    >>> first_layer_after("embed"), first_layer_after("L0bias"), first_layer_after("b_U")
    (0, 1, None)
    """
    if not isinstance(source, str):
        raise NotationError("source", wanted=_SOURCES_WANTED, got=_shown(source))
    if source in ("embed", "pos"):
        return 0
    if source == "b_U":
        return None
    bias = _BIAS.fullmatch(source)
    if bias is None:
        raise NotationError("source", wanted=_SOURCES_WANTED, got=_shown(source))
    return int(bias[1]) + 1


def source_map(source: str) -> LinearMap:
    """Return the map by which a source enters the stream or, for b_U, the logits.

    >>> print(source_map("embed"), source_map("L0bias"))
    W_E b^L0
    """
    first_layer_after(source)
    return _PLAIN_SOURCES.get(source) or constant(source)


@total_ordering
@dataclass(frozen=True, slots=True)
class Path:
    """A source and the heads it passes through on its way to the logits.

    Layers strictly increase, a constant passes only through layers after its own, and b_U passes
    through none. Paths sort by order, then source (embed, pos, constants by layer, b_U), then
    heads. Raises `CompositionError` for heads that cannot follow each other and `NotationError`
    for an unknown source.

    >>> path = Path("embed", (Head(0, 1), Head(1, 2)))
    >>> print(path, path.order, path.kind, sep=", ")
    embed > L0H1 > L1H2, 2, virtual head
    """

    source: str
    components: tuple[Head, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a path that no network has."""
        first = first_layer_after(self.source)
        if not isinstance(self.components, tuple):
            raise CompositionError("path", wanted="a tuple of heads", got=_shown(self.components))
        if first is None and self.components:
            raise CompositionError(
                f"path from {self.source}",
                wanted="no heads, since it is born in the logits",
                got=self.components[0].label,
            )
        before, layer = self.source, (first or 0) - 1
        for head in self.components:
            if not isinstance(head, Head):
                raise CompositionError("path", wanted="heads", got=_shown(head))
            if head.layer <= layer:
                raise CompositionError(
                    f"{head} after {before}", wanted=f"layer {layer + 1} or later", got=head.label
                )
            before, layer = head.label, head.layer

    @property
    def order(self) -> int:
        """The number of heads."""
        return len(self.components)

    @property
    def kind(self) -> str:
        """The paper's name for a path of this order: direct, head or virtual head."""
        return ("direct", "head")[self.order] if self.order < 2 else "virtual head"

    def __lt__(self, other: object) -> bool:
        """Sort by order, source and heads."""
        if not isinstance(other, Path):
            return NotImplemented
        return self._sort_key() < other._sort_key()

    def _sort_key(self) -> tuple[object, ...]:
        rank = {"embed": 0, "pos": 1, "b_U": 3}.get(self.source, 2)
        return self.order, rank, natural_key(self.source), self.components

    def __str__(self) -> str:
        """Return the path as it is typed and printed: ``embed > L0H1 > L1H2``."""
        return " > ".join((self.source, *(head.label for head in self.components)))

    @classmethod
    def parse(cls, text: str) -> Path:
        """Read a path; ``>``, ``->`` and ``→`` separate, and spaces do not matter.

        >>> Path.parse("embed→L0H1 > L1H2") == Path("embed", (Head(0, 1), Head(1, 2)))
        True
        """
        if not isinstance(text, str):
            raise NotationError("path", wanted="text such as embed > L0H1", got=_shown(text))
        source, *labels = (piece.strip() for piece in _ARROW.split(text))
        try:
            return cls(source, tuple(Head.parse(label) for label in labels))
        except NotationError as error:
            raise NotationError(
                f"path {_shown(text)}",
                wanted=error.wanted,
                got=error.got,
                remedy="write for example embed > L0H1 > L1H2",
            ) from error

    def term(self) -> Term:
        """Return the path as position word ⊗ linear word.

        >>> from pathexpand.symbolic import format_term
        >>> print(format_term(Path.parse("embed > L0H1").term()))
        A^L0H1 ⊗ W_U W_OV^L0H1 W_E
        """
        start = source_map(self.source)
        if start is B_U:
            return Term((), (B_U,))
        labels = [head.label for head in self.components]
        return Term(tuple(map(attention, labels)), (start, *map(ov, labels), W_U))

    @classmethod
    def from_term(cls, term: Term) -> Path:
        """Return the path whose term this is; raises `CompositionError` if there is none.

        >>> print(Path.from_term(Path.parse("L0bias > L1H2").term()))
        L0bias > L1H2
        """
        refused = CompositionError(
            "term",
            wanted="a path from a source through heads to the logits",
            got=" ".join(map(str, (*term.position_word, "⊗", *term.linear_word))),
            remedy="words are listed earliest map first",
        )
        if not term.linear_word:
            raise refused
        try:
            heads = tuple(Head.parse(each.label) for each in term.position_word)
            path = cls(_source_label(term.linear_word[0]), heads)
        except NotationError as error:
            raise refused from error
        if path.term() != term:
            raise refused
        return path


def _shown(value: object) -> str:
    """Write a value, but never a long line; Python refuses to write out an endless number."""
    if isinstance(value, int) and abs(value) > _MOST:
        return "a number of more than nine digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:30]}…{text[-30:]}"


def _source_label(start: LinearMap) -> str:
    for label, known in _PLAIN_SOURCES.items():
        if start == known:
            return label
    return f"{start.label}bias"
