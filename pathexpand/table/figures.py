"""Numbers as people read them: one column on one scale, bounds rounded upwards."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal

_READABLE = 10**18  # files hold every digit of larger ones too
_DECIMALS = 4  # of a scale whose largest number is between 1 and 100; other scales follow from it


@dataclass(frozen=True, slots=True)
class Scale:
    """How all numbers of a table are written: so many decimals, or None for powers of ten."""

    decimals: int | None

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Scale:
        """Choose the scale on which the largest of the numbers has five or six digits.

        >>> Scale.of([11.8887, -0.3]), Scale.of([3e9, 1.0])
        (Scale(decimals=4), Scale(decimals=None))
        """
        largest = max((abs(number) for number in numbers), default=0.0)
        if not largest:
            return cls(0)
        if not 1e-3 <= largest < 1e6:
            return cls(None)
        power = math.floor(math.log10(largest))
        return cls(_DECIMALS - max(power - 1, 0) - min(power, 0))

    def write(self, number: float) -> str:
        """Write one number; one too small for the scale keeps its power of ten.

        >>> scale = Scale(4)
        >>> [scale.write(each) for each in (11.88868, 3e-9, 0.0)]
        ['11.8887', '3.0e-09', '0.0000']
        """
        if self.decimals is None:
            return f"{number:.4e}" if number else "0"
        if number and abs(number) <= 0.5 * 10.0**-self.decimals:
            return f"{number:.1e}"
        return f"{number:.{self.decimals}f}"


def percent(share: float | None) -> str:
    """Write a share as a percentage, or a dash where there is none.

    >>> [percent(each) for each in (0.41189, -0.00004, -0.0, 81234.5, None)]
    ['41.2%', '-0.004%', '0.0%', '8.12e+06%', '-']
    """
    if share is None:
        return "-"
    hundredths = 100 * share + 0.0  # no "-0.0%" of nothing
    if hundredths and abs(hundredths) < 0.05:
        return f"{hundredths:.1g}%"
    return f"{hundredths:.1f}%" if abs(hundredths) < 1e5 else f"{hundredths:.2e}%"


def small(number: float) -> str:
    """Write a number of no known size with two digits.

    >>> small(-7.105427e-15), small(0.0)
    ('-7.1e-15', '0')
    """
    return f"{number:.1e}" if number else "0"


def upper(bound: float, *, digits: int = 4) -> str:
    """Write an upper bound, rounded up so that what is printed is still one.

    >>> upper(9.56078e-10), upper(0.18026475), upper(3.1), upper(9.52e-10, digits=2)
    ('9.561e-10', '0.1803', '3.1', '9.6e-10')
    """
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(
        Decimal(repr(float(bound)))
    )
    return f"{float(rounded):.{digits}g}"


def counted(number: int, noun: str) -> str:
    """Write how many there are of something.

    >>> counted(1, "path"), counted(23298085122481, "path")
    ('1 path', '23,298,085,122,481 paths')
    """
    return f"{whole(number)} {noun}{'' if number == 1 else 's'}"


def whole(number: int) -> str:
    """Write a whole number, exactly if somebody can read it.

    >>> whole(9150462864199557), whole(34316026904110632799)
    ('9,150,462,864,199,557', '3.432e+19')
    """
    return f"{number:,}" if number < _READABLE else f"{Decimal(number):.3e}"
