"""Falcon, in its forms: one key-value head or several, rotary or ALiBi, parallel or not."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from pathexpand.model.assembly import Form, Plan
from pathexpand.model.families.alibi import alibi_slopes
from pathexpand.model.families.family import (
    Family,
    config_of,
    embeddings,
    grouped,
    split_evenly,
)
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.rules import Pattern, interleaved, linear, norm, rules
from pathexpand.model.families.settings import Settings

_WIDTHS = ("hidden_size", "n_embed")


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("activation", default="gelu")
    newer = raw.switch("new_decoder_architecture", default=False)
    parallel = newer or raw.switch("parallel_attn", default=True)
    heads, width = raw.heads(), raw.size(*_WIDTHS)
    config = config_of(
        raw,
        width=_WIDTHS,
        context=raw.size("max_position_embeddings", default=2048),
        groups=_groups(raw, newer, heads),
        d_mlp=raw.size("ffn_hidden_size", default=4 * width, null=True),
        act_fn=act,
        positional_embedding_type="none",
        **_positions(raw, split_evenly(raw, _WIDTHS)),
    )
    bias = raw.switch("bias", default=False)
    layer = (
        *_norms(raw, newer=newer, parallel=parallel),
        *interleaved("self_attention.query_key_value", bias=bias),
        *linear("self_attention.dense", "O", bias=bias),
        *linear("mlp.dense_h_to_4h", "in", bias=bias),
        *linear("mlp.dense_4h_to_h", "out", bias=bias),
    )
    top = (*embeddings(raw, names, "word_embeddings.weight"), *norm("ln_f", "final_norm"))
    eps = raw.eps("layer_norm_epsilon", default=1e-5)
    form = Form(eps=eps, act=act, parallel=parallel, final_norm="layer")
    return Plan(config, form, rules(config, top, layer, "h"), "h")


def _groups(raw: Settings, newer: bool, heads: int) -> int:
    """Give the number of key-value heads: the older form has one, or as many as heads."""
    if newer:
        return grouped(raw, heads, "num_kv_heads", default=heads)
    return 1 if raw.switch("multi_query", default=True) else heads


def _positions(raw: Settings, d_head: int) -> dict[str, Any]:
    if not raw.switch("alibi", default=False):
        layers = raw.layers()
        return {"rotary": (rotary_of(raw, d_head),) * layers}
    # Its ALiBi is added before scores are divided by the root of the size of a head.
    slopes = alibi_slopes(raw.heads())
    return {"alibi": tuple(slope / math.sqrt(d_head) for slope in slopes)}


def _norms(raw: Settings, *, newer: bool, parallel: bool) -> tuple[Pattern, ...]:
    if not parallel:
        return (*norm("input_layernorm", "ln1"), *norm("post_attention_layernorm", "ln2"))
    if newer and raw.size("num_ln_in_parallel_attn", default=2, null=True) == 2:
        return (*norm("ln_attn", "ln1"), *norm("ln_mlp", "ln2"))
    return norm("input_layernorm", "ln1", "ln2")


FAMILY = Family(_plan, ("transformer.",))
