"""Llama: RMSNorm, rotary positions, grouped queries, a gated MLP. Many families resemble it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pathexpand.model.assembly import Form, Plan
from pathexpand.model.config import Config
from pathexpand.model.families.family import (
    Family,
    config_of,
    embeddings,
    grouped,
    split_evenly,
    stretched,
)
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.rules import Pattern, linear, norm, rules
from pathexpand.model.families.settings import Settings
from pathexpand.model.rotary import Rotary

# Families whose classes have other numbers where nothing is written.
_GROUPED = ("mistral", "gemma", "gemma2", "gemma3_text", "qwen3", "stablelm", "starcoder2")
_WIDE = ("gemma", "gemma2", "gemma3_text", "qwen3")


def attention(*, qkv_bias: bool = False, out_bias: bool = False) -> tuple[Pattern, ...]:
    """Queries, keys, values and output, each in a tensor of its own."""
    return (
        *linear("self_attn.q_proj", "Q", bias=qkv_bias),
        *linear("self_attn.k_proj", "K", bias=qkv_bias),
        *linear("self_attn.v_proj", "V", bias=qkv_bias),
        *linear("self_attn.o_proj", "O", bias=out_bias),
    )


def gated_mlp(*, bias: bool = False) -> tuple[Pattern, ...]:
    """A gated MLP, each of its matrices in a tensor of its own."""
    return (
        *linear("mlp.gate_proj", "gate", bias=bias),
        *linear("mlp.up_proj", "in", bias=bias),
        *linear("mlp.down_proj", "out", bias=bias),
    )


def pre_norms(*, bias: bool = False, plus_one: bool = False) -> tuple[Pattern, ...]:
    """Norms before attention and before the MLP."""
    return (
        *norm("input_layernorm", "ln1", bias=bias, plus_one=plus_one),
        *norm("post_attention_layernorm", "ln2", bias=bias, plus_one=plus_one),
    )


def head_size(raw: Settings) -> int:
    """Give the size of a head, which need not be a head's share of the stream."""
    if raw.has("head_dim") or raw.get("model_type") in _WIDE:
        return raw.size("head_dim")
    return split_evenly(raw)


def key_value_heads(raw: Settings) -> int:
    """Give the number of key-value heads: null, and in older files nothing, means all heads."""
    strict = raw.get("model_type") in _GROUPED and not raw.written("num_key_value_heads")
    heads = raw.heads()
    return grouped(raw, heads, "num_key_value_heads", default=None if strict else heads)


def rotary_config(raw: Settings, rotary: Rotary | tuple[Rotary, ...], **more: Any) -> Config:
    """Read the sizes of a model with rotary positions and grouped queries.

    `rotary` is that of every layer, or one a layer. A model whose angles change with the length
    of the prompt takes longer ones than its positions say.
    """
    layers = raw.layers()
    return config_of(
        raw,
        context=stretched(raw, rotary if isinstance(rotary, Rotary) else None),
        d_head=head_size(raw),
        groups=key_value_heads(raw),
        d_mlp=raw.size("intermediate_size"),
        positional_embedding_type="none",
        rotary=(rotary,) * layers if isinstance(rotary, Rotary) else rotary,
        **more,
    )


def top_of(raw: Settings, names: Collection[str], last: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
    """Give the patterns of the embeddings and of the last norm."""
    return (*embeddings(raw, names, "embed_tokens.weight"), *last)


def rms_form(raw: Settings, act: str, *, default_eps: float = 1e-6, **more: Any) -> Form:
    """Give the form of layers with RMSNorm."""
    eps = raw.eps("rms_norm_eps", default=default_eps)
    return Form(norm="rms", eps=eps, act=act, final_norm="rms", **more)


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("hidden_act", default="silu")
    config = rotary_config(raw, rotary_of(raw, head_size(raw)), act_fn=act)
    bias = raw.switch("attention_bias", default=False)
    layer = (
        *pre_norms(),
        *attention(qkv_bias=bias, out_bias=bias),
        *gated_mlp(bias=raw.switch("mlp_bias", default=False)),
    )
    top = top_of(raw, names, norm("norm", "final_norm", bias=False))
    return Plan(config, rms_form(raw, act), rules(config, top, layer, "layers"), "layers")


FAMILY = Family(_plan, ("model.",))
