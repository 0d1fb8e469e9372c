"""OpenMOSS: llamascopium's `config.json` with `sae_weights.safetensors`, and Llama Scope 1.

Both scale inputs and outputs by what makes a data set's average length √d. That is folded, so that
activations are in the units of the inputs.
"""

from __future__ import annotations

import math
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import FileError
from pathexpand.features.formats.config import Setting
from pathexpand.features.formats.given import Given
from pathexpand.features.formats.hooks import lens_hook
from pathexpand.features.formats.tensors import Tensors
from pathexpand.features.rows import FeatureRows
from pathexpand.features.unit import Hook, Unit, UnitSet

Array = npt.NDArray[Any]
# In the order in which they are looked for.
WEIGHTS = (
    "sae_weights.safetensors",
    "checkpoints/pruned.safetensors",
    "checkpoints/final.safetensors",
)
LOG_THRESHOLD = "activation_function.log_jumprelu_threshold"
_NORM = "dataset_average_activation_norm"


def load(folders: list[FilePath], given: Given) -> UnitSet:
    """Read SAEs or transcoders, a folder each, or one cross-layer transcoder."""
    settings = [Setting.read(folder / "config.json") for folder in folders]
    kinds = {each.choice("sae_type", "sae", "clt", default="sae") for each in settings}
    if kinds == {"clt"}:
        return _load_clt(folders[0], settings[0])
    units = [
        _unit(Tensors.read(weights_of(folder)), setting)
        for folder, setting in zip(folders, settings, strict=True)
    ]
    return _set(units, folders[0], "llamascopium")


def load_first(folders: list[FilePath], given: Given) -> UnitSet:
    """Read SAEs or transcoders of Llama Scope 1, a folder each."""
    units = [
        _first_unit(
            Tensors.read(folder / "checkpoints" / "final.safetensors"),
            Setting.read(folder / "hyperparams.json"),
        )
        for folder in folders
    ]
    return _set(units, folders[0], "llama-scope")


def _set(units: list[Unit], folder: FilePath, format: str) -> UnitSet:
    units.sort(key=lambda unit: unit.layer)
    return UnitSet(
        tuple(units),
        "saes" if units[0].kind == "sae" else "transcoders",
        name=folder.name,
        source=str(folder),
        format=format,
        notes=(
            "b_dec is not subtracted from inputs.",
            "A data set's average norm is folded where the files tell one.",
        ),
    )


def weights_of(folder: FilePath) -> FilePath:
    """Give the weights file of a folder."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise FileError(f"{folder}", wanted=f"one of {', '.join(WEIGHTS)}", got="none")


def _hooks(setting: Setting, hook_in: object, hook_out: object) -> tuple[int, Hook, Hook]:
    layer, first = lens_hook(hook_in, f"{setting.file}, hook_point_in")
    other, last = lens_hook(hook_out, f"{setting.file}, hook_point_out")
    if other != layer:
        setting.refuse("hook_point_out", f"layer {layer}, as hook_point_in", f"layer {other}")
    return layer, first, last


def _norms(
    tensors: Tensors, setting: Setting, names: tuple[object, ...], d: int
) -> list[float | None]:
    """Give √d over the average norm at each hook, or None for none at all."""
    told = setting.choice(
        "norm_activation", "inference", "dataset-wise", "token-wise", "batch-wise"
    )
    if told == "batch-wise":
        setting.refuse("norm_activation", "inference, dataset-wise or token-wise", told)
    if told != "dataset-wise":
        return [None] * len(names)
    return [math.sqrt(d) / tensors.positive(f"{_NORM}.{name}") for name in names]


def _unused(tensors: Tensors) -> list[str]:
    return [name for name in tensors.names if name.startswith(f"{_NORM}.")]


def _gate(
    tensors: Tensors, setting: Setting, log_threshold: Array | None, lengths: Array | None
) -> dict[str, Any]:
    """Give the activation on pre-activations in training units; `lengths` (feature,) gate."""
    told = setting.choice(
        "act_fn", "relu", "jumprelu", "topk", "batchtopk", "layertopk", "batchlayertopk"
    )
    if told == "relu":
        return {"activation": "relu"}
    if told == "topk":
        return {
            "activation": "topk",
            "k": setting.whole("top_k"),
            "topk_rule": "relu_then_topk",
            "rank_gain": lengths,
        }
    if told != "jumprelu" or log_threshold is None:
        remedy = "convert it to jumprelu with that library: what is on depends on other prompts"
        setting.refuse("act_fn", "relu, jumprelu or topk", told, remedy)
    threshold = np.exp(log_threshold)
    return {"activation": "jumprelu", "threshold": _divided(threshold, lengths)}


def _divided(threshold: Array, lengths: Array | None) -> Array:
    """Give thresholds on pre-activations where those times the decoder's lengths are gated."""
    if lengths is None:
        return threshold
    # A feature that writes nothing is never above a threshold: 0 > θ is false.
    never = np.full_like(threshold, np.finfo(np.float64).max)
    return np.divide(threshold, lengths, out=never, where=lengths != 0)


def _unit(tensors: Tensors, setting: Setting) -> Unit:
    setting.none("use_glu_encoder", False, why="gated encoders of this format")
    names = (setting.raw.get("hook_point_in"), setting.raw.get("hook_point_out"))
    layer, hook_in, hook_out = _hooks(setting, *names)
    d, f = tensors.take("W_E", None, None).shape
    scale_in, scale_out = _norms(tensors, setting, names, d)
    rest: dict[str, Any] = {}
    if setting.raw.get("norm_activation") == "token-wise":
        if hook_in != hook_out:
            got = "token-wise for a transcoder, whose output's norm its input does not tell"
            setting.refuse("norm_activation", "inference or dataset-wise", got)
        rest = {"scale_in": "constant_norm_rescale", "unscaled": True}
    W_dec = tensors.rows("W_D", f, d)
    lengths = W_dec.lengths() if setting.flag("sparsity_include_decoder_norm") else None
    log_threshold = tensors.optional(LOG_THRESHOLD, f)
    b_dec = tensors.vector("b_D", d) if setting.flag("use_decoder_bias", True) else np.zeros(d)
    unit = _folded(
        scale_in,
        scale_out,
        layer=layer,
        kind="sae" if hook_in == hook_out else "transcoder",
        hook_in=hook_in,
        hook_out=hook_out,
        W_enc=tensors.rows("W_E", d, f, turned=True),
        W_dec=(W_dec,),
        b_enc=tensors.vector("b_E", f),
        b_dec=b_dec,
        writes=(layer,),
        **rest,
        **_gate(tensors, setting, log_threshold, lengths),
    )
    tensors.close(_unused(tensors))
    return unit


def _folded(scale_in: float | None, *scales_out: float | None, **parts: Any) -> Unit:
    """Make a unit for inputs times `scale_in` and outputs over a scale for each target.

    Pre-activations are taken of unscaled inputs, so that activations are in their units.
    """
    first = 1.0 if scale_in is None else scale_in
    scales = [1.0 if each is None else each for each in scales_out]
    parts["b_enc"] = parts["b_enc"] / first
    if parts.get("threshold") is not None:
        parts["threshold"] = np.minimum(parts["threshold"] / first, np.finfo(np.float64).max)
    parts["b_dec"] = parts["b_dec"] / scales[0]
    parts["W_dec"] = tuple(
        rows if first == scale == 1 else rows.scaled(first / scale)
        for rows, scale in zip(parts["W_dec"], scales, strict=True)
    )
    return Unit(**parts)


def _load_clt(folder: FilePath, setting: Setting) -> UnitSet:
    tensors = Tensors.read(weights_of(folder))
    reads, writes = (_names(setting, key) for key in ("hook_points_in", "hook_points_out"))
    count = len(reads)
    if len(writes) != count or not count:
        setting.refuse("hook_points_out", f"{count} hooks, as many as in", str(len(writes)))
    _, d, f = tensors.take("W_E", count, None, None).shape
    if setting.raw.get("norm_activation") == "token-wise":
        setting.refuse("norm_activation", "inference or dataset-wise", "token-wise")
    scales = _norms(tensors, setting, (*reads, *writes), d)
    # Target-major: W_D.t holds the decoders of layers 0 … t into t.
    slots = [tensors.take(f"W_D.{to}", to + 1, f, d) for to in range(count)]
    biases = tensors.vector("b_E", count, f)
    log_threshold = tensors.optional(LOG_THRESHOLD, count, f)
    units = []
    for layer in range(count):
        number, hook_in, hook_out = _hooks(setting, reads[layer], writes[layer])
        if number != layer:
            setting.refuse("hook_points_in", f"layer {layer} in its place", f"layer {number}")
        decoders = tuple(
            FeatureRows(f"W_D.{to} in {tensors.file}", slots[to][layer])
            for to in range(layer, count)
        )
        lengths = None
        if setting.flag("sparsity_include_decoder_norm"):
            lengths = np.sqrt(sum((np.square(each.lengths()) for each in decoders), np.zeros(f)))
        threshold = None if log_threshold is None else log_threshold[layer]
        units.append(
            _folded(
                scales[layer],
                *scales[count + layer :],
                layer=layer,
                kind="transcoder",
                hook_in=hook_in,
                hook_out=hook_out,
                W_enc=FeatureRows(
                    f"W_E in {tensors.file}", tensors.take("W_E", count, d, f)[layer].T
                ),
                W_dec=decoders,
                b_enc=biases[layer],
                b_dec=tensors.vector(f"b_D.{layer}", d),
                writes=tuple(range(layer, count)),
                **_gate(tensors, setting, threshold, lengths),
            )
        )
    tensors.close(_unused(tensors))
    return UnitSet(
        tuple(units),
        "clt",
        name=folder.name,
        source=str(folder),
        format="llamascopium",
        notes=(
            "b_dec is not subtracted from inputs.",
            "A data set's average norm is folded where the files tell one.",
        ),
    )


def _names(setting: Setting, key: str) -> list[Any]:
    value = setting.raw.get(key)
    if not isinstance(value, list):
        setting.refuse(key, "a list of hooks", type(value).__name__)
    return value


def _first_unit(tensors: Tensors, setting: Setting) -> Unit:
    """Read Llama Scope 1: torch's own layout, one threshold for all features."""
    layer, hook_in, hook_out = _hooks(
        setting, setting.raw.get("hook_point_in"), setting.raw.get("hook_point_out")
    )
    setting.choice("act_fn", "jumprelu")
    setting.choice("norm_activation", "dataset-wise")
    setting.none("apply_decoder_bias_to_pre_encoder", False, why="biases taken off before")
    d = setting.whole("d_model")
    norms = setting.part(_NORM)
    f = tensors.take("encoder.weight", None, d).shape[0]
    W_dec = tensors.rows("decoder.weight", d, f, turned=True)
    threshold = np.full(f, setting.number("jump_relu_threshold"))
    lengths = W_dec.lengths() if setting.flag("sparsity_include_decoder_norm") else None
    has_bias = setting.flag("use_decoder_bias", True)
    unit = _folded(
        math.sqrt(d) / norms.positive("in"),
        math.sqrt(d) / norms.positive("out"),
        layer=layer,
        kind="sae" if hook_in == hook_out else "transcoder",
        hook_in=hook_in,
        hook_out=hook_out,
        W_enc=tensors.rows("encoder.weight", f, d),
        W_dec=(W_dec,),
        b_enc=tensors.vector("encoder.bias", f),
        b_dec=tensors.vector("decoder.bias", d) if has_bias else np.zeros(d),
        writes=(layer,),
        activation="jumprelu",
        threshold=_divided(threshold, lengths),
    )
    tensors.close()
    return unit
