"""Searches over runs of every architecture: brute force, and the dense pass, say the same."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pathexpand.engine.search import Budget
from pathexpand.laws.strategies import prompts, targets, transformers
from tests.search.problems import TOPS, Problem, faults, truths
from tests.search.test_totals import total_faults

QUERIES = ("*", "embed > *", "* > L0H0 > *", "not * > L*H* > *", "!embed > +", "any > . > .")
many = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
)


@many
@given(st.data())
def test_runs_of_every_architecture_are_ranked_and_closed(data: st.DataObject) -> None:
    model = data.draw(transformers())
    assume(model.network.count() <= 800)
    run = model.run(data.draw(prompts(model)))
    target, place = data.draw(targets(model)), data.draw(st.integers(0, len(run.tokens) - 1))
    named = data.draw(st.sampled_from(QUERIES if model.config.n_layers else QUERIES[:2]))
    top, order = data.draw(st.sampled_from(TOPS)), data.draw(st.sampled_from([None, 0, 1, 2]))
    readout = run.target(target).readout(run.unembed, place)
    problem = Problem(run.frozen, readout, model.query(named), top, order)
    truth = truths(run.frozen, readout)
    assert set(truth) == set(model.network.paths())
    assert not list(faults(problem, problem.rank(), truth, whole=True))
    stopped = problem.rank(budget=Budget(nodes=data.draw(st.integers(0, 4))))
    assert not list(faults(problem, stopped, truth, whole=False))
    assert not total_faults(problem, truth)
    table = run.paths(target, position=place, query=named, top=top, max_order=order)
    assert table.closes
    whole = math.fsum(each.value for each in truth.values())
    rounding = math.fsum(each.rounding for each in truth.values())
    assert abs(whole - table.dense) <= table.gap_bound + rounding
