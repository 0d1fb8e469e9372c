"""The dense pass against a reference written with loops, and its masks, positions and scales."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pathexpand import laws
from pathexpand.api import Model, from_state_dict
from pathexpand.errors import ModelError, PromptError
from pathexpand.model.config import Config
from pathexpand.model.forward import forward, logits, masked_softmax


def by_loops(model: Model, tokens: list[int], real: list[int]) -> Any:
    """Give the last stream, one number at a time, as the definition says."""
    weights, config = model.weights, model.config
    places = [max(sum(real[: n + 1]) - 1, 0) for n in range(len(tokens))]
    kind = config.positional_embedding_type
    position = [weights.W_pos[p] if kind != "none" else 0 * weights.W_E[0] for p in places]
    stream = [
        weights.W_E[t] + (position[n] if kind == "standard" else 0) for n, t in enumerate(tokens)
    ]
    for layer, block in enumerate(weights.blocks):
        attn, after = block.attn, [row.copy() for row in stream]
        zero = np.zeros((config.n_heads, config.d_head))
        b_q, b_k, b_v = (zero if b is None else b for b in (attn.b_Q, attn.b_K, attn.b_V))
        reads = [
            row + (position[n] if kind == "shortformer" else 0) for n, row in enumerate(stream)
        ]
        for i in range(len(tokens)):
            for head in range(config.n_heads):
                keys = [j for j in range(len(tokens)) if real[j]]
                if config.attention_dir == "causal":
                    keys = [j for j in keys if j <= i]
                query = reads[i] @ attn.W_Q[head] + b_q[head]
                scores = [
                    query @ (reads[j] @ attn.W_K[head] + b_k[head]) / config.attn_scale[layer]
                    for j in keys
                ]
                sizes = [math.exp(score - max(scores)) for score in scores]
                for j, size in zip(keys, sizes, strict=True):
                    value = stream[j] @ attn.W_V[head] + b_v[head]
                    after[i] = after[i] + size / sum(sizes) * (value @ attn.W_O[head])
            after[i] = after[i] + (0 if attn.b_O is None else attn.b_O)
        stream = after
    return np.array(stream)


@pytest.mark.parametrize("positions", ["standard", "shortformer", "none"])
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("biases", ["all", "none", "some"])
def test_forward_is_the_definition(positions: Any, direction: Any, biases: Any) -> None:
    model = laws.random_model(
        seed=3, positions=positions, direction=direction, biases=biases, attn_scale=0.7
    )
    tokens, real = [3, 1, 4, 1, 5], [0, 1, 1, 0, 1]
    for mask in (real, [1] * 5):
        run = model.run(tokens, mask=mask)
        wanted = by_loops(model, tokens, mask)
        assert run.dense.residual[-1][0] == pytest.approx(wanted, rel=1e-12, abs=1e-12)
        bias = 0 if model.weights.b_U is None else model.weights.b_U
        assert run.logits(2 if mask[2] else 1) == pytest.approx(
            wanted[2] @ model.weights.W_U + bias, rel=1e-12, abs=1e-12
        )


def one_head(**more: Any) -> dict[str, Any]:
    tensors: dict[str, Any] = {
        "embed.W_E": np.zeros((2, 1)),
        "unembed.W_U": np.ones((1, 2)),
    }
    for layer in range(more.get("n_layers", 1)):
        for name in ("W_Q", "W_K"):
            tensors[f"blocks.{layer}.attn.{name}"] = np.zeros((1, 1, 1))
        for name in ("W_V", "W_O"):
            tensors[f"blocks.{layer}.attn.{name}"] = np.ones((1, 1, 1))
    return tensors


def config(**more: Any) -> Config:
    sizes = {"n_layers": 1, "n_heads": 1, "d_model": 1, "d_head": 1, "d_vocab": 2, "n_ctx": 4}
    return Config(**(sizes | {"positional_embedding_type": "none"} | more))


def test_value_bias_is_seen_through_the_pattern() -> None:
    """Pitfall 2: b_V = 3, W_O = [1, 2] writes (3, 6), (0, 0) or (1.5, 3) as the row sums."""
    tensors = {
        "embed.W_E": np.zeros((2, 2)),
        "unembed.W_U": np.eye(2),
        "blocks.0.attn.W_Q": np.zeros((1, 2, 1)),
        "blocks.0.attn.W_K": np.zeros((1, 2, 1)),
        "blocks.0.attn.W_V": np.zeros((1, 2, 1)),
        "blocks.0.attn.W_O": np.array([[[1.0, 2.0]]]),
        "blocks.0.attn.b_V": np.array([[3.0]]),
    }
    model = from_state_dict(tensors, config(d_model=2, attention_dir="bidirectional"))
    tokens, mask = np.array([[0]]), np.array([[True]])
    for row, wanted in ((1.0, (3, 6)), (0.0, (0, 0)), (0.5, (1.5, 3))):
        dense = forward(model.weights, model.config, tokens, mask, patterns=[np.array([[[[row]]]])])
        assert dense.residual[1][0, 0].tolist() == list(wanted)
        from pathexpand.api import Run

        run = Run(model, dense)
        split = [run.value("L0bias", target=target, centred=False) for target in (0, 1)]
        assert split == list(wanted)


def test_constants_flow_through_later_heads() -> None:
    """Pitfall 3: a bias of 5 before OV = 2 gives 15, and 5 where that row is masked."""
    tensors = one_head(n_layers=2) | {"blocks.0.attn.b_O": np.array([5.0])}
    tensors["blocks.1.attn.W_O"] = np.full((1, 1, 1), 2.0)
    model = from_state_dict(tensors, config(n_layers=2))
    run = model.run([0, 0])
    assert run.dense.residual[-1][0].tolist() == [[15.0], [15.0]]
    assert run.value("L0bias", target=0, centred=False) == 5
    assert run.value("L0bias > L1H0", target=0, centred=False) == 10
    assert run.total(target=0, centred=False).sum() == 15
    masked = model.run([0, 0], mask=[0, 1])
    assert masked.dense.residual[-1][0].tolist() == [[5.0], [15.0]]


@pytest.mark.parametrize(
    ("raw", "layer", "wanted"),
    [
        ({}, 1, 4.0),
        ({"scale_attn_by_inverse_layer_idx": True}, 1, 2.0),
        ({"use_attn_scale": False}, 0, 8.0),
        ({"attn_scale": 4.0}, 0, 2.0),
        ({"attn_scale": -1}, 0, 4.0),
    ],
)
def test_attention_scale(raw: dict[str, Any], layer: int, wanted: float) -> None:
    """Pitfall 13: q·k = 8 with d_head 4."""
    sizes = {"n_layers": 2, "n_heads": 1, "d_model": 4, "d_head": 4, "d_vocab": 2, "n_ctx": 2}
    read = Config.from_mapping(sizes | {"attn_only": True} | raw)
    assert 8 / read.attn_scale[layer] == wanted


def test_scores_below_any_finite_fill_are_still_masked() -> None:
    """Pitfall 14: real scores of -1.2e5 lose to a fill of -1e5, not to minus infinity."""
    scores = np.array([[-1.2e5, 0.0], [-1.2e5, -1.3e5]])
    pattern = masked_softmax(scores, np.array([[True, False], [True, True]]))
    assert pattern.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_a_row_without_keys_is_zero_and_nan_does_not_spread() -> None:
    """Pitfall 14: such a row contributes only through the residual."""
    pattern = masked_softmax(np.full((2, 2), 1e308), np.array([[False, False], [True, True]]))
    assert pattern.tolist() == [[0.0, 0.0], [0.5, 0.5]]
    run = laws.random_model(seed=1).run([3, 1, 4], mask=[0, 0, 1])
    assert not run.patterns[0][:, 0].any()
    assert np.isfinite(run.dense.residual[-1]).all()


def test_positions_are_counted_over_real_tokens() -> None:
    """Pitfall 15: a left-padded prompt gives the table of the unpadded one."""
    model = laws.random_model(seed=2)
    alone, padded = model.run([3, 1]), model.run([5, 5, 3, 1], mask=[0, 0, 1, 1])
    assert padded.dense.places.tolist() == [[0, 0, 0, 1]]
    one, other = alone.paths(2, top=4), padded.paths(2, top=4)
    assert [row.path for row in one] == [row.path for row in other]
    assert [row.value for row in one] == pytest.approx([row.value for row in other], rel=1e-12)
    tokens = [(row.source_token.position, row.source_token.id) for row in one if row.source_token]
    moved = [(row.source_token.position, row.source_token.id) for row in other if row.source_token]
    assert moved == [(position + 2, token) for position, token in tokens]


def test_given_ids_are_never_changed() -> None:
    """Pitfall 15: no start token is added to ids, whatever the configuration says."""
    tensors = {n: np.array(a) for n, a in laws.random_model(seed=2).weights.named()}
    raw = {"n_layers": 2, "n_heads": 3, "d_model": 7, "d_head": 2, "d_vocab": 13, "d_vocab_out": 11}
    more = {"n_ctx": 5, "default_prepend_bos": True, "bos_token_id": 0, "attn_only": True}
    model = from_state_dict(tensors, raw | more)
    assert model.run([0, 0, 3]).tokens.tolist() == [0, 0, 3]
    assert model.run(np.array([[3, 0]])).tokens.tolist() == [3, 0]
    assert model.run([0, 3]).dense.mask.all()


def test_one_dimensional_and_ragged_inputs() -> None:
    """Pitfall 35."""
    model = laws.random_model(seed=2)
    runs = model.runs([[3], [1, 4, 1, 5], np.array([9, 2])])
    assert [run.tokens.tolist() for run in runs] == [[3], [1, 4, 1, 5], [9, 2]]
    for run in runs:
        alone = model.run(run.tokens)
        assert run.logits() == pytest.approx(alone.logits(), rel=1e-11)


@pytest.mark.parametrize(
    ("prompt", "mask", "message"),
    [
        ([], None, "at least one token"),
        ("", None, "token ids"),
        ("text", None, "no tokenizer.json"),
        ([13], None, "token id 13 at position 0: wanted an id from 0 to 12"),
        ([0, -1], None, "token id -1 at position 1"),
        ([0] * 6, None, "at most 5 tokens"),
        ([0.5], None, "whole numbers"),
        ([[0], [1]], None, "one row"),
        ([0, 1], [1], "2 values"),
        ([0, 1], [0, 0], "at least one real token"),
        ([0, 1], [1, 2], "0 or 1"),
    ],
)
def test_bad_prompts(prompt: Any, mask: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message) as error:
        laws.random_model(seed=2).run(prompt, mask=mask)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("position", "place"),
    [(None, 2), (0, None), (1, 1), (-2, 2), (-1, None), (4, None), (-5, None)],
)
def test_positions(position: Any, place: int | None) -> None:
    run = laws.random_model(seed=2).run([0, 3, 1, 0], mask=[0, 1, 1, 0])
    if place is not None:
        assert run.position(position) == place
        return
    with pytest.raises(PromptError, match="position"):
        run.position(position)


@pytest.mark.parametrize("position", [1.0, "1", True])
def test_positions_are_whole_numbers(position: Any) -> None:
    with pytest.raises(PromptError, match="whole number"):
        laws.random_model(seed=2).run([0, 3]).position(position)


def test_overflow_is_told_in_one_line() -> None:
    model = laws.random_model(seed=1, scale=1e150)
    with pytest.raises(ModelError, match="finite numbers, got overflow in layer 0"):
        model.run([1, 2, 3])


def test_overflow_in_the_logits_is_told_too() -> None:
    model = laws.random_model(seed=1)
    tensors = {name: np.array(array) for name, array in model.weights.named()}
    tensors["unembed.W_U"] = np.full((7, 11), 1.7e308)
    tensors["embed.W_E"] = tensors["embed.W_E"] * 1e5
    run = from_state_dict(tensors, model.config).run([1, 2, 3])
    for look in (run.logits, run.paths, lambda: run.paths(1, centred=False)):
        with pytest.raises(ModelError, match="overflow in the logits"):
            look()


def test_logits_of_several_streams_at_once() -> None:
    weights = laws.random_model(seed=1).weights
    streams = np.arange(14.0).reshape(2, 7)
    assert logits(weights, streams)[1] == pytest.approx(logits(weights, streams[1]))
