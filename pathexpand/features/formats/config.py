"""A format's configuration file: a mapping whose values are asked for by key and kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, NoReturn

from pathexpand.errors import FileError, PathExpandError
from pathexpand.model.numbers import is_real
from pathexpand.model.shown import cut, shown


@dataclass(frozen=True, slots=True)
class Setting:
    """A configuration read from a file."""

    file: FilePath
    raw: Mapping[str, Any]

    @classmethod
    def read(cls, file: FilePath) -> Setting:
        """Read a JSON or YAML file; raises `FileError`."""
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise FileError(f"{file}", wanted="a configuration file", got="no such file") from None
        except (OSError, ValueError) as error:
            raise FileError(f"{file}", wanted="text", got=cut(str(error), 120)) from None
        raw = _yaml(file, text) if file.suffix in (".yaml", ".yml") else _json(file, text)
        if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
            raise FileError(f"{file}", wanted="names and values", got=shown(raw))
        return cls(file, raw)

    def get(self, key: str, *others: str) -> Any:
        """Give the value of the first of some keys that is there, or None."""
        return next((self.raw[each] for each in (key, *others) if each in self.raw), None)

    def part(self, key: str) -> Setting:
        """Give a mapping inside; an absent one is empty."""
        value = self.raw.get(key)
        if value is None:
            return Setting(self.file, {})
        if not isinstance(value, dict):
            self.refuse(key, "names and values", shown(value))
        return Setting(self.file, value)

    def text(self, key: str, *others: str) -> str:
        """Give a text that must be there."""
        value = self.get(key, *others)
        if not isinstance(value, str):
            self.refuse(key, "text", shown(value))
        return str(value)

    def choice(self, key: str, *choices: str, default: str | None = None) -> str:
        """Give one of some texts."""
        value = self.raw.get(key, default)
        if not isinstance(value, str) or value not in choices:
            self.refuse(key, " or ".join(choices), shown(value))
        return str(value)

    def whole(self, key: str, *others: str, default: int | None = None) -> int:
        """Give a positive whole number."""
        value = self.get(key, *others)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            self.refuse(key, "a positive whole number", shown(value))
        return value

    def number(self, key: str) -> float:
        """Give a number that must be there."""
        value = self.raw.get(key)
        if not isinstance(value, int | float) or not is_real(value):
            self.refuse(key, "a number", shown(value))
        return float(value)

    def positive(self, key: str) -> float:
        """Give a number that can be divided by."""
        value = self.number(key)
        if value <= 0:
            self.refuse(key, "a positive number", f"{value:g}")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Give a switch."""
        value = self.raw.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            self.refuse(key, "true or false", shown(value))
        return value

    def none(self, key: str, *allowed: object, why: str) -> None:
        """Refuse a key that is set to something that is not supported."""
        value = self.raw.get(key)
        if value is not None and not any(value is each or value == each for each in allowed):
            self.refuse(key, "none", shown(value), f"{why} are not supported")

    def refuse(self, key: str, wanted: str, got: str, remedy: str = "") -> NoReturn:
        """Raise a `FileError` about a key."""
        raise FileError(f"{self.file}, {key}", wanted=wanted, got=got, remedy=remedy)


def _json(file: FilePath, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{file}", wanted="JSON", got=cut(str(error), 120)) from None


def _yaml(file: FilePath, text: str) -> Any:
    try:  # JSON is YAML, and needs no library
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        import yaml
    except ImportError:
        raise PathExpandError(
            f"{file}", wanted="PyYAML to read it", remedy='pip install "pathexpand[features]"'
        ) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        got = cut(" ".join(str(error).split()), 120)
        raise FileError(f"{file}", wanted="YAML", got=got) from None
