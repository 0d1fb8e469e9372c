"""What a law's check gives back: the measured error beside the bound it must stay under."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pathexpand.errors import PathExpandError


class LawError(PathExpandError):
    """A law that does not hold for a model."""


@dataclass(frozen=True, slots=True)
class LawResult:
    """One law checked on one model: does it hold, how large is the error, how large may it be.

    Where a law compares many numbers, `error` and `bound` are those of the comparison that came
    closest to its bound, or went furthest beyond it. A bound of 0 asks for equality. A law that
    says nothing about a model does not apply: nothing was checked, and `detail` says why.

    >>> LawResult("closure", True, 1e-15, 3e-15, "4 paths").require().holds
    True
    """

    name: str
    holds: bool
    error: float
    bound: float
    detail: str
    applies: bool = True

    def require(self) -> LawResult:
        """Give the result back; raises `LawError` if the law does not hold.

        >>> LawResult("closure", False, 1.0, 3e-15, "4 paths").require()
        Traceback (most recent call last):
        ...
        pathexpand.laws.result.LawError: law closure (4 paths): wanted an error of at most 3e-15,
        got 1
        """
        if self.holds:
            return self
        raise LawError(
            f"law {self.name} ({self.detail})",
            wanted=f"an error of at most {self.bound:.3g}",
            got=f"{self.error:.3g}",
        )


@dataclass(frozen=True, slots=True)
class Deviation:
    """One comparison: how far two numbers lie apart and how far they may, and what they were.

    Both are numbers of any exact or floating kind; they are compared as they are.
    """

    error: Any
    bound: Any
    subject: str = ""

    @property
    def holds(self) -> bool:
        """Whether the error is within a finite bound; NaN never is.

        >>> Deviation(1, 1).holds, Deviation(float("nan"), 1).holds
        (True, False)
        """
        return bool(self.error <= self.bound) and math.isfinite(float(self.bound))

    @property
    def ratio(self) -> float:
        """Error over bound; infinite where they cannot be compared."""
        error, bound = float(self.error), float(self.bound)
        if math.isnan(error) or not math.isfinite(bound):
            return math.inf
        if bound == 0.0:
            return 0.0 if self.holds else math.inf
        return error / bound


def judged(name: str, deviations: Iterable[Deviation], detail: str) -> LawResult:
    """Sum up comparisons as one result: that of the worst, which is named if it fails.

    >>> found = judged("sum", [Deviation(0, 0), Deviation(3, 2, "row 1")], "2 rows")
    >>> found.holds, found.error, found.bound, found.detail
    (False, 3.0, 2.0, '2 rows; fails at row 1')
    """
    worst, faults = Deviation(0.0, 0.0), 0
    for each in deviations:
        faults += not each.holds
        # A failure always outranks what holds, even where float division cannot tell.
        if (not each.holds, each.ratio, float(each.bound)) > (
            not worst.holds,
            worst.ratio,
            float(worst.bound),
        ):
            worst = each
    if faults and worst.subject:
        detail = f"{detail}; fails at {worst.subject}"
    return LawResult(name, not faults, float(worst.error), float(worst.bound), detail)


def not_applicable(name: str, reason: str) -> LawResult:
    """Give the result of a law that says nothing about a model; it does not hold, nor fail.

    >>> not_applicable("norm ranking", "norms depend on the prompt").applies
    False
    """
    return LawResult(name, True, 0.0, 0.0, f"does not apply: {reason}", applies=False)


def unequal(got: object, wanted: object, subject: str) -> Deviation:
    """Compare what must simply be equal: the error is 1 where it is not.

    >>> unequal(3, 3, "number of rows").holds
    True
    """
    return Deviation(
        float(got != wanted), 0.0, f"{subject}: wanted {wanted}, got {got}" if subject else ""
    )
