"""Graphs of small models against circuit-tracer's own numbers, and what closes beyond them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from pathexpand.api import Model
from pathexpand.features import influence as influence_module
from pathexpand.features.graph import Graph, Logits
from pathexpand.features.influence import (
    compared,
    edge_influence,
    kept_nodes,
    node_influence,
    only,
    prune,
    scores,
)
from pathexpand.model.checkpoint import read_checkpoint
from tests.features.graphs import CASES, GOLDEN, golden, golden_units, graph_of, gross

Array = np.ndarray[Any, Any]
SAME = 1e-12  # relative to the largest number of an array


@dataclass(frozen=True)
class Case:
    """Our graph of a case, and where in circuit-tracer's order its nodes stand."""

    graph: Graph
    stored: dict[str, Array]
    keys: list[tuple[Any, ...]]

    def ordered(self, made: Graph, values: Array) -> Array:
        """Bring values (node,) or (target, source) of a graph into the stored order."""
        places = {place(node): n for n, node in enumerate(made.nodes)}
        have = [n for n, each in enumerate(self.keys) if each in places]
        own = [places[self.keys[n]] for n in have]
        out = np.zeros((len(self.keys),) * values.ndim, dtype=values.dtype)
        out[np.ix_(*[have] * values.ndim)] = values[np.ix_(*[own] * values.ndim)]
        return out


def place(node: Any) -> tuple[Any, ...]:
    if node.kind == "feature":
        return ("feature", node.layer, node.position, node.index)
    if node.kind == "error":
        return ("error", node.layer, node.position)
    return (node.kind, node.token) if node.kind == "logit" else (node.kind, node.position)


@cache
def case(name: str) -> Case:
    stored = golden(name)
    checkpoint = read_checkpoint(GOLDEN / name)
    run = Model(checkpoint).run([int(token) for token in stored["tokens"]])
    logits = Logits(stored["logit_ids"].astype(np.intp), stored["logit_probabilities"])
    made = graph_of(run, golden_units(name), 1, logits=logits)
    layers, positions = range(checkpoint.config.n_layers), range(len(stored["tokens"]))
    keys: list[tuple[Any, ...]] = [("feature", *map(int, f)) for f in stored["active_features"]]
    keys += [("error", layer, position) for layer in layers for position in positions]
    keys += [("token", position) for position in positions]
    keys += [("logit", int(token)) for token in stored["logit_ids"]]
    return Case(made, stored, keys)


def same(ours: Array, stored: Array) -> bool:
    return bool(abs(ours - stored).max() <= SAME * abs(stored).max())


def constants(made: Graph) -> Array:
    """Give what no feature, error or token brings, without b_U: the stored constants (node,)."""
    assert made.made is not None
    rest = made.weights[:, ~compared(made)].sum(axis=1)
    b_U = made.made.weights.b_U
    for n, node in enumerate(made.nodes):
        if node.kind == "logit" and b_U is not None:
            rest[n] -= b_U[node.token] - b_U.mean()
    return np.asarray(rest)


def kept_first(made: Graph) -> Graph:
    """Cut a graph down to the nodes of the first step of pruning."""
    return only(made, kept_nodes(made.nodes, node_influence(made), 0.8))


def test_there_are_cases() -> None:
    assert len(CASES) == 16


@pytest.mark.parametrize("name", CASES)
def test_the_same_features_are_on(name: str) -> None:
    held = case(name)
    ours = {place(node): node.value for node in held.graph.nodes if node.kind == "feature"}
    assert set(ours) == {each for each in held.keys if each[0] == "feature"}
    features = held.keys[: len(ours)]
    assert same(np.array([ours[each] for each in features]), held.stored["values"][: len(ours)])


@pytest.mark.parametrize("name", CASES)
def test_every_edge_is_the_same(name: str) -> None:
    held = case(name)
    assert same(held.ordered(held.graph, held.graph.weights), held.stored["adjacency"])


@pytest.mark.parametrize("name", CASES)
def test_every_node_closes_where_theirs_does_not(name: str) -> None:
    made, stored = case(name).graph, case(name).stored
    target = made.is_target
    assert made.closes
    assert (made.gap_bound[target] > 0).all()
    assert (made.gap_bound[target] <= 1e-9 * gross(made)[target]).all()
    lost = abs(constants(made))[target].max()
    assert lost == pytest.approx(float(stored["gap"][0]), rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_constants_are_what_the_frozen_model_makes_of_nothing(name: str) -> None:
    held = case(name)
    made = held.graph
    rest = held.ordered(made, constants(made))
    rows = [n for n, each in enumerate(held.keys) if each[0] in ("feature", "logit")]
    assert abs(rest[rows] - held.stored["constants"]).max() <= SAME * gross(made).max()


@pytest.mark.parametrize("name", CASES)
def test_influence_is_the_same(name: str) -> None:
    held = case(name)
    ours = held.ordered(held.graph, node_influence(held.graph))
    assert same(ours, held.stored["node_influence"])
    cut = kept_first(held.graph)
    assert same(held.ordered(cut, edge_influence(cut)), held.stored["edge_scores"])


@pytest.mark.parametrize("name", CASES)
def test_scores_are_the_same(name: str) -> None:
    found = scores(case(name).graph)
    ours = np.array([found.replacement, found.completeness])
    assert same(ours, case(name).stored["scores"])


@pytest.mark.parametrize("name", CASES)
def test_pruning_keeps_the_same(name: str) -> None:
    held = case(name)
    pruned = prune(held.graph)
    kept = held.ordered(pruned, np.ones(len(pruned), dtype=bool))
    # A token that brings nothing to anyone is a node of theirs, and one of ours.
    assert (kept == held.stored["kept_nodes"]).all()
    edges = held.ordered(pruned, pruned.weights != 0)
    assert (edges == held.stored["kept_edges"]).all()
    assert pruned.closes


@pytest.mark.parametrize("name", ["relu-layer-norm-0", "gemma-0", "cross-jumprelu-1"])
def test_another_rule_of_pruning_would_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One share for both cuts, or influence without the logits' weights, keeps other things."""
    held = case(name)
    other = prune(held.graph, nodes=0.7)
    kept = held.ordered(other, np.ones(len(other), dtype=bool))
    assert (kept != held.stored["kept_nodes"]).any()
    even = replace(held.graph, logit_weights=np.sign(held.graph.logit_weights))
    assert not same(held.ordered(even, node_influence(even)), held.stored["node_influence"])
    monkeypatch.setattr(influence_module, "shares", lambda weights: abs(weights))
    raw = held.ordered(held.graph, node_influence(held.graph))
    assert not same(raw, held.stored["node_influence"])
