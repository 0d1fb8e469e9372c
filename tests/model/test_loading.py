"""Reading models: number formats, names, shapes, damaged files, configurations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pathexpand import laws
from pathexpand.api import from_state_dict, load
from pathexpand.errors import FileError, ModelError, PathExpandError
from pathexpand.model.checkpoint import read_checkpoint
from pathexpand.model.config import Config
from pathexpand.model.tensors import read_file

SIZES = {
    "n_layers": 2,
    "n_heads": 3,
    "d_model": 7,
    "d_head": 2,
    "d_vocab": 13,
    "d_vocab_out": 11,
    "n_ctx": 5,
    "attn_only": True,
    "positional_embedding_type": "standard",
}


@pytest.fixture
def tensors() -> dict[str, Any]:
    return {name: np.array(a) for name, a in laws.random_model(seed=1).weights.named()}


def write(folder: FilePath, tensors: dict[str, Any], config: dict[str, Any]) -> FilePath:
    folder.mkdir(exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_raw(file: FilePath, kind: str, shape: list[int], data: bytes, name: str) -> None:
    """Write one tensor in any number format: header length, header, numbers."""
    entry = {name: {"dtype": kind, "shape": shape, "data_offsets": [0, len(data)]}}
    header = json.dumps(entry).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)


@pytest.mark.parametrize("kind", ["float64", "float32", "float16"])
def test_float_formats(kind: str, tensors: dict[str, Any], tmp_path: FilePath) -> None:
    small = {name: array.astype(kind) for name, array in tensors.items()}
    model = load(write(tmp_path / "m", small, SIZES))
    for name, array in model.weights.named():
        assert array.dtype == np.float64
        assert (array == small[name].astype(np.float64)).all()
        assert not array.flags.writeable
    assert model.config.model_name == "m"


@pytest.mark.parametrize("kind", ["I8", "I32", "I64", "U8", "BOOL", "F8_E4M3"])
def test_other_formats_are_refused_by_name(kind: str, tensors: Any, tmp_path: FilePath) -> None:
    """Pitfall 33: packed weights are not read as if they were numbers."""
    size = {"I32": 4, "I64": 8}.get(kind, 1)
    file = tmp_path / "w.safetensors"
    write_raw(file, kind, [13, 7], b"\1" * 91 * size, "embed.W_E")
    with pytest.raises(ModelError, match=r"tensor embed\.W_E: wanted .* got") as error:
        from_state_dict(tensors | read_file(file), SIZES)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({"ln_final.w": np.ones(7)}), r"ln_final\.w is not known"),
        (lambda t: t.update({"blocks.0.ln1.w": np.ones(7)}), r"blocks\.0\.ln1\.w is not known"),
        (lambda t: t.update({"blocks.1.mlp.W_in": np.ones((7, 9))}), r"mlp\.W_in is not known"),
        (lambda t: t.pop("embed.W_E"), r"embed\.W_E \(13, 7\) is missing"),
        (lambda t: t.update({"extra": np.ones(1)}), "extra is not known"),
        (
            lambda t: t.update({"unembed.W_U": np.ones((11, 7))}),
            r"unembed\.W_U has shape \(11, 7\), wanted \(7, 11\)",
        ),
        (
            lambda t: t.update({"blocks.0.attn.W_O": np.full((3, 2, 7), np.nan)}),
            r"attn\.W_O: wanted finite numbers, got 42 that are NaN or infinite",
        ),
        (
            lambda t: t.update({"unembed.b_U": np.array([np.inf] + [0.0] * 10)}),
            r"b_U: wanted finite numbers, got 1 ",
        ),
    ],
)
def test_bad_tensors(
    change: Callable[[dict[str, Any]], Any], message: str, tensors: Any, tmp_path: FilePath
) -> None:
    change(tensors)
    with pytest.raises(ModelError, match=message) as error:
        from_state_dict(tensors, SIZES)
    assert "\n" not in str(error.value)
    with pytest.raises(ModelError, match=message):
        load(write(tmp_path / "m", tensors, SIZES))


def test_all_faults_are_listed_at_once(tensors: dict[str, Any]) -> None:
    del tensors["embed.W_E"]
    tensors["unembed.W_U"] = np.ones((2, 2))
    tensors["other"] = np.ones(1)
    with pytest.raises(ModelError) as error:
        from_state_dict(tensors, SIZES)
    for part in ("embed.W_E (13, 7) is missing", "unembed.W_U has shape", "other is not known"):
        assert part in str(error.value)


def test_buffers_of_a_state_dict_are_no_weights(tensors: dict[str, Any]) -> None:
    for name in ("mask", "IGNORE", "rotary_sin", "rotary_cos"):
        tensors[f"blocks.0.attn.{name}"] = np.array(-np.inf)
    model = from_state_dict(tensors, SIZES)
    assert "mask" not in dict(model.weights.named())


def test_complex_numbers_and_text_are_refused(tensors: dict[str, Any]) -> None:
    for wrong in (np.ones((13, 7), dtype=complex), np.full((13, 7), "1")):
        with pytest.raises(ModelError, match="real numbers"):
            from_state_dict(tensors | {"embed.W_E": wrong}, SIZES)


def test_weights_are_copies_that_nobody_can_change(tensors: dict[str, Any]) -> None:
    """Pitfall 28: no stale answers, since there is nothing to change."""
    model = from_state_dict(tensors, SIZES)
    digest, first = model.checkpoint.digest(), model.run([1, 2]).paths(0, top=3)
    tensors["embed.W_E"][:] = 0
    assert model.checkpoint.digest() == digest
    assert model.run([1, 2]).paths(0, top=3) == first
    with pytest.raises(ValueError, match="read-only"):
        model.weights.W_E[0, 0] = 1


def test_biases_on_some_and_zero_biases(tensors: dict[str, Any]) -> None:
    """Pitfall 34: biases on q, k, v but not on o; a bias of zeros is no source."""
    del tensors["blocks.0.attn.b_O"]
    tensors["blocks.1.attn.b_O"] = np.zeros(7)
    tensors["blocks.1.attn.b_V"] = np.zeros((3, 2))
    model = from_state_dict(tensors, SIZES)
    assert [s.label for s in model.network.sources] == ["embed", "pos", "L0bias", "b_U"]
    assert all(each.holds for each in laws.verify_run(model.run([1, 2, 3])))


@pytest.mark.parametrize("kept", [0, 4, 60, 4000, -1])
def test_truncated_files(kept: int, tensors: Any, tmp_path: FilePath) -> None:
    folder = write(tmp_path / "m", tensors, SIZES)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(FileError, match=r"whole \.safetensors file") as error:
        load(folder)
    assert "\n" not in str(error.value)


def test_places_that_hold_no_model(tmp_path: FilePath, tensors: dict[str, Any]) -> None:
    with pytest.raises(FileError, match="one of zero-layer"):
        load("no-such-model")
    with pytest.raises(FileError, match="no such file"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SIZES), encoding="utf-8")
    with pytest.raises(FileError, match=r"wanted a \.safetensors file, got none"):
        load(tmp_path)
    (tmp_path / "weights.pt").write_bytes(b"\x80\x04")
    with pytest.raises(FileError, match="pickles are never loaded"):
        load(tmp_path)
    with pytest.raises(FileError, match="pickles are never loaded"):
        load(tmp_path / "weights.pt")
    for name in ("a", "b"):
        save_file(tensors, str(tmp_path / f"{name}.safetensors"))
    with pytest.raises(FileError, match=r"a\.safetensors, b\.safetensors; name the file"):
        load(tmp_path)
    assert load(tmp_path / "b.safetensors").config.n_heads == 3


@pytest.mark.parametrize("text", ["", "{", "[1]", "3"])
def test_damaged_configurations(text: str, tmp_path: FilePath) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match="JSON"):
        load(tmp_path)


ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 2, "rotary_base": 1e4}
YARN = {
    "use_yarn_rope": True,
    "yarn_factor": 2.0,
    "yarn_attention_factor": 1.0,
    "yarn_original_max_position_embeddings": 4,
    "yarn_beta_fast": 32,
    "yarn_beta_slow": 1,
}
BY_PARTS = {
    "use_NTK_by_parts_rope": True,
    "NTK_by_parts_factor": 2.0,
    "NTK_original_ctx_len": 4,
    "NTK_by_parts_low_freq_factor": 1.0,
    "NTK_by_parts_high_freq_factor": 1.0,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalization_type": "BN"}, "normalization_type: wanted LN, LNPre, RMS, RMSPre or none"),
        ({"attn_only": False}, "config d_mlp: wanted a whole number of at least 1, got None"),
        ({"attn_only": False, "d_mlp": 3}, "config act_fn None: not supported"),
        ({"attn_only": False, "d_mlp": 3, "act_fn": "solu_ln"}, "act_fn 'solu_ln': a softmax"),
        ({"n_key_value_heads": 2}, "n_key_value_heads: wanted a divisor of the 3 heads, got 2"),
        ({"n_key_value_heads": 0}, "n_key_value_heads: wanted a whole number of at least 1"),
        ({"output_logits_soft_cap": -3.0}, "output_logits_soft_cap: wanted a positive number"),
        ({"use_local_attn": True}, "attn_types: wanted global or local for each of 2 layers"),
        ({"use_local_attn": True, "attn_types": ["local"] * 2}, "window_size: wanted a whole"),
        (
            {"positional_embedding_type": "rotary"},
            "rotary_base: wanted a positive number, got none",
        ),
        (
            {"positional_embedding_type": "rotary", "rotary_dim": 3},
            "config rotary_dim: wanted an even",
        ),
        (ROTARY | {"rotary_dim": 96}, "config rotary_dim: wanted an even number of at most"),
        (ROTARY | YARN | {"rotary_base": 1.0}, "config rotary_base: wanted a base, factors"),
        (ROTARY | BY_PARTS, "config rotary_base: wanted a base, factors and lengths"),
        ({"eps": None}, "config eps: wanted a number of at least 0, got None"),
        ({"positional_embedding_type": "relative"}, "'relative': not supported; known are"),
        ({"use_qk_norm": 1}, "config use_qk_norm: wanted true or false"),
        ({"eps": -1.0}, "config eps: wanted a number of at least 0"),
        ({"final_rms": True}, "config final_rms: wanted a normalization_type"),
        ({"post_embedding_ln": True}, "post_embedding_ln: wanted positions that are not added"),
        ({"clip_qkv": 1.0}, "clip_qkv 1.0: clamps on queries, keys and values are not supported"),
        ({"num_experts": 2}, "num_experts 2: mixtures of experts are not supported"),
        ({"n_heads": 0}, "config n_heads: wanted a whole number of at least 1, got 0"),
        ({"d_model": 7.0}, "config d_model: wanted a whole number"),
        ({"n_layers": "2"}, "config n_layers"),
        ({"n_layers": True}, "config n_layers"),
        ({"d_head": "2"}, "config d_head"),
        ({"attn_scale": 0.0}, "config attn_scale"),
        ({"attn_scale": "x"}, "config attn_scale"),
        ({"attn_scale": float("nan")}, "config attn_scale"),
        ({"attention_dir": "sideways"}, "config attention_dir"),
        ({"d_vocab_out": -2}, "config d_vocab_out"),
        ({"model_name": 3}, "config model_name"),
    ],
)
def test_bad_configurations(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        Config.from_mapping(SIZES | change)
    assert "\n" not in str(error.value)


def test_missing_sizes_and_foreign_configurations() -> None:
    with pytest.raises(ModelError, match="none for n_layers, n_heads"):
        Config.from_mapping({"d_model": 3, "d_head": 1, "d_vocab": 2, "n_ctx": 1})
    with pytest.raises(ModelError, match="Hugging Face configuration with its model_type"):
        Config.from_mapping({"model_type": "gpt2"})


def test_what_the_configuration_says_by_default() -> None:
    read = Config.from_mapping({k: v for k, v in SIZES.items() if k != "d_vocab_out"})
    assert read.d_vocab_out == read.d_vocab == 13
    assert read.attn_scale == (2**0.5, 2**0.5)
    assert Config.from_mapping(SIZES | {"n_key_value_heads": 3}).n_heads == 3


def test_a_model_without_layers(tmp_path: FilePath) -> None:
    model = laws.random_model(seed=1, n_layers=0, n_heads=1)
    arrays = {name: np.array(array) for name, array in model.weights.named()}
    sizes = SIZES | {"n_layers": 0, "n_heads": 0, "d_head": 0}
    again = load(write(tmp_path / "m", arrays, sizes))
    assert all(each.holds for each in laws.verify_run(again.run([1, 2])))


def test_every_error_is_of_our_kind() -> None:
    assert issubclass(ModelError, PathExpandError)
    with pytest.raises(PathExpandError):
        read_checkpoint("nowhere")
