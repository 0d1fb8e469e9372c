"""Gemma: as Llama, with 1 added to norm weights and the embedding multiplied by √d_model."""

from __future__ import annotations

import math
from collections.abc import Collection

from pathexpand.model.assembly import Plan
from pathexpand.model.families.family import Family
from pathexpand.model.families.llama import (
    attention,
    gated_mlp,
    head_size,
    pre_norms,
    rms_form,
    rotary_config,
    top_of,
)
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.rules import norm, rules
from pathexpand.model.families.settings import Settings

LAST_NORM = norm("norm", "final_norm", bias=False, plus_one=True)


def embed_scale(raw: Settings) -> float:
    """Give what token embeddings are multiplied by."""
    return math.sqrt(raw.size("hidden_size"))


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    raw.refuse("use_bidirectional_attention", False)
    act = raw.act("hidden_act", "hidden_activation", default="gelu_pytorch_tanh")
    # The first released files say "gelu" and have always meant the approximation by tanh.
    act = "gelu_pytorch_tanh" if act == "gelu" else act
    config = rotary_config(
        raw, rotary_of(raw, head_size(raw)), act_fn=act, embed_scale=embed_scale(raw)
    )
    bias = raw.switch("attention_bias", default=False)
    layer = (
        *pre_norms(plus_one=True),
        *attention(qkv_bias=bias, out_bias=bias),
        *gated_mlp(),
    )
    top = top_of(raw, names, LAST_NORM)
    return Plan(config, rms_form(raw, act), rules(config, top, layer, "layers"), "layers")


FAMILY = Family(_plan, ("model.",))
