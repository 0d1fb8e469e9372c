"""Phi: attention and MLP side by side behind one norm, part of each head turned."""

from __future__ import annotations

from collections.abc import Collection

from pathexpand.model.assembly import Form, Plan
from pathexpand.model.families.family import Family
from pathexpand.model.families.llama import head_size, rotary_config, top_of
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.rules import head_norms, linear, logit_bias, norm, rules
from pathexpand.model.families.settings import Settings

_LAYER = (
    *norm("input_layernorm", "ln1", "ln2"),
    *linear("self_attn.q_proj", "Q", bias=True),
    *linear("self_attn.k_proj", "K", bias=True),
    *linear("self_attn.v_proj", "V", bias=True),
    *linear("self_attn.dense", "O", bias=True),
    *linear("mlp.fc1", "in", bias=True),
    *linear("mlp.fc2", "out", bias=True),
)
_HEAD_NORMS = head_norms("self_attn.q_layernorm", "self_attn.k_layernorm", bias=True)


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("hidden_act", default="gelu_new")
    config = rotary_config(raw, rotary_of(raw, head_size(raw), share=None), act_fn=act)
    normed = raw.switch("qk_layernorm", default=False)
    top = (
        *top_of(raw, names, norm("final_layernorm", "final_norm")),
        logit_bias("lm_head.bias"),
    )
    form = Form(
        eps=raw.eps("layer_norm_eps", default=1e-5),
        act=act,
        parallel=True,
        head_norm="layer" if normed else None,
        final_norm="layer",
    )
    layer = (*_LAYER, *_HEAD_NORMS) if normed else _LAYER
    return Plan(config, form, rules(config, top, layer, "layers"), "layers")


FAMILY = Family(_plan, ("model.",))
