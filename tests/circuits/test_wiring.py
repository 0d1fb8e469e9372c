"""Matrices that write and read the stream, with norms folded in, against plain numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pathexpand.circuits.wiring import (
    check_order,
    embedded,
    embedding,
    has_norms,
    head_weights,
    parse_head,
    read_matrix,
    turned,
    unembedded,
    unembedding,
    virtual_weight,
    write_matrix,
)
from pathexpand.errors import ModelError, NotationError, PathExpandError
from pathexpand.model.checkpoint import Checkpoint, read_checkpoint
from pathexpand.model.forward import attention_scores
from pathexpand.model.parts import Attention, Norm
from tests.api.models import small

FAMILIES = Path(__file__).parents[1] / "reference" / "families"


def family(name: str) -> Checkpoint:
    return read_checkpoint(FAMILIES / name)


def norm_matrix(norm: Norm | None, width: int) -> Any:
    """Give a norm's matrix itself, for row vectors."""
    if norm is None:
        return np.eye(width)
    out = np.eye(width) - 1 / width if norm.kind == "layer" else np.eye(width)
    return out if norm.weight is None else out @ np.diag(norm.weight)


@pytest.mark.parametrize("name", ["gemma2", "llama", "gpt2", "bloom", "falcon-grouped", "olmo2"])
def test_head_weights_are_the_dense_products(name: str) -> None:
    checkpoint = family(name)
    block = checkpoint.weights.block(1)
    attn, width = block.attn, checkpoint.config.d_model
    found = head_weights(checkpoint, 1)
    groups = len(attn.W_Q) // len(attn.W_K)
    before, behind = norm_matrix(block.ln1, width), norm_matrix(block.ln1_post, width)
    for head in range(checkpoint.config.n_heads):
        W_Q, W_K = before @ attn.W_Q[head], before @ attn.W_K[head // groups]
        for norm, side in ((attn.q_norm, "q"), (attn.k_norm, "k")):
            if norm is not None:
                own = head if side == "q" else head // groups
                weight = norm.weight[own if len(norm.weight) > 1 else 0]
                W_Q, W_K = (W_Q * weight, W_K) if side == "q" else (W_Q, W_K * weight)
        np.testing.assert_allclose(found.W_Q[head], W_Q, atol=1e-12)
        np.testing.assert_allclose(found.W_K[head], W_K, atol=1e-12)
        np.testing.assert_allclose(found.W_V[head], before @ attn.W_V[head // groups], atol=1e-12)
        np.testing.assert_allclose(found.W_O[head], attn.W_O[head] @ behind, atol=1e-12)


def test_grouped_heads_are_repeated_not_tiled() -> None:
    checkpoint = family("gemma2")  # 4 heads on 2
    found = head_weights(checkpoint, 0)
    assert (found.W_K[0] == found.W_K[1]).all()
    assert not (found.W_K[0] == found.W_K[2]).all()


@pytest.mark.parametrize("name", ["llama", "llama-yarn", "phi3-longrope", "gpt_neox-no-bias"])
@pytest.mark.parametrize("offset", [0, 3])
def test_turned_queries_give_the_dense_score_of_the_offset(name: str, offset: int) -> None:
    checkpoint = family(name)
    config, attn = checkpoint.config, checkpoint.weights.block(0).attn
    rotary = config.rotary[0]
    rows = np.random.default_rng(5).normal(size=(2, config.d_model))  # one query, one key
    plain = Attention(attn.W_Q, attn.W_K, attn.W_V, attn.W_O)
    places = np.array([[offset, 0]])
    dense = attention_scores(plain, rows[None], rotary, places)[0, :, 0, 1]  # (head,)
    groups = len(attn.W_Q) // len(attn.W_K)
    W_Q = turned(checkpoint, 0, attn.W_Q, offset)
    keys = np.repeat(attn.W_K, groups, axis=0)
    found = np.einsum("d,hde,hfe,f->h", rows[0], W_Q, keys, rows[1])
    np.testing.assert_allclose(found, dense, rtol=1e-12)
    if offset:  # the other way round is another score
        wrong = attention_scores(plain, rows[None], rotary, places[:, ::-1])[0, :, 0, 1]
        assert not np.allclose(found, wrong)


def test_rotary_needs_an_offset_that_can_occur() -> None:
    rotary, plain = family("mistral"), family("gpt2")
    W_Q = rotary.weights.block(0).attn.W_Q
    window = rotary.config.window[0]
    assert window is not None
    for offset in (None, -1, window, True, 1.0):
        with pytest.raises(PathExpandError, match="offset"):
            turned(rotary, 0, W_Q, offset)  # type: ignore[arg-type]
    with pytest.raises(PathExpandError, match="rotary positions: wanted an offset"):
        turned(rotary, 0, W_Q, None)
    turned(rotary, 0, W_Q, window - 1)
    with pytest.raises(PathExpandError, match="no rotary positions"):
        turned(plain, 0, W_Q, 2)
    assert turned(plain, 0, W_Q, 0) is W_Q


@pytest.mark.parametrize("name", ["bloom", "gpt2", "gemma2", "opt"])
def test_embedding_and_unembedding_fold_their_norms(name: str) -> None:
    checkpoint = family(name)
    weights, width = checkpoint.weights, checkpoint.config.d_model
    rows = weights.W_E
    for norm in weights.embed_norms:
        rows = rows @ norm_matrix(norm, width)
    np.testing.assert_allclose(embedding(checkpoint), rows, atol=1e-12)
    columns = norm_matrix(weights.final_norm, width) @ weights.W_U
    np.testing.assert_allclose(unembedding(checkpoint), columns, atol=1e-12)
    other = np.random.default_rng(1).normal(size=(width, 3))
    np.testing.assert_allclose(embedded(checkpoint, other), rows @ other, atol=1e-12)
    np.testing.assert_allclose(unembedded(checkpoint, other.T), other.T @ columns, atol=1e-12)


def test_every_writer_and_reader_of_a_model() -> None:
    checkpoint = small().checkpoint
    weights, block = checkpoint.weights, checkpoint.weights.block(1)
    assert block.mlp is not None and weights.W_pos is not None
    ln1, ln2 = norm_matrix(block.ln1, 7), norm_matrix(block.ln2, 7)
    writes = {
        "embed": weights.W_E,
        "pos": weights.W_pos,
        "L1H2": block.attn.W_O[2],
        "L1M": block.mlp.W_out,
        "L1N5": block.mlp.W_out[5:6],
    }
    reads = {
        "L1H2.q": ln1 @ block.attn.W_Q[2],
        "L1H2.k": ln1 @ block.attn.W_K[2],
        "L1H2.v": ln1 @ block.attn.W_V[2],
        "L1M": ln2 @ block.mlp.W_in,
        "L1N5": ln2 @ block.mlp.W_in[:, 5:6],
        "unembed": norm_matrix(weights.final_norm, 7) @ weights.W_U,
    }
    for name, wanted in writes.items():
        np.testing.assert_allclose(write_matrix(checkpoint, name), wanted, atol=1e-12)
    for name, wanted in reads.items():
        np.testing.assert_allclose(read_matrix(checkpoint, name), wanted, atol=1e-12)
    for writer, reader in (("L0H1", "L1H2.k"), ("embed", "unembed"), ("L1H0", "L1M")):
        dense = write_matrix(checkpoint, writer) @ read_matrix(checkpoint, reader)
        found = virtual_weight(checkpoint, writer, reader)
        np.testing.assert_allclose(found.dense(), dense, atol=1e-11)


def test_a_gate_is_read_too_and_a_post_norm_written_through() -> None:
    checkpoint = family("gemma2")
    block, width = checkpoint.weights.block(0), checkpoint.config.d_model
    assert block.mlp is not None and block.mlp.W_gate is not None
    gate = norm_matrix(block.ln2, width) @ block.mlp.W_gate
    np.testing.assert_allclose(read_matrix(checkpoint, "L0M.gate"), gate, atol=1e-12)
    written = block.mlp.W_out @ norm_matrix(block.ln2_post, width)
    np.testing.assert_allclose(write_matrix(checkpoint, "L0M"), written, atol=1e-12)
    with pytest.raises(PathExpandError, match="wanted a gated MLP"):
        read_matrix(small().checkpoint, "L0M.gate")


@pytest.mark.parametrize(
    ("writer", "reader", "says"),
    [
        ("L0H1", "L0H2.k", "one beside it"),
        ("L1H0", "L0H2.v", "one in front of it"),
        ("L0M", "L0H0.q", "one in front of it"),
        ("L0M", "L0N3", "one beside it"),
        ("L0H7", "L1H0.q", "head L0H7"),
        ("L0H0", "L2H0.q", "head L2H0"),
        ("L0N11", "L1H0.q", "a neuron of 11"),
        ("L5M", "unembed", "layer"),
        ("unembed", "L1M", "writer"),
        ("L0H0.q", "L1M", "writer"),
        ("embed", "L1H0", "reader"),
        ("embed", "embed", "reader"),
        ("embed", 3, "reader"),
        ("", "L1M", "writer"),
    ],
)
def test_pairs_that_do_not_exist_are_refused(writer: str, reader: str, says: str) -> None:
    with pytest.raises(PathExpandError, match=says) as caught:
        virtual_weight(small().checkpoint, writer, reader)
    assert "\n" not in str(caught.value)


def test_a_parallel_block_reads_in_front_of_its_heads() -> None:
    check_order(family("gpt2"), "L0H1", "L0M")  # one after the other
    with pytest.raises(PathExpandError, match="one beside it"):
        check_order(family("gpt_neox"), "L0H1", "L0M")
    check_order(family("gpt_neox"), "L0M", "L1H0.k")


def test_a_norm_of_the_stream_is_not_crossed() -> None:
    checkpoint = family("opt-post-norm")
    virtual_weight(checkpoint, "embed", "L0H1.q")
    for writer, reader in (("embed", "L0M"), ("L0H1", "L0M"), ("L0M", "L1H0.v"), ("pos", "L1M")):
        with pytest.raises(ModelError, match="passes a norm in layer 0"):
            virtual_weight(checkpoint, writer, reader)
    with pytest.raises(ModelError, match="layer 1"):
        virtual_weight(checkpoint, "L1M", "unembed")
    with pytest.raises(ModelError, match="masked-token head"):
        unembedding(family("bert"))


def test_heads_are_read_and_refused_in_one_line() -> None:
    checkpoint = family("gpt2")
    for text in ("L3H0", "L0H3"):
        with pytest.raises(PathExpandError, match="wanted a head of 3 layers of 3"):
            parse_head(checkpoint.config, text)
    with pytest.raises(NotationError):
        parse_head(checkpoint.config, "0.3")
    with pytest.raises(PathExpandError, match="a model with heads"):
        parse_head(read_checkpoint("zero-layer").config, "L0H0")
    with pytest.raises(PathExpandError, match="layer"):
        head_weights(checkpoint, 3)


def test_positions_that_are_not_in_the_stream_are_no_writer() -> None:
    for checkpoint in (read_checkpoint("two-layer"), family("llama")):
        with pytest.raises(PathExpandError, match="added to the stream"):
            write_matrix(checkpoint, "pos")


def test_norms_are_found_wherever_they_are() -> None:
    assert not has_norms(read_checkpoint("two-layer"))
    assert has_norms(family("llama")) and has_norms(small().checkpoint)
