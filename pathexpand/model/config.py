"""What a model is, apart from its weights: sizes, positions, mask, attention scale."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path as FilePath
from typing import Any, Literal

from pathexpand.errors import FileError, ModelError

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
        least = {"n_layers": 0, "n_heads": 0 if self.n_layers == 0 else 1}
        least |= dict.fromkeys(("d_model", "d_vocab", "n_ctx"), 1)
        least["d_head"] = 0 if self.n_layers == 0 else 1
        for key, minimum in least.items():
            value = getattr(self, key)
            if type(value) is not int or value < minimum:
                raise ModelError(
                    f"config {key}", wanted=f"a whole number of at least {minimum}", got=repr(value)
                )
        if type(self.d_vocab_out) is not int or self.d_vocab_out < 0:
            raise ModelError("config d_vocab_out", wanted="a size", got=repr(self.d_vocab_out))
        object.__setattr__(self, "d_vocab_out", self.d_vocab_out or self.d_vocab)
        scale = self.attn_scale or (math.sqrt(self.d_head or 1),) * self.n_layers
        if len(scale) != self.n_layers or not all(
            math.isfinite(each) and each > 0 for each in scale
        ):
            raise ModelError(
                "config attn_scale",
                wanted=f"{self.n_layers} positive numbers, one a layer",
                got=repr(scale),
            )
        object.__setattr__(self, "attn_scale", tuple(scale))
        if self.positional_embedding_type not in ("standard", "shortformer", "none"):
            raise ModelError(
                "config positional_embedding_type",
                wanted="standard, shortformer or none",
                got=repr(self.positional_embedding_type),
            )
        if self.attention_dir not in ("causal", "bidirectional"):
            raise ModelError(
                "config attention_dir",
                wanted="causal or bidirectional",
                got=repr(self.attention_dir),
            )

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
        missing = [
            key
            for key in ("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx")
            if key not in raw
        ]
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
            if value not in allowed and not (
                key == "n_key_value_heads" and value == raw["n_heads"]
            ):
                raise ModelError(
                    f"config {key} {value!r}: {meaning} is not supported yet"
                    if meaning.startswith("a ") or not meaning.endswith("s")
                    else f"config {key} {value!r}: {meaning} are not supported yet",
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
    if settings.get("d_vocab_out") == -1:  # TransformerLens for "as d_vocab"
        del settings["d_vocab_out"]
    kind = raw.get("positional_embedding_type", "standard")
    if kind not in _POSITIONS:
        raise ModelError(
            f"config positional_embedding_type {kind!r}: not supported yet",
            remedy="standard, shortformer or none can be read so far",
        )
    settings["positional_embedding_type"] = _POSITIONS[kind]
    settings["attn_scale"] = _attention_scale(raw)
    if not isinstance(settings.get("model_name", ""), str):
        raise ModelError("config model_name", wanted="text", got=repr(settings["model_name"]))
    return settings


def _attention_scale(raw: Mapping[str, Any]) -> tuple[float, ...]:
    """Give the divisor of each layer's scores.

    TransformerLens writes -1 for "the square root of d_head", has a switch for no scale at all,
    and one that divides layer l's scores by l + 1 once more (Mistral's GPT-2 runs).
    """
    layers = raw["n_layers"]
    if type(layers) is not int or layers < 0:
        raise ModelError("config n_layers", wanted="a whole number", got=repr(layers))
    given = raw.get("attn_scale")
    if given is not None and not isinstance(given, int | float):
        raise ModelError("config attn_scale", wanted="a number", got=repr(given))
    if not raw.get("use_attn_scale", True):
        base = 1.0
    elif given is None or given == -1:
        if type(raw["d_head"]) is not int or raw["d_head"] < 0:
            raise ModelError("config d_head", wanted="a whole number", got=repr(raw["d_head"]))
        base = math.sqrt(raw["d_head"] or 1)
    else:
        base = float(given)
    by_layer = raw.get("scale_attn_by_inverse_layer_idx", False)
    return tuple(base * (layer + 1 if by_layer else 1) for layer in range(layers))
