"""Tokens made visible, prompts of text, and targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pathexpand import laws
from pathexpand.api import Model, load
from pathexpand.errors import FileError, PromptError
from pathexpand.model.tokenizer import Tokenizer, show_token
from pathexpand.target import DifferenceTarget, DirectionTarget, LogitTarget


@pytest.fixture(scope="module")
def model() -> Model:
    return load("two-layer")


@pytest.fixture(scope="module")
def tokenizer(model: Model) -> Tokenizer:
    assert model.tokenizer is not None
    return model.tokenizer


@pytest.fixture
def random() -> Model:
    return laws.random_model(seed=1)


def test_every_token_of_the_vocabulary_looks_different(tokenizer: Tokenizer) -> None:
    """Pitfall 36: also two bytes that both decode to U+FFFD."""
    shown = [tokenizer.show(token) for token in range(tokenizer.size)]
    assert len(set(shown)) == tokenizer.size
    assert not any("\ufffd" in text for text in shown)
    assert all(text.isprintable() for text in shown)


def test_spaces_and_control_characters_are_visible(tokenizer: Tokenizer) -> None:
    for text in (" the", "the", "."):
        ids = tokenizer.encode(text)
        assert "".join(tokenizer.show(token) for token in ids).replace("''", "") == f"'{text}'"
    assert "\\n" in tokenizer.show(tokenizer.encode("\n")[0])


def test_ids_outside_and_models_without_tokenizer(tokenizer: Tokenizer) -> None:
    assert tokenizer.show(10**6) == "#1000000"
    assert show_token(None, 3) == "#3"


def test_text_goes_to_ids_and_back(tokenizer: Tokenizer) -> None:
    for text in ("to be or not", "x = [1, 2]\n\treturn", "naïve → é \U0001f600"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_one_start_token_and_never_two(model: Model) -> None:
    start = model.run("to be").tokens[0]
    bare = model.run("to be", prepend_bos=False).tokens
    assert model.run("to be").tokens.tolist() == [start, *bare]
    assert start != bare[0]
    again = model.tokenizer.show(int(start)) + "to be" if model.tokenizer else ""
    assert model.run(again).tokens.tolist() == [start, *bare]


@pytest.mark.parametrize("text", ["", "{}", "not json"])
def test_damaged_tokenizers(text: str, tmp_path: Any) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match=r"tokenizer\.json"):
        Tokenizer(file)


# --- targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (3, LogitTarget(3)),
        (np.int64(3), LogitTarget(3)),
        ("3", LogitTarget(3)),
        ("id:3", LogitTarget(3)),
        ((3, 1), DifferenceTarget(3, 1)),
        (("3", 1), DifferenceTarget(3, 1)),
        ("3-1", DifferenceTarget(3, 1)),
        ("id:3-id:1", DifferenceTarget(3, 1)),
        (LogitTarget(3, centred=False), LogitTarget(3, centred=False)),
    ],
)
def test_targets(given: Any, wanted: Any, random: Model) -> None:
    assert random.run([1, 2]).target(given) == wanted


def test_a_raw_logit_on_request(random: Model) -> None:
    assert random.run([1]).target(3, centred=False) == LogitTarget(3, centred=False)


def test_a_direction_is_copied_and_named(random: Model) -> None:
    direction = np.arange(7)
    found = random.run([1]).target(direction)
    assert isinstance(found, DirectionTarget)
    direction[:] = 0
    assert found.direction.tolist() == list(range(7))


def test_the_most_likely_token_is_the_default(random: Model) -> None:
    run = random.run([1, 2, 3])
    for position in (0, 2):
        best = int(np.argmax(run.logits(position)))
        assert run.target(position=position) == LogitTarget(best)


def test_targets_by_text(model: Model, tokenizer: Tokenizer) -> None:
    run = model.run("to be")
    the, of = tokenizer.encode(" the"), tokenizer.encode(" of")
    assert len(the) == len(of) == 1
    assert run.target(" the") == LogitTarget(the[0])
    assert run.target("text: the") == LogitTarget(the[0])
    assert run.target(" the- of") == DifferenceTarget(the[0], of[0])
    assert run.target((" the", of[0])) == DifferenceTarget(the[0], of[0])
    dash = tokenizer.encode("-")
    assert run.target("-") == LogitTarget(dash[0])
    digit = tokenizer.encode("5")
    assert run.target("text:5") == LogitTarget(digit[0])
    assert run.target("5") == LogitTarget(5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (11, "target id 11: wanted an id from 0 to 10"),
        (-1, "target id -1"),
        ("11", "target id 11"),
        ("id:x", "whole number after id:"),
        (True, "a token's text or id, got True"),
        (1.0, "a token's text or id"),
        ((1, 2, 3), "two tokens, got 3"),
        ((1, 1), "two different tokens"),
        ("1-1", "two different tokens"),
        ("word", "no tokenizer.json"),
        (np.ones(6), r"shape \(7,\), got \(6,\)"),
        (np.full(7, np.nan), "finite numbers"),
    ],
)
def test_bad_targets(given: Any, message: str, random: Model) -> None:
    with pytest.raises(PromptError, match=message) as error:
        random.run([1, 2]).target(given)
    assert "\n" not in str(error.value)


def test_text_that_is_not_one_token(model: Model) -> None:
    with pytest.raises(PromptError, match="wanted one token, got"):
        model.run("to be").target("certainly not one token")


def test_pairs_that_split_in_two_ways(model: Model) -> None:
    """`5---5` is 5 less id -5?, and more: an ambiguous text is refused, not guessed."""
    run = model.run("to be")
    with pytest.raises(PromptError):
        run.target("--" + "-" * 200 + "x")


def test_values_of_each_kind_of_target_are_what_they_say(random: Model) -> None:
    run = random.run([3, 1, 4])
    every = run.logits()
    direction = np.arange(7.0)
    for given, centred, wanted in (
        (3, False, every[3]),
        (3, True, every[3] - every.mean()),
        ((3, 1), True, every[3] - every[1]),
        (direction, True, run.dense.residual[-1][0, -1] @ direction),
    ):
        table = run.paths(given, centred=centred)
        assert table.dense == pytest.approx(wanted, rel=1e-12)
