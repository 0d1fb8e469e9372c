"""Models with norms, MLPs and the rest against TransformerLens' own HookedTransformer.

The folder transformer_lens_whole holds what `make_transformer_lens.py` wrote.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from pathexpand.model.checkpoint import Checkpoint, checkpoint_from_state_dict, read_checkpoint
from pathexpand.model.forward import Forward, capped, final_logits, forward
from tests.reference.rounding import Array, apart, patterns_apart, within

FOLDER = Path(__file__).parent / "transformer_lens_whole"
CASES = sorted(file.parent.name for file in FOLDER.glob("*/config.json"))


def read(name: str) -> tuple[dict[str, Any], dict[str, Array], dict[str, Array]]:
    """Give a case's configuration, its state dict, and what TransformerLens made of it."""
    config = json.loads((FOLDER / name / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(FOLDER / name / "model.safetensors")
    return config, tensors, load_file(FOLDER / name / "expected.safetensors")


def run(checkpoint: Checkpoint, expected: dict[str, Array], **options: Any) -> Forward:
    tokens = expected["tokens"]
    mask = expected.get("mask", np.ones(tokens.shape)).astype(bool)
    return forward(checkpoint.weights, checkpoint.config, tokens, mask, **options)


def worst(checkpoint: Checkpoint, expected: dict[str, Array]) -> float:
    """Give the largest difference to TransformerLens, over its bound."""
    made = run(checkpoint, expected)
    before = final_logits(checkpoint.weights, checkpoint.config, made)
    found = [apart(capped(checkpoint.config, before), expected["logits"], made.mask)]
    layers = range(checkpoint.config.n_layers)
    streams = ["stream", *(f"blocks.{layer}.hook_resid_post" for layer in layers)]
    found += [
        apart(ours, expected[name], made.mask)
        for ours, name in zip(made.residual, streams, strict=True)
    ]
    patterns = [expected[f"blocks.{layer}.attn.hook_pattern"] for layer in layers]
    found.append(patterns_apart(made, patterns))
    return max(found) / within(checkpoint, made.tokens.shape[1])


def test_there_are_cases() -> None:
    assert len(CASES) >= 20


@pytest.mark.parametrize("name", CASES)
def test_a_state_dict_gives_the_same_numbers(name: str) -> None:
    config, tensors, expected = read(name)
    checkpoint = checkpoint_from_state_dict(tensors, config)
    assert worst(checkpoint, expected) <= 1
    assert within(checkpoint, 7) < 2e-12


@pytest.mark.parametrize("name", CASES)
def test_a_saved_directory_gives_the_same_numbers(name: str) -> None:
    config, tensors, expected = read(name)
    checkpoint = read_checkpoint(FOLDER / name)
    assert worst(checkpoint, expected) <= 1
    assert checkpoint.digest() == checkpoint_from_state_dict(tensors, config).digest()


@pytest.mark.parametrize("name", CASES)
def test_float32_is_the_same_but_for_rounding(name: str) -> None:
    _, _, expected = read(name)
    checkpoint = read_checkpoint(FOLDER / name)
    single = run(checkpoint, expected, dtype=np.float32)
    rounded = final_logits(checkpoint.weights, checkpoint.config, single)
    exact = final_logits(checkpoint.weights, checkpoint.config, run(checkpoint, expected))
    assert rounded.dtype == np.float32
    assert abs(rounded - exact)[single.mask].max() < 1e-5 * abs(exact).max()


# Each change is one that a reading which overlooks the setting would amount to.
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("layer-norm", {"act_fn": "gelu_new"}),
    ("layer-norm-folded", {"normalization_type": "RMSPre"}),
    ("norm-without-mlp", {"eps": 1e-5}),
    ("local", {"window_size": 4}),
    ("local", {"attn_types": ["global", "local"]}),
    ("parallel-adjacent", {"parallel_attn_mlp": False}),
    ("parallel-adjacent", {"rotary_adjacent_pairs": False}),
    ("parallel-adjacent", {"rotary_dim": 6}),
    ("llama", {"rotary_base": 17.0}),
    ("llama", {"eps": 1e-5}),
    ("before-and-after", {"rotary_base_local": None}),
    ("before-and-after", {"rotary_scaling_factor": 1.0}),
    ("before-and-after", {"attn_scores_soft_cap": -1.0}),
    ("before-and-after", {"output_logits_soft_cap": -1.0}),
    ("by-parts", {"use_NTK_by_parts_rope": False}),
    ("yarn", {"yarn_attention_factor": 1.0}),
    ("yarn", {"yarn_global_attn_only": False}),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_a_wrong_reading_is_far_above_the_bound(name: str, change: dict[str, Any]) -> None:
    config, tensors, expected = read(name)
    assert any(config[key] != value for key, value in change.items())
    assert worst(checkpoint_from_state_dict(tensors, config | change), expected) > 1e6


def test_a_bias_after_the_gate_is_read_as_one() -> None:
    """A gated MLP of TransformerLens adds b_in to the product, not to what the gate multiplies."""
    config, tensors, expected = read("llama")
    mlp = checkpoint_from_state_dict(tensors, config).weights.blocks[0].mlp
    assert mlp is not None
    assert mlp.b_in is None
    at = "blocks.0.mlp."
    written = tensors[f"{at}b_in"] @ tensors[f"{at}W_out"] + tensors[f"{at}b_out"]
    assert mlp.b_out == pytest.approx(written)
    tensors = tensors | {f"{at}b_in": 0 * tensors[f"{at}b_in"]}
    assert worst(checkpoint_from_state_dict(tensors, config), expected) > 1e6


def test_plain_names_of_grouped_keys_are_known_too() -> None:
    config, tensors, expected = read("llama")
    plain = {name.replace("._", "."): array for name, array in tensors.items()}
    assert plain.keys() != tensors.keys()
    assert worst(checkpoint_from_state_dict(plain, config), expected) <= 1
