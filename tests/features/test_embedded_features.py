"""The features that come with the package are those their cards tell of."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from pathexpand.model.checkpoint import Checkpoint, read_checkpoint
from pathexpand.model.forward import forward, logits, masked_softmax
from pathexpand.model.prompt import read_prompt
from pathexpand.train.features.passing import last_stream, losses, through

EMBEDDED = Path(__file__).parents[2] / "pathexpand" / "embedded"
SAE = EMBEDDED / "two-layer" / "features"
TRANSCODERS = EMBEDDED / "stories260k-transcoders"
THRESHOLD = "activation_function.threshold"
PER_FEATURE = ("W_enc", "b_enc", "threshold", "W_dec")
# A sum in another order may differ by this much; no activation of the probe is so near a threshold.
TOLERANCE = 1e-6

FOLDERS = pytest.mark.parametrize(
    ("folder", "most"), [(SAE, 500_000), (TRANSCODERS, 1_000_000)], ids=["sae", "transcoders"]
)

Stored = dict[str, np.ndarray]


def record_of(folder: Path) -> dict:
    return json.loads((folder / "training.json").read_text(encoding="utf-8"))


def stored(file: Path) -> Stored:
    return {name: array.astype(np.float64) for name, array in load_file(file).items()}


def sae() -> Stored:
    found = stored(SAE / "sae_weights.safetensors")
    return found | {"W_enc": found["W_enc"].T}  # (feature, d_in)


def transcoder(layer: int) -> Stored:
    found = stored(TRANSCODERS / f"layer_{layer}.safetensors")
    return found | {"threshold": found[THRESHOLD]}


def active(features: Stored, reads: np.ndarray) -> np.ndarray:
    before = reads @ features["W_enc"].T + features["b_enc"]  # (position, feature)
    return before * (before > features["threshold"])


def rebuilt(features: Stored, reads: np.ndarray) -> np.ndarray:
    written = active(features, reads) @ features["W_dec"] + features["b_dec"]
    return written + (reads @ features["W_skip"].T if "W_skip" in features else 0)


def fvu(features: Stored, reads: np.ndarray, writes: np.ndarray) -> float:
    error = writes - rebuilt(features, reads)
    return float((error**2).sum() / ((writes - writes.mean(axis=0)) ** 2).sum())


def probe(checkpoint: Checkpoint, folder: Path) -> tuple[np.ndarray, dict]:
    found = record_of(folder)["probe"]
    tokens = read_prompt(checkpoint, found["text"]).ids
    assert tokens.tolist() == found["tokens"]
    return tokens[None], found  # (1, position)


def dense(checkpoint: Checkpoint, tokens: np.ndarray):
    mask = np.ones_like(tokens, dtype=bool)
    return forward(checkpoint.weights, checkpoint.config, tokens, mask)


@FOLDERS
def test_files_are_small_plain_and_whole(folder: Path, most: int) -> None:
    files = sorted(folder.iterdir())
    assert sum(file.stat().st_size for file in files) < most
    assert {file.suffix for file in files} <= {".safetensors", ".json", ".yaml", ".md"}
    for file in folder.glob("*.safetensors"):
        for name, array in load_file(file).items():
            assert np.isfinite(array).all(), name
            # Sums of rows, which merged features write, may want more than float16 holds.
            wide = name == "W_dec" and not np.array_equal(array.astype(np.float16), array)
            assert array.dtype == (np.float32 if wide else np.float16), name


@FOLDERS
def test_the_card_says_what_was_measured(folder: Path, most: int) -> None:
    card, record = (folder / "README.md").read_text(encoding="utf-8"), record_of(folder)
    for name, found in record["measured"].items():
        for layer in found["layers"]:
            row = (
                f"| {name} | {found['positions']:,} | {layer['layer']} | {layer['fvu']:.4f} "
                f"| {layer['l0']:.1f} | {layer['dead']} | {found['own']:.3f} "
                f"| {layer['spliced']:.3f} | {layer['mean']:.3f} |"
            )
            assert row in card
    for layer in record["probe"]["layers"]:
        row = f"| {layer['layer']} | {layer['fvu']:.4f} | {layer['l0']:.2f} |"
        assert row in card
    licences = [corpus["licence"] for corpus in record["text"].get("corpora", [])]
    for text in licences or [record["text"]["origin"], record["text"]["licence"]]:
        assert text in " ".join(card.split())


@FOLDERS
def test_features_are_worth_having(folder: Path, most: int) -> None:
    for found in record_of(folder)["measured"].values():
        for layer in found["layers"]:
            assert layer["fvu"] < 0.35
            assert layer["spliced"] < (found["own"] + layer["mean"]) / 2


def test_the_sae_is_laid_out_as_its_configuration_says() -> None:
    config = json.loads((SAE / "cfg.json").read_text(encoding="utf-8"))
    shapes = {
        name: array.shape for name, array in load_file(SAE / "sae_weights.safetensors").items()
    }
    n_features, d_in = config["d_sae"], config["d_in"]
    assert config["architecture"] == "jumprelu"
    assert config["apply_b_dec_to_input"] is False
    assert config["metadata"]["hook_name"] == "blocks.1.hook_resid_pre"
    assert config["metadata"]["sae_lens_version"].startswith("6.")
    assert shapes == {
        "W_enc": (d_in, n_features),
        "b_enc": (n_features,),
        "W_dec": (n_features, d_in),
        "b_dec": (d_in,),
        "threshold": (n_features,),
    }
    assert np.allclose(np.linalg.norm(sae()["W_dec"], axis=1), 1, atol=1e-3)


def test_the_transcoders_are_laid_out_as_their_configuration_says() -> None:
    lines = (TRANSCODERS / "config.yaml").read_text(encoding="utf-8").splitlines()
    named = [line.removeprefix("  - ") for line in lines if line.startswith("  - ")]
    assert "feature_input_hook: mlp.hook_in" in lines
    assert "feature_output_hook: mlp.hook_out" in lines
    assert named == sorted(file.name for file in TRANSCODERS.glob("*.safetensors"))
    for layer, told in enumerate(record_of(TRANSCODERS)["merged"]):
        found = transcoder(layer)
        assert found["W_enc"].shape == found["W_dec"].shape
        assert found["W_enc"].shape == (told["after"], len(found["b_dec"]))
        assert len(found["threshold"]) == told["after"]
        # What was merged here wrote the same, so a row is as long as the features were many.
        length = np.linalg.norm(found["W_dec"], axis=1)
        assert np.allclose(length, np.rint(length), atol=5e-3)
        assert np.rint(length).sum() == told["before"]


def same_encoders(features: Stored) -> int:
    """Count the features whose encoder is that of an earlier one."""
    whole = np.column_stack([features["W_enc"], features["b_enc"], features["threshold"]])
    return len(whole) - len(np.unique(whole, axis=0))


def test_no_two_features_of_a_transcoder_are_the_same() -> None:
    record = record_of(TRANSCODERS)
    for layer, (told, gone) in enumerate(zip(record["alike"], record["merged"], strict=True)):
        found = transcoder(layer)
        assert same_encoders(found) == told["decoder"] == told["whole"] == 0
        assert gone["before"] == record["settings"]["n_features"]
        twice = {name: np.concatenate([found[name], found[name][:3]]) for name in PER_FEATURE}
        assert same_encoders(twice) == 3


def test_the_card_of_the_transcoders_tells_of_the_merged_features() -> None:
    card = " ".join((TRANSCODERS / "README.md").read_text(encoding="utf-8").split())
    merged = record_of(TRANSCODERS)["merged"]
    assert f"with {merged[0]['after']} JumpReLU features" in card
    (gone,) = {layer["before"] - layer["after"] for layer in merged}
    assert f"{gone} in each layer went into others" in card


def test_the_card_of_the_sae_counts_features_that_are_alike() -> None:
    features = sae()
    rows = features["W_dec"] / np.linalg.norm(features["W_dec"], axis=1, keepdims=True)
    apart = np.linalg.norm(rows[:, None] - rows, axis=-1)  # (feature, feature)
    near = np.argwhere(np.triu(apart <= 1e-3, 1))
    whole = [
        all(np.array_equal(features[name][a], features[name][b]) for name in PER_FEATURE)
        for a, b in near
    ]
    card = " ".join((SAE / "README.md").read_text(encoding="utf-8").split())
    record = record_of(SAE)
    assert record["alike"] == [
        {"layer": record["layers"][0], "decoder": len(near), "whole": sum(whole)}
    ]
    assert f"**{len(near)} pairs of features in layer 1 have the same row of W_dec" in card
    assert f"and {sum(whole)} of these the same encoder" in card


def test_the_sae_gives_its_cards_numbers() -> None:
    checkpoint = read_checkpoint("two-layer")
    assert record_of(SAE)["model"]["sha256"] == checkpoint.digest()
    tokens, told = probe(checkpoint, SAE)
    stream = dense(checkpoint, tokens).residual[1][0]  # (position, d_model)
    (layer,) = told["layers"]
    assert fvu(sae(), stream, stream) == pytest.approx(layer["fvu"], abs=TOLERANCE)
    assert (active(sae(), stream) > 0).sum(axis=1).mean() == pytest.approx(layer["l0"])
    held_out = record_of(SAE)["measured"]["mix"]["layers"][0]
    assert layer["fvu"] == pytest.approx(held_out["fvu"], abs=0.08)
    assert layer["l0"] == pytest.approx(held_out["l0"], rel=0.25)


def test_the_sae_in_the_stream_gives_its_cards_loss() -> None:
    checkpoint = read_checkpoint("two-layer")
    tokens, told = probe(checkpoint, SAE)
    run = dense(checkpoint, tokens)
    assert mean_loss(checkpoint, run.residual[-1], tokens) == pytest.approx(told["own"])
    spliced = second_layer(checkpoint, rebuilt(sae(), run.residual[1][0]))
    assert mean_loss(checkpoint, spliced, tokens) == pytest.approx(told["spliced"], abs=TOLERANCE)


def second_layer(checkpoint: Checkpoint, stream: np.ndarray) -> np.ndarray:
    """Take a stream (position, d_model) through the last layer, head by head."""
    attn = checkpoint.weights.block(1).attn
    placed = stream + checkpoint.weights.W_pos[: len(stream)]
    seen = np.tri(len(stream), dtype=bool)
    out = stream.copy()
    for Q, K, V, O in zip(attn.W_Q, attn.W_K, attn.W_V, attn.W_O, strict=True):  # noqa: E741
        scores = placed @ Q @ (placed @ K).T / checkpoint.config.attn_scale[1]
        out += masked_softmax(scores, seen) @ stream @ V @ O
    return out[None]  # (1, position, d_model)


def mean_loss(checkpoint: Checkpoint, stream: np.ndarray, tokens: np.ndarray) -> float:
    scores = logits(checkpoint.weights, stream)[0, :-1]  # (position - 1, d_vocab)
    share = np.exp(scores - scores.max(axis=-1, keepdims=True))
    share /= share.sum(axis=-1, keepdims=True)
    return float(-np.log(share[np.arange(len(share)), tokens[0, 1:]]).mean())


@pytest.mark.parametrize("fault", ["no threshold", "no b_dec", "b_dec taken off", "relu off"])
def test_a_wrong_reading_of_the_sae_shows(fault: str) -> None:
    checkpoint, right = read_checkpoint("two-layer"), sae()
    tokens, told = probe(checkpoint, SAE)
    stream = dense(checkpoint, tokens).residual[1][0]
    wrong = {
        "no threshold": right | {"threshold": np.zeros_like(right["threshold"])},
        "no b_dec": right | {"b_dec": np.zeros_like(right["b_dec"])},
        "b_dec taken off": right | {"b_enc": right["b_enc"] - right["W_enc"] @ right["b_dec"]},
        "relu off": right | {"threshold": np.full_like(right["threshold"], -np.inf)},
    }[fault]
    assert abs(fvu(wrong, stream, stream) - told["layers"][0]["fvu"]) > 1000 * TOLERANCE


@pytest.mark.shared_models
def test_the_transcoders_give_their_cards_numbers(shared_models: Path) -> None:
    checkpoint = read_checkpoint(shared_models / "stories260k")
    record = record_of(TRANSCODERS)
    assert record["model"]["sha256"] == checkpoint.digest()
    tokens, told = probe(checkpoint, TRANSCODERS)
    run = dense(checkpoint, tokens)
    held_out = record["measured"]["sampled"]["layers"]
    for layer, (trace, found, usual) in enumerate(
        zip(run.layers, told["layers"], held_out, strict=True)
    ):
        features, block = transcoder(layer), checkpoint.weights.block(layer)
        reads, writes = through(block.ln2, trace.middle)[0], trace.mlp_out[0]
        assert fvu(features, reads, writes) == pytest.approx(found["fvu"], abs=TOLERANCE)
        assert (active(features, reads) > 0).sum(axis=1).mean() == pytest.approx(found["l0"])
        assert found["fvu"] == pytest.approx(usual["fvu"], abs=0.08)
        other = transcoder((layer + 1) % len(told["layers"]))
        assert fvu(other, reads, writes) > 0.9


@pytest.mark.shared_models
def test_the_transcoders_in_the_model_give_their_cards_losses(shared_models: Path) -> None:
    checkpoint = read_checkpoint(shared_models / "stories260k")
    tokens, told = probe(checkpoint, TRANSCODERS)

    def loss(layers: list[int]) -> float:
        mlps = {layer: partial(rebuilt, transcoder(layer)) for layer in layers}
        stream = last_stream(checkpoint, tokens, mlps=mlps, dtype=np.float64)
        return float(losses(checkpoint, stream, tokens).mean())

    layers = [found["layer"] for found in told["layers"]]
    assert loss([]) == pytest.approx(told["own"])
    assert loss(layers) == pytest.approx(told["spliced"], abs=TOLERANCE)
    for found in told["layers"]:
        assert loss([found["layer"]]) == pytest.approx(found["spliced"], abs=TOLERANCE)
