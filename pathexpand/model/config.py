"""What a model is, apart from its weights: sizes, positions, mask, attention scale, caps."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pathexpand.errors import ModelError
from pathexpand.model.activation import check_activation
from pathexpand.model.numbers import is_real
from pathexpand.model.rotary import Rotary
from pathexpand.model.shown import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

# Beyond any model; each layer and each head takes memory before its weights are seen.
MOST_LAYERS, MOST_HEADS = 10_000, 2**16
Positions = Literal["standard", "shortformer", "none"]
Direction = Literal["causal", "bidirectional"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which norms and MLPs the layers of a TransformerLens state dict have, under its names.

    `normalization_type` is None, "LN", "RMS", or with "Pre" the same without weights.
    `post_norms` puts `ln1` and `ln2` after attention and the MLP (OLMo 2), where their keys and
    queries have one norm over all heads.
    """

    normalization_type: str | None = None
    eps: float = 1e-5
    gated_mlp: bool = False
    parallel_attn_mlp: bool = False
    use_normalization_before_and_after: bool = False
    use_qk_norm: bool = False
    use_attention_sinks: bool = False
    post_embedding_ln: bool = False
    final_rms: bool = False
    post_norms: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The sizes and switches of a transformer, under TransformerLens names where it has one.

    `attn_scale` holds one number a layer: query-key products are divided by it. So do `window`
    (a query sees so many keys, itself and those before it; None is no window) and `rotary`;
    `alibi` holds one slope a head. `d_mlp` is 0 without MLPs. `layout` matters to reading a
    TransformerLens state dict alone.

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
    n_key_value_heads: int = 0
    d_mlp: int = 0
    act_fn: str | None = None
    positional_embedding_type: Positions = "standard"
    attention_dir: Direction = "causal"
    attn_scale: tuple[float, ...] = ()
    window: tuple[int | None, ...] = ()
    rotary: tuple[Rotary | None, ...] = ()
    alibi: tuple[float, ...] = ()
    attn_scores_soft_cap: float | None = None
    output_logits_soft_cap: float | None = None
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    default_prepend_bos: bool = False
    bos_token_id: int | None = None
    model_name: str = "model"
    layout: Layout = field(default_factory=Layout)

    def __post_init__(self) -> None:
        """Refuse sizes and switches that no model can have; fill what follows from others."""
        for each in fields(self):  # numpy's numbers become plain ones
            object.__setattr__(self, each.name, plain(getattr(self, each.name)))
        self._check_sizes()
        for key in ("attn_scale", "window", "rotary", "alibi"):
            object.__setattr__(self, key, getattr(self, f"_checked_{key}")())
        for key, choices in (
            ("positional_embedding_type", ("standard", "shortformer", "none")),
            ("attention_dir", ("causal", "bidirectional")),
        ):
            value = getattr(self, key)
            if not isinstance(value, str) or value not in choices:
                wanted = f"{', '.join(choices[:-1])} or {choices[-1]}"
                raise ModelError(f"config {key}", wanted=wanted, got=shown(value))
        for key in ("attn_scores_soft_cap", "output_logits_soft_cap"):
            value = getattr(self, key)
            if value is not None and not is_divisor(value):
                wanted = "a positive number, or none"
                raise ModelError(f"config {key}", wanted=wanted, got=shown(value))
        for key in ("embed_scale", "logit_scale"):
            if not is_divisor(getattr(self, key)):
                wanted, got = "a positive number", shown(getattr(self, key))
                raise ModelError(f"config {key}", wanted=wanted, got=got)
        check_switch("default_prepend_bos", self.default_prepend_bos)
        if not isinstance(self.model_name, str):
            raise ModelError("config model_name", wanted="text", got=shown(self.model_name))
        start = self.bos_token_id
        if start is not None and (type(start) is not int or not 0 <= start < self.d_vocab):
            wanted = f"an id from 0 to {self.d_vocab - 1}, or none"
            raise ModelError("config bos_token_id", wanted=wanted, got=shown(start))

    def _check_sizes(self) -> None:
        check_size("n_layers", self.n_layers, 0, MOST_LAYERS)
        some = 0 if self.n_layers == 0 else 1
        least = {"n_heads": some, "d_head": some, "d_model": 1, "d_vocab": 1, "n_ctx": 1}
        for key, minimum in (least | {"d_vocab_out": 0, "d_mlp": 0}).items():
            check_size(key, getattr(self, key), minimum)
        check_size("n_key_value_heads", self.n_key_value_heads, 0)
        object.__setattr__(self, "d_vocab_out", self.d_vocab_out or self.d_vocab)
        groups = self.n_key_value_heads or self.n_heads
        object.__setattr__(self, "n_key_value_heads", groups)
        if groups and self.n_heads % groups:
            wanted = f"a divisor of the {self.n_heads} heads"
            raise ModelError("config n_key_value_heads", wanted=wanted, got=str(groups))
        if self.d_mlp or self.act_fn is not None:
            check_activation(self.act_fn)

    def _checked_attn_scale(self) -> tuple[float, ...]:
        given = self.attn_scale
        if isinstance(given, tuple):
            scale = tuple(map(plain, given or (math.sqrt(self.d_head or 1),) * self.n_layers))
            if len(scale) == self.n_layers and all(map(is_divisor, scale)):
                return scale
        wanted = f"{self.n_layers} positive numbers, one a layer"
        raise ModelError("config attn_scale", wanted=wanted, got=shown(given))

    def _checked_window(self) -> tuple[int | None, ...]:
        given = self.window
        if isinstance(given, tuple) and all(each is None for each in given):
            return (None,) * self.n_layers
        if isinstance(given, tuple) and len(given) == self.n_layers:
            window = tuple(map(plain, given))
            if all(each is None or (type(each) is int and each > 0) for each in window):
                return window
        wanted = f"{self.n_layers} numbers of positions, one a layer, each positive or none"
        raise ModelError("config window", wanted=wanted, got=shown(given))

    def _checked_rotary(self) -> tuple[Rotary | None, ...]:
        given = self.rotary
        if isinstance(given, tuple) and all(each is None for each in given):
            return (None,) * self.n_layers
        if not isinstance(given, tuple) or len(given) != self.n_layers:
            wanted = f"{self.n_layers} of them, one a layer"
            raise ModelError("config rotary", wanted=wanted, got=shown(given))
        for each in given:
            if each is not None and not isinstance(each, Rotary):
                raise ModelError("config rotary", wanted="a Rotary or none", got=shown(each))
            if each is not None and each.width > self.d_head:
                wanted = f"at most the {self.d_head} numbers of a head"
                raise ModelError("rotary width", wanted=wanted, got=str(each.width))
        return given

    def _checked_alibi(self) -> tuple[float, ...]:
        given = self.alibi
        if isinstance(given, tuple) and len(given) in (0, self.n_heads):
            slopes = tuple(map(plain, given))
            if all(map(is_real, slopes)):
                return slopes
        wanted = f"{self.n_heads} slopes, one a head, or none"
        raise ModelError("config alibi", wanted=wanted, got=shown(given))

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> Config:
        """Read a TransformerLens configuration; refuse by name what is not supported.

        >>> raw = dict(n_layers=1, n_heads=1, d_model=4, d_head=4, d_vocab=3, n_ctx=2)
        >>> Config.from_mapping(raw | {"attn_only": True}).d_vocab_out
        3
        >>> Config.from_mapping(raw | {"attn_only": True, "clip_qkv": 3.0})
        Traceback (most recent call last):
        ...
        pathexpand.errors.ModelError: config clip_qkv 3.0: clamps on queries, keys and values are
        not supported
        """
        from pathexpand.model.lens import settings

        return cls(**settings(raw))


def plain(value: Any) -> Any:
    """Give a number of numpy's as a plain one, and anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def is_one_of(value: object, allowed: tuple[object, ...]) -> bool:
    """Say whether a value is among some, where 1 is not True and an array is no number.

    >>> is_one_of(1, (True,)), is_one_of(None, (None, False))
    (False, True)
    """
    if not isinstance(value, bool | int | float | str | None):
        return False
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in allowed
    )


def is_divisor(value: Any) -> bool:
    """Say whether a value is a positive number that can be divided by."""
    return is_real(value) and bool(0 < value <= sys.float_info.max)


def check_size(key: str, value: object, least: int, most: int = 2**31 - 1) -> None:
    """Refuse what is no whole number, or is out of bounds; raises `ModelError`."""
    if type(value) is not int or value < least:
        wanted = f"a whole number of at least {least}"
        raise ModelError(f"config {key}", wanted=wanted, got=shown(value))
    if value > most:
        raise ModelError(f"config {key}", wanted=f"at most {most}", got=shown(value))


def check_switch(key: str, value: object) -> None:
    """Refuse what is neither true nor false; raises `ModelError`."""
    if not isinstance(value, bool):
        raise ModelError(f"config {key}", wanted="true or false", got=shown(value))
