"""What stands in a table can be given to another call, or is refused in one clear line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.api import Run
from pathexpand.errors import PathExpandError
from pathexpand.laws.problems import random_model
from pathexpand.table import PathTable, SourceToken
from pathexpand.target import DifferenceTarget, LogitTarget


@pytest.fixture(scope="module")
def run() -> Run:
    return pathexpand.load("two-layer").run("to be or not to be, the")


@pytest.fixture(scope="module")
def table(run: Run) -> PathTable:
    return run.paths(top=12, query="embed > *")


def test_a_source_token_is_a_target(run: Run, table: PathTable) -> None:
    for row in table:
        token, record = row.source_token, row.record()
        assert token is not None
        wanted = LogitTarget(token.id)
        frame = table.to_pandas().iloc[row.rank - 1]
        for given in (
            *(token, token.id, np.int64(token.id), np.uint16(token.id), np.array(token.id)),
            *(token.text, record["source_token"], record["source_id"], str(token.id)),
            *(frame.source_token, frame.source_id, np.str_(token.text), f"#{token.id}"),
        ):
            assert run.target(given) == wanted, given


def test_every_token_is_read_as_it_is_written(run: Run) -> None:
    """But where two tokens look the same, or a text in quotes is itself a token."""
    tokenizer = run.model.tokenizer
    assert tokenizer is not None
    read = 0
    for token in range(run.model.config.d_vocab):
        text = tokenizer.show(token)
        found = tokenizer.shown_as(text)
        if found is None:
            continue
        assert found == token
        taken = len(tokenizer.encode(text)) == 1 or tokenizer.named(text) is not None
        read += not taken
        assert taken or run.target(text) == LogitTarget(token), text
    assert read > 1000


def test_pairs_of_them_are_differences(run: Run, table: PathTable) -> None:
    one, other = table.tokens[1], table.tokens[3]
    wanted = DifferenceTarget(one.id, other.id)
    for pair in ((one, other), (one, other.text), (np.int32(one.id), other)):
        assert run.target(pair) == wanted
    assert run.target(f"{one.text}-{other.text}") == wanted


def test_a_token_without_a_text_is_known_by_its_number() -> None:
    run = random_model(seed=1).run([1, 2])
    assert run.target(SourceToken(1, 3, "#3")) == run.target("#3") == run.target(3)


def test_a_token_of_another_model_is_refused(run: Run) -> None:
    with pytest.raises(PathExpandError, match="target id 99999: wanted an id from 0 to"):
        run.target(SourceToken(0, 99999, "' x'"))


def test_paths_positions_and_queries(run: Run, table: PathTable) -> None:
    frame = table.to_pandas()
    for row in table:
        for given in (row.path, np.str_(row.path), frame.path[row.rank - 1]):
            assert run.value(given) == row.value
        assert run.paths(query=row.path).rows[0].value == row.value
        place = frame.source_position[row.rank - 1]
        assert run.paths(position=place, top=1).position == place
    assert run.paths(top=12, query=table.query) == table
    for each in run.totals_table(by="pair"):
        assert run.total(f"any > {each.part} > *").sum() == pytest.approx(each.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda run, table: run.target(table.target), "one token, got .*; give the token alone"),
        (lambda run, table: run.target(table), "a token's text or id, got"),
        (lambda run, table: run.target(table[0]), "a token's text or id, got PathRow"),
        (lambda run, table: run.target("' be' @2"), "one token, got 6"),
        (lambda run, table: run.target(np.float64(3)), "a token's text or id, got"),
        (lambda run, table: run.target([3, 4]), "a token's text or id, got"),
        (lambda run, table: run.value(table[0]), "path: wanted text such as"),
        (lambda run, table: run.value("(remainder)"), r"path '\(remainder\)'"),
        (lambda run, table: run.paths(query=table[0]), "query: wanted text, got PathRow"),
        (lambda run, table: run.paths(position=table.tokens[1]), "position: wanted a whole"),
        (lambda run, table: run.model.run(table.tokens), "prompt: wanted whole numbers as ids"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: Run, table: PathTable, call: Any, said: str) -> None:
    with pytest.raises(PathExpandError, match=said) as error:
        call(run, table)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300
