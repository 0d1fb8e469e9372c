"""Read a case folder into circuit-tracer's own replacement model.

Not a test: it needs torch, transformer-lens (3.2) and circuit-tracer (0.5). A case folder has
`config.json` and `model.safetensors`, a TransformerLens model, and the folder `transcoders`, in
circuit-tracer's own layout: `config.yaml` with `layer_{i}.safetensors` (one transcoder a layer) or
with `W_enc_{i}.safetensors` and `W_dec_{i}.safetensors` (a cross-layer transcoder).
"""

import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import yaml
from circuit_tracer.replacement_model.replacement_model_transformerlens import (
    TransformerLensReplacementModel,
)
from circuit_tracer.transcoder.activation_functions import TopK
from circuit_tracer.transcoder.cross_layer_transcoder import load_clt
from circuit_tracer.transcoder.single_layer_transcoder import load_transcoder_set
from safetensors.torch import load_file
from transformer_lens import HookedTransformer, HookedTransformerConfig

CPU = torch.device("cpu")


class Words:
    """As much of a tokenizer as circuit-tracer asks for: token 0 is the only special one."""

    all_special_ids = (0,)
    bos_token_id = pad_token_id = eos_token_id = 0
    padding_side = "right"

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def decode(self, token: Any) -> str:
        return str(token)


def read_model(folder: Path, dtype: torch.dtype = torch.float64) -> HookedTransformer:
    """Read the plain model."""
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = HookedTransformer(HookedTransformerConfig(**raw, dtype=dtype)).eval()
    stored = load_file(folder / "model.safetensors")
    wanted = {name for name, _ in model.named_parameters()}
    assert wanted == set(stored), wanted ^ set(stored)
    model.load_state_dict({key: value.to(dtype) for key, value in stored.items()}, strict=False)
    return model


def read_transcoders(folder: Path, dtype: torch.dtype = torch.float64) -> Any:
    """Read the transcoders with circuit-tracer's own loaders."""
    raw = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    hooks = {key: raw[key] for key in ("feature_input_hook", "feature_output_hook")}
    eager = {"lazy_encoder": False, "lazy_decoder": False, "device": CPU, "dtype": dtype}
    if raw["model_kind"] == "cross_layer_transcoder":
        return load_clt(str(folder), scan="case", **hooks, **eager)
    layers = len(list(folder.glob("layer_*.safetensors")))
    files = {layer: str(folder / f"layer_{layer}.safetensors") for layer in range(layers)}
    found = load_transcoder_set(files, scan="case", **hooks, **eager)
    if raw.get("activation") == "topk":  # which version 0.5.0 does not read from the file
        for transcoder in found:
            transcoder.activation_function = TopK(raw["k"])
    return found


def read_replacement(
    folder: Path, dtype: torch.dtype = torch.float64
) -> TransformerLensReplacementModel:
    """Read the replacement model: circuit-tracer renames what it wraps."""
    plain = read_model(folder, dtype)
    transcoders = read_transcoders(folder / "transcoders", dtype)
    model = TransformerLensReplacementModel.from_config(plain.cfg, transcoders).eval()
    stored = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        if not name.startswith("transcoders."):
            plain_name = name.replace(".old_mlp.", ".").replace(".old_unembed.", ".")
            parameter.data.copy_(stored[plain_name].data)
    model.tokenizer = Words(plain.cfg.d_vocab)
    return model
