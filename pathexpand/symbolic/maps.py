"""Maps between named spaces, and the words that can be built from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from pathexpand.errors import CompositionError, NotationError

_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
_LABEL = re.compile(r"\w+", re.ASCII)
_BIAS = re.compile(r"(L(?:0|[1-9]\d*))bias", re.ASCII)
_RESERVED = ("A", "Id")


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


@dataclass(frozen=True, slots=True)
class PositionMap:
    """A map from positions to positions: the pattern A^h of the component with this label.

    Any two compose, since all of them go from positions to positions.

    >>> print(PositionMap("L0H1"))
    A^L0H1
    """

    label: str

    def __post_init__(self) -> None:
        """Refuse a label that could not be read back."""
        _check_text("position map", self.label, _LABEL)

    def __hash__(self) -> int:
        """Hash by the label alone."""
        return hash(self.label)

    def __str__(self) -> str:
        """Return the paper's symbol."""
        return f"A^{self.label}"


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
            raise NotationError("linear map", wanted="a name other than A and Id", got=self.name)
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

W_U = LinearMap("W_U", "", STREAM, LOGITS)
"""The unembedding."""

B_U = LinearMap("b_U", "", INPUT, LOGITS)
"""The unembedding's bias, a constant born in the logits."""


@lru_cache(maxsize=65536)
def attention(label: str) -> PositionMap:
    """Return the pattern A^h of a head.

    >>> print(attention("L0H1"))
    A^L0H1
    """
    return PositionMap(label)


@lru_cache(maxsize=65536)
def ov(label: str) -> LinearMap:
    """Return the map W_OV^h from the stream to the stream of a head.

    >>> print(ov("L0H1"))
    W_OV^L0H1
    """
    return LinearMap("W_OV", label, STREAM, STREAM)


@lru_cache(maxsize=65536)
def constant(label: str) -> LinearMap:
    """Return the constant with this source label, as a map from the input.

    ``L0bias`` is the constant b^L0 that layer 0 adds to the stream; ``b_U`` is born in the logits.

    >>> print(constant("L0bias"), constant("b_U"))
    b^L0 b_U
    """
    if label == "b_U":
        return B_U
    bias = _BIAS.fullmatch(label)
    if bias is None:
        raise NotationError("constant", wanted="a label such as L0bias or b_U", got=repr(label))
    return LinearMap("b", bias[1], INPUT, STREAM)
