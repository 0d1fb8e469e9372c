"""Edges as sums of paths: every chain of heads and skips multiplied out, and ranked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from pathexpand.api import Run
from pathexpand.engine import kernel
from pathexpand.engine.search import Budget
from pathexpand.errors import PathExpandError
from pathexpand.features import paths as paths_module
from pathexpand.features.graph import Graph, name_of
from pathexpand.features.influence import prune
from pathexpand.features.paths import edge_paths
from pathexpand.features.unit import UnitSet
from tests.api.models import small
from tests.features.chains import brute
from tests.features.graphs import PROMPT, graph_of, gross, random_units

KINDS: dict[str, dict[str, Any]] = {
    "transcoders": {},
    "skip": {"skip": True, "activation": "jumprelu"},
    "cross": {"clt": True},
    "cross, skip": {"clt": True, "skip": True, "hook": "resid_mid"},
    "some": {"layers": [1], "skip": True},
    "sae before": {"kind": "sae", "hook": "resid_pre", "layers": [1]},
    "sae between": {"kind": "sae", "hook": "resid_mid"},
    "sae behind": {"kind": "sae", "hook": "resid_post", "layers": [0]},
}


@cache
def made(kind: str, layers: int = 3, seed: int = 0) -> tuple[Run, UnitSet, Graph]:
    run = small(seed, sizes={"n_layers": layers}).run(PROMPT)
    units = random_units(run, seed=seed + 1, features=13, **KINDS[kind])
    return run, units, graph_of(run, units)


def draw(graph: Graph, count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Draw pairs, half of them of edges that are not 0."""
    rng = np.random.default_rng(seed)
    targets, sources = np.nonzero(graph.weights)
    some = rng.choice(len(targets), count // 2, replace=False)
    pairs = [(int(sources[n]), int(targets[n])) for n in some]
    readers = np.flatnonzero(graph.is_target)
    rest = zip(
        rng.integers(len(graph), size=count - len(pairs)),
        rng.choice(readers, count - len(pairs)),
        strict=True,
    )
    return pairs + [(int(source), int(target)) for source, target in rest]


def checkable(graph: Graph, source: int, target: int) -> bool:
    """Say whether chains can tell: not for constants of the target itself, nor whole MLPs."""
    node = graph.nodes[source]
    return node.kind not in ("mlp", "logit") and not node.label.endswith(("b_enc", "b_U"))


def is_head_of(ours: list[float], sizes: list[float], near: float) -> bool:
    """Say whether sizes of paths are the largest ones; where there are none, all are 0."""
    wanted = np.zeros(len(ours))
    wanted[: len(sizes)] = sizes[: len(ours)]
    return bool((abs(np.array(ours) - wanted) <= near).all())


@pytest.mark.parametrize("kind", KINDS)
def test_every_edge_is_the_sum_of_its_chains(kind: str) -> None:
    """All edges, dense: this is an attribution graph without the engine."""
    run, units, graph = made(kind, 2)
    size, seen = gross(graph), 0
    for target in np.flatnonzero(graph.is_target)[::5]:
        for source in range(len(graph)):
            if checkable(graph, source, target):
                wanted = sum(brute(run, units, graph, source, int(target)).values())
                assert abs(graph.weights[target, source] - wanted) <= 1e-12 * size[target]
                seen += wanted != 0
    assert seen > 50


@pytest.mark.parametrize("kind", KINDS)
def test_the_ranked_paths_are_the_largest_chains(kind: str) -> None:
    run, units, graph = made(kind)
    several = 0
    for source, target in draw(graph, 24):
        if not checkable(graph, source, target):
            continue
        found = graph.paths(source, target, top=6)
        every = brute(run, units, graph, source, target)
        sizes = sorted(map(abs, every.values()), reverse=True)
        assert found.closes and found.certified
        assert found.weight == graph.weights[target, source]
        near = 1e-12 * gross(graph)[target]
        assert is_head_of([abs(path.value) for path in found.paths], sizes, near)
        assert all(size <= found.bound + near for size in sizes[len(found.paths) :])
        left = sum(every.values()) - sum(path.value for path in found.paths)
        assert abs(found.remainder - left) <= near
        for path in found.paths:
            same = [value for (_, chain), value in every.items() if chain == path.components]
            assert min((abs(path.value - value) for value in same), default=0) <= near
        several += len(every) > 6 or kind == "sae between"  # there a cut stands before each MLP
    assert several


def test_a_cross_layer_feature_counts_each_of_its_births() -> None:
    run, units, graph = made("cross, skip")
    source = next(n for n, node in enumerate(graph.nodes) if node.label[:3] == "L0F")
    target = len(graph) - 1
    every = brute(run, units, graph, source, target)
    assert {start for start, _ in every} == {2, 4, 6}
    found = graph.paths(source, target, top=10_000)
    assert found.count == len(found.paths) == len(every) == 16 * 5 - 16 + 8 + 1
    assert found.remainder == pytest.approx(0, abs=1e-12 * gross(graph)[target])
    chains = sorted(chain for _, chain in every)
    assert sorted(path.components for path in found.paths) == chains


def test_constants_of_the_target_itself_are_one_path() -> None:
    _, _, graph = made("skip")
    for target in np.flatnonzero(graph.is_target)[[0, -1]]:
        node = graph.nodes[target]
        label = "b_U" if node.kind == "logit" else f"L{node.layer}b_enc"
        found = graph.paths(label, int(target))
        assert [path.label for path in found.paths] == ["direct"]
        assert found.closes and found.certified and found.remainder == 0
        assert found.paths[0].value == found.weight == graph.weights[target, graph.find(label)]
        assert "Complete: no path is left out." in str(found)


def test_a_search_that_is_stopped_says_so_and_still_closes() -> None:
    run, units, graph = made("cross, skip")
    target = len(graph) - 1
    source = next(n for n, node in enumerate(graph.nodes) if node.kind == "token")
    every = sorted(map(abs, brute(run, units, graph, source, target).values()), reverse=True)
    found = edge_paths(graph, source, target, top=3, budget=Budget(nodes=2))
    assert not found.certified and found.closes
    listed = sorted((abs(path.value) for path in found.paths), reverse=True)
    left = list(every)
    for size in listed:
        left.remove(min(left, key=lambda each: abs(each - size)))
    assert found.bound >= max(left) * (1 - 1e-9)
    assert "Stopped early" in str(found)


def test_what_lies_before_a_cut_reaches_nothing_behind_it() -> None:
    _, _, graph = made("sae before")
    token, logit = graph.find("embed@2"), len(graph) - 1
    found = graph.paths(token, logit)
    assert found.weight == found.remainder == 0
    assert all(path.value == 0 for path in found.paths)
    feature = next(n for n, node in enumerate(graph.nodes) if node.kind == "feature")
    assert any(path.value for path in graph.paths(token, feature).paths) == (
        graph.weights[feature, token] != 0
    )


def test_a_pruned_graph_has_paths_of_the_edges_it_kept() -> None:
    _, _, graph = made("cross, skip")
    pruned = prune(graph)
    targets, sources = np.nonzero(pruned.weights)
    assert len(pruned) < len(graph)
    for n in range(0, len(targets), max(len(targets) // 12, 1)):
        found = pruned.paths(int(sources[n]), int(targets[n]))
        assert found.closes and found.certified


def test_the_table_has_the_sums() -> None:
    _, _, graph = made("cross, skip")
    found = graph.paths(graph.find("embed@2"), len(graph) - 1, top=4)
    text = str(found)
    assert "source  embed@2" in text and f"{found.count - 4} paths" in text
    assert "Certified: each of the" in text
    assert max(map(len, text.splitlines())) <= 80


def test_what_has_no_paths_is_refused_in_one_line() -> None:
    _, _, graph = made("skip")
    feature = next(n for n, node in enumerate(graph.nodes) if node.kind == "feature")
    loose = replace(graph, made=None, unembed=None)
    for source, target, where, said in (
        (feature, "embed@1", graph, "a feature or a logit"),
        ("L9F9@9", feature, graph, "the name of one node"),
        (len(graph), feature, graph, "a number from 0 to"),
        (-1, feature, graph, "a number from 0 to"),
        ("embed", feature, graph, "of embed@0, embed@1"),
        (0, feature, loose, "read from a file"),
    ):
        with pytest.raises(PathExpandError, match=said) as caught:
            where.paths(source, target)
        assert len(str(caught.value).splitlines()) == 1


def small_kernels(patch: pytest.MonkeyPatch) -> None:
    right = kernel.HeadKernel.bound
    patch.setattr(kernel.HeadKernel, "bound", lambda *given: right(*given) / 1000)


def elsewhere(patch: pytest.MonkeyPatch) -> None:
    """Let everything be born one position too late."""
    right = paths_module.FrozenSource

    def source(label: str, boundary: int, values: Any) -> Any:
        return right(label, boundary, np.roll(values, 1, axis=0))

    patch.setattr(paths_module, "FrozenSource", source)


def first_birth(patch: pytest.MonkeyPatch) -> None:
    """Forget all but the first layer that a feature writes."""
    right = paths_module.FrozenSum

    def total(sources: Any, *given: Any) -> Any:
        return right(sources[:1], *given)

    patch.setattr(paths_module, "FrozenSum", total)


@pytest.mark.parametrize("fault", [elsewhere, first_birth])
def test_a_broken_sum_does_not_close(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, graph = made("cross")
    source = next(n for n, node in enumerate(graph.nodes) if node.label[:3] == "L0F")
    assert graph.paths(source, len(graph) - 1).closes
    fault(monkeypatch)
    assert not graph.paths(source, len(graph) - 1).closes


def test_bounds_that_are_too_small_lose_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    run, units, graph = made("cross, skip")
    small_kernels(monkeypatch)
    lost = 0
    for source, target in draw(graph, 24):
        if checkable(graph, source, target):
            found = graph.paths(source, target, top=3)
            every = brute(run, units, graph, source, target)
            sizes = sorted(map(abs, every.values()), reverse=True)[:3]
            near = 1e-12 * gross(graph)[target]
            lost += not is_head_of([abs(path.value) for path in found.paths], sizes, near)
    assert lost


def test_names_find_every_node_that_has_one_of_its_own() -> None:
    _, _, graph = made("cross")
    for n, node in enumerate(graph.nodes):
        assert graph.find(name_of(node)) == graph.find(n) == n
