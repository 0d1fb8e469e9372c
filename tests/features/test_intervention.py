"""Interventions against the graph, a frozen pass written out here, and changed models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.api import Model
from pathexpand.errors import NotationError, PathExpandError
from pathexpand.features import intervention
from pathexpand.features.graph import Attribution, Graph, Logits, name_of
from pathexpand.features.influence import prune
from pathexpand.features.intervention import (
    Effect,
    FeatureChange,
    HeadChange,
    PathChange,
    frozen_effect,
    linear_effect,
    rerun,
)
from pathexpand.features.replacement import Replacement
from pathexpand.features.rows import FeatureRows
from pathexpand.features.unit import Unit, UnitSet
from pathexpand.model.forward import final_logits, forward
from tests.api.models import SIZES, small, tensors
from tests.features.graphs import PROMPT, family, graph_of, gross, random_units

Array = np.ndarray[Any, Any]
DEEP = {"n_layers": 3}


def _units(run: Any, **rest: Any) -> Any:
    return random_units(run, features=7, **rest)


def _small(seed: int, zero: int = 0, **rest: Any) -> Graph:
    run = small(seed, sizes=DEEP).run(PROMPT)
    return graph_of(run, _units(run, seed=seed, **rest), zero)


def _of_family(name: str, place: Path, **rest: Any) -> Graph:
    run = family(name, place)
    return graph_of(run, _units(run, **rest))


CASES: dict[str, Callable[[Path], Graph]] = {
    "plain": lambda place: _small(0),
    "skip, start left out": lambda place: _small(1, zero=1, hook="resid_mid", skip=True),
    "cross-layer, skip": lambda place: _small(2, skip=True, clt=True, activation="jumprelu"),
    "top-k that may be negative": lambda place: _small(3, activation="topk", k=3, topk_rule="topk"),
    "sae before a layer": lambda place: _small(4, kind="sae", hook="resid_pre", layers=[1]),
    "saes in each layer": lambda place: _small(5, kind="sae", hook="resid_mid"),
    "sae with a scale": lambda place: _small(
        6, kind="sae", hook="resid_post", layers=[0, 1], scale_in="layer_norm", unscaled=True
    ),
    **{
        name: lambda place, name=name: _of_family(name, place, skip=True)  # type: ignore[misc]
        for name in ("llama", "gemma2", "olmo2", "bert", "gpt_neox", "qwen3")
    },
    "gemma2, raw": lambda place: _of_family("gemma2", place, clt=True, hook_out="mlp_raw"),
}


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return CASES[request.param](tmp_path_factory.mktemp("model"))


def _some_features(made: Graph, count: int = 5) -> list[int]:
    features = [n for n, node in enumerate(made.nodes) if node.kind == "feature"]
    rng = np.random.default_rng(11)
    return sorted(rng.choice(features, min(count, len(features)), replace=False).tolist())


def _targets(made: Graph) -> Array:
    return np.flatnonzero(made.is_target)


def _miss(made: Graph, effect: Effect, wanted: Array) -> float:
    """Give how far an effect is off wanted changes of the graph's targets, over their sizes."""
    targets = _targets(made)
    assert [name_of(node) for node in effect.nodes] == [name_of(made.nodes[n]) for n in targets]
    return float((abs(effect.change - wanted) / gross(made)[targets]).max())


def _linear(made: Graph, source: int, factor: float) -> Array:
    """Solve for what features do that follow what they read: (I − A′)⁻¹ A e (factor − 1)."""
    targets = _targets(made)
    values = np.where(made.is_target, made.values, np.inf)
    values[[n for n, node in enumerate(made.nodes) if node.kind == "logit"]] = np.inf
    follow = made.weights / values  # of a source's move (target, source)
    follow[:, source] = 0
    first = (factor - 1) * made.weights[:, source]
    return np.asarray(np.linalg.solve(np.eye(len(made)) - follow, first)[targets])


# --- frozen ----------------------------------------------------------------------------------


def test_doubling_a_feature_moves_each_target_by_its_edge(made: Graph) -> None:
    for source in _some_features(made):
        name = name_of(made.nodes[source])
        wanted = made.weights[_targets(made), source]
        assert _miss(made, frozen_effect(made, FeatureChange(name, 2)), wanted) < 1e-12
        removed = frozen_effect(made, FeatureChange(name, 0))
        assert _miss(made, removed, -wanted) < 1e-12


def test_features_that_follow_solve_the_graph(made: Graph) -> None:
    for source in _some_features(made):
        change = FeatureChange(name_of(made.nodes[source]), 1.5)
        wanted = _linear(made, source, 1.5)
        scale = max(1.0, float((abs(wanted) / gross(made)[_targets(made)]).max()))
        assert _miss(made, linear_effect(made, change), wanted) < 1e-11 * scale


def test_changes_add_up_and_hold_what_they_set(made: Graph) -> None:
    one, other = _some_features(made, 2)
    names = [name_of(made.nodes[n]) for n in (one, other)]
    changes = [FeatureChange(names[0], 3), FeatureChange(names[1], 0)]
    targets = _targets(made)
    wanted = 2 * made.weights[targets, one] - made.weights[targets, other]
    assert _miss(made, frozen_effect(made, changes), wanted) < 1e-12
    # What the first does to the second goes no further: the second is held.
    alone = linear_effect(made, changes[1]).change
    cut = linear_effect(made, changes).change - alone
    follow = made.weights / np.where(made.is_target, made.values, np.inf)
    follow[:, [n for n, node in enumerate(made.nodes) if node.kind == "logit"]] = 0
    follow[:, [one, other]] = 0
    solved = np.linalg.solve(np.eye(len(made)) - follow, 2 * made.weights[:, one])[targets]
    sizes = gross(made)[targets] + abs(solved)
    assert (abs(cut - solved) / sizes).max() < 1e-10


def test_runs_without_weights_and_pruned_graphs_give_the_same(made: Graph) -> None:
    assert made.made is not None
    change = FeatureChange(name_of(made.nodes[_some_features(made, 1)[0]]), 2)
    own, other = frozen_effect(made, change), frozen_effect(made.made, change)
    assert np.array_equal(own.change[: len(other.nodes)], other.change)
    assert {node.kind for node in other.nodes} == {"feature"}
    logits = [node for node in made.nodes if node.kind == "logit"]
    assert made.unembed is not None and logits[0].position is not None
    whole = Attribution.of(
        made.made,
        made.unembed,
        Logits(np.array([node.token for node in logits]), np.ones(len(logits))),
        names=made.prompt,
        logit_names=[node.label for node in logits],
        position=logits[0].position,
    )
    assert np.array_equal(frozen_effect(whole, change).change, own.change)
    assert np.array_equal(rerun(whole, change).change, rerun(made, change).change)
    assert np.array_equal(rerun(prune(made), change).linear, rerun(made, change).linear)


@pytest.mark.parametrize("case", ["plain", "skip, start left out", "cross-layer, skip", "olmo2"])
@pytest.mark.parametrize("broken", ["heads", "past", "twice", "late"])
def test_a_broken_push_is_caught(
    case: str, broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real = CASES[case](tmp_path), intervention._past
    columns = made.weights.copy()
    columns[[n for n, node in enumerate(made.nodes) if node.kind != "logit"]] = 0
    source = int(np.argmax([node.layer == 0 and node.kind == "feature" for node in made.nodes]))

    def past(plan: Any, boundary: int, moved: Array) -> Array:
        stage = plan.made.stages[boundary]
        kept = moved if stage.carry is None else stage.carry.push(moved)
        if broken == "heads":
            return np.asarray(kept)
        if broken == "past":
            return np.asarray(real(plan, boundary, moved) - kept)
        if broken == "twice":
            return np.asarray(2 * real(plan, boundary, moved) - kept)
        return np.roll(real(plan, boundary, moved), 1, axis=0)

    monkeypatch.setattr(intervention, "_past", past)
    effect = frozen_effect(made, FeatureChange(name_of(made.nodes[source]), 2))
    assert _miss(made, effect, made.weights[_targets(made), source]) > 1e-6


# --- heads -----------------------------------------------------------------------------------


def _norm(x: Array, norm: Any, scale: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    return np.asarray(centred * scale[:, None] * norm.weight + norm.bias)


def _frozen_pass(
    made: Replacement, factors: dict[tuple[int, int], Array], *, follow: bool = False
) -> tuple[list[Array], Array]:
    """Run LayerNorm blocks one after another with heads scaled: what features read, last stream.

    MLPs write what they wrote and, with `follow`, what features that are on add as they move.
    """
    run = made.run
    x, found = run.residual[0][0], []
    for layer, block in enumerate(made.weights.blocks):
        trace, attn = run.layers[layer], block.attn
        assert trace.scale1 is not None and trace.scale2 is not None and trace.mlp_out is not None
        assert attn.b_V is not None
        reads = _norm(x, block.ln1, trace.scale1[0])
        for head in range(len(attn.W_O)):
            own = trace.pattern[0, head] @ (reads @ attn.W_V[head] + attn.b_V[head])
            scale = factors.get((layer, head), np.ones(len(x)))[:, None]
            x = x + own @ attn.W_O[head] * scale
        x = x + attn.b_O
        unit, active = made.units.unit(layer), made.active[layer]
        pre = _norm(x, block.ln2, trace.scale2[0]) @ unit.E.T + unit.b_enc
        found.append(pre[active.positions, active.features])
        x = x + trace.mlp_out[0]
        if follow:
            moved = (found[-1] - active.act)[:, None] * unit.decoder(active.features)
            np.add.at(x, active.positions, moved)
    return found, x


def _reference(
    made: Graph, factors: dict[tuple[int, int], Array], *, follow: bool = False
) -> Array:
    """Give what features and logits read in such a run, less what they read in the run itself."""
    own = made.made
    assert own is not None and own.run.final_scale is not None
    features, last = _frozen_pass(own, factors, follow=follow)
    out = [each - own.active[layer].pre for layer, each in enumerate(features)]
    weights, logits = own.weights, [each for each in made.nodes if each.kind == "logit"]
    streams = (
        _norm(each, weights.final_norm, own.run.final_scale[0])[logits[0].position]
        for each in (last, own.run.residual[-1][0])
    )
    now, was = (stream @ weights.W_U for stream in streams)
    moved = now - was
    return np.concatenate([*out, moved[[each.token for each in logits]] - moved.mean()])


HEADS = [
    [HeadChange("L0H1", 0)],
    [HeadChange("L1H2", 2.5, (2, 4))],
    [HeadChange("L0H0", 0, (1,)), HeadChange("L1H1", 0), HeadChange("L2H2", -1, (6,))],
]


def _factors(changes: list[HeadChange]) -> dict[tuple[int, int], Array]:
    found = {}
    for change in changes:
        row = np.ones(len(PROMPT))
        places = range(len(PROMPT)) if change.positions is None else change.positions
        row[list(places)] = change.factor
        found[change.head.layer, change.head.index] = row  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("changes", HEADS)
def test_scaled_heads_agree_with_a_frozen_pass(changes: list[HeadChange]) -> None:
    made = _small(0)
    wanted = _reference(made, _factors(changes))
    assert _miss(made, frozen_effect(made, changes), wanted) < 1e-12
    assert abs(wanted).max() > 1e-3
    followed = _reference(made, _factors(changes), follow=True)
    assert _miss(made, linear_effect(made, changes), followed) < 1e-11
    assert _miss(made, frozen_effect(made, changes), followed) > 1e-6


@pytest.mark.parametrize("changes", HEADS)
def test_a_head_without_its_bias_is_caught(
    changes: list[HeadChange], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real = _small(0), intervention.head_output

    def unbiased(own: Replacement, head: Any) -> Array:
        attn = own.weights.blocks[head.layer].attn
        pattern = own.run.layers[head.layer].pattern[0, head.index]
        assert attn.b_V is not None
        bias = np.outer(pattern.sum(axis=1), attn.b_V[head.index] @ attn.W_O[head.index])
        return real(own, head) - bias

    monkeypatch.setattr(intervention, "head_output", unbiased)
    wanted = _reference(made, _factors(changes))
    assert _miss(made, frozen_effect(made, changes), wanted) > 1e-6


def test_all_heads_at_one_factor_leave_what_they_did_not_bring(made: Graph) -> None:
    """A head's output is what the run added, b_O and the norms' biases apart."""
    own = made.made
    assert own is not None
    for layer, block in enumerate(own.weights.blocks):
        if block.ln1_post is not None or block.ln1_after is not None:
            continue
        heads = [pathexpand.Head(layer, n) for n in range(len(block.attn.W_O))]
        total = sum(intervention.head_output(own, head) for head in heads)
        if block.attn.b_O is not None:
            total = total + block.attn.b_O * block.scale
        wanted = own.run.layers[layer].attn_out[own.row]
        assert abs(total - wanted).max() <= 1e-12 * abs(wanted).max()


# --- paths -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["plain", "skip, start left out", "sae before a layer", "olmo2"])
def test_a_removed_path_takes_its_value(case: str, tmp_path: Path) -> None:
    made = CASES[case](tmp_path)
    targets = _targets(made)
    for target in (targets[-1], targets[len(targets) // 2]):
        row = made.weights[target]
        sources = [n for n in np.argsort(-abs(row))[:4] if made.nodes[n].label[-5:] != "b_enc"]
        for source in [n for n in sources if made.nodes[n].label != "b_U"]:
            listed = made.paths(int(source), int(target), top=4)
            for path in listed.paths:
                names = name_of(made.nodes[source]), name_of(made.nodes[target])
                change = PathChange(names[0], path.components, names[1], 0)
                effect = frozen_effect(made, change)
                size = gross(made)[target]
                assert abs(effect.of(names[1]) + path.value) <= 1e-12 * size
                assert np.count_nonzero(effect.change) <= 1


def test_paths_of_a_cross_layer_feature_add_up_over_where_it_writes(tmp_path: Path) -> None:
    made = CASES["cross-layer, skip"](tmp_path)
    target = int(_targets(made)[-1])
    source = int(np.argmax([node.layer == 0 and node.kind == "feature" for node in made.nodes]))
    listed = made.paths(source, target, top=1000)
    total: dict[tuple[str, ...], float] = {}
    for path in listed.paths:
        total[path.components] = total.get(path.components, 0) + path.value
    for components, value in total.items():
        ends = name_of(made.nodes[source]), name_of(made.nodes[target])
        change = PathChange(ends[0], components, ends[1], 3)
        got = frozen_effect(made, change).of(ends[1])
        assert abs(got - 2 * value) <= 1e-12 * gross(made)[target]


def test_a_path_to_a_feature_goes_on_where_features_follow() -> None:
    made = _small(0)
    target = next(n for n, x in enumerate(made.nodes) if x.kind == "feature" and x.layer == 1)
    node = made.nodes[target]
    source = int(np.argmax(abs(made.weights[target]) * [x.kind == "token" for x in made.nodes]))
    path = made.paths(source, target, top=1).paths[0]
    ends = name_of(made.nodes[source]), name_of(node)
    moved = linear_effect(made, PathChange(ends[0], path.components, ends[1], 1.25))
    assert node.value is not None
    same = linear_effect(made, FeatureChange(ends[1], 1 + 0.25 * path.value / node.value))
    assert moved.of(ends[1]) == pytest.approx(0.25 * path.value, rel=1e-12)
    others = np.array([name_of(each) != ends[1] for each in moved.nodes])
    assert np.allclose(moved.change[others], same.change[others], rtol=1e-10, atol=1e-13)
    assert abs(moved.change[others]).max() > 1e-6


# --- worked out again ----------------------------------------------------------------------------


def test_nothing_changed_is_the_run_itself(made: Graph) -> None:
    name = name_of(made.nodes[_some_features(made, 1)[0]])
    found = rerun(made, [FeatureChange(name, 1), HeadChange("L0H0", 1)])
    assert np.allclose(found.change, 0, atol=1e-11)
    assert not found.held.any() and not found.linear.any()
    assert found.switched_on == found.switched_off == 0
    assert made.made is not None
    for one, other in zip(found.run.residual, made.made.run.residual, strict=True):
        assert np.allclose(one[0], other[made.made.row], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("head", ["L0H1", "L2H0"])
def test_a_removed_head_is_a_model_without_its_output(head: str) -> None:
    made = _small(0)
    own = pathexpand.Head.parse(head)
    state = tensors(0, **DEEP)
    state[f"blocks.{own.layer}.attn.W_O"][own.index] = 0
    config = SIZES | DEEP | {"n_ctx": 9, "normalization_type": "LN", "act_fn": "gelu"}
    other = pathexpand.from_state_dict(state, config).run(PROMPT)
    found = rerun(made, HeadChange(head, 0))
    for one, wanted in zip(found.run.residual, other.dense.residual, strict=True):
        assert np.allclose(one, wanted, rtol=1e-12, atol=1e-13)
    logits = other.logits(len(PROMPT) - 1)
    tokens = [node.token for node in found.nodes]
    assert np.allclose(found.after, logits[tokens] - logits.mean(), rtol=1e-12, atol=1e-12)
    assert abs(found.difference).max() > 1e-6  # nothing else stays as it was


def _relu(seed: int, *, without: tuple[int, int] | None = None) -> Model:
    state = tensors(seed, **DEEP)
    if without is not None:
        state[f"blocks.{without[0]}.mlp.W_out"][without[1]] = 0
    config = SIZES | DEEP | {"n_ctx": 9, "normalization_type": "LN", "act_fn": "relu"}
    return pathexpand.from_state_dict(state, config)


def _exact(model: Model) -> UnitSet:
    """Give transcoders that are the ReLU MLPs themselves."""
    units = []
    for layer, block in enumerate(model.weights.blocks):
        mlp = block.mlp
        assert mlp is not None
        units.append(
            Unit.of(
                layer=layer,
                kind="transcoder",
                hook_in="mlp_in",
                E=mlp.W_in.T,
                D=mlp.W_out,
                b_enc=mlp.b_in,
                b_dec=mlp.b_out,
            )
        )
    return UnitSet(tuple(units), "transcoders")


@pytest.mark.parametrize("place", [(0, 3), (1, 5), (2, 3)])
def test_a_removed_neuron_is_a_model_without_it(place: tuple[int, int]) -> None:
    model = _relu(8)
    made = graph_of(model.run(PROMPT), _exact(model))
    found = rerun(made, FeatureChange(f"L{place[0]}F{place[1]}", 0))
    other = _relu(8, without=place).run(PROMPT)
    logits = other.logits(len(PROMPT) - 1)
    tokens = [node.token for node in found.nodes]
    assert np.allclose(found.after, logits[tokens] - logits.mean(), rtol=1e-11, atol=1e-12)


def test_two_changes_hold_the_later_feature_where_it_was_set() -> None:
    """A neuron is held at 0 although another change moved what it reads."""
    model = _relu(8)
    made = graph_of(model.run(PROMPT), _exact(model))
    found = rerun(made, [FeatureChange("L0F3", 0), FeatureChange("L1F5", 0)])
    state = tensors(8, **DEEP)
    state["blocks.0.mlp.W_out"][3] = state["blocks.1.mlp.W_out"][5] = 0
    config = SIZES | DEEP | {"n_ctx": 9, "normalization_type": "LN", "act_fn": "relu"}
    logits = pathexpand.from_state_dict(state, config).run(PROMPT).logits(len(PROMPT) - 1)
    tokens = [node.token for node in found.nodes]
    assert np.allclose(found.after, logits[tokens] - logits.mean(), rtol=1e-11, atol=1e-12)


def _added(made: Graph, source: int, factor: float) -> Array:
    """Run the model with what a feature writes more added where it writes it: its logits."""
    own, node = made.made, made.nodes[source]
    assert own is not None and node.layer is not None and node.index is not None
    assert node.position is not None and node.activation is not None
    unit = own.unit(node.layer)
    assert unit is not None
    back = float(own.active[node.layer].back[node.position])

    def edit(layer: int, place: str, array: Array) -> Array:
        if place != unit.hook_out or layer not in unit.writes:
            return array
        out = array.copy()
        amount = (factor - 1) * node.activation * back
        out[0, node.position] += amount * unit.decoder([node.index], layer)[0]
        return out

    run, row = own.run, slice(own.row, own.row + 1)
    types = None if run.types is None else run.types[row]
    edited = forward(
        own.weights, own.config, run.tokens[row], run.mask[row], types=types, edit=edit
    )
    logits = [each for each in made.nodes if each.kind == "logit"]
    values = final_logits(own.weights, own.config, edited, 0, logits[0].position)
    return np.asarray(values[[each.token for each in logits]] - values.mean())


def test_a_changed_feature_is_added_where_it_writes(made: Graph) -> None:
    for source in _some_features(made):
        found = rerun(made, FeatureChange(name_of(made.nodes[source]), -0.5))
        assert np.allclose(found.after, _added(made, source, -0.5), rtol=1e-10, atol=1e-10)


def test_a_cross_layer_feature_that_is_constant_is_a_bias_of_each_layer() -> None:
    run = small(3, sizes=DEEP).run(PROMPT)
    units = _units(run, clt=True)
    first = units.unit(0)
    E, bias = first.E, first.b_enc.copy()
    E[4], bias[4] = 0, 1.75
    own = replace(first, W_enc=FeatureRows("W_enc", E), b_enc=bias)
    made = graph_of(run, replace(units, units=(own, *units.units[1:])))
    found = rerun(made, FeatureChange("L0F4", 0))
    state = tensors(3, **DEEP)
    for layer in range(3):
        state[f"blocks.{layer}.mlp.b_out"] -= 1.75 * own.decoder([4], layer)[0]
    config = SIZES | DEEP | {"n_ctx": 9, "normalization_type": "LN", "act_fn": "gelu"}
    logits = pathexpand.from_state_dict(state, config).run(PROMPT).logits(len(PROMPT) - 1)
    tokens = [node.token for node in found.nodes]
    assert np.allclose(found.after, logits[tokens] - logits.mean(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("broken", ["later targets", "twice", "nothing"])
def test_a_broken_rerun_is_caught(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _small(2, clt=True)
    source = next(n for n, x in enumerate(made.nodes) if x.kind == "feature" and x.layer == 0)
    real = intervention._Pass._changed

    def changed(own: Any, unit: Unit, x: Array) -> dict[int, Array]:
        found = real(own, unit, x)
        if broken == "later targets":
            return {target: each for target, each in found.items() if target == unit.layer}
        return {} if broken == "nothing" else {target: 2 * each for target, each in found.items()}

    monkeypatch.setattr(intervention._Pass, "_changed", changed)
    found = rerun(made, FeatureChange(name_of(made.nodes[source]), 0))
    assert abs(found.after - _added(made, source, 0)).max() > 1e-6


def test_a_feature_of_an_sae_is_taken_from_the_stream() -> None:
    made = _small(4, kind="sae", hook="resid_post", layers=[2])
    own = made.made
    assert own is not None
    last = len(PROMPT) - 1
    node = next(each for each in made.nodes if each.kind == "feature" and each.position == last)
    found = rerun(made, FeatureChange(name_of(node), 0))
    assert node.index is not None and node.activation is not None
    stream = own.run.residual[-1][0, last] - node.activation * own.units.unit(2).decoder(
        [node.index]
    )
    x = stream - stream.mean()
    norm = own.weights.final_norm
    assert norm is not None and norm.weight is not None and own.weights.b_U is not None
    x = x / np.sqrt((x**2).mean() + norm.eps)
    logits = (x * norm.weight + norm.bias) @ own.weights.W_U + own.weights.b_U
    logits = logits.ravel()
    tokens = [each.token for each in found.nodes]
    assert np.allclose(found.after, logits[tokens] - logits.mean(), rtol=1e-9)


def test_a_path_moves_its_target_feature_alone() -> None:
    made = _small(0)
    features = [
        n
        for n, x in enumerate(made.nodes)
        if x.kind == "feature" and x.layer == 1 and x.position == len(PROMPT) - 1
    ]
    target = features[0]
    node = made.nodes[target]
    source = int(np.argmax(abs(made.weights[target]) * [x.kind == "token" for x in made.nodes]))
    path = made.paths(source, target, top=1).paths[0]
    ends = name_of(made.nodes[source]), name_of(node)
    assert node.value is not None
    factor = 1 + 0.1 * node.value / path.value  # it reads a tenth more
    one = rerun(made, PathChange(ends[0], path.components, ends[1], factor))
    other = rerun(made, FeatureChange(ends[1], 1.1))
    assert np.allclose(one.change, other.change, rtol=1e-8, atol=1e-12)
    assert abs(one.change).max() > 1e-4
    off = rerun(
        made, PathChange(ends[0], path.components, ends[1], 1 - 2 * node.value / path.value)
    )
    gone = rerun(made, FeatureChange(ends[1], 0))
    assert np.allclose(off.change, gone.change, rtol=1e-8, atol=1e-12)


def test_a_path_to_a_logit_moves_it_alone() -> None:
    made = _small(0)
    target = int(_targets(made)[-1])
    source = int(np.argmax(abs(made.weights[target]) * [x.kind == "feature" for x in made.nodes]))
    path = made.paths(source, target, top=1).paths[0]
    ends = name_of(made.nodes[source]), name_of(made.nodes[target])
    found = rerun(made, PathChange(ends[0], path.components, ends[1], 0))
    assert np.allclose(found.change, [0, 0, -path.value], atol=1e-12)
    assert np.allclose(found.difference, 0, atol=1e-12)


def test_small_changes_are_linear_in_the_end() -> None:
    """Halving a small change halves the rerun, where nothing switches."""
    made = _small(2, hook="resid_mid")
    name = name_of(made.nodes[_some_features(made, 1)[0]])
    one, other = (rerun(made, FeatureChange(name, 1 + size)) for size in (2e-5, 1e-5))
    assert one.switched_on == one.switched_off == 0
    assert np.allclose(one.change, 2 * other.change, rtol=1e-3, atol=1e-9)


def test_tables_say_what_was_done() -> None:
    made = _small(0)
    name = name_of(made.nodes[_some_features(made, 1)[0]])
    effect = frozen_effect(made, FeatureChange(name, 0))
    table = effect.table(3)
    assert [row["change"] for row in table][-3:] == pytest.approx(effect.change[-3:].tolist())
    assert table.about == (("change", f"{name} × 0"),)
    assert "direct effect" in str(table)
    found = rerun(made, [FeatureChange(name, 0), HeadChange("L1H0", 0.5, (2, 3))])
    table = found.table()
    assert table.column("difference") == tuple(found.change - found.linear)
    assert table.column("held") == tuple(found.held)
    assert "L1H0 at 2, 3 × 0.5" in str(table) and "features switched" in str(table)


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: FeatureChange("L0H1", 0), "feature: wanted a name such as L3F17@4"),
        (lambda: FeatureChange("L0F1", np.nan), "L0F1: wanted a finite factor"),
        (lambda: FeatureChange("L0F1", True), "L0F1: wanted a finite factor"),
        (lambda: FeatureChange("L9F1", 0), "wanted a feature of layer 0, 1, 2"),
        (lambda: FeatureChange("L0F99", 0), "wanted features 0 to 6 of layer 0, got 99"),
        (lambda: FeatureChange("L0F1@7", 0), "wanted positions 0 to 6 of this prompt, got 7"),
        (lambda: HeadChange("L0H3", 0), "wanted a head of 3 layers of 3, got L0H3"),
        (lambda: HeadChange("L3H0", 0), "wanted a head of 3 layers of 3, got L3H0"),
        (lambda: HeadChange("L0H0", 0, ()), "L0H0 positions: wanted None for all"),
        (lambda: HeadChange("L0H0", 0, 3), "L0H0 positions: wanted None for all"),  # type: ignore[arg-type]
        (lambda: HeadChange("L0H0", 0, (7,)), "wanted positions from 0 to 6"),
        (lambda: PathChange("embed@9", (), "L0F0@0", 0), "wanted the name of one node"),
        (lambda: PathChange("embed@0", "L0H0", "L0F0@0", 0), "wanted a sequence of labels"),  # type: ignore[arg-type]
        (lambda: "L0F1", "wanted a FeatureChange, HeadChange or PathChange"),
    ],
)
def test_refusals(change: Callable[[], Any], said: str) -> None:
    made = _small(0)
    with pytest.raises(PathExpandError) as caught:
        frozen_effect(made, [change()])
    assert said in str(caught.value)


@pytest.mark.parametrize("changes", [5, "L0F1", None])
def test_changes_that_are_none_are_refused(changes: Any) -> None:
    with pytest.raises(PathExpandError, match="changes: wanted a FeatureChange") as caught:
        frozen_effect(_small(0), changes)
    assert "\n" not in str(caught.value)


def test_a_feature_that_is_off_or_left_out_is_told_from_one_that_is_not_there() -> None:
    made = _small(0)
    assert made.made is not None
    on = {(x.layer, x.index, x.position) for x in made.nodes if x.kind == "feature"}
    feature, place = next((f, p) for f in range(7) for p in range(7) if (0, f, p) not in on)
    with pytest.raises(PathExpandError, match=f"one that is off at position {place}"):
        frozen_effect(made, FeatureChange(f"L0F{feature}@{place}", 0))
    left_out = _small(0, zero=2)
    with pytest.raises(PathExpandError, match="wanted positions 2 to 6, where features are"):
        frozen_effect(left_out, FeatureChange("L0F1@1", 0))


@pytest.mark.parametrize("top", [-1, 2.5, True])
def test_a_table_of_effects_has_rows_or_none(top: Any) -> None:
    made = _small(0)
    name = name_of(made.nodes[_some_features(made, 1)[0]])
    effect = frozen_effect(made, FeatureChange(name, 0))
    with pytest.raises(PathExpandError, match="top: wanted a whole number of at least 0"):
        effect.table(top)
    assert len(effect.table(0).rows) == 3  # the logits


def test_more_refusals() -> None:
    made = _small(0)
    target = name_of(made.nodes[int(_targets(made)[0])])
    source = name_of(made.nodes[0])
    with pytest.raises(NotationError):
        HeadChange("L0F1", 0)
    with pytest.raises(PathExpandError, match="heads and skips that stand between"):
        frozen_effect(made, PathChange(source, ("L2H0", "L0H0"), target, 0))
    with pytest.raises(PathExpandError, match="each thing once"):
        frozen_effect(made, [HeadChange("L0H0", 0), HeadChange("L0H0", 2, (1,))])
    with pytest.raises(PathExpandError, match="each thing once"):
        frozen_effect(made, [FeatureChange(target, 0), FeatureChange(target.split("@")[0], 0)])
    assert made.made is not None
    with pytest.raises(PathExpandError, match="wanted a graph, with its logits"):
        rerun(made.made, HeadChange("L0H0", 0))  # type: ignore[arg-type]


# --- the dense pass that is edited ---------------------------------------------------------------


def test_an_edit_that_changes_nothing_changes_no_bit(tmp_path: Path) -> None:
    seen: dict[str, int] = {}

    def edit(layer: int, place: str, array: Array) -> Array:
        seen[place] = seen.get(place, 0) + 1
        return array

    for run in (small(0).run(PROMPT), family("bert", tmp_path)):
        dense = run.dense
        again = forward(
            run.model.weights,
            run.model.config,
            dense.tokens,
            dense.mask,
            types=dense.types,
            edit=edit,
        )
        for one, other in zip(again.residual, dense.residual, strict=True):
            assert np.array_equal(one, other)
    assert set(seen) == {"resid_pre", "heads", "resid_mid", "mlp_raw", "mlp_out", "resid_post"}


def test_what_is_edited_goes_on() -> None:
    run = small(0).run(PROMPT)

    def ran(place: str) -> Any:
        def edit(layer: int, name: str, array: Array) -> Array:
            return array + 0.25 if (layer, name) == (1, place) else array

        return forward(
            run.model.weights, run.model.config, run.dense.tokens, run.dense.mask, edit=edit
        )

    assert np.array_equal(ran("resid_pre").residual[1], run.dense.residual[1] + 0.25)
    assert np.array_equal(ran("resid_post").residual[2], run.dense.residual[2] + 0.25)
    middle, was = ran("resid_mid").layers[1].middle, run.dense.layers[1].middle
    assert middle is not None and was is not None and np.array_equal(middle, was + 0.25)
    for place in ("mlp_raw", "mlp_out"):
        assert np.allclose(ran(place).residual[2], run.dense.residual[2] + 0.25)
