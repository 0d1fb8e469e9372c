"""Known faults of this kind of work, with the right values, path by path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pathexpand import laws
from pathexpand.api import Model, Run, from_state_dict
from pathexpand.errors import ModelError
from pathexpand.laws.exact import exact_run
from pathexpand.laws.folding import folded
from pathexpand.laws.gauge import with_weights
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.config import Config
from pathexpand.model.weights import Attention, Block, Norm, Rows, Weights

MODES = ("source", "frozen", "neurons")


def array(*rows: Any) -> Any:
    return np.array(rows, dtype=float)


def logits(run: Run, path: str) -> list[float]:
    found: list[float] = run.path_logits(path).round(4).tolist()
    return found


def sizes(**settings: Any) -> dict[str, Any]:
    own = {"n_heads": 1, "d_head": 1, "d_vocab": 1, "n_ctx": 4, "attn_only": True}
    return own | {"positional_embedding_type": "none"} | settings


# --- 1: the affine parts of the final norm, and b_U -----------------------------------------------


def normed_model() -> Model:
    tensors = {
        "embed.W_E": array([1, -1]),
        "ln_final.w": array(2, 1),
        "ln_final.b": array(1, 1),
        "unembed.W_U": np.eye(2),
        "unembed.b_U": array(0, 10),
    }
    config = sizes(n_layers=0, d_model=2, d_vocab_out=2, normalization_type="LN", eps=0)
    return from_state_dict(tensors, config)


def test_the_final_norm_is_part_of_the_paths_and_of_the_constant() -> None:
    run = normed_model().run([0])
    assert run.logits().tolist() == [3, 10]
    assert logits(run, "embed") == [2, -1]
    assert logits(run, "b_U") == [1, 11]
    assert run.value("b_U", 1, centred=False) == 11
    assert laws.check_layer_sums(run).require().holds


def test_a_folded_final_norm_gives_the_same_parts() -> None:
    run = normed_model().run([0])
    weights = folded(run.model)
    assert weights is not None
    again = with_weights(run, weights)
    assert (logits(again, "embed"), logits(again, "b_U")) == ([2, -1], [1, 11])
    assert again.logits().tolist() == [3, 10]


# --- 2: value biases ------------------------------------------------------------------------------


def value_bias(heads: int) -> Model:
    tensors = {
        "embed.W_E": array([0, 0]),
        "unembed.W_U": np.eye(2),
        "blocks.0.attn.W_Q": np.zeros((heads, 2, 1)),
        "blocks.0.attn.W_K": np.zeros((1, 2, 1)),
        "blocks.0.attn.W_V": np.zeros((1, 2, 1)),
        "blocks.0.attn.W_O": np.tile(array([[1, 2]]), (heads, 1, 1)),
        "blocks.0.attn.b_V": array([3]),
    }
    config = sizes(n_layers=1, n_heads=heads, n_key_value_heads=1, d_model=2, d_vocab_out=2)
    return from_state_dict(tensors, config)


def test_a_value_bias_goes_through_the_pattern() -> None:
    rows = array([[1, 0, 0], [0, 0, 0], [0.25, 0.25, 0]])
    run = exact_run(value_bias(1), [0, 0, 0], [rows])
    (bias,) = (each for each in run.frozen.sources if each.label == "L0bias")
    assert bias.values.tolist() == [[3, 6], [0, 0], [1.5, 3]]
    assert logits(run, "L0bias") == [1.5, 3]
    assert run.path_logits("L0bias", position=1).tolist() == [0, 0]


def test_a_shared_value_bias_counts_once_for_each_query_head() -> None:
    run = value_bias(2).run([0])
    assert logits(run, "L0bias") == [6, 12]


# --- 3: constants flow through later heads --------------------------------------------------------


@pytest.mark.parametrize(("seen", "wanted"), [(1, 15), (0, 5)])
def test_a_constant_flows_through_later_heads(seen: int, wanted: int) -> None:
    one, none = np.ones((1, 1, 1)), np.zeros((1, 1, 1))
    tensors = {"embed.W_E": array([0]), "unembed.W_U": array([1])}
    for layer, ov in ((0, 0), (1, 2)):
        tensors |= {f"blocks.{layer}.attn.W_{name}": none for name in "QK"}
        tensors |= {f"blocks.{layer}.attn.W_V": ov * one, f"blocks.{layer}.attn.W_O": one}
    tensors["blocks.0.attn.b_O"] = array(5)
    model = from_state_dict(tensors, sizes(n_layers=2, d_model=1, d_vocab_out=1))
    run = exact_run(model, [0], [one, seen * one])
    assert run.dense.residual[-1][0, 0, 0] == wanted
    assert run.value("L0bias", 0, centred=False) == 5
    assert run.value("L0bias > L1H0", 0, centred=False) == wanted - 5
    assert run.total(target=0, centred=False).sum() == wanted


# --- 4 and 5: held scales, and centring -----------------------------------------------------------


def two_writers(kind: str, token: Any, place: Any, *, eps: float = 0.0) -> Run:
    """Let a token and its position write to a stream of width 2 before a final norm, γ = (2, 3)."""
    weights = Weights(
        embed=Rows("W_E", array(token)),
        pos=Rows("W_pos", array(place)),
        unembedding=Rows("W_U", np.eye(2)),
        final_norm=Norm(kind, array(2, 3), None, eps),  # type: ignore[arg-type]
    )
    config = Config(n_layers=0, n_heads=1, d_head=1, d_model=2, d_vocab=1, d_vocab_out=2, n_ctx=1)
    return Model(Checkpoint(config, weights)).run([0])


def test_a_held_scale_is_that_of_the_whole_stream() -> None:
    run = two_writers("layer", [3, 1], [2, 0])
    # The stream (5, 1) has deviation 2; alone, (3, 1) would be normed by 1.
    assert logits(run, "embed") == [1, -1.5]
    assert logits(run, "pos") == [1, -1.5]
    assert run.logits().tolist() == [2, -3]


@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_a_stream_without_variance_is_no_nan(eps: float) -> None:
    run = two_writers("layer", [3, 1], [0, 2], eps=eps)
    assert run.logits().tolist() == [0, 0]
    parts = run.path_logits("embed") + run.path_logits("pos")
    assert np.isfinite(run.path_logits("embed")).all()
    assert abs(parts).max() < 1e-12
    assert run.paths(0).certified


def test_a_constant_vector_is_nothing_to_layer_norm_and_something_to_rms_norm() -> None:
    assert logits(two_writers("layer", [3, 1], [4, 4]), "pos") == [0, 0]
    run = two_writers("rms", [1, -1], [4, 4])
    rms = np.sqrt((5**2 + 3**2) / 2)
    assert run.path_logits("pos") == pytest.approx([4 / rms * 2, 4 / rms * 3])


# --- 6: grouped queries ---------------------------------------------------------------------------


def test_grouped_queries_repeat_their_keys_and_values() -> None:
    tensors = {"embed.W_E": array([1]), "unembed.W_U": array([1])}
    tensors |= {"blocks.0.attn.W_Q": np.zeros((4, 1, 1)), "blocks.0.attn.W_O": np.ones((4, 1, 1))}
    tensors |= {"blocks.0.attn.W_K": np.zeros((2, 1, 1))}
    tensors |= {"blocks.0.attn.W_V": array(1, 10).reshape(2, 1, 1)}
    config = sizes(n_layers=1, n_heads=4, n_key_value_heads=2, d_model=1, d_vocab_out=1)
    run = from_state_dict(tensors, config).run([0])
    values = [run.value(f"embed > L0H{head}", 0, centred=False) for head in range(4)]
    assert values == [1, 1, 10, 10]
    assert run.logits().tolist() == [23]


def test_heads_that_cannot_be_grouped_are_refused() -> None:
    with pytest.raises(ModelError):
        Config(n_layers=1, n_heads=3, n_key_value_heads=2, d_model=2, d_head=1, d_vocab=2, n_ctx=1)


# --- 9: a module's output is not always what is added ---------------------------------------------


def test_a_norm_behind_attention_has_the_scale_of_the_sum() -> None:
    zero = np.zeros((2, 2, 1))
    attn = Attention(
        W_Q=zero,
        W_K=zero,
        W_V=np.tile(array([1], [0]), (2, 1, 1)),
        W_O=array([[3, 0]], [[0, 4]]),
    )
    weights = Weights(
        embed=Rows("W_E", array([1, 0])),
        unembedding=Rows("W_U", np.eye(2)),
        blocks=(Block(attn, ln1_post=Norm("rms", None, None, 0.0)),),
    )
    config = Config(
        **dict.fromkeys(("n_layers", "d_head", "d_vocab", "n_ctx"), 1),
        n_heads=2,
        d_model=2,
        d_vocab_out=2,
        positional_embedding_type="none",
    )
    run = Model(Checkpoint(config, weights)).run([0])
    assert logits(run, "embed > L0H0") == [0.8485, 0]
    assert logits(run, "embed > L0H1") == [0, 1.1314]
    assert run.paths(0).gap == pytest.approx(0, abs=1e-15)


# --- 10: parallel and sequential blocks -----------------------------------------------------------


def scalar_block(*, parallel: bool, mlp: Any) -> Run:
    one = np.ones((1, 1, 1))
    tensors = {"embed.W_E": array([1]), "unembed.W_U": array([1])}
    tensors |= {f"blocks.0.attn.W_{name}": 0 * one for name in "QK"}
    tensors |= {"blocks.0.attn.W_V": one, "blocks.0.attn.W_O": 2 * one}
    tensors |= {"blocks.0.mlp.W_in": array([1]), "blocks.0.mlp.W_out": array([3])}
    own = sizes(n_layers=1, d_model=1, d_vocab_out=1, attn_only=False, d_mlp=1, act_fn="relu")
    return from_state_dict(tensors, own | {"parallel_attn_mlp": parallel}, mlp=mlp).run([0])


@pytest.mark.parametrize(("mlp", "name"), [("frozen", "L0M"), ("neurons", "L0N0")])
def test_a_sequential_mlp_reads_attention_and_a_parallel_one_does_not(mlp: str, name: str) -> None:
    both = {"embed": 1, "embed > L0H0": 2, f"embed > {name}": 3}
    for parallel, more in ((True, {}), (False, {f"embed > L0H0 > {name}": 6})):
        run = scalar_block(parallel=parallel, mlp=mlp)
        table = run.paths(0, centred=False)
        assert {row.path: row.value for row in table.rows} == both | more
        assert table.dense == run.total(target=0, centred=False).sum() == (6 if parallel else 12)


@pytest.mark.parametrize(("parallel", "written"), [(True, 3), (False, 9)])
def test_an_mlp_taken_as_a_source_brings_what_it_wrote(parallel: bool, written: int) -> None:
    run = scalar_block(parallel=parallel, mlp="source")
    assert run.value("L0M", 0, centred=False) == written
    assert run.model.count() == 3


# --- 17: gated MLPs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mlp", "path"), [("source", "L0M"), ("frozen", "embed > L0M"), ("neurons", "embed > L0N0")]
)
def test_a_gated_neuron_behind_a_norm(mlp: Any, path: str) -> None:
    one = np.ones((1, 1, 1))
    tensors = {"embed.W_E": array([1]), "unembed.W_U": array([1])}
    tensors |= {f"blocks.0.attn.W_{name}": 0 * one for name in "QKVO"}
    tensors |= {"blocks.0.ln1.w": array(1), "blocks.0.ln2.w": array(2), "ln_final.w": array(1)}
    tensors |= {f"blocks.0.mlp.W_{name}": array([1]) for name in ("in", "gate", "out")}
    config = sizes(n_layers=1, d_model=1, d_vocab_out=1, attn_only=False, d_mlp=1, act_fn="silu")
    config |= {"normalization_type": "RMS", "eps": 0, "gated_mlp": True}
    run = from_state_dict(tensors, config, mlp=mlp).run([0])
    last = np.array([1.0])  # before the final norm
    assert run.value(path, last) == pytest.approx(3.5232, abs=5e-5)
    assert run.dense.residual[-1][0, 0, 0] == pytest.approx(4.5232, abs=5e-5)
