"""StableLM: LayerNorm, part of each head turned, a gated MLP; parallel in its larger form."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from pathexpand.model.assembly import Form, Plan, Rule
from pathexpand.model.config import Config
from pathexpand.model.families.family import Family
from pathexpand.model.families.llama import (
    attention,
    gated_mlp,
    head_size,
    pre_norms,
    rotary_config,
    top_of,
)
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.rules import norm, rules
from pathexpand.model.families.settings import Settings
from pathexpand.model.parts import Array


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("hidden_act", default="silu")
    config = rotary_config(raw, rotary_of(raw, head_size(raw), share=None), act_fn=act)
    parallel = raw.switch("use_parallel_residual", default=False)
    normed = raw.switch("qk_layernorm", default=False)
    layer = (
        *(norm("input_layernorm", "ln1", "ln2") if parallel else pre_norms(bias=True)),
        *attention(qkv_bias=raw.switch("use_qkv_bias", default=False)),
        *gated_mlp(),
    )
    top = top_of(raw, names, norm("norm", "final_norm"))
    form = Form(
        eps=raw.eps("layer_norm_eps", default=1e-5),
        act=act,
        parallel=parallel,
        head_norm="layer" if normed else None,
        final_norm="layer",
    )
    found = rules(config, top, layer, "layers")
    return Plan(config, form, found + (list(_head_norms(config)) if normed else []), "layers")


def _head_norms(config: Config) -> Iterator[Rule]:
    """Give the rules of norms of queries and keys, of which every head has one of its own."""
    counts = {"q": config.n_heads, "k": config.n_key_value_heads}
    for layer in range(config.n_layers):
        for kind, count in counts.items():
            for head in range(count):
                name = f"layers.{layer}.self_attn.{kind}_layernorm.norms.{head}.weight"
                field = f"attn.{kind}_norm.w.{head}"
                yield Rule(name, (config.d_head,), partial(_field, field), layer=layer)


def _field(field: str, array: Array) -> list[tuple[str, Array]]:
    return [(field, array)]


FAMILY = Family(_plan, ("model.",))
