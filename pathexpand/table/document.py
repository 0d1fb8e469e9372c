"""A table as a JSON document, and the checks when one is read back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from pathexpand.errors import FileError, PathExpandError


def check_finite(**numbers: float | None) -> None:
    """Refuse numbers that are not finite: nothing can be ranked or summed with them.

    >>> check_finite(value=1.0, share=None)
    >>> check_finite(dense=float("inf"))
    Traceback (most recent call last):
    ...
    pathexpand.errors.PathExpandError: dense: wanted a finite number, got inf; weights this large
    overflow
    """
    for name, number in numbers.items():
        if number is not None and not math.isfinite(number):
            raise PathExpandError(
                name.replace("_", " "),
                wanted="a finite number",
                got=str(number),
                remedy="weights this large overflow",
            )


def write(document: Mapping[str, Any], *, ascii: bool = False) -> str:
    """Write a document as JSON, each number to its last digit and never as NaN.

    >>> print(write({"value": 0.1, "rows": []}))
    {
      "value": 0.1,
      "rows": []
    }
    """
    return json.dumps(document, indent=2, ensure_ascii=ascii, allow_nan=False)


def read(text: str, kind: str) -> Record:
    """Read a document of a kind of table; raises `FileError` if it is none.

    >>> read('{"table": "paths", "dense": 1}', "paths").number("dense")
    1.0
    """
    try:
        document = json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=without_twins
        )
    except (ValueError, RecursionError) as error:
        raise FileError("table", wanted="JSON written by to_json", got=str(error)) from None
    if not isinstance(document, dict) or document.get("table") != kind:
        got = document.get("table") if isinstance(document, dict) else type(document).__name__
        raise FileError("table", wanted=f'JSON with "table": "{kind}"', got=repr(got))
    return Record(document, "table")


class Record:
    """One JSON object whose members are taken with the type they must have.

    >>> Record({"rank": 1}, "row").whole("rank")
    1
    """

    def __init__(self, members: Mapping[str, Any], name: str) -> None:
        """Keep the members and the name that errors give."""
        self._members = members
        self._name = name

    def _refuse(self, key: str, wanted: str) -> NoReturn:
        got = repr(self._members[key])[:40] if key in self._members else "none"
        raise FileError(f"{self._name} {key}", wanted=wanted, got=got)

    def number(self, key: str) -> float:
        """Take a number."""
        value = self._members.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(key, "a number")
        try:
            return float(value)
        except OverflowError:
            self._refuse(key, "a number that a float64 holds")

    def number_or_none(self, key: str) -> float | None:
        """Take a number or null."""
        return None if self._absent(key) else self.number(key)

    def whole(self, key: str) -> int:
        """Take a whole number."""
        value = self._members.get(key)
        if type(value) is not int:
            self._refuse(key, "a whole number")
        return value

    def whole_or_none(self, key: str) -> int | None:
        """Take a whole number or null."""
        return None if self._absent(key) else self.whole(key)

    def text(self, key: str) -> str:
        """Take a text."""
        value = self._members.get(key)
        if not isinstance(value, str):
            self._refuse(key, "text")
        return value

    def text_if_any(self, key: str) -> str | None:
        """Take a text or null, or None where nothing is written: older files do not say."""
        return None if self._members.get(key) is None else self.text(key)

    def number_if_any(self, key: str) -> float | None:
        """Take a number or null, or None where nothing is written: older files do not say."""
        return None if self._members.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        """Take true or false."""
        value = self._members.get(key)
        if not isinstance(value, bool):
            self._refuse(key, "true or false")
        return value

    def records(self, key: str) -> list[Record]:
        """Take a list of objects."""
        value = self._members.get(key)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self._refuse(key, "a list of objects")
        return [Record(each, f"{key}[{place}]") for place, each in enumerate(value)]

    def plain_or_none(self, key: str) -> str | int | float | bool | None:
        """Take a text, a number, true, false or null, as it is."""
        if self._absent(key):
            return None
        value = self._members[key]
        if not isinstance(value, str | int | float | bool):
            self._refuse(key, "a text, a number, true, false or null")
        return value

    def _absent(self, key: str) -> bool:
        if key not in self._members:
            self._refuse(key, "a value or null")
        return self._members[key] is None


def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object of its members; raises `ValueError` if two have the same name.

    >>> without_twins([("bound", 1.0), ("bound", 2.0)])
    Traceback (most recent call last):
    ...
    ValueError: the member 'bound' stands there twice
    """
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise ValueError(f"the member {key[:40]!r} stands there twice")
        members[key] = value
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
