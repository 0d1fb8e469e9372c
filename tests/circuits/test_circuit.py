"""QK and OV circuits against dense products, scores of the model, and other splits of its heads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.circuits.circuit import Circuit, eigenvalue_score, ov, qk
from pathexpand.circuits.overlap import deletions_in_weights, overlap
from pathexpand.circuits.skip_trigrams import skip_trigrams
from pathexpand.circuits.wiring import embedding, head_weights, unembedding
from pathexpand.errors import ModelError, PathExpandError, PromptError
from pathexpand.lowrank import Factored
from pathexpand.model.checkpoint import Checkpoint, read_checkpoint
from pathexpand.model.forward import attention_scores
from pathexpand.table.analysis_table import AnalysisTable
from tests.api.models import small

FAMILIES = Path(__file__).parents[1] / "reference" / "families"


def family(name: str) -> Checkpoint:
    return read_checkpoint(FAMILIES / name)


def regauged(checkpoint: Checkpoint, seed: int = 0) -> Checkpoint:
    """Split every head another way that is the same head."""
    rng, blocks = np.random.default_rng(seed), []
    for block in checkpoint.weights.blocks:
        attn = block.attn
        size = attn.W_Q.shape[2]
        R, S = (rng.normal(size=(len(attn.W_Q), size, size)) for _ in range(2))
        new = replace(
            attn,
            W_V=attn.W_V @ R,
            W_O=np.linalg.inv(R) @ attn.W_O,
            W_Q=attn.W_Q @ S,
            W_K=attn.W_K @ np.swapaxes(np.linalg.inv(S), 1, 2),
        )
        blocks.append(replace(block, attn=new))
    return replace(checkpoint, weights=replace(checkpoint.weights, blocks=tuple(blocks)))


def test_circuits_are_the_dense_products() -> None:
    checkpoint = small().checkpoint
    W_E, W_U = embedding(checkpoint), unembedding(checkpoint)
    one, two = head_weights(checkpoint, 0), head_weights(checkpoint, 1)
    OV1, OV2 = one.W_V[1] @ one.W_O[1], two.W_V[2] @ two.W_O[2]
    QK2 = two.W_Q[2] @ two.W_K[2].T
    scale = checkpoint.config.attn_scale[1]
    for found, dense in (
        (ov(checkpoint, "L0H1"), W_E @ OV1 @ W_U),
        (ov(checkpoint, "L0H1 > L1H2"), W_E @ OV1 @ OV2 @ W_U),
        (ov(checkpoint, ["L0H1", "L1H2"]), W_E @ OV1 @ OV2 @ W_U),
        (qk(checkpoint, "L1H2"), W_E @ QK2 @ W_E.T / scale),
        (qk(checkpoint, "L1H2", scaled=False), W_E @ QK2 @ W_E.T),
        (qk(checkpoint, "L1H2", query="L0H1"), W_E @ OV1 @ QK2 @ W_E.T / scale),
        (qk(checkpoint, "L1H2", key="L0H1"), W_E @ QK2 @ OV1.T @ W_E.T / scale),
    ):
        np.testing.assert_allclose(found.matrix.dense(), dense, rtol=1e-9, atol=1e-9)
        assert found.matrix.rank_bound == 5
        assert found.entry(3, 11) == pytest.approx(dense[3, 11])
        np.testing.assert_allclose(found.row(3), dense[3], atol=1e-9)
        np.testing.assert_allclose(found.column(11), dense[:, 11], atol=1e-9)
        np.testing.assert_allclose(found.dense_block([5, 2], [7]), dense[[5, 2]][:, [7]], atol=1e-9)
    # the key goes through OV and then QKᵀ: the other side is another matrix
    wrong = W_E @ OV1 @ QK2 @ W_E.T / scale
    assert not np.allclose(qk(checkpoint, "L1H2", key="L0H1").matrix.dense(), wrong)


@pytest.mark.parametrize("name", ["llama", "mistral", "llama-longrope", "phi3"])
def test_qk_is_the_score_of_the_model_at_its_offset(name: str) -> None:
    checkpoint = family(name)
    config, block = checkpoint.config, checkpoint.weights.block(1)
    assert block.ln1 is not None
    rows = checkpoint.weights.W_E * block.ln1.weight  # RMS norms, scales left out
    offset = 1
    pair = rows[[4, 9]]  # query 4, key 9
    dense = attention_scores(block.attn, pair[None], config.rotary[1], np.array([[offset, 0]]))
    for head in range(config.n_heads):
        found = qk(checkpoint, f"L1H{head}", offset=offset).entry(4, 9)
        assert found == pytest.approx(dense[0, head, 0, 1] / config.attn_scale[1], rel=1e-10)


def test_top_directions_and_rates_agree_with_the_dense_matrix() -> None:
    circuit = ov(small().checkpoint, "L0H1")
    dense = circuit.matrix.dense()
    found = circuit.top(6, by="size")
    order = np.argsort(-abs(dense).ravel(), kind="stable")[:6]
    assert (found.rows * 13 + found.columns).tolist() == order.tolist()
    assert circuit.top(99, rows=[4]).columns.tolist() == np.argsort(-dense[4]).tolist()
    U, S, Vt = np.linalg.svd(dense)
    directions = circuit.directions(3, tokens=4)
    np.testing.assert_allclose(directions.values, S[:3], rtol=1e-10)
    np.testing.assert_allclose(directions.shares, S[:3] ** 2 / (S**2).sum(), rtol=1e-10)
    for n in range(3):
        left, right = U[:, n], Vt[n]
        if left[abs(left).argmax()] < 0:
            left, right = -left, -right
        assert directions.row_tokens[n].tolist() == np.argsort(-left)[:4].tolist()
        assert directions.column_tokens[n].tolist() == np.argsort(-right)[:4].tolist()
        assert directions.column_others[n].tolist() == np.argsort(right)[:4].tolist()
    values = np.linalg.eigvals(dense)
    nonzero = values[np.argsort(-abs(values))][:5]
    assert circuit.copying_score() == pytest.approx(nonzero.real.sum() / abs(nonzero).sum())
    assert circuit.positive_diagonal() == np.mean(np.diag(dense) > 0)
    above = np.diag(dense) > dense.mean(axis=1)
    assert circuit.positive_diagonal(centred=True) == np.mean(above)
    for k in (1, 4, 13):
        hits = [token in np.argsort(-dense[token], kind="stable")[:k] for token in range(13)]
        assert circuit.self_in_top(k) == np.mean(hits)
        assert circuit.self_in_top(k, tokens=[3, 8]) == np.mean([hits[3], hits[8]])


def test_own_tokens_among_equals_go_by_id() -> None:
    flat = Circuit(small().checkpoint, "OV", "flat", Factored(np.ones((13, 1)), np.ones((1, 13))))
    assert flat.self_in_top(4) == 4 / 13


def numbers(checkpoint: Checkpoint) -> dict[str, Any]:
    """Give every number that a circuit has."""
    circuits = {
        "ov": ov(checkpoint, "L0H1"),
        "virtual": ov(checkpoint, "L0H1 > L1H2"),
        "qk": qk(checkpoint, "L1H2"),
        "key": qk(checkpoint, "L1H2", key="L0H0"),
    }
    found: dict[str, Any] = {}
    for name, each in circuits.items():
        top = each.top(7, by="size")
        found[name] = top.values
        found[f"{name} places"] = top.rows * 13 + top.columns
        found[f"{name} values"] = each.directions(4).values
        found[f"{name} tokens"] = each.directions(2).column_tokens
        found[f"{name} spectrum"] = abs(each.eigenvalues())
        found[f"{name} rates"] = [
            each.copying_score(),
            each.positive_diagonal(),
            each.self_in_top(3),
        ]
    meeting = overlap(checkpoint, "L0H1", "L1H2.k")
    found["overlap"] = [meeting.captured, meeting.chance, *meeting.cosines]
    deleted = deletions_in_weights(checkpoint).found
    found["deletion"] = [(each.cosine, each.share) for each in deleted]
    trigrams = skip_trigrams(checkpoint, "L0H1").top(5).found
    found["trigrams"] = [(each.effect, each.attention, each.logit) for each in trigrams]
    return found


def test_another_split_of_the_heads_gives_the_same_numbers() -> None:
    checkpoint = small().checkpoint
    before, after = numbers(checkpoint), numbers(regauged(checkpoint))
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-7, atol=1e-9, err_msg=name)


def test_a_split_that_is_another_head_is_seen() -> None:
    checkpoint = small().checkpoint
    blocks = list(checkpoint.weights.blocks)
    attn = blocks[0].attn
    blocks[0] = replace(blocks[0], attn=replace(attn, W_V=attn.W_V[:, :, ::-1]))
    broken = replace(checkpoint, weights=replace(checkpoint.weights, blocks=tuple(blocks)))
    assert not np.allclose(numbers(broken)["ov"], numbers(checkpoint)["ov"])


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda c: ov(c, "L0H1 > L0H2"), "rising layers"),
        (lambda c: ov(c, "L1H1 > L0H2"), "rising layers"),
        (lambda c: ov(c, ""), "wanted a label such as"),
        (lambda c: ov(c, "L0H1 > "), "head"),
        (lambda c: ov(c, "L0H3"), "head L0H3"),
        (lambda c: qk(c, "L0H1", query="L0H0"), "rising layers"),
        (lambda c: qk(c, "L0H1", offset=1), "no rotary positions"),
        (lambda c: ov(c, "L0H1").entry(13, 0), "an id from 0 to 12"),
        (lambda c: ov(c, "L0H1").entry(True, 0), "token"),
        (lambda c: ov(c, "L0H1").top(0), "top"),
        (lambda c: ov(c, "L0H1").directions(0), "directions"),
        (lambda c: ov(c, "L0H1").self_in_top(0), "top"),
        (lambda c: ov(c, "L0H1").top(1, rows=[13]), "rows"),
    ],
)
def test_what_cannot_be_is_refused(ask: Any, says: str) -> None:
    with pytest.raises(PathExpandError, match=says) as caught:
        ask(small().checkpoint)
    assert "\n" not in str(caught.value)


def test_wrong_circuits_cannot_be_built() -> None:
    checkpoint = small().checkpoint
    with pytest.raises(PathExpandError, match="a matrix"):
        Circuit(checkpoint, "OV", "x", Factored(np.ones((3, 1)), np.ones((1, 13))))
    with pytest.raises(PathExpandError, match="QK or OV"):
        Circuit(checkpoint, "VO", "x", Factored(np.ones((13, 1)), np.ones((1, 13))))  # type: ignore[arg-type]


def test_masked_heads_and_norms_of_the_stream_are_refused() -> None:
    with pytest.raises(ModelError, match="passes a norm"):
        ov(family("opt-post-norm"), "L0H0")
    with pytest.raises(ModelError):
        ov(family("bert"), "L1H0")
    with pytest.raises(ModelError, match="passes a norm"):
        qk(family("bert"), "L1H0")
    qk(family("bert"), "L0H0")  # nothing is crossed


def test_claims_say_what_is_left_out() -> None:
    capped = " ".join(qk(family("gemma2"), "L0H1", offset=1).claims)
    assert "before the cap" in capped and "scales" in capped
    plain = " ".join(qk(read_checkpoint("two-layer"), "L1H1").claims)
    assert "cap" not in plain.replace("capital", "") and "Norms" not in plain
    assert "biases" in " ".join(qk(small().checkpoint, "L1H1").claims)
    assert "mean" in " ".join(ov(read_checkpoint("one-layer"), "L0H1", centred=True).claims)
    assert "not divided" in " ".join(qk(small().checkpoint, "L1H1", scaled=False).claims)


def test_centred_rows_have_mean_zero() -> None:
    circuit = ov(small().checkpoint, "L0H1", centred=True)
    np.testing.assert_allclose(circuit.matrix.dense().mean(axis=1), 0, atol=1e-12)


def test_tables_hold_what_was_found_and_go_to_json_and_back() -> None:
    circuit = ov(read_checkpoint("two-layer"), "L1H2")
    table = circuit.table(4, own_in_top=10)
    assert table.column("logit") == tuple(circuit.top(4).values.tolist())
    rates = {each.label: each.value for each in table.closing}
    assert rates["copying score"] == circuit.copying_score()
    assert rates["own token in top 10"] == circuit.self_in_top(10)
    for each in (table, circuit.directions(2).table()):
        assert AnalysisTable.from_json(each.to_json()) == each
        assert max(map(len, each.to_text(80).splitlines())) <= 80


def test_tokens_are_read_from_text() -> None:
    circuit = ov(read_checkpoint("two-layer"), "L1H2")
    assert circuit.entry(" the", "id:7") == circuit.entry(266, 7)
    with pytest.raises(PromptError, match="one token"):
        circuit.row("not one token")


def test_the_embedded_induction_head_copies_and_matches_through_the_previous_token_head() -> None:
    checkpoint = pathexpand.load("two-layer").checkpoint
    copying = ov(checkpoint, "L1H2").copying_score()
    through = qk(checkpoint, "L1H2", key="L0H3").copying_score()
    directly = qk(checkpoint, "L1H2").copying_score()
    assert copying is not None and through is not None and directly is not None
    assert copying > 0.8 and through > 0.9 > directly


def test_no_spectrum_has_no_score() -> None:
    assert eigenvalue_score(np.zeros(3, dtype=complex)) is None
