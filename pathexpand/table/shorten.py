"""Paths and tokens cut to a width so that what matters most is still there."""

from __future__ import annotations

from collections.abc import Sequence


def width(text: str) -> int:
    """Give the number of terminal cells a text takes; of several lines, the longest.

    >>> width("ab"), width("漢"), width("a\\nbcd")
    (2, 2, 3)
    """
    if "\n" in text:
        return max(map(width, text.split("\n")))
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shorten_path(path: str, room: int, *, mark: str = "…") -> str:
    """Leave out heads in the middle of a path: both ends say most.

    >>> shorten_path("embed > L0H1 > L1H2 > L2H3 > L3H4", 25)
    'embed > … > L2H3 > L3H4'
    """
    pieces = path.split(" > ")
    if width(path) <= room:
        return path
    best = shorten_end(path, room, mark=mark)
    for kept in range(2, len(pieces)):
        # The later end first: it is where the value is read.
        last = (kept + 1) // 2
        shorter = " > ".join([*pieces[: kept - last], mark, *pieces[len(pieces) - last :]])
        if width(shorter) <= room:
            best = shorter
    return best


def shorten_end(text: str, room: int, *, mark: str = "…") -> str:
    """Cut the end of a text.

    >>> shorten_end("all 25 paths", 7)
    'all 25…'
    """
    if width(text) <= room:
        return text
    return _head(text, max(room - width(mark), 0)) + mark


def wrap(text: str, room: int) -> str:
    """Break a text into lines at its spaces, and within a word only where that is longer.

    >>> wrap("all 25 paths, the first 3", 13)
    'all 25 paths,\\nthe first 3'
    """
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if width(longer) <= room:
            lines[-1] = longer
            continue
        lines += [word] if lines[-1] else []
        lines[-1] = word
        while width(lines[-1]) > room:
            start = _head(lines[-1], room) or lines[-1][:1]
            lines[-1:] = [start, lines[-1][len(start) :]]
    return "\n".join(lines)


def shorten_token(text: str, token: int, room: int, *, mark: str = "…") -> str:
    """Cut a token's text; its id then follows, so that it is still told from every other.

    >>> shorten_token("' representation'", 816, 12)
    "' repre…#816"
    """
    if width(text) <= room:
        return text
    end = f"{mark}#{token}"
    return _head(text, max(room - width(end), 0)) + end


def shorten_tokens(texts: Sequence[str], room: int, *, mark: str = "…") -> str:
    """Leave out tokens in the middle of a prompt; more of its end is kept.

    >>> shorten_tokens(["'a'", "'b'", "'c'", "'d'", "'e'"], 18)
    "'a' … 'c' 'd' 'e'"
    """
    whole = " ".join(texts)
    if width(whole) <= room or len(texts) < 2:
        return whole
    # A third of the room for the beginning, the rest for the end.
    first = _fitting(texts, room // 3 - width(mark) - 1)
    used = sum(width(each) + 1 for each in texts[:first]) + width(mark) + 1
    last = max(_fitting(texts[::-1], room - used), 1)
    return " ".join([*texts[:first], mark, *texts[max(len(texts) - last, first) :]])


def _fitting(texts: Sequence[str], room: int) -> int:
    """Say how many of the texts, a space between, fit."""
    for number, text in enumerate(texts):
        room -= width(text) + (number > 0)
        if room < 0:
            return number
    return len(texts)


def _head(text: str, room: int) -> str:
    end = min(len(text), room)
    while width(text[:end]) > room:
        end -= 1
    return text[:end]
