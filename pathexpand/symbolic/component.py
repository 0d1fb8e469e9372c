"""What a path passes through: heads, MLP neurons, and MLPs taken whole."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import total_ordering
from operator import index
from typing import ClassVar, TypeAlias

from pathexpand.errors import NotationError

NUMBER = r"(0|[1-9]\d{0,8})"
"""A pattern of counting numbers: no network has 10^9 layers, and Python reads no endless number."""

_MOST = 10**9 - 1
_HEAD = re.compile(f"L{NUMBER}H{NUMBER}", re.ASCII)
_NEURON = re.compile(f"L{NUMBER}N{NUMBER}", re.ASCII)
_MLP = re.compile(f"L{NUMBER}M", re.ASCII)


@total_ordering
class _Component:
    """What all components share; `code` sorts, compares and hashes them, whatever their kind."""

    __slots__ = ()
    rank: ClassVar[int]
    layer: int
    code: int

    @property
    def index(self) -> int:
        """The index in the layer."""
        raise NotImplementedError

    @property
    def key(self) -> tuple[int, int]:
        """The layer and the rank: along a path they rise."""
        return self.layer, self.rank

    @property
    def label(self) -> str:
        """The label users type."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        """Compare kind, layer and index."""
        return self.code == other.code if isinstance(other, _Component) else NotImplemented

    def __lt__(self, other: object) -> bool:
        """Sort by layer, rank, kind and index."""
        return self.code < other.code if isinstance(other, _Component) else NotImplemented

    def __hash__(self) -> int:
        """Hash by one number: components are hashed by the million."""
        return self.code

    def __str__(self) -> str:
        """Return the label."""
        return self.label

    def _repr_html_(self) -> str:
        return f"<code>{self.label}</code>"

    def _settle(self, subject: str, kind: int, *names: str) -> None:
        """Work out the code; refuse what is no counting number, make numpy's integers plain."""
        layer, place = self.layer, self.index
        plain = type(layer) is int and type(place) is int
        if not plain:
            layer, place = _plain(layer), _plain(place)
        if not (0 <= layer <= _MOST and 0 <= place <= _MOST):
            what = "a layer and an index" if len(names) > 1 else "a layer"
            got = ", ".join(shown(getattr(self, name)) for name in names)
            wanted = f"{what} from 0, of at most nine digits"
            raise NotationError(subject, wanted=wanted, got=got)
        if not plain:
            for name, number in zip(names, (layer, place), strict=False):
                object.__setattr__(self, name, number)
        stand = (2 * layer + self.rank) * 2 + kind
        object.__setattr__(self, "code", stand * (_MOST + 1) + place)


@dataclass(frozen=True, slots=True, eq=False)
class Head(_Component):
    """An attention head, by its layer and its index in the layer, both counted from 0.

    Components of all kinds sort by layer, then rank (heads before the MLP), then index. Raises
    `NotationError` for negative numbers and for those of more than nine digits.

    >>> Head(0, 1).label, Head.parse("L0H1") == Head(0, 1), Head(0, 1).rank
    ('L0H1', True, 0)
    """

    layer: int
    index: int
    code: int = field(init=False, repr=False)
    rank: ClassVar[int] = 0

    def __post_init__(self) -> None:
        """Refuse what is not two counting numbers."""
        self._settle("head", 0, "layer", "index")

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
        return cls(*_numbers("head", _HEAD, text, "L0H1"))


@dataclass(frozen=True, slots=True, eq=False)
class Neuron(_Component):
    """A neuron of a layer's MLP, by its layer and its index in the MLP, both counted from 0.

    Raises `NotationError` for negative numbers and for those of more than nine digits.

    >>> Neuron(3, 210).label, Neuron(3, 210).rank, Head(3, 999) < Neuron(3, 0) < Head(4, 0)
    ('L3N210', 1, True)
    """

    layer: int
    index: int
    code: int = field(init=False, repr=False)
    rank: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Refuse what is not two counting numbers."""
        self._settle("neuron", 0, "layer", "index")

    @property
    def label(self) -> str:
        """The label users type, such as L3N210."""
        return f"L{self.layer}N{self.index}"

    @classmethod
    def parse(cls, text: str) -> Neuron:
        """Read a label; surrounding spaces do not matter.

        >>> Neuron.parse("L3N210")
        Neuron(layer=3, index=210)
        """
        return cls(*_numbers("neuron", _NEURON, text, "L0N1"))


@dataclass(frozen=True, slots=True, eq=False)
class Mlp(_Component):
    """A layer's MLP taken whole, its gates held fixed; its index is 0.

    Raises `NotationError` for a negative layer and for one of more than nine digits.

    >>> Mlp(3).label, Mlp(3).rank, Mlp(3).index
    ('L3M', 1, 0)
    """

    layer: int
    code: int = field(init=False, repr=False)
    rank: ClassVar[int] = 1

    @property
    def index(self) -> int:
        """The index, always 0."""
        return 0

    def __post_init__(self) -> None:
        """Refuse what is not a counting number."""
        self._settle("MLP", 1, "layer")

    @property
    def label(self) -> str:
        """The label users type, such as L3M."""
        return f"L{self.layer}M"

    @classmethod
    def parse(cls, text: str) -> Mlp:
        """Read a label; surrounding spaces do not matter.

        >>> Mlp.parse("L3M")
        Mlp(layer=3)
        """
        return cls(*_numbers("MLP", _MLP, text, "L0M"))


Component: TypeAlias = Head | Neuron | Mlp


def parse_component(text: str) -> Component:
    """Read the label of a component of any kind; surrounding spaces do not matter.

    Raises `NotationError` for text that is no such label.

    >>> parse_component("L3N210"), parse_component("L3M")
    (Neuron(layer=3, index=210), Mlp(layer=3))
    """
    label = text.strip() if isinstance(text, str) else ""
    if match := _HEAD.fullmatch(label):
        return Head(int(match[1]), int(match[2]))
    if match := _NEURON.fullmatch(label):
        return Neuron(int(match[1]), int(match[2]))
    if match := _MLP.fullmatch(label):
        return Mlp(int(match[1]))
    wanted = "a label such as L0H1, L0N210 or L0M"
    raise NotationError("component", wanted=wanted, got=shown(text))


def shown(value: object) -> str:
    """Write a value, but never a long line; Python refuses to write out an endless number.

    >>> shown("L0H1"), shown(10**9)
    ("'L0H1'", 'a number of more than nine digits')
    """
    if isinstance(value, int) and abs(value) > _MOST:
        return "a number of more than nine digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:30]}…{text[-30:]}"


def _plain(value: object) -> int:
    """Return the plain integer that a value is; -1 for what is no integer."""
    try:
        return int(index(value))  # type: ignore[arg-type]
    except TypeError:
        return -1


def _numbers(subject: str, pattern: re.Pattern[str], text: str, example: str) -> list[int]:
    match = pattern.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise NotationError(subject, wanted=f"a label such as {example}", got=shown(text))
    return [int(number) for number in match.groups()]
