"""What a path is valued for: a logit, a centred logit, a difference of two, or any direction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.value import Readout
from pathexpand.errors import PromptError
from pathexpand.frozen import Unembed
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.numbers import is_real
from pathexpand.model.shown import ROOM, check_flag, cut, shown
from pathexpand.model.tokenizer import Tokenizer, encode, show_token

Array = npt.NDArray[Any]
_HASHED = re.compile(r"#[0-9]+")
_ID = re.compile(r"[+-]?[0-9]+")  # other scripts' digits are text, as tokenizers see them
# How tables name what they are about; none of it is the text of a token.
_DESCRIBED = ("logit of ", "each prompt's ", "a direction ")


@runtime_checkable
class Identified(Protocol):
    """A token that knows its id and how it is written, such as those in a table's rows."""

    @property
    def id(self) -> int:
        """The id."""

    @property
    def text(self) -> str:
        """How it is written."""


TokenLike = str | int | Identified
TargetLike = TokenLike | tuple[TokenLike, TokenLike] | npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class LogitTarget:
    """One token's logit; centred, the mean logit over the vocabulary is taken off.

    A softmax does not see a constant added to every logit, so the centred logit is the part of it
    that matters. Where the model caps its logits, the one before the cap is meant.
    """

    token: int
    centred: bool = True

    def readout(self, unembed: Unembed, position: int) -> Readout:
        """Give the direction of the last stream that this target reads, and its constant."""
        weights = unembed.weights
        columns = weights.unembed(np.array([self.token]))[:, 0]
        constant = 0 if weights.b_U is None else weights.b_U[self.token]
        if self.centred:
            columns = columns - weights.mean_unembed
            constant = constant if weights.b_U is None else constant - _mean(weights.b_U)
        return _read(unembed, position, columns, constant)

    def dense(self, logits: Array, stream: Array) -> Any:
        """Give the target's value from all the logits (d_vocab_out,)."""
        return logits[self.token] - _mean(logits) if self.centred else logits[self.token]

    def rounding(self, unembed: Unembed, position: int, stream: Array) -> float:
        """Bound the rounding of the readout: in the logits, and in the centred direction."""
        weights = unembed.weights
        rows, before = unembed.size(position, stream)
        vocab = weights.unembedding.count
        size = float(rows @ abs(weights.unembed(np.array([self.token]))[:, 0])) + TINY
        mean = float(rows @ weights.mean_unembed_size)
        if weights.b_U is not None:
            size, mean = size + float(abs(weights.b_U[self.token])), mean + _mean(abs(weights.b_U))
        if not self.centred:
            return 2 * gamma(len(rows) + before + 1) * size
        # Once in the mean of the logits, once in the mean of the columns.
        return 2 * gamma(len(rows) + vocab + before + 2) * (size + mean)

    def describe(self, tokenizer: Tokenizer | None) -> str:
        """Name the target for a table's head."""
        name = f"logit of {show_token(tokenizer, self.token)}"
        return f"{name} minus the vocabulary mean" if self.centred else name


@dataclass(frozen=True, slots=True)
class DifferenceTarget:
    """One token's logit less another's, before any cap."""

    token: int
    other: int

    def readout(self, unembed: Unembed, position: int) -> Readout:
        """Give the direction of the last stream that this target reads, and its constant."""
        weights = unembed.weights
        constant = 0 if weights.b_U is None else weights.b_U[self.token] - weights.b_U[self.other]
        pair = weights.unembed(np.array([self.token, self.other]))  # (d_model, 2)
        return _read(unembed, position, pair[:, 0] - pair[:, 1], constant)

    def dense(self, logits: Array, stream: Array) -> Any:
        """Give the target's value from all the logits (d_vocab_out,)."""
        return logits[self.token] - logits[self.other]

    def rounding(self, unembed: Unembed, position: int, stream: Array) -> float:
        """Bound the rounding of the readout."""
        weights, pair = unembed.weights, [self.token, self.other]
        rows, before = unembed.size(position, stream)
        size = float((rows @ abs(weights.unembed(np.array(pair)))).sum())
        if weights.b_U is not None:
            size += float(abs(weights.b_U[pair]).sum())
        return 2 * gamma(len(stream) + before + 2) * (size + TINY)

    def describe(self, tokenizer: Tokenizer | None) -> str:
        """Name the target for a table's head."""
        pair = show_token(tokenizer, self.token), show_token(tokenizer, self.other)
        return f"logit of {pair[0]} minus logit of {pair[1]}"


@dataclass(frozen=True, slots=True, eq=False)
class DirectionTarget:
    """The last stream read along any direction (d_model,), before the final norm; no bias."""

    direction: Array
    name: str = "a direction of the last stream"

    def readout(self, unembed: Unembed, position: int) -> Readout:
        """Give the direction itself; what is born in the logits is worth nothing along it."""
        return Readout(position, self.direction, 0)

    def dense(self, logits: Array, stream: Array) -> Any:
        """Give the target's value from the last stream (d_model,)."""
        return stream @ self.direction

    def rounding(self, unembed: Unembed, position: int, stream: Array) -> float:
        """Bound the rounding of the readout."""
        return gamma(len(stream)) * float(abs(stream) @ abs(self.direction) + TINY)

    def describe(self, tokenizer: Tokenizer | None) -> str:
        """Name the target for a table's head."""
        return self.name


def _read(unembed: Unembed, position: int, columns: Array, constant: Any) -> Readout:
    """Read a direction of the unembedding's input as one of the last stream."""
    direction, beside = unembed.direction(position, columns)
    return Readout(position, direction, beside + constant)


Target = LogitTarget | DifferenceTarget | DirectionTarget


def read_target(
    checkpoint: Checkpoint, target: TargetLike | Target, *, centred: bool | None = None
) -> Target:
    """Understand what a user gave as a target.

    A whole number, also as text in the digits 0 to 9, is a token id; other text is one token;
    `A-B`, or a pair, is a difference of two of these; `id:5` and `text:5` say which is meant; a
    token of a table, or its text as tables write it, in quotes, is that token; an
    array (d_model,) is a direction. Single logits are `centred` if that is not said, unless the
    model caps its logits. Raises `PromptError`.
    """
    check_flag("centred", centred, none=True)
    cap = checkpoint.config.output_logits_soft_cap
    if centred and cap is not None:
        raise PromptError(
            "centred target",
            wanted="a raw logit or a difference",
            got=f"a model that caps its logits at {cap:g}",
            remedy="behind the cap a softmax sees the mean of the logits",
        )
    centred = cap is None if centred is None else centred
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
    if isinstance(given, Identified):
        given = given.id
    if isinstance(given, np.ndarray) and not given.ndim:
        given = given[()]
    if isinstance(given, str) and not given.startswith("text:"):
        # Tables print a token without a text as #5.
        number = given[1:] if _HASHED.fullmatch(given) else given.removeprefix("id:")
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
    named = tokenizer.named(text)
    if named is not None:
        return named
    ids = encode(tokenizer, text, "target")
    if len(ids) == 1:
        return ids[0]
    copied = tokenizer.shown_as(text)
    if copied is not None:
        return copied
    pieces = cut(" ".join(tokenizer.show(each) for each in ids[:8]), 2 * ROOM)
    raise PromptError(
        f"target {shown(text)}",
        wanted="one token",
        got=f"{len(ids)}{': ' if ids else ''}{pieces}",
        remedy="give the token alone, or its id"
        if text.startswith(_DESCRIBED)
        else "mind the leading space, or give an id",
    )


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
