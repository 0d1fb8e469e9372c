"""What a tokenizer puts around a text, and tokens made visible."""

from __future__ import annotations

import json
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, processors

from pathexpand.errors import PromptError
from pathexpand.model.checkpoint import Checkpoint, checkpoint_from_state_dict
from pathexpand.model.prompt import read_prompt
from pathexpand.model.tokenizer import Tokenizer, _quoted

WORDS = ["[PAD]", "[CLS]", "[SEP]", "<s>", "a", "b", "c", "<0x41>", "A", "▁a", "<0x0A>"]


def tokenizer(
    place: FilePath, *, template: str | None = None, settings: Any = None, words: Any = None
) -> Tokenizer:
    """Write a tokenizer of whole words that puts a template around a text; read it."""
    vocabulary = {word: n for n, word in enumerate(words or WORDS)}
    library = Library(models.WordLevel(vocabulary, unk_token="[PAD]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens(["[PAD]", "[CLS]", "[SEP]", "<s>"])
    if template is not None:
        specials = [(word, vocabulary[word]) for word in template.split() if word in vocabulary]
        library.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=specials
        )
    library.save(str(place / "tokenizer.json"))
    if settings is not None:
        text = settings if isinstance(settings, str) else json.dumps(settings)
        (place / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return Tokenizer(place / "tokenizer.json")


def model(reader: Tokenizer, **settings: Any) -> Checkpoint:
    sizes = {"n_layers": 0, "n_heads": 1, "d_model": 1, "d_head": 1, "d_vocab": 8, "n_ctx": 9}
    tensors = {"embed.W_E": np.ones((8, 1)), "unembed.W_U": np.ones((1, 8))}
    none = {"positional_embedding_type": "none", "attn_only": True}
    return checkpoint_from_state_dict(tensors, sizes | none | settings, tokenizer=reader)


def ids(checkpoint: Checkpoint, text: str, **options: Any) -> list[int]:
    return read_prompt(checkpoint, text, **options).ids.tolist()


def test_what_the_tokenizer_itself_puts_there(tmp_path: FilePath) -> None:
    bert = model(tokenizer(tmp_path, template="[CLS] $A [SEP]"))
    assert ids(bert, "a b") == [1, 4, 5, 2]
    assert ids(bert, "a b", prepend_bos=False) == [4, 5]
    assert ids(bert, "[CLS] a b [SEP]") == [1, 4, 5, 2]
    assert ids(bert, "[CLS] a b") == [1, 4, 5, 2]
    llama = model(tokenizer(tmp_path, template="<s> $A"), bos_token_id=3)
    for text in ("a b", "<s> a b"):
        for wanted in (None, True):
            assert ids(llama, text, prepend_bos=wanted) == [3, 4, 5]
    assert ids(llama, "a b", prepend_bos=False) == [4, 5]


def test_15_ids_are_never_changed(tmp_path: FilePath) -> None:
    llama = model(tokenizer(tmp_path, template="<s> $A"), bos_token_id=3, default_prepend_bos=True)
    for given in ([4, 5], [3, 3, 4], [0, 0]):
        for wanted in (None, True, False):
            assert read_prompt(llama, given, prepend_bos=wanted).ids.tolist() == given
            assert read_prompt(llama, given).mask.all()  # also where padding has the same id


@pytest.mark.parametrize("named", ["<s>", {"content": "<s>", "lstrip": False}])
def test_a_start_token_that_the_settings_ask_for(named: Any, tmp_path: FilePath) -> None:
    settings = {"add_bos_token": True, "bos_token": named}
    asked = model(tokenizer(tmp_path, settings=settings))
    assert ids(asked, "a b") == [3, 4, 5]
    assert ids(asked, "<s> a b") == [3, 4, 5]
    assert ids(asked, "a b", prepend_bos=False) == [4, 5]
    both = model(tokenizer(tmp_path, settings=settings, template="<s> $A"))
    assert ids(both, "a b") == [3, 4, 5]


NOTHING: list[Any] = [None, "", "{", "[]", {}, "[" * 100_000, {"add_bos_token": 1}]
NO_START: list[Any] = [
    {"add_bos_token": False, "bos_token": "<s>"},
    {"add_bos_token": None, "bos_token": 7},
]


@pytest.mark.parametrize("settings", [*NOTHING, *NO_START])
def test_settings_that_ask_for_none(settings: Any, tmp_path: FilePath) -> None:
    plain = model(tokenizer(tmp_path, settings=settings))
    assert ids(plain, "a b") == [4, 5]


def test_a_vocabulary_larger_than_the_models(tmp_path: FilePath) -> None:
    reader = tokenizer(tmp_path)
    checkpoint = model(reader)
    assert reader.size > checkpoint.config.d_vocab
    assert ids(checkpoint, "a") == [4]
    with pytest.raises(PromptError, match="token id 8 at position 1: wanted an id from 0 to 7"):
        ids(checkpoint, "a A")


def test_a_vocabulary_padded_beyond_the_tokenizers(tmp_path: FilePath) -> None:
    reader = tokenizer(tmp_path)
    assert reader.show(reader.size) == f"#{reader.size}"


def test_36_bytes_and_spaces_are_told_apart(tmp_path: FilePath) -> None:
    reader = tokenizer(tmp_path)
    shown = [reader.show(token) for token in range(reader.size)]
    assert shown[7:] == ["b'A'", "'A'", "' a'", "b'\\n'"]
    assert len(set(shown)) == len(shown)
    both = tokenizer(tmp_path, words=[*WORDS, " a"])
    shown = [both.show(token) for token in range(both.size)]
    assert len(set(shown)) == len(shown)


def test_byte_level_vocabularies_have_no_byte_pieces(tmp_path: FilePath) -> None:
    library = Library(models.BPE({"<0x41>": 0, "Ġa": 1}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel()
    library.decoder = decoders.ByteLevel()
    library.save(str(tmp_path / "tokenizer.json"))
    reader = Tokenizer(tmp_path / "tokenizer.json")
    assert [reader.show(token) for token in (0, 1)] == ["'<0x41>'", "' a'"]


def test_what_looks_alike_is_told_apart() -> None:
    pairs = [
        ("❤", "❤\ufe0f"),  # a variant selector
        ("é", "e\u0301"),  # a letter with its mark, as one character and as two
        ("", "\u200b"),
        ("", "\u3164"),
        ("a", "a\u202e"),
        (" ", "\u00a0"),
        ("\u0301", ""),
    ]
    for one, other in pairs:
        shown = [_quoted(text) for text in (one, other)]
        assert shown[0] != shown[1]
        # As a reader sees them: what has no width of its own is a mark on a letter, if anything.
        assert not any(letter in _quoted(other) for letter in "\ufe0f\u200b\u3164\u202e\u00a0")
    assert _quoted("e\u0301") == r"'e\u0301'" and _quoted("\u0301") == r"'\u0301'"
    assert _quoted("हिन्दी") == "'हिन्दी'"  # marks without which there is no word
