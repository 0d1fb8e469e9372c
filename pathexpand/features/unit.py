"""One layer's features, and a set of them: what a model's MLPs or streams are made of.

A unit reads an input x, takes pre-activations, keeps some features on and writes their decoder
rows. However it is stored, it is brought to one form:

    z = scale · (x [− mean x]) − pre_bias,   pre = z Eᵀ + b_enc,   act = activation(pre)
    out = back · (act D + b_dec) + shift + x skip

where scale, back and shift are 1, 1 and 0 but for units with an input norm of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError
from pathexpand.features.encode import (
    Activation,
    Active,
    Collected,
    TopkRule,
    on_above,
    on_top,
)
from pathexpand.features.rows import FeatureRows
from pathexpand.model.shown import shown

Array = npt.NDArray[Any]
Kind = Literal["transcoder", "sae"]
Hook = Literal[
    "resid_pre",
    "resid_mid",
    "resid_post",
    "mlp_in",
    "ln2_normalized",
    "mlp_out",
    "mlp_raw",
    "attn_out",
]
Scale = Literal["none", "constant_norm_rescale", "layer_norm"]
SetKind = Literal["transcoders", "clt", "saes"]
_LEAST = 1e-5  # what a layer-norm input scale adds to the standard deviation


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Unit:
    """One layer's features.

    `kind` "transcoder" reads what an MLP reads and stands for what it writes; "sae" stands for
    what it reads. Hooks are places of the layer: "resid_pre", "resid_mid", "resid_post" of the
    stream; "mlp_in" what the MLP reads, behind its norm, and "ln2_normalized" the same as
    TransformerLens has it, for an RMSNorm without its weight; "mlp_out" and "attn_out" what is
    added to the stream; "mlp_raw" what the MLP gives before a norm behind it.

    Shapes: `W_enc` (feature, d_in); `W_dec` one (feature, d_out) for each layer of `writes`, which
    for a cross-layer transcoder are this layer and later ones; `b_enc` (feature,); `b_dec`
    (d_out,), of this layer's own output, not of its later targets'; `skip` (d_in, d_out), applied
    x @ skip to this layer's own output; `pre_bias` (d_in,).

    `activation`: "relu"; "jumprelu" keeps pre where it is strictly above `threshold` (feature,);
    "topk" keeps the `k` largest by `topk_rule` ("topk" lets negative ones stay), in order of
    pre · `rank_gain` (feature,) if there is one; "groupmax" the largest of each of `k` groups of
    neighbours, if positive; "gated" keeps positive pre where (z Eᵀ) · `gate_gain` + `gate_bias` is
    above 0, both (feature,); "identity" keeps all. `scale_in` is a norm of the input of its own,
    for each token, and `unscaled` says whether the output is brought back from it. Raises
    `ModelError` for parts that do not fit together.

    >>> rng = np.random.default_rng(0)
    >>> unit = Unit.of(layer=0, kind="sae", hook_in="resid_pre", E=rng.normal(size=(5, 3)),
    ...                D=rng.normal(size=(5, 3)))
    >>> unit.features, unit.decoder([4, 1]).shape
    (5, (2, 3))
    """

    layer: int
    kind: Kind
    hook_in: Hook
    hook_out: Hook
    W_enc: FeatureRows
    W_dec: tuple[FeatureRows, ...]
    b_enc: Array
    b_dec: Array
    writes: tuple[int, ...]
    activation: Activation = "relu"
    threshold: Array | None = None
    k: int | None = None
    topk_rule: TopkRule = "topk_then_relu"
    rank_gain: Array | None = None
    gate_gain: Array | None = None
    gate_bias: Array | None = None
    skip: Array | None = None
    pre_bias: Array | None = None
    scale_in: Scale = "none"
    unscaled: bool = False

    @classmethod
    def of(
        cls,
        *,
        layer: int,
        kind: Kind,
        hook_in: Hook,
        E: Array,
        D: Array | Sequence[Array],
        hook_out: Hook | None = None,
        writes: Sequence[int] | None = None,
        b_enc: Array | None = None,
        b_dec: Array | None = None,
        **rest: Any,
    ) -> Unit:
        """Make a unit of plain arrays.

        `E` (feature, d_in); `D` (feature, d_out), or one for each layer of `writes`. Biases not
        given are 0; `hook_out` not given is `hook_in` for an SAE and "mlp_out" for a transcoder.
        """
        each = (D,) if isinstance(D, np.ndarray) and D.ndim == 2 else tuple(D)
        decoders = tuple(FeatureRows("W_dec", np.asarray(one)) for one in each)
        return cls(
            layer=layer,
            kind=kind,
            hook_in=hook_in,
            hook_out=hook_out or (hook_in if kind == "sae" else "mlp_out"),
            W_enc=FeatureRows("W_enc", np.asarray(E)),
            W_dec=decoders,
            b_enc=np.zeros(len(E)) if b_enc is None else b_enc,
            b_dec=np.zeros(decoders[0].width if decoders else 0) if b_dec is None else b_dec,
            writes=(layer,) if writes is None else tuple(writes),
            **rest,
        )

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together; cast all vectors up."""
        for name, choices in (
            ("kind", Kind),
            ("hook_in", Hook),
            ("hook_out", Hook),
            ("activation", Activation),
            ("topk_rule", TopkRule),
            ("scale_in", Scale),
        ):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in get_args(choices):
                wanted = f"one of {', '.join(get_args(choices))}"
                raise self._error(name, wanted, shown(value))
        if type(self.layer) is not int or self.layer < 0:
            raise self._error("layer", "a layer from 0", shown(self.layer))
        self._check_writes()
        f, d_in = self.W_enc.count, self.W_enc.width
        d_out = self.W_dec[0].width
        for name, shape in (
            ("b_enc", (f,)),
            ("b_dec", (d_out,)),
            ("threshold", (f,)),
            ("rank_gain", (f,)),
            ("gate_gain", (f,)),
            ("gate_bias", (f,)),
            ("skip", (d_in, d_out)),
            ("pre_bias", (d_in,)),
        ):
            self._cast(name, shape)
        self._check_activation()
        self._check_kind(d_in, d_out)

    def __repr__(self) -> str:
        """Name what it is of and its size."""
        hooks = self.hook_in if self.kind == "sae" else f"{self.hook_in} → {self.hook_out}"
        return f"Unit(layer {self.layer}, {self.kind}: {self.features} features, {hooks})"

    def _check_writes(self) -> None:
        f = self.W_enc.count
        whole = all(type(each) is int for each in self.writes)
        if not whole or not self.writes or list(self.writes) != sorted({*self.writes, self.layer}):
            wanted = "this layer and later ones, in order"
            raise self._error("writes", wanted, shown(self.writes))
        if len(self.W_dec) != len(self.writes) or self.writes[0] < self.layer:
            wanted = f"one W_dec for each of layers {', '.join(map(str, self.writes))}"
            raise self._error("writes", wanted, str(len(self.W_dec)))
        for rows in self.W_dec:
            if rows.count != f or rows.width != self.W_dec[0].width:
                wanted = f"({f}, {self.W_dec[0].width})"
                raise self._error("W_dec", wanted, f"{rows.stored.shape}")

    def _cast(self, name: str, shape: tuple[int, ...]) -> None:
        """Make a vector or the skip float64 and read-only, once its shape and numbers are right."""
        given = getattr(self, name)
        if given is None:
            return
        array = np.asarray(given)
        if array.shape != shape:
            raise self._error(name, f"shape {shape}", f"{array.shape}")
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            raise self._error(name, "finite numbers", "some that are NaN or infinite")
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    def _check_activation(self) -> None:
        needs: dict[str, tuple[str, ...]] = {"jumprelu": ("threshold",), "topk": ("k",)}
        needs |= {"groupmax": ("k",), "gated": ("gate_gain", "gate_bias")}
        own = needs.get(self.activation, ())
        for name in ("threshold", "k", "gate_gain", "gate_bias"):
            if (getattr(self, name) is not None) != (name in own):
                wanted = f"{'a' if name in own else 'no'} {name} for {self.activation}"
                raise self._error("activation", wanted, "none" if name in own else "one")
        if self.k is not None and (type(self.k) is not int or not 1 <= self.k <= self.features):
            raise self._error("k", f"1 to {self.features}, its features", shown(self.k))
        if self.activation == "groupmax" and self.features % (self.k or 1):
            raise self._error("k", f"groups that divide {self.features} features", str(self.k))
        if self.rank_gain is not None and self.activation != "topk":
            raise self._error("rank_gain", "none but for topk", "one")

    def _check_kind(self, d_in: int, d_out: int) -> None:
        if self.kind == "sae" and (self.hook_in != self.hook_out or d_in != d_out):
            wanted = "an SAE that stands for what it reads"
            got = f"{self.hook_in} of {d_in} to {self.hook_out} of {d_out}"
            raise self._error("hooks", wanted, got)
        if self.kind == "sae" and (len(self.writes) > 1 or self.skip is not None):
            raise self._error("kind", "an SAE without skip or later targets", "one that has them")
        if self.unscaled and (self.kind != "sae" or self.scale_in == "none"):
            raise self._error("unscaled", "an SAE with a norm of its input to undo", self.kind)

    def _error(self, name: str, wanted: str, got: str) -> ModelError:
        return ModelError(f"features of layer {self.layer}: {name}", wanted=wanted, got=got)

    @property
    def features(self) -> int:
        """The number of features."""
        return self.W_enc.count

    @property
    def d_in(self) -> int:
        """The width of what it reads."""
        return self.W_enc.width

    @property
    def d_out(self) -> int:
        """The width of what it writes."""
        return self.W_dec[0].width

    @property
    def E(self) -> Array:  # noqa: N802
        """All encoder rows, (feature, d_in), cast up anew each time."""
        return self.W_enc.whole()

    def encoder(self, features: Sequence[int] | Array) -> Array:
        """Give encoder rows as stored: (n, d_in)."""
        return self.W_enc.at(self._known(features))

    def reads(self, features: Sequence[int] | Array) -> Array:
        """Give what each feature reads of the unscaled input: (n, d_in).

        With `scale` as `encode` gives it, pre = scale · x @ reads.T + constants: these are the
        encoder rows, less their mean where the input's own mean is taken off.
        """
        rows = self.encoder(features)
        return rows - rows.mean(axis=1, keepdims=True) if self.scale_in == "layer_norm" else rows

    def constants(self, features: Sequence[int] | Array) -> Array:
        """Give the part of each feature's pre-activation that no input makes: (n,)."""
        own: Array = self.b_enc[self._known(features)]
        return own if self.pre_bias is None else own - self.encoder(features) @ self.pre_bias

    def decoder(self, features: Sequence[int] | Array, target: int | None = None) -> Array:
        """Give decoder rows into one of the layers it writes, its own by default: (n, d_out)."""
        return self._rows_into(target).at(self._known(features))

    def scales(self, x: Array) -> tuple[Array, Array, Array]:
        """Give `scale`, `back` (position,) and `shift` (position, 1) of inputs (position, d_in)."""
        scale, shift = np.ones(len(x)), np.zeros((len(x), 1))
        if self.scale_in == "none":
            return scale, scale, shift
        if self.scale_in == "layer_norm":
            spread = x.std(axis=1, ddof=1)
            scale = 1 / (spread + _LEAST)
            shift = x.mean(axis=1, keepdims=True)
        else:
            spread = np.sqrt(np.einsum("pd,pd->p", x, x) / self.d_in)
            scale = 1 / np.where(spread == 0, 1, spread)  # where there is nothing to scale
        if not self.unscaled:
            return scale, np.ones(len(x)), np.zeros((len(x), 1))
        return scale, spread, shift

    def encode(self, x: Array) -> Active:
        """Find the features that are on: inputs (position, d_in).

        Of equal candidates of a top-k the lower index is kept. Raises `ModelError` for inputs of
        another width, or with NaN or infinity.
        """
        x = self._checked(x)
        scale, back, shift = self.scales(x)
        return self._collect(self._inputs(x, scale)).sorted(scale, back, shift)

    def decode(self, active: Active, x: Array | None = None, target: int | None = None) -> Array:
        """Write the features that are on into one of its targets: (position, d_out).

        Into its own layer, which is the default, b_dec and the skip are added; the latter needs
        the inputs `x` (position, d_in). Into a later one, only features write.
        """
        own = target is None or target == self.layer
        out = np.zeros((len(active.scale), self.d_out))
        rows = self._rows_into(target)
        names, places = np.unique(active.features, return_inverse=True)
        step = max(2**21 // max(self.d_out, 1), 1)  # decoder rows cast up at once
        for start in range(0, len(names), step):
            here = (places >= start) & (places < start + step)
            piece = names[start : start + step]
            acts = np.zeros((len(out), len(piece)))  # (position, feature)
            acts[active.positions[here], places[here] - start] = active.act[here]
            out += acts @ rows.at(piece)
        if own:
            out += self.b_dec
        out *= active.back[:, None]
        if not own:
            return out
        out += active.shift
        if self.skip is not None:
            if x is None:
                raise self._error("decode", "the inputs too, for its skip", "none")
            out += self._checked(x) @ self.skip
        return out

    def _rows_into(self, target: int | None) -> FeatureRows:
        layer = self.layer if target is None else target
        if layer not in self.writes:
            known = ", ".join(map(str, self.writes))
            raise self._error("target", f"a layer it writes ({known})", shown(target))
        return self.W_dec[self.writes.index(layer)]

    def _known(self, features: Sequence[int] | Array) -> Array:
        """Give numbers of features, all of which there are."""
        which = np.asarray(features)
        if not which.size:
            return which.astype(np.int64)
        if which.dtype.kind not in "iu" or which.min() < 0 or which.max() >= self.features:
            raise self._error("features", f"numbers from 0 to {self.features - 1}", shown(features))
        return which.astype(np.int64)

    def _checked(self, x: Array) -> Array:
        try:
            x = np.asarray(x, np.float64)
        except (TypeError, ValueError):
            raise self._error("input", "numbers", shown(x)) from None
        if x.ndim != 2 or x.shape[1] != self.d_in:
            raise self._error("input", f"shape (position, {self.d_in})", f"{x.shape}")
        if not np.isfinite(x).all():
            raise self._error("input", "finite numbers", "some that are NaN or infinite")
        return x

    def _inputs(self, x: Array, scale: Array) -> Array:
        """Give what the encoder reads: (position, d_in)."""
        if self.scale_in == "layer_norm":
            x = x - x.mean(axis=1, keepdims=True)
        z: Array = x if self.scale_in == "none" else x * scale[:, None]
        return z if self.pre_bias is None else z - self.pre_bias

    def _collect(self, z: Array) -> Collected:
        if self.activation == "groupmax":
            return self._collect_groups(z)
        if self.activation != "topk":
            return on_above((at.start, pre, self._is_on(at, pre)) for at, pre in self._pre(z))
        assert self.k is not None  # checked on construction
        ranked = (
            (at.start, pre, pre if self.rank_gain is None else pre * self.rank_gain[at])
            for at, pre in self._pre(z)
        )
        return on_top(ranked, self.k, rectified=self.topk_rule != "topk")

    def _pre(self, z: Array) -> Iterator[tuple[slice, Array]]:
        """Yield pre-activations (position, n), feature by feature in pieces of bounded size."""
        for at, rows in self.W_enc.chunks():
            with np.errstate(over="ignore", invalid="ignore"):
                pre = z @ rows.T + self.b_enc[at]
            if not np.isfinite(pre).all():
                raise self._error("pre-activations", "finite numbers", "some that overflow")
            yield at, pre

    def _is_on(self, at: slice, pre: Array) -> npt.NDArray[np.bool_]:
        if self.activation == "identity":
            return np.asarray(pre != 0)
        if self.threshold is not None:
            return np.asarray(pre > self.threshold[at])
        if self.gate_gain is None or self.gate_bias is None:
            return np.asarray(pre > 0)
        gate = (pre - self.b_enc[at]) * self.gate_gain[at] + self.gate_bias[at]
        return np.asarray((gate > 0) & (pre > 0))

    def _collect_groups(self, z: Array) -> Collected:
        """Keep the largest of each group of neighbours, if it is positive."""
        pre = np.concatenate([each for _, each in self._pre(z)], axis=1)  # (position, feature)
        grouped = pre.reshape(len(pre), self.k or 1, -1)  # (position, group, member)
        best = grouped.argmax(axis=2) + np.arange(self.k or 1) * grouped.shape[2]
        values = np.take_along_axis(pre, best, axis=1)  # (position, group)
        positions = np.broadcast_to(np.arange(len(pre))[:, None], best.shape)
        found = Collected([])
        found.add(positions.ravel(), best.ravel(), values.ravel(), np.maximum(values, 0).ravel())
        return found


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class UnitSet:
    """The features of a model: one unit a layer, of one kind.

    `kind` "transcoders" are one for each layer's MLP, "clt" transcoders that write later layers
    too, "saes" of some layers. `source` is the file or directory they were read from, `notes` say
    what was folded and what is held fixed. Raises `ModelError` for units that do not go together.
    """

    units: tuple[Unit, ...]
    kind: SetKind
    name: str = "features"
    source: str = ""
    format: str = ""
    model_name: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse units that do not go together."""
        subject = f"features {self.name}"
        if self.kind not in get_args(SetKind):
            raise ModelError(subject, wanted="transcoders, clt or saes", got=shown(self.kind))
        plain = isinstance(self.units, tuple | list)
        if not plain or not all(isinstance(unit, Unit) for unit in self.units):
            raise ModelError(subject, wanted="a tuple of units", got=shown(self.units))
        layers = [unit.layer for unit in self.units]
        if not layers or layers != sorted(set(layers)):
            got = ", ".join(map(str, layers)) or "none"
            raise ModelError(subject, wanted="one unit a layer, in order", got=got)
        kinds = {unit.kind for unit in self.units}
        if kinds != {"sae" if self.kind == "saes" else "transcoder"}:
            raise ModelError(subject, wanted=f"{self.kind} alone", got=" and ".join(sorted(kinds)))
        for what in ("hook_in", "hook_out", "d_in", "d_out"):
            found = {getattr(unit, what) for unit in self.units}
            if len(found) > 1:
                got = " and ".join(sorted(map(str, found)))
                raise ModelError(subject, wanted=f"one {what} for all layers", got=got)
        if self.kind != "clt" and any(len(unit.writes) > 1 for unit in self.units):
            raise ModelError(subject, wanted="units that write their own layer", got="a clt")
        missing = {to for unit in self.units for to in unit.writes} - set(layers)
        if missing:
            listed = ", ".join(map(str, sorted(missing)))
            raise ModelError(subject, wanted=f"units of layers {listed}", got="none")

    def __repr__(self) -> str:
        """Name it, its kind and its layers."""
        layers = f"layer{'' if len(self.units) == 1 else 's'} {', '.join(map(str, self.layers))}"
        return f"UnitSet({self.name!r}: {self.kind} of {layers})"

    def __len__(self) -> int:
        """Give the number of units."""
        return len(self.units)

    def __iter__(self) -> Iterator[Unit]:
        """Yield the units, from early to late."""
        return iter(self.units)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that have features."""
        return tuple(unit.layer for unit in self.units)

    def unit(self, layer: int) -> Unit:
        """Give a layer's unit; raises `ModelError` if it has none."""
        for unit in self.units:
            if unit.layer == layer:
                return unit
        known = ", ".join(map(str, self.layers))
        raise ModelError(f"features {self.name}", wanted=f"layer {known}", got=shown(layer))

    def into(self, layer: int) -> tuple[Unit, ...]:
        """Give the units that write a layer's output, from early to late."""
        return tuple(unit for unit in self.units if layer in unit.writes)
