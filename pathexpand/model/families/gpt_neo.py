"""GPT-Neo: unscaled attention, every other layer within a window, biases on outputs alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pathexpand.errors import ModelError
from pathexpand.model.assembly import Form, Plan
from pathexpand.model.families.family import Family, config_of, embeddings
from pathexpand.model.families.rules import linear, norm, positions, rules
from pathexpand.model.families.settings import Settings
from pathexpand.model.shown import shown

_LAYER = (
    *norm("ln_1", "ln1"),
    *linear("attn.attention.q_proj", "Q"),
    *linear("attn.attention.k_proj", "K"),
    *linear("attn.attention.v_proj", "V"),
    *linear("attn.attention.out_proj", "O", bias=True),
    *norm("ln_2", "ln2"),
    *linear("mlp.c_fc", "in", bias=True),
    *linear("mlp.c_proj", "out", bias=True),
)


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("activation_function", default="gelu_new")
    layers = raw.layers("num_layers")
    local = raw.size("window_size")
    config = config_of(
        raw,
        layers=("num_layers",),
        heads=("num_heads",),
        d_mlp=raw.size("intermediate_size", default=4 * raw.size("hidden_size"), null=True),
        act_fn=act,
        attn_scale=(1.0,) * layers,
        window=tuple(local if kind == "local" else None for kind in _kinds(raw, layers)),
    )
    top = (
        *embeddings(raw, names, "wte.weight"),
        positions("wpe.weight"),
        *norm("ln_f", "final_norm"),
    )
    eps = raw.eps("layer_norm_epsilon", default=1e-5)
    form = Form(eps=eps, act=act, final_norm="layer")
    return Plan(config, form, rules(config, top, _LAYER, "h"), "h")


def _kinds(raw: Settings, layers: int) -> list[str]:
    """Unfold [[["global", "local"], 6]], which means the two in turn, six times over."""
    given: Any = raw.get("attention_types")
    try:
        count = sum(len(words) * times for words, times in given)
        kinds = (
            [kind for words, times in given for kind in words * times] if count == layers else []
        )
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != layers or any(kind not in ("global", "local") for kind in kinds):
        wanted = f"[words, times] that make global or local for each of {layers} layers"
        raise ModelError("config attention_types", wanted=wanted, got=shown(given))
    return kinds


FAMILY = Family(_plan, ("transformer.",))
