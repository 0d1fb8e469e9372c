"""BERT: bidirectional, with a norm after each part, and a transform before it unembeds."""

from __future__ import annotations

from collections.abc import Collection

from pathexpand.errors import ModelError
from pathexpand.model.assembly import Form, Plan
from pathexpand.model.families.family import Family, config_of
from pathexpand.model.families.rules import (
    Pattern,
    linear,
    logit_bias,
    norm,
    positions,
    rules,
    table,
    unused,
)
from pathexpand.model.families.settings import Settings

_LAYER = (
    *linear("attention.self.query", "Q", bias=True),
    *linear("attention.self.key", "K", bias=True),
    *linear("attention.self.value", "V", bias=True),
    *linear("attention.output.dense", "O", bias=True),
    *norm("attention.output.LayerNorm", "ln1_after"),
    *linear("intermediate.dense", "in", bias=True),
    *linear("output.dense", "out", bias=True),
    *norm("output.LayerNorm", "ln2_after"),
)
_HEAD = "cls.predictions"
_DECODER = f"{_HEAD}.decoder.weight"
_BIASES = (f"{_HEAD}.bias", f"{_HEAD}.decoder.bias")


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    raw.refuse("position_embedding_type", "absolute")
    raw.refuse("add_cross_attention", False)
    if not any(name.startswith(_HEAD) for name in names):
        raise ModelError(
            "weights",
            wanted=f"a masked-token head ({_HEAD}.…)",
            got="none",
            remedy="save the model as BertForMaskedLM",
        )
    act = raw.act("hidden_act", default="gelu")
    causal = raw.switch("is_decoder", default=False)
    config = config_of(
        raw,
        d_mlp=raw.size("intermediate_size"),
        act_fn=act,
        attention_dir="causal" if causal else "bidirectional",
    )
    form = Form(
        eps=raw.eps("layer_norm_eps", default=1e-12),
        norms=("ln1_after", "ln2_after"),
        act=act,
        embed_norms=1,
        transform=act,
    )
    found = rules(config, _top(raw, names), _LAYER, "encoder.layer")
    return Plan(config, form, found, "encoder.layer")


def _top(raw: Settings, names: Collection[str]) -> tuple[Pattern, ...]:
    tied = raw.switch("tie_word_embeddings", default=_DECODER not in names)
    at, types = "embeddings", raw.size("type_vocab_size", default=2)
    return (
        table(f"{at}.word_embeddings.weight", "embed", *(("unembed",) if tied else ())),
        *(() if tied else (table(_DECODER, "unembed"),)),
        positions(f"{at}.position_embeddings.weight"),
        Pattern(
            f"{at}.token_type_embeddings.weight",
            lambda config: (types, config.d_model),
            lambda array, _: [("types", array)],
            ("types",),
        ),
        *norm(f"{at}.LayerNorm", "embed_norms.0"),
        Pattern(
            f"{_HEAD}.transform.dense.weight",
            lambda config: (config.d_model, config.d_model),
            lambda array, _: [("transform.W", array.T)],
        ),
        Pattern(
            f"{_HEAD}.transform.dense.bias",
            lambda config: (config.d_model,),
            lambda array, _: [("transform.b", array)],
        ),
        *norm(f"{_HEAD}.transform.LayerNorm", "transform.norm"),
        # The bias of the head goes by two names; a head of its own uses the second.
        logit_bias(_BIASES[not tied]),
        unused(_BIASES[tied], lambda config: (config.d_vocab,)),
    )


FAMILY = Family(
    _plan,
    ("bert.",),
    ignored=r"pooler\..*|cls\.seq_relationship\..*",  # no logit of a token comes from these
    renamed=(("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")),
)
