"""The certified search is brute force: on thousands of random sums, stopped anywhere or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pathexpand import laws
from pathexpand.api import Model, from_state_dict, load
from pathexpand.engine import ranking
from pathexpand.engine.energy import energies
from pathexpand.engine.enumeration import enumerate_values
from pathexpand.engine.prompt_tree import PromptTree
from pathexpand.engine.search import Budget, Progress, rest_energy, search
from pathexpand.engine.value import Readout, path_value, suffix_of
from pathexpand.frozen import FrozenLayer, FrozenSource, FrozenSum
from pathexpand.symbolic import Head, Network, Path
from pathexpand.symbolic.query import everything, parse_query
from tests.search.problems import Problem, Truth, faults, problem_of, random_problem, truths
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
    """Listen to a search, and press Ctrl-C at a report."""
    heard = []

    def report(progress: Progress) -> None:
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
    layers = tuple(
        FrozenLayer(
            heads,
            np.tril(rng.uniform(0.5, 1, size=(4, size, size))),
            rng.normal(size=(4, size, 1)) * np.exp(1.5 * rng.normal(size=(4, 1, 1))),
            rng.normal(size=(4, 1, size)),
        )
        for heads in network.layers
    )
    sources = (FrozenSource("embed", 0, rng.normal(size=(size, size))),)
    frozen = FrozenSum(sources, layers, np.ones(size, dtype=bool), has_unembed_bias=False)
    readout = Readout(size - 1, rng.normal(size=size), 0)
    return Problem(frozen, readout, everything(network), 30, None)


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
        assert all(one.bound >= other.bound for one, other in pairwise(heard))
        assert all(one.cut <= other.cut for one, other in pairwise(heard))
        assert all(one.nodes < other.nodes for one, other in pairwise(heard))
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
    layer = FrozenLayer((), np.ones((1, 1, 1)), np.array([[[1.0], [0.0]]]), np.array([[[0.0, 1]]]))
    frozen = FrozenSum(
        (FrozenSource("embed", 0, np.array([[1.0, 0.0]])),),
        tuple(replace(layer, heads=(Head(index, 0),)) for index in range(3)),
        np.ones(1, dtype=bool),
        has_unembed_bias=False,
    )
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
    readout = run.target().readout(run.model.weights, run.position())
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
    """Make every head read a first token beside which all the others are large."""
    problem = random_problem(seed)
    for source in problem.frozen.sources:
        source.values[:1] *= 1e-25
    for layer in problem.frozen.layers:
        layer.patterns[:, :, 1:] = 0
    return problem


def test_one_tiny_token_beside_large_ones() -> None:
    """In float32 over its largest entry the tiny token's energy is 0, its bound must not be."""
    for seed in range(100):
        problem = one_tiny_token(seed)
        truth = truths(problem.frozen, problem.readout)
        assert not judge(problem, truth)
        assert not judge(problem, truth, budget=Budget(nodes=seed % 3))


# --- energies -------------------------------------------------------------------------------------


def named_values(frozen: FrozenSum, readout: Readout, path: Path) -> Iterator[float]:
    """Yield the value of a path for every choice of the positions it passes, but the last."""
    source = next(each for each in frozen.sources if each.label == path.source)
    vector = readout.direction
    for head in reversed(path.components):
        layer = frozen.layers[head.layer]
        vector = layer.W_V[head.index] @ (layer.W_O[head.index] @ vector)
    read = source.values @ vector  # (position,)

    def back(place: int, heads: tuple[Head, ...], weight: float) -> Iterator[float]:
        if not heads:
            yield weight * float(read[place])
            return
        row = frozen.layers[heads[-1].layer].patterns[heads[-1].index][place]
        for key, entry in enumerate(row):
            yield from back(key, heads[:-1], weight * float(entry))

    yield from back(readout.position, path.components, 1.0)


def made_positive(problem: Problem) -> FrozenSum:
    """Take every number's size, none of the weights 0: then no energy is small by cancelling."""
    frozen = problem.frozen
    for layer in frozen.layers:
        for array in (layer.W_V, layer.W_O):
            array[:] = abs(array) + 0.1
        layer.patterns[:] = abs(layer.patterns)
    for source in frozen.sources:
        source.values[:] = abs(source.values) + 0.1
    problem.readout.direction[:] = abs(problem.readout.direction) + 0.1
    return frozen


def test_energies_are_exact_where_positions_are_named() -> None:
    seen = 0
    for seed in range(120):
        problem = random_problem(seed)
        if problem.frozen.positions > 3 or len(problem.frozen.layers) > 3:
            continue
        frozen, readout = made_positive(problem), problem.readout
        if max(float(np.max(abs(source.values))) for source in frozen.sources) > 1e6:
            continue
        for query in (everything(frozen.network()), problem.query):
            exact = sum(
                value**2
                for path in query.paths()
                if path.source != "b_U"
                for value in named_values(frozen, readout, path)
            )
            exact += sum(float(readout.constant) ** 2 for p in query.paths() if p.source == "b_U")
            tree = PromptTree(frozen, readout, energies(frozen, query, named=True))
            got = rest_energy(tree, query, ())
            assert exact == pytest.approx(got, rel=1e-5, abs=1e-300)
            summed = PromptTree(frozen, readout, energies(frozen, query))
            assert got <= rest_energy(summed, query, ()) * (1 + 1e-5)
            seen += exact > 0
    assert seen > 50


def test_the_energy_of_a_remainder_is_that_of_what_is_left() -> None:
    for seed in range(200):
        problem, rng = random_problem(seed), np.random.default_rng(seed)
        frozen, query = problem.frozen, problem.query
        tree = PromptTree(frozen, problem.readout, energies(frozen, query))
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
        near = problem.frozen.until(problem.readout.position)
        tree = PromptTree(near, problem.readout, energies(near, problem.query))
        found = search(tree, problem.query, top=0)
        largest = max(
            (
                abs(float(path_value(problem.frozen, problem.readout, path)))
                for path in problem.query.paths()
            ),
            default=0.0,
        )
        assert (found.paths, found.certified) == ((), True)
        assert found.bound >= largest * (1 - 1e-9)


def test_every_bound_of_a_suffix_holds_for_all_its_completions() -> None:
    """Not only the largest bound left: each is one."""
    for seed in range(200):
        problem = random_problem(seed)
        frozen, readout, network = problem.frozen, problem.readout, problem.frozen.network()
        query = everything(network)
        energy, known = energies(frozen, query), truths(frozen, readout)
        for path in list(known)[:: max(len(known) // 12, 1)]:
            if not path.components:
                continue
            head, *later = path.components
            suffix = suffix_of(frozen, readout, later)
            layer = frozen.layers[head.layer]
            row = suffix.row @ layer.patterns[head.index]
            inner = layer.W_O[head.index] @ suffix.vector
            bound = energy.bound(head.layer, 0, [head.index], row[None, None], inner[None, None])
            ends = [p for p in known if p.components[-path.order :] == path.components]
            total = np.hypot.reduce([known[each].value for each in ends])
            slack = sum(known[each].rounding for each in ends)
            assert total <= float(bound[0, 0]) + slack


def test_an_interrupt_before_there_are_energies_still_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ranking, "energies", interrupted)
    run = load("two-layer").run("to be or not")
    for max_order in (None, 1):
        table = run.paths(top=5, max_order=max_order)
        assert (len(table), table.bound, table.certified, table.closes) == (0, None, False, True)
        assert "Stopped early" in table.to_text(80)
