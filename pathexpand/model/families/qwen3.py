"""Qwen 3: as Llama, with a norm on every head's queries and keys."""

from __future__ import annotations

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
from pathexpand.model.families.qwen2 import late_windows
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.rules import head_norms, norm, rules
from pathexpand.model.families.settings import Settings


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("hidden_act", default="silu")
    config = rotary_config(
        raw, rotary_of(raw, head_size(raw)), act_fn=act, window=late_windows(raw)
    )
    bias = raw.switch("attention_bias", default=False)
    layer = (
        *pre_norms(),
        *attention(qkv_bias=bias, out_bias=bias),
        *head_norms("self_attn.q_norm", "self_attn.k_norm"),
        *gated_mlp(),
    )
    top = top_of(raw, names, norm("norm", "final_norm", bias=False))
    form = rms_form(raw, act, head_norm="rms")
    return Plan(config, form, rules(config, top, layer, "layers"), "layers")


FAMILY = Family(_plan, ("model.",))
