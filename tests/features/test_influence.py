"""Influence, scores and pruning, worked out by hand; and what pruning loses is kept account of."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pathexpand.errors import PathExpandError
from pathexpand.features import influence as influence_module
from pathexpand.features.graph import Graph
from pathexpand.features.influence import (
    cut_at,
    edge_influence,
    influence,
    node_influence,
    prune,
    scores,
    shares,
)
from pathexpand.features.replacement import Node
from tests.api.models import small
from tests.features.graphs import PROMPT, graph_of, gross, random_units

Array = np.ndarray[Any, Any]

# What reads what: target, then each source with its weight. Constants (c) count only when closed.
EDGES: dict[str, dict[str, float]] = {
    "f0": {"t0": 2, "c": 5},
    "f1": {"t0": 1, "t1": -3},
    "f2": {"f0": -1, "f1": 2, "t1": 1, "e0": 4},
    "l0": {"f2": 3, "e1": 1},
    "l1": {"f1": 1, "t1": 1, "c": 7},
}
WEIGHTS = {"l0": 0.75, "l1": 0.25}
KINDS = {"t": "token", "e": "error", "f": "feature", "l": "logit", "c": "constant"}


def drawn(edges: dict[str, dict[str, float]], weights: dict[str, float]) -> Graph:
    """Make a graph of a drawing; nodes are in order of their names, logits last."""
    found = {*edges, *(source for row in edges.values() for source in row)}
    names = sorted(found, key=lambda name: (name[0] == "l", name))
    matrix, counts = np.zeros((len(names), len(names))), np.zeros(len(names))
    for target, row in edges.items():
        for source, weight in row.items():
            matrix[names.index(target), names.index(source)] = weight
    for name, weight in weights.items():
        counts[names.index(name)] = weight
    nodes = tuple(
        Node(KINDS[name[0]], name, value=float(row.sum()) if name in edges else None)
        for name, row in zip(names, matrix, strict=True)
    )
    zero = np.zeros(len(names))
    return Graph("by hand", (), nodes, matrix, counts, zero, zero + 1e-12, zero)


def named(graph: Graph, values: Array) -> dict[str, float]:
    return {
        node.label: float(value)
        for node, value in zip(graph.nodes, values, strict=True)
        if value != 0
    }


def edges_of(graph: Graph, values: Array | None = None) -> dict[tuple[str, str], float]:
    values = graph.weights if values is None else values
    at = zip(*np.nonzero(values), strict=True)
    return {(graph.nodes[t].label, graph.nodes[s].label): float(values[t, s]) for t, s in at}


def test_influence_by_hand() -> None:
    """9/16 reaches f2, 1/8 each f1 and t1 from the second logit; then on by f2's shares."""
    graph = drawn(EDGES, WEIGHTS)
    wanted = {"t0": 35, "t1": 101, "e0": 72, "e1": 48, "f0": 18, "f1": 68, "f2": 144}
    assert named(graph, node_influence(graph)) == {
        name: number / 256 for name, number in wanted.items()
    }
    assert sum(wanted[name] for name in ("t0", "t1", "e0", "e1")) == 256


def test_closed_influence_by_hand() -> None:
    graph = drawn(EDGES, WEIGHTS)
    F = Fraction
    f2, f0 = F(9, 16), F(9, 128)
    f1 = F(1, 36) + f2 / 4
    wanted = {
        "t0": F(2, 7) * f0 + f1 / 4,
        "t1": F(1, 36) + f2 / 8 + f1 * F(3, 4),
        "c": F(7, 36) + F(5, 7) * f0,
        "e0": f2 / 2,
        "e1": F(3, 16),
        "f0": f0,
        "f1": f1,
        "f2": f2,
    }
    found = named(graph, node_influence(graph, closed=True))
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(float(value), rel=1e-15)
    assert sum(wanted[name] for name in ("t0", "t1", "c", "e0", "e1")) == 1


def test_edges_by_hand() -> None:
    graph = drawn(EDGES, WEIGHTS)
    assert edges_of(graph, edge_influence(graph)) == {
        ("f0", "t0"): 18 / 256,
        ("f1", "t0"): 17 / 256,
        ("f1", "t1"): 51 / 256,
        ("f2", "f0"): 18 / 256,
        ("f2", "f1"): 36 / 256,
        ("f2", "t1"): 18 / 256,
        ("f2", "e0"): 72 / 256,
        ("l0", "f2"): 144 / 256,
        ("l0", "e1"): 48 / 256,
        ("l1", "f1"): 32 / 256,
        ("l1", "t1"): 32 / 256,
    }
    closed = edges_of(graph, edge_influence(graph, closed=True))
    assert closed["l1", "c"] == pytest.approx(7 / 36, rel=1e-15)
    assert closed["l1", "f1"] == pytest.approx(1 / 36, rel=1e-15)


def test_scores_by_hand() -> None:
    """Of 742 parts that are read, f2 has 72 from an error and the first logit 48."""
    graph = drawn(EDGES, WEIGHTS)
    found, closed = scores(graph), scores(graph, closed=True)
    assert found.replacement == pytest.approx(17 / 32, rel=1e-15)
    assert found.completeness == pytest.approx(622 / 742, rel=1e-15)
    assert closed.replacement == pytest.approx(17 / 32, rel=1e-15)
    total = float((node_influence(graph, closed=True) + graph.logit_weights).sum())
    assert closed.completeness == pytest.approx(1 - (15 / 32) / total, rel=1e-14)


def test_a_graph_without_errors_is_complete_and_one_of_errors_is_not() -> None:
    whole = drawn({"f0": {"t0": 2}, "l0": {"f0": -3, "t0": 1}}, {"l0": 0.4})
    assert (scores(whole).replacement, scores(whole).completeness) == (1, 1)
    empty = drawn({"l0": {"e0": -3}}, {"l0": 0.4})
    assert scores(empty).replacement == 0
    assert scores(empty).completeness == pytest.approx(0.5)  # the error counts as told by itself
    nothing = drawn({"l0": {"c": 1}}, {"l0": 0.4})
    assert (scores(nothing).replacement, scores(nothing).completeness) == (1, 1)


def test_an_mlp_that_no_unit_stands_for_is_missed_in_closed_scores_alone() -> None:
    graph = drawn({"l0": {"e0": 1, "t0": 1}}, {"l0": 1.0})
    nodes = tuple(Node("mlp", "L0M") if node.label == "e0" else node for node in graph.nodes)
    graph = Graph("by hand", (), nodes, *(graph.weights, graph.logit_weights), *rest(graph))
    assert scores(graph).replacement == 1
    assert scores(graph, closed=True).replacement == 0.5


def rest(graph: Graph) -> tuple[Array, Array, Array]:
    return graph.gap, graph.gap_bound, graph.remainder


def test_signs_and_rows_of_nothing() -> None:
    assert shares(np.array([[1.0, -3.0], [0.0, 0.0]])).tolist() == [[0.25, 0.75], [0.0, 0.0]]
    tiny = shares(np.array([[1e-30, 0.0]]))
    assert tiny[0, 0] == pytest.approx(1e-20)  # too small to be blown up to a whole share
    assert influence(np.zeros((0, 0)), np.zeros(0)).shape == (0,)


@pytest.mark.parametrize(
    ("share", "cut"), [(0, 8), (0.5, 8), (0.51, 4), (0.75, 4), (0.76, 2), (0.9, 2), (1, 2)]
)
def test_a_cut_counts_what_reaches_the_share_itself(share: float, cut: float) -> None:
    assert cut_at(np.array([[2.0, 8.0], [2.0, 4.0]]), share) == cut


def test_cuts_of_nothing() -> None:
    assert cut_at(np.zeros(3), 0.5) == 0 == cut_at(np.zeros(0), 0.5)


def test_pruning_by_hand() -> None:
    """Half of 486 parts are f2 and t1; on what is left, two edges tie at 3/4."""
    graph = drawn(EDGES, WEIGHTS)
    found = prune(graph, nodes=0.5, edges=1)
    assert [node.label for node in found.nodes] == ["c", "f2", "t0", "t1", "l0", "l1"]
    assert edges_of(found) == {
        ("f2", "t1"): 1,
        ("l0", "f2"): 3,
        ("l1", "t1"): 1,
        ("l1", "c"): 7,
    }
    assert named(found, found.remainder) == {"f2": 5, "l0": 1, "l1": 1}
    fewer = prune(graph, nodes=0.5, edges=0.4)
    assert edges_of(fewer) == {("f2", "t1"): 1, ("l0", "f2"): 3, ("l1", "c"): 7}
    assert named(fewer, fewer.remainder) == {"f2": 5, "l0": 1, "l1": 2}
    assert named(fewer, fewer.logit_weights) == WEIGHTS


def test_equal_influence_is_kept_together() -> None:
    edges: dict[str, dict[str, float]] = {
        "l0": {"f0": 1, "f1": -1, "f2": 0.5},
        "f0": {"t0": 1},
        "f1": {"t1": 1},
        "f2": {"t2": 1},
    }
    for nodes in (0.1, 0.3, 0.5, 0.79):
        kept = prune(drawn(edges, {"l0": 1.0}), nodes=nodes, edges=1)
        assert {node.label for node in kept.nodes} >= {"f0", "f1"}
        assert "f2" not in {node.label for node in kept.nodes}
    whole = prune(drawn(edges, {"l0": 1.0}), nodes=1, edges=1)
    assert "f2" in {node.label for node in whole.nodes}


def test_what_reads_nothing_or_is_not_read_goes_step_by_step() -> None:
    """Cut off f1's three inputs: f1 goes, then what only it reads."""
    edges: dict[str, dict[str, float]] = {
        "f0": {"t0": 1},
        "f1": {"f0": 1, "t1": 1, "e0": 1, "c": 9},
        "l0": {"f1": 4, "t0": 6, "c": 2},
    }
    graph = drawn(edges, {"l0": 1.0})
    whole = prune(graph, nodes=1, edges=1)
    assert len(whole) == len(graph) and not whole.remainder.any()
    found = prune(graph, nodes=1, edges=0.6)
    assert [node.label for node in found.nodes] == ["c", "t0", "t1", "l0"]
    assert edges_of(found) == {("l0", "t0"): 6, ("l0", "c"): 2}
    assert named(found, found.remainder) == {"l0": 4}


def test_pruned_twice_is_accounted_for_twice() -> None:
    graph = drawn(EDGES, WEIGHTS)
    twice = prune(prune(graph, nodes=0.9, edges=0.95), nodes=0.5, edges=0.5)
    target = twice.is_target
    assert np.allclose((twice.weights.sum(axis=1) + twice.remainder)[target], twice.values[target])


def off(graph: Graph) -> Array:
    """Give how far each row with its remainder is from its value: (node,)."""
    return np.asarray(abs(graph.values - graph.weights.sum(axis=1) - graph.remainder))


SHARES = [(0.8, 0.98), (0.3, 0.5), (0.0, 0.0), (1.0, 1.0), (1.0, 0.2)]


@pytest.mark.parametrize(("nodes", "edges"), SHARES)
@pytest.mark.parametrize("zero", [0, 1])
def test_pruned_graphs_close_by_their_remainders(nodes: float, edges: float, zero: int) -> None:
    run = small(1, sizes={"n_layers": 3}).run(PROMPT)
    for options in ({"clt": True, "skip": True}, {"kind": "sae", "hook": "resid_mid"}):
        graph = graph_of(run, random_units(run, **options), zero)
        found = prune(graph, nodes=nodes, edges=edges)
        assert found.closes
        assert (off(found) <= found.gap_bound).all()
        assert not found.remainder[~found.is_target].any()
        same = np.isin([id(node) for node in graph.nodes], [id(node) for node in found.nodes])
        outer = graph.weights[np.ix_(same, same)]
        assert (outer[found.weights != 0] == found.weights[found.weights != 0]).all()
        kinds = {"feature", "error"}
        assert all(kept or node.kind in kinds for kept, node in zip(same, graph.nodes, strict=True))
        constant = [node.kind == "constant" for node in found.nodes]
        assert np.array_equal(found.weights[:, constant], outer[:, constant])
        if edges < 0.9:
            assert abs(found.remainder).max() > 1e-3 * gross(graph).max()


def test_a_remainder_that_is_forgotten_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    run = small(1).run(PROMPT)
    graph = graph_of(run, random_units(run, clt=True))
    right = influence_module.replace

    def forgotten(made: Any, **parts: Any) -> Any:
        parts.pop("remainder", None)
        if "nodes" in parts:
            parts["remainder"] = np.zeros(len(parts["nodes"]))
        return right(made, **parts)

    monkeypatch.setattr(influence_module, "replace", forgotten)
    found = prune(graph)
    assert (off(found) > found.gap_bound).any()


def test_influence_of_a_graph_adds_up() -> None:
    """What reaches leaves is all that logits weigh, for nothing is lost on the way."""
    run = small(2, sizes={"n_layers": 3}).run(PROMPT)
    graph = graph_of(run, random_units(run, clt=True))
    for closed in (False, True):
        found = node_influence(graph, closed=closed)
        kinds = np.array([node.kind for node in graph.nodes])
        leaves = ~np.isin(kinds, ("feature", "logit"))
        assert found[leaves].sum() == pytest.approx(graph.logit_weights.sum(), rel=1e-12)
        edges = edge_influence(graph, closed=closed)
        assert np.allclose(edges.sum(axis=0), found, rtol=1e-12, atol=1e-15)
        score = scores(graph, closed=closed)
        assert 0 < score.replacement < 1 and 0 < score.completeness < 1


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), True, "0.5", None])
@pytest.mark.parametrize("name", ["nodes", "edges"])
def test_what_is_no_share_is_refused_in_one_line(name: str, share: Any) -> None:
    with pytest.raises(PathExpandError, match=f"{name}: wanted a share from 0 to 1") as caught:
        prune(drawn(EDGES, WEIGHTS), **{name: share})
    assert len(str(caught.value).splitlines()) == 1
