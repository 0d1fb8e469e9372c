"""The sorting model: its authors' stored activations, and that it sorts."""

from __future__ import annotations

from itertools import product
from pathlib import Path as FilePath

import numpy as np
import pytest

from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import Forward, final_logits, forward
from pathexpand.model.norm import normed
from tests.model.sort_nano import Array, read_json, read_model

pytestmark = pytest.mark.shared_models
FOLDER = "sort-nano"


@pytest.fixture(scope="module")
def model(shared_models: FilePath) -> Checkpoint:
    return read_model(shared_models / FOLDER / "gpt-nano-sort-model.json")


@pytest.fixture(scope="module")
def stored(shared_models: FilePath) -> dict[str, Array]:
    return read_json(shared_models / FOLDER / "gpt-nano-sort-t0-partials.json")[1]


def run(model: Checkpoint, tokens: Array) -> Forward:
    return forward(model.weights, model.config, tokens, np.ones(tokens.shape, dtype=bool))


def close(ours: Array, theirs: Array) -> bool:
    """Compare with numbers that were made in float32: 11 to 192 terms a sum, three layers."""
    assert ours.shape == theirs.shape
    return bool(abs(ours - theirs).max() <= 2e-6 * abs(theirs).max() + 2e-6)


def test_its_authors_activations_are_reproduced(
    model: Checkpoint, stored: dict[str, Array]
) -> None:
    tokens = stored["idx"].astype(np.int64)
    made, weights = run(model, tokens), model.weights
    first, block = made.layers[0], weights.blocks[0]
    assert close(weights.embedded(tokens), stored["tok_emb"])
    assert close(made.residual[0], stored["x"])
    assert block.ln1 is not None
    reads = normed(block.ln1, made.residual[0])[0]
    assert close(reads, stored["ln1"])
    for name in "QKV":
        weight, bias = getattr(block.attn, f"W_{name}"), getattr(block.attn, f"b_{name}")
        assert close(reads[:, None] @ weight + bias[:, None], stored[name.lower()])
    assert close(first.pattern, stored["attSm"])
    assert close(first.attn_out, stored["yProj"])
    assert first.middle is not None
    assert first.gates is not None
    assert first.mlp_out is not None
    assert block.ln2 is not None
    assert block.mlp is not None
    assert close(first.middle, stored["attnResid"])
    inner = normed(block.ln2, first.middle)[0]
    assert close(inner, stored["ln2"])
    hidden = inner @ block.mlp.W_in + block.mlp.b_in
    assert close(hidden, stored["fc"])
    assert close(hidden * first.gates, stored["gelu"])
    assert close(first.mlp_out, stored["mlp"])
    for layer in range(3):
        assert close(made.residual[layer + 1], stored[f"block{layer}"])
    assert weights.final_norm is not None
    assert close(normed(weights.final_norm, made.residual[-1])[0], stored["ln_f"])
    assert close(final_logits(weights, model.config, made), stored["lm_head"])


def test_it_sorts_every_input(model: Checkpoint) -> None:
    digits = np.array(list(product(range(3), repeat=6)))  # (729, 6)
    wanted = np.sort(digits, axis=1)
    made = run(model, np.concatenate([digits, wanted[:, :-1]], axis=1))
    found = final_logits(model.weights, model.config, made)[:, 5:].argmax(axis=-1)
    assert len(found) == 729
    assert (found == wanted).all()
