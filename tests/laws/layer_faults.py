"""Faults in norms, MLPs, biases and grouped heads, one each, as patches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pathexpand.engine import energy, prompt_tree, remainder, total, value
from pathexpand.frozen import (
    FrozenSource,
    FrozenStage,
    FrozenSum,
    MlpGroup,
    NeuronGroup,
    Unembed,
    freeze,
    network_of,
)
from pathexpand.model import forward as dense
from pathexpand.model.activation import GATES
from pathexpand.model.parts import Attention, Norm
from pathexpand.model.weights import Weights
from pathexpand.symbolic import Network

from .faults import Fault, Patch, bias_stays, groups_changed, layer_changed, on, swap

FREEZE: Any = sys.modules["pathexpand.frozen.freeze"]
UNEMBED: Any = sys.modules["pathexpand.frozen.unembed"]
LAYER = FREEZE._Layer


# --- what is frozen -------------------------------------------------------------------------------


def norms_changed(change: Callable[[Norm], Norm], *names: str) -> Callable[[Any], Any]:
    """Change some norms of a layer that is frozen."""

    def changed(layer: Any) -> Any:
        norms = {name: getattr(layer.block, name) for name in names}
        new = {name: change(norm) for name, norm in norms.items() if norm is not None}
        return replace(layer, block=replace(layer.block, **new))

    return changed


def without_weight(norm: Any, *rest: Any) -> Any:
    return BACK(None if norm is None else replace(norm, weight=None), *rest)


def without_mean(norm: Any, *rest: Any) -> Any:
    return BACK(None if norm is None else replace(norm, kind="rms"), *rest)


def through_without_mean(norm: Any, rows: Any) -> Any:
    return THROUGH(None if norm is None else replace(norm, kind="rms"), rows)


def without_bias(norm: Norm) -> Norm:
    return replace(norm, bias=None)


BACK, THROUGH = FREEZE.back, FREEZE.through


def constants_without(name: str) -> Patch:
    """Take one array away from the MLP whose constants are added up."""
    original = LAYER._mlp_bias
    return on(LAYER, "_mlp_bias", lambda self, mlp: original(self, replace(mlp, **{name: None})))


def gate_for_up(layer: Any) -> Any:
    mlp = layer.block.mlp
    return replace(layer, block=replace(layer.block, mlp=replace(mlp, W_in=mlp.W_gate)))


def scale_at_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LAYER._heads

    def broken(self: Any) -> Any:
        group, scale = original(self), self._scale("1")
        return replace(group, patterns=group.patterns / scale * scale[:, None])

    monkeypatch.setattr(LAYER, "_heads", broken)


def sources_changed(change: Callable[[FrozenSource, FrozenSum], FrozenSource]) -> Patch:
    """Freeze with every source changed."""

    def broken(*args: Any, **kwargs: Any) -> FrozenSum:
        frozen = freeze(*args, **kwargs)
        sources = tuple(change(each, frozen) for each in frozen.sources)
        return FrozenSum(sources, frozen.stages, frozen.streams, frozen.mask, frozen.constant)

    return swap(freeze, broken)


def emptied(label: str) -> Patch:
    """Let one source bring nothing."""
    return sources_changed(
        lambda each, _: replace(each, values=each.values * 0) if each.label == label else each
    )


def behind_the_mlp(each: FrozenSource, frozen: FrozenSum) -> FrozenSource:
    """Let the constants of attention be born behind the MLP of their layer."""
    is_late = each.label.endswith("bias") and not each.label.endswith("Mbias")
    return replace(each, boundary=each.boundary + 1) if is_late and each.boundary else each


def one_head_a_group(attn: Attention, shared: Any) -> Any:
    """Let a value bias count once for each key-value head."""
    out = PER_HEAD(attn, shared)
    if out.ndim == 2:
        first = np.arange(len(out)) % (len(out) // len(shared)) == 0
        return out * first[:, None]
    return out


PER_HEAD = FREEZE.per_head


def unpushed(self: Any) -> Any:
    """Let what an MLP wrote stay in front of the norm of the stream."""
    output = self.trace.mlp_out[self.row]
    return [(label, output if label.endswith("M") else rows) for label, rows in BORN(self)]


BORN = LAYER._born_with_mlp


def sequential(weights: Weights, config: Any, **options: Any) -> Network:
    blocks = tuple(replace(block, parallel=False) for block in weights.blocks)
    return network_of(replace(weights, blocks=blocks), config, **options)


# --- the way to the logits ------------------------------------------------------------------------


def unembed_changed(change: Callable[[Any], Any]) -> Patch:
    """Let the readout see a changed way to the logits."""
    original = Unembed.direction

    def broken(self: Any, position: int, columns: Any) -> Any:
        return original(change(self), position, columns)

    return on(Unembed, "direction", broken)


def final_norm_without_bias(unembed: Any) -> Any:
    weights = unembed.weights
    bare = replace(weights.final_norm, bias=None)
    return replace(unembed, weights=replace(weights, final_norm=bare))


# --- the stream's own norms -----------------------------------------------------------------------


def stays(suffix: Any, frozen: Any, boundary: int) -> Any:
    return value.Suffix(boundary, suffix.rows, suffix.vectors)


def longer_without_carry(frozen: Any, index: int, *rest: Any) -> Any:
    bare = tuple(replace(stage, carry=None) for stage in frozen.stages)
    cut = FrozenSum(frozen.sources, bare, frozen.streams, frozen.mask, frozen.constant)
    return LONGER(cut, index, *rest)


LONGER = total._longer


def streams_without_carry(frozen: Any) -> Any:
    bare = tuple(replace(stage, carry=None) for stage in frozen.stages)
    return STREAMS(FrozenSum(frozen.sources, bare, frozen.streams, frozen.mask, frozen.constant))


STREAMS = total.frozen_streams


# --- the search -----------------------------------------------------------------------------------


def kernel_without_gates(group: Any, seen: Any, *rest: Any, **options: Any) -> Any:
    if isinstance(group, NeuronGroup):
        group = replace(group, gates=np.ones_like(group.gates))
    return KERNEL(group, seen, *rest, **options)


KERNEL = energy._kernel


def neurons_without_gates(group: Any, seen: Any) -> Any:
    return NEURONS(replace(group, gates=np.ones_like(group.gates)), seen)


NEURONS = energy._through_neurons


def readers_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound a layer's neurons by what another layer's write."""
    original = prompt_tree.PromptTree.__init__

    def broken(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        places = [
            (stage, n)
            for stage, readers in enumerate(self.readers)
            for n, reader in enumerate(readers)
            if isinstance(reader.group, NeuronGroup)
        ]
        outputs = [self.readers[stage][n].group.W_out for stage, n in places]
        for (stage, n), other in zip(places, outputs[1:] + outputs[:1], strict=True):
            reader = self.readers[stage][n]
            read = type(reader)(replace(reader.group, W_out=other)).read
            monkeypatch.setattr(reader, "read", read, raising=False)

    monkeypatch.setattr(prompt_tree.PromptTree, "__init__", broken)


def neurons_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no neuron follow a listed suffix in the remainder."""
    original = remainder._Leaving.through

    def broken(self: Any, way: Any) -> Any:
        rows, vectors, allowed, number = original(self, way)
        keep = not isinstance(way.group, NeuronGroup)
        return rows, vectors, allowed & keep, number

    monkeypatch.setattr(remainder._Leaving, "through", broken)


def rows_forgotten(self: MlpGroup, rows: Any, vectors: Any, places: Any) -> Any:
    return MOVE_AT(self, (rows != 0).astype(rows.dtype), vectors, places)


MOVE_AT = MlpGroup.move_at


def last_piece_alone(self: Any, pieces: Any) -> Any:
    out = np.zeros((*pieces.shape[:-1], self.count))
    out[..., self.owner] = pieces
    return out


def move_by_length(self: NeuronGroup, rows: Any, vectors: Any, index: int) -> Any:
    moved, behind = NEURON_MOVE(self, rows, vectors, index)
    return moved, behind / np.linalg.norm(self.W_out[index].astype(float))


NEURON_MOVE = NeuronGroup.move


def totals_of_late_streams(frozen: Any, readout: Any) -> Any:
    """Let each component read the stream behind it."""
    original = total.frozen_streams(frozen)
    reads = total.functionals(frozen, readout)
    return {
        component: part
        for index, stage in enumerate(frozen.stages)
        for group in stage.groups
        for component, part in zip(
            group.components, group.worth(reads[index + 1], original[index + 1]), strict=True
        )
    }


# --- the dense pass -------------------------------------------------------------------------------


def dense_block(name: str, change: Callable[[Any], Any]) -> Patch:
    """Let one function of the dense pass see its first argument changed."""
    original = getattr(dense, name)

    def broken(first: Any, *rest: Any, **options: Any) -> Any:
        return original(change(first), *rest, **options)

    return on(dense, name, broken)


def tiled(name: str) -> Callable[[Attention], Attention]:
    """Give each query head the key-value heads in turn."""

    def changed(attn: Attention) -> Attention:
        heads = np.arange(len(attn.W_Q)) % len(attn.W_K)
        weight, bias = getattr(attn, f"W_{name}"), getattr(attn, f"b_{name}")
        own = {f"W_{name}": weight[heads], f"b_{name}": bias[heads]}
        return replace(attn, **own)  # type: ignore[arg-type]

    return changed


def tile(self: Attention) -> Any:
    return np.arange(len(self.W_Q)) % len(self.W_K)


def scaled_twice(norm: Any, stream: Any) -> Any:
    out, scale = NORMED(norm, stream)
    bias = 0 if norm.bias is None else norm.bias
    return (out - bias) * scale[..., None] + bias, scale**2


NORMED = dense.normed


def up_for_gate(mlp: Any) -> Any:
    return mlp if mlp.W_gate is None else replace(mlp, W_gate=mlp.W_in, b_gate=mlp.b_in)


def places_doubled(
    attn: Any, reads: Any, rotary: Any = None, places: Any = None, **options: Any
) -> Any:
    return SCORES(attn, reads, rotary, None if places is None else 2 * places, **options)


SCORES, SOFTMAX = dense.attention_scores, dense.masked_softmax


def other_gelu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GATES, "gelu", GATES["gelu_new"])


def no_window(attn: Any, config: Any, layer: int, *rest: Any) -> Any:
    return PATTERN(attn, replace(config, window=()), layer, *rest)


PATTERN = dense._pattern


def _bare(stage: FrozenStage, reads: Any) -> Any:
    return reads


ADDED = ("closure", "table closure", "exact cut", "totals", "top paths")

LAYER_FAULTS = (
    Fault("γ not folded into what reads", on(FREEZE, "back", without_weight), ADDED, on="norms"),
    Fault("a mean not taken off what is read", on(FREEZE, "back", without_mean), ADDED, on="norms"),
    Fault(
        "a mean not taken off what is written",
        on(FREEZE, "through", through_without_mean),
        ADDED,
        on="post",
    ),
    Fault("a mean not taken off the end", on(UNEMBED, "back", without_mean), ADDED, on="norms"),
    Fault(
        "β of attention's norm dropped",
        layer_changed("_attention_bias", norms_changed(without_bias, "ln1")),
        (*ADDED, "norm folding"),
        on="norms",
    ),
    Fault(
        "β of the MLP's norm dropped",
        layer_changed("_mlp_bias", norms_changed(without_bias, "ln2")),
        (*ADDED, "norm folding"),
        on="norms",
    ),
    Fault(
        "β of a norm behind dropped",
        layer_changed("_added", norms_changed(without_bias, "ln1_post", "ln2_post")),
        ADDED,
        on="post",
    ),
    Fault(
        "β of the stream's norm dropped",
        layer_changed("_added", norms_changed(without_bias, "ln1_after", "ln2_after")),
        ADDED,
        on="BERT",
    ),
    Fault(
        "an MLP's constants not carried through later components",
        swap(total.totals, bias_stays),
        ("closure", "totals", "exact cut"),
        on="norms",
    ),
    Fault(
        "constants of attention not read by the MLP",
        sources_changed(behind_the_mlp),
        ("closure", "totals", "exact cut"),
        on="norms",
    ),
    Fault("b_in dropped", constants_without("b_in"), ADDED, on="norms"),
    Fault("b_out dropped", constants_without("b_out"), ADDED, on="whole"),
    Fault("the scale of the query for the key's", scale_at_the_query, ADDED, on="norms"),
    Fault(
        "the gate of another position",
        groups_changed(lambda g: replace(g, gates=np.roll(g.gates, 1, axis=0)), NeuronGroup),
        ADDED,
        on="norms",
    ),
    Fault(
        "the order of neurons lost",
        groups_changed(lambda g: replace(g, W_out=g.W_out[::-1]), NeuronGroup),
        ADDED,
        on="gated",
    ),
    Fault("up for gate", layer_changed("_own", gate_for_up), ADDED, on="gated"),
    Fault(
        "the scale of a norm behind missing",
        on(LAYER, "_row_scale", lambda self, which: self.block.scale),
        ADDED,
        on="post",
    ),
    Fault(
        "the residual scale dropped",
        layer_changed("_row_scale", lambda each: replace(each, block=replace(each.block, scale=1))),
        ADDED,
        on="post",
    ),
    Fault("the scale of the embedding's norm dropped", emptied("pos"), ADDED, on="BERT"),
    Fault("token types forgotten", emptied("type"), ADDED, on="BERT"),
    Fault("what an embedding's norm adds forgotten", emptied("embedbias"), ADDED, on="BERT"),
    Fault(
        "an MLP's output in front of the stream's norm",
        on(LAYER, "_born_with_mlp", unpushed),
        ADDED,
        on="BERT written",
    ),
    Fault(
        "b_V once for each key-value head",
        on(FREEZE, "per_head", one_head_a_group),
        ADDED,
        on="groups",
    ),
    Fault("tile in place of repeat", on(Attention, "kv_of", property(tile)), ADDED, on="groups"),
    Fault(
        "a parallel block counted as sequential",
        swap(network_of, sequential),
        ("terms", "closure", "top paths"),
        on="parallel",
        rerun=True,
    ),
    Fault(
        "β of the final norm dropped",
        unembed_changed(final_norm_without_bias),
        ADDED,
        on="norms",
    ),
    Fault(
        "the final norm's scale of another position",
        unembed_changed(lambda each: replace(each, scale=np.roll(each.scale, 1))),
        ADDED,
        on="norms",
    ),
    Fault(
        "the gates of the head dropped",
        unembed_changed(lambda each: replace(each, gates=np.ones_like(each.gates))),
        ADDED,
        on="BERT",
    ),
    Fault(
        "the stream's norms skipped in values",
        on(value.Suffix, "at", stays),
        ("table closure", "top paths", "exact cut", "path logits"),
        on="BERT",
    ),
    Fault(
        "the stream's norms skipped in totals",
        swap(LONGER, longer_without_carry),
        ("closure", "totals", "exact cut"),
        on="BERT",
    ),
    Fault(
        "the stream's norms skipped in the remainder",
        on(FrozenStage, "past", _bare),
        ("table closure", "remainder", "exact cut"),
        on="BERT",
    ),
    Fault(
        "the stream's norms skipped in streams",
        swap(STREAMS, streams_without_carry),
        ("totals", "exact cut"),
        on="BERT",
    ),
    Fault(
        "the stream's norms skipped forward",
        on(value, "past", lambda frozen, stream, boundary, end: stream),
        ("path logits", "exact cut"),
        on="BERT",
    ),
    Fault(
        "the stream's norms skipped in the search",
        on(prompt_tree.PromptTree, "_at", lambda self, carried, boundary: carried.moved),
        ("top paths",),
        on="BERT",
    ),
    Fault(
        "energies not sent through the stream's norms",
        on(energy, "_carried", lambda carry, held: held),
        ("top paths",),
        on="stretched",
    ),
    Fault(
        "κ without gates", on(energy, "_kernel", kernel_without_gates), ("top paths",), on="loud"
    ),
    Fault(
        "energies through neurons without gates",
        on(energy, "_through_neurons", neurons_without_gates),
        ("top paths",),
        on="loud",
    ),
    Fault("neurons bounded by another layer's", readers_shifted, ("top paths",), on="norms"),
    Fault(
        "neurons missing from the remainder",
        neurons_left_out,
        ("table closure", "remainder", "exact cut"),
        on="norms",
    ),
    Fault(
        "rows forgotten by a whole MLP",
        on(MlpGroup, "move_at", rows_forgotten),
        ("top paths", "exact cut"),
        on="whole",
    ),
    Fault(
        "pieces of a suffix not added up",
        on(prompt_tree.Stacked, "by_suffix", last_piece_alone),
        ("top paths",),
        on="whole",
    ),
    Fault(
        "neurons scaled by what they write",
        on(NeuronGroup, "move", move_by_length),
        ("neuron gauge", "top paths"),
        on="norms",
    ),
    Fault(
        "components summed on the stream behind them",
        swap(total.component_totals, totals_of_late_streams),
        ("totals", "exact cut"),
        on="norms",
    ),
    # The dense pass itself: a wrong number that is still a sum of paths is seen by no path.
    Fault(
        "values tiled over heads",
        dense_block("_attention_output", tiled("V")),
        ("layer sums", "closure"),
        on="groups",
        rerun=True,
    ),
    Fault(
        "keys tiled over heads",
        dense_block("attention_scores", tiled("K")),
        ("attention rows",),
        on="groups",
        rerun=True,
    ),
    Fault(
        "rotary positions doubled",
        on(dense, "attention_scores", places_doubled),
        ("attention rows",),
        on="groups",
        rerun=True,
    ),
    Fault(
        "sinks forgotten",
        on(dense, "masked_softmax", lambda scores, seen, sinks=None: SOFTMAX(scores, seen)),
        ("attention rows",),
        on="parallel",
        rerun=True,
    ),
    Fault(
        "windows ignored",
        on(dense, "_pattern", no_window),
        ("attention rows",),
        on="parallel",
        rerun=True,
    ),
    Fault(
        "a parallel block run as sequential",
        dense_block("_layer", lambda block: replace(block, parallel=False)),
        ("layer sums",),
        on="parallel",
        rerun=True,
    ),
    Fault(
        "up for gate in the dense pass",
        dense_block("mlp_output", up_for_gate),
        ("layer sums",),
        on="gated",
        rerun=True,
    ),
    Fault(
        "the residual scale dropped in the dense pass",
        dense_block("_layer", lambda block: replace(block, scale=1.0)),
        ("layer sums",),
        on="post",
        rerun=True,
    ),
    Fault(
        "a variance for its root",
        on(dense, "normed", scaled_twice),
        ("layer sums",),
        on="norms",
        rerun=True,
    ),
    Fault(
        "eps forgotten",
        on(dense, "normed", lambda norm, stream: NORMED(replace(norm, eps=0.0), stream)),
        ("layer sums",),
        on="faint",
        rerun=True,
    ),
    Fault("another GELU", other_gelu, ("layer sums",), on="norms", rerun=True),
)
