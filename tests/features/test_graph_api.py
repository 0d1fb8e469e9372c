"""Graphs by way of runs and names: what is shown, compared, left out and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.api import Run
from pathexpand.api.graph import embedded_features, own_features
from pathexpand.errors import FileError, ModelError, PathExpandError
from pathexpand.features.export import graph_json
from pathexpand.features.fit import reconstruction
from pathexpand.features.graph import Attribution, Graph, Logits, name_of
from pathexpand.features.graph_file import load_graph
from pathexpand.features.graph_schema import check_graph_json
from pathexpand.features.graph_table import edges_table, nodes_table, summary_table
from pathexpand.features.influence import prune, scores
from pathexpand.features.intervention import PathChange
from pathexpand.features.unit import Unit, UnitSet
from tests.api.models import small
from tests.features.graphs import PROMPT, graph_of, made_of, random_units
from tests.features.random_graph import random_graph

TEXT = "Humpty Dumpty sat on a wall. Humpty D"


def run_of(seed: int = 0, prompt: list[int] = PROMPT, **sizes: Any) -> Run:
    return small(seed, sizes={"n_layers": 3, **sizes}).run(prompt)


@pytest.fixture(scope="module")
def graph() -> Graph:
    run = run_of()
    return graph_of(run, random_units(run))


def one_line(error: pytest.ExceptionInfo[Any]) -> str:
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


# --- shown and compared ---------------------------------------------------------------------------


def test_what_is_shown_is_short(graph: Graph) -> None:
    edges = np.count_nonzero(graph.weights)
    assert repr(graph) == f"Graph('random': {len(graph)} nodes, {edges:,} edges, closes)".replace(
        "random", graph.model
    )
    off = replace(graph, gap=graph.gap + 1.0)
    assert repr(off).endswith("does not close)")
    run = run_of()
    made = made_of(run, random_units(run))
    logits = Logits(np.arange(8), np.ones(8))
    whole = Attribution.of(
        made, run.unembed, logits, names=["a"] * 7, logit_names=["b"] * 8, position=6
    )
    for each in (graph, made, whole, logits, graph.nodes[0], made.units, made.units.units[0]):
        assert len(repr(each)) < 160 and "array" not in repr(each)
    assert repr(logits) == "Logits(8: 0, 1, 2, 3, 4, …)"
    assert "<table" in graph._repr_html_()


def test_nodes_have_names(graph: Graph) -> None:
    assert [node.name for node in graph.nodes] == [name_of(node) for node in graph.nodes]
    feature = next(node for node in graph.nodes if node.kind == "feature")
    assert feature.name == f"L{feature.layer}F{feature.index}@{feature.position}"
    assert repr(feature) == f"Node('{feature.name}', feature)"


def test_graphs_are_equal_by_contents(graph: Graph, tmp_path: Path) -> None:
    run = run_of()
    again = graph_of(run, random_units(run))
    assert again is not graph and again == graph and hash(again) == hash(graph)
    graph.save(tmp_path / "g.safetensors")
    assert load_graph(tmp_path / "g.safetensors") == graph
    for name in ("weights", "logit_weights", "gap", "gap_bound", "remainder"):
        array = getattr(graph, name).copy()
        array.flat[-1] += 1e-9
        assert replace(graph, **{name: array}) != graph, name
    nodes = (*graph.nodes[:-1], replace(graph.nodes[-1], label="other"))
    assert replace(graph, nodes=nodes) != graph
    assert replace(graph, model="other") != graph and prune(graph) != graph
    assert graph != 5


def test_how_well_the_features_do_is_kept_in_the_file(tmp_path: Path) -> None:
    whole = pathexpand.load("two-layer").run(TEXT).graph()
    assert "FVU" in whole.fit and prune(whole).fit == whole.fit
    whole.save(tmp_path / "g.safetensors")
    again = load_graph(tmp_path / "g.safetensors")
    assert str(nodes_table(again)) == str(nodes_table(whole))


# --- what is said under tables --------------------------------------------------------------------


def test_layers_without_features_are_named() -> None:
    run = run_of()
    for layers, said in (([0], "Layers 1 and 2 have"), ([1, 2], "Layer 0 has"), ([], "")):
        units = random_units(run, layers=layers or None)
        found = graph_of(run, units, 1)
        for table in (nodes_table(found), summary_table(found), nodes_table(prune(found))):
            text = " ".join(str(table).split())
            assert (said or "no features") in text or not said
            assert ("no features" in text) == bool(said)
            assert ("as circuit-tracer scores" in text) == (not said)
            assert ("not comparable" in text) == bool(said)
    deep = run_of(n_layers=5)
    text = str(nodes_table(graph_of(deep, random_units(deep, layers=[0]))))
    assert "Layers 1 to 4 have no features: their MLPs are one node each" in text


def test_mlps_beside_saes_are_not_compared() -> None:
    run = run_of()
    saes = random_units(run, kind="sae", hook="resid_post", layers=[0, 1, 2])
    assert "not comparable" in str(nodes_table(graph_of(run, saes)))


def test_claims_agree_with_their_subjects(graph: Graph) -> None:
    assert "What is in the graph adds up to" in str(nodes_table(graph))
    pruned = prune(graph)
    assert "What is kept and what is pruned add up to" in " ".join(str(nodes_table(pruned)).split())
    node = next(node for node in graph.nodes if node.kind == "error")
    with pytest.raises(PathExpandError, match="got an error"):
        graph.paths(0, node.name)
    with pytest.raises(PathExpandError, match="got an error"):
        edges_table(graph, node.name, direction="incoming")


def test_the_largest_gap_is_of_what_reads(graph: Graph) -> None:
    exact = replace(graph, gap=np.zeros(len(graph)))
    for table in (nodes_table(exact), nodes_table(prune(exact, nodes=0), whole=exact)):
        line = next(line for line in table.closing if line.label == "largest gap")
        name = line.remark.split(",")[0]
        assert graph.nodes[graph.find(name)].kind in ("feature", "logit")


def test_an_edge_that_nothing_carries_says_so(graph: Graph) -> None:
    first = next(n for n, node in enumerate(graph.nodes) if node.kind == "feature")
    last = next(n for n in reversed(range(len(graph))) if graph.nodes[n].kind == "feature")
    back = graph.paths(last, first)
    ends = graph.nodes[last].name, graph.nodes[first].name
    assert back.count == 0
    assert back.table().claims == (f"No path leads from {ends[0]} to {ends[1]}.",)
    early = next(n for n in graph.nodes if n.kind == "feature" and n.layer == 2 and not n.position)
    table = graph.paths("embed@5", early.name).table()
    assert table.claims == (f"No path brings anything from embed@5 to {early.name}.",)
    assert all(str(row["share"]) == "0.0" for row in table)


def test_a_share_of_nothing_has_no_sign() -> None:
    run = run_of()
    units = random_units(run)
    graph = graph_of(run, units)
    name = next(x.name for x in graph.nodes if x.layer == 2 and x.index and x.position == 6)
    seen = 0
    for source in range(4):  # tokens before it: nothing of theirs gets there directly
        edge = graph.paths(source, name, top=99)
        for row in edge.table():
            if row["value"] == 0 and edge.weight < 0:
                seen += 1
                assert str(row["share"]) == "0.0"
    assert seen


def test_many_nodes_of_one_name_are_counted(graph: Graph) -> None:
    count = sum(node.label == "L1E" for node in graph.nodes)
    assert count > 5
    with pytest.raises(PathExpandError) as caught:
        graph.find("L1E")
    assert one_line(caught).endswith(f"L1E@4 and {count - 5} more")


# --- left out -------------------------------------------------------------------------------------


def test_positions_that_are_left_out_do_not_count_in_the_fit() -> None:
    run = pathexpand.load("two-layer").run(TEXT)
    units = pathexpand.load_units("two-layer")
    fits = {zero: run.graph(zero_positions=zero).fit for zero in (0, 1, 5)}
    assert fits[0] == fits[1] != fits[5]  # a start token never counts
    assert run.graph(zero_positions=len(run.tokens)).fit.endswith("no position has features")
    for zero, first in ((0, 1), (5, 5)):
        mean = reconstruction(units, run, first=first).closing[1].value
        assert mean is not None and f"mean FVU {mean:.4g}" in fits[zero]


def test_bad_features_where_they_are_left_out_are_no_reason_to_refuse() -> None:
    run = run_of()
    units = random_units(run)
    with pytest.raises(PathExpandError, match="FVU"):
        run.graph(units)
    assert run.graph(units, zero_positions=len(PROMPT)).closes


@pytest.mark.parametrize("zero", [20, 10**30])
def test_more_positions_than_there_are_cannot_be_left_out(zero: int) -> None:
    run = pathexpand.load("two-layer").run("to be or not to be")
    with pytest.raises(PathExpandError, match="zero_positions") as caught:
        run.graph(zero_positions=zero)
    one_line(caught)


def test_a_prompt_too_short_to_measure_says_so() -> None:
    model = pathexpand.load("two-layer")
    assert "mean FVU not measured" in model.run("a").graph().fit
    assert "mean FVU 0." in model.run(TEXT).graph().fit


def test_l0_says_of_which_layers_it_is() -> None:
    run = run_of()
    for layers, said in (([0, 1, 2], "all layers"), ([0, 2], "its layers"), ([1], "its layer")):
        table = reconstruction(random_units(run, layers=layers), run, force=True)
        assert table.closing[0].label == f"L0 of {said}"


# --- attention ------------------------------------------------------------------------------------


def test_attention_is_of_the_graphs_own_position(graph: Graph) -> None:
    run = run_of()
    early = graph_of(run, random_units(run), position=3)
    assert early.attention("L1H0", 2).query == 3
    assert early.attention("L1H0", 2, query=5).query == 5
    assert graph.attention("L1H0", 2).query == len(PROMPT) - 1


def test_pairs_are_found_by_name(graph: Graph) -> None:
    score = graph.attention("L2H1", 2)
    for row in score.table(7):
        value = score.pair(row["query node"], row["key node"])
        assert value == pytest.approx(row["value"], rel=1e-12)
    assert score.pair("b_Q", "b_K") == score.pair(-1, -1)
    for pair in (("L9F9@1", 0), (0, "b_Q"), (len(score.nodes) + 1, 0), (0, -2), (None, 0)):
        with pytest.raises(PathExpandError) as caught:
            score.pair(*pair)  # type: ignore[arg-type]
        one_line(caught)
    with pytest.raises(PathExpandError, match="top") as caught:
        score.table(-1)
    one_line(caught)


def test_a_head_that_is_not_there_is_told_which_are(graph: Graph) -> None:
    with pytest.raises(PathExpandError, match="a head of 3 layers of 3, got L7H9"):
        graph.attention("L7H9", 2)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", [-1, 1.5, None, True])
def test_rows_of_paths_are_counted(graph: Graph, top: Any) -> None:
    target = next(node.name for node in graph.nodes if node.layer == 2 and node.kind == "feature")
    with pytest.raises(PathExpandError, match="top: wanted a whole number") as caught:
        graph.paths("embed@0", target, top=top)
    one_line(caught)
    table = graph.paths("embed@0", target, top=0).table()
    assert table.rows == () and table.good


def test_what_is_no_graph_is_refused() -> None:
    for call in (prune, scores):
        with pytest.raises(PathExpandError, match="a graph, got 5") as caught:
            call(5)  # type: ignore[operator]
        one_line(caught)
    with pytest.raises(PathExpandError, match="a graph, got 5"):
        graph_json(5, slug="a")  # type: ignore[arg-type]
    with pytest.raises(FileError, match="the name of a file"):
        load_graph(5)  # type: ignore[arg-type]
    with pytest.raises(FileError, match="the name of a file"):
        random_graph(layers=1).save(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (3, "a list of tokens, got 3"),
        (np.array(3), "a list of tokens"),
        (" to", "a list of tokens, got ' to'"),
        ([np.ones(192)], "single tokens, got a direction"),
        ([(3, 5)], "single tokens, got a difference"),
    ],
)
def test_targets_are_tokens(targets: Any, said: str) -> None:
    run = pathexpand.load("two-layer").run("to be or not to be")
    with pytest.raises(PathExpandError, match=said) as caught:
        run.graph(targets=targets)
    one_line(caught)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"probability": "a"}, "probability: wanted a number above 0"),
        ({"probability": None}, "probability: wanted a number above 0"),
        ({"zero_positions": None}, "zero_positions: wanted a whole number"),
        ({"top_logits": None}, "top_logits: wanted a whole number"),
    ],
)
def test_options_of_graphs_are_numbers(options: dict[str, Any], said: str) -> None:
    run = pathexpand.load("two-layer").run("to be or not to be")
    with pytest.raises(PathExpandError, match=said) as caught:
        run.graph(**options)
    one_line(caught)


CALLS: dict[str, Callable[[Graph], Any]] = {
    "node": lambda graph: graph.find(np.arange(3)),  # type: ignore[arg-type]
    "source": lambda graph: PathChange(3, (), "a", 0),  # type: ignore[arg-type]
    "target": lambda graph: PathChange("embed@0", (), None, 0),  # type: ignore[arg-type]
    "a UnitSet": lambda graph: reconstruction(5, run_of()),  # type: ignore[arg-type]
    "a tuple of units": lambda graph: UnitSet(5, "saes"),  # type: ignore[arg-type]
    "units, got": lambda graph: UnitSet((1,), "saes"),  # type: ignore[arg-type]
    "numbers from 0 to": lambda graph: unit_of(graph).decoder([99]),
    "from 0 to 16": lambda graph: unit_of(graph).encoder([-1]),
    "0 to 16, got": lambda graph: unit_of(graph).constants([0.5]),
    "input: wanted numbers": lambda graph: unit_of(graph).encode("a"),  # type: ignore[arg-type]
}


def unit_of(graph: Graph) -> Unit:
    assert graph.made is not None
    return graph.made.units.units[0]


@pytest.mark.parametrize("said", CALLS)
def test_what_is_given_by_mistake_is_named(graph: Graph, said: str) -> None:
    with pytest.raises(PathExpandError, match=said) as caught:
        CALLS[said](graph)
    one_line(caught)


# --- features that come with the package ----------------------------------------------------------


def test_the_packages_own_features_are_known_by_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = embedded_features()
    assert list(known) == ["stories260k", "two-layer"]
    two = pathexpand.load("two-layer").checkpoint
    renamed = replace(two, config=replace(two.config, model_name="mine"))
    assert own_features(renamed) == (known["two-layer"][0], "two-layer")
    with pytest.raises(ModelError, match="those of stories260k and two-layer come with"):
        own_features(small(0).checkpoint)

    def digest(_: object) -> str:
        return "another"

    monkeypatch.setattr(type(two), "digest", digest)
    assert own_features(two)[1] == "two-layer"  # by its name
    with pytest.raises(ModelError):
        own_features(renamed)


@pytest.mark.shared_models
def test_stories260k_has_transcoders() -> None:
    place = Path(__file__).parents[3] / "shared" / "models" / "stories260k"
    graph = pathexpand.load(place).run("Once upon a time").graph()
    assert graph.closes and graph.fit.startswith("those of stories260k: L0 of all layers")


# --- export ---------------------------------------------------------------------------------------


def test_links_of_features_have_the_paths_that_carry_them(graph: Graph) -> None:
    plain = json.loads(graph.to_json(slug="a", nodes=0.8))
    assert not any("paths" in link or "paths_rest" in link for link in plain["links"])
    document = json.loads(graph.to_json(slug="a", nodes=0.8, paths=True))
    check_graph_json(document)
    kinds = {node["node_id"]: node["feature_type"] for node in document["nodes"]}
    carried = 0
    for link, bare in zip(document["links"], plain["links"], strict=True):
        ends = {kinds[link["source"]], kinds[link["target"]]}
        assert ("paths" in link) <= ("cross layer transcoder" in ends)
        if "paths" in link:
            carried += 1
            total = sum(path["value"] for path in link["paths"]) + link["paths_rest"]
            assert len(link["paths"]) <= 3
            assert total == pytest.approx(link["weight"], rel=1e-9, abs=1e-11)
        assert {k: v for k, v in link.items() if not k.startswith("paths")} == bare
    assert 100 < carried <= 500


def test_no_more_than_500_links_have_paths(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathexpand.features.export._MOST_CARRIED", 7)
    document = json.loads(graph.to_json(slug="a", paths=True))
    with_paths = [abs(link["weight"]) for link in document["links"] if "paths" in link]
    assert len(with_paths) == 7


def test_paths_need_a_run(graph: Graph, tmp_path: Path) -> None:
    graph.save(tmp_path / "g.safetensors")
    with pytest.raises(PathExpandError, match="a graph of a run") as caught:
        load_graph(tmp_path / "g.safetensors").to_json(slug="a", paths=True)
    one_line(caught)
