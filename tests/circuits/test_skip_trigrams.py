"""Skip-trigrams against their definition, on every triple of small models; bigrams of a text."""

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from pathexpand.circuits.bigrams import TextBigrams, bigrams
from pathexpand.circuits.circuit import ov, qk
from pathexpand.circuits.largest import By
from pathexpand.circuits.skip_trigrams import SkipTrigrams, skip_trigrams
from pathexpand.circuits.wiring import embedding, unembedding
from pathexpand.errors import PathExpandError
from pathexpand.model.checkpoint import Checkpoint, read_checkpoint
from tests.api.models import small
from tests.circuits.test_wiring import family


def defined(
    checkpoint: Checkpoint, head: str, n: int, counts: Any = None, offset: int | None = None
) -> Any:
    """Give all effects by the definition: (source, destination, output)."""
    scores = qk(checkpoint, head, offset=offset).matrix.dense()  # (destination, source)
    logits = ov(checkpoint, head).matrix.dense()
    logits = logits - logits.mean(axis=1, keepdims=True)
    weights = np.ones(len(scores)) if counts is None else np.asarray(counts, dtype=float)
    usual = np.exp(scores) @ (weights / weights.sum())  # (destination,)
    attention = np.exp(scores) / (np.exp(scores) + (n - 1) * usual[:, None])
    return attention.T[:, :, None] * logits[:, None, :]


@pytest.mark.parametrize("by", ["value", "size"])
@pytest.mark.parametrize("k", [1, 9, 200, 13**3])
def test_it_is_the_largest_of_all_triples(k: int, by: By) -> None:
    checkpoint = small(5).checkpoint
    effects = defined(checkpoint, "L0H1", 16)
    found = skip_trigrams(checkpoint, "L0H1").top(k, by=by).found
    keys = effects.ravel() if by == "value" else abs(effects).ravel()
    order = np.argsort(-keys, kind="stable")[:k]
    places = [(each.source * 13 + each.destination) * 13 + each.output for each in found]
    np.testing.assert_allclose([each.effect for each in found], effects.ravel()[order], rtol=1e-8)
    assert len(set(places)) == k
    np.testing.assert_allclose(effects.ravel()[places], effects.ravel()[order], rtol=1e-8)


def test_context_corpus_and_offset_are_used() -> None:
    plain, turned = small().checkpoint, family("llama")
    corpus = [0, 3, 3, 7, 3, 12, 1]
    counts = np.bincount(corpus, minlength=13)
    for checkpoint, context, text, offset in (
        (plain, 3, None, None),
        (plain, 16, corpus, None),
        (turned, 5, None, 2),
    ):
        trigrams = skip_trigrams(checkpoint, "L1H2", context=context, corpus=text, offset=offset)
        weights = None if text is None else counts
        effects = defined(checkpoint, "L1H2", context, weights, offset)
        best = trigrams.top(4).found
        assert [each.effect for each in best] == pytest.approx(np.sort(effects.ravel())[:-5:-1])
        one = trigrams.value(3, 4, 5)
        assert one.effect == pytest.approx(effects[3, 4, 5])
        assert one.effect == one.attention * one.logit
    assert not np.allclose(defined(plain, "L1H2", 16, counts), defined(plain, "L1H2", 16))


def test_one_source_alone() -> None:
    checkpoint = small().checkpoint
    effects = defined(checkpoint, "L0H1", 16)[7]
    found = skip_trigrams(checkpoint, "L0H1").of_source(7, 6).found
    assert {each.source for each in found} == {7}
    assert [each.effect for each in found] == pytest.approx(np.sort(effects.ravel())[:-7:-1])


def test_the_search_stops_before_it_has_seen_every_source(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = read_checkpoint("one-layer")
    seen: list[int] = []
    original = SkipTrigrams._of_source

    def counting(self: SkipTrigrams, source: int, k: int, by: By) -> Any:
        seen.append(source)
        return original(self, source, k, by)

    monkeypatch.setattr(SkipTrigrams, "_of_source", counting)
    exact = skip_trigrams(checkpoint, "L0H2").top(5).found
    assert len(seen) < 300
    bound = SkipTrigrams._bounds
    monkeypatch.setattr(SkipTrigrams, "_bounds", lambda *each: bound(*each) * 0.3)  # too small
    assert skip_trigrams(checkpoint, "L0H2").top(5).found != exact or len(seen) > 300


def test_flat_scores_give_each_source_an_equal_share() -> None:
    checkpoint = small().checkpoint
    blocks = list(checkpoint.weights.blocks)
    blocks[0] = replace(blocks[0], attn=replace(blocks[0].attn, W_Q=0 * blocks[0].attn.W_Q))
    flat = replace(checkpoint, weights=replace(checkpoint.weights, blocks=tuple(blocks)))
    one = skip_trigrams(flat, "L0H1", context=7).value(2, 3, 5)
    row = ov(flat, "L0H1").row(2)
    assert one.effect == pytest.approx((row[5] - row.mean()) / 7)


def test_the_embedded_model_shows_real_ones() -> None:
    checkpoint = read_checkpoint("one-layer")
    table = skip_trigrams(checkpoint, "L0H2").top(10).table()
    found = set(
        zip(
            table.column("source"), table.column("destination"), table.column("output"), strict=True
        )
    )
    assert ("' try'", "'\\n   '", "' except'") in found
    assert ("' def'", "'):'", "' def'") in found
    assert "cannot be compared" not in table.claims[0] and "compared" in table.claims[0]


def test_bugs_are_the_other_combinations_of_two() -> None:
    checkpoint = small().checkpoint
    trigrams = skip_trigrams(checkpoint, "L0H1")
    found = trigrams.top(12)
    listed = {(each.source, each.destination, each.output) for each in found.found}
    wanted = {
        (one.source, one.destination, other.output)
        for one, other in product(found.found, repeat=2)
        if one.source == other.source
        and one.destination != other.destination
        and one.output != other.output
    } - listed
    text = [3, 4, 5, 6]
    bugs = trigrams.bugs(found, text=text).found
    assert {
        (bug.unwanted.source, bug.unwanted.destination, bug.unwanted.output) for bug in bugs
    } == wanted
    for bug in bugs:
        each = bug.unwanted
        assert each.effect == pytest.approx(
            trigrams.value(each.source, each.destination, each.output).effect
        )
        assert bug.seen == ((each.destination, each.output) in {(3, 4), (4, 5), (5, 6)})
    assert all(bug.seen is None for bug in trigrams.bugs(found).found)
    sizes = [abs(bug.unwanted.effect) for bug in bugs]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    "corpus", ["text", [], [99], [-1], [[1, 2]], [1.5], [[1], [2, 3]]], ids=str
)
def test_what_is_no_corpus_is_refused(corpus: Any) -> None:
    with pytest.raises(PathExpandError, match="corpus"):
        skip_trigrams(small().checkpoint, "L0H1", corpus=corpus)


def test_wrong_options_are_refused() -> None:
    checkpoint = small().checkpoint
    with pytest.raises(PathExpandError, match="context"):
        skip_trigrams(checkpoint, "L0H1", context=0)
    with pytest.raises(PathExpandError, match="rotary"):
        skip_trigrams(family("llama"), "L0H1")
    with pytest.raises(PathExpandError, match="sources"):
        skip_trigrams(checkpoint, "L0H1").top(3, sources=[13])
    with pytest.raises(PathExpandError, match="by"):
        skip_trigrams(checkpoint, "L0H1").top(3, by="norm")  # type: ignore[arg-type]


def test_claims_say_where_the_tokens_are_taken() -> None:
    claims = " ".join(skip_trigrams(family("gemma2"), "L0H1", offset=1).claims())
    assert "offset of the source" in claims and "scales" in claims and "before the cap" in claims
    plain = " ".join(skip_trigrams(read_checkpoint("one-layer"), "L0H1").claims())
    assert "offset" not in plain and "scales" not in plain


def test_one_token_of_context_takes_all_attention() -> None:
    assert skip_trigrams(small().checkpoint, "L0H1", context=1).value(3, 4, 5).attention == 1.0


def test_bigrams_are_the_softmax_of_the_direct_path() -> None:
    checkpoint = small().checkpoint
    logits = embedding(checkpoint) @ unembedding(checkpoint) + checkpoint.weights.b_U
    dense = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = bigrams(checkpoint)
    np.testing.assert_allclose(found.matrix.dense(), dense, atol=1e-10)
    table = found.top(9)
    assert list(table.column("log p")) == pytest.approx(np.sort(dense.ravel())[:-10:-1])
    np.testing.assert_allclose(found.row(4), dense[4], atol=1e-10)


def test_a_text_beside_the_model() -> None:
    checkpoint = small().checkpoint
    text = [1, 2, 1, 2, 1, 5, 2, 2]
    dense = bigrams(checkpoint).matrix.dense()
    pairs = list(pairwise(text))
    table = bigrams(checkpoint).compare(text, top=3)
    assert table[0]["token id"] == 1 and table[0]["next id"] == 2 and table[0]["count"] == 2
    assert table[0]["log p in the text"] == pytest.approx(np.log(2 / 3))
    assert table[0]["log p"] == pytest.approx(dense[1, 2])
    firsts = text[:-1]
    observed = [np.log(pairs.count(each) / firsts.count(each[0])) for each in pairs]
    model = [dense[each] for each in pairs]
    lines = {each.label: each.value for each in table.closing}
    assert lines["model"] == pytest.approx(-np.mean(model))
    assert lines["text"] == pytest.approx(-np.mean(observed))
    assert lines["difference"] == pytest.approx(np.mean(observed) - np.mean(model))
    assert lines["correlation"] == pytest.approx(np.corrcoef(observed, model)[0, 1])
    assert TextBigrams.of(checkpoint, text).counts.sum() == 7
    with pytest.raises(PathExpandError, match="corpus"):
        bigrams(checkpoint).compare([3])


def test_the_embedded_zero_layer_model_knows_its_bigrams() -> None:
    checkpoint = read_checkpoint("zero-layer")
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None
    text = "the way of the world is that of the one who went on to the end of the day. " * 3
    table = bigrams(checkpoint).compare(tokenizer.encode(text))
    lines = {each.label: each.value for each in table.closing}
    flat = np.log(checkpoint.config.d_vocab)
    assert lines["model"] is not None and lines["model"] < flat - 2
    assert bigrams(checkpoint).top(50).column("p")[-1] > 0.5
