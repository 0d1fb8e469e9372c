"""The models under the golden files of graphs are read as TransformerLens reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from pathexpand.model.checkpoint import Checkpoint, read_checkpoint
from pathexpand.model.forward import capped, final_logits, forward

FOLDER = Path(__file__).parent / "graphs"
CASES = sorted(file.parent.name for file in FOLDER.glob("*/golden.npz"))


def ours(checkpoint: Checkpoint, tokens: np.ndarray) -> np.ndarray:
    made = forward(
        checkpoint.weights, checkpoint.config, tokens[None], np.ones((1, len(tokens)), bool)
    )
    return capped(checkpoint.config, final_logits(checkpoint.weights, checkpoint.config, made))[0]


def test_there_are_cases() -> None:
    assert len(CASES) == 16


@pytest.mark.parametrize("name", CASES)
def test_the_model_gives_the_same_logits(name: str) -> None:
    with np.load(FOLDER / name / "golden.npz") as golden:
        tokens, logits = golden["tokens"], golden["logits"]
    found = ours(read_checkpoint(FOLDER / name), tokens)
    assert found.dtype == logits.dtype == np.float64
    assert abs(found - logits).max() < 1e-12


@pytest.mark.parametrize("name", CASES)
def test_no_case_is_symmetric_or_empty(name: str) -> None:
    """Each has features on and off, nodes and edges kept and not, and constants that matter."""
    with np.load(FOLDER / name / "golden.npz") as golden:
        features, wide = golden["active_features"], len(golden["adjacency"])
        assert len(set(features[:, 0].tolist())) > 1
        assert features[:, 1].min() == 1  # none at the first position
        assert golden["adjacency"].dtype == np.float64
        assert 0 < golden["kept_nodes"].sum() < wide
        assert 0 < golden["kept_edges"].sum() < np.count_nonzero(golden["edge_scores"])
        without, with_constants = golden["gap"]
    assert without > 1 > 1e-12 > with_constants / 10
    stored = load_file(FOLDER / name / "model.safetensors")
    assert {str(tensor.dtype) for tensor in stored.values()} == {"float64"}
