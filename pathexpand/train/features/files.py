"""Writes features as other tools do, and reads them back: safetensors, JSON and YAML."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save

from pathexpand.errors import FileError
from pathexpand.model.parts import Array
from pathexpand.train.features.dictionary import Dictionary

SAE_LENS = "6.0.0"  # the version whose layout this is; nothing of it is used here
SAE_WEIGHTS = "sae_weights.safetensors"
SAE_CONFIG = "cfg.json"
SET_CONFIG = "config.yaml"
THRESHOLD = "activation_function.threshold"


def layer_file(layer: int) -> str:
    """Return the file of one layer's transcoder.

    >>> layer_file(3)
    'layer_3.safetensors'
    """
    return f"layer_{layer}.safetensors"


def sae_files(features: Dictionary, *, model: str, hook: str, context: int) -> dict[str, bytes]:
    """Return the files of an SAE as SAELens 6 lays them out: there, `W_enc` is (d_in, feature)."""
    n_features, d_in = features.W_enc.shape
    config = {
        "architecture": "jumprelu",
        "d_in": d_in,
        "d_sae": n_features,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": False,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {
            "model_name": model,
            "hook_name": hook,
            "hook_head_index": None,
            "prepend_bos": True,
            "context_size": context,
            # Without it, SAELens takes a configuration for one from before version 6.
            "sae_lens_version": SAE_LENS,
        },
    }
    tensors = {
        "W_enc": features.W_enc.T,
        "b_enc": features.b_enc,
        "W_dec": features.W_dec,
        "b_dec": features.b_dec,
        "threshold": features.threshold,
    }
    return {
        SAE_CONFIG: (json.dumps(config, indent=2) + "\n").encode(),
        SAE_WEIGHTS: save(stored_form(tensors)),
    }


def transcoder_files(layers: tuple[Dictionary, ...], *, model: str) -> dict[str, bytes]:
    """Return the files of transcoders as circuit-tracer lays out a per-layer set."""
    names = [layer_file(layer) for layer in range(len(layers))]
    config = [
        f"model_name: {json.dumps(model)}",
        "model_kind: transcoder_set",
        "feature_input_hook: mlp.hook_in",
        "feature_output_hook: mlp.hook_out",
        "transcoders:",
        *(f"  - {name}" for name in names),
    ]
    files = {SET_CONFIG: ("\n".join(config) + "\n").encode()}
    for name, features in zip(names, layers, strict=True):
        tensors = {
            "W_enc": features.W_enc,
            "b_enc": features.b_enc,
            "W_dec": features.W_dec,
            "b_dec": features.b_dec,
            THRESHOLD: features.threshold,
        }
        if features.skip is not None:
            tensors["W_skip"] = features.skip.T  # (d_out, d_in)
        files[name] = save(stored_form(tensors))
    return files


def stored_form(tensors: dict[str, Array]) -> dict[str, Array]:
    """Give tensors as they are stored: in float16, or in float32 where float16 would round.

    Sums of float16 rows, as merged features write them, want more than float16 holds.
    """
    return {name: np.ascontiguousarray(fitting(array)) for name, array in tensors.items()}


def fitting(array: Array) -> Array:
    """Give an array in float16 if that holds its numbers, else in float32.

    >>> fitting(np.array([0.5, 2048.0])).dtype, fitting(np.array([0.5, 2049.0])).dtype
    (dtype('float16'), dtype('float32'))
    """
    with np.errstate(over="ignore"):
        half: Array = array.astype(np.float16)
    return half if np.array_equal(half, array) else array.astype(np.float32)


def read_sae(directory: Path) -> Dictionary:
    """Read what `sae_files` wrote, as float64."""
    stored = read_tensors(directory / SAE_WEIGHTS)
    return Dictionary(**{**stored, "W_enc": stored["W_enc"].T})


def read_transcoders(directory: Path, *, n_layers: int) -> tuple[Dictionary, ...]:
    """Read what `transcoder_files` wrote, as float64."""
    return tuple(read_transcoder(directory / layer_file(layer)) for layer in range(n_layers))


def read_transcoder(file: Path) -> Dictionary:
    """Read one layer's transcoder, as float64."""
    stored = read_tensors(file)
    skip = stored.pop("W_skip", None)
    threshold = stored.pop(THRESHOLD)
    return Dictionary(**stored, threshold=threshold, skip=None if skip is None else skip.T)


def read_tensors(file: Path) -> dict[str, Array]:
    """Read a safetensors file, as float64."""
    try:
        return {name: array.astype(np.float64) for name, array in load_file(file).items()}
    except FileNotFoundError:
        raise FileError(
            str(file), wanted="features to measure", got="no file", remedy="train first"
        ) from None
