"""What a user gave, as an error line repeats it: never long, whatever it is."""

from __future__ import annotations

from pathexpand.errors import PathExpandError

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


def check_flag(name: str, value: object, *, none: bool = False) -> None:
    """Refuse what is neither true nor false, nor None where `none` is: "no" would count as true.

    >>> check_flag("centred", True)
    >>> check_flag("centred", "no")
    Traceback (most recent call last):
    ...
    pathexpand.errors.PathExpandError: centred: wanted True or False, got 'no'
    """
    if type(value).__name__ in ("bool", "bool_") or (none and value is None):
        return
    wanted = "True, False or None" if none else "True or False"
    raise PathExpandError(name, wanted=wanted, got=shown(value))


def cut(text: str, room: int = ROOM) -> str:
    """Leave out the middle of a text that is longer than `room`.

    >>> cut("a" * 100 + "z", 5)
    'aa…az'
    """
    half = room // 2
    return text if len(text) <= room else f"{text[:half]}…{text[len(text) - half :]}"
