"""A model at rest: read by the name of an embedded one, or from a directory, a file or arrays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import numpy.typing as npt

from pathexpand.errors import FileError, ModelError
from pathexpand.model.config import Config
from pathexpand.model.lens import weights_from_tensors
from pathexpand.model.shown import FILE_ROOM, cut, shown
from pathexpand.model.tensors import CONVERSION, INDEX, Stored, read_file, read_shards
from pathexpand.model.tokenizer import Tokenizer
from pathexpand.model.weights import Weights

EMBEDDED = ("zero-layer", "one-layer", "two-layer")
# Keys that tell a Hugging Face configuration, should its model_type be missing.
_WRITTEN_BY_TRANSFORMERS = {
    *("architectures", "transformers_version", "hidden_size", "num_hidden_layers"),
    *("num_attention_heads", "n_embd", "n_layer", "vocab_size"),
}
EMBEDDED_FOLDER = FilePath(__file__).parent.parent / "embedded"


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A configuration, its weights and, where there is one, its tokenizer."""

    config: Config
    weights: Weights
    tokenizer: Tokenizer | None = None

    def __repr__(self) -> str:
        """Name the model, not its million numbers.

        >>> read_checkpoint("two-layer")
        Checkpoint('two-layer')
        """
        return f"Checkpoint({self.config.model_name!r})"

    def digest(self) -> str:
        """Give the SHA-256 of every weight in order, as float64 (hexadecimal)."""
        digest = hashlib.sha256()
        for name, array in self.weights.named():
            digest.update(f"{name} {array.shape}\n".encode())
            digest.update(array.astype("<f8").tobytes())
        return digest.hexdigest()


def read_checkpoint(name_or_directory: str | FilePath) -> Checkpoint:
    """Read the embedded model of that name, or a directory, or one weights file.

    A directory holds `config.json` (of TransformerLens or Hugging Face) and one `.safetensors`
    file or the shards that an index names, and `tokenizer.json` if the model has one; of several
    `.safetensors` files the one called `model.safetensors` is read. A `.safetensors` file given
    by itself has the others beside it. Raises `FileError` or `ModelError`.

    >>> read_checkpoint("two-layer").config.n_heads
    4
    """
    wanted = f"one of {', '.join(EMBEDDED)}, or a directory with config.json"
    if not isinstance(name_or_directory, str | FilePath):
        raise FileError("model", wanted=wanted, got=shown(name_or_directory))
    name = str(name_or_directory)
    if name in EMBEDDED:
        return _read(EMBEDDED_FOLDER / name, None)
    place = FilePath(name_or_directory)
    try:
        is_directory, is_file = place.is_dir(), place.is_file()
    except OSError as error:
        raise FileError(f"model '{cut(name)}': cannot read: {error.strerror}") from None
    if is_directory and name:  # no name at all would be the current directory
        return _read(place, None)
    if is_file:
        return _read(place.parent, place)
    raise FileError(f"model '{cut(name, FILE_ROOM)}'", wanted=wanted, got="neither")


def checkpoint_from_state_dict(
    tensors: Mapping[str, npt.NDArray[Any]],
    config: Config | Mapping[str, Any],
    *,
    tokenizer: Tokenizer | None = None,
) -> Checkpoint:
    """Take a state dict given as arrays, and its configuration.

    Both have TransformerLens names, or both those of Hugging Face (the configuration then has a
    `model_type`). Raises `ModelError`.
    """
    if not isinstance(tokenizer, Tokenizer | None):
        raise ModelError("tokenizer", wanted="a Tokenizer or None", got=shown(tokenizer))
    if isinstance(config, Mapping):
        return Checkpoint(*_model(config, tensors), tokenizer)
    if not isinstance(config, Config):
        config = Config.from_mapping(config)
    return Checkpoint(config, weights_from_tensors(tensors, config), tokenizer)


def _read(directory: FilePath, file: FilePath | None) -> Checkpoint:
    setting = directory / "config.json"
    raw = {"model_name": directory.name} | read_config(setting)
    tensors = read_file(file) if file is not None else _read_weights(directory)
    with _told_of(setting):
        config, weights = _model(raw, tensors)
    vocabulary = directory / "tokenizer.json"
    return Checkpoint(config, weights, Tokenizer(vocabulary) if vocabulary.is_file() else None)


@contextmanager
def _told_of(setting: FilePath) -> Iterator[None]:
    """Name the file in errors about a configuration, which otherwise begin with "config KEY"."""
    try:
        yield
    except ModelError as error:
        first, _, key = error.subject.partition(" ")
        if first != "config":
            raise
        subject = f"{setting} {key}" if key else f"{setting}"
        raise type(error)(
            subject, wanted=error.wanted, got=error.got, remedy=error.remedy
        ) from error


def _model(raw: Mapping[str, Any], tensors: Mapping[str, Any]) -> tuple[Config, Weights]:
    """Build a model from a configuration of either kind, Hugging Face or TransformerLens."""
    if is_lens(raw):
        config = Config.from_mapping(raw)
        return config, weights_from_tensors(tensors, config)
    from pathexpand.model.families import read_family

    return read_family(raw, tensors)


def is_lens(raw: Mapping[str, Any]) -> bool:
    """Say whether a configuration has TransformerLens names, and not those of Hugging Face."""
    if {"n_layers", "d_model", "d_head"} <= set(raw):
        return True
    return "model_type" not in raw and not _WRITTEN_BY_TRANSFORMERS & set(raw)


def read_config(file: FilePath) -> dict[str, Any]:
    """Read a `config.json` file; raises `FileError`."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError(f"{file}", wanted="a configuration file", got="no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{file}", wanted="JSON", got=str(error)) from None
    if not isinstance(raw, dict):
        raise FileError(f"{file}", wanted="a JSON object", got=type(raw).__name__)
    return raw


def _read_weights(directory: FilePath) -> dict[str, Stored]:
    """Read the headers of a directory's weights: one file, or the shards that an index names."""
    files = sorted(directory.glob("*.safetensors"))
    if (directory / "model.safetensors") in files:
        return read_file(directory / "model.safetensors")
    if (directory / INDEX).is_file():
        return read_shards(directory / INDEX)
    if len(files) == 1:
        return read_file(files[0])
    if files:
        raise FileError(
            f"{directory}",
            wanted=f"one .safetensors file, or an index called {INDEX}",
            got=", ".join(file.name for file in files[:4]) + ("…" if len(files) > 4 else ""),
            remedy="name the file itself as the model",
        )
    pickles = sorted(file for end in ("bin", "pt", "pth") for file in directory.glob(f"*.{end}"))
    raise FileError(
        f"{directory}",
        wanted="a .safetensors file",
        got=f"only {pickles[0].name}" if pickles else "none",
        remedy=CONVERSION if pickles else "",
    )
