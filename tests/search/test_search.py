"""The certified search is brute force: on thousands of random sums, stopped anywhere or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pathexpand import laws
from pathexpand.api import Model, from_state_dict, load
from pathexpand.engine import ranking
from pathexpand.engine.enumeration import enumerate_values
from pathexpand.engine.search import Budget, Progress, rest_energy, search
from pathexpand.engine.value import Readout, path_value
from pathexpand.errors import PathExpandError
from pathexpand.frozen import (
    FrozenSource,
    FrozenStage,
    FrozenSum,
    HeadGroup,
    MlpGroup,
    NeuronGroup,
)
from pathexpand.symbolic import Head, Network, Path
from pathexpand.symbolic.query import everything, parse_query
from tests.search.problems import (
    Problem,
    Truth,
    faults,
    made,
    mlp_problem,
    problem_of,
    random_problem,
    suffix_faults,
    tree_of,
    truths,
)
from tests.symbolic.test_query import Case, cases

PARTS = 8
relaxed = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def judge(problem: Problem, truth: dict[Path, Truth], **options: object) -> list[str]:
    found = problem.rank(**options)  # type: ignore[arg-type]
    return list(faults(problem, found, truth, whole=not options))


@pytest.mark.parametrize("part", range(PARTS))
def test_search_is_brute_force(part: int) -> None:
    for seed in range(part * 200, (part + 1) * 200):
        problem = random_problem(seed)
        truth = truths(problem.frozen, problem.readout)
        assert not judge(problem, truth), f"problem {seed}"


def interrupting(reports: int) -> Callable[[Progress], None]:
    """Listen to a search, once it has its energies, and press Ctrl-C at a report."""
    heard = []

    def report(progress: Progress) -> None:
        if progress.nodes:
            heard.append(progress)
            if len(heard) == reports:
                raise KeyboardInterrupt

    return report


@pytest.mark.parametrize("part", range(4))
def test_a_search_stopped_anywhere_is_valid(part: int) -> None:
    stopped = 0
    for seed in range(10_000 + part * 60, 10_000 + (part + 1) * 60):
        problem, rng = random_problem(seed), np.random.default_rng(seed)
        truth = truths(problem.frozen, problem.readout)
        budgets = (
            Budget(nodes=0),
            Budget(nodes=int(rng.integers(1, 9))),
            Budget(memory=int(rng.integers(0, 5_000))),
            Budget(seconds=0.0),
        )
        for budget in budgets:
            assert not judge(problem, truth, budget=budget), f"problem {seed}, {budget}"
        report = interrupting(int(rng.integers(1, 5)))
        assert not judge(problem, truth, report=report), f"problem {seed}, interrupted"
        inside = int(rng.integers(1, 9))
        assert not judge(problem, truth, interrupt=inside), f"problem {seed}, cut at {inside}"
        stopped += not problem.rank(budget=budgets[1]).found.certified
    assert stopped > 3


def test_suffixes_of_many_pieces() -> None:
    for seed in range(80):
        problem = mlp_problem(seed)
        truth = truths(problem.frozen, problem.readout)
        assert not judge(problem, truth), f"problem {seed}"
        assert not judge(problem, truth, budget=Budget(nodes=seed % 20)), f"problem {seed}"


@relaxed
@given(cases(), st.integers(0, 2**32 - 1))
def test_search_within_any_query(case: Case, seed: int) -> None:
    query = parse_query(case.text, case.network)
    problem = problem_of(case.network, query, np.random.default_rng(seed))
    truth = truths(problem.frozen, problem.readout)
    assert not judge(problem, truth)
    assert not judge(problem, truth, budget=Budget(nodes=seed % 5))


def spread_problem(seed: int) -> Problem:
    """Make 625 paths of very different sizes: many suffixes with many bounds in a batch.

    Every other problem has one position and one dimension, where bounds are nearly reached.
    """
    rng = np.random.default_rng(seed)
    network, size = Network.attention_only(4, 4), 1 if seed % 2 else 3
    stages = [
        FrozenStage(
            (
                HeadGroup(
                    heads,  # type: ignore[arg-type]
                    np.tril(rng.uniform(0.5, 1, size=(4, size, size))),
                    rng.normal(size=(4, size, 1)) * np.exp(1.5 * rng.normal(size=(4, 1, 1))),
                    rng.normal(size=(4, 1, size)),
                ),
            )
        )
        for heads in network.stages
    ]
    sources = [FrozenSource("embed", 0, rng.normal(size=(size, size)))]
    readout = Readout(size - 1, rng.normal(size=size), 0)
    return Problem(made(sources, stages, free=False), readout, everything(network), 30, None)


def test_bounds_hold_while_many_suffixes_are_expanded_together() -> None:
    for seed in range(4):
        problem = spread_problem(seed)
        truth = truths(problem.frozen, problem.readout)
        for nodes in range(0, 120, 9):
            assert not judge(problem, truth, budget=Budget(nodes=nodes))


def test_an_anytime_bound_never_grows_and_every_path_is_visited_once() -> None:
    for seed in range(100):
        problem = random_problem(seed)
        heard: list[Progress] = []
        found = problem.rank(report=heard.append)
        assert [each.nodes for each in heard if each.prepared < 1] == [0] * (
            max(problem.frozen.depth - 1, 0)
        )
        assert all(one.bound >= other.bound for one, other in pairwise(heard))
        assert all(one.cut <= other.cut for one, other in pairwise(heard))
        nodes = [each.nodes for each in heard if each.nodes]
        assert all(one < other for one, other in pairwise(nodes))
        assert found.found.visited <= problem.query.count()


def test_the_search_does_not_visit_everything() -> None:
    """A bound so loose that nothing is ever left out would pass every other law."""
    model = laws.random_model(seed=1, n_layers=5, n_heads=4, d_model=11, d_head=3, biases="none")
    run = model.run([3, 1, 4, 1, 5])
    table = run.paths(2, top=5)
    assert table.certified
    assert table.path_count == 2 * 5**5
    assert table.visited is not None
    assert table.visited < table.path_count / 4
    assert model.paths(top=3).certified


# --- special cases --------------------------------------------------------------------------------


def equal_heads(*, layers: int, heads: int, weight: float = 1.0) -> Model:
    """Make a model in which every path of an order is worth the same: weight to that power."""
    tensors = {"embed.W_E": np.ones((1, 1)), "unembed.W_U": np.array([[1.0, 0.0]])}
    for layer in range(layers):
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            fill = {"W_V": weight, "W_O": 1.0}.get(name, 0.0)
            tensors[f"blocks.{layer}.attn.{name}"] = np.full((heads, 1, 1), fill)
    sizes = {"n_layers": layers, "n_heads": heads, "d_model": 1, "d_head": 1, "d_vocab": 1}
    sizes |= {"d_vocab_out": 2, "n_ctx": 3}
    return from_state_dict(
        tensors, {"attn_only": True, "positional_embedding_type": "none", **sizes}
    )


@pytest.mark.parametrize("weight", [1.0, -1.0, 0.5, 1 / 3, 0.1, 3.7, 0.0])
@pytest.mark.parametrize("top", [0, 1, 2, 5, 26, 27, 63, 64, 65])
def test_ties_stand_in_the_order_of_paths(weight: float, top: int) -> None:
    model = equal_heads(layers=3, heads=3, weight=weight)
    run = model.run([0, 0])
    rows = run.paths(0, top=top, centred=False).rows
    every = sorted(model.network.paths(), key=lambda path: (-(abs(weight) ** path.order), path))
    assert [row.path for row in rows] == [str(path) for path in every[:top]]
    norms = [row.path for row in model.paths(top=top)]
    assert norms == [str(path) for path in every[:top]]


def ties_met_late_first() -> Problem:
    """Make three paths of value 1, of which the search meets that of the last layer first."""
    w_v, w_o = np.array([[[1.0], [0.0]]]), np.array([[[0.0, 1]]])
    stages = [
        FrozenStage((HeadGroup((Head(index, 0),), np.ones((1, 1, 1)), w_v, w_o),))
        for index in range(3)
    ]
    frozen = made([FrozenSource("embed", 0, np.array([[1.0, 0.0]]))], stages, free=False)
    return Problem(frozen, Readout(0, np.array([0.0, 1]), 0), everything(frozen.network()), 1, None)


def test_ties_stand_in_order_whichever_is_met_first() -> None:
    problem = ties_met_late_first()
    assert problem.rank().found.expanded[1] == (Head(2, 0),)
    for top in range(9):
        asked = replace(problem, top=top)
        assert not judge(asked, truths(problem.frozen, problem.readout))


def test_many_more_ties_than_rows() -> None:
    """All 13^6 = 4,826,809 paths are worth 1; the first ones by the rule are listed."""
    model = equal_heads(layers=6, heads=12)
    table = model.run([0]).paths(0, top=3, centred=False, budget=Budget(nodes=500))
    assert [row.value for row in table] == [1.0, 1.0, 1.0]
    assert table.bound is not None
    assert table.bound >= 1.0
    assert not table.certified
    assert not any(row.certain for row in table)


def test_a_model_that_writes_nothing() -> None:
    model = equal_heads(layers=2, heads=2, weight=0.0)
    table = model.run([0]).paths(1, centred=False, top=4)
    assert [row.path for row in table] == [str(path) for path in list(model.network.paths())[:4]]
    assert (table.certified, table.bound, table.remainder_energy) == (True, 0.0, 0.0)
    assert all(row.certain for row in table)


def test_the_embedded_model_is_its_enumeration_to_the_last_digit() -> None:
    run = load("two-layer").run("to be or not to be")
    readout = run.target().readout(run.unembed, run.position())
    values = {
        Path(block.source, word): path_value(run.frozen, readout, Path(block.source, word))
        for block in enumerate_values(run.frozen, readout)
        for word in block.words
    }
    every = sorted(values, key=lambda path: (-abs(values[path]), path))
    for top in (1, 10, 25):
        table = run.paths(top=top)
        assert [(row.path, row.value) for row in table] == [
            (str(path), float(values[path])) for path in every[:top]
        ]


@pytest.mark.parametrize("scale", [1e-40, 1e-25, 1e15, 1e20])
@pytest.mark.parametrize("nodes", [None, 0, 3])
def test_numbers_whose_squares_are_no_floats(scale: float, nodes: int | None) -> None:
    model = laws.random_model(seed=3, n_layers=3, n_heads=2, scale=scale, biases="some")
    run = model.run([3, 1, 4])
    budget = None if nodes is None else Budget(nodes=nodes)
    table = run.paths(2, top=6, budget=budget)
    assert table.certified or nodes is not None
    if table.bound is not None:
        laws.check_top_paths(run, 2, top=6, budget=budget).require()
    assert scale > 1 or table.bound is not None


def one_tiny_token(seed: int) -> Problem:
    """Make all components read a first token beside which all the others are large."""
    problem = random_problem(seed)
    for source in problem.frozen.sources:
        source.values[:1] *= 1e-25
    for group in groups(problem.frozen):
        if isinstance(group, HeadGroup):
            group.patterns[:, :, 1:] = 0
        else:
            group.gates[1:] = 0
    return problem


def groups(frozen: FrozenSum) -> list[HeadGroup | NeuronGroup | MlpGroup]:
    return [group for stage in frozen.stages for group in stage.groups]  # type: ignore[misc]


def test_one_tiny_token_beside_large_ones() -> None:
    """In float32 over its largest entry the tiny token's energy is 0, its bound must not be."""
    for seed in range(100):
        problem = one_tiny_token(seed)
        truth = truths(problem.frozen, problem.readout)
        assert not judge(problem, truth)
        assert not judge(problem, truth, budget=Budget(nodes=seed % 3))


# --- energies -------------------------------------------------------------------------------------


def diagonal_faults(seed: int) -> list[str]:
    """Name the energy if it is not exact where nothing mixes positions."""
    rng = np.random.default_rng(seed)
    kinds = {"mlp": ("neurons", "frozen")[seed % 2], "parallel": bool(seed // 2 % 2)}
    network = Network.transformer(3, 0, 3, positions=True, biases=True, unembed_bias=True, **kinds)
    problem = problem_of(network, everything(network), rng)
    listed = {path for path in network.paths() if rng.random() < 0.3}
    found = rest_energy(tree_of(problem, problem.frozen, problem.query), problem.query, listed)
    left = [
        truth
        for path, truth in truths(problem.frozen, problem.readout).items()
        if path not in listed
    ]
    exact = np.hypot.reduce([each.value for each in left])
    if not 1e-140 < exact < 1e140:
        return []  # its square is no float of full length
    slack = sum(each.rounding for each in left)
    return [] if np.sqrt(found) == pytest.approx(exact, rel=1e-7, abs=slack) else ["energy"]


def test_the_energy_left_is_exact_where_nothing_mixes_positions() -> None:
    for seed in range(160):
        assert not diagonal_faults(seed), f"problem {seed}"


def test_the_energy_of_a_remainder_is_that_of_what_is_left() -> None:
    for seed in range(200):
        problem, rng = random_problem(seed), np.random.default_rng(seed)
        query = problem.query
        tree = tree_of(problem, problem.frozen, query)
        every = list(query.paths())
        assert rest_energy(tree, query, every) == 0.0
        listed = {path for path in every if rng.random() < 0.5}
        sizes = [tree.size(path) for path in every if path not in listed]
        energy = np.sqrt(rest_energy(tree, query, listed))
        assert np.hypot.reduce(sizes, initial=0.0) <= energy * (1 + 1e-9) + 1e-150


# --- norms ----------------------------------------------------------------------------------------

NORM_QUERIES = (None, "embed > *", "not * > L0H0 > *", "* > L0H0 > *", "!embed > *")


def random_weights(seed: int) -> Model:
    rng = np.random.default_rng(seed)
    sizes = [(1, 3), (2, 5), (3, 7), (5, 2), (1, 1)]
    d_head, d_model = sizes[int(rng.integers(5))]
    kinds = ("none", "standard", "shortformer")
    model = laws.random_model(
        seed=seed,
        n_layers=int(rng.integers(0, 4)),
        n_heads=int(rng.integers(1, 4)),
        d_model=d_model,
        d_head=d_head,
        d_vocab=int(rng.choice([2, 11])),
        d_vocab_out=int(rng.choice([1, 3, 7])),
        positions=kinds[int(rng.integers(3))],  # type: ignore[arg-type]
        biases=("none", "all", "some")[int(rng.integers(3))],  # type: ignore[arg-type]
        scale=float(rng.choice([1.0, 1.0, 3.0, 1e-5, 1e5])),
    )
    tensors = {name: np.array(array) for name, array in model.weights.named()}
    for name in tensors:
        if name.endswith("W_V") and rng.random() < 0.3 and len(tensors[name]) > 1:
            out = name.replace("W_V", "W_O")
            tensors[name][1], tensors[out][1] = tensors[name][0], tensors[out][0]
        elif name.endswith("W_O") and rng.random() < 0.1:
            tensors[name][0] = 0
    return from_state_dict(tensors, model.config)


@pytest.mark.parametrize("part", range(3))
def test_norms_are_those_of_dense_matrices(part: int) -> None:
    for seed in range(part * 100, (part + 1) * 100):
        model, rng = random_weights(seed), np.random.default_rng(seed)
        queries = NORM_QUERIES if model.config.n_layers else NORM_QUERIES[:2]
        query = queries[int(rng.integers(len(queries)))]
        top, centred = int(rng.choice([0, 1, 4, 10, 500])), bool(rng.random() < 0.5)
        for budget in (None, Budget(nodes=int(rng.integers(6)))):
            laws.check_norm_ranking(
                model, top=top, query=query, centred=centred, budget=budget
            ).require()


@pytest.mark.parametrize("scale", [1e45, 1e60, 1e80])
def test_norms_beyond_all_range_are_refused(scale: float) -> None:
    model = laws.random_model(seed=1, scale=scale, n_layers=1)
    with pytest.raises(PathExpandError, match="weights this large overflow"):
        model.paths(top=3)


def test_norms_stopped_by_an_interrupt_are_bounded() -> None:
    model = laws.random_model(seed=5, n_layers=3, n_heads=3)
    whole = {row.path: row.norm for row in model.paths(top=1000)}
    for reports in (1, 2, 3):
        table = model.paths(top=4, report=interrupting(reports))
        left = [norm for path, norm in whole.items() if path not in {row.path for row in table}]
        assert table.bound is not None
        assert max(left) <= table.bound
        assert [row.norm for row in table] == [whole[row.path] for row in table]


def test_a_suffix_that_is_expanded_is_told() -> None:
    """What is expanded is closed: whatever stands behind an expanded suffix is expanded too."""
    for seed in range(100):
        problem = random_problem(seed)
        words = problem.rank().found.expanded
        assert all(word[1:] in words for word in words if word)
        assert () in words or not words


def test_top_of_nothing_still_bounds_everything() -> None:
    for seed in range(100):
        problem = random_problem(seed)
        near, query = problem.frozen.until(problem.readout.position), problem.query
        found = search(tree_of(problem, near, query), query, top=0)
        values = [path_value(problem.frozen, problem.readout, path) for path in query.paths()]
        assert (found.paths, found.certified) == ((), True)
        assert found.bound >= max(map(abs, values), default=0.0) * (1 - 1e-9)


def test_every_bound_of_a_suffix_holds_for_all_its_completions() -> None:
    """Not only the largest bound left: each is one."""
    for seed in range(200):
        problem = random_problem(seed)
        truth = truths(problem.frozen, problem.readout)
        assert not list(suffix_faults(problem, truth)), f"problem {seed}"


# --- before there is anything to search with ------------------------------------------------------


@pytest.mark.parametrize("max_order", [None, 1])
def test_an_interrupt_before_there_are_energies_still_closes(max_order: int | None) -> None:
    def interrupted(progress: Progress) -> None:
        if progress.prepared < 1:
            raise KeyboardInterrupt

    run = load("two-layer").run("to be or not")
    table = run.paths(top=5, max_order=max_order, report=interrupted)
    assert (len(table), table.bound, table.certified, table.closes) == (0, None, False, True)
    assert "Stopped early" in table.to_text(80)


def test_energies_that_take_too_long_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    run = load("two-layer").run("to be or not")
    assert run.paths(top=5, budget=Budget(seconds=0)).bound is not None  # it took no second
    monkeypatch.setattr(ranking, "_LEAST_SECONDS", 0.0)
    table = run.paths(top=5, budget=Budget(seconds=0))
    assert (len(table), table.bound, table.certified, table.closes) == (0, None, False, True)
    assert run.paths(top=5, budget=Budget(seconds=1000)).certified


# --- going through all paths ----------------------------------------------------------------------


def test_going_through_all_paths_is_brute_force() -> None:
    for seed in range(200):
        problem = random_problem(seed)
        truth = truths(problem.frozen, problem.readout)
        found = problem.rank(listing=True)
        assert not list(faults(problem, found, truth, whole=True)), f"problem {seed}"
        interrupted = problem.rank(report=interrupting(1 + seed % 2), listing=True)
        assert not list(faults(problem, interrupted, truth, whole=False)), f"problem {seed}"
