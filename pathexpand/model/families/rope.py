"""Rotary settings of a Hugging Face configuration, as transformers 4 and 5 write them."""

from __future__ import annotations

import math
from collections.abc import Callable

from pathexpand.errors import ModelError
from pathexpand.model.families.settings import Settings
from pathexpand.model.rotary import (
    WIDEST,
    Pairs,
    Rotary,
    angles_of,
    dynamic_rotary,
    linear_rotary,
    llama3_rotary,
    long_rotary,
    yarn_rotary,
)
from pathexpand.model.shown import shown

_BASES = ("rope_theta", "rotary_emb_base")
_SHARES = ("partial_rotary_factor", "rotary_pct")


def rotary_of(
    raw: Settings,
    d_head: int,
    *,
    share: float | None = 1.0,
    pairs: Pairs = "half",
    renamed: dict[str, str] | None = None,
) -> Rotary:
    """Read how queries and keys turn.

    `share` is how much of a head turns where the configuration says nothing; None means that it
    must say so. A base that stands nowhere is refused: which one a model was trained with is not
    to be guessed. `renamed` gives what a family calls some kinds of scaling. Raises `ModelError`.

    >>> settings = Settings({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})
    >>> rotary_of(settings, 4).frequencies
    (1.0, 0.01)
    """
    scaling = raw.under("rope_parameters") or raw.under("rope_scaling") or Settings({})
    return scaled_rotary(raw, scaling, d_head, share=share, pairs=pairs, renamed=renamed)


def scaled_rotary(
    raw: Settings,
    scaling: Settings,
    d_head: int,
    *,
    bases: tuple[str, ...] = _BASES,
    share: float | None = 1.0,
    pairs: Pairs = "half",
    renamed: dict[str, str] | None = None,
) -> Rotary:
    """Read how queries and keys turn, from settings of their own and those of the whole model.

    `bases` are the names under which the whole model's settings may give the base.
    """
    source, names = (scaling, ("rope_theta",)) if scaling.has("rope_theta") else (raw, bases)
    if not source.has(*names):
        raise ModelError(
            "config",
            wanted="the base of its rotary positions, as rope_theta or in rope_parameters",
            got="none",
            remedy="write the one it was trained with into config.json",
        )
    base = source.number(*names)
    part = (scaling if scaling.has(*_SHARES) else raw).number(*_SHARES, default=share)
    if part > 1:
        key = _share_key(raw, scaling)
        raise ModelError(f"config {key}", wanted="at most 1", got=shown(part))
    kind = scaling.get("rope_type", "type")
    kind = "default" if kind is None else kind
    kind = (renamed or {}).get(kind, kind) if isinstance(kind, str) else kind
    key = scaling.name("rope_type", "type")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ModelError(
            f"config {key} {shown(kind)}: not supported",
            remedy=f"known are {', '.join(_KINDS)}",
        )
    width = int(d_head * part)
    _check_width(raw, scaling, d_head, width, least=4 if kind == "dynamic" else 2)
    subject = f"{key} {shown(kind)}" if scaling.has("rope_type", "type") else source.name(*names)
    with angles_of(subject):
        return _KINDS[kind](raw, scaling, width, pairs, base)


def _check_width(raw: Settings, scaling: Settings, d_head: int, width: int, *, least: int) -> None:
    """Refuse a part of a head that is not made of pairs; raises `ModelError`."""
    if not least <= width <= WIDEST or width % 2:
        key = raw.name("head_dim", "hidden_size", "n_embed")
        key = _share_key(raw, scaling) if width != d_head else key
        wanted = f"heads whose turning part is an even number from {least} to {WIDEST}"
        raise ModelError(f"config {key}", wanted=wanted, got=f"{width} of {d_head} numbers")


def _share_key(raw: Settings, scaling: Settings) -> str:
    return (scaling if scaling.has(*_SHARES) else raw).name(*_SHARES)


def _default(_: Settings, __: Settings, width: int, pairs: Pairs, base: float) -> Rotary:
    return linear_rotary(width, pairs, base)


def _linear(_: Settings, scaling: Settings, width: int, pairs: Pairs, base: float) -> Rotary:
    return linear_rotary(width, pairs, base, scaling.number("factor"))


def _dynamic(raw: Settings, scaling: Settings, width: int, pairs: Pairs, base: float) -> Rotary:
    longest = raw.size("max_position_embeddings")
    return dynamic_rotary(width, pairs, base, scaling.number("factor"), longest)


def _llama3(raw: Settings, scaling: Settings, width: int, pairs: Pairs, base: float) -> Rotary:
    return llama3_rotary(
        width,
        pairs,
        base,
        scaling.number("factor"),
        scaling.number("low_freq_factor"),
        scaling.number("high_freq_factor"),
        _original(raw, scaling),
    )


def _yarn(raw: Settings, scaling: Settings, width: int, pairs: Pairs, base: float) -> Rotary:
    original = _original(raw, scaling)
    factor = _factor(raw, scaling, original)
    return yarn_rotary(
        width,
        pairs,
        base,
        factor,
        original,
        attention_factor=_yarn_attention(scaling, factor),
        beta_fast=scaling.number("beta_fast", default=32.0, null=True),
        beta_slow=scaling.number("beta_slow", default=1.0, null=True),
        truncate=scaling.switch("truncate", default=True),
    )


def _yarn_attention(scaling: Settings, factor: float) -> float:
    """Give by how much queries and keys grow (Peng et al. 2023, equation 22, a root on each)."""

    def growth(times: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * times * math.log(factor) + 1.0

    if scaling.has("attention_factor"):
        return scaling.number("attention_factor")
    # DeepSeek's form has two multipliers, of which 0 is as good as none.
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return growth(scaling.number("mscale")) / growth(scaling.number("mscale_all_dim"))
    return growth(1.0)


def _longrope(raw: Settings, scaling: Settings, width: int, pairs: Pairs, base: float) -> Rotary:
    original = _original(raw, scaling)
    factor = _factor(raw, scaling, original)
    grown = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return long_rotary(
        width,
        pairs,
        base,
        scaling.numbers("short_factor"),
        scaling.numbers("long_factor"),
        original,
        attention_factor=scaling.number("attention_factor", default=grown, null=True),
    )


def _original(raw: Settings, scaling: Settings) -> int:
    """Give the context a model was trained with before it was stretched."""
    key = "original_max_position_embeddings"
    if raw.has(key):
        return raw.size(key)
    return scaling.size(key) if scaling.has(key) else raw.size("max_position_embeddings")


def _factor(raw: Settings, scaling: Settings, original: int) -> float:
    stretch = raw.size("max_position_embeddings") / original
    return scaling.number("factor", default=stretch, null=True)


_KINDS: dict[str, Callable[[Settings, Settings, int, Pairs, float], Rotary]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
