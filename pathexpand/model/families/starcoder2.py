"""StarCoder 2: LayerNorm, rotary positions, grouped queries, a plain MLP with biases."""

from __future__ import annotations

from collections.abc import Collection

from pathexpand.model.assembly import Form, Plan
from pathexpand.model.families.family import Family
from pathexpand.model.families.llama import (
    attention,
    head_size,
    pre_norms,
    rotary_config,
    top_of,
)
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.rules import linear, norm, rules
from pathexpand.model.families.settings import Settings


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("hidden_act", default="gelu_pytorch_tanh")
    window = raw.size("sliding_window") if raw.has("sliding_window") else None
    config = rotary_config(
        raw,
        rotary_of(raw, head_size(raw)),
        act_fn=act,
        window=(window,) * raw.layers(),
    )
    bias = raw.switch("use_bias", default=True)
    layer = (
        *pre_norms(bias=True),
        *attention(qkv_bias=bias, out_bias=bias),
        *linear("mlp.c_fc", "in", bias=bias),
        *linear("mlp.c_proj", "out", bias=bias),
    )
    top = top_of(raw, names, norm("norm", "final_norm"))
    form = Form(eps=raw.eps("norm_epsilon", default=1e-5), act=act, final_norm="layer")
    return Plan(config, form, rules(config, top, layer, "layers"), "layers")


FAMILY = Family(_plan, ("model.",))
