"""What a path is valued for: a logit, a centred logit, a difference of two, or any direction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.value import Readout
from pathexpand.errors import PromptError
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import logits
from pathexpand.model.numbers import is_real
from pathexpand.model.shown import ROOM, cut, shown
from pathexpand.model.tokenizer import Tokenizer, encode, show_token
from pathexpand.model.weights import Weights

Array = npt.NDArray[Any]
_ID = re.compile(r"[+-]?[0-9]+")  # other scripts' digits are text, as tokenizers see them
TargetLike = str | int | tuple[int | str, int | str] | npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class LogitTarget:
    """One token's logit; centred, the mean logit over the vocabulary is taken off.

    A softmax does not see a constant added to every logit, so the centred logit is the part of it
    that matters.
    """

    token: int
    centred: bool = True

    def readout(self, weights: Weights, position: int) -> Readout:
        """Give the direction of the last stream that this target reads, and its constant."""
        direction = weights.W_U[:, self.token]
        constant = 0 if weights.b_U is None else weights.b_U[self.token]
        if self.centred:
            direction = direction - weights.mean_unembed
            constant = constant if weights.b_U is None else constant - _mean(weights.b_U)
        return Readout(position, direction, constant)

    def dense(self, weights: Weights, stream: Array) -> Any:
        """Give the target's value from the last stream (d_model,), by way of all the logits."""
        every = logits(weights, stream)
        return every[self.token] - _mean(every) if self.centred else every[self.token]

    def rounding(self, weights: Weights, stream: Array) -> float:
        """Bound the rounding of the readout: in the logits, and in the centred direction."""
        d_model, vocab = weights.W_U.shape
        size = float(abs(stream) @ abs(weights.W_U[:, self.token])) + TINY
        mean = float(abs(stream) @ weights.mean_unembed_size)
        if weights.b_U is not None:
            size, mean = size + float(abs(weights.b_U[self.token])), mean + _mean(abs(weights.b_U))
        if not self.centred:
            return gamma(d_model + 1) * size
        # Once in the mean of the logits, once in the mean of the columns.
        return 2 * gamma(d_model + vocab + 2) * (size + mean)

    def describe(self, tokenizer: Tokenizer | None) -> str:
        """Name the target for a table's head."""
        name = f"logit of {show_token(tokenizer, self.token)}"
        return f"{name} minus the vocabulary mean" if self.centred else name


@dataclass(frozen=True, slots=True)
class DifferenceTarget:
    """One token's logit less another's."""

    token: int
    other: int

    def readout(self, weights: Weights, position: int) -> Readout:
        """Give the direction of the last stream that this target reads, and its constant."""
        constant = 0 if weights.b_U is None else weights.b_U[self.token] - weights.b_U[self.other]
        direction = weights.W_U[:, self.token] - weights.W_U[:, self.other]
        return Readout(position, direction, constant)

    def dense(self, weights: Weights, stream: Array) -> Any:
        """Give the target's value from the last stream (d_model,), by way of all the logits."""
        every = logits(weights, stream)
        return every[self.token] - every[self.other]

    def rounding(self, weights: Weights, stream: Array) -> float:
        """Bound the rounding of the readout."""
        some = weights.W_U[:, [self.token, self.other]]
        size = float((abs(stream) @ abs(some)).sum())
        if weights.b_U is not None:
            size += float(abs(weights.b_U[[self.token, self.other]]).sum())
        return 2 * gamma(len(stream) + 2) * (size + TINY)

    def describe(self, tokenizer: Tokenizer | None) -> str:
        """Name the target for a table's head."""
        pair = show_token(tokenizer, self.token), show_token(tokenizer, self.other)
        return f"logit of {pair[0]} minus logit of {pair[1]}"


@dataclass(frozen=True, slots=True, eq=False)
class DirectionTarget:
    """The last stream read along any direction (d_model,); no bias belongs to it."""

    direction: Array
    name: str = "a direction of the last stream"

    def readout(self, weights: Weights, position: int) -> Readout:
        """Give the direction itself; a bias born in the logits is worth nothing along it."""
        return Readout(position, self.direction, 0)

    def dense(self, weights: Weights, stream: Array) -> Any:
        """Give the target's value from the last stream (d_model,)."""
        return stream @ self.direction

    def rounding(self, weights: Weights, stream: Array) -> float:
        """Bound the rounding of the readout."""
        return gamma(len(stream)) * float(abs(stream) @ abs(self.direction) + TINY)

    def describe(self, tokenizer: Tokenizer | None) -> str:
        """Name the target for a table's head."""
        return self.name


Target = LogitTarget | DifferenceTarget | DirectionTarget


def read_target(checkpoint: Checkpoint, target: TargetLike | Target, *, centred: bool) -> Target:
    """Understand what a user gave as a target.

    A whole number, also as text in the digits 0 to 9, is a token id; other text is one token;
    `A-B`, or a pair, is a difference of two of these; `id:5` and `text:5` say which is meant; an
    array (d_model,) is a direction. Raises `PromptError`.
    """
    if isinstance(target, LogitTarget | DifferenceTarget | DirectionTarget):
        return target
    if isinstance(target, np.ndarray) and target.ndim:
        return _direction(checkpoint, target)
    if isinstance(target, tuple):
        if len(target) != 2:
            raise PromptError("target", wanted="two tokens", got=f"{len(target)}")
        return _difference(*(_token(checkpoint, each) for each in target))
    if isinstance(target, str):
        return _read_text(checkpoint, target, centred=centred)
    return LogitTarget(_token(checkpoint, target), centred)


def _read_text(checkpoint: Checkpoint, text: str, *, centred: bool) -> Target:
    try:
        return LogitTarget(_token(checkpoint, text), centred)
    except PromptError as error:
        whole = error
    pairs = []
    for at in (n for n, letter in enumerate(text) if letter == "-"):
        try:
            pairs.append((_token(checkpoint, text[:at]), _token(checkpoint, text[at + 1 :])))
        except PromptError as error:
            if text.count("-") == 1 and text[:at] and text[at + 1 :]:
                whole = error
    if not pairs:
        raise whole
    if len(pairs) > 1:
        raise PromptError(
            f"target {shown(text)}",
            wanted="one way to split it at '-'",
            got=f"{len(pairs)}",
            remedy="give the two tokens by id",
        )
    return _difference(*pairs[0])


def _difference(token: int, other: int) -> DifferenceTarget:
    if token == other:
        raise PromptError("target", wanted="two different tokens", got=f"token {token} twice")
    return DifferenceTarget(token, other)


def _token(checkpoint: Checkpoint, given: object) -> int:
    size = checkpoint.config.d_vocab_out
    if isinstance(given, str) and not given.startswith("text:"):
        number = given.removeprefix("id:")
        if _ID.fullmatch(number):
            if len(number) > 20:  # Python reads no endless number
                raise PromptError(f"target id {cut(number)}", wanted=f"an id from 0 to {size - 1}")
            given = int(number)
        elif number != given:
            raise PromptError(f"target {shown(given)}", wanted="a whole number after id:")
    if isinstance(given, str):
        return _token_of_text(checkpoint, given.removeprefix("text:"))
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        raise PromptError("target", wanted="a token's text or id", got=shown(given))
    if not 0 <= int(given) < size:
        raise PromptError(f"target id {shown(int(given))}", wanted=f"an id from 0 to {size - 1}")
    return int(given)


def _token_of_text(checkpoint: Checkpoint, text: str) -> int:
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        raise PromptError(
            f"target {shown(text)}",
            wanted="a token id",
            got="text",
            remedy="this model has no tokenizer.json",
        )
    ids = encode(tokenizer, text, "target")
    if len(ids) != 1:
        pieces = cut(" ".join(tokenizer.show(each) for each in ids[:8]), 2 * ROOM)
        raise PromptError(
            f"target {shown(text)}",
            wanted="one token",
            got=f"{len(ids)}{': ' if ids else ''}{pieces}",
            remedy="mind the leading space, or give an id",
        )
    return ids[0]


def _direction(checkpoint: Checkpoint, array: Array) -> DirectionTarget:
    if array.shape != (checkpoint.config.d_model,):
        raise PromptError(
            "target direction", wanted=f"shape ({checkpoint.config.d_model},)", got=f"{array.shape}"
        )
    if array.dtype.kind not in "iufO":
        raise PromptError("target direction", wanted="real numbers", got=f"{array.dtype} values")
    if array.dtype != object:
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            raise PromptError("target direction", wanted="finite numbers", got="NaN or infinity")
    strange = [each for each in array.ravel().tolist() if not is_real(each)]
    if strange:
        raise PromptError("target direction", wanted="real numbers", got=shown(strange[0]))
    array = array.copy()
    array.setflags(write=False)
    return DirectionTarget(array)


def _mean(array: Array) -> Any:
    total = array.sum(axis=-1)
    return total / array.shape[-1]
