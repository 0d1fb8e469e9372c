"""Gemma Scope: `params.npz` (1), and `config.json` with `params*.safetensors` (2)."""

from __future__ import annotations

import re
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from pathexpand.errors import FileError
from pathexpand.features.formats.config import Setting
from pathexpand.features.formats.given import Given
from pathexpand.features.formats.hooks import gemma_hook
from pathexpand.features.formats.tensors import Tensors
from pathexpand.features.rows import FeatureRows
from pathexpand.features.unit import Hook, Kind, Unit, UnitSet

_LAYER = re.compile(r"layer_(\d+)(?:_.*)?")
_CLT_FILE = re.compile(r"params_layer_(\d+)\.safetensors")
NOTES = (
    "b_dec is not subtracted from inputs.",
    "Features below 0 are off, whatever the threshold.",
)


def load_transcoders(folders: list[FilePath], given: Given) -> UnitSet:
    """Read transcoders of Gemma Scope 1, one `params.npz` a folder of each layer."""
    hooks: tuple[Hook, Hook] = (given.hook_in or "ln2_normalized", given.hook_out or "mlp_out")
    return _load_npz(folders, given, "gemma-scope-transcoder", hooks)


def load_saes(folders: list[FilePath], given: Given) -> UnitSet:
    """Read SAEs of Gemma Scope 1; their files do not say of what, so the caller must."""
    hook = given.hook_in or given.need("hook_in", folders[0])
    return _load_npz(folders, given, "gemma-scope-sae", (hook, hook))


def _load_npz(
    folders: list[FilePath], given: Given, format: str, hooks: tuple[Hook, Hook]
) -> UnitSet:
    kind: Kind = "sae" if format == "gemma-scope-sae" else "transcoder"
    units = [
        npz_transcoder(folder / "params.npz", layer_of(folder, given), *hooks, kind=kind)
        for folder in folders
    ]
    units.sort(key=lambda unit: unit.layer)
    return UnitSet(
        tuple(units),
        "saes" if kind == "sae" else "transcoders",
        name=folders[0].name,
        source=str(folders[0]),
        format=format,
        notes=NOTES,
    )


def layer_of(folder: FilePath, given: Given) -> int:
    """Give the layer that the caller names, or the nearest folder called layer_N does."""
    if given.layer is not None:
        return given.layer
    parts = reversed(folder.resolve().parts)
    named = next((found for found in map(_LAYER.fullmatch, parts) if found), None)
    return given.need("layer", folder) if named is None else int(named[1])


def npz_transcoder(
    file: FilePath, layer: int, hook_in: Hook, hook_out: Hook, *, kind: Kind = "transcoder"
) -> Unit:
    """Read one `params.npz`: W_enc (d, feature), W_dec (feature, d), and vectors."""
    tensors = Tensors.read(file)
    d, f = tensors.take("W_enc", None, None).shape
    unit = Unit(
        layer=layer,
        kind=kind,
        hook_in=hook_in,
        hook_out=hook_out,
        W_enc=tensors.rows("W_enc", d, f, turned=True),
        W_dec=(tensors.rows("W_dec", f, None),),
        b_enc=tensors.vector("b_enc", f),
        b_dec=tensors.vector("b_dec", *tensors.shape("W_dec")[1:]),
        writes=(layer,),
        activation="jumprelu",
        threshold=np.maximum(tensors.vector("threshold", f), 0),
    )
    tensors.close()
    return unit


def load_2(folders: list[FilePath], given: Given) -> UnitSet:
    """Read Gemma Scope 2: SAEs and transcoders, a folder each, or a cross-layer transcoder."""
    per_layer = [file for file in folders[0].iterdir() if _CLT_FILE.fullmatch(file.name)]
    if per_layer:
        return _load_clt(folders[0], per_layer)
    units, name = [], None
    for folder in folders:
        setting = _setting(folder)
        name = setting.get("model_name")
        units.append(_unit_2(folder, setting, given))
    units.sort(key=lambda unit: unit.layer)
    return UnitSet(
        tuple(units),
        "saes" if units[0].kind == "sae" else "transcoders",
        name=folders[0].name,
        source=str(folders[0]),
        format="gemma-scope-2",
        model_name=name if isinstance(name, str) else None,
        notes=NOTES,
    )


def _setting(folder: FilePath) -> Setting:
    setting = Setting.read(folder / "config.json")
    setting.choice("architecture", "jump_relu")
    return setting


def _hooks(setting: Setting) -> tuple[str, Hook, Hook]:
    """Give the layer as text, and both hooks."""
    subject = f"{setting.file}, hf_hook_point_in"
    layer, hook_in = gemma_hook(setting.raw.get("hf_hook_point_in"), subject)
    out = setting.raw.get("hf_hook_point_out")
    if out is None:
        return layer, hook_in, hook_in
    other, hook_out = gemma_hook(out, f"{setting.file}, hf_hook_point_out")
    if other != layer:
        setting.refuse("hf_hook_point_out", f"the same layer as {layer}", other)
    return layer, hook_in, hook_out


def _unit_2(folder: FilePath, setting: Setting, given: Given) -> Unit:
    text, hook_in, hook_out = _hooks(setting)
    if not text.isdecimal():
        setting.refuse("hf_hook_point_in", "a layer's number", text)
    return _jumping(
        Tensors.read(folder / "params.safetensors"), setting, int(text), (hook_in, hook_out)
    )


def _jumping(
    tensors: Tensors,
    setting: Setting,
    layer: int,
    hooks: tuple[Hook, Hook],
    count: int | None = None,
) -> Unit:
    """Read one layer; with a `count` of layers, a cross-layer transcoder's."""
    d, f = tensors.take("w_enc", None, None).shape
    decoders: tuple[FeatureRows, ...]
    if count is None:
        decoders = (tensors.rows("w_dec", f, None),)
    else:
        decoders = _targets(tensors, layer, count, f)
    d_out = decoders[0].width
    skip = tensors.optional("affine_skip_connection", d, d_out)
    told = setting.raw.get("affine_connection")
    if told is not None and setting.flag("affine_connection") != (skip is not None):
        got = "one" if skip is not None else "none"
        tensors.refuse(f"affine_skip_connection as {setting.file.name} says", got)
    unit = Unit(
        layer=layer,
        kind="sae" if hooks[0] == hooks[1] else "transcoder",
        hook_in=hooks[0],
        hook_out=hooks[1],
        W_enc=tensors.rows("w_enc", d, f, turned=True),
        W_dec=decoders,
        b_enc=tensors.vector("b_enc", f),
        b_dec=tensors.vector("b_dec", d_out),
        writes=(layer,) if count is None else tuple(range(layer, count)),
        activation="jumprelu",
        threshold=np.maximum(tensors.vector("threshold", f), 0),
        skip=skip,
    )
    tensors.close()
    return unit


def _targets(tensors: Tensors, layer: int, count: int, f: int) -> tuple[FeatureRows, ...]:
    """Give a decoder for each target: stored dense over all layers, or from this layer on."""
    slots: Any = tensors.take("w_dec", f, None, None)
    if slots.shape[1] == count:
        slots = slots[:, layer:]
    elif slots.shape[1] != count - layer:
        wanted = f"w_dec with a slot for each of {count} layers, or from layer {layer} on"
        tensors.refuse(wanted, str(slots.shape[1]))
    name = f"w_dec in {tensors.file}"
    return tuple(FeatureRows(name, slots[:, slot]) for slot in range(slots.shape[1]))


def _load_clt(folder: FilePath, files: list[FilePath]) -> UnitSet:
    setting = _setting(folder)
    _, hook_in, hook_out = _hooks(setting)
    found = {int(_CLT_FILE.fullmatch(file.name)[1]): file for file in files}  # type: ignore[index]
    missing = [layer for layer in range(max(found) + 1) if layer not in found]
    if missing:
        got = f"no params_layer_{missing[0]}.safetensors"
        raise FileError(f"{folder}", wanted="a file for each layer from 0", got=got)
    name = setting.get("model_name")
    return UnitSet(
        tuple(
            _jumping(Tensors.read(found[layer]), setting, layer, (hook_in, hook_out), len(found))
            for layer in sorted(found)
        ),
        "clt",
        name=folder.name,
        source=str(folder),
        format="gemma-scope-2",
        model_name=name if isinstance(name, str) else None,
        notes=NOTES,
    )
