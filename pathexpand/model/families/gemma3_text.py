"""Gemma 3, the text part: as Gemma 2, with norms on queries and keys and two rotary bases."""

from __future__ import annotations

from collections.abc import Collection

from pathexpand.model.assembly import Plan
from pathexpand.model.families.family import SLIDING, Family, windows
from pathexpand.model.families.gemma import LAST_NORM, embed_scale
from pathexpand.model.families.gemma2 import (
    NORM_PATTERNS,
    NORMS,
    attn_scale,
    cap,
    kinds_by_turns,
)
from pathexpand.model.families.llama import (
    attention,
    gated_mlp,
    head_size,
    rms_form,
    rotary_config,
    top_of,
)
from pathexpand.model.families.rope import scaled_rotary
from pathexpand.model.families.rules import head_norms, rules
from pathexpand.model.families.settings import Settings
from pathexpand.model.rotary import Rotary


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    raw = _text_part(raw)
    act = raw.act("hidden_activation", default="gelu_pytorch_tanh")
    kinds = kinds_by_turns(raw, raw.size("sliding_window_pattern", default=6))
    both_ways = raw.switch("use_bidirectional_attention", default=False)
    # A window that reaches both ways is half as wide each way, and sees its middle.
    window = raw.size("sliding_window") // 2 + 1 if both_ways else None
    config = rotary_config(
        raw,
        tuple(_rotary(raw, kind) for kind in kinds),
        act_fn=act,
        embed_scale=embed_scale(raw),
        attn_scale=(attn_scale(raw),) * len(kinds),
        output_logits_soft_cap=cap(raw, "final_logit_softcapping"),
        window=windows(raw, kinds, window),
        attention_dir="bidirectional" if both_ways else "causal",
    )
    bias = raw.switch("attention_bias", default=False)
    layer = (
        *NORM_PATTERNS,
        *attention(qkv_bias=bias, out_bias=bias),
        *head_norms("self_attn.q_norm", "self_attn.k_norm", plus_one=True),
        *gated_mlp(),
    )
    top = top_of(raw, names, LAST_NORM)
    form = rms_form(raw, act, norms=NORMS, head_norm="rms")
    return Plan(config, form, rules(config, top, layer, "layers"), "layers")


def _text_part(raw: Settings) -> Settings:
    """Give the settings of the text part, where there is one for images too."""
    return raw.under("text_config") or raw


def _rotary(raw: Settings, kind: str) -> Rotary:
    """Give the angles of a layer with or without a window: each kind has a base of its own."""
    both = raw.under("rope_parameters")
    if both is not None:
        own = both.under(kind) or Settings({})
        return scaled_rotary(raw, own, head_size(raw), bases=())
    local = kind == SLIDING
    scaling = None if local else raw.under("rope_scaling")
    base = "rope_local_base_freq" if local else "rope_theta"
    return scaled_rotary(raw, scaling or Settings({}), head_size(raw), bases=(base,))


FAMILY = Family(
    _plan,
    ("language_model.model.", "model.language_model.", "language_model.", "model."),
    ignored=r"(model\.)?(vision_tower|multi_modal_projector)\..*",
)
