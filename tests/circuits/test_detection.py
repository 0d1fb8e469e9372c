from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.circuits.detection import (
    BEHAVIOURS,
    Detection,
    detect,
    detect_on,
    repeated_tokens,
    visible_keys,
    wanted_keys,
)
from pathexpand.errors import PathExpandError
from pathexpand.laws.design import Design, random_transformer
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import forward
from pathexpand.symbolic import Head
from pathexpand.table import AnalysisTable

TEXT = "to be, or not to be, that is the question: whether to be or not to be. " * 3


def patterns(checkpoint: Checkpoint, tokens: Any) -> np.ndarray:
    """Give all heads' patterns on one prompt: (head of any layer, query, key)."""
    ids = np.asarray(tokens)[None]
    run = forward(checkpoint.weights, checkpoint.config, ids, np.ones(ids.shape, dtype=bool))
    return np.concatenate([each[0] for each in run.patterns])


def by_loops(
    pattern: np.ndarray, tokens: Any, name: str, window: int | None
) -> tuple[float, float]:
    """Score one head's pattern, and chance, entry by entry."""
    tokens, scores, chances = list(tokens), [], []
    for i in range(len(tokens)):
        seen = [j for j in range(i + 1) if window is None or i - j < window]
        keys = {
            "previous": [j for j in seen if j == i - 1],
            "current": [i],
            "first": [j for j in seen if j == 0 and i > 0],
            "duplicate": [j for j in seen if j < i and tokens[j] == tokens[i]],
            "induction": [j for j in seen if 0 < j < i and tokens[j - 1] == tokens[i]],
        }[name]
        if keys:
            scores.append(sum(pattern[i, j] for j in keys))
            chances.append(len(keys) / len(seen))
    return float(np.mean(scores)), float(np.mean(chances))


@pytest.mark.parametrize("window", [None, 4])
def test_scores_are_means_over_the_queries_that_can(window: int | None) -> None:
    design = Design(n_ctx=11, window=window, sinks=True, n_layers=3)
    checkpoint = random_transformer(design, seed=2, scale=2.0).checkpoint
    tokens = [3, 1, 3, 3, 8, 1, 3, 12, 8, 8, 1]
    found = detect_on(checkpoint, [tokens])
    every = patterns(checkpoint, tokens)
    assert every.sum(axis=2).min() < 0.5  # sinks take some: a pattern is used as it is
    for n, pattern in enumerate(every):
        own = checkpoint.config.window[n // 4]
        for place, name in enumerate(BEHAVIOURS):
            score, chance = by_loops(pattern, tokens, name, own)
            assert found.scores[n, place] == pytest.approx(score, rel=1e-12)
            assert found.chance[n, place] == pytest.approx(chance, rel=1e-12)


def test_several_prompts_are_one_mean_over_their_queries() -> None:
    checkpoint = random_transformer(Design(n_ctx=9), seed=3).checkpoint
    long, short = [1, 2, 3, 1, 2, 3, 3, 7, 1], [4, 4, 5]
    both, one, other = (detect_on(checkpoint, each) for each in ([long, short], [long], [short]))
    counts = np.array(one.queries), np.array(other.queries)
    mean = (one.scores * counts[0] + other.scores * counts[1]) / (counts[0] + counts[1])
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(both.scores[:, [0, 1, 3, 4]], mean[:, [0, 1, 3, 4]], rtol=1e-12)
    assert np.isnan(other.scores[:, BEHAVIOURS.index("induction")]).all()  # 4 4 5: none
    np.testing.assert_allclose(both.scores[:, 2], one.scores[:, 2], rtol=1e-12)
    assert not np.allclose(both.scores[:, 0], (one.scores + other.scores)[:, 0] / 2)


def test_which_keys_belong_to_a_behaviour() -> None:
    tokens = np.array([9, 5, 6, 7, 5, 6, 7])  # a start token, then three tokens twice
    n = 3
    for i in (4, 5, 6):
        assert np.flatnonzero(wanted_keys(tokens, "duplicate")[i]).tolist() == [i - n]
        assert np.flatnonzero(wanted_keys(tokens, "induction")[i]).tolist() == [i - (n - 1)]
    assert not wanted_keys(tokens, "induction")[:4].any()
    assert not wanted_keys(tokens, "duplicate")[:4].any()
    assert wanted_keys(tokens, "previous").sum() == 6
    assert wanted_keys(tokens, "first")[0].sum() == 0
    # Of two equal neighbours, the second is not the token behind its own copy.
    assert not wanted_keys(np.array([5, 5]), "induction").any()
    assert wanted_keys(np.array([5, 6, 5]), "duplicate", causal=False)[0].tolist() == [0, 0, 1]


def planted(pattern_of: Any) -> Checkpoint:
    """Make a model whose one head looks where positions say: p_i W_Q is p of the wanted key."""
    n = 9
    wanted = np.array([pattern_of(i) for i in range(n)])
    d = 2 * n
    config = {
        "n_layers": 1, "n_heads": 1, "d_model": d, "d_head": n, "d_vocab": 7, "n_ctx": n,
        "attn_only": True, "positional_embedding_type": "shortformer", "attn_scale": 1.0,
        "use_attn_scale": False,
    }  # fmt: skip
    rng = np.random.default_rng(0)
    pos = np.concatenate([np.eye(n), np.zeros((n, n))], axis=1)
    W_Q = np.zeros((d, n))
    W_Q[:n] = 60 * np.eye(n)[wanted]
    tensors = {
        "embed.W_E": np.concatenate([np.zeros((7, n)), rng.normal(size=(7, n))], axis=1),
        "pos_embed.W_pos": pos,
        "unembed.W_U": rng.normal(size=(d, 7)),
        "blocks.0.attn.W_Q": W_Q[None],
        "blocks.0.attn.W_K": np.eye(d)[:, :n][None],
        "blocks.0.attn.W_V": rng.normal(size=(1, d, n)),
        "blocks.0.attn.W_O": rng.normal(size=(1, n, d)),
    }
    config.pop("attn_scale")
    return pathexpand.from_state_dict(tensors, config).checkpoint


# 9 positions, no start token: 4 tokens, twice. A query in the second copy is at 4 … 7.
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("previous", lambda i: max(i - 1, 0)),
        ("duplicate", lambda i: i - 4 if i >= 4 else i // 2),
        ("induction", lambda i: i - 3 if i >= 4 else i // 2),
        ("current", lambda i: i),
        ("first", lambda i: 0),
    ],
)
def test_a_planted_head_is_found_and_no_other_behaviour_is(name: Any, key: Any) -> None:
    found = detect(planted(key), batch=3)
    scores = dict(zip(BEHAVIOURS, found.scores[0], strict=True))
    assert scores[name] == pytest.approx(1, abs=1e-9)
    assert all(score < 0.5 for other, score in scores.items() if other != name)
    assert [other for other in BEHAVIOURS if found.passing(other)] == [name]


def test_an_induction_window_that_is_one_off_is_another_behaviour() -> None:
    """The duplicate head looks at i − n, the induction head at i − (n − 1)."""
    head = planted(lambda i: max(i - 4, 0))
    assert detect(head, batch=2).of("L0H0", "induction") < 0.01


def test_uniform_attention_scores_chance() -> None:
    flat = planted(lambda i: i)
    blocks = tuple(
        replace(block, attn=replace(block.attn, W_Q=0 * block.attn.W_Q))
        for block in flat.weights.blocks
    )
    found = detect(Checkpoint(flat.config, replace(flat.weights, blocks=blocks)), batch=2)
    np.testing.assert_allclose(found.scores, found.chance, rtol=1e-12)
    wanted = np.mean([1 / (i + 1) for i in range(4, 8)])
    assert found.chance[0, BEHAVIOURS.index("induction")] == pytest.approx(wanted)


def test_a_window_too_narrow_for_a_behaviour_gives_none() -> None:
    design = Design(n_ctx=11, window=2, n_layers=2)  # in layers 0, 2, …
    checkpoint = random_transformer(design, seed=2).checkpoint
    assert visible_keys(checkpoint.config, 0, 5).sum(axis=1).tolist() == [1, 2, 2, 2, 2]
    found = detect(checkpoint, batch=2, length=5)
    at = BEHAVIOURS.index("induction")
    assert np.isnan(found.scores[:4, at]).all() and np.isfinite(found.scores[4:, at]).all()
    assert found.table()[0]["induction"] is None
    assert np.isfinite(found.chance[:4, 0]).all()


# --- what is read --------------------------------------------------------------------------------


def test_random_tokens_are_distinct_plain_and_repeated() -> None:
    two = pathexpand.load("two-layer").checkpoint
    rows = repeated_tokens(two, batch=5, length=20, seed=1)
    assert rows.shape == (5, 41) and (rows[:, 0] == 0).all()  # the start token of this model
    assert np.array_equal(rows[:, 1:21], rows[:, 21:])
    assert all(len(set(row[1:21])) == 20 and 0 not in row[1:] for row in rows)
    assert len({tuple(row) for row in rows}) == 5
    assert not np.array_equal(rows, repeated_tokens(two, batch=5, length=20, seed=2))
    bare = random_transformer(Design(n_ctx=7, d_vocab=2), seed=1).checkpoint
    assert repeated_tokens(bare, batch=2).shape == (2, 4)  # no start token, two tokens at most


def test_long_texts_are_read_in_pieces() -> None:
    two = pathexpand.load("two-layer").checkpoint
    size = len(two.tokenizer.encode(TEXT * 5)) if two.tokenizer else 0
    pieces = -(-size // (two.config.n_ctx - 1))
    found = detect_on(two, [TEXT * 5])
    assert f"{size + pieces:,} tokens" in found.read and f"{pieces} pieces" in found.read
    short = detect_on(two, ["to be"])
    assert "1 piece" in short.read


def test_the_embedded_model() -> None:
    two = pathexpand.load("two-layer").checkpoint
    found = detect(two)
    # The card of the model was measured on the same kind of rows, by other code.
    for head, previous, induction in (("L0H3", 0.98, 0.00), ("L1H0", 0.01, 0.89)):
        assert found.of(head, "previous") == pytest.approx(previous, abs=0.03)
        assert found.of(head, "induction") == pytest.approx(induction, abs=0.03)
    assert [head.label for head in found.passing("previous")] == ["L0H3"]
    text = detect_on(two, [TEXT])
    assert text.passing("previous")[0] == Head(0, 3)
    assert text.heads[int(text.scores[:, BEHAVIOURS.index("induction")].argmax())] == Head(1, 0)
    table = found.table()
    assert AnalysisTable.from_json(table.to_json()) == table
    assert any(claim.startswith("induction") and "L1H0" in claim for claim in table.claims)
    assert max(map(len, table.to_text(80).splitlines())) <= 80
    assert found.table() == detect(two).table() != detect(two, seed=1).table()


@pytest.mark.shared_models
def test_a_trained_induction_circuit_and_a_broken_one(shared_models: Path) -> None:
    good, broken = (
        detect(pathexpand.load(shared_models / "induction-2l1h" / f"{name}.safetensors").checkpoint)
        for name in ("trained", "broken-circuit")
    )
    assert good.passing("previous") == (Head(0, 0),)
    assert good.passing("induction") == (Head(1, 0),)
    for name in ("previous", "induction"):
        assert broken.passing(name) == ()  # type: ignore[arg-type]
    assert broken.of("L1H0", "induction") < 0.2 < 0.8 < good.of("L1H0", "induction")


# --- refusals ------------------------------------------------------------------------------------


def test_a_model_that_sees_both_ways() -> None:
    both = random_transformer(Design(direction="bidirectional", n_ctx=8), seed=1).checkpoint
    with pytest.raises(PathExpandError, match="causal model, got one that sees both ways"):
        detect(both)
    with pytest.raises(PathExpandError, match="behaviour induction"):
        detect_on(both, [[1, 2, 1]], behaviours=["induction"])
    found = detect(both, behaviours=["duplicate", "current", "first"])
    rows = repeated_tokens(both, batch=16)
    each = [patterns(both, row)[:, range(8), [4, 5, 6, 7, 0, 1, 2, 3]].mean(axis=1) for row in rows]
    np.testing.assert_allclose(found.scores[:, 0], np.mean(each, axis=0), rtol=1e-12)


def test_refusals_are_one_clear_line() -> None:
    two = pathexpand.load("two-layer").checkpoint
    tiny = random_transformer(Design(n_ctx=3), seed=1).checkpoint
    cases: list[tuple[Any, str]] = [
        (lambda: detect(pathexpand.load("zero-layer").checkpoint), "a model with heads"),
        (lambda: detect(tiny), "two repeats"),
        (lambda: detect(two, length=64), "2 to 63"),
        (lambda: detect(two, length=1), "2 to 63"),
        (lambda: detect(two, batch=0), "batch"),
        (lambda: detect(two, threshold=0), "threshold"),
        (lambda: detect(two, behaviours=["copy"]), "behaviour"),  # type: ignore[list-item]
        (lambda: detect(two, behaviours=[]), "at least one"),
        (lambda: detect_on(two, []), "at least one"),
        (lambda: detect_on(two, [[5, 6]], behaviours=["induction"]), "could show"),
        (lambda: detect_on(two, [[5000]]), "5000"),
        (lambda: detect(two, batch=1).of("L5H0", "first"), "L5H0"),
    ]
    for call, words in cases:
        with pytest.raises(PathExpandError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_wrong_value_cannot_be_built() -> None:
    good: dict[str, Any] = {
        "model": "m", "read": "r", "heads": (Head(0, 0),), "behaviours": ("first",),
        "scores": np.ones((1, 1)), "chance": np.ones((1, 1)), "queries": (3,), "threshold": 0.4,
    }  # fmt: skip
    assert Detection(**good).of("L0H0", "first") == 1
    for wrong in ({"scores": np.ones((1, 2))}, {"queries": ()}, {"threshold": 2.0}):
        with pytest.raises(PathExpandError):
            Detection(**good | wrong)


def test_the_model_is_left_as_it_was() -> None:
    """PITFALLS 28: an analysis leaves no trace, also after an error."""
    checkpoint = random_transformer(Design(), seed=4).checkpoint
    before = checkpoint.digest()
    detect(checkpoint, batch=2)
    with pytest.raises(PathExpandError):
        detect_on(checkpoint, [[99]])
    assert checkpoint.digest() == before
