"""Every law on models, prompts and targets that hypothesis draws."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pathexpand import laws
from pathexpand.api import Model, Run, from_state_dict, load
from pathexpand.engine.search import Budget
from pathexpand.errors import ModelError
from pathexpand.laws import cut, gauge, reference, result, rounded, strategies
from pathexpand.model.activation import GATES
from pathexpand.model.parts import Norm
from pathexpand.symbolic import Network, Path, count, expand

few = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
fewer = settings(few, max_examples=30)
fewest = settings(few, max_examples=15)


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
def test_laws_of_a_target_in_every_architecture(data: st.DataObject) -> None:
    model = data.draw(strategies.transformers())
    run = model.run(data.draw(strategies.prompts(model)))
    target = data.draw(strategies.targets(model))
    position = data.draw(st.integers(0, len(run.tokens) - 1))
    top = data.draw(st.sampled_from([0, 1, 4, 100]))
    most = data.draw(st.sampled_from([None, 0, 1]))
    laws.check_closure(run, target, position=position).require()
    table = {"position": position, "top": top, "max_order": most}
    laws.check_table_closure(run, target, **table).require()
    laws.check_top_paths(run, target, **table).require()
    query = data.draw(st.sampled_from([None, "embed > *", "not embed > +", "!embed > *"]))
    budget = data.draw(st.sampled_from([None, Budget(nodes=0), Budget(nodes=2)]))
    laws.check_top_paths(run, target, query=query, budget=budget, **table).require()
    laws.check_remainder(run, target, position=position, top=top).require()
    laws.check_totals(run, target, position=position).require()


@fewest
@given(st.data())
def test_every_law_in_every_architecture(data: st.DataObject) -> None:
    model = data.draw(strategies.transformers())
    run = model.run(data.draw(strategies.prompts(model)))
    position = data.draw(st.integers(0, len(run.tokens) - 1))
    for found in laws.verify_run(run, position=position):
        found.require()


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
        problem.model, problem.tokens, problem.held, position=place
    ).require()
    assert found.error == found.bound == 0.0


@few
@given(strategies.rational_transformers(), st.integers(0, 2))
def test_exact_closure_of_every_architecture(
    problem: strategies.RationalProblem, position: int
) -> None:
    place = min(position, len(problem.tokens) - 1)
    found = laws.check_exact_closure(
        problem.model, problem.tokens, problem.held, position=place
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
            problem.held,
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


ONES = ("n_layers", "n_key_value_heads", "d_head", "d_mlp")
TWOS = ("n_heads", "d_model", "d_vocab", "d_vocab_out", "n_ctx")
TINY: dict[str, Any] = dict.fromkeys(ONES, 1) | dict.fromkeys(TWOS, 2)


@pytest.mark.parametrize(
    "design",
    [
        laws.Design(**TINY, mlp="source"),
        laws.Design(**TINY, mlp="neurons"),
        laws.Design(**TINY, mlp="frozen", norms=("ln1_after", "ln2_after"), final_norm=False),
        laws.Design(**TINY, mlp="neurons", norm="rms", parallel=True, gated=True),
        laws.Design(**TINY, mlp="frozen", norm="rms", norms=("ln1_post", "ln2_post")),
    ],
    ids=lambda design: f"{design.mlp} {design.norm}",
)
def test_polynomial_identity_of_norms_and_mlps(design: laws.Design) -> None:
    """Weights, patterns, norm scales and gates are all variables: it holds for any."""
    found = laws.check_polynomial_identity(positions=2, design=design).require()
    assert found.error == found.bound == 0.0


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
    assert len(names) == len(set(names)) == 23
    assert all(each.holds and each.error <= each.bound for each in found)
    assert {each.name for each in found if not each.applies} == {"neuron gauge", "norm folding"}
    for name, array in run.model.weights.named():
        assert (array == before[name]).all()


def test_a_law_that_says_nothing_says_so() -> None:
    found = {each.name: each for each in laws.verify_run(transformer().run([3, 1]))}
    left_out = {name for name, each in found.items() if not each.applies}
    assert left_out == {"path matrices", "norm ranking"}
    assert found["norm ranking"].detail.startswith("does not apply: norms and MLPs depend")
    assert all(each.holds for each in found.values())


def transformer(**settings: Any) -> Model:
    """Make a small model with norms, grouped heads and MLPs whose neurons are components."""
    return laws.random_transformer(laws.Design(mlp="neurons", d_mlp=2, **settings), seed=3)


@pytest.mark.shared_models
@pytest.mark.parametrize("mlp", ["source", "frozen", "neurons"])
def test_every_law_holds_on_a_trained_llama(shared_models: FilePath, mlp: Any) -> None:
    run = load(shared_models / "stories260k", mlp=mlp).run("Once upon a time")
    for found in laws.verify_run(run):
        found.require()


def test_verify_works_on_an_embedded_model() -> None:
    assert all(each.holds for each in laws.verify_run(load("one-layer").run("to be or not")))


def test_a_large_model_is_cut_and_says_so() -> None:
    model = laws.random_model(seed=9, n_layers=9, n_heads=7, n_ctx=60)
    run = model.run([n % 13 for n in range(60)])
    small = cut.cut(run)
    assert small.run.model.network.count() <= 5_000
    assert "of 7 heads" in small.detail
    found = {each.name: each for each in laws.verify_run(run)}
    assert all(each.holds for each in found.values())
    assert "of 7 heads" in found["top paths"].detail


def test_a_large_transformer_is_cut_by_whole_groups() -> None:
    design = laws.Design(n_layers=5, n_heads=6, n_key_value_heads=2, d_mlp=11, mlp="neurons")
    run = laws.random_transformer(design, seed=1).run([3, 1, 4])
    small = cut.cut(run)
    assert small.run.model.network.count() <= 5_000
    assert small.sizes.heads % 3 == 0
    assert small.sizes.neurons >= 3
    assert "of 6 heads a layer, the first 3 of 11 neurons a layer" in small.detail
    own, whole = (each.model.weights.block(0) for each in (small.run, run))
    assert len(own.attn.W_V) * 3 == len(own.attn.W_Q) == small.sizes.heads
    assert (own.mlp.W_out == whole.mlp.W_out[:3]).all()
    laws.check_layer_sums(small.run).require()  # a model in its own right
    laws.check_top_paths(small.run, top=5).require()


def test_one_group_of_many_heads_is_cut_within() -> None:
    design = laws.Design(n_layers=3, n_heads=30, n_key_value_heads=1, d_mlp=0)
    run = laws.random_transformer(design, seed=1).run([3, 1, 4])
    assert cut.cut(run).sizes.heads == 30
    few_paths = cut.cut(run, paths=100)
    assert (few_paths.sizes.layers, few_paths.run.model.config.n_key_value_heads) == (2, 1)
    assert few_paths.run.model.network.count() <= 100


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"mlp_out": 1e-9}, "layer 1, MLP output"),
        ({"gates": 1e-9}, "layer 1, gates"),
        ({"scale1": 1e-9}, "layer 1, scale of ln1"),
        ({"attn_out": 1e-9}, "layer 1, attention output"),
    ],
)
def test_layer_sums_name_the_layer_and_the_size(change: dict[str, float], named: str) -> None:
    run = transformer(norms=("ln1", "ln2", "ln1_post", "ln2_post")).run([3, 1, 4])
    layers = list(run.dense.layers)
    (name, by), array = *change.items(), getattr(layers[1], next(iter(change))).copy()
    array[0, 1] += by
    layers[1] = replace(layers[1], **{name: array})
    broken = Run(run.model, replace(run.dense, layers=tuple(layers)))
    found = laws.check_layer_sums(broken)
    assert not found.holds
    assert found.error == pytest.approx(abs(by), rel=1e-3)
    assert f"fails at {named} at (1" in found.detail
    assert "off by 1e-09" in found.detail


@pytest.mark.parametrize("act", sorted(GATES))
def test_gates_have_formulas_of_their_own_and_rise(act: str) -> None:
    z = np.concatenate([np.linspace(-9, 9, 4001), [-1e3, -40.0, 0.0, 40.0, 1e3]])
    own, _ = rounded.gated(act, z, z * 0)
    assert abs(own - GATES[act](z)).max() < 1e-15 * (1 + abs(own).max())
    assert (np.diff(own[np.argsort(z)]) >= -1e-15).all()


def test_norms_are_bounded_by_what_their_input_can_be() -> None:
    rng = np.random.default_rng(1)
    norm = Norm("layer", rng.normal(size=5), rng.normal(size=5), 1e-5)
    stream, wide = rng.normal(size=(7, 5)), np.full((7, 5), 1e-3)
    found = rounded.normed(norm, stream, wide)
    for _ in range(100):
        other = rounded.normed(norm, stream + wide * rng.uniform(-1, 1, size=(7, 5)), wide * 0)
        assert (abs(other.scale - found.scale) <= found.scale_wide).all()
        assert (abs(other.values - found.values) <= found.wide).all()


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


@pytest.mark.parametrize("mlp", ["source", "frozen", "neurons"])
def test_exact_weights_from_a_state_dict_stay_exact(mlp: Any) -> None:
    """Whoever loads exact weights gives no exact residual scale: the 1 of a block is a float."""
    rational = laws.rational_transformer(laws.Design(d_mlp=2), seed=3)
    tensors = dict(rational.weights.named())
    config = {each: getattr(rational.config, each) for each in SIZES}
    config |= {"normalization_type": "LN", "act_fn": "gelu", "n_key_value_heads": 2}
    model = from_state_dict(tensors, config, mlp=mlp)
    found = laws.check_exact_closure(model, [3, 1], laws.rational_held(model, 2, seed=4))
    assert found.require().error == 0.0


SIZES = (
    *("n_layers", "n_heads", "d_model", "d_head", "d_mlp"),
    *("d_vocab", "d_vocab_out", "n_ctx"),
)


def test_exact_closure_refuses_floats() -> None:
    with pytest.raises(ModelError, match="exact"):
        laws.check_exact_closure(laws.random_model(seed=1), [0], [])


def test_reference_evaluates_a_path_by_hand() -> None:
    """Values of single paths by whole matrices: (A2 A1)[i] (E C1 C2 w)."""
    model = laws.random_model(seed=1)
    run = model.run([3, 1, 4])
    readout = run.target(2).readout(run.unembed, 2)
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
