"""What people give, as the engine takes it, and what cannot be shown."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError, NotationError, PathExpandError
from pathexpand.model.shown import shown
from pathexpand.symbolic import Path

Mask = Sequence[bool] | Sequence[int] | npt.NDArray[Any]


def overflow(place: str) -> ModelError:
    """Give the error for numbers that left the range of float64."""
    return ModelError(
        "run",
        wanted="finite numbers",
        got=f"overflow in {place}",
        remedy="the weights are too large for float64",
    )


def as_mask(mask: Mask | None) -> npt.NDArray[np.bool_] | None:
    """Give a mask as an array."""
    return None if mask is None else np.asarray(mask)


def as_path(path: Path | str) -> Path:
    """Give a path, read from its text if need be.

    >>> as_path("embed > L0H1").order
    1
    """
    if isinstance(path, Path):
        return path
    if not isinstance(path, str):
        raise NotationError("path", wanted='text such as "embed > L0H1"', got=repr(path)[:60])
    return Path.parse(path)


def finite(number: float) -> float | None:
    """Give a bound, or None where it overflowed: then it says nothing."""
    return float(number) if math.isfinite(number) else None


def ratio(part: float, whole: float) -> float | None:
    """Give a share, or None of nothing.

    >>> ratio(1.0, 4.0), ratio(1.0, 0.0)
    (0.25, None)
    """
    return part / whole if whole else None


def check_counts(
    top: int, max_order: int | None, *, names: tuple[str, str] = ("top", "max_order")
) -> None:
    """Refuse numbers of rows or heads that are not whole or below 0."""
    for name, value in zip(names, (top, max_order), strict=True):
        if name == names[1] and value is None:
            continue
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if value is None or not whole or not 0 <= int(value) <= sys.maxsize:
            wanted = "a whole number of at least 0"
            if whole and int(value) > sys.maxsize:  # type: ignore[arg-type]
                wanted += f", at most {sys.maxsize}"
            raise PathExpandError(name, wanted=wanted, got=shown(value))
