"""Which Python objects the arithmetic of a model can take."""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Number, Real


def is_real(value: object) -> bool:
    """Say whether an object is a finite real number: a plain one, or exact, or symbolic.

    >>> from fractions import Fraction
    >>> is_real(Fraction(1, 3)), is_real(1j), is_real("1"), is_real(float("nan")), is_real(True)
    (True, False, False, False, False)
    """
    if isinstance(value, Real):
        is_float = isinstance(value, float) or type(value).__module__ == "numpy"
        return not isinstance(value, bool) and (not is_float or math.isfinite(value))
    if isinstance(value, Number) and not isinstance(value, Decimal):
        return False  # complex
    # Symbols and polynomials are known by what they can do; text and lists cannot be subtracted.
    adds = all(hasattr(value, name) for name in ("__add__", "__sub__", "__mul__"))
    is_array = hasattr(value, "shape") or hasattr(value, "dtype")
    return adds and not is_array and getattr(value, "is_extended_real", None) is not False
