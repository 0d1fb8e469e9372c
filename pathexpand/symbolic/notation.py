"""Write terms and expansions as text or LaTeX, in the paper's notation or in code order."""

from __future__ import annotations

from pathexpand.errors import NotationError
from pathexpand.symbolic.expression import Expansion, Term
from pathexpand.symbolic.maps import INPUT, LOGITS
from pathexpand.symbolic.style import Style


def format_term(term: Term, *, notation: str = "paper", ascii: bool = False) -> str:
    """Write a term as text that `parse_term` reads back.

    `notation` is ``paper`` (column vectors, right to left) or ``code`` (row vectors, the linear
    word left to right); `ascii` writes ``(x)`` for ⊗.

    >>> from pathexpand.symbolic import Path
    >>> term = Path.parse("embed > L0H1 > L1H2").term()
    >>> print(format_term(term))
    A^L1H2 A^L0H1 ⊗ W_U W_OV^L1H2 W_OV^L0H1 W_E
    >>> print(format_term(term, notation="code", ascii=True))
    A[L1H2] A[L0H1] (x) W_E OV[L0H1] OV[L1H2] W_U
    """
    return Style(notation, ascii=ascii).term(term)


def format_expansion(
    expansion: Expansion, *, notation: str = "paper", ascii: bool = False, lines: bool = False
) -> str:
    """Write an expansion as text that `parse_expansion` reads back; `lines` puts a term on each.

    >>> from pathexpand.symbolic import Network, expand
    >>> print(format_expansion(expand(Network.attention_only(1, 1).expression())))
    Id ⊗ W_U W_E + A^L0H0 ⊗ W_U W_OV^L0H0 W_E
    """
    style = Style(notation, ascii=ascii)
    if not expansion:
        spaces = (expansion.source, expansion.target)
        return style.plain("0" if spaces == (INPUT, LOGITS) else "0 : {} → {}".format(*spaces))
    return _signed(expansion, style, style.plain(" · "), "\n" if lines else " ")


def latex(value: Term | Expansion, *, notation: str = "paper") -> str:
    r"""Write a term or an expansion in LaTeX, without dollar signs.

    >>> from pathexpand.symbolic import Path
    >>> print(latex(Path.parse("embed > L0H1").term()))
    A^{L0H1} \otimes W_U W_{OV}^{L0H1} W_E
    """
    style = Style(notation, "latex")
    if isinstance(value, Term):
        return style.term(value)
    if not isinstance(value, Expansion):
        raise NotationError("latex", wanted="a term or an expansion", got=type(value).__name__)
    return _signed(value, style, r" \cdot ", " ") if value else "0"


def _signed(expansion: Expansion, style: Style, times: str, gap: str) -> str:
    pieces: list[str] = []
    for term, coefficient in expansion.items():
        size = "" if abs(coefficient) == 1 else f"{abs(coefficient)}{times}"
        sign = "-" if coefficient < 0 else "+"
        lead = f"{gap}{sign} " if pieces else sign.replace("+", "")
        pieces.append(lead + size + style.term(term))
    return "".join(pieces)
