"""Mistral: as Llama, with a sliding window on every layer or on none."""

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
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.rules import norm, rules
from pathexpand.model.families.settings import Settings

_LAYER = (*pre_norms(), *attention(), *gated_mlp())


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("hidden_act", default="silu")
    # Null is no window; where nothing is written, transformers has one of 4096.
    window = None
    if raw.has("sliding_window") or not raw.written("sliding_window"):
        window = raw.size("sliding_window", default=4096)
    layers = raw.layers()
    config = rotary_config(
        raw, rotary_of(raw, head_size(raw)), act_fn=act, window=(window,) * layers
    )
    top = top_of(raw, names, norm("norm", "final_norm", bias=False))
    return Plan(config, rms_form(raw, act), rules(config, top, _LAYER, "layers"), "layers")


FAMILY = Family(_plan, ("model.",))
