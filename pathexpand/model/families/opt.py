"""OPT: ReLU, learned positions from the third row on; the 350m form norms after each part."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pathexpand.model.assembly import Form, Plan
from pathexpand.model.config import Config
from pathexpand.model.families.family import Family, config_of
from pathexpand.model.families.rules import Pattern, linear, norm, positions, rules
from pathexpand.model.families.settings import Settings
from pathexpand.model.parts import Array

_SKIPPED = 2  # rows of the positions that are never used


def _layer(*, before: bool, bias: bool, affine: bool) -> tuple[Pattern, ...]:
    first, second = ("ln1", "ln2") if before else ("ln1_after", "ln2_after")
    norms = (*norm("self_attn_layer_norm", first), *norm("final_layer_norm", second))
    return (
        *(norms if affine else ()),
        *linear("self_attn.q_proj", "Q", bias=bias),
        *linear("self_attn.k_proj", "K", bias=bias),
        *linear("self_attn.v_proj", "V", bias=bias),
        *linear("self_attn.out_proj", "O", bias=bias),
        *linear("fc1", "in", bias=bias),
        *linear("fc2", "out", bias=bias),
    )


def _plan(raw: Settings, names: Collection[str]) -> Plan:
    act = raw.act("activation_function", default="relu")
    config = config_of(raw, d_mlp=raw.size("ffn_dim"), act_fn=act)
    before = raw.switch("do_layer_norm_before", default=True)
    affine = raw.switch("layer_norm_elementwise_affine", default=True)
    last = before and not raw.switch("_remove_final_layer_norm", default=False)
    top = (
        *_tables(raw, names, config),
        positions("embed_positions.weight", skipped=_SKIPPED),
        *(norm("final_layer_norm", "final_norm") if last and affine else ()),
    )
    form = Form(
        norms=("ln1", "ln2") if before else ("ln1_after", "ln2_after"),
        affine=affine,
        act=act,
        final_norm="layer" if last else None,
    )
    bias = raw.switch("enable_bias", default=True)
    layer = _layer(before=before, bias=bias, affine=affine)
    return Plan(config, form, rules(config, top, layer, "layers"), "layers")


def _tables(raw: Settings, names: Collection[str], config: Config) -> Iterator[Pattern]:
    """Give the embedding and the unembedding, which may be narrower than the stream.

    `project_in` and `project_out` then lead from the one width to the other.
    """
    inner = raw.size("word_embed_proj_dim", default=config.d_model, null=True)
    head = "lm_head.weight"
    tied = raw.switch("tie_word_embeddings", default=head not in names)

    def shape(config: Config) -> tuple[int, ...]:
        return config.d_vocab, inner

    def both(array: Array, _: Config) -> Iterator[tuple[str, Array]]:
        yield "embed", array
        if tied:
            yield "unembed", array

    yield Pattern("embed_tokens.weight", shape, both, ("embed", "unembed") if tied else ("embed",))
    if not tied:
        yield Pattern(head, shape, lambda array, _: [("unembed", array)], ("unembed",))
    if inner != config.d_model:
        yield Pattern(
            "project_in.weight",
            lambda c: (c.d_model, inner),
            lambda array, _: [("embed_factor", array.T)],  # (inner, d_model)
        )
        yield Pattern(
            "project_out.weight",
            lambda c: (inner, c.d_model),
            lambda array, _: [("unembed_factor", array)],  # (inner, d_model)
        )


FAMILY = Family(_plan, ("model.decoder.", "decoder."))
