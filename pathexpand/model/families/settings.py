"""A Hugging Face `config.json`, read key by key: each value is checked where it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pathexpand.errors import ModelError
from pathexpand.model.activation import check_activation
from pathexpand.model.config import (
    MOST_HEADS,
    MOST_LAYERS,
    check_size,
    check_switch,
    is_divisor,
    is_one_of,
    plain,
)
from pathexpand.model.numbers import is_real
from pathexpand.model.shown import shown


class Settings:
    """The keys of a configuration, of which some have several names (the first found counts).

    Every method raises `ModelError` for a value of the wrong kind, and for one that is absent when
    no default is given. A default is for what is not written: null in its place is refused, as
    transformers refuses it, unless the format gives null the meaning of the default (`null`).
    """

    def __init__(self, raw: Mapping[str, Any], at: str = "") -> None:
        """Take a mapping as it stands in the file; `at` names it within a larger one."""
        self._raw = {key: plain(value) for key, value in raw.items()}
        self._at = at

    def has(self, *keys: str) -> bool:
        """Say whether one of some keys is there and not null."""
        return any(self._raw.get(key) is not None for key in keys)

    def written(self, key: str) -> bool:
        """Say whether a key is there, be it null."""
        return key in self._raw

    def get(self, *keys: str) -> Any:
        """Give the value of the first key that is there, whatever it is, or None."""
        return next((self._raw[key] for key in keys if self._raw.get(key) is not None), None)

    def name(self, *keys: str) -> str:
        """Give the first key that is there as the file has it, or else the first of all.

        >>> Settings({"n_embd": 3}, "text_config.").name("hidden_size", "n_embd")
        'text_config.n_embd'
        """
        found = next((key for key in keys if self._raw.get(key) is not None), keys[0])
        return f"{self._at}{found}"

    def size(
        self,
        *keys: str,
        default: int | None = None,
        null: bool = False,
        least: int = 1,
        most: int = 2**31 - 1,
    ) -> int:
        """Give a whole number."""
        value = self._value(keys, default, null)
        check_size(self.name(*keys), value, least, most)
        return int(value)

    def layers(self, *keys: str) -> int:
        """Give the number of layers."""
        return self.size(*keys or ("num_hidden_layers",), least=0, most=MOST_LAYERS)

    def heads(self, *keys: str) -> int:
        """Give the number of heads."""
        return self.size(*keys or ("num_attention_heads",), most=MOST_HEADS)

    def number(self, *keys: str, default: float | None = None, null: bool = False) -> float:
        """Give a positive number."""
        value = self._value(keys, default, null)
        if not is_divisor(value):
            raise ModelError(
                f"config {self.name(*keys)}", wanted="a positive number", got=shown(value)
            )
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Give a list of numbers."""
        value = self._value((key,), None)
        if not isinstance(value, list | tuple) or not all(map(is_real, value)):
            raise ModelError(f"config {self.name(key)}", wanted="numbers", got=shown(value))
        return tuple(map(float, value))

    def eps(self, *keys: str, default: float | None = None) -> float:
        """Give what a norm adds to the variance: a number of at least 0."""
        value = self._value(keys, default)
        return 0.0 if is_one_of(value, (0,)) else self.number(*keys, default=default)

    def switch(self, *keys: str, default: bool | None = None) -> bool:
        """Give true or false."""
        value = self._value(keys, default)
        check_switch(self.name(*keys), value)
        return bool(value)

    def act(self, *keys: str, default: str) -> str:
        """Give the name of an activation function."""
        return check_activation(self._value(keys, default), self.name(*keys))

    def kinds(self, key: str, count: int, allowed: tuple[str, ...]) -> tuple[str, ...]:
        """Give one word a layer."""
        value = self._value((key,), None)
        given = list(value) if isinstance(value, list | tuple) else []
        if len(given) != count or not all(is_one_of(each, allowed) for each in given):
            wanted = f"{count} of {', '.join(allowed)}, one a layer"
            raise ModelError(f"config {self.name(key)}", wanted=wanted, got=shown(value))
        return tuple(given)

    def under(self, key: str) -> Settings | None:
        """Give the settings that stand under a key, or None if there are none."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ModelError(f"config {self.name(key)}", wanted="settings", got=shown(value))
        return Settings(value, f"{self.name(key)}.")

    def refuse(self, key: str, *allowed: object) -> None:
        """Refuse a setting that would change the numbers in a way that is not supported."""
        value = self.get(key)
        if value is not None and not is_one_of(value, allowed):
            raise ModelError(f"config {self.name(key)} {shown(value)}: not supported")

    def _value(self, keys: tuple[str, ...], default: Any, null: bool = False) -> Any:
        value = self.get(*keys)
        if value is not None:
            return value
        if default is None:
            raise ModelError("config", wanted=f"a value for {self.name(*keys)}", got="none")
        written = next((key for key in keys if self.written(key)), None)
        if written is not None and not null:
            raise ModelError(
                f"config {self.name(written)}",
                wanted="a value",
                got="null",
                remedy="leave it out for the default",
            )
        return default
