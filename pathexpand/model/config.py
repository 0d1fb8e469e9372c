"""What a model is, apart from its weights: sizes, positions, mask, attention scale."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path as FilePath
from typing import Any, Literal

import numpy as np

from pathexpand.errors import FileError, ModelError
from pathexpand.model.numbers import is_real
from pathexpand.model.shown import shown

_MOST_LAYERS = 10_000  # beyond any model; each layer takes memory before its weights are seen
Positions = Literal["standard", "shortformer", "none"]
Direction = Literal["causal", "bidirectional"]

# Parts of the TransformerLens configuration that would change the numbers and that the frozen
# form does not know yet. Each is refused by name: a wrong number is worse than none.
_REFUSED: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("normalization_type", (None, "", "none"), "normalisation layers"),
    ("attn_only", (True,), "MLP layers"),
    ("final_rms", (None, False), "a final RMSNorm"),
    ("post_embedding_ln", (None, False), "a norm after the embedding"),
    ("use_normalization_before_and_after", (None, False), "post-norms"),
    ("use_qk_norm", (None, False), "query-key norms"),
    ("n_key_value_heads", (None,), "grouped-query attention"),
    ("use_local_attn", (None, False), "local attention windows"),
    ("attn_scores_soft_cap", (None, 0, -1), "a soft cap on attention scores"),
    ("output_logits_soft_cap", (None, 0, -1), "a soft cap on logits"),
    ("use_attention_sinks", (None, False), "attention sinks"),
    ("clip_qkv", (None,), "clamps on queries, keys and values"),
    ("use_logn_attn", (None, False), "log-n attention scales"),
    ("num_experts", (None,), "mixtures of experts"),
    ("load_in_4bit", (None, False), "4-bit weights"),
)
_POSITIONS: dict[object, Positions] = {
    "standard": "standard",
    "shortformer": "shortformer",
    "none": "none",
    None: "none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The sizes and switches of an attention-only transformer, under TransformerLens names.

    `attn_scale` holds one number a layer: query-key products are divided by it.

    >>> Config(n_layers=1, n_heads=2, d_model=8, d_head=4, d_vocab=11, n_ctx=5).attn_scale
    (2.0,)
    """

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_vocab: int
    n_ctx: int
    d_vocab_out: int = 0
    positional_embedding_type: Positions = "standard"
    attention_dir: Direction = "causal"
    attn_scale: tuple[float, ...] = ()
    default_prepend_bos: bool = False
    bos_token_id: int | None = None
    model_name: str = "model"

    def __post_init__(self) -> None:
        """Refuse sizes and switches that no model can have; fill what follows from others."""
        for field in fields(self):  # numpy's numbers become plain ones
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        _check_size("n_layers", self.n_layers, 0, _MOST_LAYERS)
        some = 0 if self.n_layers == 0 else 1
        least = {"n_heads": some, "d_head": some, "d_model": 1, "d_vocab": 1, "n_ctx": 1}
        for key, minimum in (least | {"d_vocab_out": 0}).items():
            _check_size(key, getattr(self, key), minimum)
        object.__setattr__(self, "d_vocab_out", self.d_vocab_out or self.d_vocab)
        object.__setattr__(self, "attn_scale", self._checked_scale())
        for key, choices in (
            ("positional_embedding_type", ("standard", "shortformer", "none")),
            ("attention_dir", ("causal", "bidirectional")),
        ):
            value = getattr(self, key)
            if not isinstance(value, str) or value not in choices:
                wanted = f"{', '.join(choices[:-1])} or {choices[-1]}"
                raise ModelError(f"config {key}", wanted=wanted, got=shown(value))
        _check_switch("default_prepend_bos", self.default_prepend_bos)
        if not isinstance(self.model_name, str):
            raise ModelError("config model_name", wanted="text", got=shown(self.model_name))
        start = self.bos_token_id
        if start is not None and (type(start) is not int or not 0 <= start < self.d_vocab):
            wanted = f"an id from 0 to {self.d_vocab - 1}, or none"
            raise ModelError("config bos_token_id", wanted=wanted, got=shown(start))

    def _checked_scale(self) -> tuple[float, ...]:
        given = self.attn_scale
        if isinstance(given, tuple):
            scale = tuple(map(_plain, given or (math.sqrt(self.d_head or 1),) * self.n_layers))
            if len(scale) == self.n_layers and all(map(_is_divisor, scale)):
                return scale
        wanted = f"{self.n_layers} positive numbers, one a layer"
        raise ModelError("config attn_scale", wanted=wanted, got=shown(given))

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> Config:
        """Read a TransformerLens configuration; refuse by name what is not supported yet.

        >>> raw = dict(n_layers=1, n_heads=1, d_model=4, d_head=4, d_vocab=3, n_ctx=2)
        >>> Config.from_mapping(raw | {"attn_only": True}).d_vocab_out
        3
        >>> Config.from_mapping(raw | {"normalization_type": "LN"})
        Traceback (most recent call last):
        ...
        pathexpand.errors.ModelError: config normalization_type 'LN': normalisation layers are not
        supported yet; fold or remove them, or use an attention-only model
        """
        if not isinstance(raw, Mapping):
            raise ModelError("config", wanted="a mapping of TransformerLens names", got=shown(raw))
        raw = {key: _plain(value) for key, value in raw.items()}
        sizes = ("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx")
        missing = [key for key in sizes if raw.get(key) is None]
        if missing:
            hint = (
                "this looks like a Hugging Face configuration; only TransformerLens names are "
                "read so far"
                if "model_type" in raw or "hidden_size" in raw
                else "give the TransformerLens names"
            )
            raise ModelError(
                "config", wanted="all sizes", got=f"none for {', '.join(missing)}", remedy=hint
            )
        for key, allowed, meaning in _REFUSED:
            value = raw.get(key, allowed[0])
            grouped = key == "n_key_value_heads"
            if not _is_one_of(value, (*allowed, raw["n_heads"]) if grouped else allowed):
                one = meaning.startswith("a ") or not meaning.endswith("s")
                raise ModelError(
                    f"config {key} {shown(value)}: {meaning} {'is' if one else 'are'} not "
                    "supported yet",
                    remedy="fold or remove them, or use an attention-only model",
                )
        return cls(**_settings(raw))


def read_config(file: FilePath) -> Config:
    """Read a `config.json` file with TransformerLens names."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError(f"{file}", wanted="a configuration file", got="no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{file}", wanted="JSON", got=str(error)) from None
    if not isinstance(raw, dict):
        raise FileError(f"{file}", wanted="a JSON object", got=type(raw).__name__)
    return Config.from_mapping({"model_name": file.parent.name} | raw)


def _settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name for field in fields(Config)}
    settings = {key: value for key, value in raw.items() if key in known and value is not None}
    if _is_one_of(settings.get("d_vocab_out"), (-1,)):  # TransformerLens for "as d_vocab"
        del settings["d_vocab_out"]
    kind = raw.get("positional_embedding_type", "standard")
    if not isinstance(kind, str | None) or kind not in _POSITIONS:
        raise ModelError(
            f"config positional_embedding_type {shown(kind)}: not supported yet",
            remedy="standard, shortformer or none can be read so far",
        )
    settings["positional_embedding_type"] = _POSITIONS[kind]
    settings["attn_scale"] = _attention_scale(raw)
    return settings


def _attention_scale(raw: Mapping[str, Any]) -> tuple[float, ...]:
    """Give the divisor of each layer's scores.

    TransformerLens writes -1 for "the square root of d_head", has a switch for no scale at all,
    and one that divides layer l's scores by l + 1 once more (Mistral's GPT-2 runs).
    """
    _check_size("n_layers", raw["n_layers"], 0, _MOST_LAYERS)
    _check_size("d_head", raw["d_head"], 0)
    given = raw.get("attn_scale")
    by_size = _is_one_of(given, (None, -1))
    if not by_size and not _is_divisor(given):
        raise ModelError("config attn_scale", wanted="a positive number, or -1", got=shown(given))
    use, by_layer = raw.get("use_attn_scale"), raw.get("scale_attn_by_inverse_layer_idx")
    for key, switch in (("use_attn_scale", use), ("scale_attn_by_inverse_layer_idx", by_layer)):
        _check_switch(key, False if switch is None else switch)
    base = math.sqrt(raw["d_head"] or 1) if given is None or by_size else float(given)
    base = 1.0 if use is False else base
    return tuple(base * (layer + 1 if by_layer else 1) for layer in range(raw["n_layers"]))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_one_of(value: object, allowed: tuple[object, ...]) -> bool:
    """Say whether a value is among some, where 1 is not True and an array is no number."""
    if not isinstance(value, bool | int | float | str | None):
        return False
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in allowed
    )


def _is_divisor(value: Any) -> bool:
    return is_real(value) and bool(0 < value <= sys.float_info.max)


def _check_size(key: str, value: object, least: int, most: int = 2**31 - 1) -> None:
    if type(value) is not int or value < least:
        wanted = f"a whole number of at least {least}"
        raise ModelError(f"config {key}", wanted=wanted, got=shown(value))
    if value > most:
        raise ModelError(f"config {key}", wanted=f"at most {most}", got=shown(value))


def _check_switch(key: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ModelError(f"config {key}", wanted="true or false", got=shown(value))
