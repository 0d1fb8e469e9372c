"""A matrix kept as a product of two thin factors, and the algebra that leaves it so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pathexpand.errors import CompositionError
from pathexpand.lowrank.chain import as_floats, bottleneck, contract, shape_text

Floats = NDArray[np.float64]


class SVD(NamedTuple):
    """A thin singular value decomposition ``U @ diag(S) @ Vt``, largest value first.

    ``U`` is (m, k), ``S`` (k,), ``Vt`` (k, n), with k at most the matrix's rank bound.

    >>> Factored([[3.0], [0.0]], [[0.0, 2.0]]).svd().S
    array([6.])
    """

    U: Floats
    S: Floats
    Vt: Floats


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
class Factored:
    """An immutable matrix held as ``left @ right``, (m, r) times (r, n), never as (m, n).

    Both factors are float64 and read-only: lower precision and integers are cast up, a caller's
    array is copied unless nothing can write to it any more. ``array @ factored`` and
    ``factored @ array`` give a `Factored` for a matrix and an array for a vector.

    Raises `CompositionError` for factors that are not 2-D, do not meet, have no rows or columns,
    or are not finite (``check_finite=False`` leaves that last look out).

    >>> OV = Factored([[1, 0], [0, 1], [1, 1]], [[1, 2, 0, 0], [0, 0, 3, 4]])
    >>> OV
    Factored(3×2 @ 2×4)
    >>> np.array([1.0, 0.0, 1.0]) @ OV
    array([2., 4., 3., 4.])
    """

    left: Floats
    right: Floats

    # numpy then leaves every operator between an array and a Factored to the Factored
    __array_ufunc__: ClassVar[None] = None

    def __init__(self, left: ArrayLike, right: ArrayLike, *, check_finite: bool = True) -> None:
        """Check and freeze the two factors."""
        factors = (_factor(left, "left", check_finite), _factor(right, "right", check_finite))
        if factors[0].shape[1] != factors[1].shape[0]:
            raise CompositionError(
                "factors of a Factored",
                wanted="left (m, r) and right (r, n)",
                got=" and ".join(shape_text(factor.shape) for factor in factors),
            )
        if not (factors[0].shape[0] and factors[1].shape[1]):
            raise CompositionError(
                "factors of a Factored",
                wanted="at least one row and one column",
                got=" and ".join(shape_text(factor.shape) for factor in factors),
            )
        object.__setattr__(self, "left", factors[0])
        object.__setattr__(self, "right", factors[1])

    @classmethod
    def product(cls, factors: Sequence[Factored | ArrayLike]) -> Factored:
        """Multiply matrices and factored matrices, cut where the whole chain is thinnest.

        The result's rank bound is the smallest size anywhere along the chain, rows and columns
        counted; each half is contracted in its cheapest order. Where the rows or the columns are
        the smallest, the other half is an identity.

        Raises `CompositionError` where sizes do not meet or a factor is not 2-D or not finite.

        >>> Factored.product([np.ones((50, 7)), np.ones((7, 3)), np.ones((3, 40))])
        Factored(50×3 @ 3×40)
        """
        chain: list[Floats] = []
        for i, factor in enumerate(factors):
            if isinstance(factor, Factored):
                chain += [factor.left, factor.right]
            else:
                chain.append(_finite(_matrix(factor, subject=f"factor {i}"), f"factor {i}"))
        cut = bottleneck([array.shape for array in chain])
        left, right = chain[:cut], chain[cut:]
        return cls(
            _multiplied(left) if left else np.eye(chain[0].shape[0]),  # (m, r)
            _multiplied(right) if right else np.eye(chain[-1].shape[1]),  # (r, n)
            check_finite=False,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix.

        >>> Factored(np.ones((5, 2)), np.ones((2, 7))).shape
        (5, 7)
        """
        return self.left.shape[0], self.right.shape[1]

    @property
    def rank_bound(self) -> int:
        """Size in which the two factors meet; the rank is at most this.

        >>> Factored(np.ones((5, 2)), np.ones((2, 7))).rank_bound
        2
        """
        return int(self.left.shape[1])

    @property
    def T(self) -> Factored:  # noqa: N802 -- numpy's name for it
        """The transpose, which shares this matrix's memory.

        >>> Factored(np.ones((5, 2)), np.ones((2, 7))).T
        Factored(7×2 @ 2×5)
        """
        return _computed(self.right.T, self.left.T)

    def dense(self) -> Floats:
        """Multiply the factors out, into a new (m, n) array; nothing else here does.

        >>> Factored([[1], [2]], [[3, 4]]).dense()
        array([[3., 4.],
               [6., 8.]])
        """
        return np.asarray(self.left @ self.right)  # (m, r) @ (r, n) -> (m, n)

    def norm(self) -> float:
        """Frobenius norm, from the triangular factors of both sides.

        ``‖L R‖ = ‖R_L R_Rᵀ‖`` with ``L = Q_L R_L`` and ``Rᵀ = Q_R R_R``. The error is a small
        multiple of eps · Σ_j ‖L[:, j]‖ ‖R[j, :]‖; by Gram matrices it would be the square root
        of that for a difference of nearly equal matrices.

        >>> Factored([[1], [2]], [[3, 4]]).norm() == 125 ** 0.5
        True
        """
        core = self._core()
        peak = float(np.max(np.abs(core), initial=0.0))
        if peak == 0.0 or not math.isfinite(peak):
            return peak
        return peak * float(np.linalg.norm(core / peak))  # squares neither over- nor underflow

    def svd(self) -> SVD:
        """Thin singular value decomposition, by QR of both factors and one small SVD.

        Gives k = min(m, r, n) values. Each is right to a small multiple of
        eps · Σ_j ‖L[:, j]‖ ‖R[j, :]‖.

        >>> U, S, Vt = Factored([[1, 0], [0, 1], [0, 0]], [[0, 2], [5, 0]]).svd()
        >>> U.shape, S, Vt.shape
        ((3, 2), array([5., 2.]), (2, 2))
        """
        left_basis, left_triangle = np.linalg.qr(self.left)  # (m, r) -> (m, a), (a, r)
        right_basis, right_triangle = np.linalg.qr(self.right.T)  # (n, r) -> (n, b), (b, r)
        core = left_triangle @ right_triangle.T  # (a, r) @ (r, b) -> (a, b)
        U, S, Vt = np.linalg.svd(core, full_matrices=False)  # (a, k), (k,), (k, b)
        return SVD(left_basis @ U, S, Vt @ right_basis.T)  # (m, k), (k,), (k, n)

    def singular_values(self) -> Floats:
        """Return the k = min(m, r, n) singular values of `svd`, largest first, without vectors.

        >>> Factored([[1, 0], [0, 1], [0, 0]], [[0, 2], [5, 0]]).singular_values()
        array([5., 2.])
        """
        return np.asarray(np.linalg.svd(self._core(), compute_uv=False))

    def eigenvalues(self) -> NDArray[np.complex128]:
        """Return the eigenvalues that can differ from zero, largest modulus first, as complex.

        There are min(r, n) of them, those of ``right @ left``, since LR and RL share their
        nonzero eigenvalues; the other n − r are zero. Equal moduli are ordered by larger real,
        then larger imaginary part.

        Raises `CompositionError` unless the matrix is square.

        >>> Factored([[1], [2]], [[3, 4]]).eigenvalues()
        array([11.+0.j])
        """
        self._demand_square("eigenvalues")
        size = self.shape[0]
        # the smaller of the two products, so that n values of an n×n matrix with r > n come out
        small = self.right @ self.left if self.rank_bound <= size else self.left @ self.right
        values = np.linalg.eigvals(small).astype(np.complex128)  # (min(r, n),)
        return values[np.lexsort((-values.imag, -values.real, -np.abs(values)))]

    def trace(self) -> float:
        """Sum of the diagonal, without the other entries.

        Raises `CompositionError` unless the matrix is square.

        >>> Factored([[1], [2]], [[3, 4]]).trace()
        11.0
        """
        self._demand_square("trace")
        return float(np.einsum("ir,ri->", self.left, self.right))

    def trim(self, *, rtol: float | None = None, rank: int | None = None) -> Factored:
        """Return the same matrix factored at its numerical rank, the rest cut off.

        Singular values go that are at most ``rtol`` times the largest, or without ``rtol`` at
        most what rounding can have made: max(m, n, r) · eps · Σ_j ‖L[:, j]‖ ‖R[j, :]‖. Of the
        others at most ``rank`` stay, the largest. What is cut off has as its Frobenius norm the
        root of the sum of the squares of the values that went (Eckart and Young, 1936). Both
        factors get the square root of each value. The zero matrix gets rank bound 0.

        Raises `CompositionError` for an ``rtol`` outside 0 … 1 or a negative ``rank``.

        >>> Factored(np.ones((5, 3)), np.ones((3, 7))).trim()
        Factored(5×1 @ 1×7)
        """
        if rtol is not None and not 0 <= rtol <= 1:
            raise CompositionError("rtol of trim", wanted="a number from 0 to 1", got=str(rtol))
        if rank is not None and rank < 0:
            raise CompositionError("rank of trim", wanted="0 or more", got=str(rank))
        U, S, Vt = self.svd()
        floor = self._rounding() if rtol is None else rtol * float(np.max(S, initial=0.0))
        kept = int(np.count_nonzero(floor < S))  # S falls, so these are the first ones
        kept = kept if rank is None else min(kept, rank)
        root = np.sqrt(S[:kept])
        return _computed(U[:, :kept] * root, root[:, None] * Vt[:kept])  # (m, kept), (kept, n)

    @overload
    def __matmul__(self, other: Factored) -> Factored: ...
    @overload
    def __matmul__(self, other: NDArray[Any]) -> Any: ...
    def __matmul__(self, other: Factored | NDArray[Any]) -> Factored | Floats:
        """Multiply by a matrix or a factored matrix (a `Factored`), or a vector (an array)."""
        if isinstance(other, Factored) or (isinstance(other, np.ndarray) and other.ndim == 2):
            self._demand_left_of(other.shape)
            return Factored.product([self, other])
        if not isinstance(other, np.ndarray):
            return NotImplemented
        vector = _vector(other)
        self._demand_left_of(vector.shape)
        return np.asarray(self.left @ (self.right @ vector))  # (n,) -> (r,) -> (m,)

    def __rmatmul__(self, other: NDArray[Any]) -> Any:
        """Multiply a matrix (giving a `Factored`) or a vector (giving an array) by this matrix."""
        if not isinstance(other, np.ndarray):
            return NotImplemented
        if other.ndim == 2:
            self._demand_right_of(other.shape)
            return Factored.product([other, self])
        vector = _vector(other)
        self._demand_right_of(vector.shape)
        return np.asarray((vector @ self.left) @ self.right)  # (m,) -> (r,) -> (n,)

    def __add__(self, other: Factored) -> Factored:
        """Add by setting the factors side by side, again at the bottleneck if that grew thick."""
        if not isinstance(other, Factored):
            return NotImplemented
        if self.shape != other.shape:
            raise CompositionError(
                "sum of factored matrices",
                wanted=f"two of {shape_text(self.shape)}",
                got=f"{shape_text(self.shape)} and {shape_text(other.shape)}",
            )
        left = np.hstack([self.left, other.left])  # (m, r1), (m, r2) -> (m, r1+r2)
        right = np.vstack([self.right, other.right])  # (r1, n), (r2, n) -> (r1+r2, n)
        side_by_side = _computed(left, right)
        thick = side_by_side.rank_bound > min(self.shape)
        return Factored.product([side_by_side]) if thick else side_by_side

    def __sub__(self, other: Factored) -> Factored:
        """Subtract, as the sum with the negative."""
        return self + -other if isinstance(other, Factored) else NotImplemented

    def __neg__(self) -> Factored:
        """Change the sign."""
        return self._scaled(-1.0)

    def __mul__(self, scalar: float) -> Factored:
        """Multiply by a finite number; arrays are not taken, an elementwise product is dense."""
        return self._scaled(float(scalar)) if _is_number(scalar) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, scalar: float) -> Factored:
        """Divide by a finite number other than zero."""
        return self._scaled(1.0, float(scalar)) if _is_number(scalar) else NotImplemented

    def __repr__(self) -> str:
        """Show the factors' shapes, no numbers."""
        return f"Factored({shape_text(self.left.shape)} @ {shape_text(self.right.shape)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy through the constructor, which freezes the arrays anew."""
        return _computed, (self.left, self.right)

    def __array__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to become an array silently."""
        # typed None, not NoReturn: NoReturn would make type checkers take this for an array
        raise CompositionError(
            repr(self), wanted="no dense product by accident", remedy="call .dense() for an array"
        )

    def _core(self) -> Floats:
        """Give the (min(m, r), min(n, r)) matrix that has this one's nonzero singular values."""
        left_triangle = np.asarray(np.linalg.qr(self.left, mode="r"))  # (min(m, r), r)
        right_triangle = np.asarray(np.linalg.qr(self.right.T, mode="r"))  # (min(n, r), r)
        return np.asarray(left_triangle @ right_triangle.T)

    def _rounding(self) -> float:
        # column norms: QR rounds each column by itself, so a scale that one factor has and the
        # other takes back must not raise the floor
        norms = np.linalg.norm(self.left, axis=0) @ np.linalg.norm(self.right, axis=1)
        return max(*self.shape, self.rank_bound) * float(np.finfo(np.float64).eps * norms)

    def _scaled(self, times: float, over: float = 1.0) -> Factored:
        if not (math.isfinite(times) and math.isfinite(over)):
            raise CompositionError("scalar", wanted="a finite number", got=f"{times} / {over}")
        if over == 0:
            raise ZeroDivisionError("division of a Factored by zero")
        if self.left.size <= self.right.size:
            return _computed(self.left * times / over, self.right)
        return _computed(self.left, self.right * times / over)

    def _demand_square(self, what: str) -> None:
        if self.shape[0] != self.shape[1]:
            raise CompositionError(what, wanted="a square matrix", got=shape_text(self.shape))

    def _demand_left_of(self, other: Sequence[int]) -> None:
        if self.shape[1] != other[0]:
            raise CompositionError(
                f"factored {shape_text(self.shape)} @ operand",
                wanted=f"an operand of {self.shape[1]} rows",
                got=shape_text(other),
            )

    def _demand_right_of(self, other: Sequence[int]) -> None:
        if other[-1] != self.shape[0]:
            raise CompositionError(
                f"operand @ factored {shape_text(self.shape)}",
                wanted=f"an operand of {self.shape[0]} columns",
                got=shape_text(other),
            )


def _computed(left: Floats, right: Floats) -> Factored:
    """Build from arrays that nobody else holds: take them as they are, numbers unchecked."""
    return Factored(_sealed(left), _sealed(right), check_finite=False)


def _multiplied(chain: list[Floats]) -> Floats:
    # a single factor may be a caller's array, which the constructor copies and must not be sealed
    return chain[0] if len(chain) == 1 else _sealed(contract(chain))


def _sealed(array: Floats) -> Floats:
    """Make an array of our own read-only, and with it all that it is a view of."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner.setflags(write=False)
        owner = owner.base
    return array


def _factor(value: ArrayLike, side: str, check_finite: bool) -> Floats:
    subject = f"{side} factor"
    array = _matrix(value, subject=subject)
    if check_finite:
        _finite(array, subject)
    if isinstance(value, np.ndarray) and value.dtype != np.float64:
        return _sealed(array)  # the cast has made a copy already
    return array if _nothing_writes(array) else _sealed(array.copy())


def _finite(array: Floats, subject: str) -> Floats:
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))[0]
        raise CompositionError(
            subject, wanted="finite numbers", got=f"{array[tuple(bad)]} at {bad.tolist()}"
        )
    return array


def _nothing_writes(array: Floats) -> bool:
    """Say whether the array and every array it is a view of are read-only."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner is None  # other memory, a mapped file say, may change under us


def _matrix(value: ArrayLike, *, subject: str) -> Floats:
    array = as_floats(value, subject=subject)
    if array.ndim != 2:
        raise CompositionError(subject, wanted="a matrix (2-D)", got=shape_text(array.shape))
    return array


def _vector(value: NDArray[Any]) -> Floats:
    if value.ndim != 1:
        raise CompositionError(
            "operand of @ with a Factored",
            wanted="a matrix or a vector",
            got=shape_text(value.shape),
            remedy="for a batch, multiply by .left and then by .right",
        )
    return as_floats(value, subject="operand of @ with a Factored")


def _is_number(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "fiu"
    return isinstance(value, (Real, np.floating, np.integer)) and not isinstance(value, bool)
