"""What a check of a certificate finds: a measured error beside the bound it must stay under."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim of a certificate, checked: does it hold, what was measured, how large may it be.

    Where many numbers are compared, `error` and `bound` are those of the comparison that came
    closest to its bound, or went furthest beyond it. A bound of 0 asks for equality.

    >>> Finding("rows", True, 0.0, 0.0, "3 rows").holds
    True
    """

    name: str
    holds: bool
    error: float
    bound: float
    detail: str


@dataclass(frozen=True, slots=True)
class Compared:
    """One comparison: a number, the most it may be, and what it says if it is more."""

    error: float
    bound: float
    subject: str

    @property
    def holds(self) -> bool:
        """Whether the number is within a finite bound; NaN never is.

        >>> Compared(1.0, 1.0, "").holds, Compared(math.nan, 1.0, "").holds
        (True, False)
        """
        return self.error <= self.bound and math.isfinite(self.bound)

    @property
    def ratio(self) -> float:
        """Error over bound; infinite where it is beyond a bound of 0 or is not a number.

        >>> Compared(1.0, 4.0, "").ratio, Compared(1.0, 0.0, "").ratio
        (0.25, inf)
        """
        if not self.bound > 0:
            return 0.0 if self.holds else math.inf
        ratio = self.error / self.bound
        return math.inf if math.isnan(ratio) else ratio


def equal(got: object, wanted: object, subject: str) -> Compared:
    """Compare what must simply be equal: the error is 1 where it is not.

    >>> equal(2, 3, "number of rows")
    Compared(error=1.0, bound=0.0, subject='number of rows: wanted 3, got 2')
    """
    return Compared(float(got != wanted), 0.0, f"{subject}: wanted {wanted}, got {got}")


def judge(name: str, compared: Iterable[Compared], detail: str) -> Finding:
    """Sum up comparisons as one finding: that of the worst, which is named if it fails.

    >>> judge("sum", [Compared(0.0, 0.0, ""), Compared(3.0, 2.0, "row 1")], "2 rows")
    Finding(name='sum', holds=False, error=3.0, bound=2.0, detail='row 1 (2 rows)')
    """
    worst = max(
        compared,
        key=lambda each: (not each.holds, each.ratio, each.bound),
        default=Compared(0.0, 0.0, ""),
    )
    if not worst.holds:
        detail = f"{worst.subject} ({detail})" if detail else worst.subject
    return Finding(name, worst.holds, float(worst.error), float(worst.bound), detail)
