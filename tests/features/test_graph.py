"""Graphs close: every feature and logit is the sum of what it reads, whatever the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pathexpand.api import Run
from pathexpand.errors import ModelError
from pathexpand.features import graph as graph_module
from pathexpand.features import replacement as replacement_module
from pathexpand.features.graph import Graph, Logits
from pathexpand.features.replacement import Replacement
from pathexpand.features.unit import Unit, UnitSet
from tests.api.models import small
from tests.features.chains import missed
from tests.features.graphs import (
    PROMPT,
    by_key,
    changed,
    family,
    graph_of,
    gross,
    key,
    random_units,
)
from tests.reference import test_families as families

Array = np.ndarray[Any, Any]
LOOSEST = 1e-9  # the largest bound, over what a row adds up to by size

KINDS: dict[str, dict[str, Any]] = {
    "behind the norm": {},
    "skip": {"skip": True, "activation": "topk", "k": 5, "topk_rule": "topk"},
    "cross": {"clt": True, "activation": "jumprelu"},
    "cross, stream, skip": {"clt": True, "hook": "resid_mid", "skip": True},
    "without weight": {"hook": "ln2_normalized", "skip": True, "activation": "identity"},
    "before the post norm": {"hook_out": "mlp_raw", "skip": True, "clt": True},
    "own norm": {"scale_in": "layer_norm", "pre_bias": True},
    "stream before": {"kind": "sae", "hook": "resid_pre", "activation": "groupmax", "k": 6},
    "stream between": {"kind": "sae", "hook": "resid_mid", "gated": True},
    "stream behind": {"kind": "sae", "hook": "resid_post", "pre_bias": True},
    "stream, scaled": {
        "kind": "sae",
        "hook": "resid_pre",
        "layers": [1],
        "scale_in": "layer_norm",
        "unscaled": True,
    },
    "stream, rescaled": {
        "kind": "sae",
        "hook": "resid_post",
        "layers": [0],
        "scale_in": "constant_norm_rescale",
        "unscaled": True,
    },
}


def units_of(run: Run, kind: str, features: int = 18) -> UnitSet:
    options, rng = dict(KINDS[kind]), np.random.default_rng(11)
    if options.pop("gated", False):
        gates = {"gate_gain": rng.uniform(1, 2, features), "gate_bias": rng.normal(size=features)}
        options |= {"activation": "gated", **gates}
    if options.pop("pre_bias", False):
        options["pre_bias"] = rng.normal(size=run.dense.residual[0].shape[2])
    return random_units(run, features=features, **options)


def closes(made: Graph, features: bool = True) -> bool:
    """Say whether it closes as it should: with bounds that mean something, and with features."""
    target, kinds = made.is_target, {node.kind for node in made.nodes}
    bound = made.gap_bound[target]
    assert not features or "feature" in kinds
    assert {"logit", "token"} <= kinds
    assert (bound > 0).all()
    assert (bound <= LOOSEST * gross(made)[target]).all()
    assert (made.gap == np.where(target, made.gap, 0)).all()
    off = abs(made.values - made.weights.sum(axis=1) - made.remainder)
    return made.closes and bool((off <= made.gap_bound).all())


def same_graphs(one: Graph, other: Graph, *, near: float = 1e-12) -> bool:
    """Say whether the nodes of one are nodes of the other, with the same edges."""
    numbers = by_key(other)
    at = [numbers[key(node)] for node in one.nodes]
    size = gross(one).max()
    return bool(abs(one.weights - other.weights[np.ix_(at, at)]).max() <= near * size)


# --- architectures ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", families.OWN)
def test_every_architecture_closes(name: str, tmp_path: Path) -> None:
    run = family(name, tmp_path)
    parallel = run.model.weights.blocks[0].parallel
    for number, kind in enumerate(KINDS):
        if kind == "stream between" and parallel:
            continue
        assert closes(graph_of(run, units_of(run, kind), number % 3)), kind


MODELS: dict[str, dict[str, Any]] = {
    "layer norm": {},
    "alibi": {"positional_embedding_type": "alibi"},
    "beside the stream": {"positional_embedding_type": "shortformer"},
    "relu": {"act_fn": "relu"},
}


@pytest.mark.parametrize("zero", [0, 1, 2, len(PROMPT)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_small_models_close(model: str, kind: str, zero: int) -> None:
    run = small(3, sizes={"n_layers": 3}, **MODELS[model]).run(PROMPT)
    made = graph_of(run, units_of(run, kind), zero)
    assert closes(made, features=zero < len(PROMPT))
    early = [n for n in made.nodes if n.kind == "feature" and n.position < zero]
    assert not early


def test_parallel_blocks_close() -> None:
    run = small(4, sizes={"n_layers": 3}, parallel_attn_mlp=True).run(PROMPT)
    for number, kind in enumerate(KINDS):
        if kind != "stream between":
            assert closes(graph_of(run, units_of(run, kind), number % 3)), kind


def test_an_earlier_position_and_other_logits_close() -> None:
    run = small(5).run(PROMPT)
    every = Logits(np.arange(13), np.full(13, 1 / 13))
    made = graph_of(run, units_of(run, "cross"), logits=every, position=3)
    assert closes(made)
    logits = made.values[[node.kind == "logit" for node in made.nodes]]
    own = run.logits(3)
    assert np.allclose(logits, own - own.mean(), rtol=1e-12, atol=1e-12)
    late = [node.position is not None and node.position > 3 for node in made.nodes]
    rows = [node.kind == "logit" for node in made.nodes]
    assert not made.weights[np.ix_(rows, late)].any()


def test_values_are_what_the_unit_says_and_every_active_feature_is_a_node() -> None:
    run = small(6).run(PROMPT)
    units = units_of(run, "cross, stream, skip")
    made = graph_of(run, units)
    for unit in units:
        middle = run.dense.layers[unit.layer].middle
        assert middle is not None
        pre = middle[0] @ unit.E.T + unit.b_enc  # (position, feature)
        nodes = {
            (node.position, node.index): node.value
            for node in made.nodes
            if node.kind == "feature" and node.layer == unit.layer
        }
        assert set(nodes) == set(zip(*map(np.ndarray.tolist, np.nonzero(pre > 0)), strict=True))
        for place, value in nodes.items():
            assert value == pytest.approx(pre[place], rel=1e-12)


def test_errors_are_what_the_units_miss() -> None:
    """The edges of an error are those of the MLP's output less all that units write there."""
    run = small(6).run(PROMPT)
    for kind in ("behind the norm", "cross, stream, skip", "cross"):
        units = units_of(run, kind)
        assert error_off(run, units) < 1e-12


def error_off(run: Run, units: UnitSet) -> float:
    """Compare the error nodes of a graph's run with their definition."""
    made = graph_of(run, units).made
    assert made is not None
    apart = 0.0
    for layer in units.layers:
        found = np.zeros_like(run.dense.residual[0][0])
        for born in (each for at in made.born for each in at):
            for n, column in enumerate(born.columns):
                node = made.nodes[column]
                if node.kind == "error" and node.layer == layer:
                    found[born.positions[n]] += born.vectors[n]
        apart = max(apart, abs(found - missed(run, units, layer)).max())
    return apart


# --- units with known answers -----------------------------------------------------------------


def neurons(run: Run) -> UnitSet:
    """Give transcoders that are the ReLU MLPs of a model."""
    units = []
    for layer, block in enumerate(run.model.weights.blocks):
        mlp = block.mlp
        assert mlp is not None and mlp.act == "relu"
        parts = {"E": mlp.W_in.T, "D": mlp.W_out, "b_enc": mlp.b_in, "b_dec": mlp.b_out}
        units.append(Unit.of(layer=layer, kind="transcoder", hook_in="mlp_in", **parts))
    return UnitSet(tuple(units), "transcoders")


def test_a_transcoder_that_is_the_mlp_misses_nothing() -> None:
    run = small(7, sizes={"n_layers": 3}, act_fn="relu").run(PROMPT)
    made = graph_of(run, neurons(run))
    assert closes(made)
    errors = [node.kind == "error" for node in made.nodes]
    assert abs(made.weights[:, errors]).max(initial=0) <= 1e-13 * gross(made).max()
    # At a position without features all of the MLP is one node.
    zeroed = graph_of(run, neurons(run), 1)
    whole = [n for n, node in enumerate(zeroed.nodes) if node.kind == "mlp"]
    assert closes(zeroed)
    assert [(zeroed.nodes[n].layer, zeroed.nodes[n].position) for n in whole] == [
        (layer, 0) for layer in range(3)
    ]
    assert abs(zeroed.weights[:, whole]).max() > 1e-3 * gross(zeroed).max()


def test_its_features_are_the_neurons() -> None:
    """With attention held fixed, a neuron's activation moves later ones as its column says."""
    run = small(7, sizes={"n_layers": 3}, act_fn="relu").run(PROMPT)
    made = graph_of(run, neurons(run))
    rng = np.random.default_rng(0)
    some = [n for n, node in enumerate(made.nodes) if node.kind == "feature" and node.layer == 0]
    for source in rng.choice(some, 6, replace=False):
        node = made.nodes[source]
        column = doubled(run, made, node)
        assert abs(made.weights[:, source] - column).max() <= 1e-12 * gross(made).max()
        assert abs(column).max() > 0


def doubled(run: Run, made: Graph, node: Any) -> Array:
    """Double a neuron in our own forward pass with all else held fixed: (node,) of the changes."""
    weights, dense = run.model.weights, run.dense
    moved = np.zeros_like(dense.residual[0][0])
    pre: dict[int, Array] = {}
    for layer, block in enumerate(weights.blocks):
        trace, attn, mlp = dense.layers[layer], block.attn, block.mlp
        assert trace.scale1 is not None and trace.scale2 is not None and mlp is not None
        assert block.ln1 is not None and block.ln2 is not None
        read = (moved - moved.mean(1, keepdims=True)) * trace.scale1[0][:, None]
        read = read * block.ln1.weight
        for head in range(len(attn.W_Q)):
            moved = moved + trace.pattern[0, head] @ read @ attn.W_V[head] @ attn.W_O[head]
        read = (moved - moved.mean(1, keepdims=True)) * trace.scale2[0][:, None] * block.ln2.weight
        pre[layer] = read @ mlp.W_in
        if layer == node.layer:
            moved = moved.copy()
            moved[node.position] += node.activation * mlp.W_out[node.index]
    out = np.zeros(len(made))
    last, norm = dense.residual[-1][0], weights.final_norm
    assert norm is not None and norm.weight is not None
    scale = 1 / np.sqrt(last.var(axis=1, keepdims=True) + norm.eps)
    logits = (moved - moved.mean(1, keepdims=True)) * scale * norm.weight @ weights.W_U
    for n, each in enumerate(made.nodes):
        if each.kind == "feature":
            out[n] = pre[each.layer][each.position, each.index]
        elif each.kind == "logit":
            out[n] = logits[each.position, each.token] - logits[each.position].mean()
    return out


@pytest.mark.parametrize("hook", ["resid_pre", "resid_mid", "resid_post"])
def test_an_identity_sae_has_the_stream_itself_as_its_features(hook: Any) -> None:
    run = small(8).run(PROMPT)
    width, layer = 7, 1
    unit = Unit.of(
        layer=layer,
        kind="sae",
        hook_in=hook,
        E=np.eye(width),
        D=np.eye(width),
        activation="identity",
    )
    made = graph_of(run, UnitSet((unit,), "saes"))
    assert closes(made)
    assert not any(node.kind == "error" for node in made.nodes)
    middle = run.dense.layers[layer].middle
    stream = {"resid_pre": run.dense.residual[1], "resid_post": run.dense.residual[2]}
    values = middle if hook == "resid_mid" else stream[hook]
    assert values is not None
    features = [n for n, node in enumerate(made.nodes) if node.kind == "feature"]
    assert len(features) == values[0].size
    assert np.array_equal(made.values[features], values[0].ravel())
    # All that reaches a logit from before the cut comes through these.
    logits = [n for n, node in enumerate(made.nodes) if node.kind == "logit"]
    before = [n for n, node in enumerate(made.nodes) if node.kind in ("token", "position")]
    assert not made.weights[np.ix_(logits, before)].any()
    assert made.weights[np.ix_(features, before)].any()


def test_where_no_feature_is_on_errors_carry_everything() -> None:
    run = small(9).run(PROMPT)
    units = units_of(run, "behind the norm")
    dead = replace(
        units, units=tuple(replace(unit, b_enc=unit.b_enc - 1e6) for unit in units.units)
    )
    made = graph_of(run, dead)
    assert closes(made, features=False)
    assert not any(node.kind == "feature" for node in made.nodes)
    # A graph of the MLPs whole has the same edges: no unit, so no b_dec either.
    bare = [unit for unit in dead.units if unit.layer == 0]
    half = graph_of(run, replace(dead, units=tuple(bare)))
    assert closes(half, features=False)
    whole = half.weights[:, [n.kind == "mlp" for n in half.nodes]].sum(axis=1)[-3:]
    split = made.weights[:, [n.label in ("L1E", "L1b_dec") for n in made.nodes]].sum(axis=1)[-3:]
    assert np.allclose(whole, split, rtol=1e-12)


def test_a_cross_layer_transcoder_of_one_target_is_a_plain_one() -> None:
    run = small(10, sizes={"n_layers": 3}).run(PROMPT)
    cross = units_of(run, "cross")
    rows = {unit.layer: np.arange(unit.features) for unit in cross}
    silent = tuple(
        Unit.of(
            layer=unit.layer,
            kind="transcoder",
            hook_in="mlp_in",
            E=unit.E,
            D=[unit.decoder(rows[unit.layer], to) * (to == unit.layer) for to in unit.writes],
            writes=unit.writes,
            b_enc=unit.b_enc,
            b_dec=unit.b_dec,
            activation="jumprelu",
            threshold=unit.threshold,
        )
        for unit in cross
    )
    plain = tuple(replace(unit, W_dec=unit.W_dec[:1], writes=unit.writes[:1]) for unit in cross)
    ours = graph_of(run, UnitSet(silent, "clt"))
    wanted = graph_of(run, UnitSet(plain, "transcoders"))
    assert len(ours) == len(wanted) and same_graphs(ours, wanted)
    assert not same_graphs(graph_of(run, cross), wanted)


def test_a_skip_of_zeros_is_none() -> None:
    run = small(11).run(PROMPT)
    units = units_of(run, "cross, stream, skip")
    none = replace(units, units=tuple(replace(unit, skip=None) for unit in units.units))
    zeros = replace(
        units,
        units=tuple(replace(unit, skip=np.zeros((7, 7))) for unit in units.units),
    )
    wanted = graph_of(run, none)
    assert same_graphs(graph_of(run, zeros), wanted)
    assert not same_graphs(graph_of(run, units), wanted)


# --- changes that say how the graph has to change ---------------------------------------------


def test_features_in_another_order_are_the_same_graph() -> None:
    run = small(12, sizes={"n_layers": 3}).run(PROMPT)
    units = units_of(run, "cross")
    order = np.random.default_rng(0).permutation(18)
    other = graph_of(run, UnitSet(tuple(picked(unit, order) for unit in units), "clt"))
    wanted = graph_of(run, units)
    renamed = replace(
        other,
        nodes=tuple(
            replace(node, index=int(order[node.index]), label=f"L{node.layer}F{order[node.index]}")
            if node.index is not None
            else node
            for node in other.nodes
        ),
    )
    assert same_graphs(renamed, wanted)
    with pytest.raises((AssertionError, KeyError)):
        assert same_graphs(other, wanted)


def picked(unit: Unit, rows: Array, write: float | Array = 1.0, read: float | Array = 1.0) -> Unit:
    """Give a unit with some features, what they read and write each multiplied."""
    read, write = np.broadcast_to(read, rows.shape), np.broadcast_to(write, rows.shape)
    threshold = None if unit.threshold is None else unit.threshold[rows] * read
    return Unit.of(
        layer=unit.layer,
        kind=unit.kind,
        hook_in=unit.hook_in,
        E=unit.encoder(rows) * read[:, None],
        D=[unit.decoder(rows, to) * write[:, None] for to in unit.writes],
        writes=unit.writes,
        b_enc=unit.b_enc[rows] * read,
        b_dec=unit.b_dec,
        activation=unit.activation,
        threshold=threshold,
        skip=unit.skip,
    )


@pytest.mark.parametrize("kind", ["cross", "stream behind"])
def test_a_feature_in_other_units_changes_what_it_reads_alone(kind: str) -> None:
    run = small(13, sizes={"n_layers": 3}).run(PROMPT)
    units = random_units(
        run,
        features=18,
        **(
            {"clt": True, "activation": "jumprelu"}
            if kind == "cross"
            else {"kind": "sae", "hook": "resid_post"}
        ),
    )
    wanted = graph_of(run, units)
    chosen = next(node for node in wanted.nodes if node.kind == "feature" and node.layer == 1)
    factor = np.ones(18)
    factor[chosen.index] = 2.5
    every = np.arange(18)
    scaled = replace(
        units,
        units=tuple(
            picked(unit, every, 1 / factor, factor) if unit.layer == 1 else unit for unit in units
        ),
    )
    found = graph_of(run, scaled)
    mine = [node.layer == 1 and node.index == chosen.index for node in wanted.nodes]
    rows = np.where(mine, 2.5, 1.0)
    assert same_graphs(replace(wanted, weights=wanted.weights * rows[:, None]), found)
    assert not same_graphs(wanted, found)


def test_two_halves_of_a_feature_read_all_and_write_half() -> None:
    run = small(14, sizes={"n_layers": 3}).run(PROMPT)
    units = random_units(run, features=18, clt=True)
    wanted = graph_of(run, units)
    chosen = next(node for node in wanted.nodes if node.kind == "feature" and node.layer == 0)
    rows, write = np.append(np.arange(18), chosen.index), np.ones(19)
    write[[chosen.index, 18]] = 0.5
    first, *rest = units.units
    wide = tuple(
        picked(unit, np.append(np.arange(18), 17), np.append(np.ones(18), 0)) for unit in rest
    )
    found = graph_of(run, UnitSet((picked(first, rows, write), *wide), "clt"))
    mine = [node.layer == 0 and node.index == chosen.index for node in wanted.nodes]
    halves = np.where(mine, 0.5, 1.0)
    assert same_graphs(replace(wanted, weights=wanted.weights * halves), found)
    numbers = by_key(found)
    for node in (each for each, own in zip(wanted.nodes, mine, strict=True) if own):
        other = replace(node, index=18, label="L0F18")
        one, two = numbers[key(node)], numbers[key(other)]
        assert np.allclose(found.weights[:, one], found.weights[:, two], rtol=1e-12, atol=1e-15)
        assert np.allclose(found.weights[one], found.weights[two], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", ["skip", "cross", "stream between"])
def test_a_token_that_nobody_attends_to_adds_nothing(kind: str) -> None:
    model = small(15, sizes={"n_layers": 3})
    run, longer = model.run(PROMPT), model.run([*PROMPT, 8])
    last = len(PROMPT) - 1
    wanted = graph_of(run, units_of(run, kind), position=last)
    found = graph_of(longer, units_of(longer, kind), position=last)
    assert len(found) > len(wanted)
    assert same_graphs(wanted, found, near=1e-11)
    new = np.array([node.position == last + 1 for node in found.nodes])
    assert not found.weights[np.ix_(~new, new)].any()


# --- engines that are wrong -------------------------------------------------------------------


def no_constant(label: str) -> Callable[[pytest.MonkeyPatch], None]:
    def fault(patch: pytest.MonkeyPatch) -> None:
        right = replacement_module._Builder.one

        def one(self: Any, name: str, values: Any, layer: int | None = None) -> None:
            if not name.endswith(label):
                right(self, name, values, layer)

        patch.setattr(replacement_module._Builder, "one", one)

    return fault


def no_positions(patch: pytest.MonkeyPatch) -> None:
    right = replacement_module._Builder.each

    def each(self: Any, kind: str, *given: Any) -> None:
        if kind != "position":
            right(self, kind, *given)

    patch.setattr(replacement_module._Builder, "each", each)


def readers_without(constants: bool) -> Callable[[pytest.MonkeyPatch], None]:
    def fault(patch: pytest.MonkeyPatch) -> None:
        right = graph_module.feature_readers

        def readers(made: Any, unit: Any, *given: Any) -> Any:
            own = right(made, unit, *given)
            if constants:
                return replace(own, constants=0 * own.constants)
            return replace(own, constants=unit.constants(given[1]))  # the norm's bias is dropped

        patch.setattr(graph_module, "feature_readers", readers)

    return fault


def no_norm_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replacement_module._LayerBuilder, "_norm_biases", lambda self: None)


def unnormed_output(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        replacement_module._LayerBuilder,
        "_out",
        lambda self, rows: (rows, np.ones(self.made.positions)),
    )


def born_too_early(patch: pytest.MonkeyPatch) -> None:
    """Errors and features are born in front of their own layer's heads."""

    def put(self: Any, positions: Any, columns: Any, vectors: Any) -> None:
        rows, scale = self._out(vectors)
        born = replacement_module.Born(positions, columns, rows * scale[positions][:, None])
        self.made.born[-3].append(born)

    patch.setattr(replacement_module._LayerBuilder, "_put", put)


def no_skip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replacement_module._LayerBuilder, "_skip", lambda self: ())


def no_scale(patch: pytest.MonkeyPatch) -> None:
    right = graph_module.back
    patch.setattr(graph_module, "back", lambda norm, rows: 1.01 * right(norm, rows))


def through_cuts(patch: pytest.MonkeyPatch) -> None:
    right = Replacement.back

    def back(self: Replacement, readers: Any) -> Any:
        whole = replacement_module.FrozenStage(())
        self.stages = [stage or whole for stage in self.stages]
        return right(self, readers)

    patch.setattr(Replacement, "back", back)


def one_head_less(patch: pytest.MonkeyPatch) -> None:
    right = replacement_module._Builder.past

    def past(self: Any, stage: Any, size: Any, steps: int) -> None:
        if stage is not None and stage.groups and len(self.made.stages) == 2:
            stage = replacement_module.FrozenStage((), stage.carry)
        right(self, stage, size, steps)

    patch.setattr(replacement_module._Builder, "past", past)


@pytest.mark.parametrize(
    ("fault", "kind", "name"),
    [
        (no_constant("L0bias"), "behind the norm", "gpt2"),
        (no_constant("b_dec"), "stream behind", "gpt2"),
        (no_constant("L1Mbias"), "before the post norm", "bert"),
        (no_positions, "cross", "gpt2"),
        (readers_without(True), "skip", "llama"),
        (readers_without(False), "cross", "gpt2"),
        (no_norm_behind, "behind the norm", "bert"),
        (unnormed_output, "before the post norm", "olmo2"),
        (unnormed_output, "before the post norm", "gemma2"),
        (born_too_early, "cross", "gpt2"),
        (born_too_early, "behind the norm", "llama"),
        (no_skip, "skip", "gemma2"),
        (no_skip, "cross, stream, skip", "gpt_neox-sequential"),
        (no_scale, "behind the norm", "gpt_neox"),
        (through_cuts, "stream behind", "gpt2"),
        (through_cuts, "stream between", "llama"),
        (one_head_less, "cross", "gpt2"),
    ],
)
def test_a_broken_engine_does_not_close(
    fault: Callable[[pytest.MonkeyPatch], None],
    kind: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    run = family(name, tmp_path)
    units = units_of(run, kind)
    assert graph_of(run, units).closes
    fault(monkeypatch)
    assert not graph_of(run, units).closes


def test_decoders_into_the_wrong_layer_are_seen_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """These close, for the error takes up all that is wrong: so errors are checked alone."""
    run = small(6).run(PROMPT)
    units = units_of(run, "cross")
    assert error_off(run, units) < 1e-12
    right = replacement_module._decoded

    def shifted(unit: Any, active: Any, target: int) -> Any:
        return right(unit, active, unit.writes[-1] - (target - unit.layer))

    monkeypatch.setattr(replacement_module, "_decoded", shifted)
    assert graph_of(run, units).closes
    assert error_off(run, units) > 1e-3


def test_what_is_no_sum_over_the_stream_is_refused() -> None:
    run = small(16).run(PROMPT)
    for hook in ("mlp_out", "attn_out", "mlp_in"):
        units = random_units(run, kind="sae", hook=hook)
        with pytest.raises(ModelError, match=f"got SAEs on {hook}") as caught:
            graph_of(run, units)
        assert len(str(caught.value).splitlines()) == 1


def test_changed_parts_are_seen() -> None:
    """The fixtures tell apart: another bias, another graph."""
    run = small(17).run(PROMPT)
    units = units_of(run, "behind the norm")
    other = changed(units, 0, b_dec=2 * units.units[0].b_dec)
    assert not same_graphs(graph_of(run, units), graph_of(run, other))
