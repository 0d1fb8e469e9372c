"""Text to token ids and back, and tokens made visible."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from pathexpand.errors import FileError, PromptError
from pathexpand.model.shown import shown

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")  # how sentencepiece writes a byte


class Tokenizer:
    """A `tokenizer.json` read by the `tokenizers` library.

    `encode` adds no special token, `encode_whole` those that the tokenizer puts around a text.
    `show` writes each token so that any two of one vocabulary can be told apart: quoted, spaces
    kept, control characters escaped, and bytes that are no whole character as a bytes literal.
    `adds_start` and `start` are what `tokenizer_config.json` beside the file says: whether a text
    gets a start token, and which (an id, or None).
    """

    def __init__(self, file: FilePath) -> None:
        """Open the file; raises `FileError` if it is no tokenizer."""
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise FileError(f"{file}", wanted="a tokenizer.json", got=str(error)) from None
        self._read(text, _read_beside(file.with_name("tokenizer_config.json")), f"{file}")

    @classmethod
    def from_text(cls, text: str, beside: Mapping[str, Any]) -> Tokenizer:
        """Take the text of a `tokenizer.json`, and what `tokenizer_config.json` beside it says.

        Raises `FileError` for text that is no tokenizer.
        """
        made = cls.__new__(cls)
        made._read(text, beside, "tokenizer")
        return made

    def _read(self, text: str, beside: Mapping[str, Any], subject: str) -> None:
        from tokenizers import Tokenizer as Library

        try:
            self._library: Any = Library.from_str(text)
            self._names: dict[str, int] | None = None
            raw = json.loads(text)
        except Exception as error:  # the library raises bare Exception
            raise FileError(subject, wanted="a tokenizer.json", got=str(error)) from None
        self._byte_level = '"ByteLevel"' in json.dumps(
            [raw.get("pre_tokenizer"), raw.get("decoder")]
        )
        self._specials = {
            entry["id"]: entry["content"]
            for entry in raw.get("added_tokens", [])
            if entry.get("special")
        }
        self.adds_start = beside.get("add_bos_token") is True
        self.start = self._start(beside.get("bos_token"))

    def encode(self, text: str) -> list[int]:
        """Give the token ids of a text, with no special token added."""
        return list(self._library.encode(text, add_special_tokens=False).ids)

    def encode_whole(self, text: str) -> list[int]:
        """Give the token ids of a text, with what the tokenizer puts before and after it.

        What already stands there is not put there a second time.
        """
        found = self._library.encode(text, add_special_tokens=True)
        ids, added = list(found.ids), list(found.special_tokens_mask)
        before = next((n for n, mark in enumerate(added) if not mark), len(ids))
        after = len(ids) - next((n for n, mark in enumerate(added[::-1]) if not mark), 0)
        first, plain, last = ids[:before], ids[before:after], ids[max(after, before) :]
        if first and plain[: len(first)] == first:
            first = []
        if last and plain[-len(last) :] == last:
            last = []
        return first + plain + last

    def decode(self, tokens: Sequence[int]) -> str:
        """Give the text of token ids, special tokens included."""
        return str(self._library.decode(list(tokens), skip_special_tokens=False))

    def special(self, *names: str) -> int | None:
        """Give the id of the first special token among `names`."""
        for name in names:
            for token, content in self._specials.items():
                if content == name:
                    return int(token)
        return None

    def named(self, text: str) -> int | None:
        """Give the id of the one token that is shown as this text in quotes, if there is one."""
        return self.shown_as(_quoted(text))

    def shown_as(self, shown: str) -> int | None:
        """Give the id of the one token that `show` writes like this, if there is one."""
        if self._names is None:
            names: dict[str, list[int]] = {}
            for token in self._library.get_vocab().values():
                names.setdefault(self.show(token), []).append(token)
            self._names = {name: ids[0] for name, ids in names.items() if len(ids) == 1}
        return self._names.get(shown)

    @property
    def size(self) -> int:
        """The number of tokens."""
        return int(self._library.get_vocab_size())

    def _start(self, given: object) -> int | None:
        """Give the id of the start token as a configuration names it: its text, or settings."""
        text = given.get("content") if isinstance(given, dict) else given
        found = self._library.token_to_id(text) if isinstance(text, str) else None
        return None if found is None else int(found)

    def show(self, token: int) -> str:
        """Write one token so that a reader sees every character of it."""
        piece: str | None = self._library.id_to_token(token)
        if piece is None:
            return f"#{token}"
        if token in self._specials:
            # Angle brackets set a special token apart from quoted text.
            return piece if piece.startswith("<") else f"<{_quoted(piece)}>"
        if not self._byte_level:
            if byte := _BYTE_PIECE.fullmatch(piece):
                return repr(bytes.fromhex(byte[1]))
            spaced = piece.replace("\u2581", " ")
            taken = spaced != piece and self._library.token_to_id(spaced) is not None
            return _quoted(piece if taken else spaced)
        raw = bytes(_BYTES[letter] for letter in piece if letter in _BYTES)
        if len(raw) != len(piece):  # an added token that is not written in byte letters
            return _quoted(piece)
        try:
            return _quoted(raw.decode("utf-8"))
        except UnicodeDecodeError:
            return repr(raw)


def show_token(tokenizer: Tokenizer | None, token: int) -> str:
    """Write one token, as its number where the model has no tokenizer."""
    return f"#{token}" if tokenizer is None else tokenizer.show(token)


def encode_prompt(tokenizer: Tokenizer | None, text: str, *, whole: bool) -> list[int]:
    """Give the ids of a prompt's text; raises `PromptError` if there is no tokenizer.

    A `whole` text has what the tokenizer itself puts before and after it.
    """
    if tokenizer is None:
        raise PromptError(
            "prompt", wanted="token ids", got="text", remedy="this model has no tokenizer.json"
        )
    _check_text(text, "prompt")
    return tokenizer.encode_whole(text) if whole else tokenizer.encode(text)


def encode(tokenizer: Tokenizer, text: str, subject: str) -> list[int]:
    """Give the ids of a text; raises `PromptError` for half a surrogate pair, which is no text."""
    _check_text(text, subject)
    return tokenizer.encode(text)


def _check_text(text: str, subject: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{subject} {shown(text)}",
            wanted="text in UTF-8",
            got=f"half a surrogate pair at character {error.start}",
        ) from None


def _read_beside(file: FilePath) -> dict[str, Any]:
    """Read the settings beside a tokenizer; without them, or with broken ones, there are none."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _quoted(text: str) -> str:
    before = ("", *text)
    return "'" + "".join(map(_visible, before, text)) + "'"


def _visible(before: str, letter: str) -> str:
    """Write a letter that follows another: what could not be seen, or told apart, as an escape."""
    if letter in "\\'":
        return "\\" + letter
    # Python's own idea of printable: no control, format, separator or unassigned character.
    shows = letter.isprintable() and letter not in _BLANK
    if shows and unicodedata.category(letter)[0] == "M":
        # A mark is drawn on the letter before it. Some such pairs are a letter of their own, too.
        carried = unicodedata.category(before or " ")[0] in "LM"
        shows = carried and len(unicodedata.normalize("NFC", before + letter)) == 2
    return letter if shows else letter.encode("unicode_escape").decode("ascii")


def _blank_letters() -> frozenset[str]:
    """Give the characters that count as printable and yet show nothing."""
    selectors = (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))  # of variants
    fillers = (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0)
    return frozenset(map(chr, (*selectors, *fillers)))


def _byte_letters() -> dict[str, int]:
    """Give the letter that stands for each byte in a byte-level vocabulary.

    Bytes that print in Latin-1 stand for themselves; the others take the code points from 256 on,
    in order (the table that came with GPT-2).
    """
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    letters = {chr(byte): byte for byte in printing}
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


_BLANK = _blank_letters()
_BYTES = _byte_letters()
