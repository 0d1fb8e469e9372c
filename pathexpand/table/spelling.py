"""Text that any screen can show: nothing invisible in it, and in ASCII where asked."""

from __future__ import annotations


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
