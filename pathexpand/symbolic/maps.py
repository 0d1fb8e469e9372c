"""Maps between named spaces, and the words that can be built from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from pathexpand.errors import CompositionError, NotationError
from pathexpand.symbolic.component import Component, parse_component

_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
_LABEL = re.compile(r"\w+", re.ASCII)
_CONSTANT = re.compile(r"(?P<M>L(?:0|[1-9]\d*))M|(?P<b>L(?:0|[1-9]\d*)M?|embed)bias", re.ASCII)
_IN_LAYER = re.compile(r"L(\d+)(M?)", re.ASCII)
_GATED = re.compile(r"L(?:0|[1-9]\d*)(?:N(?:0|[1-9]\d*)|M)", re.ASCII)
_FIRST = ("W_E", "W_pos", "W_type", "b^embed")
_BORN = ("b", "M", "bM")
_IN_READOUT = ("b_U", "b_Q", "b_K")
_RESERVED = ("A", "G", "Id")


def _check_text(subject: str, text: str, pattern: re.Pattern[str]) -> None:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise NotationError(
            subject, wanted="letters, digits and underscores, such as W_E or L0H1", got=repr(text)
        )


@lru_cache(maxsize=65536)
def natural_key(text: str) -> tuple[str | int, ...]:
    """Return a sorting key that counts numbers as numbers.

    >>> sorted(["L10H0", "L2H10", "L2H9"], key=natural_key)
    ['L2H9', 'L2H10', 'L10H0']
    """
    # re.split alternates text and digits, so two keys never compare a str with an int.
    pieces = re.split(r"(\d+)", text, flags=re.ASCII)
    return tuple(int(piece) if odd % 2 else piece for odd, piece in enumerate(pieces))


@dataclass(frozen=True, slots=True)
class Space:
    """A named space that linear maps start from or end in.

    >>> print(Space("stream"))
    stream
    """

    name: str

    def __post_init__(self) -> None:
        """Refuse a name that could not be read back."""
        _check_text("space", self.name, _NAME)

    def __hash__(self) -> int:
        """Hash by the name alone: terms are hashed by the million."""
        return hash(self.name)

    def __str__(self) -> str:
        """Return the name."""
        return self.name


INPUT = Space("input")
"""What a source reads: the token, its position and the constant 1."""

STREAM = Space("stream")
"""The residual stream, of width d_model."""

LOGITS = Space("logits")
"""The output, of width d_vocab."""

QUERY = Space("query")
"""What a head's query is, of width d_head."""

KEY = Space("key")
"""What a head's key is, of width d_head."""


@dataclass(frozen=True, slots=True)
class PositionMap:
    """A map from positions to positions, by its component's label.

    The pattern A^h of a head; the gate G^n of a neuron, which is diagonal; the gates G^m of an MLP
    taken whole. Any two compose, since all of them go from positions to positions.

    >>> print(PositionMap("L0H1"), PositionMap("L0N3"), PositionMap("L0M"))
    A^L0H1 G^L0N3 G^L0M
    """

    label: str

    def __post_init__(self) -> None:
        """Refuse a label that could not be read back."""
        _check_text("position map", self.label, _LABEL)

    def __hash__(self) -> int:
        """Hash by the label alone."""
        return hash(self.label)

    def __str__(self) -> str:
        """Return the symbol and the label."""
        return f"{self.name}^{self.label}"

    @property
    def name(self) -> str:
        """The symbol: A for a pattern, G for a gate."""
        return "G" if is_gated(self.label) else "A"


@dataclass(frozen=True, slots=True)
class LinearMap:
    """A linear map between two named spaces, with an optional label after its name.

    >>> print(LinearMap("W_OV", "L0H1", STREAM, STREAM))
    W_OV^L0H1
    """

    name: str
    label: str
    source: Space
    target: Space

    def __post_init__(self) -> None:
        """Refuse names and labels that could not be read back."""
        _check_text("linear map", self.name, _NAME)
        if self.name in _RESERVED or self.name.startswith("Id_"):
            wanted = "a name other than A, G and Id"
            raise NotationError("linear map", wanted=wanted, got=self.name)
        if self.label:
            _check_text(f"label of {self.name}", self.label, _LABEL)
        if not (isinstance(self.source, Space) and isinstance(self.target, Space)):
            raise CompositionError(
                str(self), wanted="two spaces", got=f"{self.source!r} and {self.target!r}"
            )

    def __hash__(self) -> int:
        """Hash by name and label: equal maps have equal ones, and spaces would only cost time."""
        return hash((self.name, self.label))

    def __str__(self) -> str:
        """Return the paper's symbol."""
        return f"{self.name}^{self.label}" if self.label else self.name

    def sort_key(self) -> tuple[object, ...]:
        """Return the key maps are listed by: sources, then components, then others; b_U last.

        >>> maps = [B_U, linear_map(parse_component("L0N3")), ov("L0H1"), constant("L0M"), W_E]
        >>> print(*sorted(maps, key=LinearMap.sort_key))
        W_E M^L0 W_OV^L0H1 W_IO^L0N3 b_U
        """
        return _sort_key(self.name, self.label)


@lru_cache(maxsize=65536)
def _sort_key(name: str, label: str) -> tuple[object, ...]:
    whole = f"{name}^{label}" if label else name
    if whole in _FIRST:
        return (_FIRST.index(whole),)
    if whole in _IN_READOUT:
        return len(_FIRST) + 3, _IN_READOUT.index(whole)
    layer = _IN_LAYER.fullmatch(label)
    if layer and name + layer[2] in _BORN:
        return len(_FIRST), int(layer[1]), _BORN.index(name + layer[2])
    if name in ("W_OV", "W_IO"):
        try:
            return len(_FIRST) + 1, 0, parse_component(label).code
        except NotationError:
            return len(_FIRST) + 1, 1, natural_key(label)
    return len(_FIRST) + 2, name, natural_key(label)


def check_word(word: tuple[LinearMap, ...]) -> None:
    """Refuse a word whose neighbouring maps do not meet.

    The word is in application order, earliest first. Raises `CompositionError`.

    >>> check_word((W_E, ov("L0H1"), W_U))
    >>> check_word((W_U, W_E))
    Traceback (most recent call last):
        ...
    pathexpand.errors.CompositionError: W_E after W_U: wanted a map from logits, got one from input
    """
    if not word:
        return
    target = word[0].source
    for number, following in enumerate(word):
        if following.source is not target and following.source != target:
            raise CompositionError(
                f"{following} after {word[number - 1]}",
                wanted=f"a map from {target}",
                got=f"one from {following.source}",
            )
        target = following.target


W_E = LinearMap("W_E", "", INPUT, STREAM)
"""The token embedding."""

W_POS = LinearMap("W_pos", "", INPUT, STREAM)
"""The position embedding."""

W_TYPE = LinearMap("W_type", "", INPUT, STREAM)
"""The token-type embedding."""

W_U = LinearMap("W_U", "", STREAM, LOGITS)
"""The unembedding."""

B_U = LinearMap("b_U", "", INPUT, LOGITS)
"""The unembedding's bias, a constant born in the logits."""

B_Q = LinearMap("b_Q", "", INPUT, QUERY)
"""The constant of a head's query."""

B_K = LinearMap("b_K", "", INPUT, KEY)
"""The constant of a head's key."""


def is_gated(label: str) -> bool:
    """Say whether this is the label of a neuron or of an MLP taken whole.

    >>> is_gated("L0N3"), is_gated("L0M"), is_gated("L0H1")
    (True, True, False)
    """
    return _GATED.fullmatch(label) is not None


@lru_cache(maxsize=65536)
def attention(label: str) -> PositionMap:
    """Return the pattern A^h of a head; raises `NotationError` for a neuron's label.

    >>> print(attention("L0H1"))
    A^L0H1
    """
    return PositionMap(_of_head(label))


@lru_cache(maxsize=65536)
def ov(label: str) -> LinearMap:
    """Return the map W_OV^h from the stream to the stream of a head.

    >>> print(ov("L0H1"))
    W_OV^L0H1
    """
    return LinearMap("W_OV", _of_head(label), STREAM, STREAM)


@lru_cache(maxsize=65536)
def gate(label: str) -> PositionMap:
    """Return the gate G^n of a neuron, or the gates G^m of an MLP taken whole.

    G^m ⊗ W_IO^m stands for the sum of G^n ⊗ W_IO^n over the neurons of the MLP. Raises
    `NotationError` for any other label.

    >>> print(gate("L0N3"), gate("L0M"))
    G^L0N3 G^L0M
    """
    return PositionMap(_of_mlp(label))


@lru_cache(maxsize=65536)
def io(label: str) -> LinearMap:
    """Return the map W_IO^n = w_in w_out of a neuron, or the W_IO^m of an MLP taken whole.

    Raises `NotationError` for any other label.

    >>> print(io("L0N3"), io("L0M"))
    W_IO^L0N3 W_IO^L0M
    """
    return LinearMap("W_IO", _of_mlp(label), STREAM, STREAM)


def position_map(component: Component) -> PositionMap:
    """Return the pattern of a head, the gate of a neuron or MLP.

    >>> print(position_map(parse_component("L0H1")), position_map(parse_component("L0N3")))
    A^L0H1 G^L0N3
    """
    return gate(component.label) if component.rank else attention(component.label)


def linear_map(component: Component) -> LinearMap:
    """Return the map from the stream to the stream of a component.

    >>> print(linear_map(parse_component("L0H1")), linear_map(parse_component("L0N3")))
    W_OV^L0H1 W_IO^L0N3
    """
    return io(component.label) if component.rank else ov(component.label)


@lru_cache(maxsize=65536)
def constant(label: str) -> LinearMap:
    """Return the constant with this source label, as a map from the input.

    ``L0bias`` is the constant b^L0 of layer 0's attention and ``L0Mbias`` that of its MLP, ``L0M``
    the output of its MLP taken as it is, ``embedbias`` the constant of a norm after the embedding;
    ``b_U`` is born in the logits, ``b_Q`` and ``b_K`` in a query and a key.

    >>> print(constant("L0bias"), constant("L0M"), constant("L0Mbias"), constant("embedbias"))
    b^L0 M^L0 b^L0M b^embed
    """
    if label in _IN_READOUT:
        return {"b_U": B_U, "b_Q": B_Q, "b_K": B_K}[label]
    found = _CONSTANT.fullmatch(label)
    if found is None:
        wanted = "a label such as L0bias, L0M, L0Mbias, embedbias or b_U"
        raise NotationError("constant", wanted=wanted, got=repr(label))
    return LinearMap(str(found.lastgroup), str(found[str(found.lastgroup)]), INPUT, STREAM)


def _of_head(label: str) -> str:
    if is_gated(label):
        raise NotationError("head", wanted="a label such as L0H1", got=repr(label))
    return label


def _of_mlp(label: str) -> str:
    if not is_gated(label):
        wanted = "a neuron or an MLP such as L0N3 or L0M"
        raise NotationError("gate", wanted=wanted, got=repr(label))
    return label
