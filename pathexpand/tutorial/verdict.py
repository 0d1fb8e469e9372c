"""Answers to the exercises, compared with what they should be.

The right answer is worked out anew each time, from what the exercise is about and by another route
than the notebook's own solution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from pathexpand.errors import PathExpandError
from pathexpand.model.shown import shown

NEAR = 0.01  # a number may be off by so much of itself, so that one read off a table will do


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """Whether an answer is right, and if it is not, what can be said about it."""

    exercise: str
    right: bool
    why: str = ""

    def __repr__(self) -> str:
        """Say it in a line."""
        if self.right:
            return f"Exercise {self.exercise}: right."
        return f"Exercise {self.exercise}: not yet. {self.why}"


def check(exercise: str, answer: object, about: object = None) -> Verdict:
    """Say whether an answer to an exercise is right.

    `about` is what the exercise is about, mostly a model or a run, as the notebook gives it. A
    number may be off by one in a hundred, a count may not. Raises `PathExpandError` for an exercise
    that there is not, and for `about` of another kind.

    >>> check("1.3", 12**12)
    Exercise 1.3: not yet. A path may also pass a layer by without going through any of its heads.
    >>> check("1.3", 13**12)
    Exercise 1.3: right.
    """
    from pathexpand.tutorial.exercises import EXERCISES

    if not isinstance(exercise, str) or exercise not in EXERCISES:
        known = f"one of {', '.join(EXERCISES)}"
        raise PathExpandError(f"exercise {shown(exercise)}", wanted=known)
    asked = EXERCISES[exercise]
    if type(about).__name__ != asked.kind and asked.kind != "nothing":
        raise PathExpandError(
            f"exercise {exercise}",
            wanted=f"the {asked.kind} that it is about, as in the cell of the exercise",
            got=f"a {type(about).__name__}",
        )
    if answer is None:
        return Verdict(exercise, False, "The answer is still None.")
    try:
        key = asked.key(about)
    except (IndexError, KeyError, ValueError):  # a model with other heads, or a shorter prompt
        wanted = f"the {asked.kind} that the notebook made"
        raise PathExpandError(f"exercise {exercise}", wanted=wanted, got="another") from None
    if _same(answer, key.right):
        return Verdict(exercise, True)
    for slip, why in key.slips:
        if _same(answer, slip):
            return Verdict(exercise, False, why)
    return Verdict(exercise, False, _apart(answer, key.right))


def _same(given: Any, wanted: Any) -> bool:
    """Compare an answer; no kind of value is taken for another."""
    if isinstance(wanted, str):
        return isinstance(given, str) and given.strip() == wanted.strip()
    number = _number(given)
    if number is None:
        return False
    if isinstance(wanted, Integral):
        return number == int(wanted)
    return math.isclose(float(number), float(wanted), rel_tol=NEAR, abs_tol=1e-9)


def _number(given: Any) -> int | float | None:
    """Give a number, also one of an array of one; None for anything else."""
    if getattr(given, "shape", None) == () or getattr(given, "size", 0) == 1:
        given = given.item()
    if isinstance(given, bool) or not isinstance(given, Real):
        return None
    return int(given) if isinstance(given, Integral) else float(given)


def _apart(given: Any, wanted: Any) -> str:
    """Say how far an answer is from the right one without giving that away."""
    if isinstance(wanted, str):
        if not isinstance(given, str):
            return f"Wanted a text such as 'L0H0', got {shown(given)}."
        return f"It is not {shown(given)}."
    number = _number(given)
    if number is None:
        return f"Wanted a number, got {shown(given)}."
    if math.isnan(number):
        return "Wanted a number, got nan."
    if wanted and math.isclose(number, -float(wanted), rel_tol=NEAR):
        return "It has the wrong sign."
    return f"{number:.6g} is too {'large' if number > wanted else 'small'}."
