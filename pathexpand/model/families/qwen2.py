"""Qwen 2: as Llama, with biases on queries, keys and values; windows on the later layers."""

from __future__ import annotations

from collections.abc import Collection

from pathexpand.model.assembly import Plan
from pathexpand.model.families.family import FULL, SLIDING, Family
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

_LAYER = (*pre_norms(), *attention(qkv_bias=True), *gated_mlp())


def late_windows(raw: Settings) -> tuple[int | None, ...]:
    """Give each layer's window: named by layer, or from layer `max_window_layers` on."""
    layers = raw.layers()
    used = raw.switch("use_sliding_window", default=False)
    window = raw.size("sliding_window") if used and raw.has("sliding_window") else None
    if raw.has("layer_types"):
        kinds = raw.kinds("layer_types", layers, (FULL, SLIDING))
    else:
        first = raw.size("max_window_layers", least=0) if window is not None else layers
        kinds = tuple(SLIDING if layer >= first else FULL for layer in range(layers))
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("hidden_act", default="silu")
    config = rotary_config(
        raw, rotary_of(raw, head_size(raw)), act_fn=act, window=late_windows(raw)
    )
    top = top_of(raw, names, norm("norm", "final_norm", bias=False))
    return Plan(config, rms_form(raw, act), rules(config, top, _LAYER, "layers"), "layers")


FAMILY = Family(_plan, ("model.",))
