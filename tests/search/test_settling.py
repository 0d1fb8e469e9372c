"""Ctrl-C while the best paths are worked out one by one: what is listed by then is a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pathexpand.api import load
from pathexpand.engine import search
from tests.search.problems import Problem, faults, random_problem, truths

Size = Callable[[Any], float]


def interrupted(sound: Any, number: int) -> Callable[[Any, Size], Any]:
    """Press Ctrl-C when the path of this number is to be worked out, from 0."""

    def settled(hunt: search.Hunt, size: Size) -> Any:
        done: list[Any] = []

        def cut(path: Any) -> float:
            if len(done) == number:
                raise KeyboardInterrupt
            done.append(path)
            return size(path)

        return sound(hunt, cut)

    return settled


@pytest.fixture(params=[0, 1, 3])
def number(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    found: int = request.param
    monkeypatch.setattr(search.Hunt, "_settled", interrupted(search.Hunt._settled, found))
    return found


def wrong(problem: Problem, *, listing: bool) -> list[str]:
    truth = truths(problem.frozen, problem.readout)
    return list(faults(problem, problem.rank(listing=listing), truth, whole=False))


@pytest.mark.parametrize("listing", [False, True])
def test_what_is_settled_is_listed_and_the_rest_is_bounded(number: int, listing: bool) -> None:
    short = 0
    for seed in range(20_000, 20_080):
        problem = random_problem(seed)
        assert not wrong(problem, listing=listing), f"problem {seed}"
        found = problem.rank(listing=listing).found
        assert len(found.paths) <= number or found.certified
        short += len(found.paths) < min(problem.top, problem.query.count()) and not found.certified
    assert short > 10


def test_a_bound_that_forgets_what_was_not_settled_is_caught(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = search.Hunt._settled

    def forgetful(hunt: search.Hunt, size: Size) -> Any:
        return sound(hunt, size)[0], []

    monkeypatch.setattr(search.Hunt, "_settled", forgetful)
    assert any(wrong(random_problem(seed), listing=False) for seed in range(20_000, 20_080))


def test_the_table_says_what_it_knows(number: int) -> None:
    run = load("two-layer").run("to be or not to")
    table = run.paths(top=5)
    assert len(table) == number
    assert not table.certified
    assert table.closes
    assert "Stopped early" in table.to_text(80)
    values = {str(path): run.value(path) for path in run.model.network.paths()}
    rest = [abs(value) for path, value in values.items() if path not in {r.path for r in table}]
    assert table.bound is not None
    assert max(rest) <= table.bound <= max(rest) * (1 + 1e-6)
