"""Graphs that are pruned as they are made, and graphs by way of the API."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.api import Run
from pathexpand.errors import LimitError, ModelError, PathExpandError, PromptError
from pathexpand.features import graph as whole_graph
from pathexpand.features import prune, streaming
from pathexpand.features.graph import Attribution, Logits
from pathexpand.features.influence import node_influence
from pathexpand.features.streaming import pruned_graph, streamed_influence
from tests.api.models import small
from tests.features.graphs import PROMPT, made_of, random_units

SHARED = Path(__file__).parents[3] / "shared" / "models"
KINDS: dict[str, dict[str, Any]] = {
    "transcoders": {},
    "cross": {"clt": True, "skip": True, "hook": "resid_mid"},
    "saes": {"kind": "sae", "hook": "resid_post"},
}


def attribution(run: Run, kind: str, zero: int = 0, features: int = 17) -> Attribution:
    units = random_units(run, features=features, **KINDS[kind])
    tokens, place = np.array([3, 11, 5]), len(run.tokens) - 1
    names = [str(token) for token in run.tokens]
    return Attribution.of(
        made_of(run, units, zero),
        run.unembed,
        Logits(tokens, np.array([0.5, 0.2, 0.1])),
        names=names,
        logit_names=["a", "b", "c"],
        position=place,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [1, 20_000, 2**27])
def test_a_streamed_graph_is_the_pruned_whole(
    kind: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = attribution(small(7, sizes={"n_layers": 3}).run(PROMPT), kind, zero=1)
    wanted = prune(whole_graph.graph(whole), nodes=0.7, edges=0.95)
    monkeypatch.setattr(whole_graph, "_BLOCK", block)
    found = pruned_graph(whole, nodes=0.7, edges=0.95)
    assert found.nodes == wanted.nodes and 0 < len(found) < len(whole.nodes)
    for name in ("weights", "remainder", "logit_weights"):
        assert np.allclose(getattr(found, name), getattr(wanted, name), rtol=1e-11, atol=1e-12)
    assert ((found.weights != 0) == (wanted.weights != 0)).all()
    assert found.closes


@pytest.mark.parametrize("kind", KINDS)
def test_one_pass_finds_the_influence_of_every_node(kind: str) -> None:
    whole = attribution(small(3, sizes={"n_layers": 3}).run(PROMPT), kind)
    wanted = node_influence(whole_graph.graph(whole))
    assert wanted.max() > 0
    assert np.allclose(streamed_influence(whole), wanted, rtol=1e-12, atol=1e-14)


def test_rows_in_another_order_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Influence found in one pass is right only if readers come before what they read."""
    whole = attribution(small(3, sizes={"n_layers": 3}).run(PROMPT), "transcoders")
    wanted, right = node_influence(whole_graph.graph(whole)), Attribution.rows
    monkeypatch.setattr(Attribution, "rows", lambda self: reversed(list(right(self))))
    assert abs(streamed_influence(whole) - wanted).max() > 1e-3


def test_more_nodes_than_can_be_held_are_streamed_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = attribution(small(7, sizes={"n_layers": 3}).run(PROMPT), "cross")
    few = len(prune(whole_graph.graph(whole), nodes=0.5))
    for module in (whole_graph, streaming):
        monkeypatch.setattr(module, "MOST", len(whole.nodes) - 1)
    with pytest.raises(LimitError, match="pruned as it is made"):
        whole_graph.graph(whole)
    assert len(pruned_graph(whole, nodes=0.5)) == few
    monkeypatch.setattr(streaming, "MOST", few - 1)
    with pytest.raises(LimitError, match=r"keep less than 0\.5"):
        pruned_graph(whole, nodes=0.5)


def test_a_streamed_graph_takes_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attribution(small(7, sizes={"n_layers": 3}).run(PROMPT), "transcoders", features=300)
    count = len(whole.nodes)
    monkeypatch.setattr(whole_graph, "_BLOCK", 2**17)
    tracemalloc.start()
    pruned_graph(whole, nodes=0.05)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * count**2 / 2, (peak, count)


# --- the API -------------------------------------------------------------------------------------


def test_the_embedded_model_has_features_of_its_own() -> None:
    run = pathexpand.load("two-layer").run("Humpty Dumpty sat on a wall. Humpty D")
    graph = run.graph()
    assert graph.closes and graph.made is not None and "FVU" in graph.made.fit
    top = run.graph(prune=True)
    assert top.closes and top.nodes == prune(graph).nodes
    assert graph.attention("L1H0", 6).closes
    edge = graph.paths("L1F44@6", "'um'@20")
    assert edge.paths[0].label == "L1H0" and edge.closes
    assert abs(sum(edge.by_last.values()) - edge.weight) < 1e-10


def test_targets_are_those_asked_for_or_the_likeliest() -> None:
    run = pathexpand.load("two-layer").run("to be or not to be")
    asked = run.graph(targets=[" to", 5, " to"])
    tokens = [node.token for node in asked.nodes if node.kind == "logit"]
    assert tokens == [run.target(" to").token, 5]  # type: ignore[union-attr]
    few = run.graph(top_logits=3, probability=1.0)
    assert sum(node.kind == "logit" for node in few.nodes) == 3
    likely = run.graph(probability=0.01)
    assert sum(node.kind == "logit" for node in likely.nodes) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"targets": ["a-b"]}, "targets of a graph"),
        ({"targets": []}, "targets of a graph"),
        ({"probability": 0}, "probability"),
        ({"probability": 2.0}, "probability"),
        ({"top_logits": 0}, "top_logits"),
        ({"top_logits": -1}, "top_logits"),
        ({"zero_positions": -1}, "zero_positions"),
        ({"position": 99}, "position 99"),
        ({"prune": (2, 0.5)}, "nodes"),
        ({"prune": 0.8}, "prune"),
        ({"features": "no such place"}, "no such place"),
        ({"features": 3}, "features"),
    ],
)
def test_what_cannot_be_made_is_refused(options: dict[str, Any], said: str) -> None:
    run = pathexpand.load("two-layer").run("to be or not to be")
    with pytest.raises((PathExpandError, PromptError), match=said) as found:
        run.graph(**options)
    assert "\n" not in str(found.value)


def test_a_model_without_features_says_so() -> None:
    with pytest.raises(ModelError, match="those of stories260k and two-layer come with"):
        pathexpand.load("one-layer").run("to be").graph()


@pytest.mark.shared_models
def test_transcoders_of_a_trained_model_close() -> None:
    run = pathexpand.load(SHARED / "stories260k").run(
        "Once upon a time, there was a little girl named"
    )
    graph = run.graph("stories260k-transcoders")
    assert graph.closes and len(graph) > 500
    rows = graph.weights.sum(axis=1)[graph.is_target]
    assert np.allclose(rows, graph.values[graph.is_target], rtol=0, atol=1e-12)
