"""Factored matrices against dense numpy, and where they must do better than the easy formula.

Tolerances: with E = eps · ‖left‖_F ‖right‖_F, a product of inner size r is off by at most r·E in
Frobenius norm (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.5), and what
goes through Householder QR of an m×r factor by at most c·m·r·E with a small c (Theorem 19.4).
Both sides of a comparison round, so each tolerance is a sum of such terms.
"""

from __future__ import annotations

import copy
import math
import pickle
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pathexpand.errors import CompositionError
from pathexpand.lowrank import Factored

Floats = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
ROWS, COLUMNS, INNER = (1, 5, 11), (2, 7, 13), (1, 3, 17, 19)  # 17 and 19 exceed every side
QR = 4  # the small c of Theorem 19.4


def arrays(draw: st.DrawFn, *shapes: tuple[int, int]) -> list[Floats]:
    """Random matrices of very different scales; never symmetric, no two alike."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scales = 10.0 ** rng.integers(-4, 5, size=len(shapes))
    return [scale * rng.standard_normal(shape) for scale, shape in zip(scales, shapes, strict=True)]


@st.composite
def factored(draw: st.DrawFn, rows: int | None = None, columns: int | None = None) -> Factored:
    m = draw(st.sampled_from(ROWS)) if rows is None else rows
    n = draw(st.sampled_from(COLUMNS)) if columns is None else columns
    r = draw(st.sampled_from(INNER))
    return Factored(*arrays(draw, (m, r), (r, n)))


@st.composite
def same_shape(draw: st.DrawFn) -> tuple[Factored, Factored]:
    first = draw(factored())
    return first, draw(factored(*first.shape))


@st.composite
def meeting(draw: st.DrawFn) -> tuple[Factored, Factored]:
    first = draw(factored())
    return first, draw(factored(first.shape[1], draw(st.sampled_from((1, 3, 23)))))


@st.composite
def square(draw: st.DrawFn) -> Factored:
    size = draw(st.sampled_from(ROWS + COLUMNS))
    return draw(factored(size, size))


def fro(matrix: Floats) -> float:
    return float(np.linalg.norm(matrix))


def scale(F: Factored) -> float:
    return fro(F.left) * fro(F.right)


def qr_tolerance(F: Factored) -> float:
    m, n = F.shape
    return QR * EPS * F.rank_bound * (m + n + F.rank_bound) * scale(F)


# --- against dense ---------------------------------------------------------------------------


@given(meeting())
def test_product_of_two_is_the_dense_product_at_the_bottleneck(pair: tuple[Factored, Factored]):
    A, B = pair
    sizes = (A.shape[0], A.rank_bound, A.shape[1], B.rank_bound, B.shape[1])
    tolerance = 2 * EPS * sum(sizes) * scale(A) * scale(B)
    assert (A @ B).shape == (A.shape[0], B.shape[1])
    assert (A @ B).rank_bound == min(sizes)
    assert fro((A @ B).dense() - A.dense() @ B.dense()) <= tolerance


@given(st.data(), factored(), st.sampled_from((1, 3, 23)))
def test_product_with_an_array_on_either_side(data: st.DataObject, F: Factored, size: int):
    m, n = F.shape
    right, left = arrays(data.draw, (n, size), (size, m))
    tolerance = 2 * EPS * (m + n + F.rank_bound) * scale(F)
    for product, dense, other in (
        (F @ right, F.dense() @ right, right),
        (left @ F, left @ F.dense(), left),
    ):
        assert isinstance(product, Factored)
        assert product.rank_bound == min(m, n, F.rank_bound, size)
        assert fro(product.dense() - dense) <= tolerance * fro(other)
    column, row = right[:, 0], left[0]
    assert (F @ column).shape == (m,)
    assert (row @ F).shape == (n,)
    assert fro(F @ column - F.dense() @ column) <= tolerance * fro(column)
    assert fro(row @ F - row @ F.dense()) <= tolerance * fro(row)


@given(same_shape())
def test_sum_and_difference(pair: tuple[Factored, Factored]):
    A, B = pair
    tolerance = EPS * 2 * (A.rank_bound + B.rank_bound + 1) * (scale(A) + scale(B))
    for got, dense in ((A + B, A.dense() + B.dense()), (A - B, A.dense() - B.dense())):
        assert got.shape == A.shape
        assert got.rank_bound == min(A.rank_bound + B.rank_bound, *A.shape)
        assert fro(got.dense() - dense) <= tolerance


@given(factored(), st.floats(-1e6, 1e6).filter(lambda s: abs(s) > 1e-6))
def test_scalars_sign_and_transpose(F: Factored, s: float):
    tolerance = EPS * (F.rank_bound + 2) * scale(F)
    for got, dense, size in (
        (s * F, s * F.dense(), abs(s)),
        (F * s, s * F.dense(), abs(s)),
        (np.float64(s) * F, s * F.dense(), abs(s)),
        (np.array(s) * F, s * F.dense(), abs(s)),
        (F / s, F.dense() / s, 1 / abs(s)),
        (-F, -F.dense(), 1.0),
    ):
        assert fro(got.dense() - dense) <= tolerance * size
    assert F.T.shape == F.shape[::-1]
    assert fro(F.T.dense() - F.dense().T) <= tolerance


@given(factored())
def test_norm(F: Factored):
    assert abs(F.norm() - fro(F.dense())) <= qr_tolerance(F)


@given(factored())
def test_singular_value_decomposition(F: Factored):
    U, S, Vt = F.svd()
    k = min(*F.shape, F.rank_bound)
    assert (U.shape, S.shape, Vt.shape) == ((F.shape[0], k), (k,), (k, F.shape[1]))
    assert fro((U * S) @ Vt - F.dense()) <= qr_tolerance(F)
    # three matrices with orthonormal columns were multiplied: each is off by c · size² · eps
    orthonormal = QR * EPS * (max(F.shape) + k) ** 2
    assert fro(U.T @ U - np.eye(k)) <= orthonormal
    assert fro(Vt @ Vt.T - np.eye(k)) <= orthonormal
    # Weyl: singular values move by no more than the matrix does
    dense = np.linalg.svd(F.dense(), compute_uv=False)
    assert np.abs(S - dense[:k]).max() <= qr_tolerance(F)
    assert np.abs(F.singular_values() - S).max() <= qr_tolerance(F)
    assert (np.diff(S) <= 0).all()


@given(square())
def test_power_sums_of_eigenvalues_are_traces_of_powers(F: Factored):
    """Computed eigenvalues are exact for RL + E, and tr((RL + E)^p) moves by p·‖RL‖^(p-1)·‖E‖·√n.

    No condition number of an eigenvector basis comes in, unlike in a value-by-value comparison.
    """
    values = F.eigenvalues()
    size = F.shape[0]
    assert values.dtype == np.complex128
    assert len(values) == min(size, F.rank_bound)
    power = np.eye(size)
    for p in (1, 2, 3):
        power = power @ F.dense()
        tolerance = QR * EPS * p * (size + F.rank_bound) ** 2 * scale(F) ** p
        assert abs((values**p).sum() - np.trace(power)) <= tolerance
    assert abs(F.trace() - np.trace(F.dense())) <= 2 * EPS * (size + F.rank_bound) * scale(F)


def test_eigenvalues_come_in_a_stated_order():
    turn = Factored(np.diag([2.0, 2.0, 2.0, 5.0]), np.diag([1.0, -1.0, 1.0, 1.0]))
    assert turn.eigenvalues().tolist() == [5, 2, 2, -2]
    quarter = Factored(np.eye(2), [[0.0, -3.0], [3.0, 0.0]])
    assert quarter.eigenvalues() == pytest.approx([3j, -3j], rel=8 * EPS)


def set_distance(first: NDArray[np.complex128], second: NDArray[np.complex128]) -> float:
    distances = np.abs(first[:, None] - second)  # (values of first, values of second)
    return float(max(distances.min(axis=0).max(), distances.min(axis=1).max()))


@given(st.data(), st.sampled_from((5, 7, 13)))
def test_ab_and_ba_share_eigenvalues_but_not_norms(data: st.DataObject, size: int):
    r1, r2 = data.draw(st.sampled_from((1, 2, 3))), data.draw(st.sampled_from((1, 4)))
    shapes = (size, r1), (r1, size), (size, r2), (r2, size)
    left, right, left2, right2 = arrays(data.draw, *shapes)
    A, B = Factored(left, right), Factored(left2, right2)
    AB, BA = A @ B, B @ A
    # Bauer-Fike: a value moves by at most the condition of the eigenvectors times ‖E‖
    condition = sum(
        np.linalg.cond(np.linalg.eig(product.right @ product.left).eigenvectors)
        for product in (AB, BA)
    )
    tolerance = QR * EPS * condition * size**2 * scale(A) * scale(B)
    first, second = AB.eigenvalues(), BA.eigenvalues()
    # a chain cut elsewhere may carry zero values along; they belong to the set of the matrix
    zero = np.zeros(1, dtype=np.complex128)
    assert set_distance(np.append(first, zero), np.append(second, zero)) <= tolerance
    assert abs(AB.norm() - BA.norm()) > 1e-6 * (AB.norm() + BA.norm())


# --- accuracy where the easy formula has none ------------------------------------------------


def gram_norm(F: Factored) -> float:
    """‖LR‖ as √tr(LᵀL RRᵀ): the formula that `Factored.norm` must not use."""
    trace = np.trace((F.left.T @ F.left) @ (F.right @ F.right.T))
    return math.sqrt(max(float(trace), 0.0))


def exact_norm(F: Factored) -> float:
    left = [[Fraction(x) for x in row] for row in F.left.tolist()]
    right = [[Fraction(x) for x in row] for row in F.right.T.tolist()]
    squares = (
        sum(x * y for x, y in zip(row, column, strict=True)) ** 2
        for row in left
        for column in right
    )
    return math.sqrt(sum(squares))


@pytest.mark.parametrize("seed", range(8))
def test_norm_of_a_small_difference_keeps_digits_that_gram_traces_lose(seed: int):
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((13, 3)), rng.standard_normal((3, 11))
    A = Factored(left, right)
    difference = A - Factored(left * (1 + 1e-9), right)
    exact = exact_norm(difference)  # of the factors as they are stored, in rationals
    assert exact == pytest.approx(1e-9 * A.norm(), rel=1e-5)
    # eps · scale / exact ≈ 1e-16 / 1e-9: seven digits left
    assert abs(difference.norm() - exact) <= qr_tolerance(difference)
    assert qr_tolerance(difference) <= 1e-3 * exact
    assert abs(difference.norm() - exact) <= 1e-5 * exact
    # Gram traces err by eps · scale² under the root, ≈ 1e-8 against 1e-9: no digit left
    assert abs(gram_norm(difference) - exact) > 0.5 * exact
    assert difference.singular_values()[0] <= exact * (1 + 1e-5)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_norm_neither_overflows_nor_vanishes(size: float):
    F = Factored([[3.0 * size], [4.0 * size]], [[1.0, 0.0]])
    assert F.norm() == pytest.approx(5 * size, rel=1e-14)


def test_zero_matrix():
    F = Factored(np.zeros((5, 3)), np.zeros((3, 5)))
    assert F.norm() == 0.0
    nothing = F.trim()
    assert (nothing.rank_bound, nothing.norm(), nothing.trace()) == (0, 0.0, 0.0)
    assert nothing.eigenvalues().shape == nothing.singular_values().shape == (0,)
    assert (nothing @ nothing + nothing).dense().tolist() == np.zeros((5, 5)).tolist()


# --- trim ------------------------------------------------------------------------------------


@given(factored())
def test_trim_keeps_the_matrix_at_its_rank(F: Factored):
    trimmed = F.trim()
    assert trimmed.rank_bound <= np.linalg.matrix_rank(F.dense())
    # the default floor is max(size) · eps · Σ_j‖L_j‖‖R_j‖, and at most k values went
    floor = EPS * max(*F.shape, F.rank_bound) ** 2 * scale(F)
    assert fro(trimmed.dense() - F.dense()) <= qr_tolerance(F) + floor


@given(factored(11, 13), st.integers(0, 20))
def test_trim_to_a_rank_is_the_best_approximation(F: Factored, rank: int):
    trimmed = F.trim(rank=rank)
    S = F.singular_values()
    assert trimmed.rank_bound == min(rank, len(S))
    assert abs((F - trimmed).norm() - fro(S[rank:])) <= 2 * qr_tolerance(F)


def test_trim_by_relative_tolerance():
    F = Factored(np.diag([100.0, 10.0, 1.0]), np.eye(3))
    assert [F.trim(rtol=rtol).rank_bound for rtol in (0, 0.01, 0.02, 0.5, 1)] == [3, 2, 2, 1, 0]
    assert F.trim(rtol=0.02, rank=1).dense() == pytest.approx(np.diag([100.0, 0, 0]), abs=1e-12)


def test_trim_sees_the_rank_of_a_difference_through_the_rounding():
    rng = np.random.default_rng(3)
    A = Factored(rng.standard_normal((23, 2)), rng.standard_normal((2, 29)))
    B = Factored(rng.standard_normal((23, 3)), rng.standard_normal((3, 29)))
    assert (A + B - A).rank_bound == 7
    assert (A + B - A).trim().rank_bound == 3
    assert (A - A).trim().rank_bound == 0


def test_trim_is_not_misled_by_a_scale_that_the_factors_exchange():
    F = Factored(np.diag([1e20, 1.0]), np.diag([1e-20, 1.0]))
    assert F.trim().rank_bound == 2


# --- faults people have met ------------------------------------------------------------------


def copying_score(F: Factored) -> float:
    values = F.eigenvalues()
    return float(values.real.sum() / np.abs(values).sum())


@pytest.mark.parametrize(
    ("left", "right", "score"),
    [
        ([[1], [2]], [[3, 4]], 1.0),
        (np.eye(2), [[0, -1], [1, 0]], 0.0),
        (np.eye(2), [[1, -math.sqrt(3)], [math.sqrt(3), 1]], 0.5),
    ],
)
def test_copying_scores(left: list[list[float]], right: list[list[float]], score: float):
    assert copying_score(Factored(left, right)) == pytest.approx(score, abs=8 * EPS)


def test_low_rank_shapes():
    A, B = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    assert (np.array([1.0, 2.0]) @ Factored(A, B)).shape == (4,)
    one = Factored([[2.0]], [[3.0]])
    assert ((one @ one).dense().tolist(), one.trace(), one.norm()) == ([[36.0]], 6.0, 6.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.dtype(">f4")])
def test_other_precisions_are_cast_up_before_any_arithmetic(dtype: type):
    F = Factored(np.array([[100, 100]], dtype=dtype), np.array([[100], [100]], dtype=dtype))
    assert F.left.dtype == F.right.dtype == np.float64
    assert not (F.left.flags.writeable or F.right.flags.writeable)
    assert F.dense().item() == 20_000.0
    third = Factored(np.array([[300.0]], dtype=np.float16), np.array([[300.0]], dtype=np.float16))
    assert third.dense().item() == 90_000.0  # above half precision's 65,504
    assert (np.array([300.0], dtype=np.float16) @ third).item() == 27_000_000.0


# --- whole chains ----------------------------------------------------------------------------


def test_path_of_sixty_layers_stays_at_the_bottleneck():
    rng = np.random.default_rng(7)
    sizes = [41, *([19, 3] * 60), 19, 43]
    chain = [rng.standard_normal(shape) / 3 for shape in pairwise(sizes)]
    F = Factored.product(chain)
    assert (F.shape, F.rank_bound) == ((41, 43), 3)
    dense, bound = np.eye(41), 1.0
    for factor in chain:
        dense, bound = dense @ factor, bound * np.linalg.norm(factor, 2)
    # spectral norms: ‖fl(chain) − chain‖ ≤ eps · Σ(inner sizes) · Π‖factor‖ · √size
    assert fro(F.dense() - dense) <= 2 * EPS * sum(sizes) * math.sqrt(43) * bound
    heads = [Factored(*pair) for pair in zip(chain[1:-1:2], chain[2:-1:2], strict=True)]
    assert fro(Factored.product([chain[0], *heads, chain[-1]]).dense() - F.dense()) == 0.0


def test_thin_ends_are_cut_at_the_end():
    rng = np.random.default_rng(0)
    x, A = rng.standard_normal((2, 11)), Factored(np.ones((11, 5)), np.ones((5, 13)))
    assert repr(x @ A) == "Factored(2×2 @ 2×13)"
    assert repr(A.T @ x.T) == "Factored(13×2 @ 2×2)"


# --- values cannot change, nor be wrong ------------------------------------------------------


def test_callers_arrays_are_neither_frozen_nor_followed():
    left, right = np.ones((5, 2)), np.ones((2, 7))
    F = Factored(left, right)
    products = [F @ np.ones((7, 3)), Factored.product([left]), Factored.product([left, right])]
    wide = np.ones((7, 3))
    F @ wide
    for array in (left, right, wide):
        assert array.flags.writeable
        array[:] = 9
    for matrix in (F, *products):
        assert matrix.dense().max() <= 14
        for factor in (matrix.left, matrix.right):
            with pytest.raises(ValueError, match="read-only"):
                factor[0, 0] = 5
    with pytest.raises(AttributeError):
        F.left = right  # type: ignore[misc]


def test_only_memory_that_nothing_writes_to_is_shared():
    frozen = np.ones((3, 5, 2))
    frozen.setflags(write=False)
    assert np.shares_memory(Factored(frozen[1], np.ones((2, 7))).left, frozen)
    owner = np.ones((5, 2))
    view = owner.view()
    view.setflags(write=False)
    F = Factored(view, np.ones((2, 7)))
    owner[:] = 9
    assert F.left.max() == 1
    memory = bytearray(np.ones((5, 2)).tobytes())  # as a mapped file: numpy does not own it
    foreign = np.frombuffer(memoryview(memory).toreadonly()).reshape(5, 2)
    F = Factored(foreign, np.ones((2, 7)))
    memory[:8] = bytes(8)
    assert F.left.min() == 1
    assert np.shares_memory(F.T.right, F.left)


def test_copies_and_pickles_are_frozen_too():
    F = Factored(np.ones((5, 2)), np.ones((2, 7)))
    for twin in (copy.copy(F), copy.deepcopy(F), pickle.loads(pickle.dumps(F)).T.T):
        assert not (twin.left.flags.writeable or twin.right.flags.writeable)
        assert (twin.dense() == F.dense()).all()


F57 = Factored(np.ones((5, 2)), np.ones((2, 7)))


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda: Factored(np.ones((5, 2)), np.ones((3, 7))), "got 5×2 and 3×7"),
        (lambda: Factored(np.ones(5), np.ones((1, 7))), "left factor: wanted a matrix"),
        (lambda: Factored(np.ones((5, 1)), np.ones((2, 1, 7))), "right factor: .*got 2×1×7"),
        (lambda: Factored(np.ones((0, 2)), np.ones((2, 7))), "at least one row"),
        (lambda: Factored([[1.0], [np.nan]], [[1.0]]), r"left factor: .*nan at \[1, 0\]"),
        (lambda: Factored([[1.0]], [[1.0, -np.inf]]), r"right factor: .*-inf at \[0, 1\]"),
        (lambda: Factored([[1j]], [[1.0]]), "real numbers, got dtype complex128"),
        (lambda: Factored([["a"]], [[1.0]]), "real numbers"),
        (lambda: Factored([[1.0], [1.0, 2.0]], [[1.0]]), "ragged"),
        (lambda: F57 @ F57, "wanted an operand of 7 rows, got 5×7"),
        (lambda: F57 @ np.ones((5, 7)), "wanted an operand of 7 rows, got 5×7"),
        (lambda: F57 @ np.ones(5), "wanted an operand of 7 rows, got 5"),
        (lambda: np.ones((3, 7)) @ F57, "wanted an operand of 5 columns, got 3×7"),
        (lambda: np.ones(7) @ F57, "wanted an operand of 5 columns, got 7"),
        (lambda: F57 @ np.ones((2, 7, 7)), "got 2×7×7; for a batch"),
        (lambda: F57 @ np.full((7, 3), np.inf), "factor 1: wanted finite"),
        (lambda: F57 + F57.T, "wanted two of 5×7, got 5×7 and 7×5"),
        (lambda: F57 - F57.T, "wanted two of 5×7"),
        (lambda: F57 * math.nan, "finite number"),
        (lambda: F57.trace(), "trace: wanted a square matrix, got 5×7"),
        (lambda: F57.eigenvalues(), "eigenvalues: wanted a square matrix, got 5×7"),
        (lambda: F57.trim(rtol=-1e-3), "rtol of trim"),
        (lambda: F57.trim(rtol=math.nan), "rtol of trim"),
        (lambda: F57.trim(rank=-1), "rank of trim"),
        (lambda: Factored.product([]), "at least one factor"),
        (lambda: Factored.product([F57, np.ones(7)]), "factor 1: wanted a matrix"),
        (lambda: np.asarray(F57), r"call \.dense\(\)"),
        (lambda: np.linalg.norm(F57), r"call \.dense\(\)"),  # type: ignore[arg-type]
    ],
)
def test_wrong_values_are_refused_in_one_line(wrong: Callable[[], object], line: str):
    with pytest.raises(CompositionError, match=line) as caught:
        wrong()
    assert "\n" not in str(caught.value)


def test_elementwise_operations_with_arrays_are_not_taken():
    for wrong in (
        lambda: F57 * np.ones((5, 7)),
        lambda: np.ones((5, 7)) * F57,
        lambda: F57 + np.ones((5, 7)),
        lambda: F57 * F57,
        lambda: F57 * True,
        lambda: F57 @ 2,
        lambda: 2 @ F57,
        lambda: F57 - 1,
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ZeroDivisionError):
        F57 / 0


def test_finiteness_can_be_left_to_the_caller():
    unknown = Factored([[math.nan]], [[1.0]], check_finite=False)
    assert math.isnan(unknown.trace())
    assert math.isnan((unknown + unknown @ unknown).norm())


def test_nothing_of_the_size_of_the_product_is_allocated():
    size, rank = 20_000, 8
    rng = np.random.default_rng(0)
    A = Factored(rng.standard_normal((size, rank)), rng.standard_normal((rank, size)))
    B = Factored(rng.standard_normal((size, rank)), rng.standard_normal((rank, size)))
    v = rng.standard_normal(size)
    A @ B  # imports what is imported late
    tracemalloc.start()
    try:
        ((A @ B - 2 * A).T / 3).trim(rank=5)
        (A.norm(), A.svd(), A.singular_values(), A.eigenvalues(), A.trace(), A @ v, v @ A, repr(A))
        (v[None] @ A, A @ v[:, None])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    factor = size * rank * 8  # bytes; the dense matrix has size / rank = 2,500 times as many
    assert peak < 40 * factor
