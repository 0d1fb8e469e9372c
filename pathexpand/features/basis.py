"""Heads between features: what a head compares and what it passes on, feature by feature.

With decoder rows D (what a feature writes) and encoder rows E (what one reads), a head's circuits
are D W_V W_O Eᵀ, (source feature, feature that reads), and D W_Q W_Kᵀ Dᵀ over the attention scale,
(query feature, key feature). Features stand here where circuits otherwise have tokens or
eigenvectors. Both stay factored, a head's width in the middle, however many features there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.circuit import norm_claims, ov, qk
from pathexpand.circuits.largest import By, Largest, dense_rows, entries, largest
from pathexpand.circuits.wiring import check_crossing, head_weights, parse_head, turned
from pathexpand.errors import PathExpandError
from pathexpand.features.fit import check_units
from pathexpand.features.replacement import reading_norm
from pathexpand.features.rows import FeatureRows
from pathexpand.features.unit import UnitSet
from pathexpand.frozen.norm import back, through
from pathexpand.lowrank import Factored
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.symbolic import Head
from pathexpand.table import AnalysisTable, Field, Summary
from pathexpand.table.abstract import Tabled

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
Kind = Literal["OV", "QK"]
# Where in a layer features are written and read, in order, four places a layer: attention, the norm
# of the stream behind it, the MLP, the norm behind that. A stream is there once those before it are
# passed.
_WRITTEN = {"resid_pre": -1, "attn_out": 0, "resid_mid": 1, "mlp_out": 2, "mlp_raw": 2}
_WRITTEN |= {"resid_post": 3}
_READ = {"resid_pre": 0, "resid_mid": 2, "mlp_in": 2, "resid_post": 4}
_PLACES = 4
_BLOCK = 2**20  # numbers of one block of cosines
_NAMES = {"OV": ("source", "target", "effect"), "QK": ("query", "key", "score")}


@dataclass(frozen=True, slots=True)
class Shares:
    """What a head does with features of its own kind, both from 0 to 1.

    `copying` is the share of features whose entry with their own counterpart is positive; `shift`
    the share of those whose largest entry is with another feature.
    """

    copying: float
    shift: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FeatureCircuit(Tabled):
    """A head's circuit between features; made by `feature_ov` and `feature_qk`.

    `matrix` is (feature, feature), of `layers`: what is written in the first and, for OV, read in
    the second. `rows` and `columns` say how each counterpart is found: features go with those
    whose rows point the same way. `spectrum` is the summary Re Σλ / Σ|λ| of the head's circuit
    through the vocabulary, None where there is none.
    """

    model: str
    kind: Kind
    head: Head
    layers: tuple[int, int]
    offset: int | None
    matrix: Factored
    rows: _Directions
    columns: _Directions
    spectrum: float | None
    claims: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse a matrix that does not fit the features."""
        wanted = self.rows.count, self.columns.count
        if self.matrix.shape != wanted:
            raise PathExpandError(
                f"{self.kind} of {self.head} between features",
                wanted=f"a matrix {wanted}",
                got=f"{self.matrix.shape}",
            )

    def top(self, k: int, *, by: By = "size") -> Largest:
        """Give the k largest entries, by size or by value: exactly these, the matrix not formed."""
        return largest(self.matrix, k, by=by)

    def entry(self, row: int, column: int) -> float:
        """Give one entry, by two features; raises `PathExpandError` for features there are not."""
        for feature, count in ((row, self.matrix.shape[0]), (column, self.matrix.shape[1])):
            if isinstance(feature, bool) or not 0 <= feature < count:
                wanted = f"a number from 0 to {count - 1}"
                raise PathExpandError("feature", wanted=wanted, got=str(feature))
        return float(entries(self.matrix, np.array([row]), np.array([column]))[0])

    def counterparts(self) -> Indices:
        """Give each row's own column: (feature,).

        Within one layer it is the feature itself. Otherwise it is the feature whose direction has
        the largest cosine with the decoder row; of equal ones the first.
        """
        if self.kind == "QK" and self.layers[0] == self.layers[1]:
            return np.arange(self.matrix.shape[0])
        return _nearest(self.rows, self.columns)

    def shares(self) -> Shares:
        """Say what part of the features the head copies, and what part it shifts to others.

        It takes a pass over the matrix and one over the directions, in blocks.
        """
        own = self.counterparts()
        every = np.arange(len(own))
        best = np.zeros(len(own), dtype=np.int64)
        for at, block in dense_rows(self.matrix, every):
            best[at] = block.argmax(axis=1)
        return Shares(
            copying=float(np.mean(entries(self.matrix, every, own) > 0)),
            shift=float(np.mean(best != own)),
        )

    def table(self, top: int = 20, *, by: By = "size") -> AnalysisTable:
        """Tabulate the largest entries, and under them what the head does with its like."""
        row, column, value = _NAMES[self.kind]
        found, shares = self.top(top, by=by), self.shares()
        at = [] if self.offset is None else [("offset", str(self.offset))]
        spectrum = "copying score" if self.kind == "OV" else "matching score"
        return AnalysisTable(
            f"{self.kind} between features",
            (
                ("model", self.model),
                ("head", self.head.label),
                (f"{row} features", f"layer {self.layers[0]}, {self.rows.count:,}"),
                (f"{column} features", f"layer {self.layers[1]}, {self.columns.count:,}"),
                *at,
            ),
            (
                Field("rank", "count"),
                Field(row, "text"),
                Field(column, "text"),
                Field(value, "number"),
            ),
            tuple(
                (rank, f"L{self.layers[0]}F{i}", f"L{self.layers[1]}F{j}", float(x))
                for rank, (i, j, x) in enumerate(
                    zip(found.rows, found.columns, found.values, strict=True), start=1
                )
            ),
            (
                Summary("copying", shares.copying, "features with a positive entry of their own"),
                Summary("shift", shares.shift, "features whose largest entry is another's"),
                Summary(
                    spectrum,
                    self.spectrum,
                    "Re Σλ / Σ|λ|, through the vocabulary"
                    if self.spectrum is not None
                    else "none: this head has no circuit through the vocabulary alone",
                ),
            ),
            (
                f"No entry that is not listed is larger{' in size' if by == 'size' else ''}.",
                *self.claims,
            ),
        )


def feature_ov(
    checkpoint: Checkpoint,
    units: UnitSet,
    head: str | Head,
    from_layer: int,
    to_layer: int,
    *,
    folded: bool = False,
) -> FeatureCircuit:
    """Give what a head brings from each feature of a layer to each of a later one.

    D W_V W_O Eᵀ: what a feature adds to the other's pre-activation at full attention, for each unit
    of its activation. A cross-layer feature counts with all that it writes in front of the head.
    `folded` says that the features were trained on a model with its norms folded. Raises
    `PathExpandError` unless the head stands between the two, and `ModelError` for units that do not
    fit the model or a norm of the stream on the way.

    >>> from pathexpand.features.unit import Unit
    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> rows = np.eye(192)[:5]
    >>> units = [Unit.of(layer=n, kind="sae", hook_in="resid_pre", E=rows, D=rows) for n in (0, 1)]
    >>> saes = UnitSet(tuple(units), "saes")
    >>> feature_ov(read_checkpoint("two-layer"), saes, "L0H1", 0, 1).matrix
    Factored(5×64 @ 64×5)
    """
    own = parse_head(checkpoint.config, head)
    units = check_units(units, checkpoint, folded=folded)
    written = _written(checkpoint, units, from_layer, own)
    read = _read(checkpoint, units, to_layer, own)
    weights = head_weights(checkpoint, own.layer)
    left = written.products(weights.W_V[own.index])  # (feature, d_head)
    right = read.products(weights.W_O[own.index].T)  # (feature, d_head)
    between = range(from_layer + 1, to_layer)
    claims = (
        "An entry is what one unit of activation adds to a pre-activation at full attention.",
        "A feature's own counterpart is the one whose encoder its decoder points to most.",
    )
    return FeatureCircuit(
        checkpoint.config.model_name,
        "OV",
        own,
        (from_layer, to_layer),
        None,
        Factored(left, right.T),
        written,
        read,
        _spectrum(checkpoint, "OV", own, None),
        (*claims, *_claims(checkpoint, units, from_layer, to_layer), *_cut(units, between)),
    )


def feature_qk(
    checkpoint: Checkpoint,
    units: UnitSet,
    head: str | Head,
    query_layer: int,
    key_layer: int,
    *,
    offset: int | None = None,
    folded: bool = False,
) -> FeatureCircuit:
    """Give the score that each pair of a query's and a key's features makes in a head.

    D W_Q R(offset) W_Kᵀ Dᵀ over the attention scale, for one unit of activation of each. Rotary
    positions need an `offset`, query minus key. Raises `PathExpandError` unless both layers'
    features are written in front of the head, and `ModelError` as `feature_ov`.

    >>> from pathexpand.features.unit import Unit
    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> rows = np.eye(192)[:5]
    >>> unit = Unit.of(layer=1, kind="sae", hook_in="resid_pre", E=rows, D=rows)
    >>> feature_qk(read_checkpoint("two-layer"), UnitSet((unit,), "saes"), "L1H0", 1, 1).matrix
    Factored(5×64 @ 64×5)
    """
    own = parse_head(checkpoint.config, head)
    units = check_units(units, checkpoint, folded=folded)
    queries = _written(checkpoint, units, query_layer, own)
    keys = _written(checkpoint, units, key_layer, own)
    weights = head_weights(checkpoint, own.layer)
    W_Q = turned(checkpoint, own.layer, weights.W_Q[own.index], offset)
    scale = float(checkpoint.config.attn_scale[own.layer])
    left = queries.products(W_Q) / scale
    right = keys.products(weights.W_K[own.index])
    stop = own.layer + 1 if _stands_before(units, own.layer) else own.layer
    between = range(min(query_layer, key_layer) + 1, stop)
    claims = (
        "An entry is the score that one unit of activation of each makes, before the softmax; "
        "scores with biases, positions and errors are left out.",
        "A feature's own counterpart is itself in one layer, else the one that writes most alike.",
    )
    return FeatureCircuit(
        checkpoint.config.model_name,
        "QK",
        own,
        (query_layer, key_layer),
        offset,
        Factored(left, right.T),
        queries,
        keys,
        _spectrum(checkpoint, "QK", own, offset),
        (*claims, *_claims(checkpoint, units, query_layer, key_layer), *_cut(units, between)),
    )


# --- rows of features ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Directions:
    """What a layer's features write, or read, of the stream, norms folded in; cast up in pieces."""

    count: int
    parts: tuple[FeatureRows, ...]
    norms: tuple[Any, ...]  # of each part, the norm that it passes
    factors: tuple[float, ...]
    is_read: bool = False
    centred: bool = False

    def pieces(self) -> Iterator[tuple[slice, Array]]:
        """Yield rows (n, d_model), summed over the parts, each with the slice it stands at."""
        for at, first in self.parts[0].chunks():
            which = np.arange(at.start, at.stop)
            rows = self._passed(0, first)
            for n in range(1, len(self.parts)):
                rows = rows + self._passed(n, self.parts[n].at(which))
            yield at, rows

    def _passed(self, part: int, rows: Array) -> Array:
        norm, factor = self.norms[part], self.factors[part]
        if self.is_read:
            rows = rows - rows.mean(axis=1, keepdims=True) if self.centred else rows
            return back(norm, rows.T).T
        rows = through(norm, rows)
        return rows if factor == 1 else rows * factor

    def products(self, columns: Array) -> Array:
        """Multiply all rows by columns: (d_model, n) to (feature, n)."""
        out = np.empty((self.count, columns.shape[1]))
        for at, rows in self.pieces():
            np.matmul(rows, columns, out=out[at])
        return out


def _written(checkpoint: Checkpoint, units: UnitSet, layer: int, head: Head) -> _Directions:
    """Give what a layer's features write in front of a head."""
    unit, stop = units.unit(layer), _PLACES * head.layer
    subject = f"features of layer {layer} in front of {head}"
    if unit.hook_out not in _WRITTEN:
        raise PathExpandError(subject, wanted="what is written to the stream", got=unit.hook_out)
    places = [_PLACES * target + _WRITTEN[unit.hook_out] for target in unit.writes]
    before = [n for n, place in enumerate(places) if place < stop]
    if not before:
        wanted = f"features that are written in front of layer {head.layer}"
        raise PathExpandError(subject, wanted=wanted, got=f"{unit.hook_out} of layer {layer}")
    check_crossing(checkpoint, places[before[0]], stop)
    raw = unit.hook_out == "mlp_raw"
    blocks = [checkpoint.weights.block(unit.writes[n]) for n in before]
    return _Directions(
        unit.features,
        tuple(unit.W_dec[n] for n in before),
        tuple(block.ln2_post if raw else None for block in blocks),
        tuple(float(block.scale) if raw else 1.0 for block in blocks),
    )


def _read(checkpoint: Checkpoint, units: UnitSet, layer: int, head: Head) -> _Directions:
    """Give what a layer's features read behind a head."""
    unit, start = units.unit(layer), _PLACES * head.layer
    block = checkpoint.weights.block(layer)
    subject = f"features of layer {layer} behind {head}"
    if unit.hook_in not in _READ or (unit.kind == "sae" and unit.hook_in == "mlp_in"):
        raise PathExpandError(subject, wanted="features that read the stream", got=unit.hook_in)
    beside = block.parallel and unit.kind == "transcoder"
    place = _PLACES * layer + (0 if beside else _READ[unit.hook_in])
    if place <= start:
        wanted = f"features that are read behind the heads of layer {head.layer}"
        raise PathExpandError(subject, wanted=wanted, got=f"{unit.hook_in} of layer {layer}")
    check_crossing(checkpoint, start, place)
    norm = reading_norm(unit, block)
    centred = unit.scale_in == "layer_norm"
    return _Directions(unit.features, (unit.W_enc,), (norm,), (1.0,), True, centred)


def _nearest(rows: _Directions, columns: _Directions) -> Indices:
    """Give for each row the column that it has the largest cosine with: (feature,)."""
    found, best = np.zeros(rows.count, dtype=np.int64), np.full(rows.count, -np.inf)
    for other, directions in columns.pieces():
        lengths = np.sqrt(np.einsum("nd,nd->n", directions, directions))
        units = directions.T / np.where(lengths == 0, 1, lengths)  # (d_model, m)
        for at, block in _blocks(rows, max(_BLOCK // len(lengths), 1)):
            values = block @ units  # (n, m)
            top = values.max(axis=1)
            found[at] = np.where(top > best[at], values.argmax(axis=1) + other.start, found[at])
            best[at] = np.maximum(top, best[at])
    return found


def _blocks(rows: _Directions, step: int) -> Iterator[tuple[slice, Array]]:
    """Yield the pieces of some rows in blocks of at most `step`."""
    for at, piece in rows.pieces():
        for start in range(0, len(piece), step):
            block = piece[start : start + step]
            yield slice(at.start + start, at.start + start + len(block)), block


# --- what is said ----------------------------------------------------------------------------


def _spectrum(checkpoint: Checkpoint, kind: Kind, head: Head, offset: int | None) -> float | None:
    """Give the eigenvalues' summary of the head's own circuit, if there is one from weights."""
    try:
        circuit = ov(checkpoint, head) if kind == "OV" else qk(checkpoint, head, offset=offset)
        return circuit.copying_score()
    except PathExpandError:  # such as a norm of the stream, or a masked-token head, on its way
        return None


def _claims(checkpoint: Checkpoint, units: UnitSet, *layers: int) -> tuple[str, ...]:
    found = [units.unit(layer) for layer in layers]
    claims = list(norm_claims(checkpoint))
    if any(unit.scale_in != "none" for unit in found):
        claims.append("The scales that features put on their own input are left out, too.")
    if any(len(unit.writes) > 1 for unit in found):
        claims.append("A cross-layer feature counts with all that it writes in front of the head.")
    return tuple(claims)


def _stands_before(units: UnitSet, layer: int) -> bool:
    """Say whether a layer's SAE stands in front of its heads."""
    return units.units[0].hook_out == "resid_pre" and layer in units.layers


def _cut(units: UnitSet, between: range) -> tuple[str, ...]:
    """Say which SAEs stand for the stream on the way."""
    layers = ", ".join(str(layer) for layer in units.layers if layer in between)
    if units.kind != "saes" or not layers or not units.units[0].hook_out.startswith("resid"):
        return ()
    return (f"SAEs of layers {layers} stand on the way: the graph of a run is cut there.",)
