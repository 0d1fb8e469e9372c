"""GPT-2: learned positions, LayerNorm before each part, weights stored (in, out)."""

from __future__ import annotations

import math
from collections.abc import Collection

from pathexpand.model.assembly import Form, Plan
from pathexpand.model.families.family import Family, config_of, embeddings
from pathexpand.model.families.rules import conv1d, norm, positions, rules
from pathexpand.model.families.settings import Settings

_LAYER = (
    *norm("ln_1", "ln1"),
    *conv1d("attn.c_attn", "Q", "K", "V"),
    *conv1d("attn.c_proj", "O"),
    *norm("ln_2", "ln2"),
    *conv1d("mlp.c_fc", "in"),
    *conv1d("mlp.c_proj", "out"),
)


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    raw.refuse("add_cross_attention", False)
    width = raw.size("n_embd", "hidden_size")
    act = raw.act("activation_function", default="gelu_new")
    config = config_of(
        raw,
        layers=("n_layer", "num_hidden_layers"),
        heads=("n_head", "num_attention_heads"),
        width=("n_embd", "hidden_size"),
        context=raw.size("n_positions", "n_ctx", "max_position_embeddings"),
        d_mlp=raw.size("n_inner", default=4 * width, null=True),
        act_fn=act,
        attn_scale=_scales(raw),
    )
    top = (
        *embeddings(raw, names, "wte.weight"),
        positions("wpe.weight"),
        *norm("ln_f", "final_norm"),
    )
    eps = raw.eps("layer_norm_epsilon", default=1e-5)
    form = Form(eps=eps, act=act, final_norm="layer")
    return Plan(config, form, rules(config, top, _LAYER, "h"), "h")


def _scales(raw: Settings) -> tuple[float, ...]:
    """Give each layer's divisor of scores, which may grow with the layer."""
    layers = raw.layers("n_layer", "num_hidden_layers")
    heads, width = raw.heads("n_head", "num_attention_heads"), raw.size("n_embd", "hidden_size")
    by_size = raw.switch("scale_attn_weights", default=True)
    base = math.sqrt(width / heads) if by_size else 1.0
    by_layer = raw.switch("scale_attn_by_inverse_layer_idx", default=False)
    return tuple(base * (layer + 1 if by_layer else 1) for layer in range(layers))


FAMILY = Family(_plan, ("transformer.",))
