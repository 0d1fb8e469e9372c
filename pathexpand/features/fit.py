"""Whether units fit a model, and how well they stand for its MLPs or streams on a prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError, PathExpandError
from pathexpand.features.encode import Active
from pathexpand.features.unit import Hook, Unit, UnitSet
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import Forward, mlp_output
from pathexpand.model.norm import normed
from pathexpand.model.parts import Block
from pathexpand.model.prompt import start_token
from pathexpand.model.shown import shown
from pathexpand.table import AnalysisTable
from pathexpand.table.analysis_table import Field, Summary

Array = npt.NDArray[Any]
_BEHIND_NORM = ("mlp_in", "ln2_normalized")
_HOOKED_BEFORE = ("circuit-tracer",)  # formats whose tool hooks a LayerNorm before its weight
_OF_MLP = (*_BEHIND_NORM, "mlp_out", "mlp_raw")
_CENTRED = 1e-5  # of a row's size: what is left of its mean by half precision and less


class RunLike(Protocol):
    """A run of a model: `pathexpand.Run` is one."""

    model: Any
    dense: Forward


# --- whether they fit ----------------------------------------------------------------------------


def check_units(units: UnitSet, checkpoint: Checkpoint, *, folded: bool = False) -> UnitSet:
    """Check that units fit a model; give them as this model's own hooks have them.

    What they read and write is as wide as the stream, their layers are the model's, which have
    what the hooks name, and a cross-layer transcoder has all of them. "ln2_normalized" becomes
    "mlp_in": where the hook came before the norm's weight, that is folded into the encoders.
    Weights that were folded or centred on loading are refused, since features are trained without;
    `folded` says that these were trained on just this model. Raises `ModelError`.
    """
    if not isinstance(units, UnitSet):
        raise ModelError("features", wanted="a UnitSet", got=shown(units))
    count, width = checkpoint.config.n_layers, checkpoint.config.d_model
    for unit in units:
        for name, size in (("reads", unit.d_in), ("writes", unit.d_out)):
            if size != width:
                got = f"{name} of {size}"
                raise _error(units, unit.layer, f"the model's width of {width}", got)
        last = max(unit.writes)
        if last >= count:
            raise _error(units, last, f"the model's {count} layers", f"layer {last}")
    if units.kind == "clt" and len(units) != count:
        got = f"layers {', '.join(map(str, units.layers))}"
        raise _error(units, len(units), f"one unit for each of {count} layers", got)
    for unit in units:
        _check_hooks(units, unit, checkpoint.weights.outline(unit.layer))
    if not folded:
        _check_unfolded(units, checkpoint)
    before = units.format in _HOOKED_BEFORE
    own = tuple(
        _behind_norm(unit, checkpoint.weights.block(unit.layer), before=before) for unit in units
    )
    return replace(units, units=own)


def _error(units: UnitSet, layer: int, wanted: str, got: str, remedy: str = "") -> ModelError:
    subject = f"features {units.name}, layer {layer}"
    return ModelError(subject, wanted=wanted, got=got, remedy=remedy)


def _check_hooks(units: UnitSet, unit: Unit, block: Block) -> None:
    if unit.kind == "transcoder":
        inputs = (*_BEHIND_NORM, "resid_pre" if block.parallel else "resid_mid")
        if unit.hook_in not in inputs or unit.hook_out not in ("mlp_out", "mlp_raw"):
            wanted = f"a transcoder from {', '.join(inputs)} to mlp_out or mlp_raw"
            got = f"one from {unit.hook_in} to {unit.hook_out}"
            raise _error(units, unit.layer, wanted, got)
    for hook in (unit.hook_in, unit.hook_out):
        if hook in _OF_MLP and block.mlp is None:
            raise _error(units, unit.layer, f"an MLP, whose {hook} is read or written", "none")
        if hook == "resid_mid" and block.parallel:
            got = "attention and an MLP side by side"
            raise _error(units, unit.layer, "a stream between attention and MLP", got)


def _check_unfolded(units: UnitSet, checkpoint: Checkpoint) -> None:
    """Refuse weights that were folded where it changes what the units read or write."""
    kind = checkpoint.config.layout.normalization_type or ""
    if not kind.endswith("Pre"):
        return
    remedy = "load the model without folding, or say folded=True if they were trained on this one"
    unit = units.units[0]
    if unit.hook_in in _BEHIND_NORM:
        got = f"{kind} norms, whose weights are folded"
        raise _error(units, unit.layer, "a model with its norms' own weights", got, remedy)
    if _is_centred(checkpoint, unit.layer):
        got = "weights that were centred"
        raise _error(units, unit.layer, "the model's own stream", got, remedy)


def _is_centred(checkpoint: Checkpoint, layer: int) -> bool:
    rows = checkpoint.weights.block(layer).attn.W_O  # (head, d_head, d_model)
    size = abs(rows).mean()
    return bool(rows.size and size > 0 and abs(rows.mean(axis=-1)).max() < _CENTRED * size)


def _behind_norm(unit: Unit, block: Block, *, before: bool) -> Unit:
    """Let a unit read what the MLP reads in place of TransformerLens's `ln2.hook_normalized`.

    For an RMSNorm that comes before the weight. For a LayerNorm it came behind weight and bias in
    TransformerLens 2, and comes before them in 3, with which circuit-tracer works (`before`).
    """
    if "ln2_normalized" not in (unit.hook_in, unit.hook_out):
        return unit
    if unit.kind == "sae":  # it would have to be put behind the weight as well
        wanted = "an SAE that reads what the MLP reads"
        raise ModelError(f"features of layer {unit.layer}", wanted=wanted, got="ln2_normalized")
    norm = block.ln2
    if norm is None or (norm.kind == "layer" and not before):
        return replace(unit, hook_in="mlp_in")
    weight = np.ones(unit.d_in) if norm.weight is None else norm.weight
    bias = np.zeros(unit.d_in) if norm.bias is None else norm.bias
    if not weight.all():
        got = f"{int((weight == 0).sum())} that are 0"
        wanted = "weights of the norm that can be divided by"
        raise ModelError(f"features of layer {unit.layer}", wanted=wanted, got=got)
    if unit.scale_in != "none":
        wanted = "no norm of the unit's own behind the model's"
        raise ModelError(f"features of layer {unit.layer}", wanted=wanted, got=unit.scale_in)
    # What was read is (x − bias) / weight of what the MLP reads.
    skip = None if unit.skip is None else unit.skip / weight[:, None]
    shift = bias if unit.pre_bias is None else unit.pre_bias * weight + bias
    return replace(
        unit,
        hook_in="mlp_in",
        W_enc=unit.W_enc.over(1 / weight),
        skip=skip,
        b_dec=unit.b_dec if skip is None else unit.b_dec - bias @ skip,
        pre_bias=shift if shift.any() or unit.pre_bias is not None else None,
    )


# --- what is read and written --------------------------------------------------------------------


def at_hook(
    checkpoint: Checkpoint, dense: Forward, layer: int, hook: Hook, *, row: int = 0
) -> Array:
    """Give what stands at a hook of a layer in a dense pass: (position, d_model).

    Raises `ModelError` where the layer does not have it.
    """
    trace, before = dense.layers[layer], dense.residual[layer]
    after = dense.residual[layer + 1]
    places: dict[Hook, Callable[[], Array | None]] = {
        "resid_pre": lambda: before,
        "resid_post": lambda: after,
        "resid_mid": lambda: trace.middle if trace.mlp_out is not None else after,
        "attn_out": lambda: trace.attn_out,
        "mlp_out": lambda: trace.mlp_out,
        "mlp_raw": lambda: _written(checkpoint.weights.block(layer), dense, layer),
        "mlp_in": lambda: _mlp_reads(checkpoint.weights.block(layer), dense, layer),
    }
    if hook not in places:
        raise ModelError(f"hook {hook}", wanted="units that check_units gave", got=hook)
    found = places[hook]()
    if found is None:
        raise ModelError(f"layer {layer}", wanted=f"something at {hook}", got="none")
    return np.asarray(found[row])


def _mlp_reads(block: Block, dense: Forward, layer: int) -> Array | None:
    if block.mlp is None:
        return None
    middle = dense.layers[layer].middle
    stream = dense.residual[layer] if block.parallel or middle is None else middle
    return stream if block.ln2 is None else normed(block.ln2, stream)[0]


def _written(block: Block, dense: Forward, layer: int) -> Array | None:
    reads = _mlp_reads(block, dense, layer)
    return None if block.mlp is None or reads is None else mlp_output(block.mlp, reads)[0]


# --- how well ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One layer's fit: its unit, what is on, and the share of variance it misses."""

    unit: Unit
    active: Active
    missed: float | None
    positions: int

    @property
    def row(self) -> tuple[Any, ...]:
        unit = self.unit
        on = len(self.active) / self.positions
        places = f"{unit.hook_in} → {unit.hook_out}" if unit.kind == "transcoder" else unit.hook_in
        return (unit.layer, places, unit.features, unit.activation, on, self.missed)


def reconstruction(
    units: UnitSet,
    run: RunLike,
    *,
    first: int | None = None,
    force: bool = False,
    folded: bool = False,
) -> AnalysisTable:
    """Measure on a prompt how well units stand for what they stand for.

    For each layer: L0, the mean number of features that are on, and FVU, the share of the output's
    variance over positions that the reconstruction misses, Σ|y − ŷ|² / Σ|y − mean y|². The first
    positions are left out: by default a start token that the model prepends, on which features are
    not trained. Raises `PathExpandError` for an FVU above 1 unless `force` is true: the units are
    then worse than a constant, and belong to another model, hook or layout. `folded` is as for
    `check_units`.

    >>> from pathexpand.api import load
    >>> half = Unit.of(layer=1, kind="sae", hook_in="resid_pre", E=np.eye(192), D=0.5 * np.eye(192),
    ...                activation="identity")
    >>> run = load("two-layer").run("to be or not to be")
    >>> reconstruction(UnitSet((half,), "saes"), run).column("L0")
    (192.0,)
    """
    checkpoint, dense = run.model.checkpoint, run.dense
    units = check_units(units, checkpoint, folded=folded)
    start = first_counted(checkpoint, dense) if first is None else _first(dense, first)
    layers = _measured(units, checkpoint, dense, start)
    bad = [each for each in layers if each.missed is not None and each.missed > 1]
    if bad and not force:
        worst = max(bad, key=lambda each: each.missed or 0.0)
        raise PathExpandError(
            f"features {units.name}, layer {worst.unit.layer}",
            wanted="a reconstruction better than a constant (FVU at most 1)",
            got=f"FVU {worst.missed:.3g}",
            remedy="check model, hooks and format, or force it",
        )
    return _table(units, checkpoint, layers, start, good=not bad)


def first_counted(checkpoint: Checkpoint, dense: Forward) -> int:
    """Give where the positions begin that count: behind a start token, if the prompt has one."""
    start = start_token(checkpoint)
    more = dense.tokens.shape[1] > 1
    return int(start is not None and more and int(dense.tokens[0, 0]) == start)


def _first(dense: Forward, given: int) -> int:
    count = dense.tokens.shape[1]
    if type(given) is not int or not 0 <= given < count:
        raise PathExpandError("first", wanted=f"0 to {count - 1}", got=shown(given))
    return given


def _measured(units: UnitSet, checkpoint: Checkpoint, dense: Forward, start: int) -> list[_Layer]:
    real = np.flatnonzero(dense.mask[0])
    counted = real[real >= start]
    if not counted.size:
        raise PathExpandError("first", wanted="positions that count", got="none")
    active: dict[int, Active] = {}
    totals: dict[int, Array] = {}
    for unit in units:
        x = at_hook(checkpoint, dense, unit.layer, unit.hook_in)[counted]
        active[unit.layer] = on = unit.encode(x)
        for target in unit.writes:
            written = unit.decode(on, x, target)
            totals[target] = totals[target] + written if target in totals else written
    out = []
    for unit in units:
        y = at_hook(checkpoint, dense, unit.layer, unit.hook_out)[counted]
        spread = float(np.square(y - y.mean(axis=0)).sum())
        missed = float(np.square(y - totals[unit.layer]).sum())
        share = missed / spread if spread > 0 else None
        out.append(_Layer(unit, active[unit.layer], share, len(counted)))
    return out


def _layers(units: UnitSet, count: int) -> str:
    """Say of which layers a set is, in few words."""
    if len(units) == count:
        return "all layers"
    return "its layers" if len(units) > 1 else "its layer"


def _table(
    units: UnitSet, checkpoint: Checkpoint, layers: list[_Layer], start: int, *, good: bool
) -> AnalysisTable:
    known = [each.missed for each in layers if each.missed is not None]
    total = sum(len(each.active) for each in layers) / layers[0].positions
    named = f"L0 of {_layers(units, checkpoint.config.n_layers)}"
    closing = [Summary(named, total, "features on at a position, on average")]
    if known:
        closing.append(Summary("mean FVU", float(np.mean(known))))
    else:
        counted = layers[0].positions
        short = f"not measured: {counted} position{'' if counted == 1 else 's'} without variance"
        closing.append(Summary("mean FVU", None, short))
    left = f"The first {start} positions are left out." if start > 1 else ""
    left = "The first position is left out." if start == 1 else left
    claims = (
        "FVU is the share of the output's variance over the prompt's positions that is missed.",
        *((left,) if left else ()),
        *units.notes,
        *(("Worse than a constant where FVU is above 1.",) if not good else ()),
    )
    return AnalysisTable(
        "reconstruction",
        (
            ("model", checkpoint.config.model_name),
            ("features", f"{units.name} ({units.kind}, {units.format or 'made here'})"),
        ),
        (
            Field("layer", "count"),
            Field("hooks", "text", leave=1),
            Field("features", "count"),
            Field("activation", "text", leave=2),
            Field("L0", "number"),
            Field("FVU", "number"),
        ),
        tuple(each.row for each in layers),
        tuple(closing),
        claims,
        good=good,
    )
