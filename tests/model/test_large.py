"""What a large model is spared: nothing is read before it is asked for, little is kept.

Small models stand in for large ones here: what counts as large is set to nothing.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pathexpand.errors import FileError, ModelError
from pathexpand.model import assembly, blocks, rows
from pathexpand.model.blocks import Blocks, Kept, bytes_of
from pathexpand.model.checkpoint import Checkpoint, checkpoint_from_state_dict, read_checkpoint
from pathexpand.model.forward import final_logits, forward
from pathexpand.model.rows import Rows

FAMILIES = FilePath(__file__).parents[1] / "reference" / "families"
NAMES = ("llama-bfloat16", "llama-sharded", "gpt2", "opt-350m", "opt-untied", "gemma2", "bert")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every model for a large one."""
    monkeypatch.setattr(assembly, "_CHECKED", 0)
    monkeypatch.setattr(rows, "_SMALL", 0)
    monkeypatch.setattr(rows, "_CHUNK", 8 * 24)
    monkeypatch.setattr(blocks, "ALL", 0)
    monkeypatch.setattr(blocks, "FEW", 0)


def numbers(checkpoint: Checkpoint, dtype: Any = np.float64) -> list[Any]:
    """Give what can be computed from a model on one prompt."""
    weights, config = checkpoint.weights, checkpoint.config
    tokens = np.array([[3, 1, 2, 0]])
    made = forward(weights, config, tokens, np.ones((1, 4), dtype=bool), dtype=dtype)
    return [
        final_logits(weights, config, made),
        *made.patterns,
        weights.embedded(tokens),
        weights.unembed(np.array([2, 5])),
        weights.mean_unembed,
        weights.mean_unembed_size,
        weights.W_E,
        weights.W_U,
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_large_models_give_the_same_numbers(
    name: str, dtype: Any, request: pytest.FixtureRequest
) -> None:
    small = numbers(read_checkpoint(FAMILIES / name), dtype)
    request.getfixturevalue("large")
    found = numbers(read_checkpoint(FAMILIES / name), dtype)
    for one, other in zip(small, found, strict=True):
        assert one.dtype == other.dtype
        assert abs(one - other).max() <= (1e-13 if dtype == np.float64 else 1e-5) * abs(one).max()


@pytest.mark.parametrize("name", NAMES)
def test_tall_matrices_keep_their_place_and_their_format(name: str, large: None) -> None:
    weights = read_checkpoint(FAMILIES / name).weights
    for table in (weights.embed, weights.unembedding):
        assert table.stored.dtype.itemsize < 8
        assert not table.is_small
        pieces = [piece for _, piece in table.chunks()]
        assert len(pieces) > 1
        assert {piece.dtype for piece in pieces} == {np.dtype(float)}
    assert any("[" in tensor for tensor, _ in weights.named())


def test_only_the_last_blocks_are_kept(large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = read_checkpoint(FAMILIES / "gpt2").weights
    first = weights.blocks[0]
    assert weights.blocks[0] is first
    assert weights.blocks[1] is not first
    assert weights.blocks[0] is not first
    assert weights.blocks[-1] is weights.blocks[len(weights.blocks) - 1]
    assert len(weights.blocks[0:9]) == len(weights.blocks) == len(list(weights.blocks))
    with pytest.raises(IndexError):
        weights.blocks[99]


def test_all_blocks_of_a_small_model_are_kept() -> None:
    weights = read_checkpoint(FAMILIES / "gpt2").weights
    kept = list(weights.blocks)
    assert all(one is other for one, other in zip(kept, weights.blocks, strict=True))
    assert isinstance(weights.blocks, Blocks)
    assert weights.blocks.size == sum(map(bytes_of, kept))


def test_what_is_kept_is_bounded() -> None:
    kept, made = Kept(10), []

    def get(key: int) -> int:
        return int(kept.get(key, lambda: made.append(key) or key, lambda _: 4))

    for key in (1, 2, 1, 3, 1, 2):
        assert get(key) == key
    assert made == [1, 2, 3, 2]  # two have room; 2 was the one asked for longest ago


@pytest.mark.parametrize("name", [*NAMES, "falcon-one-norm", "stablelm-qk-norm", "olmo2-bias"])
def test_an_outline_has_everything_but_the_numbers_of_matrices(name: str, large: None) -> None:
    weights = read_checkpoint(FAMILIES / name).weights
    for layer, block in enumerate(weights.blocks):
        outline = weights.outline(layer)
        compare(outline, block)


def compare(outline: Any, whole: Any) -> None:
    assert type(outline) is type(whole)
    if isinstance(whole, np.ndarray):
        assert outline.shape == whole.shape
        assert np.isnan(outline).all() or (outline == whole).all()
        assert outline.ndim > 1 or not np.isnan(outline).any()
        return
    for name in getattr(type(whole), "__dataclass_fields__", ()):
        compare(getattr(outline, name), getattr(whole, name))


def broken(name: str, tmp_path: FilePath, tensor: str) -> FilePath:
    """Write a checkpoint in which one tensor has a NaN in it."""
    shutil.copy(FAMILIES / name / "config.json", tmp_path)
    tensors = load_file(FAMILIES / name / "model.safetensors")
    tensors[tensor] = tensors[tensor].copy()
    tensors[tensor].flat[-1] = np.nan
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def test_numbers_are_checked_when_they_are_read(tmp_path: FilePath, large: None) -> None:
    place = broken("gpt2", tmp_path, "transformer.h.1.mlp.c_fc.weight")
    weights = read_checkpoint(place).weights
    assert weights.blocks[0].mlp is not None
    for dtype in (np.float64, np.float32):
        with pytest.raises(ModelError, match=r"h\.1\.mlp\.c_fc\.weight: wanted finite numbers"):
            weights.block(1, dtype)


def test_tall_matrices_are_checked_row_by_row(tmp_path: FilePath, large: None) -> None:
    weights = read_checkpoint(broken("gpt2", tmp_path, "transformer.wte.weight")).weights
    assert weights.embedded(np.array([0, 1])).shape[0] == 2
    last = weights.embed.count - 1
    for look in (
        lambda: weights.embedded(np.array([last])),
        lambda: weights.logits(np.ones(weights.embed.width)),
        lambda: weights.mean_unembed,
        lambda: weights.W_U,
    ):
        with pytest.raises(ModelError, match=r"wte\.weight: wanted finite numbers, got 1 "):
            look()


def test_a_file_that_goes_away_is_told_in_one_line(tmp_path: FilePath, large: None) -> None:
    for file in ("config.json", "model.safetensors"):
        shutil.copy(FAMILIES / "gpt2" / file, tmp_path)
    weights = read_checkpoint(tmp_path).weights
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileError, match=r"wanted a whole \.safetensors file"):
        _ = weights.blocks[0]


def test_arrays_that_change_later_change_nothing(large: None) -> None:
    """Pitfall 28."""
    raw = json.loads((FAMILIES / "gpt2" / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(FAMILIES / "gpt2" / "model.safetensors")
    read = checkpoint_from_state_dict(tensors, raw)
    digest = read.digest()
    for array in tensors.values():
        array[:] = 0
    assert read.digest() == digest
    assert read.weights.block(0, np.float32).attn.W_Q.any()


def test_a_digest_does_not_depend_on_how_weights_are_stored(tmp_path: FilePath) -> None:
    raw = json.loads((FAMILIES / "gpt2" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    tensors = load_file(FAMILIES / "gpt2" / "model.safetensors")
    wide = {name: array.astype(np.float64) for name, array in tensors.items()}
    save_file(wide, tmp_path / "model.safetensors")
    assert read_checkpoint(tmp_path).digest() == read_checkpoint(FAMILIES / "gpt2").digest()


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_rows_stand_for_a_scaled_product(
    is_small: bool, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_small:
        monkeypatch.setattr(rows, "_SMALL", 0)
        monkeypatch.setattr(rows, "_CHUNK", 100)
    rng = np.random.default_rng(0)
    stored, factor = rng.normal(size=(7, 3)).astype(kind), rng.normal(size=(3, 5))
    table = Rows("w", stored, factor, 2.0)
    wanted = 2 * stored.astype(float) @ factor
    assert (table.count, table.width) == (7, 5)
    assert table.whole() == pytest.approx(wanted)
    assert table.at(np.array([[0, 6]])) == pytest.approx(wanted[[[0, 6]]])
    assert table.mean() == pytest.approx(wanted.mean(axis=0))
    assert table.mean(absolute=True) == pytest.approx(abs(wanted).mean(axis=0))
    vectors = rng.normal(size=(2, 4, 5))
    assert table.products(vectors) == pytest.approx(vectors @ wanted.T)
    single = table.products(vectors.astype(np.float32))
    assert single.dtype == np.float32
    assert single == pytest.approx(vectors @ wanted.T, rel=1e-4, abs=1e-4)
    assert np.concatenate([piece for _, piece in table.chunks()]) == pytest.approx(wanted)
