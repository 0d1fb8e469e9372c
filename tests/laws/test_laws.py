"""Every law on models, prompts and targets that hypothesis draws."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pathexpand import laws
from pathexpand.api import Model, Run, load
from pathexpand.engine.search import Budget
from pathexpand.errors import ModelError
from pathexpand.laws import gauge, reference, result, strategies
from pathexpand.symbolic import Network, Path, count, expand

few = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
fewer = settings(few, max_examples=30)


@few
@given(st.data())
def test_laws_of_a_target(data: st.DataObject) -> None:
    model = data.draw(strategies.models())
    run = model.run(data.draw(strategies.prompts(model)))
    target = data.draw(strategies.targets(model))
    position = data.draw(st.integers(0, len(run.tokens) - 1))
    top = data.draw(st.sampled_from([0, 1, 4, 100]))
    most = data.draw(st.sampled_from([None, 0, 1]))
    laws.check_closure(run, target, position=position).require()
    table = {"position": position, "top": top, "max_order": most}
    laws.check_table_closure(run, target, **table).require()
    laws.check_top_paths(run, target, **table).require()
    query = data.draw(st.sampled_from([None, "embed > *", "not embed > +", "!embed > *", "not *"]))
    budget = data.draw(st.sampled_from([None, Budget(nodes=0), Budget(nodes=2)]))
    laws.check_top_paths(run, target, query=query, budget=budget, **table).require()
    laws.check_remainder(run, target, position=position, top=top).require()
    laws.check_totals(run, target, position=position).require()


@fewer
@given(st.data())
def test_laws_of_the_weights(data: st.DataObject) -> None:
    model = data.draw(strategies.models())
    run = model.run(data.draw(strategies.prompts(model)))
    seed = data.draw(st.integers(0, 99))
    laws.check_value_gauge(run, seed=seed).require()
    laws.check_score_gauge(run, seed=seed).require()
    laws.check_head_permutation(run, seed=seed).require()
    laws.check_path_matrices(model).require()
    laws.check_path_logits(run).require()
    laws.check_norm_ranking(model, top=5).require()
    laws.check_norm_ranking(model, top=3, query="embed > *", centred=bool(seed % 2)).require()
    laws.check_layer_sums(run).require()
    laws.check_patterns(run).require()


@fewer
@given(st.data())
def test_laws_of_padding(data: st.DataObject) -> None:
    model = data.draw(strategies.models())
    tokens = data.draw(strategies.prompts(model))
    run = model.run(tokens)
    position = data.draw(st.integers(0, len(tokens) - 1))
    laws.check_padding(run, position=position).require()
    laws.check_batch(run, position=position).require()
    padded = model.run([0, *tokens, 0], mask=[0, *([1] * len(tokens)), 0])
    laws.check_padding(padded, position=position + 1).require()
    laws.check_table_closure(padded).require()
    laws.check_totals(padded).require()


@few
@given(strategies.rational_models(), st.integers(0, 3))
def test_exact_closure(problem: strategies.RationalProblem, position: int) -> None:
    place = min(position, len(problem.tokens) - 1)
    found = laws.check_exact_closure(
        problem.model, problem.tokens, problem.patterns, position=place
    ).require()
    assert found.error == found.bound == 0.0


@fewer
@given(strategies.rational_models(max_layers=2), st.integers(0, 2))
def test_exact_closure_with_padding(problem: strategies.RationalProblem, hidden: int) -> None:
    mask = [n != hidden for n in range(len(problem.tokens))]
    if any(mask):
        laws.check_exact_closure(
            problem.model,
            problem.tokens,
            problem.patterns,
            mask=mask,
            position=max(n for n, real in enumerate(mask) if real),
        ).require()


@pytest.mark.parametrize(
    ("layers", "heads", "biases"), [(0, 1, True), (1, 2, True), (2, 1, True), (2, 2, False)]
)
def test_polynomial_identity(layers: int, heads: int, biases: bool) -> None:
    found = laws.check_polynomial_identity(layers=layers, heads=heads, biases=biases).require()
    terms = 2 * (1 + heads) ** layers
    if biases:
        terms += sum((1 + heads) ** (layers - 1 - layer) for layer in range(layers)) + 1
    assert found.detail.startswith(f"{terms} paths")


@few
@given(strategies.networks())
def test_networks_are_counted_expanded_and_walked(network: Network) -> None:
    number = count(network.expression())
    assert number == network.count() == len(expand(network.expression()))
    assert number == len(set(network.paths()))


@few
@given(strategies.models())
def test_laws_of_text(model: Model) -> None:
    laws.check_term_count(model).require()
    laws.check_text_round_trip(model).require()
    run = model.run([0])
    laws.check_enumeration_count(run).require()
    laws.check_table_round_trip(run).require()
    laws.check_exact_cut(run).require()


def test_full_bias_formula() -> None:
    for layers, heads in ((0, 1), (1, 3), (2, 5), (3, 2)):
        model = laws.random_model(seed=1, n_layers=layers, n_heads=heads)
        chains = sum((1 + heads) ** (layers - 1 - layer) for layer in range(layers))
        assert laws.term_formula(model) == 2 * (1 + heads) ** layers + chains + 1
        laws.check_term_count(model).require()


def test_verify_runs_every_law_once() -> None:
    run = laws.random_model(seed=8).run([3, 1, 4])
    before = {name: array.copy() for name, array in run.model.weights.named()}
    found = laws.verify_run(run, target=3, position=1)
    names = [each.name for each in found]
    assert len(names) == len(set(names)) == 20
    assert all(each.holds and each.error <= each.bound for each in found)
    for name, array in run.model.weights.named():
        assert (array == before[name]).all()


def test_verify_works_on_an_embedded_model() -> None:
    assert all(each.holds for each in laws.verify_run(load("one-layer").run("to be or not")))


def test_a_large_model_is_cut_and_says_so() -> None:
    model = laws.random_model(seed=9, n_layers=9, n_heads=7, n_ctx=60)
    run = model.run([n % 13 for n in range(60)])
    cut = reference.cut(run)
    assert cut.run.model.network.count() <= 5_000
    assert "of 7 heads" in cut.detail
    found = {each.name: each for each in laws.verify_run(run)}
    assert all(each.holds for each in found.values())
    assert "of 7 heads" in found["top paths"].detail


def test_a_failed_law_raises_one_line() -> None:
    failed = laws.LawResult("closure", False, 2.0, 1.0, "3 paths")
    with pytest.raises(laws.LawError, match=r"^law closure") as error:
        failed.require()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("deviations", "holds", "error"),
    [
        ([], True, 0.0),
        ([(0.0, 0.0), (1.0, 2.0)], True, 1.0),
        ([(1.0, 0.0), (5.0, 9.0)], False, 1.0),
        ([(float("nan"), 1.0)], False, float("nan")),
        ([(1.0, float("inf"))], False, 1.0),
        ([(0.0, float("nan"))], False, 0.0),
        ([(Fraction(1, 10**400), 0)], False, 0.0),
    ],
)
def test_judgement(deviations: list[Any], holds: bool, error: float) -> None:
    found = result.judged("law", [result.Deviation(*each, "here") for each in deviations], "all")
    assert found.holds is holds
    assert found.error == error or np.isnan(error)
    assert ("fails at here" in found.detail) is not holds


@given(st.integers(0, 9), st.integers(0, 999))
def test_changes_of_basis_are_exact(size: int, seed: int) -> None:
    basis = gauge.exact_basis(size, seed=seed)
    assert (basis.matrix @ basis.inverse == np.eye(size)).all()


def test_exact_closure_refuses_floats() -> None:
    with pytest.raises(ModelError, match="exact"):
        laws.check_exact_closure(laws.random_model(seed=1), [0], [])


def test_reference_evaluates_a_path_by_hand() -> None:
    """Values of single paths by whole matrices: (A2 A1)[i] (E C1 C2 w)."""
    model = laws.random_model(seed=1)
    run = model.run([3, 1, 4])
    readout = run.target(2).readout(model.weights, 2)
    known = {each.path: each for each in reference.references(run, readout)}
    path = Path.parse("embed > L0H2 > L1H1")
    one, two = model.weights.blocks[0].attn, model.weights.blocks[1].attn
    positions = run.patterns[1][1] @ run.patterns[0][2]
    linear = one.W_V[2] @ one.W_O[2] @ two.W_V[1] @ two.W_O[1]
    value = np.einsum(
        "k,kd,de,e->k", positions[2], model.weights.W_E[[3, 1, 4]], linear, readout.direction
    )
    assert known[path].values == pytest.approx(value, rel=1e-12)
    assert len(known) == model.network.count()


def test_hypothesis_is_imported_by_the_strategies_alone() -> None:
    code = "import sys, pathexpand.laws; print('hypothesis' in sys.modules, 'sympy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_run_with_a_masked_row_is_read_at_its_real_tokens() -> None:
    model = laws.random_model(seed=1)
    run: Run = model.run([0, 3, 1, 4, 0], mask=[0, 1, 1, 1, 0])
    assert all(each.holds for each in laws.verify_run(run))
