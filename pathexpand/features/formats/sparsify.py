"""EleutherAI's sparsify: `cfg.json` and `sae.safetensors` in a folder named after the module."""

from __future__ import annotations

from pathlib import Path as FilePath

from pathexpand.features.formats.config import Setting
from pathexpand.features.formats.given import Given
from pathexpand.features.formats.hooks import module
from pathexpand.features.formats.tensors import Tensors
from pathexpand.features.unit import Hook, Unit, UnitSet

WEIGHTS = "sae.safetensors"
# The hooks of a module's output; what a transcoder of an MLP reads is that MLP's input.
_OUTPUT: dict[str, Hook] = {"": "resid_post", "mlp": "mlp_raw", "attn": "attn_out"}


def load(folders: list[FilePath], given: Given) -> UnitSet:
    """Read SAEs or transcoders, one a folder."""
    units = [_unit(folder, given) for folder in folders]
    units.sort(key=lambda unit: unit.layer)
    is_sae = units[0].kind == "sae"
    return UnitSet(
        tuple(units),
        "saes" if is_sae else "transcoders",
        name=folders[0].name,
        source=str(folders[0]),
        format="sparsify",
        notes=(f"b_dec is {'' if is_sae else 'not '}subtracted from inputs.",),
    )


def _unit(folder: FilePath, given: Given) -> Unit:
    setting = Setting.read(folder / "cfg.json")
    for key in ("n_sources", "n_targets"):
        setting.none(key, 0, 1, why="cross-layer coders of this format")
    setting.none("signed", False, why="signed activations")
    transcodes = setting.flag("transcode", False)
    layer, hook_in, hook_out = _hooks(folder, given, transcodes=transcodes)
    tensors = Tensors.read(folder / WEIGHTS)
    d = setting.whole("d_in")
    f = tensors.take("encoder.weight", None, d).shape[0]
    skips = setting.flag("skip_connection", False)
    b_dec = tensors.vector("b_dec", d)
    unit = Unit(
        layer=layer,
        kind="transcoder" if transcodes else "sae",
        hook_in=hook_in,
        hook_out=hook_out,
        W_enc=tensors.rows("encoder.weight", f, d),
        W_dec=(tensors.rows("W_dec", f, d),),
        b_enc=tensors.vector("encoder.bias", f),
        b_dec=b_dec,
        writes=(layer,),
        activation="groupmax"
        if setting.choice("activation", "topk", "groupmax", default="topk") == "groupmax"
        else "topk",
        k=setting.whole("k"),
        topk_rule="relu_then_topk",
        skip=tensors.vector("W_skip", d, d).T if skips else None,
        pre_bias=None if transcodes else b_dec,
    )
    tensors.close()
    return unit


def _hooks(folder: FilePath, given: Given, *, transcodes: bool) -> tuple[int, Hook, Hook]:
    """Give the layer and hooks that the folder's name tells, unless the caller does."""
    if given.layer is not None and given.hook_in is not None:
        return given.layer, given.hook_in, given.hook_out or given.hook_in
    layer, kind = module(folder.resolve().name, f"{folder}")
    layer = layer if given.layer is None else given.layer
    if not transcodes:
        return layer, given.hook_in or _OUTPUT[kind], given.hook_in or _OUTPUT[kind]
    if kind != "mlp":
        given.need("hook_in", f"{folder}, a transcoder that is not of an MLP")
    return layer, given.hook_in or "mlp_in", given.hook_out or "mlp_raw"
