"""A long text as prompts that fit a model's context."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pathexpand.errors import PromptError
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.prompt import Tokens, read_prompt
from pathexpand.model.shown import shown
from pathexpand.model.tokenizer import encode_prompt


def cut_text(checkpoint: Checkpoint, text: str, *, length: int | None = None) -> Iterator[Tokens]:
    """Cut a text into prompts of `length` tokens, by default the model's whole context.

    Each begins with the start token if the model reads one, so that every token of the text is
    predicted once; without one, the first token of each prompt is not. A last prompt too short to
    predict anything is left out. Raises `PromptError` for a text without two tokens, and for a
    length that is no whole number from 2 to the context.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> text = "to be or not to be, that is the question"
    >>> [len(each.ids) for each in cut_text(read_checkpoint("two-layer"), text, length=6)]
    [6, 6, 4]
    """
    most = checkpoint.config.n_ctx
    size = most if length is None else length
    if type(size) is not int or not 2 <= size <= most:
        raise PromptError("length", wanted=f"2 to {most} tokens a prompt", got=shown(length))
    ids = encode_prompt(checkpoint.tokenizer, text, whole=False)
    start = _start(checkpoint)
    step = size - len(start)
    if len(ids) + len(start) < 2:
        raise PromptError("text", wanted="at least one token to predict", got="none")
    for first in range(0, len(ids), step):
        own = np.array([*start, *ids[first : first + step]], dtype=np.int64)
        if own.size > 1:
            yield Tokens(own, np.ones(own.shape, dtype=bool))


def _start(checkpoint: Checkpoint) -> list[int]:
    """Give the start token that the model's prompts begin with, if they do."""
    whole = read_prompt(checkpoint, "a").ids
    plain = read_prompt(checkpoint, "a", prepend_bos=False).ids
    return [] if whole[0] == plain[0] else [int(whole[0])]


def example_text() -> str:
    """Give a short text of this package's own, which the embedded models read where none is given.

    >>> len(example_text().split()) > 150
    True
    """
    return _EXAMPLE


_EXAMPLE = """\
And it came to pass in those days, that a man went up out of the city to the hill, and he said
unto the people of the city, Let us build a house upon the hill, and let us build a wall about the
house, that the house and the wall may stand together. And the people of the city said unto him,
We will build the house, and we will build the wall. So they built the house upon the hill, and
they built the wall about the house, and the man of the hill was glad.

def count_words(text):
    words = {}
    for word in text.split():
        if word not in words:
            words[word] = 0
        words[word] = words[word] + 1
    return words

class Reader:
    def __init__(self, name, lines):
        self.name = name
        self.lines = lines

    def read(self):
        for line in self.lines:
            if line is None:
                raise ValueError("no line in %s" % self.name)
            yield line

KING.
Good Marcellus, what news hast thou from the hill?

MARCELLUS.
My lord, the house is built, the wall is built, and the man of the hill doth thank thee.

KING.
Then let Marcellus have the keys of the house, and let the man of the hill have the keys of the
wall; and tell the people of the city that the king is glad.
"""
