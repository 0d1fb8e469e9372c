"""Formats whose own files are pickles: refused, and read once their tensors are in safetensors."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any, NoReturn

import numpy as np

from pathexpand.errors import FileError
from pathexpand.features.formats.config import Setting
from pathexpand.features.formats.given import Given
from pathexpand.features.formats.tensors import Tensors
from pathexpand.features.unit import Unit, UnitSet

ENDS = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt")
DICTIONARY, TRANSCODER = "ae.safetensors", "transcoder.safetensors"
CLASSES = (
    *("AutoEncoder", "AutoEncoderTopK", "BatchTopKSAE", "MatryoshkaBatchTopKSAE"),
    *("JumpReluAutoEncoder", "GatedAutoEncoder"),
)


def refuse_pickle(file: FilePath) -> NoReturn:
    """Refuse a pickle, and say how to convert it."""
    name = DICTIONARY if file.stem == "ae" else TRANSCODER
    got_state = "x if isinstance(x, dict) and 'state_dict' not in x else x['state_dict']"
    remedy = (
        'pickles are never loaded; convert it with: python -c "import torch; from '
        f"safetensors.torch import save_file as s; x = torch.load('{file.name}', "
        f"map_location='cpu'); s({{k: v.contiguous() for k, v in ({got_state}).items()}}, "
        f"'{name}')\""
    )
    raise FileError(f"{file}", wanted=".safetensors or .npz", got="a pickle", remedy=remedy)


def load_dictionary(folders: list[FilePath], given: Given) -> UnitSet:
    """Read SAEs of dictionary_learning: `config.json` and `ae.safetensors`, a folder each."""
    units = []
    for folder in folders:
        trainer = Setting.read(folder / "config.json").part("trainer")
        units.append(_dictionary(Tensors.read(folder / DICTIONARY), trainer, given))
    units.sort(key=lambda unit: unit.layer)
    subtracts = "" if units[0].pre_bias is not None else "not "
    return UnitSet(
        tuple(units),
        "saes",
        name=folders[0].name,
        source=str(folders[0]),
        format="dictionary-learning",
        notes=(f"b_dec is {subtracts}subtracted from inputs.",),
    )


def _dictionary(tensors: Tensors, trainer: Setting, given: Given) -> Unit:
    layer = given.layer
    if layer is None:
        value = trainer.raw.get("layer")
        layer = value if type(value) is int else given.need("layer", trainer.file)
    told = trainer.raw.get("submodule_name")
    hook = given.hook_in
    if hook is None:
        if told is not None and not str(told).startswith("resid_post"):
            given.need("hook_in", f"{trainer.file}, submodule_name {told}")
        hook = "resid_post"
    kind = trainer.choice("dict_class", *CLASSES)
    parts: dict[str, Any] = {"layer": layer, "kind": "sae", "hook_in": hook, "hook_out": hook}
    read = _jumping if kind == "JumpReluAutoEncoder" else _linear
    unit = Unit(**parts, writes=(layer,), **read(tensors, kind))
    tensors.close(["k", "threshold"])  # whichever of the two does not decide
    return unit


def _jumping(tensors: Tensors, kind: str) -> dict[str, Any]:
    d, f = tensors.take("W_enc", None, None).shape
    return {
        "W_enc": tensors.rows("W_enc", d, f, turned=True),
        "W_dec": (tensors.rows("W_dec", f, d),),
        "b_enc": tensors.vector("b_enc", f),
        "b_dec": tensors.vector("b_dec", d),
        "activation": "jumprelu",
        "threshold": np.maximum(tensors.vector("threshold", f), 0),
    }


def _linear(tensors: Tensors, kind: str) -> dict[str, Any]:
    """Read the classes that are made of torch's linear layers."""
    f, d = tensors.take("encoder.weight", None, None).shape
    bias = {"AutoEncoder": "bias", "GatedAutoEncoder": "decoder_bias"}.get(kind, "b_dec")
    b_dec = tensors.vector(bias, d)
    W_enc = tensors.rows("encoder.weight", f, d)
    out: dict[str, Any] = {
        "W_dec": (tensors.rows("decoder.weight", d, f, turned=True),),
        "b_dec": b_dec,
        "pre_bias": b_dec,
    }
    if kind == "GatedAutoEncoder":
        gain = tensors.vector("r_mag", f)
        return out | {
            "W_enc": W_enc.scaled(np.exp(gain)),
            "b_enc": tensors.vector("mag_bias", f),
            "activation": "gated",
            "gate_gain": np.exp(-gain),
            "gate_bias": tensors.vector("gate_bias", f),
        }
    out |= {"W_enc": W_enc, "b_enc": tensors.vector("encoder.bias", f)}
    if kind == "AutoEncoder":
        return out | {"activation": "relu"}
    if kind == "AutoEncoderTopK":
        k = tensors.count("k")
        return out | {"activation": "topk", "k": k, "topk_rule": "relu_then_topk"}
    threshold = np.full(f, max(tensors.number("threshold"), 0.0))
    return out | {"activation": "jumprelu", "threshold": threshold}


def load_transcoder(folders: list[FilePath], given: Given) -> UnitSet:
    """Read one transcoder of transcoder_circuits, once it is in `transcoder.safetensors`."""
    folder = folders[0]
    tensors = Tensors.read(folder / TRANSCODER)
    layer = given.need("layer", folder) if given.layer is None else given.layer
    d_in, f = tensors.take("W_enc", None, None).shape
    d_out = tensors.take("W_dec", f, None).shape[1]
    unit = Unit(
        layer=layer,
        kind="transcoder",
        hook_in=given.hook_in or "ln2_normalized",
        hook_out=given.hook_out or "mlp_out",
        W_enc=tensors.rows("W_enc", d_in, f, turned=True),
        W_dec=(tensors.rows("W_dec", f, d_out),),
        b_enc=tensors.vector("b_enc", f),
        b_dec=tensors.vector("b_dec_out", d_out),
        writes=(layer,),
        pre_bias=tensors.vector("b_dec", d_in),
    )
    tensors.close()
    return UnitSet(
        (unit,),
        "transcoders",
        name=folder.name,
        source=str(folder),
        format="transcoder-circuits",
        notes=("b_dec is subtracted from inputs, b_dec_out is added to outputs.",),
    )
