from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.circuits.circuit import ov, qk
from pathexpand.circuits.copying import (
    Spectra,
    copying,
    embedding_gram,
    matching,
    positivity,
    unembedded_embedding,
)
from pathexpand.circuits.wiring import embedding, head_weights, turned, unembedding
from pathexpand.errors import ModelError, PathExpandError
from pathexpand.laws.design import Design, random_transformer
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.table import AnalysisTable

SQUARE: dict[str, Any] = {"d_vocab": 13, "d_vocab_out": 13, "d_model": 7, "d_head": 3}
DESIGNS = {
    "layer norm, grouped": Design(**SQUARE),
    "rms, embedding norms": Design(norm="rms", embed_norms=2, **SQUARE),
    "layer norm behind the embedding": Design(embed_norms=1, norms=("ln1_post",), **SQUARE),
    "no norm, thick heads": Design(norms=(), final_norm=False, **SQUARE | {"d_head": 11}),
    "rotary": Design(positions="rotary", head_norm="each", **SQUARE | {"d_head": 4}),
}


def model(name: str) -> Checkpoint:
    return random_transformer(DESIGNS[name], seed=5).checkpoint


def dense_ov(checkpoint: Checkpoint, *heads: tuple[int, int]) -> np.ndarray:
    """Give the whole (token, token) matrix of a head or a chain of heads."""
    out = embedding(checkpoint)
    for layer, head in heads:
        weights = head_weights(checkpoint, layer)
        out = out @ weights.W_V[head] @ weights.W_O[head]
    return out @ unembedding(checkpoint)


def nonzero(matrix: np.ndarray) -> np.ndarray:
    values = np.linalg.eigvals(matrix)
    return values[abs(values) > 1e-9 * abs(values).max()]


def same_eigenvalues(found: np.ndarray, matrix: np.ndarray) -> None:
    found = found[abs(found) > 1e-9 * abs(found).max()]
    wanted = list(nonzero(matrix))
    assert len(found) == len(wanted)
    for value in found:
        nearest = min(range(len(wanted)), key=lambda n: abs(wanted[n] - value))
        assert wanted.pop(nearest) == pytest.approx(value, rel=1e-6, abs=1e-9)


def same_score(found: float, matrix: np.ndarray) -> None:
    values = nonzero(matrix)
    assert found == pytest.approx(values.real.sum() / abs(values).sum(), rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("name", DESIGNS)
def test_spectra_are_those_of_the_whole_matrix(name: str) -> None:
    checkpoint = model(name)
    found = copying(checkpoint, sample=0)
    for n, label in enumerate(found.heads):
        matrix = dense_ov(checkpoint, divmod(n, 4))
        same_eigenvalues(found.eigenvalues[n], matrix)
        same_score(found.of(label), matrix)
        same_score(ov(checkpoint, label).copying_score() or 0.0, matrix)
    assert np.ptp(found.scores) > 0.1
    # A product without the unembedding's side has another spectrum: the check can fail.
    wrong = head_weights(checkpoint, 0).ov(0).dense()
    with pytest.raises(AssertionError):
        same_score(found.of("L0H0"), wrong)


@pytest.mark.parametrize("name", ["layer norm, grouped", "rms, embedding norms"])
def test_virtual_heads(name: str) -> None:
    checkpoint = model(name)
    labels = ["L0H3 > L1H1", "L0H0 > L1H2", "L1H2"]
    found = copying(checkpoint, labels)
    assert found.heads == tuple(labels)
    same_score(found.of("L0H3 > L1H1"), dense_ov(checkpoint, (0, 3), (1, 1)))
    same_eigenvalues(found.eigenvalues[1], dense_ov(checkpoint, (0, 0), (1, 2)))
    with pytest.raises(AssertionError):
        same_score(found.of("L0H3 > L1H1"), dense_ov(checkpoint, (1, 1), (0, 3)))


@pytest.mark.parametrize("name", DESIGNS)
def test_shares_are_those_of_the_whole_matrix(name: str) -> None:
    checkpoint = model(name)
    found = copying(checkpoint, top=3)
    assert found.sampled == 13 and found.diagonal is not None and found.own_top is not None
    for n in range(len(found.heads)):
        matrix = dense_ov(checkpoint, divmod(n, 4))
        own = np.diag(matrix)
        assert found.diagonal[n] == pytest.approx((own > 0).mean())
        best = np.argsort(-matrix, axis=1)[:, :3]
        inside = [token in best[token] for token in range(13)]
        assert found.own_top[n] == pytest.approx(np.mean(inside))
    assert len(set(found.diagonal)) > 1 and len(set(found.own_top)) > 1


def test_a_sample_is_drawn_once_and_stated() -> None:
    checkpoint = pathexpand.load("two-layer").checkpoint
    found, same, other = (copying(checkpoint, sample=100, seed=s) for s in (3, 3, 4))
    assert found.sampled == 100
    assert found.table() == same.table()
    assert found.table() != other.table()
    assert np.array_equal(found.scores, other.scores)
    assert any("100 of 1,024 tokens" in claim for claim in found.table().claims)


@pytest.mark.parametrize("name", DESIGNS)
def test_matching_is_that_of_the_whole_matrix(name: str) -> None:
    checkpoint = model(name)
    offset = 2 if name == "rotary" else None
    found, W_E = matching(checkpoint, offset=offset), embedding(checkpoint)
    for n, label in enumerate(found.heads):
        layer, head = divmod(n, 4)
        weights = head_weights(checkpoint, layer)
        W_Q = turned(checkpoint, layer, weights.W_Q[head], offset)
        matrix = W_E @ W_Q @ weights.W_K[head].T @ W_E.T / checkpoint.config.attn_scale[layer]
        same_eigenvalues(found.eigenvalues[n], matrix)
        same_score(found.of(label), matrix)
        same_score(qk(checkpoint, label, offset=offset).copying_score() or 0.0, matrix)


@pytest.mark.parametrize("name", DESIGNS)
def test_sums_over_the_vocabulary(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathexpand.circuits.copying._CHUNK", 5)  # the last piece is short
    checkpoint = model(name)
    W_E, W_U = embedding(checkpoint), unembedding(checkpoint)
    np.testing.assert_allclose(unembedded_embedding(checkpoint), W_U @ W_E, atol=1e-12)
    np.testing.assert_allclose(embedding_gram(checkpoint), W_E.T @ W_E, atol=1e-12)
    whole = copying(checkpoint, top=2)
    monkeypatch.setattr("pathexpand.circuits.copying._ROOM", 27)  # two rows at once
    assert copying(checkpoint, top=2).table() == whole.table()


# --- hand-made values (PITFALLS 20) ------------------------------------------------------------


def by_hand(OV: Any, *, dtype: Any = np.float64) -> Checkpoint:
    """Make a model whose tokens are the axes of the stream, with one head that does this."""
    OV = np.array(OV, dtype=dtype)
    d = len(OV)
    config = {
        "n_layers": 1, "n_heads": 1, "d_model": d, "d_head": d, "d_vocab": d, "n_ctx": 2,
        "attn_only": True, "positional_embedding_type": "standard",
    }  # fmt: skip
    tensors = {name: np.eye(d, dtype=dtype) for name in ("embed.W_E", "unembed.W_U")}
    tensors["pos_embed.W_pos"] = np.ones((2, d), dtype=dtype)
    for name, value in (("Q", np.eye(d)), ("K", np.eye(d)), ("V", OV), ("O", np.eye(d))):
        tensors[f"blocks.0.attn.W_{name}"] = value[None].astype(dtype)
    return pathexpand.from_state_dict(tensors, config).checkpoint


@pytest.mark.parametrize(
    ("OV", "score"),
    [
        (np.outer([1, 2], [3, 4]), 1.0),
        ([[0, -1], [1, 0]], 0.0),
        ([[1, -(3**0.5)], [3**0.5, 1]], 0.5),
        (-np.eye(3), -1.0),
        (np.zeros((2, 2)), 0.0),
    ],
)
def test_scores_by_hand(OV: Any, score: float) -> None:
    assert copying(by_hand(OV)).of("L0H0") == pytest.approx(score, abs=1e-12)


def test_half_precision_is_cast_up_first() -> None:
    """300 squared is beyond float16."""
    found = copying(by_hand([[300, 0], [0, 299]], dtype=np.float16))
    np.testing.assert_allclose(found.eigenvalues, [[300, 299]])
    assert found.eigenvalues.dtype == np.complex128


def test_positivity_over_rows() -> None:
    np.testing.assert_allclose(positivity(np.array([[1, -1], [2j, -2j], [3, 0]])), [0, 0, 1])


# --- gauge, embedded, refusals -------------------------------------------------------------------


def test_the_basis_inside_a_head_does_not_matter() -> None:
    rng = np.random.default_rng(2)
    OV, R = rng.normal(size=(2, 5, 5))
    checkpoint = by_hand(OV)
    tensors = dict(checkpoint.weights.named())
    tensors["blocks.0.attn.W_V"] = tensors["blocks.0.attn.W_V"] @ R
    half = pathexpand.from_state_dict(tensors, checkpoint.config).checkpoint
    tensors["blocks.0.attn.W_O"] = np.linalg.inv(R) @ tensors["blocks.0.attn.W_O"]
    moved = pathexpand.from_state_dict(tensors, checkpoint.config).checkpoint
    score = copying(checkpoint).of("L0H0")
    assert copying(moved).of("L0H0") == pytest.approx(score, rel=1e-9)
    assert copying(half).of("L0H0") != pytest.approx(score, rel=1e-3)


def test_the_embedded_induction_head_copies_and_the_previous_token_head_does_not() -> None:
    found = copying(pathexpand.load("two-layer").checkpoint, top=5)
    assert found.table(top=1)[0]["head"] == "L1H0"
    assert found.of("L1H0") > 0.99 and abs(found.of("L0H3")) < 0.2
    assert found.own_top is not None
    assert found.own_top[found.heads.index("L1H0")] > 0.95
    assert AnalysisTable.from_json(found.table().to_json()) == found.table()


def test_refusals_are_one_clear_line() -> None:
    two = pathexpand.load("two-layer").checkpoint
    cases: list[tuple[Any, str]] = [
        (lambda: copying(two, ["L2H0"]), "L2H0"),
        (lambda: copying(two, ["L1H0 > L0H3"]), "rising layers"),
        (lambda: copying(two, []), "at least one head"),
        (lambda: copying(two, sample=-1), "sample"),
        (lambda: copying(two).of("L9H9"), "L9H9"),
        (lambda: copying(pathexpand.load("zero-layer").checkpoint), "at least one head"),
        (lambda: copying(random_transformer(Design(), seed=1).checkpoint), "one vocabulary"),
        (lambda: matching(model("rotary")), "an offset"),
        (lambda: matching(two, offset=1), "no rotary"),
    ]
    for call, words in cases:
        with pytest.raises(PathExpandError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"transform": True}, {"norms": ("ln1_after",)}])
def test_what_is_not_linear_is_refused_by_name(change: dict[str, Any]) -> None:
    checkpoint = random_transformer(Design(**SQUARE | change), seed=1).checkpoint
    with pytest.raises(ModelError, match="model random"):
        copying(checkpoint)


def test_a_wrong_value_cannot_be_built() -> None:
    with pytest.raises(PathExpandError):
        Spectra("m", "OV", ("L0H0",), np.zeros((2, 3)), 5)
    with pytest.raises(PathExpandError):
        Spectra("m", "OV", ("L0H0",), np.zeros((1, 3)), 5, diagonal=np.zeros(2))
