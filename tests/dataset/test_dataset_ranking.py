"""Paths over a data set: equal to brute force, in bounded memory, stopped early with a bound."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathexpand import Budget
from pathexpand.api import Model, Run, from_state_dict, load
from pathexpand.engine import rounds as engine
from pathexpand.engine.energy import energies
from pathexpand.errors import ModelError, PathExpandError, PromptError
from pathexpand.laws.problems import random_model
from pathexpand.laws.reference import references
from pathexpand.laws.strategies import models, prompts
from pathexpand.symbolic import Path
from pathexpand.table.dataset_table import DatasetTable

BY = ("rms", "mean")


def sizes(runs: list[Run], by: str, targets: list[Any]) -> dict[Path, tuple[float, float]]:
    """Give each path's size, and what it may be off by, from independent evaluations."""
    found: dict[Path, list[tuple[float, float]]] = {}
    for run, target in zip(runs, targets, strict=True):
        readout = run.target(target).readout(run.unembed, run.position())
        for each in references(run, readout):
            found.setdefault(each.path, []).append((float(each.value), float(each.rounding)))
    out = {}
    for path, pairs in found.items():
        values, rounding = np.array(pairs).T
        size = math.hypot(*values) / math.sqrt(len(values)) if by == "rms" else abs(values.mean())
        slack = 1e-15 * len(values) * float(abs(values).max())
        out[path] = float(size), 2 * float(rounding.max()) + slack
    return out


def check(table: DatasetTable, known: dict[Path, tuple[float, float]], top: int) -> None:
    assert table.certified
    assert table.closes
    assert table.path_count == len(known)
    assert len(table) == min(top, len(known))
    assert all(row.certain for row in table)
    listed = {Path.parse(row.path): row for row in table}
    assert len(listed) == len(table)
    keys = []
    for path, row in listed.items():
        size = row.rms if table.by == "rms" else abs(row.mean)
        keys.append((-size, path))
        assert abs(size - known[path][0]) <= known[path][1]
    assert keys == sorted(keys)
    last, last_slack = known[keys[-1][1]] if keys else (math.inf, 0.0)
    for path, (size, slack) in known.items():
        if path not in listed:
            assert size <= table.bound * (1 + 1e-12) + slack
            assert size <= last * (1 + 1e-8) + slack + last_slack


@st.composite
def problems(draw: st.DrawFn) -> tuple[Model, list[list[int]], list[int] | None]:
    model = draw(models())
    texts = draw(st.lists(prompts(model), min_size=1, max_size=4))
    ids = st.integers(0, model.config.d_vocab_out - 1)
    own = draw(st.none() | st.lists(ids, min_size=len(texts), max_size=len(texts)))
    return model, texts, own


@settings(max_examples=150)
@given(problems(), st.sampled_from(BY), st.integers(0, 9), st.sampled_from([0, 2**20]))
def test_it_equals_brute_force(problem, by, top, cache):
    model, texts, own = problem
    table = model.dataset_paths(texts, by=by, top=top, targets=own, cache=cache)
    targets = [None] * len(texts) if own is None else own
    check(table, sizes([model.run(text) for text in texts], by, targets), top)


@pytest.mark.parametrize("by", BY)
def test_several_rounds_equal_brute_force(by):
    model = random_model(seed=3, n_layers=5, n_heads=3, scale=1.3, n_ctx=7)
    texts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 1, 2], [3, 3]]
    known = sizes([model.run(text) for text in texts], by, [None] * 4)
    for top in (1, 20, 200, 5000):
        check(model.dataset_paths(texts, by=by, top=top), known, top)


@pytest.mark.parametrize("by", BY)
def test_a_query_and_an_order_are_kept_to(by):
    model = random_model(seed=4, n_layers=3)
    texts, query = [[1, 2, 3], [4, 5]], "* > L0H* > *"
    known = sizes([model.run(text) for text in texts], by, [None, None])
    asked = model.query(query)
    table = model.dataset_paths(texts, by=by, top=4, query=query, max_order=2)
    short = {path: known[path][0] for path in known if asked.matches(path) and path.order <= 2}
    longer = max(known[path][0] for path in known if asked.matches(path) and path.order > 2)
    best = sorted(short, key=lambda path: (-short[path], path))[:4]
    assert [row.path for row in table] == [str(path) for path in best]
    assert sorted(short.values())[-5] <= table.bound
    assert longer <= table.longer_bound
    assert table.outside_count == len(known) - asked.count()
    assert table.closes


def test_moments_are_those_of_the_values():
    model, texts = random_model(seed=5), [[1, 2, 3], [4, 5], [6]]
    table = model.dataset_paths(texts, target=3, top=50)
    for row in table:
        values = np.array([model.run(text).value(row.path, 3) for text in texts])
        assert row.rms == pytest.approx(math.sqrt((values**2).mean()), rel=1e-12)
        assert row.mean == pytest.approx(values.mean(), abs=1e-13)
        assert row.standard_error == pytest.approx(values.std(ddof=1) / math.sqrt(3), rel=1e-9)
    dense = [model.run(text).paths(3).dense for text in texts]
    assert table.dense == pytest.approx(np.mean(dense))
    assert table.remainder_count == 0
    assert table.remainder == 0.0


def test_one_prompt_ranks_as_its_run_does():
    run = load("two-layer").run("to be or not to be")
    table = run.model.dataset_paths(["to be or not to be"], top=8)
    assert [row.path for row in table] == [row.path for row in run.paths(top=8)]
    assert all(row.standard_error is None for row in table)


def test_left_padding_changes_nothing():
    model = random_model(seed=6)
    masks = [[0, 0, 1, 1, 1], None]
    padded = model.dataset_paths([[9, 9, 1, 2, 3], [4, 5]], masks=masks, top=6)
    plain = model.dataset_paths([[1, 2, 3], [4, 5]], top=6)
    assert [row.path for row in padded] == [row.path for row in plain]
    assert [row.rms for row in padded] == pytest.approx([row.rms for row in plain], rel=1e-12)
    assert padded.closes


def changed(model: Model, change: Callable[[dict[str, Any]], None]) -> Model:
    tensors = {name: np.array(array) for name, array in model.weights.named()}
    change(tensors)
    return from_state_dict(tensors, model.config)


@pytest.mark.parametrize("by", BY)
def test_ties_stand_in_the_order_of_paths(by):
    def twins(tensors: dict[str, Any]) -> None:
        for name in tensors:
            if name.startswith("blocks.") and name.endswith(tuple("QKVO")):
                tensors[name][:] = tensors[name][:1]

    model = changed(random_model(seed=7, n_layers=3), twins)
    texts = [[1, 2, 3], [4, 5]]
    every = model.dataset_paths(texts, by=by, top=10**4)
    keys = [(-(row.rms if by == "rms" else abs(row.mean)), Path.parse(row.path)) for row in every]
    assert keys == sorted(keys)
    assert len({size for size, _ in keys}) < len(keys) / 4
    for top in (1, 2, 3, 5, 8, 13):
        some = model.dataset_paths(texts, by=by, top=top)
        assert [row.path for row in some] == [row.path for row in every.rows[:top]]
        assert some.certified


@pytest.mark.parametrize("by", BY)
def test_zero_heads_fill_the_list_in_order(by):
    def zero(tensors: dict[str, Any]) -> None:
        for name in tensors:
            if name.endswith((".W_O", ".b_O")):
                tensors[name] *= 0

    model = changed(random_model(seed=8), zero)
    table = model.dataset_paths([[1, 2], [3]], by=by, top=12)
    assert table.certified
    assert [row.mean == 0 for row in table] == [False] * 3 + [True] * 9
    assert [row.path for row in table[3:]] == [
        str(path)
        for path in itertools.islice(
            (p for p in model.network.paths() if str(p) not in [r.path for r in table[:3]]), 9
        )
    ]


# --- prompts that come and go -------------------------------------------------------------------


class Made:
    """Prompts made when they are asked for, again and again."""

    def __init__(self, count: int, *, seed: int = 0, longest: int = 5) -> None:
        self.count, self.seed, self.longest, self.passes = count, seed, longest, 0

    def __iter__(self) -> Iterator[list[int]]:
        self.passes += 1
        rng = np.random.default_rng(self.seed)
        for _ in range(self.count):
            yield rng.integers(0, 13, size=rng.integers(1, self.longest + 1)).tolist()


def test_generated_prompts_are_read_once_a_round_and_twice_at_the_end():
    made = Made(7)
    table = random_model(seed=9).dataset_paths(made, top=3)
    assert table.prompts == 7
    assert made.passes == table.rounds + 2
    assert table == random_model(seed=9).dataset_paths(list(Made(7)), top=3, cache=0)


def test_memory_does_not_grow_with_prompts():
    model = random_model(seed=9, d_model=31, d_head=17, n_ctx=29)
    one = engine.Prepared(  # what the longest prompt takes
        model.run([1] * 29).frozen, None, energies(model.run([1] * 29).frozen, model.query())
    ).bytes
    one += 29 * 31**2 * 8  # and M at one boundary, while its energies are worked out

    def peak(count: int) -> int:
        tracemalloc.start()
        model.dataset_paths(Made(count, longest=29), top=5, cache=0)
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(60), peak(200)
    assert many < 1.2 * few
    assert many < 8 * one


def test_the_cache_keeps_within_its_bytes():
    model = random_model(seed=9)
    asked = model.query()

    def reading(text: list[int]) -> Any:
        run = model.run(text)

        class Reading:
            frozen = run.frozen
            readout = run.target().readout(run.unembed, run.position())

        return Reading

    whole = engine.Prompts([reading(text) for text in Made(20)], asked, cache=10**9)
    every = [prepared.bytes for prepared in whole.prepared(2)]
    assert len(whole.kept) == 20
    some = engine.Prompts(whole.readings, asked, cache=sum(every[:5]))
    list(some.prepared(2))
    assert 0 < len(some.kept) < 20
    assert sum(each.bytes for each in some.kept.values()) <= sum(every[:5])
    pairs = zip(some.prepared(2), some.prepared(1), strict=True)
    assert [one is other for one, other in pairs].count(True) == len(some.kept)


@pytest.mark.parametrize("name", ["prompts", "targets", "masks"])
def test_what_can_be_read_only_once_is_refused(name):
    given = {"prompts": [[1, 2], [3]], "targets": [1, 2], "masks": [None, None]}
    given[name] = (each for each in given[name])
    with pytest.raises(PromptError, match=f"{name}: wanted something that can be read several"):
        random_model(seed=1).dataset_paths(given.pop("prompts"), **given)


def test_prompts_that_change_are_refused():
    class Changing(Made):
        def __iter__(self) -> Iterator[list[int]]:
            self.seed += 1
            return super().__iter__()

    with pytest.raises(PromptError, match="the same each time"):
        random_model(seed=1).dataset_paths(Changing(5))


# --- budgets ------------------------------------------------------------------------------------


def deep() -> tuple[Model, list[list[int]]]:
    return random_model(seed=11, n_layers=5, scale=1.3), [[1, 2, 3], [4, 5], [6, 7, 8, 9]]


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize(
    "limits",
    [
        {"rounds": 0},
        {"rounds": 1},
        {"rounds": 2},
        {"budget": Budget(nodes=0)},
        {"budget": Budget(nodes=1)},
        {"budget": Budget(nodes=9)},
        {"budget": Budget(nodes=100)},
        {"budget": Budget(seconds=0.0)},
        {"budget": Budget(memory=0)},
        {"rounds": 1, "max_order": 2},
        {"rounds": 0, "max_order": 0},
        {"rounds": 2, "max_order": 1},
    ],
    ids=str,
)
def test_what_stops_early_has_a_bound_that_holds(by, limits):
    model, texts = deep()
    table = model.dataset_paths(texts, by=by, top=30, **limits)
    known = sizes([model.run(text) for text in texts], by, [None] * 3)
    listed = {row.path for row in table}
    most = limits.get("max_order", 99)
    for path, (size, slack) in known.items():
        if str(path) not in listed:
            assert size <= (table.bound if path.order <= most else table.longer_bound) + slack
    assert table.closes
    order = sorted((p for p in known if p.order <= most), key=lambda path: -known[path][0])
    best = [str(path) for path in order]
    for row in table:
        assert not row.certain or row.path in best[:30]
    assert not table.certified or limits.get("max_order") is not None


def test_nodes_are_counted():
    model, texts = deep()
    seen: list[int] = []
    model.dataset_paths(
        texts, top=30, budget=Budget(nodes=70), report=lambda progress: seen.append(progress.nodes)
    )
    assert seen[0] == 1
    assert seen[-1] == 70


@pytest.mark.parametrize("after", [4, 8])
def test_ctrl_c_leaves_what_was_found(after, monkeypatch):
    model, texts = deep()
    add, calls = engine.Round.add, itertools.count()

    def interrupted(self: Any, prompt: Any) -> None:
        if next(calls) == after:
            raise KeyboardInterrupt
        add(self, prompt)

    monkeypatch.setattr(engine.Round, "add", interrupted)
    table = model.dataset_paths(texts, top=30)
    assert not table.certified
    assert table.rounds == after // 3
    monkeypatch.undo()
    assert table == model.dataset_paths(texts, top=30, rounds=after // 3)


# --- broken engines -----------------------------------------------------------------------------


def broken_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what the last prompt adds to the bounds."""
    add = engine.Round.add

    def forgetful(self: Any, prompt: Any) -> None:
        before = [bounds.copy() for bounds in self.bounds]
        add(self, prompt)
        if self.prompts == 2:
            self.bounds = before

    monkeypatch.setattr(engine.Round, "add", forgetful)


def signed_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the mean where the root mean square is asked for."""
    monkeypatch.setattr(engine.Round, "_sum", lambda self, total, part: total + part)


def lost_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never stop at the position embedding."""
    stops = engine._stops
    monkeypatch.setattr(
        engine, "_stops", lambda q, stub, label, b: label != "pos" and stops(q, stub, label, b)
    )


def wrong_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Carry every suffix from the root."""
    longer = engine.PromptTree.longer
    monkeypatch.setattr(
        engine.PromptTree, "longer", lambda self, carried, head: longer(self, self.root(), head)
    )


def caught() -> int:
    """Count the models on which the search is seen to be wrong."""
    wrong = 0
    for seed in range(8):
        model, texts = random_model(seed=seed, n_layers=3, scale=1.3), [[1], [5, 4, 2, 3, 1]]
        known = sizes([model.run(text) for text in texts], "rms", [None, None])
        try:
            check(model.dataset_paths(texts, top=12), known, 12)
        except AssertionError:
            wrong += 1
    return wrong


@pytest.mark.parametrize("fault", [broken_bounds, signed_root, lost_source, wrong_parent])
def test_a_broken_search_is_caught(fault, monkeypatch):
    assert not caught()
    fault(monkeypatch)
    assert caught()


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "options", "match"),
    [
        ([], {}, "prompts: wanted at least one, got 0"),
        ("to be", {}, "prompts: wanted a list of prompts, got 'to be'"),
        (5, {}, "prompts: wanted a list of prompts, got 5"),
        ([[1], []], {}, "prompt 2: prompt: wanted at least one token"),
        ([[1], [1] * 6], {}, "prompt 2: prompt: wanted at most 5 tokens"),
        ([[1], [99]], {}, "prompt 2: token id 99 at position 0"),
        ([[1], [2]], {"targets": [1]}, "targets: wanted as many"),
        ([[1]], {"targets": [1, 2]}, "prompts: wanted as many"),
        ([[1], [2]], {"targets": [1, 99]}, "prompt 2: target id 99"),
        ([[1], [2]], {"masks": [[1], [0]]}, "prompt 2: mask: wanted at least one real"),
        ([[1]], {"target": 1, "targets": [1]}, "target: wanted one for all"),
        ([[1]], {"by": "median"}, "by: wanted"),
        ([[1]], {"top": -1}, "top"),
        ([[1]], {"rounds": -1}, "rounds"),
        ([[1]], {"cache": 1.5}, "cache"),
    ],
)
def test_bad_input_is_named(prompts, options, match):
    with pytest.raises(PathExpandError, match=match):
        random_model(seed=1).dataset_paths(prompts, **options)


def test_overflow_is_named():
    model = random_model(seed=1, scale=1e150)
    with pytest.raises(ModelError, match=r"^prompt 1: run: wanted finite"):
        model.dataset_paths([[1, 2]])
