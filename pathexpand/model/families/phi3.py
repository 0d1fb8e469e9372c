"""Phi 3: as Llama, with queries, keys and values in one tensor and the MLP's inputs in another."""

from __future__ import annotations

from collections.abc import Collection

from pathexpand.model.assembly import Plan
from pathexpand.model.families.family import Family
from pathexpand.model.families.llama import (
    head_size,
    pre_norms,
    rms_form,
    rotary_config,
    top_of,
)
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.rules import linear, norm, rules
from pathexpand.model.families.settings import Settings

_LAYER = (
    *pre_norms(),
    *linear("self_attn.qkv_proj", "Q", "K", "V"),
    *linear("self_attn.o_proj", "O"),
    *linear("mlp.gate_up_proj", "gate", "in"),
    *linear("mlp.down_proj", "out"),
)
_OLD_NAMES = {"su": "longrope", "yarn": "longrope"}  # of the first releases


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("hidden_act", default="silu")
    window = raw.size("sliding_window") if raw.has("sliding_window") else None
    config = rotary_config(
        raw,
        rotary_of(raw, head_size(raw), renamed=_OLD_NAMES),
        act_fn=act,
        window=(window,) * raw.layers(),
    )
    top = top_of(raw, names, norm("norm", "final_norm", bias=False))
    return Plan(
        config, rms_form(raw, act, default_eps=1e-5), rules(config, top, _LAYER, "layers"), "layers"
    )


FAMILY = Family(_plan, ("model.",))
