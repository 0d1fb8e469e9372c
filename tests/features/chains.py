"""All chains of heads and skips, multiplied out one by one in plain numpy.

For models of tests.api.models: one norm before attention and one before the MLP, nothing behind.
Nothing of the engine is used but the dense pass's patterns and streams.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pathexpand.api import Run
from pathexpand.features.graph import Graph
from pathexpand.features.unit import UnitSet

Array = np.ndarray[Any, Any]
Chain = tuple[int, tuple[str, ...]]  # the boundary where it is born, and what it passes through


def linear(norm: Any, stream: Array, vectors: Array) -> Array:
    """Send vectors (position, d_model) through a norm held as the stream has it, but for β."""
    if norm is None:
        return vectors
    moved = stream - stream.mean(axis=1, keepdims=True)
    if norm.kind == "layer":
        vectors = vectors - vectors.mean(axis=1, keepdims=True)
    else:
        moved = stream
    scale = 1 / np.sqrt((moved**2).mean(axis=1, keepdims=True) + norm.eps)
    gamma = 1 if norm.weight is None else norm.weight
    return np.asarray(vectors * scale * gamma)


def beta(norm: Any) -> Any:
    return 0.0 if norm is None or norm.bias is None else norm.bias


def middle(run: Run, layer: int) -> Array:
    found = run.dense.layers[layer].middle
    assert found is not None
    return np.asarray(found[0])


def places(units: UnitSet) -> dict[int, int]:
    """Give the boundary at which each layer's features read: two to a layer."""
    hook = units.units[0].hook_in
    behind = {"resid_pre": 0, "resid_mid": 1, "mlp_in": 1, "resid_post": 2}[hook]
    return {layer: 2 * layer + behind for layer in units.layers}


def step(run: Run, units: UnitSet, boundary: int, stream: Array) -> dict[str, Array]:
    """Give what each component behind a boundary writes, reading a part of the stream."""
    layer, second = divmod(boundary, 2)
    block, streams = run.model.weights.blocks[layer], run.dense.residual
    if second:
        unit = units.unit(layer) if layer in units.layers else None
        if unit is None or unit.skip is None:
            return {}
        normed = unit.hook_in == "mlp_in"
        read = linear(block.ln2, middle(run, layer), stream) if normed else stream
        return {f"L{layer}M": read @ unit.skip}
    read = linear(block.ln1, streams[layer][0], stream)
    pattern = run.dense.layers[layer].pattern[0]  # (head, query, key)
    attn = block.attn
    return {
        f"L{layer}H{h}": pattern[h] @ read @ attn.W_V[attn.kv_of[h]] @ attn.W_O[h]
        for h in range(len(attn.W_Q))
    }


def spread(
    run: Run, units: UnitSet, born: dict[int, Array], until: int, *, behind: bool
) -> dict[Chain, Array]:
    """Give what every chain writes into the stream at a boundary: (position, d_model).

    Where SAEs read, the stream is cut. What is their own is born `behind`, all else before.
    """
    cuts = set(places(units).values()) if units.kind == "saes" else set()
    out: dict[Chain, Array] = {}
    for boundary in range(until + 1):
        if boundary:
            for (start, chain), stream in list(out.items()):
                for name, written in step(run, units, boundary - 1, stream).items():
                    out[start, (*chain, name)] = written
        if boundary in born and not behind:
            out[boundary, ()] = born[boundary]
        if boundary in cuts and boundary < until:
            out.clear()
        if boundary in born and behind and boundary < until:
            out[boundary, ()] = born[boundary]
    return out


def born(run: Run, units: UnitSet, node: Any) -> dict[int, Array]:
    """Say where a node is born, and as what: (position, d_model) at boundaries."""
    weights, (positions, width) = run.model.weights, run.dense.residual[0][0].shape
    zero = np.zeros((positions, width))
    if node.kind in ("token", "position"):
        W_pos = weights.W_pos
        assert W_pos is not None
        token = node.kind == "token"
        zero[node.position] = weights.W_E[node.token] if token else W_pos[node.position]
        return {0: zero}
    if node.kind == "feature":
        return feature_born(run, units, node)
    layer, what = int(node.label[1]), node.label[2:]
    block = weights.blocks[layer]
    if what == "bias":
        attn, total = block.attn, np.zeros(width)
        for h in range(len(attn.W_Q)):
            value = beta(block.ln1) @ attn.W_V[attn.kv_of[h]] if block.ln1 else 0
            value = value + (0 if attn.b_V is None else attn.b_V[attn.kv_of[h]])
            total += value @ attn.W_O[h]
        total += 0 if attn.b_O is None else attn.b_O
        return {2 * layer + 1: zero + total}
    if units.kind == "saes":
        unit = units.unit(layer)
        stream = sae_stream(run, unit.hook_in, layer)
        active = unit.encode(stream)
        if what == "b_dec":
            return {places(units)[layer]: zero + unit.b_dec}
        zero[node.position] = (stream - unit.decode(active))[node.position]
        return {places(units)[layer]: zero}
    if what == "b_dec":
        unit = units.unit(layer)
        skip = 0 if unit.skip is None or unit.hook_in != "mlp_in" else beta(block.ln2) @ unit.skip
        return {2 * layer + 2: zero + unit.b_dec + skip}
    zero[node.position] = missed(run, units, layer)[node.position]
    return {2 * layer + 2: zero}


def feature_born(run: Run, units: UnitSet, node: Any) -> dict[int, Array]:
    unit, out = units.unit(node.layer), {}
    for target in unit.writes:
        values = np.zeros(run.dense.residual[0][0].shape)
        values[node.position] = node.activation * unit.decoder([node.index], target)[0]
        at = places(units)[node.layer] if units.kind == "saes" else 2 * target + 2
        out[at] = values
    return out


def sae_stream(run: Run, hook: str, layer: int) -> Array:
    if hook == "resid_mid":
        return middle(run, layer)
    return np.asarray(run.dense.residual[layer + (hook == "resid_post")][0])


def unit_input(run: Run, units: UnitSet, layer: int) -> Array:
    block = run.model.weights.blocks[layer]
    if units.unit(layer).hook_in == "resid_mid":
        return middle(run, layer)
    stream = middle(run, layer)
    return linear(block.ln2, stream, stream) + beta(block.ln2)


def missed(run: Run, units: UnitSet, layer: int) -> Array:
    """Give what the units that write a layer's MLP output miss of it: (position, d_model)."""
    out = run.dense.layers[layer].mlp_out
    assert out is not None
    rest = np.array(out[0])
    for unit in units.into(layer):
        x = unit_input(run, units, unit.layer)
        rest -= unit.decode(unit.encode(x), x, layer)
    return rest


def brute(run: Run, units: UnitSet, made: Graph, source: int, target: int) -> dict[Chain, float]:
    """Give the value of every chain from a node to a feature or a logit."""
    node, reader, weights = made.nodes[source], made.nodes[target], run.model.weights
    if reader.kind == "logit":
        until, stream = 2 * len(weights.blocks), run.dense.residual[-1][0]
        column = weights.unembed(np.array([reader.token]))[:, 0] - weights.mean_unembed
        norm = weights.final_norm
    else:
        until = places(units)[reader.layer]
        unit = units.unit(reader.layer)
        normed = unit.hook_in == "mlp_in"
        norm = weights.blocks[reader.layer].ln2 if normed else None
        stream = middle(run, reader.layer) if normed else np.zeros_like(run.dense.residual[0][0])
        column = unit.encoder([reader.index])[0]
    own = node.kind in ("feature", "error") or node.label.endswith("b_dec")
    behind = units.kind == "saes" and own
    chains = spread(run, units, born(run, units, node), until, behind=behind)
    return {
        chain: float(linear(norm, stream, written)[reader.position] @ column)
        for chain, written in chains.items()
    }
