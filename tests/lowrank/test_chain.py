"""Chains: the plan is the cheapest there is, says what it costs, and is what gets carried out."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pathexpand.errors import CompositionError
from pathexpand.lowrank import Contraction, bottleneck, contract, plan

Floats = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
SIZES = st.sampled_from((1, 2, 3, 5, 7, 11, 13))
seeds = st.integers(0, 2**32 - 1)


def shapes_of(sizes: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(sizes))


def random_chain(sizes: Sequence[int], seed: int) -> list[Floats]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes_of(sizes)]


def tolerance(factors: Sequence[Floats]) -> float:
    """Two ways to multiply a chain differ by eps · Σ(sizes) · Π‖factor‖_F, for each of them."""
    sizes = sum(sum(factor.shape) for factor in factors)
    return float(2 * EPS * sizes * np.prod([np.linalg.norm(factor) for factor in factors]))


def least_cost(sizes: tuple[int, ...]) -> int:
    """Try every bracketing."""

    @cache
    def least(i: int, j: int) -> int:
        if j - i == 1:
            return 0
        return min(
            least(i, k) + least(k, j) + sizes[i] * sizes[k] * sizes[j] for k in range(i + 1, j)
        )

    return least(0, len(sizes) - 1)


# --- the product -----------------------------------------------------------------------------


@given(st.lists(SIZES, min_size=2, max_size=9), st.booleans(), st.booleans(), seeds)
def test_contract_is_the_product(sizes: list[int], first: bool, last: bool, seed: int):
    factors = random_chain(sizes, seed)
    if first:
        factors[0] = factors[0][0]
    if last and len(factors) > 1:
        factors[-1] = factors[-1][:, 0]
    got, left_to_right = contract(factors), reduce(np.matmul, factors)
    assert got.dtype == np.float64
    assert got.shape == np.shape(left_to_right) == plan([f.shape for f in factors]).shape
    assert np.linalg.norm(got - left_to_right) <= tolerance(factors)


@pytest.mark.parametrize("count", [53, 123, 301])
def test_chains_beyond_the_letters_of_einsum(count: int):
    """Each layer gives two factors: 60 layers, embedding and unembedding are 122."""
    rng = np.random.default_rng(count)
    sizes = [int(size) for size in rng.choice([1, 3, 5, 7, 11], count + 1)]
    factors = [factor / 2 for factor in random_chain(sizes, count)]
    assert np.linalg.norm(contract(factors) - reduce(np.matmul, factors)) <= tolerance(factors)
    ends = [factors[0][0], *factors[1:-1], factors[-1][:, 0]]
    assert abs(contract(ends) - reduce(np.matmul, ends)) <= tolerance(ends)


def test_integers_multiply_exactly():
    rng = np.random.default_rng(1)
    factors = [rng.integers(-3, 4, size=shape) for shape in shapes_of([5, 2, 7, 3, 11])]
    assert (contract(factors) == reduce(np.matmul, factors)).all()


def test_half_precision_is_cast_up_first():
    hundred = np.full((1, 1), 100, dtype=np.float16)
    assert contract([hundred] * 4).item() == 1e8  # half precision ends at 65,504


def test_the_result_is_new_and_the_callers_arrays_stay_as_they_were():
    factor = np.ones((2, 3))
    for factors in ([factor], [factor, factor.T], [factor, factor.T, factor]):
        result = contract(factors)
        assert not np.shares_memory(result, factor)
        assert factor.flags.writeable


# --- the plan --------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40), min_size=2, max_size=9))
def test_plan_is_the_cheapest_of_all_bracketings(sizes: list[int]):
    order = plan(shapes_of(sizes))
    assert order.multiplications == least_cost(tuple(sizes))
    assert order.flops == 2 * order.multiplications
    assert order.multiplications <= order.left_to_right


@given(st.lists(st.integers(2, 40), min_size=3, max_size=9))
def test_plan_agrees_with_opt_einsum(sizes: list[int]):
    from opt_einsum import contract_path, get_symbol

    terms = [get_symbol(i) + get_symbol(i + 1) for i in range(len(sizes) - 1)]
    equation = f"{','.join(terms)}->{terms[0][0]}{terms[-1][1]}"
    _, path = contract_path(equation, *shapes_of(sizes), shapes=True, optimize="dp")
    pairs = len(sizes) > 3  # opt_einsum leaves two factors to themselves
    assert not pairs or plan(shapes_of(sizes)).flops == path.opt_cost


@given(st.lists(SIZES, min_size=2, max_size=40))
def test_steps_build_the_whole_chain_each_after_its_parts(sizes: list[int]):
    order = plan(shapes_of(sizes))
    done = {(i, i + 1) for i in range(len(sizes) - 1)}
    for step in order.steps:
        assert {(step.start, step.middle), (step.middle, step.stop)} <= done
        done -= {(step.start, step.middle), (step.middle, step.stop)}
        done.add((step.start, step.stop))
        assert (step.rows, step.inner, step.columns) == (
            sizes[step.start],
            sizes[step.middle],
            sizes[step.stop],
        )
    assert done == {(0, len(sizes) - 1)}


def test_steps_are_what_is_carried_out(monkeypatch: pytest.MonkeyPatch):
    """Each step runs as one BLAS product of the planned sizes, also past label 52."""
    engine = importlib.import_module(
        "opt_einsum.contract"
    )  # the package has a function of that name
    rng = np.random.default_rng(5)
    sizes = [int(size) for size in rng.choice([2, 3, 5, 7, 11, 13], 90)]
    products: list[tuple[int, int, int]] = []
    tensordot = engine._tensordot

    def recorded(x: Floats, y: Floats, axes: tuple[tuple[int], ...], backend: str) -> Floats:
        inner = x.shape[axes[0][0]]
        products.append(tuple(sorted((x.size // inner, inner, y.size // inner))))
        return tensordot(x, y, axes=axes, backend=backend)

    monkeypatch.setattr(engine, "_tensordot", recorded)
    contract(random_chain(sizes, 5))
    steps = plan(shapes_of(sizes)).steps
    assert products == [tuple(sorted((s.rows, s.inner, s.columns))) for s in steps]


def test_plan_knows_what_it_saves():
    order = plan([(5, 2), (2, 7), (7, 3)], names=["A", "B", "C"])
    assert order.brackets == "(A (B C))"
    assert (order.multiplications, order.left_to_right) == (2 * 7 * 3 + 5 * 2 * 3, 5 * 2 * 7 + 105)
    assert order.largest_intermediate == 6
    assert plan([(5, 2)]).multiplications == plan([(5, 2)]).largest_intermediate == 0
    assert plan([(3,), (3,)]).shape == ()


def test_counts_are_exact_above_the_floats():
    huge = 10**9 + 7
    assert plan([(huge, huge), (huge, huge)]).multiplications == huge**3


def test_of_equal_orders_the_leftmost_split_is_taken():
    assert plan([(2, 2)] * 4, names="ABCD").brackets == "(A (B (C D)))"


def test_planning_a_long_chain_is_quick():
    rng = np.random.default_rng(0)
    sizes = [int(size) for size in rng.choice([32, 64, 100, 768], 123)]
    start = time.perf_counter()
    plan(shapes_of(sizes))
    assert time.perf_counter() - start < 1.0  # 0.01 s measured; opt_einsum's own dp takes 3 s


@given(st.lists(SIZES, min_size=2, max_size=12))
def test_bottleneck_is_the_smallest_size_inside_if_possible_and_cheapest(sizes: list[int]):
    cut, least = bottleneck(shapes_of(sizes)), min(sizes)
    assert sizes[cut] == least
    inside = [i for i in range(1, len(sizes) - 1) if sizes[i] == least]
    assert cut in inside or not inside

    def cost(i: int) -> int:
        return least_cost(tuple(sizes[: i + 1])) + least_cost(tuple(sizes[i:]))

    if inside:
        assert cut == min(inside, key=lambda i: (cost(i), i))


# --- print -----------------------------------------------------------------------------------


def test_printed_plan():
    names = ["W_E", "W_V[L0H1]", "W_O[L0H1]", "W_V[L1H6]", "W_O[L1H6]", "W_U"]
    sizes = [5000, 768, 64, 768, 64, 768, 5000]
    assert str(plan(shapes_of(sizes), names=names)).splitlines() == [
        "step  product                                result             multiplications",
        "   1  W_E × W_V[L0H1]                        5000×64                245,760,000",
        "   2  W_O[L0H1] × W_V[L1H6]                  64×64                    3,145,728",
        "   3  W_O[L0H1]…W_V[L1H6] × W_O[L1H6]        64×768                   3,145,728",
        "   4  W_O[L0H1]…W_O[L1H6] × W_U              64×5000                245,760,000",
        "   5  W_E…W_V[L0H1] × W_O[L0H1]…W_U          5000×5000            1,600,000,000",
        "total 2,097,811,456 multiplications",
        "largest intermediate 5000×64, 320,000 numbers",
        "left to right 20,183,040,000 multiplications, 9.621 times as many",
    ]


@given(st.lists(st.integers(1, 10**7), min_size=2, max_size=130), st.booleans())
def test_print_fits_a_terminal_and_stays_short(sizes: list[int], named: bool):
    names = [f"a rather long name of factor {i}" for i in range(len(sizes) - 1)]
    lines = str(plan(shapes_of(sizes), names=names if named else None)).splitlines()
    assert max(len(line) for line in lines) <= 80
    assert len(lines) <= 17
    assert lines[-1].startswith("left to right")


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda: plan([]), "chain: wanted at least one factor, got none"),
        (lambda: plan([(2, 3), (4, 5)]), r"factor 1: wanted 3 rows, as factor 0 \(2×3\)"),
        (lambda: plan([(2, 3), (3,), (3, 2)]), "factor 1: wanted a matrix .*got a vector of 3"),
        (lambda: plan([(2, 3), (4,)]), "factor 1: wanted 3 rows.*got 4"),
        (lambda: plan([(2, 3, 4)]), "factor 0: wanted a matrix or a vector, got 2×3×4"),
        (lambda: plan([()]), "got scalar"),
        (lambda: plan([(2, -3)]), "factor 0"),
        (lambda: plan([(2, 3)], names=["A", "B"]), "names of the factors: wanted 1"),
        (lambda: contract([]), "at least one factor"),
        (lambda: contract([np.ones((2, 3)), np.ones((2, 3))]), "factor 1: wanted 3 rows"),
        (lambda: contract([np.ones((2, 3)), [["a"]]]), "factor 1: wanted real numbers"),
        (lambda: contract([np.ones((2, 2)) * 1j]), "complex128"),
        (lambda: bottleneck([(2, 3), (4, 5)]), "factor 1: wanted 3 rows"),
    ],
)
def test_wrong_chains_are_refused_in_one_line(wrong: Callable[[], object], line: str):
    with pytest.raises(CompositionError, match=line) as caught:
        wrong()
    assert "\n" not in str(caught.value)


def test_values_are_frozen():
    order = plan([(2, 3), (3, 2)])
    assert isinstance(order, Contraction)
    with pytest.raises(AttributeError):
        order.steps = ()  # type: ignore[misc]
    assert order == plan([(2, 3), (3, 2)])
    assert hash(order) == hash(plan([(2, 3), (3, 2)]))


def test_opt_einsum_is_imported_only_for_a_chain():
    code = (
        "import sys, numpy as np, pathexpand.lowrank as lowrank;"
        "lowrank.plan([(2, 3), (3, 2), (2, 2)]); lowrank.contract([np.eye(2), np.eye(2)]);"
        "print('opt_einsum' in sys.modules, 'sympy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
