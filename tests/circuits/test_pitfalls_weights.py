"""Faults people have met with circuits from weights, with the right values (PITFALLS.md)."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pathexpand.circuits.circuit import ov, qk
from pathexpand.circuits.skip_trigrams import skip_trigrams
from pathexpand.errors import CompositionError, PathExpandError
from pathexpand.lowrank import Factored
from pathexpand.model.checkpoint import Checkpoint, read_checkpoint
from pathexpand.model.config import Config
from pathexpand.model.parts import Attention, Block
from pathexpand.model.rotary import Rotary
from pathexpand.model.rows import Rows
from pathexpand.model.weights import Weights


def one_head(W_V: Any, W_O: Any, *, embed: Any = None, rotary: Any = (), **qk: Any) -> Checkpoint:
    """Make one layer of one head over a vocabulary that the stream holds as it is."""
    W_V, W_O = np.array(W_V, dtype=float), np.array(W_O, dtype=float)
    d_model, d_head = W_V.shape
    W_E = np.eye(d_model) if embed is None else np.asarray(embed, dtype=float)
    zeros = np.zeros((d_model, d_head))
    attn = Attention(
        np.asarray(qk.get("W_Q", zeros), dtype=float)[None],
        np.asarray(qk.get("W_K", zeros), dtype=float)[None],
        W_V[None],
        W_O[None],
    )
    config = Config(
        n_layers=1,
        n_heads=1,
        d_model=d_model,
        d_head=d_head,
        d_vocab=len(W_E),
        n_ctx=11,
        rotary=rotary,
        attn_scale=(1.0,),
        positional_embedding_type="none",
    )
    return Checkpoint(config, Weights(Rows("W_E", W_E), Rows("W_U", W_E), (Block(attn),)))


def test_12_the_qk_circuit_of_a_rotary_model_is_one_for_each_offset() -> None:
    eye = np.eye(2)
    rotary = (Rotary(width=2, pairs="half", frequencies=(1.0,)),)
    checkpoint = one_head(eye, eye, rotary=rotary, W_Q=eye, W_K=eye)
    assert qk(checkpoint, "L0H0", offset=1).entry(0, 0) == pytest.approx(0.5403, abs=5e-5)
    assert qk(checkpoint, "L0H0", offset=0).entry(0, 0) == 1.0
    # query − key, not key − query: the sine's sign
    assert qk(checkpoint, "L0H0", offset=1).entry(0, 1) == pytest.approx(np.sin(1))
    assert qk(checkpoint, "L0H0", offset=1).entry(1, 0) == pytest.approx(-np.sin(1))
    with pytest.raises(PathExpandError, match="rotary positions: wanted an offset"):
        qk(checkpoint, "L0H0")


@pytest.mark.parametrize(
    ("W_V", "W_O", "score"),
    [
        ([[1], [2]], [[3, 4]], 1.0),
        ([[1, 0], [0, 1]], [[0, 1], [-1, 0]], 0.0),
        ([[1, 0], [0, 1]], [[1, -(3**0.5)], [3**0.5, 1]], 0.5),
        ([[1], [2]], [[-3, -4]], -1.0),
    ],
)
def test_20_copying_scores(W_V: Any, W_O: Any, score: float) -> None:
    assert ov(one_head(W_V, W_O), "L0H0").copying_score() == pytest.approx(score, abs=1e-12)


def test_20_a_head_that_writes_nothing_has_no_score() -> None:
    assert ov(one_head([[1], [2]], [[0, 0]]), "L0H0").copying_score() is None


def test_20_spectra_come_from_the_product_of_a_heads_width() -> None:
    rng = np.random.default_rng(8)
    checkpoint = one_head(
        rng.normal(size=(7, 3)), rng.normal(size=(3, 7)), embed=rng.normal(size=(31, 7))
    )
    circuit = ov(checkpoint, "L0H0")
    values = circuit.eigenvalues()
    assert values.shape == (3,)
    dense = np.linalg.eigvals(circuit.matrix.dense())
    dense = dense[np.argsort(-abs(dense))]
    np.testing.assert_allclose(np.sort(abs(values))[::-1], abs(dense[:3]), rtol=1e-9)
    # turned round, the two factors share the spectrum and not the norm
    turned = Factored(circuit.matrix.right, circuit.matrix.left)
    np.testing.assert_allclose(abs(turned.eigenvalues()), abs(values), rtol=1e-9)
    assert turned.norm() != pytest.approx(circuit.matrix.norm(), rel=0.1)


def test_20_half_precision_is_cast_up_first() -> None:
    family = Path(__file__).parents[1] / "reference" / "families" / "gpt2-float16"
    checkpoint = read_checkpoint(family)
    assert checkpoint.weights.embed.stored.dtype == np.float16
    circuit = ov(checkpoint, "L0H1")
    attn, norm = checkpoint.weights.block(0).attn, checkpoint.weights.block(0).ln1
    final = checkpoint.weights.final_norm
    assert norm is not None and final is not None
    width = checkpoint.config.d_model
    centre = np.eye(width) - 1 / width
    embed = checkpoint.weights.embed.stored.astype(np.float64)
    left = embed @ centre @ np.diag(norm.weight) @ attn.W_V[1]
    right = attn.W_O[1] @ centre @ np.diag(final.weight) @ embed.T
    values = np.linalg.eigvals(right @ left)
    score = values.real.sum() / abs(values).sum()
    assert circuit.copying_score() == pytest.approx(score, rel=1e-10)


def test_21_low_rank_shapes() -> None:
    rng = np.random.default_rng(1)
    product = Factored(rng.normal(size=(2, 3)), rng.normal(size=(3, 4)))
    assert (np.ones(2) @ product).shape == (4,)
    with pytest.raises(CompositionError):
        np.ones(4) @ product
    narrow = one_head(rng.normal(size=(5, 1)), rng.normal(size=(1, 5)))  # d_head 1, one head
    circuit = ov(narrow, "L0H0")
    assert circuit.row(3).shape == (5,) and circuit.matrix.rank_bound == 1
    assert circuit.directions(4).values.shape == (1,)
    assert len(circuit.table(99)) == 25


def test_24_nothing_as_large_as_the_vocabulary_squared() -> None:
    rng, count = np.random.default_rng(2), 9001
    checkpoint = one_head(
        rng.normal(size=(7, 3)),
        rng.normal(size=(3, 7)),
        embed=rng.normal(size=(count, 7)),
        W_Q=rng.normal(size=(7, 3)),
        W_K=rng.normal(size=(7, 3)),
    )
    tracemalloc.start()
    table = ov(checkpoint, "L0H0").table(5, own_in_top=10)
    top = qk(checkpoint, "L0H0").top(5, by="size")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(table) == len(top) == 5
    assert peak < count * count * 4 / 3  # a third of the matrix in float32
    rows = np.unique(top.rows)
    block = abs(qk(checkpoint, "L0H0").dense_block(rows, np.arange(count)))
    assert np.sort(block.ravel())[::-1][:5] == pytest.approx(abs(top.values))


def test_26_flat_scores_over_n_positions_contribute_a_share_of_one_in_n() -> None:
    rng = np.random.default_rng(3)
    checkpoint = one_head(rng.normal(size=(5, 2)), rng.normal(size=(2, 5)))
    row = ov(checkpoint, "L0H0").row(1)
    for n in (1, 2, 16):
        one = skip_trigrams(checkpoint, "L0H0", context=n).value(1, 4, 2)
        assert one.attention == pytest.approx(1 / n)
        assert one.effect == pytest.approx((row[2] - row.mean()) / n)


def test_26_a_constant_over_a_destinations_row_changes_nothing() -> None:
    # destination 1 has scores 5 higher throughout: raw e^score would put it on top
    W_E = np.eye(3)
    scores = np.array([[0.0, 1.0, 0.0], [5.0, 5.0, 5.5], [0.0, 0.0, 0.0]])
    W_V, W_O = np.eye(3), np.diag([1.0, 2.0, 1.5])
    checkpoint = one_head(W_V, W_O, embed=W_E, W_Q=scores, W_K=np.eye(3))
    trigrams = skip_trigrams(checkpoint, "L0H0", context=4)
    best = trigrams.top(1).found[0]
    assert (best.source, best.destination, best.output) == (1, 0, 1)
    raw = np.exp(scores).T[:, :, None] * trigrams.writing.matrix.dense()[:, None]
    assert np.unravel_index(raw.argmax(), raw.shape)[1] == 1  # what the fault would say
    moved = scores + np.array([[7.0], [0.0], [-3.0]])
    shifted = one_head(W_V, W_O, embed=W_E, W_Q=moved, W_K=np.eye(3))
    for source in range(3):
        np.testing.assert_allclose(
            skip_trigrams(shifted, "L0H0", context=4).attention(source),
            trigrams.attention(source),
            rtol=1e-12,
        )
