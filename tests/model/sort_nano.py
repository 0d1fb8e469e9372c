"""A model that others trained to sort six digits, read from the JSON file they publish."""

from __future__ import annotations

import base64
import json
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.model.checkpoint import Checkpoint, checkpoint_from_state_dict

Array = npt.NDArray[Any]


def read_json(file: FilePath) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read a file of named tensors; give its configuration and the tensors."""
    raw = json.loads(file.read_text(encoding="utf-8"))
    config = raw.pop("config")
    arrays = {
        name: np.frombuffer(base64.b64decode(each["data"]), dtype="<f4").reshape(each["shape"])
        for name, each in raw.items()
    }
    return config, arrays


def read_model(file: FilePath) -> Checkpoint:
    """Read the model as the GPT-2 it is, but for matrices that are stored (out, in)."""
    config, arrays = read_json(file)
    matrices = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    turned = {name: array.T if name.endswith(matrices) else array for name, array in arrays.items()}
    raw = config | {
        "model_type": "gpt2",
        "n_positions": config["block_size"],
        "activation_function": "gelu_new",
        "tie_word_embeddings": False,
    }
    return checkpoint_from_state_dict(turned, raw)
