from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.circuits.composition import composition
from pathexpand.circuits.copying import copying
from pathexpand.circuits.induction import (
    InductionPlane,
    induction_plane,
    matching_scores,
    previous_by_position,
)
from pathexpand.circuits.wiring import embedding, head_weights, turned
from pathexpand.errors import ModelError, PathExpandError
from pathexpand.laws.design import Design, random_transformer
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import forward
from pathexpand.table import AnalysisTable

SQUARE: dict[str, Any] = {"d_vocab": 13, "d_vocab_out": 13, "d_model": 7, "d_head": 3}
DESIGNS = {
    "layer norm, grouped": Design(n_layers=3, **SQUARE),
    "rms, embedding norm": Design(norm="rms", embed_norms=1, positions="shortformer", **SQUARE),
    "rotary": Design(positions="rotary", **SQUARE | {"d_head": 4}),
}


def model(name: str) -> Checkpoint:
    return random_transformer(DESIGNS[name], seed=5).checkpoint


def positivity(matrix: np.ndarray) -> float:
    values = np.linalg.eigvals(matrix)
    return float(values.real.sum() / abs(values).sum())


@pytest.mark.parametrize("name", DESIGNS)
def test_matching_is_that_of_the_whole_term(name: str) -> None:
    checkpoint = model(name)
    offset = 2 if name == "rotary" else None
    found, W_E = matching_scores(checkpoint, offset=offset), embedding(checkpoint)
    wrong = 0
    for one, other in np.argwhere(np.isfinite(found)):
        early, late = divmod(one, 4), divmod(other, 4)
        first, last = (head_weights(checkpoint, int(each[0])) for each in (early, late))
        W_Q = turned(checkpoint, int(late[0]), last.W_Q[late[1]], offset)
        QK = W_Q @ last.W_K[late[1]].T
        OV = first.W_V[early[1]] @ first.W_O[early[1]]
        assert found[one, other] == pytest.approx(positivity(W_E @ QK @ OV.T @ W_E.T), abs=1e-6)
        # Without the transpose it would be another term: queries that see through the head.
        wrong += abs(found[one, other] - positivity(W_E @ QK @ OV @ W_E.T)) > 1e-3
    assert wrong > 10
    layers = np.arange(len(found)) // 4
    assert np.array_equal(np.isfinite(found), layers[:, None] < layers)


@pytest.mark.parametrize("name", ["layer norm, grouped", "rms, embedding norm"])
def test_previous_by_position_is_a_run_on_positions_alone(name: str) -> None:
    """Run the model with embeddings of zeros: each layer reads positions alone in layer 0."""
    checkpoint = model(name)
    weights = checkpoint.weights
    blank = replace(weights.embed, stored=np.zeros_like(weights.embed.stored), _whole={})
    bare = replace(weights, embed=blank, types=None)
    if name.startswith("rms"):  # shortformer: the stream holds nothing, the norms see zeros
        bare = replace(bare, embed_norms=())
    ids = np.zeros((1, checkpoint.config.n_ctx), dtype=np.int64)
    run = forward(bare, checkpoint.config, ids, np.ones(ids.shape, dtype=bool))
    found = previous_by_position(checkpoint)
    assert found is not None and found.shape == (checkpoint.config.n_layers * 4,)
    wanted = np.diagonal(run.patterns[0][0], -1, axis1=1, axis2=2).mean(axis=-1)
    np.testing.assert_allclose(found[:4], wanted, rtol=1e-10)
    assert np.ptp(found) > 0.01


def test_without_learned_positions_there_is_no_previous_score() -> None:
    assert previous_by_position(model("rotary")) is None
    plane = induction_plane(model("rotary"), offset=1)
    assert plane.pairs[0].previous is None
    assert any("No learned positions" in claim for claim in plane.claims)
    assert plane.table()[0]["previous"] is None


def test_a_plane_holds_what_the_others_give() -> None:
    checkpoint = model("layer norm, grouped")
    found = induction_plane(checkpoint)
    assert len(found.pairs) == 3 * 16
    copies, keys = copying(checkpoint), composition(checkpoint, "K", samples=0)
    for pair in found.pairs:
        assert pair.copying == pytest.approx(copies.of(pair.later))
        assert pair.composed == pytest.approx(keys.pair(pair.earlier, pair.later).score)
    assert found.points.shape == (48, 2)
    assert found.points[0].tolist() == [found.pairs[0].copying, found.pairs[0].matching]
    assert found.chance == keys.analytic
    table = found.table(top=4)
    assert len(table) == 4 and AnalysisTable.from_json(table.to_json()) == table
    assert max(map(len, table.to_text(80).splitlines())) <= 80


def test_the_embedded_model_shows_its_induction_circuit_first() -> None:
    found = induction_plane(pathexpand.load("two-layer").checkpoint)
    best, second = found.pairs[:2]
    assert (best.earlier.label, best.later.label) == ("L0H3", "L1H0")
    assert min(best.copying, best.matching) > 0.99
    assert best.previous is not None and best.previous > 0.9
    assert best.composed > 1.5 * found.chance
    assert best.strength > 2 * second.strength


@pytest.mark.shared_models
def test_a_trained_induction_circuit_and_a_broken_one(shared_models: Path) -> None:
    good, broken = (
        induction_plane(
            pathexpand.load(shared_models / "induction-2l1h" / f"{name}.safetensors").checkpoint
        ).pairs[0]
        for name in ("trained", "broken-circuit")
    )
    assert min(good.copying, good.matching) > 0.99
    assert good.previous is not None and good.previous > 0.7
    assert good.composed > 0.4
    # Of the broken one the OV circuit no longer copies, and layer 0 hardly looks back.
    assert broken.copying < 0.3
    assert broken.previous is not None and broken.previous < 0.4
    assert broken.strength < good.strength / 5


@pytest.mark.parametrize("fault", ["no copying", "no previous token", "no composition"])
def test_a_circuit_without_one_of_its_parts_is_no_induction(fault: str) -> None:
    checkpoint = pathexpand.load("two-layer").checkpoint
    weights = checkpoint.weights
    first, last = (weights.block(layer) for layer in (0, 1))
    if fault == "no copying":
        last = replace(last, attn=replace(last.attn, W_V=-last.attn.W_V))
    elif fault == "no previous token":
        first = replace(first, attn=replace(first.attn, W_Q=0 * first.attn.W_Q))
    else:
        last = replace(last, attn=replace(last.attn, W_K=np.roll(last.attn.W_K, 1, axis=1)))
    broken = Checkpoint(checkpoint.config, replace(weights, blocks=(first, last)))
    assert induction_plane(checkpoint).pairs[0].strength > 0.4
    assert induction_plane(broken).pairs[0].strength < 0.05


def test_the_basis_inside_heads_does_not_matter() -> None:
    checkpoint = model("layer norm, grouped")
    rng = np.random.default_rng(3)
    R, S = np.eye(3) + 0.3 * rng.normal(size=(2, 3, 3))
    blocks = []
    for block in checkpoint.weights.blocks:
        attn = block.attn
        changed = {
            "W_V": attn.W_V @ R,
            "W_O": np.linalg.inv(R) @ attn.W_O,
            "W_Q": attn.W_Q @ S,
            "W_K": attn.W_K @ np.linalg.inv(S).T,
            "b_Q": None if attn.b_Q is None else attn.b_Q @ S,
            "b_K": None if attn.b_K is None else attn.b_K @ np.linalg.inv(S).T,
        }
        blocks.append(replace(block, attn=replace(attn, **changed)))
    moved = Checkpoint(checkpoint.config, replace(checkpoint.weights, blocks=tuple(blocks)))
    one, other = induction_plane(checkpoint), induction_plane(moved)
    for before, after in zip(one.pairs, other.pairs, strict=True):
        assert (before.earlier, before.later) == (after.earlier, after.later)
        for name in ("copying", "matching", "composed", "previous", "strength"):
            assert getattr(after, name) == pytest.approx(getattr(before, name), abs=1e-8)


def test_refusals_are_one_clear_line() -> None:
    both = random_transformer(Design(direction="bidirectional", **SQUARE), seed=1).checkpoint
    cases: list[tuple[Any, str]] = [
        (lambda: induction_plane(both), "sees both ways"),
        (lambda: induction_plane(model("rotary")), "an offset"),
        (lambda: induction_plane(model("layer norm, grouped"), offset=1), "no rotary"),
        (lambda: induction_plane(pathexpand.load("one-layer").checkpoint), "two layers"),
        (lambda: induction_plane(random_transformer(Design(), seed=1).checkpoint), "vocabulary"),
    ]
    for call, words in cases:
        with pytest.raises(PathExpandError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="passes a norm"):
        norms = Design(norms=("ln1_after",), **SQUARE)
        induction_plane(random_transformer(norms, seed=1).checkpoint)


def test_pairs_out_of_order_cannot_be_built() -> None:
    found = induction_plane(model("layer norm, grouped"))
    assert found.pairs[0].strength > found.pairs[-1].strength
    with pytest.raises(PathExpandError):
        InductionPlane("m", found.pairs[::-1], 0.1)
