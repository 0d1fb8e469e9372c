"""ALiBi: the slopes by which scores fall with the distance of the key (Press et al. 2022)."""

from __future__ import annotations

import math


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Give one slope a head: powers of 2^(−8/n) for a power of two n, others put between.

    >>> alibi_slopes(8)[:3], len(alibi_slopes(6))
    ((0.5, 0.25, 0.125), 6)
    """
    whole = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8 * (n + 1) / whole) for n in range(whole)]
    slopes += [2.0 ** (-4 * n / whole) for n in range(1, 2 * (heads - whole), 2)]
    return tuple(slopes)
