"""Attention scores over nodes: all pairs add up, and the largest are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.api import Model, Run
from pathexpand.circuits import legs
from pathexpand.errors import PathExpandError, PromptError
from pathexpand.features import attention as attention_module
from pathexpand.features import replacement as replacement_module
from pathexpand.features.attention import AttentionScore, attention_score
from pathexpand.features.graph import name_of
from pathexpand.features.replacement import Replacement
from pathexpand.symbolic import Head
from tests.api.models import SIZES, small, tensors
from tests.features.chains import born, spread
from tests.features.graphs import PROMPT, family, made_of, random_units
from tests.reference import test_families as families

Array = np.ndarray[Any, Any]
KINDS: dict[str, dict[str, Any]] = {
    "cross": {"clt": True, "activation": "jumprelu", "skip": True},
    "plain": {},
    "stream": {"kind": "sae", "hook": "resid_post", "layers": [0]},
}


def pairs(score: AttentionScore) -> Array:
    """Form the matrix of all pairs: (node, node)."""
    return np.asarray(score.queries @ score.keys.T)


def places(run: Run, head: Head) -> tuple[int, int, int]:
    """Give a query and the two furthest keys that a head sees from it."""
    query = int(np.flatnonzero(run.dense.mask[0])[-1])
    seen = np.flatnonzero(run.dense.layers[head.layer].pattern[0, head.index, query])
    return query, int(seen[1]), int(seen[0])


def closes(score: AttentionScore) -> bool:
    gross = abs(score.queries).sum(axis=0) @ abs(score.keys).sum(axis=0)
    assert 0 < score.gap_bound <= 1e-8 * gross
    assert abs(score.score - pairs(score).sum() - score.gap) <= 1e-12 * gross
    return score.closes


def some_heads(run: Run) -> list[Head]:
    blocks = run.model.weights.blocks
    return [Head(layer, (layer + 1) % len(block.attn.W_Q)) for layer, block in enumerate(blocks)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", families.OWN)
def test_the_pairs_of_every_architecture_add_up(name: str, kind: str, tmp_path: Path) -> None:
    run = family(name, tmp_path)
    made = made_of(run, random_units(run, **KINDS[kind]), 1)
    capped = run.model.config.attn_scores_soft_cap is not None
    for head in some_heads(run):
        query, key, over = places(run, head)
        one, other = (attention_score(made, head, query, each) for each in (key, over))
        assert closes(one) and closes(other)
        if capped:
            with pytest.raises(PathExpandError, match="a soft cap of"):
                attention_score(made, head, query, key, over=over)
            continue
        apart = attention_score(made, head, query, key, over=over)
        assert closes(apart)
        assert apart.score == pytest.approx(one.score - other.score, rel=1e-12, abs=1e-12)
        near = 1e-12 * (abs(pairs(one)).max() + abs(pairs(other)).max())
        assert abs(pairs(apart) - (pairs(one) - pairs(other))).max() <= near
        if run.model.config.alibi:
            continue
        # It is the softmax's own: the score of one key over another is the log of their shares.
        pattern = run.dense.layers[head.layer].pattern[0, head.index, query]
        if min(pattern[key], pattern[over]) > 1e-8:
            told = float(np.log(pattern[key] / pattern[over]))
            assert apart.score == pytest.approx(told, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("model", ["layer norm", "shortformer", "bare shortformer", "alibi"])
@pytest.mark.parametrize("kind", KINDS)
def test_positions_of_every_kind_add_up(model: str, kind: str) -> None:
    run = model_of(model).run(PROMPT)
    made = made_of(run, random_units(run, **KINDS[kind]), 2)
    for head in (Head(0, 1), Head(1, 2), Head(2, 0)):
        for over in (None, 1):
            score = attention_score(made, head, 6, 3, over=over)
            assert closes(score)
    if model == "alibi":
        alibi = run.model.config.alibi
        assert alibi is not None
        apart = attention_score(made, Head(1, 2), 6, 3, over=1)
        pattern = run.dense.layers[1].pattern[0, 2, 6]
        told = float(np.log(pattern[3] / pattern[1]))
        assert apart.score + 2 * alibi[2] == pytest.approx(told, rel=1e-9)


def model_of(name: str) -> Model:
    if name == "bare shortformer":
        bare = {key: value for key, value in tensors(5, n_layers=3).items() if "ln" not in key}
        config = SIZES | {"n_ctx": 9, "n_layers": 3, "normalization_type": None, "act_fn": "gelu"}
        bare = {key: value / 2 for key, value in bare.items()}
        return pathexpand.from_state_dict(
            bare, config | {"positional_embedding_type": "shortformer"}
        )
    raw = {} if name == "layer norm" else {"positional_embedding_type": name}
    return small(5, sizes={"n_layers": 3}, **raw)


@pytest.mark.parametrize("kind", ["plain", "cross", "stream"])
def test_what_each_node_brings_is_what_its_chains_bring(kind: str) -> None:
    """The rows of both sides, in plain numpy: the chains before a head, its norm, W_Q and W_K."""
    run = small(6, sizes={"n_layers": 3}).run(PROMPT)
    units = random_units(run, features=9, **KINDS[kind])
    made = made_of(run, units)
    head, query, key = Head(2, 1), 5, 3
    score = attention_score(made, head, query, key)
    block = run.model.weights.blocks[head.layer]
    attn, norm = block.attn, block.ln1
    assert norm is not None and norm.weight is not None and norm.bias is not None
    assert attn.b_Q is not None and attn.b_K is not None
    stream = run.dense.residual[head.layer][0]
    scale = norm.weight / np.sqrt(stream.var(axis=1, keepdims=True) + norm.eps)
    root = np.sqrt(SIZES["d_head"])
    seen = 0
    for n, node in enumerate(made.nodes):
        if node.kind == "mlp":
            continue
        own = node.kind in ("feature", "error") or node.label.endswith("b_dec")
        behind = units.kind == "saes" and own
        chains = spread(run, units, born(run, units, node), 2 * head.layer, behind=behind)
        brought = sum(chains.values(), np.zeros_like(stream))
        read = (brought - brought.mean(axis=1, keepdims=True)) * scale
        near = 1e-12 * (1 + abs(score.queries).max())
        assert abs(score.queries[n] - read[query] @ attn.W_Q[1] / root).max() <= near
        assert abs(score.keys[n] - read[key] @ attn.W_K[1]).max() <= near * root
        seen += bool(brought.any())
    assert seen > 30
    constant = norm.bias @ attn.W_Q[1] + attn.b_Q[1]
    assert np.allclose(score.queries[-1], constant / root, rtol=1e-12)
    assert np.allclose(score.keys[-1], norm.bias @ attn.W_K[1] + attn.b_K[1], rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("over", [None, 2])
def test_the_listed_pairs_are_the_largest(seed: int, over: int | None) -> None:
    run = small(seed, sizes={"n_layers": 3}).run(PROMPT)
    made = made_of(run, random_units(run, seed=seed, **KINDS["cross"]))
    score = attention_score(made, Head(2, seed % 3), 6, 4, over=over)
    every = pairs(score)
    table = score.table(17)
    order = np.argsort(-abs(every), axis=None, kind="stable")[:17]
    wanted = every.ravel()[order]
    assert np.allclose(table.column("value"), wanted, rtol=1e-12, atol=0)
    left, right = score.names("query"), score.names("key")
    named = [(left[n // len(right)], right[n % len(right)]) for n in order]
    listed = zip(table.column("query node"), table.column("key node"), strict=True)
    assert list(listed) == named
    assert np.allclose(table.column("running"), np.cumsum(wanted), rtol=1e-12)
    assert np.allclose(table.column("share"), wanted / score.score, rtol=1e-12)
    sums = {row.label: row.value for row in table.closing}
    assert sums["listed"] + sums["not listed"] + sums["gap"] == pytest.approx(sums["score"])
    assert table.good
    for n, (row, column) in enumerate(zip(*np.unravel_index(order, every.shape), strict=True)):
        assert score.pair(int(row), int(column)) == pytest.approx(wanted[n], rel=1e-12)


def test_marginals_are_sums_of_the_pairs() -> None:
    run = small(3, sizes={"n_layers": 3}).run(PROMPT)
    made = made_of(run, random_units(run, **KINDS["plain"]))
    for over in (None, 0):
        score = attention_score(made, Head(1, 2), 5, 3, over=over)
        every = pairs(score)
        near = 1e-12 * abs(every).sum()
        assert abs(score.by_query() - every.sum(axis=1)).max() <= near
        assert abs(score.by_key() - every.sum(axis=0)).max() <= near
        assert abs(score.by_query().sum() - score.score) <= near + score.gap_bound
        assert score.pair(-1, -1) == pytest.approx(every[-1, -1])
        names = [name_of(node) for node in made.nodes]
        assert score.names("query") == (*names, "b_Q")
        assert score.names("key") == (*names, "b_K")
    assert abs(score.keys[-1]).max() < 1e-12  # the constants of two keys are the same here


def test_nothing_before_a_cut_is_compared_behind_it() -> None:
    run = small(4, sizes={"n_layers": 3}).run(PROMPT)
    made = made_of(run, random_units(run, **KINDS["stream"]))
    score = attention_score(made, Head(1, 0), 5, 3)
    early = [node.kind in ("token", "position") for node in made.nodes] + [False]
    features = [node.kind == "feature" for node in made.nodes] + [False]
    assert not score.queries[early].any() and not score.keys[early].any()
    assert score.queries[features].any() and score.keys[features].any()
    before = attention_score(made, Head(0, 0), 5, 3)
    assert before.queries[early].any() and not before.queries[features].any()


def test_the_table_fits_and_names_its_sides() -> None:
    run = small(4).run(PROMPT)
    made = made_of(run, random_units(run))
    text = str(attention_score(made, Head(1, 0), 5, 3, over=1))
    assert max(map(len, text.splitlines())) <= 80
    for said in ("L1H0", "query node", "key node", "not listed", "over", "rounding allows"):
        assert said in text


def test_heads_that_are_not_there_are_refused_in_one_line() -> None:
    run = small(4).run(PROMPT)
    made = made_of(run, random_units(run))
    for head in (Head(1, 3), Head(2, 0)):
        with pytest.raises(PathExpandError, match="wanted a head of 2 layers of 3") as caught:
            attention_score(made, head, 5, 3)
        assert len(str(caught.value).splitlines()) == 1


def test_a_key_that_the_mask_hides_is_refused_as_by_the_run() -> None:
    """Its softmax never sees that score: there is nothing to explain."""
    run = small(4).run(PROMPT)
    made = made_of(run, random_units(run))
    hidden = "wanted a position that L1H0 sees from 3"
    with pytest.raises(PromptError, match=f"key 5: {hidden}"):
        attention_score(made, "L1H0", 3, 5)
    with pytest.raises(PromptError, match=f"key 4: {hidden}"):
        attention_score(made, "L1H0", 3, 1, over=4)
    with pytest.raises(PromptError, match=f"key 5: {hidden}"):
        run.scores("L1H0", query=3, key=5)
    with pytest.raises(PathExpandError, match="wanted two positions, got position 3 for both"):
        attention_score(made, "L1H0", 5, 3, over=3)


def test_positions_count_from_the_end_too_and_errors_say_which() -> None:
    run = small(4).run(PROMPT)
    made, size = made_of(run, random_units(run)), run.dense.mask.shape[1]
    one, other = (
        attention_score(made, "L1H0", size - 1, 1, over=2),
        attention_score(made, "L1H0", -1, 1 - size, over=2 - size),
    )
    assert (one.query, one.key, one.over) == (other.query, other.key, other.over)
    assert one.score == other.score
    for wrong in (True, 1.5, "3", None):
        with pytest.raises(PromptError, match="key: wanted a whole number"):
            attention_score(made, "L1H0", 5, wrong)  # type: ignore[arg-type]
    with pytest.raises(PromptError, match=f"over {size}: wanted -{size} to {size - 1}"):
        attention_score(made, "L1H0", 5, 3, over=size)


# --- engines that are wrong -------------------------------------------------------------------


def no_constant(patch: pytest.MonkeyPatch) -> None:
    right = legs._Attending._raw

    def raw(self: Any, side: str, position: int) -> Any:
        read, constant, size = right(self, side, position)
        return read, 0 * constant, size

    patch.setattr(legs._Attending, "_raw", raw)


def later_turn(patch: pytest.MonkeyPatch) -> None:
    right = legs.turn
    patch.setattr(legs, "turn", lambda r, d, place, n: right(r, d, place + (place > 2), n))


def other_heads_key(patch: pytest.MonkeyPatch) -> None:
    def tiled(self: Any, side: str) -> int:
        return int(self.head.index % len(self.attn.W_K)) if side == "key" else self.head.index

    patch.setattr(legs._Attending, "_index", tiled)


def no_biases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replacement_module._Builder, "one", lambda *given, **named: None)


def a_stage_late(patch: pytest.MonkeyPatch) -> None:
    right = attention_module._side

    def side(made: Replacement, boundary: int, *given: Any) -> Any:
        return right(made, boundary + 1, *given)

    patch.setattr(attention_module, "_side", side)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (no_constant, "gpt2"),
        (later_turn, "llama"),
        (other_heads_key, "llama"),
        (no_biases, "gpt2"),
        (a_stage_late, "gpt_neox"),
        (a_stage_late, "gemma2"),
    ],
)
def test_a_broken_engine_does_not_add_up(
    fault: Callable[[pytest.MonkeyPatch], None],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    run = family(name, tmp_path)
    units = random_units(run, **KINDS["cross"])
    head = Head(1, 1)
    query, key, _ = places(run, head)
    assert attention_score(made_of(run, units), head, query, key).closes
    fault(monkeypatch)
    assert not attention_score(made_of(run, units), head, query, key).closes
