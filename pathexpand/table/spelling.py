"""Text that any screen can show: nothing invisible in it, and in ASCII where asked."""

from __future__ import annotations

_SIGNS = {
    "√width": "sqrt(width)",
    "‖": "||",
    "¹": "1",
    "²": "2",
    "³": "3",
    "ᵀ": "^T",
    "√": "sqrt ",
    "Σ": "sum ",
    "λ": "lambda",
    "→": "->",
    "…": "...",
    "−": "-",
    "×": "x",
    "·": "*",
    "≥": ">=",
    "≤": "<=",
    "⊗": "(x)",
    "Δ": "change of ",
    "σ": "sigma",
    "γ": "gamma",
    "β": "beta",
    "∈": " in ",
    "≈": "~",
    "′": "'",
}


def visible(text: str, *, ascii: bool = False) -> str:
    r"""Write control characters, and with `ascii` all but ASCII, as backslash escapes.

    Tokens that differ still differ afterwards, since `Tokenizer.show` doubles their own
    backslashes.

    >>> print(visible("a\x1b[1m"), visible("' caf\u00e9'", ascii=True))
    a\x1b[1m ' caf\xe9'
    """
    kept = (each.isprintable() and (each.isascii() or not ascii) for each in text)
    return "".join(
        each if keep else each.encode("unicode_escape").decode("ascii")
        for each, keep in zip(text, kept, strict=True)
    )


def plain(text: str) -> str:
    """Write the signs of our own sentences and headings in ASCII; of others, escapes.

    Not for tokens: two of them might become the same.

    >>> plain("‖OV¹ (QK²)ᵀ‖ ≥ 1/√width … λ")
    '||OV1 (QK2)^T|| >= 1/sqrt(width) ... lambda'
    """
    for sign, written in _SIGNS.items():
        text = text.replace(sign, written)
    return visible(text, ascii=True)


def can_show(text: str, encoding: str | None) -> bool:
    r"""Say whether an encoding has every character of a text.

    >>> can_show("\u2297", "cp1252"), can_show("\u2297", "utf-8")
    (False, True)
    """
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
