"""From what a user gives (text, token ids, a mask) to a checked batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import PromptError
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.shown import check_flag, shown
from pathexpand.model.tokenizer import encode_prompt

_WANTED = "one row of token ids"
Prompt = str | Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The token ids of one prompt, which of them are real, and their types: (position,) each.

    Types are those of BERT's two segments; a model without them has none.
    """

    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    types: npt.NDArray[np.int64] | None = None


def read_prompt(
    checkpoint: Checkpoint,
    prompt: Prompt,
    *,
    mask: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
    types: Sequence[int] | npt.NDArray[np.integer] | None = None,
    prepend_bos: bool | None = None,
) -> Tokens:
    """Check one prompt.

    Text is encoded, with what the tokenizer itself puts around it, and with one start token
    before it, never two, if the model was trained with one. `prepend_bos` true puts a start token
    there in any case; false gives the text's own tokens alone. Ids are used exactly as given; only
    `mask` says which are padding, and `types` of which type each token is. Raises `PromptError`.
    """
    check_flag("prepend_bos", prepend_bos, none=True)
    if isinstance(prompt, str):
        ids = encode_prompt(checkpoint.tokenizer, prompt, whole=prepend_bos is not False)
        if not prompt:
            raise PromptError("prompt", wanted="at least one token", got="empty text")
        wants = _wants_start(checkpoint) if prepend_bos is None else prepend_bos
        start = start_token(checkpoint) if wants else None
        if start is not None and ids[:1] != [start]:
            ids = [start, *ids]
        tokens = np.array(ids, dtype=np.int64)
    else:
        tokens = _token_ids(prompt)
    checked = _checked(checkpoint, tokens, mask)
    return checked if types is None else replace(checked, types=_types(checkpoint, checked, types))


def _types(checkpoint: Checkpoint, tokens: Tokens, given: object) -> npt.NDArray[np.int64]:
    """Check the types of a prompt's tokens: (position,)."""
    known = checkpoint.weights.types
    if known is None:
        raise PromptError("token types", wanted="none", got="some", remedy="the model has no types")
    types = np.asarray(given)
    fits = types.shape == tokens.ids.shape and types.dtype.kind in "iu"
    if not fits or not ((types >= 0) & (types < known.count)).all():
        raise PromptError(
            "token types",
            wanted=f"{tokens.ids.size} whole numbers from 0 to {known.count - 1}",
            got=shown(given),
        )
    return types.astype(np.int64)


def _wants_start(checkpoint: Checkpoint) -> bool:
    """Say whether a text gets a start token that its tokenizer does not put there by itself."""
    tokenizer = checkpoint.tokenizer
    return checkpoint.config.default_prepend_bos or (tokenizer is not None and tokenizer.adds_start)


def start_token(checkpoint: Checkpoint) -> int | None:
    """Give the id of the start token, from the configuration or the tokenizer."""
    if checkpoint.config.bos_token_id is not None:
        return checkpoint.config.bos_token_id
    if checkpoint.tokenizer is None:
        return None
    if checkpoint.tokenizer.start is not None:
        return checkpoint.tokenizer.start
    return checkpoint.tokenizer.special(
        "<|bos|>", "<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>"
    )


def pad(prompts: Sequence[Tokens]) -> Tokens:
    """Stack prompts of any lengths into one batch (prompt, position), padded on the right."""
    longest = max(len(prompt.ids) for prompt in prompts)
    ids = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros((len(prompts), longest), dtype=bool)
    types = np.zeros((len(prompts), longest), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt.ids)] = prompt.ids
        mask[row, : len(prompt.ids)] = prompt.mask
        if prompt.types is not None:
            types[row, : len(prompt.ids)] = prompt.types
    return Tokens(ids, mask, types)


def _token_ids(prompt: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[Any]:
    """Give ids as an array of whole numbers, of any size still: (position,)."""
    try:
        # A list is read number by number: numpy would round large ids and take bools for 0 and 1.
        array = np.asarray(prompt, dtype=None if hasattr(prompt, "__array__") else object)
    except Exception:  # lists of arrays of different shapes, or a foreign array's own error
        raise PromptError("prompt", wanted=_WANTED, got=shown(prompt)) from None
    if array.size == 0:
        raise PromptError("prompt", wanted="at least one token", got="none")
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 1:
        raise PromptError(
            "prompt",
            wanted=_WANTED,
            got=f"an array of shape {array.shape}" if array.ndim else shown(prompt),
            remedy="give several prompts to model.runs" if array.ndim else "",
        )
    if array.dtype == object:
        for each in array:
            if isinstance(each, bool) or not isinstance(each, int | np.integer):
                raise PromptError("prompt", wanted="whole numbers as ids", got=shown(each))
    elif not np.issubdtype(array.dtype, np.integer):
        raise PromptError("prompt", wanted="whole numbers", got=f"{array.dtype} values")
    return array


def _checked(
    checkpoint: Checkpoint,
    given: npt.NDArray[Any],
    mask: Sequence[bool] | npt.NDArray[np.bool_] | None,
) -> Tokens:
    size = checkpoint.config.d_vocab
    outside = np.flatnonzero((given < 0) | (given >= size))
    if outside.size:
        at = int(outside[0])
        wrong, wanted = int(given[at]), f"an id from 0 to {size - 1}"
        if abs(wrong) >= 2**64:
            raise PromptError("prompt", wanted=f"{wanted} at position {at}", got=shown(wrong))
        raise PromptError(f"token id {wrong} at position {at}", wanted=wanted)
    ids = given.astype(np.int64)
    real = np.ones(ids.shape, dtype=bool) if mask is None else np.asarray(mask)
    if real.shape != ids.shape or not np.isin(real, (0, 1)).all():
        raise PromptError(
            "mask",
            wanted=f"{ids.size} values, each 0 or 1",
            got=f"an array of shape {real.shape} and type {real.dtype}",
        )
    real = real.astype(bool)
    if not real.any():
        raise PromptError("mask", wanted="at least one real token", got="padding alone")
    if int(real.sum()) > checkpoint.config.n_ctx:
        raise PromptError(
            "prompt",
            wanted=f"at most {checkpoint.config.n_ctx} tokens (the model's context)",
            got=f"{int(real.sum())}",
            remedy="shorten it",
        )
    return Tokens(ids, real)
