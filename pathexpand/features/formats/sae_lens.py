"""SAELens, version 6 and before: `cfg.json` and `sae_weights.safetensors`, a folder a unit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import FileError
from pathexpand.features.formats.config import Setting
from pathexpand.features.formats.given import Given
from pathexpand.features.formats.hooks import lens_hook
from pathexpand.features.formats.tensors import Tensors
from pathexpand.features.unit import Hook, Unit, UnitSet

Array = npt.NDArray[Any]
WEIGHTS = "sae_weights.safetensors"
SAES = ("standard", "jumprelu", "topk", "gated")
TRANSCODERS = (
    *("transcoder", "skip_transcoder"),
    *("jumprelu_transcoder", "jumprelu_skip_transcoder"),
)
_SCALED = "Inputs are multiplied by"
_NORMS = ("none", "expected_average_only_in", "constant_norm_rescale", "layer_norm")


@dataclass(frozen=True, slots=True)
class _Read:
    """A configuration, of version 6 or older, under the names of version 6."""

    setting: Setting
    hook_in: str
    hook_out: str | None
    architecture: str
    model_name: str | None


def load(folders: list[FilePath], given: Given) -> UnitSet:
    """Read SAEs or transcoders, one a folder."""
    units, notes, names = [], [], set()
    for folder in folders:
        read = _read(Setting.read(folder / "cfg.json"))
        unit, own = _unit(Tensors.read(folder / WEIGHTS), read, given)
        units.append(unit)
        notes += [note for note in own if note not in notes]
        names.add(read.model_name)
    if given.input_scale is not None and not any(_SCALED in note for note in notes):
        raise FileError(
            f"{folders[0]}",
            wanted="no input_scale",
            got="one",
            remedy="their inputs are not multiplied by an average",
        )
    units.sort(key=lambda unit: unit.layer)
    return UnitSet(
        tuple(units),
        "saes" if units[0].kind == "sae" else "transcoders",
        name=folders[0].name,
        source=str(folders[0]),
        format="sae-lens",
        model_name=names.pop() if len(names) == 1 else None,
        notes=tuple(notes),
    )


def _read(setting: Setting) -> _Read:
    """Read a configuration: version 6 has `metadata`, older ones are flat and had other names."""
    new = "metadata" in setting.raw
    about = setting.part("metadata") if new else setting
    architecture = setting.choice("architecture", *SAES, *TRANSCODERS, default="standard")
    about.none("hook_head_index", why="units of single heads")
    hook_out = about.raw.get("hook_name_out")
    name = about.raw.get("model_name")
    return _Read(
        setting,
        about.text("hook_name", "hook_point"),
        hook_out if isinstance(hook_out, str) and hook_out else None,
        architecture,
        name if isinstance(name, str) else None,
    )


def _unit(tensors: Tensors, read: _Read, given: Given) -> tuple[Unit, list[str]]:
    setting, is_sae = read.setting, read.architecture in SAES
    setting.none("reshape_activations", "none", why="units of the heads' z")
    layer, hook_in, hook_out = _hooks(read, is_sae)
    d_in, f = tensors.take("W_enc", None, None).shape
    d_out = tensors.take("W_dec", f, None).shape[1]
    W_enc = tensors.rows("W_enc", d_in, f, turned=True)
    W_dec = tensors.rows("W_dec", f, d_out)
    b_dec = tensors.vector("b_dec", d_out)
    subtracts = is_sae and setting.flag("apply_b_dec_to_input", True)
    if not is_sae and setting.raw.get("apply_b_dec_to_input"):
        setting.refuse("apply_b_dec_to_input", "false for a transcoder", "true")
    notes = [f"b_dec is {'' if subtracts else 'not '}subtracted from inputs."]
    scale, rest = _scale(setting, given, notes, is_sae=is_sae)
    if scale != 1:
        W_enc, W_dec, b_dec = W_enc.scaled(scale), W_dec.scaled(1 / scale), b_dec / scale
    if "scaling_factor" in tensors:
        W_dec = W_dec.scaled(tensors.vector("scaling_factor", f))
        notes.append("The decoder is multiplied by its scaling_factor.")
    rest |= _activation(tensors, read, f)
    if "gate_gain" in rest:
        W_enc = W_enc.scaled(1 / rest["gate_gain"])
    if read.architecture == "topk" and setting.flag("rescale_acts_by_decoder_norm", False):
        length = W_dec.lengths()
        length[length == 0] = 1  # it writes nothing
        W_enc, W_dec = W_enc.scaled(length), W_dec.scaled(1 / length)
        rest["b_enc"] = rest["b_enc"] * length
        notes.append("Decoder rows have length 1: their lengths are in the activations.")
    skip = tensors.vector("W_skip", d_out, d_in).T if "skip" in read.architecture else None
    unit = Unit(
        layer=layer,
        kind="sae" if is_sae else "transcoder",
        hook_in=hook_in,
        hook_out=hook_out,
        W_enc=W_enc,
        W_dec=(W_dec,),
        b_dec=b_dec,
        writes=(layer,),
        skip=skip,
        pre_bias=b_dec if subtracts else None,
        **rest,
    )
    tensors.close()
    return unit, notes


def _hooks(read: _Read, is_sae: bool) -> tuple[int, Hook, Hook]:
    subject = f"{read.setting.file}, hook_name"
    layer, hook_in = lens_hook(read.hook_in, subject)
    if is_sae:
        return layer, hook_in, hook_in
    other, hook_out = lens_hook(read.hook_out, f"{subject}_out")
    if other != layer:
        read.setting.refuse("hook_name_out", f"layer {layer}, as hook_name", f"layer {other}")
    return layer, hook_in, hook_out


def _scale(
    setting: Setting, given: Given, notes: list[str], *, is_sae: bool
) -> tuple[float, dict[str, Any]]:
    """Give what inputs are multiplied by on average, and the unit's own norm."""
    told = setting.raw.get("normalize_activations")
    if isinstance(told, bool):  # before there were several norms
        told = "expected_average_only_in" if told else "none"
    told = "none" if told is None else told
    if told not in _NORMS:
        setting.refuse("normalize_activations", " or ".join(_NORMS), str(told))
    if told == "none":
        return 1.0, {}
    if told == "expected_average_only_in":
        if given.input_scale is None:
            given.need("input_scale", f"{setting.file}, normalize_activations {told}")
        notes.append(f"{_SCALED} {given.input_scale:g} (folded).")
        return given.input_scale, {}
    notes.append(f"Each token's own {told} scale is held fixed.")
    # SAELens undoes these norms for SAEs alone.
    return 1.0, {"scale_in": told, "unscaled": is_sae}


def _activation(tensors: Tensors, read: _Read, f: int) -> dict[str, Any]:
    setting, architecture = read.setting, read.architecture
    if architecture == "gated":
        gain = np.exp(-tensors.vector("r_mag", f))
        gate = {"gate_gain": gain, "gate_bias": tensors.vector("b_gate", f)}
        return {"activation": "gated", "b_enc": tensors.vector("b_mag", f)} | gate
    out: dict[str, Any] = {"b_enc": tensors.vector("b_enc", f)}
    if "jumprelu" in architecture:
        # relu and threshold both: below 0 a feature is off, whatever its threshold.
        threshold = np.maximum(tensors.vector("threshold", f), 0)
        return out | {"activation": "jumprelu", "threshold": threshold}
    told = setting.raw.get("activation_fn_str", setting.raw.get("activation_fn"))
    if architecture == "topk" or told == "topk":
        kwargs = setting.part("activation_fn_kwargs")
        k = setting.whole("k") if "k" in setting.raw else kwargs.whole("k")
        return out | {"activation": "topk", "k": k, "topk_rule": "topk_then_relu"}
    if told not in (None, "relu"):
        setting.refuse("activation_fn_str", "relu or topk", str(told))
    return out | {"activation": "relu"}
