"""A TransformerBridge: names of its own for the tensors of any family, processed or not.

A bridge renames the tensors of a Hugging Face model and may have folded norms and centred weights
since, in place. So names and numbers are the bridge's, and all else (positions, norms, scales) is
as the family's own reader has it from the Hugging Face configuration. A bridge that was made with
a configuration of TransformerLens alone (`boot_native`) is read by that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pathexpand.api.live.hugging_face import raw_config
from pathexpand.api.live.tensors import arrays_of
from pathexpand.api.live.tokenizer import bare_tokenizer_of
from pathexpand.errors import ModelError
from pathexpand.model.assembly import Form, Plan, assemble
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.config import Config
from pathexpand.model.families import family_of
from pathexpand.model.families.rules import (
    Pattern,
    conv1d,
    head_norms,
    linear,
    norm,
    positions,
    rules,
    table,
    unused,
)
from pathexpand.model.families.settings import Settings

_WRAPPED = "._original_component"  # in the names of what a bridge has put itself around


@dataclass(frozen=True, slots=True, kw_only=True)
class _Storage:
    """How the tensors of a family are stored, where they differ.

    With `in_out` (GPT-2), all matrices but queries, keys and values, which the bridge has cut out,
    are stored (in, out). With `plus_one` (Gemma), norms multiply by 1 more than their weights.
    `skipped` rows of positions are never used; `types` is the number of token types.
    """

    in_out: bool = False
    plus_one: bool = False
    skipped: int = 0
    types: int = 0


def bridge_checkpoint(bridge: Any) -> Checkpoint:
    """Read a bridge; raises `ModelError`."""
    module = getattr(bridge, "original_model", None)
    if module is None:
        raise ModelError("model", wanted="a bridge to a model in this process", got="none in it")
    arrays = arrays_of(bridge.state_dict())
    if type(module).__name__ == "NativeModel":
        plan = _native_plan(bridge.cfg.to_dict(), arrays)
    else:
        plan = _family_plan(raw_config(module), module.state_dict(), arrays)
    config = replace(plan.config, default_prepend_bos=bool(bridge.cfg.default_prepend_bos))
    tokenizer = bare_tokenizer_of(getattr(bridge, "tokenizer", None))
    return Checkpoint(config, assemble(plan, arrays), tokenizer)


def _family_plan(raw: Mapping[str, Any], original: Collection[str], names: Collection[str]) -> Plan:
    """Plan a bridge to a Hugging Face model; `original` are the names of the model's tensors."""
    family, settings, kind = family_of(raw), Settings(raw), raw["model_type"]
    settings.refuse("apply_residual_connection_post_layernorm", False)
    known = [family.name(name.replace(_WRAPPED, "")) for name in original]
    plan = family.plan(settings, known)
    storage = _Storage(
        in_out=kind == "gpt2",
        plus_one=kind.startswith("gemma"),
        skipped=2 if kind == "opt" else 0,
        types=settings.size("type_vocab_size", default=2) if kind == "bert" else 0,
    )
    return _plan(plan.config, plan.form, names, storage)


def _native_plan(raw: Mapping[str, Any], names: Collection[str]) -> Plan:
    """Plan a bridge that has only a configuration of TransformerLens."""
    config = Config.from_mapping({**raw, "rotary_adjacent_pairs": True})
    kind = config.layout.normalization_type
    last = "RMS" if config.layout.final_rms else kind
    form = Form(
        norm="rms" if kind is not None and kind.startswith("RMS") else "layer",
        eps=config.layout.eps,
        norms=() if kind is None else ("ln1", "ln2") if config.d_mlp else ("ln1",),
        affine=kind in ("LN", "RMS"),
        act=config.act_fn if config.d_mlp else None,
        final_norm=None if last is None else "rms" if last.startswith("RMS") else "layer",
    )
    return _plan(config, form, names, _Storage())


def _plan(config: Config, form: Form, names: Collection[str], storage: _Storage) -> Plan:
    """Plan a model from the names of a bridge's tensors."""
    top = _top(form, names, storage)
    layer = (*_attention(form, storage), *_mlp(names, storage), *_norms(form, names, storage))
    found = rules(config, _optional_biases(top), _optional_biases(layer), "blocks")
    return Plan(config, form, found)


def _top(form: Form, names: Collection[str], storage: _Storage) -> tuple[Pattern, ...]:
    place = positions("pos_embed.weight", skipped=storage.skipped)
    last = "final_norm" if form.transform is None else "transform.norm"
    ends = form.affine and not (form.final_norm is None and form.transform is None)
    return (
        table("embed.weight", "embed"),
        *((place,) if "pos_embed.weight" in names else ()),
        *(norm("embed_ln", "embed_norms.0") if form.embed_norms else ()),
        *(norm("ln_final", last, plus_one=storage.plus_one) if ends else ()),
        *(_masked_head(storage) if form.transform is not None else ()),
        Pattern(
            "unembed.weight",
            lambda config: (config.d_vocab_out, config.d_model),
            lambda array, _: [("unembed", array)],
            ("unembed",),
        ),
        Pattern(
            "unembed.bias",
            lambda config: (config.d_vocab_out,),
            lambda array, _: [("b_U", array)],
        ),
    )


def _masked_head(storage: _Storage) -> tuple[Pattern, ...]:
    """What BERT alone has: types of tokens, and a transform before it unembeds."""
    return (
        Pattern(
            "token_type_embed.weight",
            lambda config: (storage.types, config.d_model),
            lambda array, _: [("types", array)],
            ("types",),
        ),
        Pattern(
            "mlm_head.weight",
            lambda config: (config.d_model, config.d_model),
            lambda array, _: [("transform.W", array.T)],
        ),
        Pattern(
            "mlm_head.bias",
            lambda config: (config.d_model,),
            lambda array, _: [("transform.b", array)],
        ),
        unused("cls.predictions.bias", lambda config: (config.d_vocab,)),  # unembed.bias is used
    )


def _attention(form: Form, storage: _Storage) -> tuple[Pattern, ...]:
    out = conv1d if storage.in_out else linear
    normed = ("attn.q_norm", "attn.k_norm")
    return (
        *linear("attn.q", "Q", bias=True),
        *linear("attn.k", "K", bias=True),
        *linear("attn.v", "V", bias=True),
        *out("attn.o", "O", bias=True),
        *(
            head_norms(*normed, bias=True, across=form.across, plus_one=storage.plus_one)
            if form.head_norm is not None
            else ()
        ),
    )


def _mlp(names: Collection[str], storage: _Storage) -> tuple[Pattern, ...]:
    matrix = conv1d if storage.in_out else linear
    return (
        *(linear("mlp.gate", "gate", bias=True) if "blocks.0.mlp.gate.weight" in names else ()),
        *(matrix("mlp.in", "in", bias=True) if "blocks.0.mlp.in.weight" in names else ()),
        *(matrix("mlp.out", "out", bias=True) if "blocks.0.mlp.out.weight" in names else ()),
    )


def _norms(form: Form, names: Collection[str], storage: _Storage) -> tuple[Pattern, ...]:
    """Norms of a layer: by the name of their place, or a plain one, or the first of a parallel."""
    fields: dict[str, list[str]] = {}
    for field in form.norms if form.affine else ():
        plain = field.partition("_")[0]
        places = (field, plain, "ln1") if form.parallel else (field, plain)
        present = (each for each in places if f"blocks.0.{each}.weight" in names)
        fields.setdefault(next(present, field), []).append(field)
    found = (norm(name, *each, plus_one=storage.plus_one) for name, each in fields.items())
    return tuple(pattern for both in found for pattern in both)


def _optional_biases(patterns: tuple[Pattern, ...]) -> list[Pattern]:
    return [
        replace(each, needed=False) if each.name.endswith("bias") else each for each in patterns
    ]
