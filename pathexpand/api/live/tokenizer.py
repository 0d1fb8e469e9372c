"""The tokenizer that comes with a live model."""

from __future__ import annotations

import json
from typing import Any

from pathexpand.errors import ModelError
from pathexpand.model.shown import shown
from pathexpand.model.tokenizer import Tokenizer


def tokenizer_of(given: Any) -> Tokenizer | None:
    """Take a fast tokenizer of transformers, one of the tokenizers library, one of ours, or none.

    Raises `ModelError` for others.
    """
    if given is None or isinstance(given, Tokenizer):
        return given
    text = _text(given)
    if text is None:
        raise ModelError(
            "tokenizer",
            wanted="a fast tokenizer of transformers, or one of the tokenizers library",
            got=shown(given),
        )
    return Tokenizer.from_text(text, _settings(given))


def bare_tokenizer_of(given: Any) -> Tokenizer | None:
    """Take a tokenizer without what it puts around a text by itself, or none if it is not fast.

    TransformerLens asks its own configuration whether a text gets a start token, and nothing else.
    """
    text = _text(given)
    if text is None:
        return None
    raw = json.loads(text) | {"post_processor": None}
    return Tokenizer.from_text(json.dumps(raw), _settings(given) | {"add_bos_token": False})


def _text(given: Any) -> str | None:
    """Give the text of the `tokenizer.json` that a tokenizer would be saved as."""
    library = getattr(given, "backend_tokenizer", given)
    return str(library.to_str()) if callable(getattr(library, "to_str", None)) else None


def _settings(given: Any) -> dict[str, Any]:
    """Give what `tokenizer_config.json` would say."""
    start = getattr(given, "bos_token", None)
    return {
        "bos_token": None if start is None else str(start),
        "add_bos_token": getattr(given, "add_bos_token", False) is True,
    }
