"""OLMo 2: as Llama, with norms after each part, and one over all heads' queries and keys."""

from __future__ import annotations

from collections.abc import Collection

from pathexpand.model.assembly import Plan
from pathexpand.model.families.family import Family
from pathexpand.model.families.llama import (
    attention,
    gated_mlp,
    head_size,
    rms_form,
    rotary_config,
    top_of,
)
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.rules import head_norms, norm, rules
from pathexpand.model.families.settings import Settings


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("hidden_act", default="silu")
    config = rotary_config(raw, rotary_of(raw, head_size(raw)), act_fn=act)
    bias = raw.switch("attention_bias", default=False)
    layer = (
        *attention(qkv_bias=bias, out_bias=bias),
        *head_norms("self_attn.q_norm", "self_attn.k_norm", across=True),
        *norm("post_attention_layernorm", "ln1_post", bias=False),
        *gated_mlp(),
        *norm("post_feedforward_layernorm", "ln2_post", bias=False),
    )
    top = top_of(raw, names, norm("norm", "final_norm", bias=False))
    form = rms_form(
        raw, act, default_eps=1e-5, norms=("ln1_post", "ln2_post"), head_norm="rms", across=True
    )
    return Plan(config, form, rules(config, top, layer, "layers"), "layers")


FAMILY = Family(_plan, ("model.",))
