"""Graphs as JSON for the pages of others, as files of our own, and as tables."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pathexpand.errors import FileError, PathExpandError
from pathexpand.features.export import graph_json, graph_metadata, graph_text, plain_token
from pathexpand.features.graph import Graph, name_of
from pathexpand.features.graph_file import load_graph
from pathexpand.features.graph_schema import check_graph_json
from pathexpand.features.graph_table import edges_table, nodes_table, summary_table
from pathexpand.features.influence import compared, node_influence, prune, scores
from pathexpand.table import AnalysisTable
from tests.features.random_graph import PROMPT, random_graph

Document = dict[str, Any]


@pytest.fixture(scope="module")
def whole() -> Graph:
    return random_graph()


# --- JSON for pages -------------------------------------------------------------------------------


def worst_sum(document: Document) -> float:
    """Give the most that a node's links and fields miss what it reads."""
    sums: dict[str, float] = {}
    for link in document["links"]:
        sums[link["target"]] = sums.get(link["target"], 0.0) + link["weight"]
    reading = [node for node in document["nodes"] if "preactivation" in node]
    assert reading
    return max(
        abs(
            node["preactivation"]
            - sums.get(node["node_id"], 0.0)
            - node.get("constant", 0.0)
            - node["pruned_remainder"]
        )
        for node in reading
    )


SETTINGS = ({}, {"nodes": 0.8, "edges": 0.98}, {"most_links": 23}, {"nodes": 0.5, "most_links": 0})


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("constants", ["drop", "nodes"])
def test_documents_are_read_and_close(
    whole: Graph, constants: Any, settings: dict[str, Any]
) -> None:
    document = graph_json(whole, slug="a-graph", constants=constants, **settings)
    read = json.loads(graph_text(document))
    check_graph_json(read)
    bound = float(whole.gap_bound.max())
    assert worst_sum(read) <= bound
    assert bool(settings) == any(node.get("pruned_remainder") for node in read["nodes"])
    assert len(read["links"]) <= settings.get("most_links", 10**9)
    # The test of the sums can fail.
    for spoil in ("pruned_remainder", "preactivation"):
        broken = copy.deepcopy(read)
        next(node for node in broken["nodes"] if "preactivation" in node)[spoil] += 1e-6
        assert worst_sum(broken) > bound


def test_what_is_dropped_counts_as_constant(whole: Graph) -> None:
    dropped = graph_json(whole, slug="a", constants="drop")
    kept = graph_json(whole, slug="a", constants="nodes")
    kinds = {node["feature_type"] for node in dropped["nodes"]}
    assert kinds == {
        "cross layer transcoder",
        "mlp reconstruction error",
        "embedding",
        "logit",
    }
    bias = [node for node in kept["nodes"] if node["feature_type"] == "bias"]
    assert len(dropped["nodes"]) + len(bias) == len(kept["nodes"]) == len(whole)
    ids = {node["node_id"] for node in bias}
    assert {"E_bias_pos_2", "0_bias_b_enc_all", "1_bias_b_dec_all", "0_bias_mlp_0"} <= ids
    assert {"2_bias_bias_all", "3_bias_b_U_all"} <= ids
    sums: dict[str, float] = {}
    for link in kept["links"]:
        if link["source"] in ids:
            sums[link["target"]] = sums.get(link["target"], 0.0) + link["weight"]
    found = {n["node_id"]: n["constant"] for n in dropped["nodes"] if "constant" in n}
    assert found == pytest.approx(sums, abs=1e-12) and any(found.values())


def test_ids_of_errors_are_no_ids_of_features(whole: Graph) -> None:
    document = graph_json(whole, slug="a")
    ids = [node["node_id"] for node in document["nodes"]]
    assert len(set(ids)) == len(ids) and "1_error_mlp_4" in ids
    errors = [node for node in whole.nodes if node.kind == "error"]
    # As circuit-tracer writes them, they would be.
    theirs = {f"0_{node.layer}_{node.position}" for node in errors}
    assert theirs & set(ids)


def test_nodes_are_as_the_pages_expect(whole: Graph) -> None:
    document = graph_json(whole, slug="a")
    nodes = {node["node_id"]: node for node in document["nodes"]}
    assert document["nodes"][-1]["feature_type"] == "logit"
    feature = next(node for node in whole.nodes if node.kind == "feature" and node.layer == 2)
    assert feature.index is not None
    written = nodes[f"2_{feature.index}_{feature.position}"]
    s = 2 + feature.index
    assert written["feature"] == s * (s + 1) // 2 + feature.index
    assert (written["layer"], written["ctx_idx"]) == ("2", feature.position)
    assert (written["activation"], written["preactivation"]) == (feature.activation, feature.value)
    assert nodes[f"E_{PROMPT[2]}_2"]["layer"] == "E"
    logits = [node for node in document["nodes"] if node["feature_type"] == "logit"]
    assert {node["layer"] for node in logits} == {"4"}
    assert sorted(node["clerp"][-9:] for node in logits) == ["(p=0.100)", "(p=0.200)", "(p=0.500)"]
    assert [node["token_prob"] for node in logits if node["is_target_logit"]] == [0.5]
    assert document["metadata"]["prompt"] == "".join(f"#{token}" for token in PROMPT)


def test_influence_is_the_share_up_to_a_node(whole: Graph) -> None:
    document = graph_json(whole, slug="a", nodes=0.8, edges=0.98)
    influence = node_influence(whole)
    feature = [n for n, node in enumerate(whole.nodes) if node.kind == "feature"]
    nodes = {node["node_id"]: node for node in document["nodes"]}
    some = [
        n
        for n in feature
        if f"{whole.nodes[n].layer}_{whole.nodes[n].index}_{whole.nodes[n].position}" in nodes
    ]
    assert some
    for n in some:
        node = whole.nodes[n]
        expected = influence[influence >= influence[n]].sum() / influence.sum()
        found = nodes[f"{node.layer}_{node.index}_{node.position}"]["influence"]
        assert found == pytest.approx(expected, abs=1e-12) and found <= 0.8 + 0.05


def test_a_cap_keeps_the_links_of_most_influence(whole: Graph) -> None:
    from pathexpand.features.influence import edge_influence

    every = graph_json(whole, slug="a")
    few = graph_json(whole, slug="a", most_links=31)
    own = compared(whole)
    passed = np.sort(edge_influence(whole)[np.ix_(own, own)].ravel())[::-1]
    assert len(few["links"]) == 31 and passed[30] > passed[31]
    assert [link for link in every["links"] if link in few["links"]] == few["links"]
    ids = {node["node_id"]: n for n, node in enumerate(every["nodes"])}
    order = [(ids[link["target"]], ids[link["source"]]) for link in every["links"]]
    assert order == sorted(order)


def test_the_same_bytes_each_time_and_from_a_file(whole: Graph, tmp_path: Path) -> None:
    options: Any = {"slug": "a", "constants": "nodes", "nodes": 0.7}
    text = graph_text(graph_json(random_graph(), **options))
    assert text == graph_text(graph_json(whole, **options))
    whole.save(tmp_path / "g.safetensors")
    assert text == graph_text(graph_json(load_graph(tmp_path / "g.safetensors"), **options))
    assert ": " not in text.split('"links":')[1]


def test_tokens_with_quotes_are_read_back(whole: Graph) -> None:
    nodes = tuple(
        replace(node, label="' say \"(p=\"\\n'") if node.kind == "logit" else node
        for node in whole.nodes
    )
    prompt = ("'\\n'", "b'\\xe2'", "' a'", "<s>", "'\\''", '""', "'é'")
    document = graph_json(replace(whole, nodes=nodes, prompt=prompt), slug="a")
    check_graph_json(document)
    clerp = document["nodes"][-1]["clerp"]
    assert clerp == 'Output " say \\x22\\x28p=\\x22\\n" (p=0.100)'
    assert float(clerp.split("(p=")[1].rstrip(")")) == 0.1  # as the pages read it
    assert document["metadata"]["prompt_tokens"] == ["\n", "\ufffd", " a", "<s>", "'", "", "é"]
    assert plain_token("'no end") == "'no end"


def test_pages_that_do_not_open_a_graph_are_named(whole: Graph) -> None:
    one = graph_json(random_graph(layers=1), slug="a")
    said = "Neuronpedia does not open graphs with nothing behind layer 0, as this one."
    assert said in one["metadata"]["claims"]
    assert said not in graph_json(whole, slug="a")["metadata"]["claims"]
    claims = graph_json(whole, slug="a", constants="nodes")["metadata"]["claims"]
    assert any("taken for logits" in claim for claim in claims)


@pytest.mark.parametrize("slug", ["", "two words", "a/b", "é", 3, "a\n"])
def test_slugs_that_no_page_takes_are_refused(whole: Graph, slug: Any) -> None:
    with pytest.raises(PathExpandError, match="slug: wanted letters") as error:
        graph_json(whole, slug=slug)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"constants": "keep"}, "drop or nodes"),
        ({"most_links": -1}, "a whole number"),
        ({"most_links": True}, "a whole number"),
        ({"scan": "a b"}, "scan"),
        ({"nodes": 2}, "a share"),
    ],
)
def test_other_options_are_refused(whole: Graph, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PathExpandError, match=said):
        graph_json(whole, slug="a", **options)


def test_a_list_of_graphs(whole: Graph) -> None:
    one, two = graph_json(whole, slug="one"), graph_json(whole, slug="two")
    listed = graph_metadata([one, two])
    assert [each["slug"] for each in listed["graphs"]] == ["one", "two"]
    with pytest.raises(PathExpandError, match="one twice"):
        graph_metadata([one, one])


def _first(document: Document, kind: str) -> dict[str, Any]:
    return next(node for node in document["nodes"] if node["feature_type"] == kind)


def _collide(document: Document) -> None:
    node = _first(document, "mlp reconstruction error")
    other = _first(document, "cross layer transcoder")
    node["node_id"] = node["jsNodeId"] = other["node_id"]


SPOILED: dict[str, tuple[Callable[[Document], Any], str]] = {
    "no links": (lambda d: d.pop("links"), "graph: wanted links"),
    "no prompt": (lambda d: d["metadata"].pop("prompt"), "metadata: wanted prompt"),
    "tokens": (lambda d: d["metadata"].update(prompt_tokens=[1]), "wanted texts"),
    "slug": (lambda d: d["metadata"].update(slug="a b"), "metadata slug"),
    "no pins": (lambda d: d["qParams"].pop("pinnedIds"), "qParams: wanted pinnedIds"),
    "no label": (lambda d: d["nodes"][0].pop("clerp"), "node 0: wanted clerp"),
    "type": (lambda d: d["nodes"][0].update(feature_type="neuron"), "node 0 feature_type"),
    "layer": (lambda d: d["nodes"][0].update(layer="L1"), "node 0 layer"),
    "layer number": (lambda d: d["nodes"][0].update(layer=1), "node 0 layer"),
    "position": (lambda d: d["nodes"][0].update(ctx_idx=99), "node 0 ctx_idx"),
    "twin": (_collide, "another node_id"),
    "js name": (lambda d: d["nodes"][0].update(jsNodeId="0_1-0"), "jsNodeId"),
    "influence": (lambda d: d["nodes"][0].update(influence=1.5), "0 to 1"),
    "nan": (lambda d: d["nodes"][0].update(activation=float("nan")), "a number"),
    "output": (lambda d: _first(d, "logit").update(clerp='Output "a"b" (p=0.500)'), "clerp"),
    "odds": (lambda d: _first(d, "logit").update(token_prob=0.4), "clerp"),
    "end": (lambda d: d["links"][0].update(source="9_9_9"), "nodes that are there"),
    "loop": (lambda d: d["links"][0].update(source=d["links"][0]["target"]), "two nodes"),
    "double": (lambda d: d["links"].append(dict(d["links"][0])), "joined once"),
    "weight": (lambda d: d["links"][0].update(weight=float("inf")), "link 0 weight"),
    "list": (lambda d: d.update(nodes=[[]]), "an object"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_the_check_sees_what_is_wrong(whole: Graph, case: str) -> None:
    document = json.loads(graph_text(graph_json(whole, slug="a", nodes=0.8)))
    check_graph_json(document)
    spoil, said = SPOILED[case]
    spoil(document)
    with pytest.raises(FileError, match=said):
        check_graph_json(document)


# --- Our own file ---------------------------------------------------------------------------------


def test_a_graph_loads_back_to_the_last_bit(whole: Graph, tmp_path: Path) -> None:
    file = tmp_path / "g.safetensors"
    weights = whole.weights.copy()
    weights[0, 1], weights[2, 3] = -0.0, 5e-324
    for graph in (prune(whole), replace(whole, weights=weights)):
        graph.save(file)
        read = load_graph(file)
        for field in fields(Graph):
            one, other = getattr(graph, field.name), getattr(read, field.name)
            if isinstance(one, np.ndarray):
                assert one.dtype == other.dtype and one.tobytes() == other.tobytes(), field.name
            elif field.name in ("made", "unembed"):
                assert one is not None and other is None
            else:
                assert one == other, field.name
    first = file.read_bytes()
    graph.save(file)
    assert file.read_bytes() == first and [each.name for each in tmp_path.iterdir()] == [file.name]


def test_a_graph_from_a_file_has_no_paths(whole: Graph, tmp_path: Path) -> None:
    whole.save(tmp_path / "g.safetensors")
    read = load_graph(tmp_path / "g.safetensors")
    with pytest.raises(PathExpandError, match="read from a file"):
        read.paths("embed@1", len(read) - 1)


def test_files_that_are_no_whole_graph_are_refused(whole: Graph, tmp_path: Path) -> None:
    file = tmp_path / "g.safetensors"
    prune(whole).save(file)
    data = file.read_bytes()
    for length in (0, 3, 8, 100, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(FileError) as error:
            load_graph(file)
        assert "\n" not in str(error.value)
    for name in ("g.npz", "g.pt", "g"):
        with pytest.raises(FileError, match=r"ends in \.safetensors"):
            load_graph(tmp_path / name)
        with pytest.raises(FileError, match=r"ends in \.safetensors"):
            whole.save(tmp_path / name)


def _header(change: Callable[[Document], Any]) -> Callable[[dict[str, Any]], None]:
    def spoil(tensors: dict[str, Any]) -> None:
        head = json.loads(tensors["graph"].tobytes())
        change(head)
        tensors["graph"] = np.frombuffer(json.dumps(head).encode(), np.uint8)

    return spoil


def _set(name: str, place: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def spoil(tensors: dict[str, Any]) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name][place] = value

    return spoil


SPOILED_FILES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another kind of file": lambda t: t.pop("graph"),
    "another format": _header(lambda head: head.update(format="pathexpand graph 2")),
    "no nodes": _header(lambda head: head.pop("nodes")),
    "fewer nodes": _header(lambda head: head["nodes"].pop()),
    "a node with more": _header(lambda head: head["nodes"][0].update(code="print()")),
    "a node of no kind": _header(lambda head: head["nodes"][0].update(kind="neuron")),
    "a layer before all": _header(lambda head: head["nodes"][0].update(layer=-1)),
    "a value that is NaN": _header(lambda head: head["nodes"][0].update(value=float("nan"))),
    "a position out of text": _header(lambda head: head["nodes"][0].update(position=99)),
    "a feature of no layer": _header(
        lambda head: next(n for n in head["nodes"] if n["kind"] == "feature").update(layer=None)
    ),
    "a kind that is a list": _header(lambda head: head["nodes"][0].update(kind=[])),
    "a prompt of numbers": _header(lambda head: head.update(prompt=[1])),
    "no JSON": lambda t: t.update(graph=np.frombuffer(b"{", np.uint8)),
    "no gap": lambda t: t.pop("gap"),
    "half precision": lambda t: t.update(gap=t["gap"].astype(np.float32)),
    "a matrix": lambda t: t.update(gap=t["gap"][None]),
    "NaN": _set("entries", 4, np.nan),
    "a column too far": _set("columns", 0, 10**6),
    "a column twice": _set("columns", 1, 0),
    "a row that ends early": _set("row_ends", -1, 3),
    "an entry less": lambda t: t.update(entries=t["entries"][:-1].copy()),
}


@pytest.mark.parametrize("case", SPOILED_FILES)
def test_files_that_were_changed_are_refused(whole: Graph, tmp_path: Path, case: str) -> None:
    from safetensors.numpy import load_file, save_file

    file = tmp_path / "g.safetensors"
    prune(whole).save(file)
    tensors = load_file(file)
    SPOILED_FILES[case](tensors)
    save_file(tensors, file)
    with pytest.raises(FileError) as error:
        load_graph(file)
    assert "\n" not in str(error.value) and "written by pathexpand" in str(error.value)


def test_a_graph_is_written_whole_or_not_at_all(
    whole: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "g.safetensors"
    whole.save(file)
    before = file.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(FileError, match="cannot write: No space left"):
        prune(whole).save(file)
    assert file.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(FileError, match="cannot write: No such file"):
        whole.save(tmp_path / "no" / "g.safetensors")
    with pytest.raises(PathExpandError, match="graph gap: wanted finite"):
        replace(whole, gap=whole.gap * np.nan).save(file)


# --- Frames and networks --------------------------------------------------------------------------


def test_data_frames(whole: Graph) -> None:
    pytest.importorskip("pandas")
    frames = whole.to_pandas()
    nodes, edges = frames["nodes"], frames["edges"]
    assert list(nodes["name"]) == [name_of(node) for node in whole.nodes]
    assert len(edges) == np.count_nonzero(whole.weights)
    sums = edges.groupby("target")["weight"].sum()
    n = int(np.flatnonzero(whole.is_target)[5])
    assert sums[name_of(whole.nodes[n])] == pytest.approx(whole.values[n], abs=1e-12)
    assert str(nodes["layer"].dtype) == "Int64"


def test_networks(whole: Graph) -> None:
    networkx = pytest.importorskip("networkx")
    made = whole.to_networkx()
    assert len(made) == len(whole) and networkx.is_directed_acyclic_graph(made)
    t, s = np.argwhere(whole.weights)[17]
    name = name_of(whole.nodes[s]), name_of(whole.nodes[t])
    assert made.edges[name]["weight"] == whole.weights[t, s]
    assert not made.has_edge(*name[::-1])


@pytest.mark.parametrize("name", ["networkx", "pandas"])
def test_what_is_not_installed_is_named(
    whole: Graph, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PathExpandError, match=f"wanted {name}, got none; pip install"):
        getattr(whole, f"to_{name}")()


# --- Tables ---------------------------------------------------------------------------------------


def closing(table: AnalysisTable) -> dict[str, Any]:
    return {line.label: line.value for line in table.closing}


def tables(whole: Graph) -> list[AnalysisTable]:
    pruned = prune(whole)
    return [
        nodes_table(whole),
        nodes_table(pruned, top=100, whole=whole),
        edges_table(whole, len(whole) - 1),
        edges_table(pruned, len(pruned) - 1, top=3),
        edges_table(whole, "embed@2"),
        summary_table(whole),
        summary_table(pruned, whole=whole),
    ]


@pytest.mark.parametrize("number", range(7))
def test_tables_fit_the_terminal_and_files(whole: Graph, number: int) -> None:
    table = tables(whole)[number]
    assert max(map(len, table.to_text(80, ascii=True).splitlines())) <= 80
    assert AnalysisTable.from_json(table.to_json()) == table
    assert table.to_csv() and table.to_markdown() and table.good


def test_nodes_are_listed_by_influence(whole: Graph) -> None:
    pruned = prune(whole)
    table = nodes_table(pruned, top=1000, whole=whole)
    influence = node_influence(whole)
    names = {name_of(node): influence[n] for n, node in enumerate(whole.nodes)}
    assert [names[name] for name in table.column("node")] == list(table.column("influence"))
    assert sorted(table.column("influence"), reverse=True) == list(table.column("influence"))
    assert table.column("up to here")[-1] == pytest.approx(
        sum(table.column("influence")) / influence.sum()
    )
    listed = {name_of(node) for node in pruned.nodes if node.kind in ("feature", "error", "token")}
    assert set(table.column("node")) == listed
    assert closing(table)["whole replacement"] == scores(whole).replacement
    assert closing(table)["whole closed"] == scores(whole, closed=True).replacement
    features = [row for row in table if row["activation"] is not None]
    assert features and all(row["closes"] for row in features)


@pytest.mark.parametrize("pruning", [False, True])
def test_what_a_node_reads_adds_up(whole: Graph, pruning: bool) -> None:
    graph = prune(whole) if pruning else whole
    for n in np.flatnonzero(graph.is_target)[::5]:
        for top in (0, 4, 1000):
            table = edges_table(graph, int(n), top=top)
            sums = closing(table)
            parts = sums["listed"] + sums["not listed"] + sums["constants"]
            assert parts + sums.get("remainder", 0.0) == pytest.approx(sums["value"], abs=1e-12)
            assert sums["listed"] == pytest.approx(sum(table.column("weight")), abs=1e-12)
            gross = abs(graph.weights[n]).sum()
            for row in table:
                weight = graph.weights[n, graph.find(row["source"])]
                assert row["weight"] == weight
                assert row["share"] == pytest.approx(abs(weight) / gross)
            assert ("remainder" in sums) == bool(graph.remainder[n])


def test_what_reads_a_node(whole: Graph) -> None:
    n = whole.find("embed@2")
    table = edges_table(whole, "embed@2", top=1000)
    assert table.analysis == "graph edges out of a node"
    assert len(table) == np.count_nonzero(whole.weights[:, n])
    for row in table:
        t = whole.find(row["target"])
        assert row["weight"] == whole.weights[t, n]
        assert row["share"] == pytest.approx(abs(row["weight"]) / abs(whole.weights[t]).sum())


def test_a_gap_that_rounding_does_not_explain_is_told(whole: Graph) -> None:
    n = int(np.flatnonzero(whole.is_target)[3])
    gap = whole.gap.copy()
    gap[n] = 1e-3
    broken = replace(whole, gap=gap)
    table = nodes_table(broken, top=1000)
    assert not table.good and "does not explain" in table.claims[0]
    assert closing(table)["largest gap"] == 1e-3
    row = next(row for row in table if row["node"] == name_of(whole.nodes[n]))
    assert row["closes"] is False and not edges_table(broken, n).good
    assert not summary_table(broken).good


def test_what_tables_refuse(whole: Graph) -> None:
    for table in (nodes_table, lambda graph, top: edges_table(graph, "embed@2", top=top)):
        with pytest.raises(PathExpandError, match="top: wanted a whole number"):
            table(whole, top=-1)
    with pytest.raises(PathExpandError, match="wanted one that reads, got a token"):
        edges_table(whole, "embed@2", direction="incoming")
    with pytest.raises(PathExpandError, match="wanted one that others read"):
        edges_table(whole, len(whole) - 1, direction="outgoing")
    with pytest.raises(PathExpandError, match="incoming or outgoing"):
        edges_table(whole, 0, direction="up")  # type: ignore[arg-type]
    with pytest.raises(PathExpandError, match="whole: wanted a graph with"):
        nodes_table(whole, whole=prune(whole))
