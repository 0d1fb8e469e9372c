"""What a user gave, as an error line repeats it: never long, whatever it is."""

from __future__ import annotations

ROOM = 60  # characters of a value that an error line repeats
FILE_ROOM = 240  # and of a file's name, which is seldom made up


def shown(value: object, room: int = ROOM) -> str:
    """Write a value as Python does, cut in the middle where it is long.

    >>> shown("word"), shown("9" * 5000, 9), shown(10**5000)
    ("'word'", "'999…999'", 'a number of more than 60 digits')
    """
    if isinstance(value, int) and abs(value) >= 10**room:
        return f"a number of more than {room} digits"
    try:
        return cut(" ".join(repr(value).split()), room)  # an array's repr has several lines
    except Exception:  # a foreign object's own repr
        return f"a {type(value).__name__}"


def cut(text: str, room: int = ROOM) -> str:
    """Leave out the middle of a text that is longer than `room`.

    >>> cut("a" * 100 + "z", 5)
    'aa…az'
    """
    half = room // 2
    return text if len(text) <= room else f"{text[:half]}…{text[len(text) - half :]}"
