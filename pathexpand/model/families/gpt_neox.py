"""GPT-NeoX and Pythia: attention and MLP side by side, queries, keys and values head by head."""

from __future__ import annotations

from collections.abc import Collection

from pathexpand.model.assembly import Form, Plan
from pathexpand.model.families.family import (
    Family,
    config_of,
    embeddings,
    split_evenly,
    stretched,
)
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.rules import Pattern, interleaved, linear, norm, rules
from pathexpand.model.families.settings import Settings


def _layer(bias: bool) -> tuple[Pattern, ...]:
    return (
        *norm("input_layernorm", "ln1"),
        *interleaved("attention.query_key_value", bias=bias),
        *linear("attention.dense", "O", bias=bias),
        *norm("post_attention_layernorm", "ln2"),
        *linear("mlp.dense_h_to_4h", "in", bias=True),
        *linear("mlp.dense_4h_to_h", "out", bias=True),
    )


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("hidden_act", default="gelu")
    d_head = split_evenly(raw)
    rotary = rotary_of(raw, d_head, share=None)
    config = config_of(
        raw,
        context=stretched(raw, rotary),
        d_mlp=raw.size("intermediate_size"),
        act_fn=act,
        positional_embedding_type="none",
        rotary=(rotary,) * raw.layers(),
    )
    top = (
        *embeddings(raw, names, "embed_in.weight", "embed_out.weight"),
        *norm("final_layer_norm", "final_norm"),
    )
    form = Form(
        eps=raw.eps("layer_norm_eps", default=1e-5),
        act=act,
        parallel=raw.switch("use_parallel_residual", default=True),
        final_norm="layer",
    )
    layer = _layer(raw.switch("attention_bias", default=True))
    return Plan(config, form, rules(config, top, layer, "layers"), "layers")


# transformers 5 has a newer name for it in memory, but not in files.
FAMILY = Family(_plan, ("gpt_neox.",), renamed=(("lm_head.weight", "embed_out.weight"),))
