from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.circuits.chance import Chance, spectrum_chance, squared_corners
from pathexpand.circuits.composition import (
    Composition,
    composition,
    composition_of,
    composition_table,
    pair_table,
    random_score,
)
from pathexpand.errors import ModelError, PathExpandError
from pathexpand.laws.design import Design, random_transformer
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.parts import Norm
from pathexpand.model.rotary import Rotary
from pathexpand.symbolic import Head
from pathexpand.table import AnalysisTable

KINDS = ("Q", "K", "V")
DESIGNS = {
    "layer norm, grouped": Design(n_layers=3, d_model=11, d_head=3),
    "rms, scaled blocks": Design(n_layers=3, norm="rms", residual_scale=-3.0, d_model=11),
    "post norms": Design(norms=("ln1", "ln1_post", "ln2_post"), d_model=11),
    "post norms alone": Design(norms=("ln1_post",), d_model=11),
    "no norm, thick heads": Design(norms=(), d_model=3, d_head=5, d_mlp=0),
    "query and key norms": Design(head_norm="each", d_model=11),
    "rotary": Design(positions="rotary", d_model=11, d_head=5, n_ctx=6),
    "parallel": Design(parallel=True, d_model=11, norm="rms"),
}


def model(name: str, seed: int = 3) -> Checkpoint:
    return random_transformer(DESIGNS[name], seed=seed).checkpoint


def norm_matrix(norm: Norm | None, d: int) -> np.ndarray:
    """Give the matrix that a norm multiplies rows by, its scale left out."""
    if norm is None:
        return np.eye(d)
    centring = np.eye(d) - (np.ones((d, d)) / d if norm.kind == "layer" else 0)
    return centring @ np.diag(np.ones(d) if norm.weight is None else norm.weight)


def rotation(rotary: Rotary, d_head: int, offset: int) -> np.ndarray:
    """Give the matrix that turns a row by an offset."""
    out, half = np.eye(d_head), rotary.width // 2
    for n, frequency in enumerate(rotary.frequencies):
        one, other = (2 * n, 2 * n + 1) if rotary.pairs == "adjacent" else (n, n + half)
        cos, sin = np.cos(frequency * offset), np.sin(frequency * offset)
        out[[one, one, other, other], [one, other, one, other]] = cos, sin, -sin, cos
    return out


def dense_heads(checkpoint: Checkpoint, offset: int | None) -> list[tuple[int, Any, Any]]:
    """Give each head's layer, OV and QK as dense matrices."""
    d, found = checkpoint.config.d_model, []
    for layer, block in enumerate(checkpoint.weights.blocks):
        attn, before = block.attn, norm_matrix(block.ln1, d)
        behind = norm_matrix(block.ln1_post, d) * block.scale
        for head in range(checkpoint.config.n_heads):
            shared = head // (len(attn.W_Q) // len(attn.W_K))
            W_Q, W_K = attn.W_Q[head], attn.W_K[shared]
            if attn.q_norm is not None and attn.k_norm is not None:
                W_Q, W_K = W_Q * attn.q_norm.weight[0], W_K * attn.k_norm.weight[0]
            rotary = checkpoint.config.rotary[layer]
            if rotary is not None and offset is not None:
                W_Q = W_Q @ rotation(rotary, W_Q.shape[1], offset)
            OV = before @ attn.W_V[shared] @ attn.W_O[head] @ behind
            found.append((layer, OV, before @ W_Q @ W_K.T @ before.T))
    return found


def dense_scores(checkpoint: Checkpoint, kind: str, offset: int | None = None) -> np.ndarray:
    d, norm = checkpoint.config.d_model, np.linalg.norm
    heads = dense_heads(checkpoint, offset)
    ln1 = checkpoint.weights.blocks[1].ln1
    centring = np.eye(d) - (np.ones((d, d)) / d if ln1 and ln1.kind == "layer" else 0)
    out = np.full((len(heads),) * 2, np.nan)
    for i, (early, OV, _) in enumerate(heads):
        for j, (late, OV2, QK) in enumerate(heads):
            if early < late:
                reads = {"Q": QK, "K": QK.T, "V": OV2}[kind]
                writes = OV @ centring
                out[i, j] = norm(writes @ reads) / norm(writes) / norm(reads)
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DESIGNS)
def test_scores_are_those_of_dense_matrices(name: str, kind: Any) -> None:
    checkpoint = model(name)
    offset = 2 if name == "rotary" and kind != "V" else None
    found = composition(checkpoint, kind, offset=offset, samples=0)
    expected = dense_scores(checkpoint, kind, offset)
    np.testing.assert_allclose(found.matrix, expected, rtol=1e-12)
    others = [dense_scores(checkpoint, each, offset) for each in KINDS if each != kind]
    assert all(np.nanmax(abs(found.matrix - other)) > 1e-3 for other in others)


def test_an_offset_matters_in_a_rotary_model() -> None:
    checkpoint = model("rotary")
    one, other = (composition(checkpoint, "Q", offset=n, samples=0).matrix for n in (1, 2))
    keys = [composition(checkpoint, "K", offset=n, samples=0).matrix for n in (1, 2)]
    assert np.nanmax(abs(one - other)) > 1e-3
    assert np.nanmax(abs(keys[0] - keys[1])) > 1e-3


def test_half_precision_is_cast_up_first() -> None:
    tensors = attention_tensors(np.random.default_rng(1), layers=2, d_model=7, d_head=2)
    half = {name: array.astype(np.float16) for name, array in tensors.items()}
    wide = {name: array.astype(np.float64) for name, array in half.items()}
    found = composition(from_tensors(half, 7, 2), "K", samples=0).matrix
    assert np.array_equal(
        found, composition(from_tensors(wide, 7, 2), "K", samples=0).matrix, equal_nan=True
    )


# --- hand-made values (PITFALLS 19) ------------------------------------------------------------


def attention_tensors(
    rng: np.random.Generator, *, layers: int, d_model: int, d_head: int, heads: int = 1
) -> dict[str, np.ndarray]:
    found = {
        "embed.W_E": rng.normal(size=(5, d_model)),
        "unembed.W_U": rng.normal(size=(d_model, 5)),
    }
    for layer in range(layers):
        at = f"blocks.{layer}.attn."
        for name in ("W_Q", "W_K", "W_V"):
            found[at + name] = rng.normal(size=(heads, d_model, d_head))
        found[at + "W_O"] = rng.normal(size=(heads, d_head, d_model))
    return found


def from_tensors(tensors: dict[str, np.ndarray], d_model: int, d_head: int, heads: int = 1) -> Any:
    layers = sum(name.endswith("W_Q") for name in tensors)
    config = {
        "n_layers": layers, "n_heads": heads, "d_model": d_model, "d_head": d_head, "d_vocab": 5,
        "n_ctx": 3, "attn_only": True, "positional_embedding_type": "rotary",
    }  # fmt: skip
    config["positional_embedding_type"] = "shortformer"
    tensors = tensors | {"pos_embed.W_pos": np.ones((3, d_model))}
    return pathexpand.from_state_dict(tensors, config).checkpoint


def by_hand(OV0: np.ndarray, QK1: np.ndarray) -> Checkpoint:
    """Make a model of two layers of one head with these matrices."""
    d = len(OV0)
    tensors = attention_tensors(np.random.default_rng(0), layers=2, d_model=d, d_head=d)
    tensors |= {"blocks.0.attn.W_V": OV0[None], "blocks.0.attn.W_O": np.eye(d)[None]}
    tensors |= {"blocks.1.attn.W_Q": QK1[None], "blocks.1.attn.W_K": np.eye(d)[None]}
    return from_tensors(tensors, d, d)


def score(checkpoint: Checkpoint, kind: Any) -> float:
    return composition_of(checkpoint, "L0H0", "L1H0", kind, samples=0).score


def test_unit_matrices_compose_by_hand() -> None:
    e = np.eye(3)
    checkpoint = by_hand(np.outer(e[0], e[1]), np.outer(e[1], e[2]))
    assert score(checkpoint, "Q") == pytest.approx(1)
    assert score(checkpoint, "K") == pytest.approx(0, abs=1e-15)
    turned = by_hand(np.outer(e[0], e[1]), np.outer(e[2], e[1]))
    assert score(turned, "Q") == pytest.approx(0, abs=1e-15)
    assert score(turned, "K") == pytest.approx(1)


def test_identities_of_four_compose_to_a_half() -> None:
    checkpoint = by_hand(np.eye(4), np.eye(4))
    assert score(checkpoint, "Q") == pytest.approx(0.5)
    assert score(checkpoint, "K") == pytest.approx(0.5)


def test_a_product_is_not_turned_around_inside_a_norm() -> None:
    """The published figure took ‖QK OV‖ for ‖OV QK‖: only their eigenvalues agree."""
    e = np.eye(3)
    OV, QK = np.outer(e[0], e[1]) + 0.5 * np.outer(e[2], e[0]), np.outer(e[1], e[2])
    found = score(by_hand(OV, QK), "Q")
    product, rotated = OV @ QK, QK @ OV
    size = np.linalg.norm(OV) * np.linalg.norm(QK)
    assert found == pytest.approx(np.linalg.norm(product) / size) == pytest.approx(0.894427191)
    assert np.linalg.norm(rotated) / size == pytest.approx(0.447213595)
    np.testing.assert_allclose(
        sorted(np.linalg.eigvals(product).real), sorted(np.linalg.eigvals(rotated).real), atol=1e-12
    )
    rng = np.random.default_rng(4)
    OV, QK = rng.normal(size=(2, 7, 7))
    found = score(by_hand(OV, QK), "Q")
    size = np.linalg.norm(OV) * np.linalg.norm(QK)
    assert abs(found - np.linalg.norm(QK @ OV) / size) > 1e-3


def test_a_head_of_zeros_composes_with_nothing() -> None:
    found = composition_of(by_hand(np.zeros((3, 3)), np.eye(3)), "L0H0", "L1H0", "Q", samples=50)
    assert (found.score, found.p, found.z) == (0.0, 1.0, None)


@pytest.mark.parametrize("size", [1e-170, 1e140])
def test_the_size_of_weights_does_not_matter(size: float) -> None:
    rng = np.random.default_rng(2)
    OV, QK = rng.normal(size=(2, 5, 5))
    for kind in ("Q", "K"):
        assert score(by_hand(OV * size, QK / size), kind) == pytest.approx(
            score(by_hand(OV, QK), kind), rel=1e-12
        )


# --- gauges ------------------------------------------------------------------------------------


def gauged(tensors: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Change each head's inner basis: V → VR, O → R⁻¹O; Q → QS, K → KS⁻ᵀ."""
    out = dict(tensors)
    for at in [name[:-3] for name in tensors if name.endswith("W_Q")]:
        k = tensors[at + "W_Q"].shape[-1]
        R, S = np.eye(k) + 0.3 * rng.normal(size=(2, k, k))
        out[at + "W_V"] = tensors[at + "W_V"] @ R
        out[at + "W_O"] = np.linalg.inv(R) @ tensors[at + "W_O"]
        out[at + "W_Q"] = tensors[at + "W_Q"] @ S
        out[at + "W_K"] = tensors[at + "W_K"] @ np.linalg.inv(S).T
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_the_basis_inside_a_head_does_not_matter(kind: Any) -> None:
    rng = np.random.default_rng(6)
    tensors = attention_tensors(rng, layers=3, d_model=11, d_head=3, heads=2)
    before = composition(from_tensors(tensors, 11, 3, 2), kind, samples=60)
    after = composition(from_tensors(gauged(tensors, rng), 11, 3, 2), kind, samples=60)
    np.testing.assert_allclose(after.matrix, before.matrix, rtol=1e-10)
    assert before.chance is not None and after.chance is not None
    np.testing.assert_allclose(after.chance.mean, before.chance.mean, rtol=1e-9)
    np.testing.assert_allclose(after.chance.p, before.chance.p)
    # Half a change of basis is none: the same check sees it.
    half = gauged(tensors, rng) | {n: a for n, a in tensors.items() if n.endswith(("W_O", "W_K"))}
    broken = composition(from_tensors(half, 11, 3, 2), kind, samples=0).matrix
    assert np.nanmax(abs(broken - before.matrix)) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_permuted_heads_permute_scores(kind: Any) -> None:
    tensors = attention_tensors(np.random.default_rng(7), layers=2, d_model=7, d_head=2, heads=3)
    order = [2, 0, 1]
    moved = {n: a[order] if n.startswith("blocks.1") else a for n, a in tensors.items()}
    before = composition(from_tensors(tensors, 7, 2, 3), kind, samples=0).matrix
    after = composition(from_tensors(moved, 7, 2, 3), kind, samples=0).matrix
    np.testing.assert_allclose(after[:3, 3:], before[:3, 3:][:, order], rtol=1e-12)


@pytest.mark.parametrize("name", ["layer norm, grouped", "rms, scaled blocks"])
def test_a_mean_that_nobody_reads_does_not_count(name: str) -> None:
    """What a head writes along (1, …, 1) is read behind an RMSNorm, and not behind a LayerNorm."""
    checkpoint = model(name)
    weights = checkpoint.weights
    blocks = tuple(
        replace(block, attn=replace(block.attn, W_O=block.attn.W_O + 5.0))
        for block in weights.blocks
    )
    shifted = Checkpoint(checkpoint.config, replace(weights, blocks=blocks))
    for kind in ("Q", "K"):
        before, after = (composition(c, kind, samples=0).matrix for c in (checkpoint, shifted))
        same = np.allclose(before, after, rtol=1e-9, equal_nan=True)
        assert same == (name == "layer norm, grouped")


# --- chance ------------------------------------------------------------------------------------


def rotated_scores(
    rng: np.random.Generator, A: np.ndarray, B: np.ndarray, count: int, basis: np.ndarray
) -> np.ndarray:
    """Score A R B for random rotations R of the space that `basis` (d, n) spans, made whole."""
    n, found = basis.shape[1], []
    for _ in range(count):
        Q, R = np.linalg.qr(rng.normal(size=(n, n)))
        turn = basis @ (Q * np.sign(np.diag(R))) @ basis.T
        found.append(np.linalg.norm(A @ turn @ B) / np.linalg.norm(A) / np.linalg.norm(B))
    return np.array(found)


@pytest.mark.parametrize("centred", [False, True])
def test_the_mean_square_by_chance_is_one_over_the_width(centred: bool) -> None:
    """E[score²] is 1/d whatever the spectra, and 1/(d − 1) where both sides have no mean."""
    d, rng = 5, np.random.default_rng(8)
    basis = np.linalg.svd(np.ones((1, d)))[2][1:].T if centred else np.eye(d)  # (d, n)
    off = basis @ basis.T
    A = np.diag([100.0, 1.0, 0.01]) @ rng.normal(size=(3, d)) @ off
    B = off @ rng.normal(size=(d, 2)) @ np.diag([1.0, 30.0])
    squares = rotated_scores(rng, A, B, 6000, basis) ** 2
    error = squares.std() / len(squares) ** 0.5
    assert abs(squares.mean() - 1 / (d - centred)) < 4 * error
    assert abs(squares.mean() - 1 / (d - (not centred))) > 10 * error


@pytest.mark.parametrize(
    ("rows", "columns"), [(3, 2), (2, 3), (4, 4), (7, 2), (2, 7), (7, 7), (1, 1)]
)
def test_corners_are_those_of_random_orthogonal_matrices(rows: int, columns: int) -> None:
    """Compare moments with those of Haar measure (Weingarten): n = 7."""
    n, count = 7, 20_000
    drawn = squared_corners(np.random.default_rng(9), n, rows, columns, count)
    wanted = {(0, 0, 0, 0): 3 / (n * (n + 2))}
    if columns > 1:
        wanted[0, 0, 0, 1] = 1 / (n * (n + 2))
    if rows > 1 and columns > 1:
        wanted[0, 0, rows - 1, columns - 1] = (n + 1) / (n * (n + 2) * (n - 1))
    for (i, j, k, m), value in wanted.items():
        products = drawn[:, i, j] * drawn[:, k, m]
        assert abs(products.mean() - value) < 5 * products.std() / count**0.5
    assert abs(drawn.mean() * n - 1) < 0.02
    if rows == n:
        np.testing.assert_allclose(drawn.sum(axis=1), 1, rtol=1e-12)


def test_chance_is_that_of_rotated_heads() -> None:
    """The sampled corners give what turning the real matrices gives, and a wrong width does not."""
    rng, d = np.random.default_rng(10), 6
    A = np.diag([3.0, 1.0]) @ rng.normal(size=(2, d))
    B = rng.normal(size=(d, 3)) @ np.diag([5.0, 1.0, 0.2])
    spectra = [np.linalg.svd(each, compute_uv=False) for each in (A, B)]
    spectra = [each[None] / np.linalg.norm(each) for each in spectra]
    direct = rotated_scores(rng, A, B, 4000, np.eye(d))
    threshold = np.array([[np.quantile(direct, 0.8)]])

    def chance(size: int) -> Chance:
        return spectrum_chance(threshold, *spectra, size=size, samples=4000, seed=1)

    found, error = chance(d), direct.std() * (2 / 4000) ** 0.5
    assert abs(found.mean[0, 0] - direct.mean()) < 5 * error
    assert abs(found.sd[0, 0] / direct.std() - 1) < 0.05
    assert abs(found.p[0, 0] - 0.2) < 5 * (0.2 * 0.8 * 2 / 4000) ** 0.5
    assert abs(chance(d - 1).mean[0, 0] - direct.mean()) > 7 * error


def test_p_values_of_random_heads_are_uniform_and_a_planted_pair_is_found() -> None:
    rng = np.random.default_rng(11)
    tensors = attention_tensors(rng, layers=2, d_model=23, d_head=3, heads=13)
    plain = composition(from_tensors(tensors, 23, 3, 13), "K", samples=400)
    assert plain.chance is not None
    p = plain.chance.p[:13, 13:].ravel()
    assert abs(p.mean() - 0.5) < 0.1
    assert 0.1 < (p < 0.25).mean() < 0.4
    # L1H4 reads with its keys along what L0H2 writes.
    keys = tensors["blocks.1.attn.W_K"].copy()
    keys[4] = tensors["blocks.0.attn.W_O"][2].T
    planted = composition(from_tensors(tensors | {"blocks.1.attn.W_K": keys}, 23, 3, 13), "K")
    best = planted.ranked(1)[0]
    assert (best.earlier.label, best.later.label, best.p) == ("L0H2", "L1H4", 1 / 1001)
    assert planted.ranked(1, by="z")[0].later.label == "L1H4"


def test_no_angle_no_chance() -> None:
    """In one dimension every score is 1, as is chance: rounding must not tell them apart."""
    for scores in (np.ones((1, 1)), np.full((1, 1), 1 + 4e-16)):
        found = spectrum_chance(scores, np.ones((1, 1)), np.ones((1, 1)), size=1, samples=9, seed=0)
        assert found.p[0, 0] == 1
    pair = composition_of(by_hand(np.array([[3.0]]), np.array([[0.7]])), "L0H0", "L1H0", "Q")
    assert pair.score == pytest.approx(1)
    assert (pair.p, pair.z) == (1.0, None)


def test_the_random_baseline_is_near_the_analytic_one() -> None:
    assert random_score(96, 8) * 96**0.5 == pytest.approx(1, abs=0.03)
    assert random_score(12, 3, centred=True) * 11**0.5 == pytest.approx(1, abs=0.1)
    assert random_score(96, 8, seed=1) != random_score(96, 8, seed=2)


def test_readers_that_centre_meet_in_one_dimension_less() -> None:
    assert composition(model("layer norm, grouped"), "Q", samples=0).width == 10
    assert composition(model("rms, scaled blocks"), "Q", samples=0).width == 11
    assert composition(model("post norms alone"), "Q", samples=0).analytic == 11**-0.5


# --- one pair, tables, refusals ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["layer norm, grouped", "rotary"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_pair_is_that_of_the_matrix(name: str, kind: Any) -> None:
    checkpoint = model(name)
    offset = 1 if name == "rotary" and kind != "V" else None
    whole = composition(checkpoint, kind, offset=offset, samples=70, seed=5)
    one = composition_of(checkpoint, "L0H3", Head(1, 2), kind, offset=offset, samples=70, seed=5)
    listed = whole.pair("L0H3", "L1H2")
    assert one.score == pytest.approx(listed.score, rel=1e-12)
    assert one.chance == pytest.approx(listed.chance, rel=0.2)
    assert listed in whole.ranked()


def test_the_embedded_model_composes_by_keys() -> None:
    checkpoint = pathexpand.load("two-layer").checkpoint
    found = {kind: composition(checkpoint, kind, samples=200) for kind in KINDS}  # type: ignore[arg-type]
    best = found["K"].ranked(1)[0]
    assert (best.earlier.label, best.later.label) == ("L0H3", "L1H0")
    assert best.score > 1.5 * found["K"].analytic
    assert best.p == 1 / 201
    assert best.score > max(found[kind].ranked(1)[0].score for kind in "QV")
    assert found["Q"].pair("L0H3", "L1H0").score < found["Q"].analytic
    table = composition_table(list(found.values()), top=3)
    assert table[0]["kind"] == "K" and len(table) == 3
    assert AnalysisTable.from_json(table.to_json()) == table
    assert table.column("score") == tuple(sorted(table.column("score"), reverse=True))


def test_tables_fit_and_say_what_was_left_out() -> None:
    table = composition(model("layer norm, grouped"), "V", samples=20).table(top=4)
    assert len(table) == 4 and "sd" in [field.name for field in table.fields]
    assert any("mean" in claim for claim in table.claims)
    assert any(claim.startswith("Norms") for claim in table.claims)
    assert max(map(len, table.to_text(80).splitlines())) <= 80
    bare = composition(model("layer norm, grouped"), "V", samples=0).table(top=None)
    assert [field.name for field in bare.fields] == ["earlier", "later", "score"]
    assert len(bare) == 3 * 16
    pair = composition_of(model("layer norm, grouped"), "L0H0", "L2H3", "K", samples=20)
    assert pair_table("random", [pair])[0]["later"] == "L2H3"


def test_a_score_cap_is_told() -> None:
    capped = random_transformer(Design(score_cap=5.0), seed=1).checkpoint
    claims = composition(capped, "Q", samples=0).claims
    assert any("soft cap" in claim for claim in claims)
    assert not any("soft cap" in claim for claim in composition(capped, "V", samples=0).claims)


def refused(call: Any) -> str:
    with pytest.raises(PathExpandError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_refusals_are_one_clear_line() -> None:
    two = pathexpand.load("two-layer").checkpoint
    rotary = model("rotary")
    found = composition(two, "Q", samples=0)
    for pair in (("L0H1", "L0H2"), ("L1H0", "L0H3"), ("L1H1", "L1H1")):
        assert "an earlier layer's head" in refused(partial(composition_of, two, *pair, "Q"))
        assert "an earlier layer's head" in refused(partial(found.pair, *pair))
    assert "L7H0" in refused(lambda: composition_of(two, "L7H0", "L1H0", "Q"))
    assert '"Q", "K" or "V"' in refused(lambda: composition(two, "QK"))  # type: ignore[arg-type]
    assert "an offset" in refused(lambda: composition(rotary, "Q"))
    assert "an offset" in refused(lambda: composition(rotary, "K", offset=99))
    assert "no query and key" in refused(lambda: composition(rotary, "V", offset=1))
    assert "no rotary" in refused(lambda: composition(two, "K", offset=1))
    assert "two layers" in refused(
        lambda: composition(pathexpand.load("one-layer").checkpoint, "Q")
    )
    assert "samples" in refused(lambda: composition(two, "Q", samples=-1))
    assert "z" in refused(lambda: composition(two, "Q", samples=0).ranked(by="z"))
    assert "top" in refused(lambda: composition(two, "Q", samples=0).table(top=-1))


@pytest.mark.parametrize("norm", ["ln1_after", "ln2_after"])
def test_a_norm_of_the_stream_is_refused_by_name(norm: str) -> None:
    checkpoint = random_transformer(Design(norms=(norm,)), seed=1).checkpoint
    with pytest.raises(ModelError, match="passes a norm in layer 0"):
        composition(checkpoint, "V")


def test_a_wrong_value_cannot_be_built() -> None:
    heads = (Head(0, 0), Head(1, 0))
    good = np.array([[np.nan, 0.5], [np.nan, np.nan]])
    assert Composition("m", "Q", heads, good, 3).ranked()[0].score == 0.5
    for matrix in (good.T, np.zeros((2, 2)), good[:1]):
        with pytest.raises(PathExpandError):
            Composition("m", "Q", heads, matrix, 3)
    with pytest.raises(PathExpandError):
        Composition("m", "X", heads, good, 3)  # type: ignore[arg-type]
    with pytest.raises(PathExpandError):
        Chance(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 2)), 3)


def test_seeds_settle_everything_random() -> None:
    two = model("layer norm, grouped")
    one, same, other = (composition(two, "Q", samples=30, seed=s) for s in (1, 1, 2))
    assert one.table() == same.table()
    assert one.table() != other.table()
