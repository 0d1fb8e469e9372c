"""Writes and reads a trained network: weights, configuration, tokenizer, training record."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save
from tokenizers import Tokenizer

from pathexpand.errors import FileError
from pathexpand.train.network import Network, Shape

Record = dict[str, Any]

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
RECORD = "training.json"
CARD = "README.md"

NAMES = ("zero-layer", "one-layer", "two-layer")


def model_name(n_layers: int) -> str:
    """Return the name of the embedded model with so many layers."""
    return NAMES[n_layers] if n_layers < len(NAMES) else f"{n_layers}-layer"


def configuration(shape: Shape) -> Record:
    """Return the configuration that goes with the weights."""
    return {
        **asdict(shape),
        "attn_only": True,
        "normalization_type": None,
        "positional_embedding_type": "shortformer",
        "attention_dir": "causal",
        "default_prepend_bos": True,
        "model_name": model_name(shape.n_layers),
    }


def write_network(directory: Path, network: Network, tokenizer: Tokenizer) -> None:
    """Write the float16 weights, the configuration and the tokenizer."""
    weights = {
        name: weight.detach().numpy().astype(np.float16) for name, weight in network.weights.items()
    }
    write(directory / WEIGHTS, save(weights))
    write(directory / CONFIG, as_json(configuration(network.shape)).encode())
    write(directory / TOKENIZER, (tokenizer.to_str(pretty=True) + "\n").encode())


def read_network(directory: Path, shape: Shape) -> Network:
    """Read the weights that `write_network` wrote, as float32."""
    try:
        stored = load_file(directory / WEIGHTS)
    except FileNotFoundError:
        raise FileError(
            str(directory / WEIGHTS),
            wanted="weights to measure",
            got="no file",
            remedy="train first",
        ) from None
    weights = {name: torch.from_numpy(stored[name]).float() for name in sorted(stored)}
    return Network(shape=shape, weights=weights)


def read_record(directory: Path) -> Record:
    """Read the record that training wrote."""
    record: Record = json.loads((directory / RECORD).read_text(encoding="utf-8"))
    return record


def as_json(content: Record) -> str:
    """Return JSON text that ends in a line end."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def write(file: Path, content: bytes) -> None:
    """Write a file in one step, so that a reader never meets half of it."""
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(content)
    partial.replace(file)
