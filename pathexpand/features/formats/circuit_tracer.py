"""circuit-tracer: `config.yaml` beside transcoders, one a layer, or a cross-layer transcoder."""

from __future__ import annotations

import re
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from pathexpand.errors import FileError
from pathexpand.features.formats.config import Setting
from pathexpand.features.formats.gemma_scope import npz_transcoder
from pathexpand.features.formats.given import Given
from pathexpand.features.formats.hooks import block_hook
from pathexpand.features.formats.tensors import Tensors
from pathexpand.features.rows import FeatureRows
from pathexpand.features.unit import Hook, Unit, UnitSet
from pathexpand.model.shown import cut

KINDS = ("transcoder_set", "cross_layer_transcoder")


def load(folders: list[FilePath], given: Given) -> UnitSet:
    """Read a directory with a `config.yaml`."""
    folder = folders[0]
    setting = Setting.read(folder / "config.yaml")
    kind = setting.choice("model_kind", *KINDS)
    hooks = (
        block_hook(setting.raw.get("feature_input_hook"), f"{setting.file}, feature_input_hook"),
        block_hook(setting.raw.get("feature_output_hook"), f"{setting.file}, feature_output_hook"),
    )
    name = setting.get("model_name")
    notes: tuple[str, ...] = ("b_dec is not subtracted from inputs.",)
    if kind == "transcoder_set":
        units = _transcoders(folder, setting, hooks)
    else:
        units, ignored = _cross_layer(folder, hooks)
        notes += ignored
    return UnitSet(
        units,
        "transcoders" if kind == "transcoder_set" else "clt",
        name=folder.name,
        source=str(folder),
        format="circuit-tracer",
        model_name=name if isinstance(name, str) else None,
        notes=notes,
    )


def _transcoders(folder: FilePath, setting: Setting, hooks: tuple[Hook, Hook]) -> tuple[Unit, ...]:
    files = _layer_files(folder, setting)
    units = []
    for layer, file in enumerate(files):
        if file.suffix == ".npz":
            units.append(npz_transcoder(file, layer, *hooks))
        else:
            units.append(_transcoder(Tensors.read(file), layer, setting, hooks))
    sizes = {unit.features for unit in units}
    if len(sizes) > 1:
        got = " and ".join(map(str, sorted(sizes)))
        raise FileError(f"{folder}", wanted="as many features in each layer", got=got)
    return tuple(units)


def _layer_files(folder: FilePath, setting: Setting) -> list[FilePath]:
    """Give the file of each layer: those the configuration lists, or layer_0 and on."""
    beside = numbered(folder, r"layer_(\d+)\.safetensors")
    listed = setting.raw.get("transcoders")
    if beside or not isinstance(listed, list) or not listed:
        return whole(folder, beside, "layer_{}.safetensors")
    files = []
    for each in listed:
        if not isinstance(each, str) or "://" in each:
            wanted = "files on this disk, layer_0.safetensors and on"
            setting.refuse("transcoders", wanted, cut(str(each)), "download them into the folder")
        files.append(folder / each)
    return files


def numbered(folder: FilePath, pattern: str) -> dict[int, FilePath]:
    """Give the files of a folder whose names have a number in them, by that number."""
    found = {}
    for file in folder.iterdir():
        match = re.fullmatch(pattern, file.name)
        if match:
            found[int(match[1])] = file
    return found


def whole(folder: FilePath, found: dict[int, FilePath], pattern: str) -> list[FilePath]:
    """Give the files of layers 0 and on; refuse a set with gaps."""
    missing = [n for n in range(max(found, default=0) + 1) if n not in found]
    if missing:
        got = f"no {pattern.format(missing[0])}"
        raise FileError(f"{folder}", wanted="a file for each layer from 0", got=got)
    return [found[n] for n in sorted(found)]


def _transcoder(tensors: Tensors, layer: int, setting: Setting, hooks: tuple[Hook, Hook]) -> Unit:
    f, d_in = (tensors.take("W_enc", None, None)).shape
    d_out = tensors.take("W_dec", f, None).shape[1]
    threshold = tensors.optional("activation_function.threshold", f)
    rest: dict[str, Any] = {"activation": "relu" if threshold is None else "jumprelu"}
    rest["threshold"] = threshold
    told = setting.raw.get("activation")
    if told is not None:
        told = setting.choice("activation", "relu", "topk", "jumprelu", "jump_relu")
    if told == "topk":
        # No relu follows: what is among the k largest stays, negative or not.
        k = setting.whole("k") if "k" in setting.raw or "k" not in tensors else None
        k = tensors.count("k") if k is None else k
        rest = {"activation": "topk", "k": k, "topk_rule": "topk"}
    elif told == "relu":
        rest = {"activation": "relu"}
    elif told is not None and threshold is None:
        tensors.refuse("a tensor activation_function.threshold", "none")
    elif "k" in tensors and told is None:
        tensors.refuse("activation: topk in config.yaml", "a tensor k without it")
    skip = tensors.optional("W_skip", d_out, d_in)
    unit = Unit(
        layer=layer,
        kind="transcoder",
        hook_in=hooks[0],
        hook_out=hooks[1],
        W_enc=tensors.rows("W_enc", f, d_in),
        W_dec=(tensors.rows("W_dec", f, d_out),),
        b_enc=tensors.vector("b_enc", f),
        b_dec=tensors.vector("b_dec", d_out),
        writes=(layer,),
        skip=None if skip is None else skip.T,
        **rest,
    )
    tensors.close(["k"])
    return unit


def _cross_layer(
    folder: FilePath, hooks: tuple[Hook, Hook]
) -> tuple[tuple[Unit, ...], tuple[str, ...]]:
    encoders = whole(folder, numbered(folder, r"W_enc_(\d+)\.safetensors"), "W_enc_{}.safetensors")
    count = len(encoders)
    units = []
    has_threshold = "threshold_0" in Tensors.read(encoders[0])
    for layer, file in enumerate(encoders):
        tensors = Tensors.read(file)
        f, d = tensors.take(f"W_enc_{layer}", None, None).shape
        threshold = tensors.vector(f"threshold_{layer}", f) if has_threshold else None
        decoders = Tensors.read(folder / f"W_dec_{layer}.safetensors")
        # Slot j of the second axis writes layer + j.
        slots = decoders.take(f"W_dec_{layer}", f, count - layer, d)
        units.append(
            Unit(
                layer=layer,
                kind="transcoder",
                hook_in=hooks[0],
                hook_out=hooks[1],
                W_enc=tensors.rows(f"W_enc_{layer}", f, d),
                W_dec=slotted(slots, f"W_dec_{layer} in {decoders.file}"),
                b_enc=tensors.vector(f"b_enc_{layer}", f),
                b_dec=tensors.vector(f"b_dec_{layer}", d),
                writes=tuple(range(layer, count)),
                activation="relu" if threshold is None else "jumprelu",
                threshold=threshold,
            )
        )
        tensors.close()
        decoders.close()
    skips = sorted(file.name for file in folder.glob("W_skip*"))
    notes = (f"{skips[0]} is not read: circuit-tracer does not, either.",) if skips else ()
    return tuple(units), notes


def slotted(slots: np.ndarray[Any, Any], name: str) -> tuple[FeatureRows, ...]:
    """Give a matrix for each slot of (feature, slot, d_out)."""
    return tuple(FeatureRows(name, slots[:, slot]) for slot in range(slots.shape[1]))
