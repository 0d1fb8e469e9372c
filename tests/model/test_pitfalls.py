"""Faults people have met in this kind of work, with the right values (../shared/PITFALLS.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pathexpand.errors import ModelError
from pathexpand.model.blocks import recast
from pathexpand.model.checkpoint import checkpoint_from_state_dict
from pathexpand.model.config import Config
from pathexpand.model.families.alibi import alibi_slopes
from pathexpand.model.forward import Forward, capped, forward, logits
from pathexpand.model.norm import normed, normed_heads
from pathexpand.model.parts import Array, Attention, Block, HeadNorm, Mlp, Norm
from pathexpand.model.rotary import Rotary, plain_frequencies
from pathexpand.model.rows import Rows
from pathexpand.model.weights import Weights


def rows(values: Any) -> Rows:
    return Rows("a table", np.asarray(values, dtype=float))


def zeros(*shape: int) -> Array:
    return np.zeros(shape)


def attention(
    ov: Array, heads: int = 1, groups: int = 1, *, d_head: int = 1, **more: Any
) -> Attention:
    """Make attention that looks everywhere alike and copies the stream through `ov`."""
    d_model = len(ov)
    return Attention(
        W_Q=zeros(heads, d_model, d_head),
        W_K=zeros(groups, d_model, d_head),
        W_V=more.pop("W_V", zeros(groups, d_model, d_head)),
        W_O=more.pop("W_O", zeros(heads, d_head, d_model)),
        **more,
    )


def scalar(ov: float, **more: Any) -> Attention:
    one = np.ones((1, 1, 1))
    return attention(np.ones((1, 1)), W_V=one, W_O=ov * one, **more)


def model(embed: Any, *blocks: Block, unembed: Any = None, **more: Any) -> Weights:
    embed = np.asarray(embed, dtype=float)
    readout = np.eye(embed.shape[1]) if unembed is None else np.asarray(unembed, dtype=float)
    return Weights(rows(embed), rows(readout), blocks, **more)


def run(weights: Weights, tokens: list[int], mask: Any = None, **settings: Any) -> Forward:
    attn = weights.blocks[0].attn if weights.blocks else scalar(0)
    sizes = {
        "n_layers": len(weights.blocks),
        "n_heads": len(attn.W_Q),
        "n_key_value_heads": len(attn.W_K),
        "d_model": weights.embed.width,
        "d_head": attn.W_Q.shape[2],
        "d_vocab": weights.embed.count,
        "n_ctx": 99,
        "positional_embedding_type": "none",
    }
    patterns = settings.pop("patterns", None)
    config = Config(**sizes | settings)
    real = np.ones((1, len(tokens)), dtype=bool) if mask is None else np.array([mask], dtype=bool)
    return forward(weights, config, np.array([tokens]), real, patterns=patterns)


# --- 1 to 5: norms and constants ------------------------------------------------------------------


def test_1_affine_parts_of_the_final_norm() -> None:
    norm = Norm("layer", np.array([2.0, 1.0]), np.array([1.0, 1.0]), 0.0)
    weights = model([[1, -1]], final_norm=norm, b_U=np.array([0.0, 10.0]))
    made = run(weights, [0])
    assert logits(weights, made.residual[-1][0, 0]).tolist() == [3, 10]
    assert made.final_scale is not None
    assert made.final_scale.tolist() == [[1.0]]


def test_4_a_slice_without_variance_is_finite() -> None:
    for kind, value, scale in (("layer", 3.0, 0.0), ("rms", 0.0, 0.0)):
        norm = Norm(kind, np.array([2.0, 5.0]), np.array([1.0, 4.0]), 0.0)  # type: ignore[arg-type]
        out, used = normed(norm, np.full((1, 2), value))
        assert out.tolist() == [[1.0, 4.0]]
        assert used.tolist() == [scale]
    out, used = normed(Norm("layer", None, None, 0.25), np.full((1, 2), 3.0))
    assert (out.tolist(), used.tolist()) == ([[0.0, 0.0]], [2.0])
    heads = normed_heads(HeadNorm("rms", None, None, 0.0), np.zeros((1, 2, 3, 4)))
    assert not heads.any()


def test_5_a_constant_goes_through_rmsnorm_alone() -> None:
    stream, weight = np.full((1, 3), 7.0), np.array([1.0, 2.0, 3.0])
    assert normed(Norm("layer", weight, None, 1e-5), stream)[0].tolist() == [[0, 0, 0]]
    assert normed(Norm("rms", weight, None, 0.0), stream)[0] == pytest.approx(weight[None])


def test_3_constants_flow_through_later_layers() -> None:
    first = Block(scalar(0, b_O=np.array([5.0])))
    weights = model([[0]], first, Block(scalar(2)))
    assert run(weights, [0, 0]).residual[-1].ravel().tolist() == [15, 15]
    assert run(weights, [0, 0], [0, 1]).residual[-1].ravel().tolist() == [5, 15]


# --- 2 and 6: values and groups -------------------------------------------------------------------


@pytest.mark.parametrize(("row", "wanted"), [(1.0, [3, 6]), (0.0, [0, 0]), (0.5, [1.5, 3])])
def test_2_a_value_bias_is_seen_through_the_pattern(row: float, wanted: list[float]) -> None:
    attn = attention(np.eye(2), W_O=np.array([[[1.0, 2.0]]]), b_V=np.array([[3.0]]))
    made = run(model([[0, 0]], Block(attn)), [0], patterns=[np.array([[[[row]]]])])
    assert made.layers[0].attn_out[0, 0].tolist() == wanted


def test_2_a_value_bias_counts_once_a_query_head() -> None:
    out = np.array([[[1.0]], [[10.0]], [[100.0]], [[1000.0]]])
    attn = attention(np.eye(1), 4, 2, W_O=out, b_V=np.array([[3.0], [5.0]]))
    assert run(model([[0]], Block(attn)), [0]).residual[-1].item() == 3 + 30 + 500 + 5000


def test_6_grouped_queries_share_with_their_neighbours() -> None:
    values, out = np.array([[[1.0]], [[10.0]]]), np.eye(4)[:, None]
    attn = attention(np.ones((4, 1)), 4, 2, W_V=np.repeat(values, 4, axis=1), W_O=out)
    assert attn.kv_of.tolist() == [0, 0, 1, 1]
    made = run(model([[1, 0, 0, 0]], Block(attn)), [0])
    assert made.layers[0].attn_out.ravel().tolist() == [1, 1, 10, 10]


def test_6_heads_that_do_not_divide_are_refused() -> None:
    sizes = {"n_layers": 1, "d_model": 4, "d_head": 1, "d_vocab": 2, "n_ctx": 2}
    with pytest.raises(ModelError, match="config n_key_value_heads: wanted a divisor of the 4"):
        Config(n_heads=4, n_key_value_heads=3, **sizes)  # type: ignore[arg-type]


# --- 9 and 10: what is added, and when ------------------------------------------------------------


def test_9_a_norm_after_attention_takes_the_scale_of_the_sum() -> None:
    out = np.array([[[3.0, 0.0]], [[0.0, 4.0]]])
    attn = attention(np.eye(2), 2, 2, W_O=out, b_V=np.ones((2, 1)))
    norm = Norm("rms", np.ones(2), None, 0.0)
    made = run(model([[0, 0]], Block(attn, ln1_post=norm)), [0])
    assert made.layers[0].attn_out.ravel() == pytest.approx([0.8485, 1.1314], abs=5e-5)
    assert made.layers[0].scale1_post is not None
    assert made.layers[0].scale1_post.item() * 3 == pytest.approx(0.8485, abs=5e-5)


def test_9_outputs_are_multiplied_before_they_are_added() -> None:
    mlp = Mlp(np.ones((1, 1)), np.ones((1, 1)), "relu")
    made = run(model([[1]], Block(scalar(2), mlp, scale=0.5)), [0])
    trace = made.layers[0]
    assert trace.mlp_out is not None
    assert trace.middle is not None
    added = (trace.attn_out.item(), trace.middle.item(), trace.mlp_out.item())
    assert added == (1.0, 2.0, 1.0)
    assert made.residual[-1].item() == 3


@pytest.mark.parametrize(("parallel", "wanted"), [(False, 12), (True, 6)])
def test_10_parallel_and_sequential_blocks(parallel: bool, wanted: float) -> None:
    mlp = Mlp(np.ones((1, 1)), np.full((1, 1), 3.0), "relu")
    made = run(model([[1]], Block(scalar(2), mlp, parallel)), [0])
    assert made.residual[-1].item() == wanted
    assert (made.layers[0].middle is None) == parallel


# --- 11 to 14: scores -----------------------------------------------------------------------------


def turned(vector: list[float], position: int, **settings: Any) -> list[float]:
    settings = {"pairs": "half", "width": len(vector)} | settings
    each = plain_frequencies(settings["width"], 1e4)
    array = np.array([[vector]], dtype=float)
    out = Rotary(frequencies=each, **settings).turn(array, np.array([[position]]))
    return [round(float(number), 4) for number in out[0, 0]]


def test_11_rotary_pairs_and_width() -> None:
    assert turned([1, 0, 0, 0], 1) == [0.5403, 0, 0.8415, 0]
    assert turned([1, 0, 0, 0], 1, pairs="adjacent") == [0.5403, 0.8415, 0, 0]
    assert plain_frequencies(4, 1e4) == (1.0, 0.01)
    partial = turned([1, 1, 0, 0, 5, 6, 7, 8], 1, width=4)
    assert partial == [0.5403, 1.0, 0.8415, 0.01, 5, 6, 7, 8]


def test_12_a_score_depends_on_the_offset() -> None:
    rotary = Rotary(width=2, pairs="half", frequencies=(1.0,))
    attn = Attention(np.eye(2)[None], np.eye(2)[None], zeros(1, 2, 2), zeros(1, 2, 2))
    made = run(
        model([[1, 0]], Block(attn)), [0, 0, 0], rotary=(rotary,), attn_scale=(1.0,)
    )  # scores cos(offset)
    pattern = made.patterns[0][0, 0]
    for query, key in ((1, 0), (2, 1)):
        gap = np.log(pattern[query, key] / pattern[query, query])
        assert gap == pytest.approx(0.5403 - 1, abs=5e-5)


def test_14_a_masked_row_is_zero_and_finite_fills_lose() -> None:
    attn = Attention(np.full((1, 1, 1), 1.2e3), np.full((1, 1, 1), -1e2), *zeros(2, 1, 1, 1))
    made = run(model([[1]], Block(attn)), [0, 0, 0], [0, 1, 1], attn_scale=(1.0,))
    assert made.patterns[0][0, 0].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0.5, 0.5]]
    assert made.residual[-1].ravel().tolist() == [1, 1, 1]


def test_14_sinks_take_their_share() -> None:
    attn = scalar(1, sinks=np.array([np.log(2.0)]))
    made = run(model([[1]], Block(attn)), [0, 0])
    assert made.patterns[0][0, 0] == pytest.approx(np.array([[1 / 3, 0], [1 / 4, 1 / 4]]))
    far = run(model([[1]], Block(scalar(1, sinks=np.array([800.0])))), [0, 0], [0, 1])
    assert np.isfinite(far.residual[-1]).all()


# --- 16 to 18: caps, gates and norms of heads -----------------------------------------------------


def test_16_the_soft_cap_is_the_last_step() -> None:
    weights = model([[30]])
    settings = {"d_head": 1, "n_ctx": 3, "positional_embedding_type": "none"}
    config = Config(
        n_layers=0,
        n_heads=1,
        d_model=1,
        d_vocab=1,
        output_logits_soft_cap=30.0,
        **settings,  # type: ignore[arg-type]
    )
    before = logits(weights, run(weights, [0]).residual[-1])
    assert before.item() == 30
    assert capped(config, before).item() == pytest.approx(22.8478, abs=5e-5)
    assert before.item() == 30


def test_17_a_gated_mlp() -> None:
    one = np.ones((1, 1))
    mlp = Mlp(one, one, "silu", W_gate=one)
    block = Block(scalar(0), mlp, ln2=Norm("rms", np.array([2.0]), None, 0.0))
    trace = run(model([[1]], block), [0]).layers[0]
    assert trace.mlp_out is not None
    assert trace.mlp_out.item() == pytest.approx(3.5232, abs=5e-5)
    assert trace.gates is not None
    assert trace.gates.item() == pytest.approx(1.7616, abs=5e-5)


def test_17_biases_of_a_gated_mlp() -> None:
    one = np.ones((1, 1))
    mlp = Mlp(one, 2 * one, "relu", one, np.array([3.0]), np.array([5.0]), np.array([7.0]))
    trace = run(model([[1]], Block(scalar(0), mlp)), [0]).layers[0]
    assert trace.mlp_out is not None
    assert trace.mlp_out.item() == (1 + 5) * (1 + 3) * 2 + 7


def test_18_a_norm_a_head_is_not_one_over_all() -> None:
    vectors = np.array([3.0, 0.0, 0.0, 4.0]).reshape(1, 2, 1, 2)  # (batch, head, position, d_head)
    each = normed_heads(HeadNorm("rms", None, None, 0.0), vectors)
    both = normed_heads(HeadNorm("rms", None, None, 0.0, across=True), vectors)
    assert each.ravel() == pytest.approx([2**0.5, 0, 0, 2**0.5])
    assert both.ravel() == pytest.approx([1.2, 0, 0, 1.6])
    weight, bias = np.array([[2.0, 1.0]]), np.array([[1.0, 0.0]])
    whole = normed_heads(HeadNorm("layer", weight, bias, 0.0), vectors)
    assert whole.ravel() == pytest.approx([3, -1, -1, 1])


# --- 29 to 35: shapes and masks -------------------------------------------------------------------


def test_29_a_head_need_not_be_a_share_of_the_stream() -> None:
    raw = {
        "model_type": "llama",
        "hidden_size": 6,
        "num_attention_heads": 2,
        "head_dim": 4,
        "num_hidden_layers": 1,
        "vocab_size": 3,
        "intermediate_size": 5,
        "rope_theta": 10.0,
        "max_position_embeddings": 7,
        "tie_word_embeddings": True,
    }
    at, shapes = (
        "model.layers.0.",
        {
            "self_attn.q_proj": (8, 6),
            "self_attn.k_proj": (8, 6),
            "self_attn.v_proj": (8, 6),
            "self_attn.o_proj": (6, 8),
            "mlp.gate_proj": (5, 6),
            "mlp.up_proj": (5, 6),
            "mlp.down_proj": (6, 5),
            "input_layernorm": (6,),
            "post_attention_layernorm": (6,),
        },
    )
    tensors = {f"{at}{name}.weight": np.ones(shape) for name, shape in shapes.items()}
    tensors |= {"model.embed_tokens.weight": np.ones((3, 6)), "model.norm.weight": np.ones(6)}
    read = checkpoint_from_state_dict(tensors, raw)
    assert read.weights.blocks[0].attn.W_Q.shape == (2, 6, 4)
    assert read.config.attn_scale == (2.0,)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_30_a_window_counts_the_query_itself(direction: Any) -> None:
    made = run(model([[1]], Block(scalar(1))), [0] * 5, window=(2,), attention_dir=direction)
    seen = (made.patterns[0][0, 0] > 0).sum(axis=1).tolist()
    assert seen == ([1, 2, 2, 2, 2] if direction == "causal" else [2, 3, 3, 3, 2])
    padded = run(model([[1]], Block(scalar(1))), [0] * 5, [1, 0, 0, 1, 1], window=(2,))
    assert (padded.patterns[0][0, 0, 3] > 0).tolist() == [True, False, False, True, False]


def test_31_alibi_slopes() -> None:
    assert alibi_slopes(8) == tuple(2.0**-n for n in range(1, 9))
    assert alibi_slopes(1) == (2.0**-8,)
    assert alibi_slopes(6) == (2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3)
    made = run(model([[1]], Block(scalar(1))), [0] * 4, alibi=(0.5,))
    last = made.patterns[0][0, 0, 3]
    assert (np.diff(last) > 0).all()
    assert np.log(last[3] / last[1]) == pytest.approx(1.0)


def test_34_biases_on_some_projections() -> None:
    attn = attention(np.eye(1), b_V=np.array([[3.0]]), W_O=np.ones((1, 1, 1)))
    assert run(model([[0]], Block(attn)), [0]).residual[-1].item() == 3


def test_float32_blocks_are_made_once() -> None:
    weights = model([[1]], Block(scalar(2), Mlp(np.ones((1, 1)), np.ones((1, 1)), "gelu")))
    single = weights.block(0, np.float32)
    assert single.attn.W_V.dtype == np.float32
    assert weights.block(0, np.float32) is single
    assert weights.block(0) is weights.blocks[0]
    assert recast(single, np.float64).attn.W_O.dtype == np.float64
