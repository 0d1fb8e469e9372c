"""A model at rest: read by the name of an embedded one, or from a directory, a file or arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import numpy.typing as npt

from pathexpand.errors import FileError, ModelError
from pathexpand.model.config import Config, read_config
from pathexpand.model.shown import FILE_ROOM, cut, shown
from pathexpand.model.tensors import read_tensors
from pathexpand.model.tokenizer import Tokenizer
from pathexpand.model.weights import Weights, weights_from_tensors

EMBEDDED = ("zero-layer", "one-layer", "two-layer")
_EMBEDDED_FOLDER = FilePath(__file__).parent.parent / "embedded"


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A configuration, its weights and, where there is one, its tokenizer."""

    config: Config
    weights: Weights
    tokenizer: Tokenizer | None = None

    def digest(self) -> str:
        """Give the SHA-256 of every weight in order, as float64 (hexadecimal)."""
        digest = hashlib.sha256()
        for name, array in self.weights.named():
            digest.update(f"{name} {array.shape}\n".encode())
            digest.update(array.astype("<f8").tobytes())
        return digest.hexdigest()


def read_checkpoint(name_or_directory: str | FilePath) -> Checkpoint:
    """Read the embedded model of that name, or a directory, or one weights file.

    A directory holds `config.json` and one `.safetensors` file, and `tokenizer.json` if the model
    has one; of several `.safetensors` files the one called `model.safetensors` is read, and
    without it none. A `.safetensors` file given by itself has the others beside it. Raises
    `FileError` or `ModelError`.

    >>> read_checkpoint("two-layer").config.n_heads
    4
    """
    wanted = f"one of {', '.join(EMBEDDED)}, or a directory with config.json"
    if not isinstance(name_or_directory, str | FilePath):
        raise FileError("model", wanted=wanted, got=shown(name_or_directory))
    name = str(name_or_directory)
    if name in EMBEDDED:
        return _read(_EMBEDDED_FOLDER / name, None)
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
    """Take a TransformerLens state dict given as arrays, and its configuration.

    Raises `ModelError`.
    """
    if not isinstance(config, Config):
        config = Config.from_mapping(config)
    if not isinstance(tokenizer, Tokenizer | None):
        raise ModelError("tokenizer", wanted="a Tokenizer or None", got=shown(tokenizer))
    return Checkpoint(config, weights_from_tensors(tensors, config), tokenizer)


def _read(directory: FilePath, file: FilePath | None) -> Checkpoint:
    config = read_config(directory / "config.json")
    weights = weights_from_tensors(read_tensors(file or _weights_file(directory)), config)
    vocabulary = directory / "tokenizer.json"
    tokenizer = Tokenizer(vocabulary) if vocabulary.is_file() else None
    if tokenizer is not None and tokenizer.size > config.d_vocab:
        raise ModelError(
            f"{vocabulary}", wanted=f"at most {config.d_vocab} tokens", got=str(tokenizer.size)
        )
    return Checkpoint(config, weights, tokenizer)


def _weights_file(directory: FilePath) -> FilePath:
    files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if (directory / "model.safetensors") in files:
        return directory / "model.safetensors"
    if files:
        raise FileError(
            f"{directory}",
            wanted="one .safetensors file",
            got=", ".join(file.name for file in files),
            remedy="name the file itself as the model",
        )
    pickles = sorted([*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")])
    raise FileError(
        f"{directory}",
        wanted="a .safetensors file",
        got=f"only {pickles[0].name}" if pickles else "none",
        remedy="save the weights with safetensors; pickles are never loaded" if pickles else "",
    )
