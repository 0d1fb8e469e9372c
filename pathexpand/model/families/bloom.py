"""BLOOM: ALiBi, a norm after the embedding, queries, keys and values head by head."""

from __future__ import annotations

from collections.abc import Collection

from pathexpand.model.assembly import Form, Plan, Rule
from pathexpand.model.config import Config
from pathexpand.model.families.alibi import alibi_slopes
from pathexpand.model.families.family import Family, config_of, embeddings
from pathexpand.model.families.rules import Pattern, interleaved, linear, norm, rules
from pathexpand.model.families.settings import Settings

_WIDTHS, _HEADS = ("hidden_size", "n_embed"), ("n_head", "num_attention_heads")
_PARTS = (
    *interleaved("self_attention.query_key_value", bias=True),
    *linear("self_attention.dense", "O", bias=True),
    *linear("mlp.dense_h_to_4h", "in", bias=True),
    *linear("mlp.dense_4h_to_h", "out", bias=True),
)
_BEFORE = (*norm("input_layernorm", "ln1"), *norm("post_attention_layernorm", "ln2"))


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    config = config_of(
        raw,
        layers=("n_layer", "num_hidden_layers"),
        heads=_HEADS,
        width=_WIDTHS,
        context=raw.size("seq_length", default=2048),  # ALiBi itself has no longest prompt
        d_mlp=4 * raw.size(*_WIDTHS, most=2**29 - 1),
        act_fn="bloom_gelu",
        positional_embedding_type="none",
        alibi=alibi_slopes(raw.heads(*_HEADS)),
    )
    normed = raw.switch("apply_residual_connection_post_layernorm", default=False)
    top = (
        *embeddings(raw, names, "word_embeddings.weight"),
        *norm("word_embeddings_layernorm", "embed_norms.0"),
        *norm("ln_f", "final_norm"),
    )
    form = Form(
        eps=raw.eps("layer_norm_epsilon", default=1e-5),
        norms=("ln1_after", "ln2_after") if normed else ("ln1", "ln2"),
        act="bloom_gelu",
        final_norm="layer",
        embed_norms=2 if normed and config.n_layers else 1,
    )
    layer: tuple[Pattern, ...] = _PARTS if normed else (*_BEFORE, *_PARTS)
    found = rules(config, top, layer, "h")
    return Plan(config, form, found + _moved_norms(config) if normed else found, "h")


def _moved_norms(config: Config) -> list[Rule]:
    """Give the rules of norms where each part adds to what it read through a norm.

    The stream is then itself what has gone through the norm: a layer's first norm stands after
    the MLP of the layer before, and that of the first layer after the embedding's.
    """
    found: list[Rule] = []
    for layer in range(config.n_layers):
        at = f"h.{layer}."
        after = norm("post_attention_layernorm", "ln1_after")
        first = norm("input_layernorm", "ln2_after" if layer else "embed_norms.1")
        found += [pattern.rule(config, at, layer) for pattern in after]
        found += [pattern.rule(config, at, layer - 1 if layer else None) for pattern in first]
    return found


FAMILY = Family(_plan, ("transformer.",))
