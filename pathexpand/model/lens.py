"""TransformerLens: its configuration, and the tensors of its state dict."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from pathexpand.errors import ModelError
from pathexpand.model.assembly import Form, Plan, Rule, Tensors, assemble
from pathexpand.model.config import (
    MOST_HEADS,
    MOST_LAYERS,
    Config,
    Layout,
    Positions,
    check_size,
    check_switch,
    is_divisor,
    is_one_of,
    plain,
)
from pathexpand.model.layout import wanted_shapes
from pathexpand.model.parts import Array, NormKind
from pathexpand.model.rotary import (
    WIDEST,
    Rotary,
    angles_of,
    linear_rotary,
    llama3_rotary,
    yarn_rotary,
)
from pathexpand.model.shown import shown
from pathexpand.model.weights import Weights

# Buffers that TransformerLens keeps beside its weights; they hold no learnt number.
_BUFFERS = re.compile(r"blocks\.\d+\.attn\.(mask|IGNORE|rotary_sin|rotary_cos)")
# With ALiBi, TransformerLens has learned positions that nothing reads.
_WITH_POSITIONS = re.compile(rf"{_BUFFERS.pattern}|pos_embed\.W_pos")
# Parts of the TransformerLens configuration that would change the numbers and that are not
# supported. Each is refused by name: a wrong number is worse than none.
_REFUSED: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("clip_qkv", (None,), "clamps on queries, keys and values"),
    ("use_logn_attn", (None, False), "log-n attention scales"),
    ("use_dynamic_ntk_rope", (None, False), "rotary bases that grow with the prompt"),
    ("num_experts", (None,), "mixtures of experts"),
    ("load_in_4bit", (None, False), "4-bit weights"),
)
_POSITIONS: dict[object, Positions] = {
    "standard": "standard",
    "shortformer": "shortformer",
    "rotary": "none",
    "alibi": "none",
    "none": "none",
    None: "none",
}
_NORMS: dict[object, str | None] = {
    None: None,
    "": None,
    "none": None,
    **{name: name for name in ("LN", "LNPre", "RMS", "RMSPre")},
}
_TALL = {"embed.W_E": "embed", "pos_embed.W_pos": "pos", "unembed.W_U": "unembed"}
_POST_NORMS = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")
_SWITCHES = (
    *("gated_mlp", "parallel_attn_mlp", "use_normalization_before_and_after", "use_qk_norm"),
    *("use_attention_sinks", "post_embedding_ln", "final_rms"),
)


def settings(raw: object) -> dict[str, Any]:
    """Give what a `Config` is made of from a TransformerLens configuration.

    Raises `ModelError` for what is missing, wrong or not supported.
    """
    if not isinstance(raw, Mapping):
        raise ModelError("config", wanted="a mapping of TransformerLens names", got=shown(raw))
    raw = {key: plain(value) for key, value in raw.items()}
    sizes = ("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx")
    missing = [key for key in sizes if raw.get(key) is None]
    if missing:
        raise ModelError(
            "config",
            wanted="all sizes",
            got=f"none for {', '.join(missing)}",
            remedy="give the TransformerLens names, or a Hugging Face configuration with its "
            "model_type",
        )
    _refuse(raw)
    check_size("n_layers", raw["n_layers"], 0, MOST_LAYERS)
    check_size("n_heads", raw["n_heads"], 0, MOST_HEADS)
    check_size("d_head", raw["d_head"], 0)
    own = {each.name for each in fields(Config)} - {"window", "rotary", "alibi", "layout"}
    found = {key: value for key, value in raw.items() if key in own and value is not None}
    if is_one_of(found.get("d_vocab_out"), (-1,)):  # TransformerLens for "as d_vocab"
        del found["d_vocab_out"]
    for cap in ("attn_scores_soft_cap", "output_logits_soft_cap"):
        if is_one_of(found.get(cap), (0, -1)):
            del found[cap]
    return found | _mlp(raw) | {"layout": _layout(raw)} | _positions(raw) | _attention(raw)


def weights_from_tensors(tensors: Mapping[str, Any], config: Config) -> Weights:
    """Build the weights from a state dict, after checking every name, shape and number.

    Floats become float64; exact numbers (Python objects such as `Fraction`) are kept. Arrays of
    whole numbers are refused, as they are in a file: they may be packed weights. A bias that is
    zero everywhere is the same as no bias and is left out. Raises `ModelError` that lists all
    missing, unexpected and misshapen tensors.
    """
    if not isinstance(tensors, Mapping):
        raise ModelError("weights", wanted="a mapping of names to arrays", got=shown(tensors))
    for name in tensors:
        if not isinstance(name, str):
            raise ModelError("weights", wanted="names that are text", got=shown(name))
    named: Tensors = dict(tensors)
    rules = []
    for name, (shape, needed) in wanted_shapes(config).items():
        split, layer = _fill(name, config)
        tall = (_TALL[name],) if name in _TALL else ()
        rules.append(Rule(_name_among(named, name), shape, split, needed, layer, tall))
    ignored = _BUFFERS if not config.alibi else _WITH_POSITIONS
    return assemble(Plan(config, _form(config), rules, "blocks", ignored), named)


def _name_among(tensors: Tensors, name: str) -> str:
    """Give the name a tensor goes by: grouped keys and values have an underscore before theirs."""
    at, _, last = name.rpartition(".")
    grouped = f"{at}._{last}"
    return grouped if last in ("W_K", "W_V", "b_K", "b_V") and grouped in tensors else name


def _fill(
    name: str, config: Config
) -> tuple[Callable[[Array], Iterable[tuple[str, Array]]], int | None]:
    """Give which field a tensor fills, and how, and of which layer."""
    if not name.startswith("blocks."):
        key = (_TALL | {"unembed.b_U": "b_U"}).get(name, name)
        key = key.replace("ln_final", "final_norm").replace("embed.ln", "embed_norms.0")
        turned = key == "unembed"
        return lambda array: [(key, array.T if turned else array)], None
    _, layer, key = name.split(".", 2)
    if config.layout.post_norms:
        key = key.replace("ln1.", "ln1_post.").replace("ln2.", "ln2_post.")
    is_head_norm = key in ("attn.q_norm.w", "attn.k_norm.w")
    shape = (-1, config.d_head)
    return lambda array: [(key, array.reshape(shape) if is_head_norm else array)], int(layer)


def _form(config: Config) -> Form:
    layout = config.layout
    kind = layout.normalization_type
    norm: NormKind | None = None
    if kind is not None:
        norm = "layer" if kind.startswith("LN") else "rms"
    across = layout.post_norms and not layout.use_qk_norm
    return Form(
        norm=norm or "layer",
        eps=layout.eps,
        norms=_norm_names(config) if norm else (),
        affine=kind in ("LN", "RMS"),
        act=config.act_fn if config.d_mlp else None,
        parallel=layout.parallel_attn_mlp,
        head_norm="rms" if layout.use_qk_norm or across else None,
        across=across,
        bias_after_gate=layout.gated_mlp,
        final_norm="rms" if layout.final_rms else norm,
        embed_norms=1 if layout.post_embedding_ln else 0,
    )


def _norm_names(config: Config) -> tuple[Any, ...]:
    each = ("ln1", "ln2") if config.d_mlp else ("ln1",)
    if config.layout.post_norms:
        return tuple(f"{name}_post" for name in each)
    both = config.layout.use_normalization_before_and_after
    return (*each, *(f"{name}_post" for name in each)) if both else each


def _refuse(raw: Mapping[str, Any]) -> None:
    for key, allowed, meaning in _REFUSED:
        value = raw.get(key, allowed[0])
        if not is_one_of(value, allowed):
            one = meaning.startswith("a ") or not meaning.endswith("s")
            raise ModelError(
                f"config {key} {shown(value)}: {meaning} {'is' if one else 'are'} not supported"
            )


def _mlp(raw: Mapping[str, Any]) -> dict[str, Any]:
    without = raw.get("attn_only", raw.get("d_mlp") is None)
    check_switch("attn_only", without)
    if without:
        return {"d_mlp": 0, "act_fn": None}
    check_size("d_mlp", raw.get("d_mlp"), 1)
    act = raw.get("act_fn")
    if act in ("solu", "solu_ln"):
        raise ModelError(
            f"config act_fn {shown(act)}: a softmax over neurons is not supported",
            remedy="it is no function of one neuron",
        )
    return {"d_mlp": raw["d_mlp"], "act_fn": act}


def _layout(raw: Mapping[str, Any]) -> Layout:
    kind = raw.get("normalization_type")
    if not is_one_of(kind, tuple(_NORMS)):
        wanted = "LN, LNPre, RMS, RMSPre or none"
        raise ModelError("config normalization_type", wanted=wanted, got=shown(kind))
    switches = {key: False if raw.get(key) is None else raw[key] for key in _SWITCHES}
    for key, value in switches.items():
        check_switch(key, value)
    eps = raw.get("eps", 1e-5)
    if not is_divisor(eps) and not is_one_of(eps, (0,)):
        raise ModelError("config eps", wanted="a number of at least 0", got=shown(eps))
    layout = Layout(
        normalization_type=_NORMS[kind],
        eps=float(eps),
        post_norms=is_one_of(raw.get("original_architecture"), _POST_NORMS),
        **switches,
    )
    _check_layout(layout, raw)
    return layout


def _check_layout(layout: Layout, raw: Mapping[str, Any]) -> None:
    """Refuse switches that contradict each other."""
    if layout.final_rms and layout.normalization_type is None:
        raise ModelError("config final_rms", wanted="a normalization_type", got="none")
    kind = raw.get("positional_embedding_type", "standard")
    if layout.post_embedding_ln and is_one_of(kind, ("standard",)):
        # TransformerLens norms the tokens before it adds the positions.
        wanted = "positions that are not added to the stream"
        raise ModelError("config post_embedding_ln", wanted=wanted, got=shown(kind))


def _positions(raw: Mapping[str, Any]) -> dict[str, Any]:
    kind = raw.get("positional_embedding_type", "standard")
    if not isinstance(kind, str | None) or kind not in _POSITIONS:
        raise ModelError(
            f"config positional_embedding_type {shown(kind)}: not supported",
            remedy="known are standard, shortformer, rotary, alibi and none",
        )
    found: dict[str, Any] = {"positional_embedding_type": _POSITIONS[kind]}
    if kind == "alibi":
        heads = raw["n_heads"]
        found["alibi"] = tuple(2.0 ** (-8 * (head + 1) / heads) for head in range(heads))
    if kind == "rotary":
        found["rotary"] = tuple(_rotary(raw, kind) for kind in _attention_kinds(raw))
    return found


def _attention_kinds(raw: Mapping[str, Any]) -> list[str]:
    """Say of each layer whether it is "global" or "local"."""
    layers, local = raw["n_layers"], raw.get("use_local_attn")
    check_switch("use_local_attn", False if local is None else local)
    if not local:
        return ["global"] * layers
    kinds = raw.get("attn_types")
    given = list(kinds) if isinstance(kinds, list | tuple) else []
    if len(given) == layers and all(is_one_of(kind, ("global", "local")) for kind in given):
        return given
    wanted = f"global or local for each of {layers} layers"
    raise ModelError("config attn_types", wanted=wanted, got=shown(kinds))


def _attention(raw: Mapping[str, Any]) -> dict[str, Any]:
    kinds = _attention_kinds(raw)
    found: dict[str, Any] = {"attn_scale": _attention_scale(raw)}
    if raw.get("n_key_value_heads") is not None:
        check_size("n_key_value_heads", raw["n_key_value_heads"], 1)
    # TransformerLens masks nothing, local or not, in a bidirectional model.
    if "local" in kinds and not is_one_of(raw.get("attention_dir"), ("bidirectional",)):
        check_size("window_size", raw.get("window_size"), 1)
        found["window"] = tuple(raw["window_size"] if k == "local" else None for k in kinds)
    return found


def _attention_scale(raw: Mapping[str, Any]) -> tuple[float, ...]:
    """Give the divisor of each layer's scores.

    TransformerLens writes -1 for "the square root of d_head", has a switch for no scale at all,
    and one that divides layer l's scores by l + 1 once more (Mistral's GPT-2 runs).
    """
    given = raw.get("attn_scale")
    by_size = is_one_of(given, (None, -1))
    if not by_size and not is_divisor(given):
        raise ModelError("config attn_scale", wanted="a positive number, or -1", got=shown(given))
    use, by_layer = raw.get("use_attn_scale"), raw.get("scale_attn_by_inverse_layer_idx")
    for key, switch in (("use_attn_scale", use), ("scale_attn_by_inverse_layer_idx", by_layer)):
        check_switch(key, False if switch is None else switch)
    base = math.sqrt(raw["d_head"] or 1) if given is None or by_size else float(given)
    base = 1.0 if use is False else base
    return tuple(base * (layer + 1 if by_layer else 1) for layer in range(raw["n_layers"]))


def _rotary(raw: Mapping[str, Any], kind: str) -> Rotary:
    """Give the angles of a layer that is "global" or "local"."""
    width = raw["d_head"] if raw.get("rotary_dim") is None else raw["rotary_dim"]
    key = "d_head" if raw.get("rotary_dim") is None else "rotary_dim"
    check_size(key, width, 2, WIDEST)
    if width % 2 or width > raw["d_head"]:
        wanted = f"an even number of at most the {raw['d_head']} of a head"
        raise ModelError(f"config {key}", wanted=wanted, got=str(width))
    local_base = raw.get("rotary_base_local") if kind == "local" else None
    base = _number(raw, "rotary_base") if local_base is None else _number(raw, "rotary_base_local")
    adjacent = raw.get("rotary_adjacent_pairs")
    check_switch("rotary_adjacent_pairs", False if adjacent is None else adjacent)
    pairs: Any = "adjacent" if adjacent else "half"
    with angles_of("rotary_base" if local_base is None else "rotary_base_local"):
        return _angles(raw, kind, width, pairs, base)


def _angles(raw: Mapping[str, Any], kind: str, width: int, pairs: Any, base: float) -> Rotary:
    """Give the angles of a layer, scaled as one of three switches says."""
    if raw.get("use_NTK_by_parts_rope"):
        return llama3_rotary(
            width,
            pairs,
            base,
            _number(raw, "NTK_by_parts_factor"),
            _number(raw, "NTK_by_parts_low_freq_factor"),
            _number(raw, "NTK_by_parts_high_freq_factor"),
            int(_number(raw, "NTK_original_ctx_len")),
        )
    if raw.get("use_yarn_rope") and not (raw.get("yarn_global_attn_only") and kind == "local"):
        return yarn_rotary(
            width,
            pairs,
            base,
            _number(raw, "yarn_factor"),
            int(_number(raw, "yarn_original_max_position_embeddings")),
            attention_factor=_number(raw, "yarn_attention_factor"),
            beta_fast=_number(raw, "yarn_beta_fast"),
            beta_slow=_number(raw, "yarn_beta_slow"),
            truncate=bool(raw.get("yarn_truncate", True)),
        )
    scaled = raw.get("rotary_scaling_factor") is not None and kind != "local"
    return linear_rotary(width, pairs, base, _number(raw, "rotary_scaling_factor") if scaled else 1)


def _number(raw: Mapping[str, Any], key: str) -> float:
    value: Any = raw.get(key)
    if not is_divisor(value):
        got = "none" if value is None else shown(value)
        raise ModelError(f"config {key}", wanted="a positive number", got=got)
    return float(value)
