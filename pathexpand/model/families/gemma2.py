"""Gemma 2: norms before and after each part, soft caps, windows on every other layer."""

from __future__ import annotations

import math
from collections.abc import Collection

from pathexpand.model.assembly import NormName, Plan
from pathexpand.model.families.family import FULL, SLIDING, Family, windows
from pathexpand.model.families.gemma import LAST_NORM, embed_scale
from pathexpand.model.families.llama import (
    attention,
    gated_mlp,
    head_size,
    rms_form,
    rotary_config,
    top_of,
)
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.rules import norm, rules
from pathexpand.model.families.settings import Settings

NORMS: tuple[NormName, ...] = ("ln1", "ln1_post", "ln2", "ln2_post")
NORM_PATTERNS = (
    *norm("input_layernorm", "ln1", bias=False, plus_one=True),
    *norm("post_attention_layernorm", "ln1_post", bias=False, plus_one=True),
    *norm("pre_feedforward_layernorm", "ln2", bias=False, plus_one=True),
    *norm("post_feedforward_layernorm", "ln2_post", bias=False, plus_one=True),
)


def cap(raw: Settings, key: str, default: float | None = None) -> float | None:
    """Give a soft cap, or None where it is null; `default` where nothing is written."""
    if raw.has(key):
        return raw.number(key)
    return None if raw.written(key) else default


def attn_scale(raw: Settings) -> float:
    """Give the divisor of scores: the root of what stands in place of the size of a head."""
    return math.sqrt(raw.number("query_pre_attn_scalar"))


def kinds_by_turns(raw: Settings, every: int) -> tuple[str, ...]:
    """Say of each layer whether it has a window: as named, or all but every so many."""
    layers = raw.layers()
    if raw.has("layer_types"):
        return raw.kinds("layer_types", layers, (FULL, SLIDING))
    return tuple(SLIDING if (layer + 1) % every else FULL for layer in range(layers))


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    raw.refuse("use_bidirectional_attention", False)
    act = raw.act("hidden_activation", default="gelu_pytorch_tanh")
    kinds = kinds_by_turns(raw, 2)
    config = rotary_config(
        raw,
        rotary_of(raw, head_size(raw)),
        act_fn=act,
        embed_scale=embed_scale(raw),
        attn_scale=(attn_scale(raw),) * len(kinds),
        attn_scores_soft_cap=cap(raw, "attn_logit_softcapping", 50.0),
        output_logits_soft_cap=cap(raw, "final_logit_softcapping", 30.0),
        window=windows(raw, kinds, None),
    )
    bias = raw.switch("attention_bias", default=False)
    layer = (*NORM_PATTERNS, *attention(qkv_bias=bias, out_bias=bias), *gated_mlp())
    top = top_of(raw, names, LAST_NORM)
    form = rms_form(raw, act, norms=NORMS)
    return Plan(config, form, rules(config, top, layer, "layers"), "layers")


FAMILY = Family(_plan, ("model.",))
