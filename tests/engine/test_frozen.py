"""Frozen runs of every architecture: sources, streams, paths forward and back, and the way out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pathexpand import laws
from pathexpand.api import Model, Run
from pathexpand.engine.remainder import remainder
from pathexpand.engine.rounding import dense_rounding
from pathexpand.engine.total import frozen_streams, functionals
from pathexpand.engine.value import Readout, path_stream, path_value
from pathexpand.errors import PathExpandError
from pathexpand.frozen import freeze, network_of
from pathexpand.laws import Design, random_transformer
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.symbolic import Head, Mlp, Neuron, Path
from tests.search.problems import truths

MODES = ("source", "frozen", "neurons")
BERT = {"norms": ("ln1_after", "ln2_after"), "embed_norms": 1, "types": 2, "final_norm": False}
DESIGNS = {
    "GPT-2": Design(),
    "Llama": Design(norm="rms", gated=True, act="silu", positions="rotary", biases=False),
    "GPT-J": Design(parallel=True, norms=("ln1",), positions="rotary"),
    "Gemma": Design(norm="rms", gated=True, norms=("ln1", "ln1_post", "ln2", "ln2_post")),
    "OLMo 2": Design(norm="rms", norms=("ln1_post", "ln2_post"), head_norm="across"),
    "BERT": Design(**BERT, direction="bidirectional", transform=True),  # type: ignore[arg-type]
    "ReLU": Design(act="relu", residual_scale=0.5, sinks=True, window=2),
    "without norms": Design(norms=(), final_norm=False),
}


@pytest.fixture(params=DESIGNS)
def model(request: pytest.FixtureRequest) -> Model:
    return random_transformer(DESIGNS[request.param], seed=3)


def readout(run: Run, place: int) -> Any:
    return run.target(4).readout(run.unembed, place)


@pytest.mark.parametrize("mode", MODES)
def test_a_frozen_run_has_the_paths_of_its_network(mode: Any, model: Model) -> None:
    same = model.with_mlp(mode)
    frozen = same.run([1, 5, 2]).frozen
    assert frozen.network() == same.network == network_of(model.weights, model.config, mlp=mode)
    kinds = {type(component) for component in same.network.components}
    assert kinds == {"source": {Head}, "frozen": {Head, Mlp}, "neurons": {Head, Neuron}}[mode]


@pytest.mark.parametrize("mode", MODES)
def test_every_dimension_of_the_last_stream_is_a_sum_of_paths(mode: Any, model: Model) -> None:
    run = model.with_mlp(mode).run([1, 5, 2])
    for place, direction in itertools.product(range(3), np.eye(model.config.d_model)):
        assert run.paths(direction, position=place, top=0).closes
    assert len(run.frozen.streams) == run.frozen.depth + 1
    assert np.array_equal(run.frozen.streams[-1], run.dense.residual[-1][0])


@pytest.mark.parametrize("mode", MODES[1:])
def test_the_stream_behind_every_layer_is_that_of_the_dense_pass(mode: Any, model: Model) -> None:
    run, weights = model.with_mlp(mode).run([1, 5, 2]), model.weights
    made = frozen_streams(run.frozen)
    for layer in range(model.config.n_layers):
        depth = sum(stage.components[0].layer <= layer for stage in run.frozen.stages)
        near, dense = run.frozen.first(depth), run.dense.residual[layer + 1][0]
        first = replace(weights, blocks=weights.blocks[: layer + 1])
        for place, (n, direction) in itertools.product(
            range(3), enumerate(np.eye(model.config.d_model))
        ):
            look = Readout(place, direction, 0)
            bound = dense_rounding(first, run.dense, near, functionals(near, look))
            bound += remainder(near, look, (), measured=True).rounding
            assert abs(made[depth][place, n] - dense[place, n]) <= 2 * bound


@pytest.mark.parametrize("mode", MODES)
def test_paths_are_worth_the_same_forward_and_back(mode: Any, model: Model) -> None:
    run = model.with_mlp(mode).run([1, 5, 2, 2])
    for place in (0, 3):
        look = readout(run, place)
        near, known = run.frozen.until(place), truths(run.frozen, look)
        for path in itertools.islice(known, 0, None, 7):
            bound = known[path].rounding
            back = path_value(near, look, path)
            assert abs(back - known[path].value) <= bound
            if path.source != "b_U":
                forward = path_stream(run.frozen, place, path) @ look.direction
                assert abs(forward - known[path].value) <= bound


def test_what_paths_add_to_the_logits_sums_to_them(model: Model) -> None:
    run = model.run([1, 5, 2])
    whole = sum(run.path_logits(path, position=1) for path in model.network.paths())
    assert whole == pytest.approx(run.logits(1), rel=1e-9, abs=1e-9)


def test_a_row_of_a_padded_batch_is_frozen_by_itself(model: Model) -> None:
    alone, longer = [5, 1, 7], [1, 5, 2, 2, 6]
    dense = model.runs([longer, alone])[1].dense
    frozen = freeze(model.weights, model.config, dense, mlp="frozen")
    single = model.with_mlp("frozen").run(alone).frozen
    for mine, other in zip(frozen.sources, single.sources, strict=True):
        assert mine.label == other.label
        assert mine.values == pytest.approx(other.values, rel=1e-9, abs=1e-9)


def test_there_are_three_ways_to_take_mlps() -> None:
    model = random_transformer(DESIGNS["GPT-2"], seed=1)
    for call in (network_of, lambda *given, mlp: model.with_mlp(mlp).run([1]).frozen):
        with pytest.raises(PathExpandError, match="mlp: wanted source, frozen or neurons"):
            call(model.weights, model.config, mlp="whole")


def test_a_scale_of_the_logits_is_counted_once() -> None:
    model = random_transformer(DESIGNS["BERT"], seed=2)
    weights = replace(
        model.weights, unembedding=replace(model.weights.unembedding, scale=0.25, _whole={})
    )
    config = replace(model.config, logit_scale=0.25)
    scaled = Model(Checkpoint(config, weights))
    for run, factor in ((model.run([1, 5]), 0.25), (scaled.run([1, 5]), 1.0)):
        table = run.paths(np.int64(4), top=3, centred=False)
        assert table.closes
        path = run.model.network.sources[0].label
        assert run.value(path, 4, centred=False) * factor == pytest.approx(
            scaled.run([1, 5]).value(path, 4, centred=False)
        )


# --- from the weights alone -----------------------------------------------------------------------


def at_rest(**changes: Any) -> Model:
    plain = Design(norms=(), final_norm=False, d_mlp=0, positions="none", n_layers=3)
    return random_transformer(replace(plain, **changes), seed=5)


@pytest.mark.parametrize(
    "changes", [{}, {"residual_scale": -0.5}, {"n_key_value_heads": 1}], ids=str
)
def test_matrices_of_grouped_and_scaled_heads_are_what_one_token_sees(changes: Any) -> None:
    """On a single token every pattern is 1, so its row of a path's matrix is what the path adds."""
    model = at_rest(**changes)
    run = model.run([6])
    for path in model.network.paths():
        row = 6 if path.source == "embed" else 0
        wanted = run.path_logits(path)
        assert model.path_matrix(path).dense()[row] == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_norms_of_grouped_and_scaled_heads() -> None:
    for changes in ({}, {"residual_scale": -0.5}, {"n_key_value_heads": 4}):
        model = at_rest(**changes)
        for query in (None, "* > L1H1 > *"):
            laws.check_norm_ranking(model, top=9, query=query).require()


@pytest.mark.parametrize(
    "changes", [{"d_mlp": 5}, {"norms": ("ln1",)}, {"final_norm": True}], ids=str
)
def test_what_depends_on_a_prompt_has_no_matrix(changes: Any) -> None:
    model = at_rest(**changes)
    for ask in (model.paths, lambda: model.path_matrix(Path("embed"))):
        with pytest.raises(PathExpandError, match="an attention-only model without norms"):
            ask()
