"""Reading Hugging Face checkpoints: names, shapes and settings, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path as FilePath
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from pathexpand.errors import ModelError, PathExpandError
from pathexpand.model.checkpoint import (
    Checkpoint,
    checkpoint_from_state_dict,
    read_checkpoint,
)
from pathexpand.model.config import Config
from pathexpand.model.families import MODULES, read_family
from pathexpand.model.families.rope import rotary_of
from pathexpand.model.families.settings import Settings

FAMILIES = FilePath(__file__).parents[1] / "reference" / "families"
Array = npt.NDArray[Any]
Tensors = dict[str, Array]


def stored(name: str) -> tuple[dict[str, Any], Tensors]:
    """Give a stored case as a configuration and a state dict."""
    raw = json.loads((FAMILIES / name / "config.json").read_text(encoding="utf-8"))
    return raw, load_file(FAMILIES / name / "model.safetensors")


def refused(raw: dict[str, Any], tensors: Tensors, message: str) -> str:
    with pytest.raises(ModelError, match=message) as error:
        checkpoint_from_state_dict(tensors, raw)
    line = str(error.value)
    assert "\n" not in line
    assert len(line) < 1000
    return line


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return one.digest() == other.digest()


# --- names and shapes -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "bert", "opt", "bloom", "falcon", "gpt_neox", "llama"])
def test_all_faults_are_listed_together(name: str) -> None:
    raw, tensors = stored(name)
    names = sorted(name for name in tensors if tensors[name].ndim == 2)
    gone, bent = names[0], names[-1]
    changed = {key: array for key, array in tensors.items() if key != gone}
    changed |= {bent: tensors[bent][:1], "surprise.weight": np.ones(1, dtype=np.float32)}
    line = refused(raw, changed, "weights: ")
    assert f"{gone.split('.')[-2]}.{gone.split('.')[-1]}" in line
    for part in ("is missing", "has shape (1, ", "surprise.weight is not known"):
        assert part in line


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "opt", "gpt_neox", "bloom"])
def test_a_prefix_may_be_absent(name: str) -> None:
    """Pitfall 32."""
    raw, tensors = stored(name)
    prefix = {"bert": "bert.", "opt": "model.", "llama": "model.", "gpt_neox": "gpt_neox."}
    bare = {key.removeprefix(prefix.get(name, "transformer.")): a for key, a in tensors.items()}
    assert bare.keys() != tensors.keys()
    whole = checkpoint_from_state_dict(tensors, raw)
    assert same(whole, checkpoint_from_state_dict(bare, raw))
    twin = next(key for key in bare if key not in tensors)
    refused(raw, tensors | {twin: bare[twin]}, "is there twice")


def test_buffers_are_no_biases() -> None:
    """Pitfall 32: GPT-2's masks are called bias, and are buffers."""
    mask = np.ones((1, 1, 11, 11), dtype=bool)
    for name, buffers in (
        ("gpt2", ("transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias")),
        ("gpt_neo", ("transformer.h.0.attn.attention.bias", "h.1.attn.attention.masked_bias")),
        ("gpt_neox", ("gpt_neox.layers.0.attention.bias", "layers.1.attention.masked_bias")),
        ("gpt_neox", ("gpt_neox.layers.0.attention.rotary_emb.inv_freq",)),
        ("llama", ("model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")),
        ("falcon", ("transformer.h.0.self_attention.maybe_rotary.inv_freq",)),
        ("bert", ("bert.embeddings.position_ids", "bert.pooler.dense.weight")),
        ("bert", ("cls.seq_relationship.weight", "cls.predictions.decoder.bias")),
    ):
        raw, tensors = stored(name)
        vector = np.ones(raw["vocab_size"], dtype=np.float32)
        more = {key: vector if "decoder" in key else mask for key in buffers}
        both = checkpoint_from_state_dict(tensors | more, raw)
        assert same(both, checkpoint_from_state_dict(tensors, raw))


def test_older_names_of_norms() -> None:
    raw, tensors = stored("bert")
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for key, array in tensors.items()
    }
    assert old.keys() != tensors.keys()
    assert same(checkpoint_from_state_dict(old, raw), checkpoint_from_state_dict(tensors, raw))


@pytest.mark.parametrize("name", ["gpt2", "opt-350m", "llama-tied", "bert", "gpt_neox-full-rotary"])
def test_a_tied_unembedding_may_be_there_too(name: str) -> None:
    raw, tensors = stored(name)
    head = {"bert": "cls.predictions.decoder.weight", "gpt_neox-full-rotary": "embed_out.weight"}
    table = next(
        key
        for key in tensors
        if key.endswith(
            ("wte.weight", "embed_tokens.weight", "word_embeddings.weight", "embed_in.weight")
        )
    )
    twin = {head.get(name, "lm_head.weight"): tensors[table]}
    once = checkpoint_from_state_dict(tensors, raw)
    assert same(once, checkpoint_from_state_dict(tensors | twin, raw))
    other = {key: array + np.float32(1) for key, array in twin.items()}
    refused(raw, tensors | other, "differs from .*, but the configuration ties them")
    untold = {key: value for key, value in raw.items() if key != "tie_word_embeddings"}
    assert same(once, checkpoint_from_state_dict(tensors, untold))


def test_an_untied_unembedding_must_be_there() -> None:
    raw, tensors = stored("llama")
    del tensors["lm_head.weight"]
    refused(raw, tensors, r"lm_head\.weight \(\d+, \d+\) is missing")


def test_gemma_3_beside_images() -> None:
    text, tensors = stored("gemma3_text")
    alone = checkpoint_from_state_dict(tensors, text)
    raw = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 3}}
    older = {f"language_model.{key}": array for key, array in tensors.items()}
    newer = {
        key.replace("model.", "model.language_model.", 1): array for key, array in tensors.items()
    }
    images = {"vision_tower.x.weight": np.ones(3), "multi_modal_projector.y": np.ones(3)}
    for both in (older | images, newer | {f"model.{key}": a for key, a in images.items()}):
        assert same(alone, checkpoint_from_state_dict(both, raw))


def test_the_number_of_layers_is_compared_first() -> None:
    raw, tensors = stored("llama")
    refused(raw | {"num_hidden_layers": 9000}, tensors, "wanted 9000 layers.*, got tensors of")


def test_numbers_are_checked() -> None:
    raw, tensors = stored("gpt2")
    for name in (
        "transformer.h.1.mlp.c_fc.weight",
        "transformer.wte.weight",
        "transformer.ln_f.bias",
    ):
        for wrong in (np.nan, np.inf):
            broken = tensors[name].copy()
            broken.flat[-1] = wrong
            refused(raw, tensors | {name: broken}, "wanted finite numbers, got 1 ")
        whole = {name: tensors[name].astype(np.int8)}
        refused(raw, tensors | whole, r"wanted real numbers as .*, got int8")


def test_weights_are_read_only_and_are_copies() -> None:
    raw, tensors = stored("gpt2")
    read = checkpoint_from_state_dict(tensors, raw)
    digest, wide = read.digest(), read.weights.block(0).attn.W_Q
    for array in tensors.values():
        array[:] = 0
    assert read.digest() == digest
    assert (wide == read.weights.block(0, np.float32).attn.W_Q).all()
    for _, array in read.weights.named():
        assert array.dtype == np.float64
        assert not array.flags.writeable


def test_bfloat16_arrays() -> None:
    raw, tensors = stored("llama")
    narrow = {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}
    wide = {name: array.astype(np.float64) for name, array in narrow.items()}
    one, other = (checkpoint_from_state_dict(each, raw) for each in (narrow, wide))
    assert same(one, other)


def test_fused_queries_keys_and_values_of_gpt2() -> None:
    """Pitfall 7: weights are stored (in, out), Q | K | V."""
    raw, tensors = stored("gpt2-inner")
    fused = np.zeros((6, 18), dtype=np.float32)
    fused[0] = np.arange(1, 19)
    attn = (
        checkpoint_from_state_dict(tensors | {"transformer.h.0.attn.c_attn.weight": fused}, raw)
        .weights.blocks[0]
        .attn
    )
    assert attn.W_Q[:, 0].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert attn.W_K[:, 0].tolist() == [[7, 8, 9], [10, 11, 12]]
    assert attn.W_V[:, 0].tolist() == [[13, 14, 15], [16, 17, 18]]


def test_fused_queries_keys_and_values_of_bloom() -> None:
    """Pitfall 8: fused per head, each with its query, key and value."""
    raw, tensors = stored("bloom-six-heads")
    fused = np.zeros((18, 6), dtype=np.float32)
    fused[:, 0] = np.arange(1, 19)
    attn = (
        checkpoint_from_state_dict(
            tensors | {"transformer.h.0.self_attention.query_key_value.weight": fused}, raw
        )
        .weights.blocks[0]
        .attn
    )
    assert attn.W_Q[:, 0].ravel().tolist() == [1, 4, 7, 10, 13, 16]
    assert attn.W_K[:, 0].ravel().tolist() == [2, 5, 8, 11, 14, 17]
    assert attn.W_V[:, 0].ravel().tolist() == [3, 6, 9, 12, 15, 18]


# --- settings -------------------------------------------------------------------------------------


def test_unknown_kinds_of_model_are_refused_with_those_known() -> None:
    raw, tensors = stored("llama")
    for kind in ("mamba", "", 3, ["llama"], "Llama", "../llama"):
        line = refused(raw | {"model_type": kind}, tensors, "config model_type .*: not supported")
        assert all(known in line for known in MODULES)


def test_a_model_type_that_is_missing_is_asked_for() -> None:
    for name in ("llama", "gpt2", "bloom"):
        raw, tensors = stored(name)
        without = {key: value for key, value in raw.items() if key != "model_type"}
        for given in (without, raw | {"model_type": None}):
            line = refused(given, tensors, "config: wanted a value for model_type, got none; known")
            assert all(known in line for known in MODULES)


def test_code_that_comes_with_a_checkpoint_is_never_run() -> None:
    raw, tensors = stored("llama")
    own = {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}, "trust_remote_code": True}
    read = checkpoint_from_state_dict(tensors, raw | own)
    assert same(read, checkpoint_from_state_dict(tensors, raw))
    refused(raw | own | {"model_type": "own"}, tensors, "'own': not supported")


@pytest.mark.parametrize("given", [{"quant_method": "gptq"}, {"quant_method": "fp8"}, {}, "awq", 4])
def test_quantised_weights_are_refused_by_name(given: Any) -> None:
    raw, tensors = stored("llama")
    line = refused(raw | {"quantization_config": given}, tensors, "quantised weights are not")
    assert "None" not in line
    if isinstance(given, dict) and given:
        assert given["quant_method"] in line


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("llama", {"hidden_size": "12"}, "config hidden_size: wanted a whole number"),
        ("llama", {"hidden_size": None}, "wanted a value for hidden_size, got none"),
        ("llama", {"vocab_size": 0}, "config vocab_size: wanted a whole number of at least 1"),
        ("llama", {"num_hidden_layers": 10**9}, "config num_hidden_layers: wanted at most"),
        ("llama", {"num_attention_heads": 10**9}, "config num_attention_heads: wanted at most"),
        (
            "llama",
            {"num_key_value_heads": 97},
            "config num_key_value_heads: wanted a divisor of the . heads",
        ),
        (
            "llama",
            {"head_dim": 5},
            r"config head_dim: wanted .* even number from 2 to \d+, got 5 of 5",
        ),
        ("llama", {"head_dim": 2**20}, "config head_dim: wanted heads whose turning part"),
        ("llama", {"hidden_act": "solu"}, "config hidden_act 'solu': not supported"),
        ("llama", {"rms_norm_eps": -1}, "config rms_norm_eps: wanted a positive number"),
        ("llama", {"rms_norm_eps": float("nan")}, "config rms_norm_eps"),
        ("llama", {"attention_bias": 1}, "config attention_bias: wanted true or false"),
        ("llama", {"attention_bias": True}, "q_proj.bias .* is missing"),
        ("llama", {"rope_parameters": 3}, "config rope_parameters: wanted settings, got 3"),
        ("gpt2", {"add_cross_attention": True}, "config add_cross_attention True: not supported"),
        ("gpt2", {"n_head": 97}, "config n_head: wanted a divisor of n_embd .*, got 97"),
        ("gpt_neo", {"attention_types": [[["global"], 10**12]]}, "config attention_types"),
        ("gpt_neo", {"attention_types": [["global", 3]]}, "config attention_types"),
        ("gpt_neo", {"attention_types": [[["other"], 3]]}, "config attention_types"),
        ("gpt_neo", {"attention_types": 3}, "config attention_types"),
        ("bert", {"position_embedding_type": "relative_key"}, "relative_key': not supported"),
        ("gemma2", {"layer_types": ["full_attention"] * 9}, "config layer_types: wanted . of"),
        ("gemma2", {"layer_types": ["chunked"] * 2}, "config layer_types: wanted . of"),
        ("gemma2", {"query_pre_attn_scalar": None}, "a value for query_pre_attn_scalar"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention True: not"),
        ("falcon", {"multi_query": "yes"}, "config multi_query: wanted true or false"),
    ],
)
def test_settings_that_cannot_be(name: str, change: dict[str, Any], message: str) -> None:
    raw, tensors = stored(name)
    refused(raw | change, tensors, message)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "gemma3"])
def test_values_of_a_wrong_kind_are_told_in_one_line(name: str) -> None:
    raw, tensors = stored(name)
    for key in (*raw, "rope_theta", "rope_scaling", "rotary_pct", "head_dim", "text_config"):
        for value in ([], "x", -2, 1e308, {"a": 1}, 2**31 - 1, 5, 7, 97, None, float("inf")):
            try:
                checkpoint_from_state_dict(tensors, raw | {key: value})
            except PathExpandError as error:
                assert "\n" not in str(error)
                assert len(str(error)) < 1000
                assert not said_in_our_words(str(error), raw)


def said_in_our_words(line: str, raw: dict[str, Any]) -> set[str]:
    """Give the words of a line that are our names and stand nowhere in the file."""
    ours = {each.name for each in fields(Config)} | {"rotary width", "rotary frequencies"}
    return {word for word in ours - raw.keys() if re.search(rf"\b{word}\b", line)} - {"rotary"}


@pytest.mark.parametrize("name", [name for name in MODULES if name != "gemma3"])
def test_a_file_of_settings_is_named_with_the_key_that_is_wrong(
    name: str, tmp_path: FilePath
) -> None:
    raw, tensors = stored(name)
    save_file(tensors, tmp_path / "model.safetensors")
    setting = tmp_path / "config.json"
    heads = next(key for key in ("num_attention_heads", "n_head", "num_heads") if key in raw)
    depth = next(key for key in ("num_hidden_layers", "n_layer", "num_layers") if key in raw)
    for key, value in ((heads, "3"), (heads, 97), ("vocab_size", None), ("model_type", None)):
        setting.write_text(json.dumps(raw | {key: value}), encoding="utf-8")
        with pytest.raises(ModelError) as error:
            read_checkpoint(tmp_path)
        assert str(error.value).startswith(str(setting))
        # Heads that cannot share keys and values are the fault of either number.
        assert key in str(error.value) or (value == 97 and "num_key_value_" in str(error.value))
    deeper = raw | {depth: 41, "layer_types": None, "attention_types": [[["global"], 41]]}
    setting.write_text(json.dumps(deeper), encoding="utf-8")
    with pytest.raises(ModelError, match=f"wanted 41 layers, as config {depth} says"):
        read_checkpoint(tmp_path)


# Null has the meaning of the default in these alone, as in transformers.
_NULLS = {
    *("n_inner", "num_key_value_heads", "num_kv_heads", "ffn_hidden_size", "head_dim"),
    *("num_ln_in_parallel_attn", "word_embed_proj_dim", "rope_scaling"),
}


@pytest.mark.parametrize("name", [name for name in MODULES if name != "gemma3"])
def test_null_is_no_default(name: str) -> None:
    """A number, switch or function that may be left out may not be null: no reader takes it."""
    raw, tensors = stored(name)
    asked: set[str] = set()

    class Asked(Settings):
        def _value(self, keys: tuple[str, ...], default: Any, null: bool = False) -> Any:
            if default is not None and not null and not self._at:
                asked.update(keys[:1])
            return super()._value(keys, default, null)

    family = import_module(f"pathexpand.model.families.{MODULES[name]}").FAMILY
    family.plan(Asked(raw), list(tensors))
    assert asked
    assert not asked & _NULLS
    for key in asked:
        if (name, key) != ("mistral", "sliding_window"):  # there, null is no window
            refused(raw | {key: None}, tensors, rf"config {key}: wanted a value, got null; leave")
        rest = {each: value for each, value in raw.items() if each != key}
        family.plan(Settings(rest), list(tensors))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gpt2", "n_inner"),
        ("gpt_neo-inner", "intermediate_size"),
        ("falcon-grouped", "ffn_hidden_size"),
        ("opt", "word_embed_proj_dim"),
        ("llama-ungrouped", "num_key_value_heads"),
        ("falcon", "num_ln_in_parallel_attn"),
    ],
)
def test_null_where_the_format_gives_it_a_meaning(name: str, key: str) -> None:
    raw, tensors = stored(name)
    family = import_module(f"pathexpand.model.families.{MODULES[raw['model_type']]}").FAMILY
    rest = {each: value for each, value in raw.items() if each != key}
    null = family.plan(Settings(raw | {key: None}), list(tensors))
    assert null.config == family.plan(Settings(rest), list(tensors)).config


@pytest.mark.parametrize(
    ("name", "change", "layer", "wanted"),
    [
        ("gpt2", {}, 1, "root"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, 1, "twice the root"),
        ("gpt2", {"scale_attn_weights": False}, 0, 1.0),
        ("gpt_neo", {}, 0, 1.0),
        ("gemma2", {"query_pre_attn_scalar": 16}, 0, 4.0),
        ("llama", {}, 0, "root"),
    ],
)
def test_13_divisors_of_scores(
    name: str, change: dict[str, Any], layer: int, wanted: float | str
) -> None:
    raw, tensors = stored(name)
    read = checkpoint_from_state_dict(tensors, raw | change).config
    root = read.d_head**0.5
    known: dict[float | str, float] = {"root": root, "twice the root": 2 * root}
    assert read.attn_scale[layer] == pytest.approx(known.get(wanted, wanted))


def test_a_bert_without_its_head() -> None:
    raw, tensors = stored("bert")
    base = {name: array for name, array in tensors.items() if not name.startswith("cls.")}
    refused(raw, base, "masked-token head .* save the model as BertForMaskedLM")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(1, 1), ([1, 2], 1), ([], None), (None, None), (50256, None), (-1, None), ("1", None)],
)
def test_start_tokens(given: Any, wanted: int | None) -> None:
    raw, tensors = stored("llama")
    read = checkpoint_from_state_dict(tensors, raw | {"bos_token_id": given})
    assert read.config.bos_token_id == wanted


def test_a_tensor_has_a_name() -> None:
    raw, tensors = stored("llama")
    for wrong in ({3: np.ones(1)}, None, [1]):
        with pytest.raises(ModelError, match="weights: wanted"):
            read_family(raw, tensors | wrong if isinstance(wrong, dict) else wrong)  # type: ignore[arg-type, operator]


# --- rotary positions -----------------------------------------------------------------------------


def rope(width: int = 8, **raw: Any) -> Any:
    return rotary_of(Settings({"max_position_embeddings": 16} | raw), width)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"rope_theta": None},
        {"rope_parameters": {"rope_type": "default"}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
    ],
)
def test_11_a_base_that_stands_nowhere_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"the base of its rotary positions, as rope_theta or in"):
        rope(**raw)


def test_11_places_where_a_base_stands() -> None:
    wanted = (1.0, 0.1, 0.01, 0.001)
    for raw in (
        {"rope_theta": 1e4},
        {"rotary_emb_base": 10000},
        {"rope_parameters": {"rope_theta": 1e4}},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}, "rope_theta": 3.0},
        {"rope_theta": 1e4, "rope_scaling": None},
    ):
        assert rope(**raw).frequencies == pytest.approx(wanted)


@pytest.mark.parametrize("kind", ["mrope", "proportional", "su", "", 3, ["yarn"]])
def test_11_other_kinds_are_refused_by_name(kind: Any) -> None:
    for key in ("rope_type", "type"):
        with pytest.raises(ModelError, match=rf"config rope_scaling\.{key} .*: not supported; kno"):
            rope(rope_theta=1e4, rope_scaling={key: kind, "factor": 2.0})


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear"},
        {"rope_type": "linear", "factor": 0.0},
        {"rope_type": "dynamic", "factor": "2"},
        {"rope_type": "llama3", "factor": 8.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
        {"rope_type": "yarn", "factor": 2.0, "truncate": "no"},
        {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0},
        {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 4},
        {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [0.0] * 4},
        {"rope_type": "longrope", "short_factor": 3, "long_factor": [1.0] * 4},
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [1.0] * 4,
            "original_max_position_embeddings": 1,
        },
    ],
)
def test_11_settings_that_make_no_angles(scaling: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as error:
        rope(rope_theta=1e4, rope_scaling=scaling)
    assert "\n" not in str(error.value)


def test_11_a_part_of_a_head_must_be_told_where_it_differs() -> None:
    raw, tensors = stored("gpt_neox")
    plain = {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}
    refused(raw | plain, tensors, "wanted a value for partial_rotary_factor")


def test_11_longer_prompts_turn_by_other_angles() -> None:
    short, long = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]
    scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    scaling |= {"original_max_position_embeddings": 4}
    found = rope(rope_theta=1.0, rope_scaling=scaling)
    assert found.turning(4) == tuple(1 / each for each in short)
    assert found.turning(5) == tuple(1 / each for each in long)
    grown = rope(rope_theta=16.0, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    assert grown.turning(16) == grown.frequencies
    assert grown.turning(32)[1] == pytest.approx((16 * 3 ** (8 / 6)) ** -0.25)


def test_15_rows_of_a_batch_turn_by_their_own_length() -> None:
    grown = rope(rope_theta=16.0, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    vectors = np.random.default_rng(0).normal(size=(2, 3, 40, 8))
    places = np.array([np.arange(40), np.minimum(np.arange(40), 9)])
    both = grown.turn(vectors, places)
    for row in (0, 1):
        alone = grown.turn(vectors[row : row + 1], places[row : row + 1])
        assert (alone[0] == both[row]).all()
