"""Rotary positions: queries and keys turned by angles that grow with the position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError
from pathexpand.model.numbers import is_real
from pathexpand.model.shown import shown

Array = npt.NDArray[Any]
Pairs = Literal["adjacent", "half"]
WIDEST = 2**16  # beyond any head; each pair takes memory before weights are seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """By how much each pair of numbers of a query or key is turned, a position.

    The first `width` numbers of a head turn, the others stay: in pairs of neighbours ("adjacent")
    or of the first and second half ("half"). Pair n turns by `frequencies[n]` radians a position,
    and grows by `attention_factor`. Prompts of more than `longest` positions are turned by other
    frequencies: by `beyond` (longrope), or by a larger `base` (dynamic), which grows with the
    number of positions by `factor`. Raises `ModelError`.

    >>> turned = Rotary(width=2, pairs="half", frequencies=(1.0,)).turn(
    ...     np.array([[[1.0, 0.0, 7.0]]]), np.array([[1]])
    ... )
    >>> turned.round(4)
    array([[[0.5403, 0.8415, 7.    ]]])
    """

    width: int
    pairs: Pairs
    frequencies: tuple[float, ...]
    attention_factor: float = 1.0
    longest: int | None = None
    beyond: tuple[float, ...] = ()
    base: float = 0.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        """Refuse widths that are odd and angles that are no numbers."""
        if type(self.width) is not int or self.width < 2 or self.width % 2:
            raise ModelError("rotary width", wanted="an even number", got=shown(self.width))
        if self.pairs not in ("adjacent", "half"):
            raise ModelError("rotary pairs", wanted="adjacent or half", got=shown(self.pairs))
        for name, values in (("frequencies", self.frequencies), ("beyond", self.beyond)):
            fits = isinstance(values, tuple) and all(map(is_real, values))
            if (
                not fits
                or len(values) not in ((self.width // 2,), (0, self.width // 2))[name == "beyond"]
            ):
                wanted = f"{self.width // 2} numbers, one a pair"
                raise ModelError(f"rotary {name}", wanted=wanted, got=shown(values))
        if not is_real(self.attention_factor):
            raise ModelError(
                "rotary attention factor", wanted="a number", got=shown(self.attention_factor)
            )

    def turning(self, length: int) -> tuple[float, ...]:
        """Give the frequencies for a prompt of so many positions."""
        if self.longest is None or length <= self.longest:
            return self.frequencies
        if self.beyond:
            return self.beyond
        grown = self.factor * length / self.longest - (self.factor - 1)
        base = self.base * np.power(grown, self.width / (self.width - 2))
        return plain_frequencies(self.width, float(base))

    def turn(self, vectors: Array, places: npt.NDArray[np.int64]) -> Array:
        """Turn queries or keys: (batch, ..., position, d_head), at places (batch, position).

        Each row of the batch is turned as if it were run alone: what counts is its own length.
        """
        lengths = places.max(axis=-1, initial=0) + 1  # (batch,)
        each = np.array([self.turning(int(length)) for length in lengths])  # (batch, pair)
        angles = places[:, :, None] * each[:, None]  # (batch, position, pair)
        middle = (1,) * (vectors.ndim - 3)
        angles = angles.reshape(len(angles), *middle, *angles.shape[1:])
        cos = (np.cos(angles) * self.attention_factor).astype(vectors.dtype)
        sin = (np.sin(angles) * self.attention_factor).astype(vectors.dtype)
        out = vectors.copy()
        half = self.width // 2
        first, second = (
            (slice(0, self.width, 2), slice(1, self.width, 2))
            if self.pairs == "adjacent"
            else (slice(0, half), slice(half, self.width))
        )
        one, other = vectors[..., first], vectors[..., second]  # (batch, ..., position, pair)
        out[..., first] = one * cos - other * sin
        out[..., second] = other * cos + one * sin
        return out


@contextmanager
def angles_of(key: str) -> Iterator[None]:
    """Tell numbers that no angles can be made of as a fault of the setting they come from.

    >>> with angles_of("rope_theta"):
    ...     plain_frequencies(4, 0.0)
    Traceback (most recent call last):
    ...
    pathexpand.errors.ModelError: config rope_theta: wanted a base, factors and lengths that angles
    can be made of, got numbers for which there is no angle
    """
    try:
        yield
    except (ArithmeticError, ValueError, ModelError) as error:
        if isinstance(error, ModelError) and not error.subject.startswith("rotary"):
            raise
        raise ModelError(
            f"config {key}",
            wanted="a base, factors and lengths that angles can be made of",
            got="numbers for which there is no angle",
        ) from None


def plain_frequencies(width: int, base: float) -> tuple[float, ...]:
    """Give base^(−2n/width) for each pair n.

    >>> plain_frequencies(4, 10000.0)
    (1.0, 0.01)
    """
    if width > WIDEST:
        raise ModelError("rotary width", wanted=f"at most {WIDEST}", got=str(width))
    return tuple(1.0 / base ** (n / width) for n in range(0, width, 2))


def linear_rotary(width: int, pairs: Pairs, base: float, factor: float = 1.0) -> Rotary:
    """Give angles of `base`, with positions divided by `factor`."""
    plain = plain_frequencies(width, base)
    return Rotary(width=width, pairs=pairs, frequencies=tuple(each / factor for each in plain))


def dynamic_rotary(width: int, pairs: Pairs, base: float, factor: float, longest: int) -> Rotary:
    """Give angles whose base grows with prompts of more than `longest` positions (NTK scaling)."""
    if width == 2:
        raise ModelError("rotary width", wanted="at least 4, where the base grows", got="2")
    return Rotary(
        width=width,
        pairs=pairs,
        frequencies=plain_frequencies(width, base),
        longest=longest,
        base=base,
        factor=factor,
    )


def llama3_rotary(
    width: int, pairs: Pairs, base: float, factor: float, low: float, high: float, original: int
) -> Rotary:
    """Give the angles of Llama 3.1: slow turns divided by `factor`, fast ones kept.

    A pair that turns less than `low` times over the `original` context is slow, one that turns
    more than `high` times fast; between them the two are mixed.
    """

    def scaled(frequency: float) -> float:
        turns = original * frequency / (2 * math.pi)
        mix = min(max((turns - low) / (high - low), 0.0), 1.0)
        return (1 - mix) * frequency / factor + mix * frequency

    each = tuple(map(scaled, plain_frequencies(width, base)))
    return Rotary(width=width, pairs=pairs, frequencies=each)


def yarn_rotary(
    width: int,
    pairs: Pairs,
    base: float,
    factor: float,
    original: int,
    *,
    attention_factor: float,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Rotary:
    """Give the angles of YaRN (Peng et al. 2023, section 3.2): a ramp over the pairs.

    Pairs that turn more than `beta_fast` times over the `original` context are kept, those that
    turn less than `beta_slow` times divided by `factor`, with a linear ramp between.
    """

    def pair_that_turns(times: float) -> float:
        return width * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high = high + 0.001 if low == high else high

    def scaled(pair: int, frequency: float) -> float:
        ramp = min(max((pair - low) / (high - low), 0.0), 1.0)
        return frequency / factor * ramp + frequency * (1 - ramp)

    each = tuple(scaled(n, plain) for n, plain in enumerate(plain_frequencies(width, base)))
    return Rotary(width=width, pairs=pairs, frequencies=each, attention_factor=attention_factor)


def long_rotary(
    width: int,
    pairs: Pairs,
    base: float,
    short: tuple[float, ...],
    long: tuple[float, ...],
    original: int,
    *,
    attention_factor: float,
) -> Rotary:
    """Give the angles of LongRoPE: a divisor a pair, others beyond the `original` context."""
    plain = plain_frequencies(width, base)
    for name, divisors in (("short_factor", short), ("long_factor", long)):
        if len(divisors) != len(plain) or not all(is_real(each) and each > 0 for each in divisors):
            wanted = f"{len(plain)} positive numbers, one a pair"
            raise ModelError(f"config {name}", wanted=wanted, got=shown(divisors))
    return Rotary(
        width=width,
        pairs=pairs,
        frequencies=tuple(one / each for one, each in zip(plain, short, strict=True)),
        attention_factor=attention_factor,
        longest=original,
        beyond=tuple(one / each for one, each in zip(plain, long, strict=True)),
    )
