"""Every family of checkpoints against transformers' own numbers.

The folder families holds tiny random checkpoints and what transformers made of them in float64;
`families/make.py` wrote it and neither torch nor transformers is needed to read it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from pathexpand.model.checkpoint import Checkpoint, read_checkpoint
from pathexpand.model.families import MODULES
from pathexpand.model.forward import Forward, capped, final_logits, forward
from tests.reference.rounding import Array, apart, patterns_apart, within

FOLDER = Path(__file__).parent / "families"
CASES = sorted(file.parent.name for file in FOLDER.glob("*/config.json"))
OWN = [name for name in CASES if not (FOLDER / name / "same_as.txt").is_file()]
# The stream before a layer is what `hidden_states` says, but in these: there each part adds to
# what it read through a norm, and our stream is what has gone through it.
NORMED_STREAM = ("bloom-post-norm",)


def tensors_of(name: str) -> Path:
    """Give the folder that holds the tensors of a case, which may be another case's."""
    other = FOLDER / name / "same_as.txt"
    return FOLDER / other.read_text(encoding="utf-8").strip() if other.is_file() else FOLDER / name


def golden(name: str) -> dict[str, Array]:
    return load_file(tensors_of(name) / "golden.safetensors")


def read(name: str, place: Path, **changes: Any) -> Checkpoint:
    """Read a case from a folder of its own, with some of the configuration changed."""
    raw = json.loads((FOLDER / name / "config.json").read_text(encoding="utf-8")) | changes
    for file in tensors_of(name).glob("model*"):
        shutil.copy(file, place)
    (place / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return read_checkpoint(place)


def run(checkpoint: Checkpoint, stored: dict[str, Array], **options: Any) -> Forward:
    tokens = stored["tokens"]
    mask = stored.get("mask", np.ones(tokens.shape, dtype=bool))
    types = stored.get("token_types")
    return forward(checkpoint.weights, checkpoint.config, tokens, mask, types=types, **options)


def logits_of(checkpoint: Checkpoint, made: Forward) -> tuple[Array, Array]:
    before = final_logits(checkpoint.weights, checkpoint.config, made)
    return before, capped(checkpoint.config, before)


def stored_patterns(stored: dict[str, Array]) -> list[Array]:
    return [stored[f"pattern.{n}"] for n in range(sum("pattern" in key for key in stored))]


def test_every_family_has_cases() -> None:
    kinds = [json.loads((FOLDER / name / "config.json").read_text())["model_type"] for name in OWN]
    assert len(OWN) >= 80
    assert len(CASES) - len(OWN) >= 15
    assert set(kinds) == set(MODULES) - {"gemma3"}  # the same text model beside images


@pytest.mark.parametrize("name", CASES)
def test_logits_and_patterns(name: str, tmp_path: Path) -> None:
    checkpoint, stored = read(name, tmp_path), golden(name)
    made = run(checkpoint, stored)
    before, after = logits_of(checkpoint, made)
    bound = within(checkpoint, made.tokens.shape[1])
    assert apart(after, stored["logits"], made.mask) <= bound
    assert apart(before, stored.get("uncapped", stored["logits"]), made.mask) <= bound
    assert ("uncapped" in stored) == (checkpoint.config.output_logits_soft_cap is not None)
    assert patterns_apart(made, stored_patterns(stored)) <= bound


@pytest.mark.parametrize("name", OWN)
def test_the_stream_before_each_layer(name: str, tmp_path: Path) -> None:
    checkpoint, stored = read(name, tmp_path), golden(name)
    made = run(checkpoint, stored)
    bound = within(checkpoint, made.tokens.shape[1])
    for layer in range(0 if name in NORMED_STREAM else checkpoint.config.n_layers):
        assert apart(made.residual[layer], stored[f"residual.{layer}"], made.mask) <= bound


@pytest.mark.parametrize("name", OWN)
def test_bounds_are_small(name: str, tmp_path: Path) -> None:
    checkpoint = read(name, tmp_path)
    assert within(checkpoint, golden(name)["tokens"].shape[1]) < 2e-12


@pytest.mark.parametrize("name", OWN)
def test_float32_is_the_same_but_for_rounding(name: str, tmp_path: Path) -> None:
    checkpoint, stored = read(name, tmp_path), golden(name)
    made, single = run(checkpoint, stored), run(checkpoint, stored, dtype=np.float32)
    exact, rounded = logits_of(checkpoint, made)[1], logits_of(checkpoint, single)[1]
    assert rounded.dtype == np.float32
    assert {each.dtype for each in (*single.patterns, *single.residual)} == {rounded.dtype}
    assert float(abs(rounded - exact)[made.mask].max() / abs(exact).max()) < 1e-5


@pytest.mark.parametrize("name", OWN)
def test_a_row_and_its_padding_are_as_if_run_alone(name: str, tmp_path: Path) -> None:
    """Pitfall 15: also with padding on the left, where transformers moves the positions."""
    checkpoint, stored = read(name, tmp_path), golden(name)
    weights, config = checkpoint.weights, checkpoint.config
    whole = logits_of(checkpoint, run(checkpoint, stored))[0]
    mask = stored.get("mask", np.ones(stored["tokens"].shape, dtype=bool))
    bound = 2 * within(checkpoint, mask.shape[1])
    for row, real in enumerate(mask):
        types = stored.get("token_types", np.zeros_like(stored["tokens"]))[row, real]
        tokens, padding = stored["tokens"][row, real], (3, 1)
        padded = forward(
            weights,
            config,
            np.pad(tokens, padding)[None],
            np.pad(np.ones(len(tokens), dtype=bool), padding)[None],
            types=np.pad(types, padding)[None],
        )
        ours = final_logits(weights, config, padded, 0, slice(3, 3 + len(tokens)))
        assert abs(ours - whole[row, real]).max() <= bound * abs(whole).max()


@pytest.mark.parametrize("name", OWN)
def test_a_trace_tells_what_was_added(name: str, tmp_path: Path) -> None:
    """Pitfall 9: a module's output is not always what is added."""
    checkpoint, stored = read(name, tmp_path), golden(name)
    made = run(checkpoint, stored)
    for layer, trace in enumerate(made.layers):
        block = checkpoint.weights.blocks[layer]
        assert (trace.mlp_out is None) == (block.mlp is None)
        total = made.residual[layer] + trace.attn_out
        if block.ln1_after is None and trace.middle is not None:
            assert trace.middle == pytest.approx(total, rel=1e-13, abs=1e-13)
        start = total if trace.middle is None else trace.middle
        if block.ln2_after is None:
            after = start if trace.mlp_out is None else start + trace.mlp_out
            assert made.residual[layer + 1] == pytest.approx(after, rel=1e-13, abs=1e-13)
        for at in ("ln1", "ln2", "ln1_post", "ln2_post", "ln1_after", "ln2_after"):
            scale = getattr(trace, f"scale{at.removeprefix('ln')}")
            assert (scale is None) == (getattr(block, at) is None)
            assert scale is None or scale.shape == made.tokens.shape


def rope(**changes: Any) -> Any:
    return lambda raw: {"rope_parameters": raw["rope_parameters"] | changes}


def window(raw: dict[str, Any]) -> dict[str, Any]:
    return {"sliding_window": raw["sliding_window"] + 1}


# Each change is one that a reading which overlooks the setting would amount to.
CHANGES: list[tuple[str, Any]] = [
    ("gpt2-by-layer", {"scale_attn_by_inverse_layer_idx": False}),
    ("gpt2-unscaled", {"scale_attn_weights": True}),
    ("gpt2-silu", {"layer_norm_epsilon": 1e-5}),
    ("gpt2-silu", {"activation_function": "gelu_new"}),
    ("gpt2", {"activation_function": "gelu"}),
    ("gpt_neo", {"window_size": 4}),
    ("gpt_neo", {"attention_types": [[["global"], 3]]}),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("gpt_neox-sequential", {"use_parallel_residual": True}),
    ("gpt_neox", rope(partial_rotary_factor=0.5)),
    ("gpt_neox-dynamic", rope(factor=2.0)),
    ("gpt_neox-dynamic", {"max_position_embeddings": 11}),
    ("opt", {"activation_function": "gelu"}),
    ("opt-post-norm", {"activation_function": "relu"}),
    ("bloom", {"layer_norm_epsilon": 1e-3}),
    ("llama", rope(rope_theta=1e5)),
    ("llama-bias", {"rms_norm_eps": 1e-6}),
    ("llama-linear", rope(factor=2.0)),
    ("llama-linear", rope(rope_type="dynamic")),
    ("llama-yarn", rope(factor=5.0)),
    ("llama-yarn", rope(rope_type="linear")),
    ("llama-yarn-beta", rope(truncate=True)),
    ("llama-yarn-beta", rope(attention_factor=None)),
    ("llama-yarn-mscale", rope(mscale=None)),
    ("llama-longrope", rope(original_max_position_embeddings=8)),
    ("llama-longrope-short", rope(attention_factor=None)),
    ("llama-llama3", rope(low_freq_factor=2.0)),
    ("llama-llama3", rope(original_max_position_embeddings=64)),
    ("llama-tied", {"hidden_act": "silu"}),
    ("mistral", window),
    ("mistral", {"sliding_window": None}),
    ("qwen2-sliding", window),
    ("qwen2-layer-types", {"layer_types": ["full_attention", "sliding_attention"]}),
    ("qwen3-sliding", {"rms_norm_eps": 1e-6}),
    ("gemma2", {"query_pre_attn_scalar": 6}),
    ("gemma2", {"attn_logit_softcapping": None}),
    ("gemma2", {"final_logit_softcapping": 4.0}),
    ("gemma2", window),
    ("gemma3_text-bidirectional", {"use_bidirectional_attention": False}),
    ("gemma3_text-bidirectional", {"sliding_window": 2}),
    ("phi", rope(partial_rotary_factor=1.0)),
    ("phi3-sliding", window),
    ("falcon-separate", rope(rope_theta=1e4)),
    ("falcon", {"activation": "gelu_new"}),
    ("stablelm", rope(partial_rotary_factor=0.5)),
    ("starcoder2-sliding", window),
    ("bert", {"is_decoder": True}),
    ("bert", {"layer_norm_eps": 1e-3}),
    ("bert-decoder", {"is_decoder": False}),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_a_wrong_reading_is_far_above_the_bound(name: str, change: Any, tmp_path: Path) -> None:
    raw = json.loads((FOLDER / name / "config.json").read_text(encoding="utf-8"))
    changes = change(raw) if callable(change) else change
    assert any(raw[key] != value for key, value in changes.items())
    checkpoint, stored = read(name, tmp_path, **changes), golden(name)
    made = run(checkpoint, stored)
    after = logits_of(checkpoint, made)[1]
    bound = within(checkpoint, made.tokens.shape[1])
    assert apart(after, stored["logits"], made.mask) > 1e6 * bound


@pytest.mark.parametrize("name", ["bert", "bert-mask"])
def test_token_types_are_read(name: str, tmp_path: Path) -> None:
    checkpoint, stored = read(name, tmp_path), golden(name)
    without = {key: value for key, value in stored.items() if key != "token_types"}
    made = run(checkpoint, without)
    assert made.types is not None
    assert not made.types.any()
    assert apart(logits_of(checkpoint, made)[1], stored["logits"], made.mask) > 1e-3
