"""Data sets read by models with norms and MLPs: brute force, prompt by prompt, says the same."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pathexpand import Budget
from pathexpand.api import Model
from pathexpand.engine import rounds as engine
from pathexpand.laws import Design, random_transformer
from pathexpand.laws.strategies import prompts, transformers
from pathexpand.symbolic import Path
from tests.dataset.test_dataset_ranking import BY, check, sizes

TEXTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
STREAM = Design(n_ctx=9, norms=("ln1_after", "ln2_after"), embed_norms=1)
DESIGNS = {
    "before, by neurons": Design(n_ctx=9, mlp="neurons"),
    "parallel, whole": Design(n_ctx=9, parallel=True, gated=True, norm="rms", mlp="frozen"),
    "of the stream, as sources": STREAM,
    "of the stream, by neurons": replace(STREAM, mlp="neurons", act="relu"),
    "scaled, whole": Design(n_ctx=9, residual_scale=-0.5, mlp="frozen"),
}


@cache
def made(name: str) -> Model:
    return random_transformer(DESIGNS[name], seed=4, scale=1.3)


@cache
def known(name: str, by: str) -> dict[Path, tuple[float, float]]:
    return sizes([made(name).run(text) for text in TEXTS], by, [None] * 3)


@settings(
    max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(st.data())
def test_every_architecture_equals_brute_force(data):
    model = data.draw(transformers())
    assume(model.network.count() <= 700)
    texts = data.draw(st.lists(prompts(model), min_size=1, max_size=3))
    by, top = data.draw(st.sampled_from(BY)), data.draw(st.integers(0, 9))
    table = model.dataset_paths(texts, by=by, top=top, cache=data.draw(st.sampled_from([0, 2**20])))
    check(table, sizes([model.run(text) for text in texts], by, [None] * len(texts)), top)


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", DESIGNS)
def test_many_rows_take_several_rounds(name, by):
    for top in (3, 60, 10**4):
        check(made(name).dataset_paths(TEXTS, by=by, top=top), known(name, by), top)


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize(
    "limits",
    [{"rounds": 0}, {"rounds": 1}, {"budget": Budget(nodes=7)}, {"rounds": 1, "max_order": 1}],
    ids=str,
)
def test_what_stops_early_has_a_bound_that_holds(limits, name, by):
    table = made(name).dataset_paths(TEXTS, by=by, top=20, **limits)
    listed, most = {row.path for row in table}, limits.get("max_order", 99)
    for path, (size, slack) in known(name, by).items():
        if str(path) not in listed:
            assert size <= (table.bound if path.order <= most else table.longer_bound) + slack
    assert table.closes


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", [name for name in DESIGNS if "neurons" in name])
def test_a_query_about_neurons_is_kept_to(name, by):
    query = made(name).query("* > {L0N1,L0N3} > *")
    every = known(name, by)
    asked = {path: size for path, (size, _) in every.items() if query.matches(path)}
    table = made(name).dataset_paths(TEXTS, by=by, top=5, query=query)
    best = sorted(asked, key=lambda path: (-asked[path], path))[:5]
    assert [row.path for row in table] == [str(path) for path in best]
    assert table.outside_count == len(every) - len(asked)
    assert table.closes


def test_equal_neurons_stand_in_the_order_of_paths():
    model = random_transformer(Design(n_ctx=9, mlp="neurons"), seed=6)
    mlp = model.weights.blocks[0].mlp
    for array in (mlp.W_in, mlp.W_out.T, mlp.b_in[None]):
        array[:] = array[:, :1]
    every = model.dataset_paths(TEXTS, top=10**4)
    keys = [(-row.rms, Path.parse(row.path)) for row in every]
    assert keys == sorted(keys)
    assert len({size for size, _ in keys}) < 0.6 * len(keys)
    for top in (1, 3, 8):
        some = model.dataset_paths(TEXTS, top=top)
        assert [row.path for row in some] == [row.path for row in every.rows[:top]]


def test_bounds_without_one_prompt_are_caught(monkeypatch):
    name, add = "before, by neurons", engine.Round.add

    def forgetful(self, prompt):
        before = [bounds.copy() for bounds in self.bounds]
        add(self, prompt)
        if self.prompts == 3:
            self.bounds = before

    monkeypatch.setattr(engine.Round, "add", forgetful)
    wrong = 0
    for top in (1, 3, 12, 60):
        try:
            check(made(name).dataset_paths(TEXTS, top=top), known(name, "rms"), top)
        except AssertionError:
            wrong += 1
    assert wrong
