"""Tokens along the foot of a drawing."""

from __future__ import annotations

MOST_NAMES = 64  # tokens that can all be named along a side
_NAMES = 105  # pixels that slanted names of tokens take
_FRAME = 50  # pixels of title and margins


def heights(top: int, pixels: int) -> tuple[float, float]:
    """Give the ends of the vertical axis, so that names of tokens fit in below 0.

    >>> low, high = heights(3, 400)
    >>> high, round(low, 2)
    (3.4, -1.46)
    """
    high = top + 0.4
    return -high * _NAMES / (pixels - _FRAME - _NAMES), high
