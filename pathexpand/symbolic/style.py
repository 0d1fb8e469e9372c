"""How maps, words and sums are written: paper or code notation, as text, ASCII or LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pathexpand.errors import NotationError
from pathexpand.symbolic.expression import Term
from pathexpand.symbolic.maps import STREAM, LinearMap, PositionMap

NOTATIONS = ("paper", "code")
FORMATS = ("text", "latex")
_ASCII = {"⊗": "(x)", "·": "*", "→": "->", "Σ": "sum", "∈": " in ", "∪": "+", "…": "...", "≈": "~"}


def check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices, with `NotationError`.

    >>> check_choice("notation", "paper", NOTATIONS)
    """
    if value not in choices:
        raise NotationError(option, wanted=" or ".join(choices), got=repr(value))


@dataclass(frozen=True, slots=True)
class Style:
    """One way of writing: the only place that knows of columns and rows.

    In the paper's notation both words read from right to left. In code notation the linear word
    reads from left to right, as in ``x → P x C``; the position word stands left of x and keeps its
    order.

    >>> Style("code").linear_map(LinearMap("W_OV", "L0H1", STREAM, STREAM))
    'OV[L0H1]'
    """

    notation: str = "paper"
    format: str = "text"
    ascii: bool = False

    def __post_init__(self) -> None:
        """Refuse unknown notations and formats."""
        check_choice("notation", self.notation, NOTATIONS)
        check_choice("format", self.format, FORMATS)

    @property
    def latex(self) -> bool:
        """Whether this writes LaTeX."""
        return self.format == "latex"

    def plain(self, text: str) -> str:
        """Return the text with the signs this style allows.

        >>> Style(ascii=True).plain("2 · a ⊗ b")
        '2 * a (x) b'
        """
        if self.ascii and not self.latex:
            for sign, spelled in _ASCII.items():
                text = text.replace(sign, spelled)
        return text

    def symbol(self, name: str, label: str) -> str:
        """Write a name with its label, if it has one.

        >>> Style().symbol("A", "h"), Style("code").symbol("A", "h")
        ('A^h', 'A[h]')
        """
        if not label:
            return name
        if self.latex:
            return f"{name}^{{{latex_label(label)}}}"
        return f"{name}^{label}" if self.notation == "paper" else f"{name}[{label}]"

    def position_map(self, each: PositionMap) -> str:
        """Write one position map.

        >>> Style().position_map(PositionMap("L0H1")), Style().position_map(PositionMap("L0N3"))
        ('A^L0H1', 'G^L0N3')
        """
        return self.symbol(each.name, each.label)

    def linear_map(self, each: LinearMap) -> str:
        """Write one linear map.

        >>> Style().linear_map(LinearMap("W_OV", "L0H1", STREAM, STREAM))
        'W_OV^L0H1'
        """
        if self.latex:
            return self.symbol(_latex_name(each.name), each.label)
        short = self.notation == "code" and each.label
        return self.symbol(each.name.removeprefix("W_") if short else each.name, each.label)

    def tensor(self, positions: Sequence[str], linears: Sequence[str], space: str = "") -> str:
        """Write position word ⊗ linear word from symbols in application order.

        >>> Style().tensor([], ["W_E", "W_U"])
        'Id ⊗ W_U W_E'
        """
        identity = r"\mathrm{Id}" if self.latex else "Id"
        own = identity if space in ("", STREAM.name) else self._identity_of(space)
        outer = " ".join(reversed(positions)) or identity
        ordered = reversed(linears) if self.notation == "paper" else linears
        sign = r"\otimes" if self.latex else "⊗"
        return self.plain(f"{outer} {sign} {' '.join(ordered) or own}")

    def _identity_of(self, space: str) -> str:
        return rf"\mathrm{{Id}}_{{\mathrm{{{space}}}}}" if self.latex else f"Id_{space}"

    def term(self, term: Term) -> str:
        """Write a term.

        >>> Style().term(Term((), ()))
        'Id ⊗ Id'
        """
        return self.tensor(
            [self.position_map(each) for each in term.position_word],
            [self.linear_map(each) for each in term.linear_word],
            term.source.name,
        )


def latex_label(label: str) -> str:
    r"""Write a label in LaTeX; a bound variable's number becomes its index, words stay words.

    >>> latex_label("L0H1"), latex_label("h2"), latex_label("embed")
    ('L0H1', 'h_{2}', '\\mathrm{embed}')
    """
    variable = re.fullmatch(r"([hnmc])(\d+|k)", label)
    if variable:
        return f"{variable[1]}_{{{variable[2]}}}"
    if len(label) > 2 and label.islower() and label.isalpha():
        return rf"\mathrm{{{label}}}"
    return label.replace("_", r"\_")


def _latex_name(name: str) -> str:
    base, _, index = name.partition("_")
    if not index:
        return base
    # Lower-case words such as "pos" are words, not products of letters.
    index = rf"\mathrm{{{index}}}" if index.islower() else index.replace("_", r"\_")
    return f"{base}_{{{index}}}" if len(index) > 1 else f"{base}_{index}"
