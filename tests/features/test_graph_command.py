"""`pathexpand graph` from end to end, on a small random model with random transcoders."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import pathexpand
from pathexpand.cli import main
from pathexpand.features.graph import Graph, name_of
from pathexpand.features.graph_file import load_graph
from pathexpand.features.graph_schema import check_graph_json
from pathexpand.features.influence import prune
from pathexpand.table import AnalysisTable
from tests.api.models import SIZES, tensors
from tests.features import layouts

TOKENS = "3,1,4,1,5,9,2"
FEATURES = 17
Answer = tuple[int, str, str]
Run = Callable[..., Answer]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write a model, and transcoders for it as circuit-tracer does."""
    pytest.importorskip("yaml")
    place = tmp_path_factory.mktemp("graph")
    model, units = place / "model", place / "units"
    model.mkdir()
    units.mkdir()
    config = SIZES | {"n_ctx": 9, "normalization_type": "LN", "act_fn": "gelu"}
    (model / "config.json").write_text(json.dumps(config | {"model_name": "tiny"}))
    save_file(tensors(3), model / "model.safetensors")
    draw = np.random.default_rng(3).normal
    d = SIZES["d_model"]
    (units / "config.yaml").write_text(
        "model_kind: transcoder_set\nmodel_name: tiny\nfeature_input_hook: mlp.hook_in\n"
        "feature_output_hook: hook_mlp_out\ntranscoders:\n"
        "- layer_0.safetensors\n- layer_1.safetensors\n"
    )
    for layer in range(SIZES["n_layers"]):
        save_file(
            {
                "W_enc": draw(size=(FEATURES, d)),
                "W_dec": draw(size=(FEATURES, d)),
                "b_enc": draw(size=FEATURES),
                "b_dec": draw(size=d),
            },
            units / f"layer_{layer}.safetensors",
        )
    return model, units


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], files: tuple[Path, Path]) -> Run:
    def answer(*options: str, here: bool = True) -> Answer:
        model, units = files
        given = ("--model", str(model), "--tokens", TOKENS, "--features", str(units), "--force")
        with pytest.raises(SystemExit) as end:
            main(["graph", *(given if here else ()), *options])
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return answer


def expected(files: tuple[Path, Path], **options: Any) -> Graph:
    model, units = files
    ids = [int(token) for token in TOKENS.split(",")]
    return pathexpand.load(str(model)).run(ids).graph(units, force=True, **options)


def test_nodes_are_shown_with_what_closes(run: Run) -> None:
    status, out, err = run()
    assert (status, err) == (0, "")
    words = " ".join(out.split())
    for said in ("largest gap", "reads, up to rounding", "as circuit-tracer scores"):
        assert said in words
    assert max(map(len, out.splitlines())) <= 80


def test_json_is_the_table_of_the_pruned_graph(run: Run, files: tuple[Path, Path]) -> None:
    from pathexpand.features.graph_table import nodes_table

    options = ("--zero-positions", "1", "--nodes", "0.6", "--edges", "0.9", "--top", "5")
    status, out, _ = run(*options, "--format", "json", "--top-logits", "2")
    whole = expected(files, zero_positions=1, top_logits=2)
    table = nodes_table(prune(whole, nodes=0.6, edges=0.9), top=5, whole=whole)
    assert status == 0 and AnalysisTable.from_json(out) == table
    assert sum(node.kind == "logit" for node in whole.nodes) == 2


def test_a_node_and_an_edge(run: Run, files: tuple[Path, Path]) -> None:
    whole = expected(files)
    target = next(n for n, node in enumerate(whole.nodes) if node.layer == 1 and node.index)
    name = name_of(whole.nodes[target])
    status, out, _ = run("--node", name, "--format", "csv", "--top", "9")
    rows = list(csv.DictReader(StringIO(out)))
    assert status == 0 and len(rows) == 9
    for row in rows:
        assert float(row["weight"]) == whole.weights[target, whole.find(row["source"])]
    source = rows[0]["source"]
    status, out, _ = run("--edge", source, name, "--format", "json")
    table = AnalysisTable.from_json(out)
    weight = whole.weights[target, whole.find(source)]
    sums = {line.label: line.value for line in table.closing}
    assert status == 0 and table.analysis == "edge paths"
    assert sums["edge"] == weight
    status, out, _ = run("--node", source, "--outgoing", "--top", "200", "--format", "csv")
    assert status == 0
    found = {row["target"]: float(row["weight"]) for row in csv.DictReader(StringIO(out))}
    assert found[name] == weight


def test_a_summary_and_targets(run: Run) -> None:
    status, out, err = run("--summary", "--target", "#7", "--target", "#2")
    assert (status, err) == (0, "")
    assert "whole replacement" in out and "pruned closed" in out
    line = next(line for line in out.splitlines() if line.startswith("logit nodes"))
    assert line.split()[2:] == ["2", "2"]


@pytest.mark.parametrize("constants", ["drop", "nodes"])
def test_an_export_is_read_by_pages(run: Run, tmp_path: Path, constants: str) -> None:
    file = tmp_path / "my.graph.json"
    options = ("--export", str(file), "--constants", constants, "--most-links", "40")
    status, _, err = run(*options)
    document = json.loads(file.read_text())
    check_graph_json(document)
    assert status == 0 and document["metadata"]["slug"] == "my.graph"
    assert len(document["links"]) == 40
    has_bias = any(node["feature_type"] == "bias" for node in document["nodes"])
    assert has_bias == (constants == "nodes") == ("bias nodes" in err)
    before = file.read_bytes()
    run(*options)
    assert file.read_bytes() == before


def test_what_is_saved_is_shown_again(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "g.safetensors"
    status, first, _ = run("--save", str(file))
    again = run("--load", str(file), here=False)
    assert status == 0 and again == (0, first, "")
    whole = expected(files)
    assert load_graph(file).weights.tobytes() == whole.weights.tobytes()
    prune(whole).save(file)
    status, _, err = run("--load", str(file), here=False)
    assert status == 0 and "pruned before" in err and len(err.splitlines()) == 1


def test_a_graph_too_large_to_hold_is_pruned_as_it_is_made(
    run: Run, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = expected(files)
    pruned = prune(whole)
    monkeypatch.setattr("pathexpand.features.graph.MOST", len(whole) - 1)
    file = tmp_path / "g.safetensors"
    status, _, err = run("--save", str(file))
    assert status == 0 and "pruned while it is made" in err and len(err.splitlines()) == 1
    assert load_graph(file).nodes == pruned.nodes


def test_a_gap_is_an_error(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    from dataclasses import replace

    whole = expected(files)
    gap = whole.gap.copy()
    gap[whole.is_target] = 1e-3
    replace(whole, gap=gap).save(tmp_path / "g.safetensors")
    status, out, err = run("--load", str(tmp_path / "g.safetensors"), here=False)
    assert status == 1 and "does not close" in err and "does not explain" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--node", "L9F1@1"), "node 'L9F1@1'"),
        (("--edge", "embed@1", "nothing"), "node 'nothing'"),
        (("--edge", "L1E@2", "embed@1"), "a feature or a logit"),
        (("--node", "embed@1", "--summary"), "one of --summary, --node and --edge"),
        (("--node", ""), "node ''"),
        (("--node", "", "--summary"), "one of --summary, --node and --edge"),
        (("--target", "#1", "--top-logits", "2"), "--target says which logits"),
        (("--target", "#1", "--logit-probability", "0.5"), "--target says which logits"),
        (("--outgoing",), "goes with --node"),
        (("--edge", "embed@1", "L1F1@1", "--top", "-1"), "--top: wanted a whole number"),
        (("--node", "embed@1", "--top", "-1"), "--top: wanted a whole number"),
        (("--slug", "a"), "goes with --export"),
        (("--export-paths",), "--export-paths goes with --export"),
        (("--metadata", "a.json"), "--metadata goes with --export"),
        (("--export", "a.json", "--metadata", "a.json"), "the same file"),
        (("--export", "a.json", "--metadata", "no/such/a.json"), "a directory that exists"),
        (("--zero-positions", "8"), "--zero-positions: wanted at most the 7 positions"),
        (("--input-scale", "2"), "wanted no input_scale"),
        (("--input-scale", "0"), "--input-scale: wanted a positive number"),
        (("--layer", "-1"), "--layer: wanted a layer from 0"),
        (("--hook-in", "nowhere"), "--hook-in: wanted one of resid_pre"),
        (("--hook-out", "nowhere"), "--hook-out: wanted one of resid_pre"),
        (("--constants", "nodes"), "goes with --export"),
        (("--most-links", "3"), "--most-links goes with --export"),
        (("--export", "a b.json"), "slug"),
        (("--export", "a.json", "--slug", "a/b"), "slug"),
        (("--export", "no/such/place/a.json"), "a directory that exists"),
        (("--save", "a.npz"), "ends in .safetensors"),
        (("--save", "a.safetensors", "--out", "a.safetensors"), "the same file"),
        (("--load", "a.safetensors"), "does not go with --load"),
        (("--nodes", "2"), "--nodes: wanted a share from 0 to 1"),
        (("--edges", "nan"), "--edges: wanted a share from 0 to 1"),
        (("--top", "-1"), "--top: wanted"),
        (("--top-logits", "-1"), "--top-logits: wanted"),
        (("--logit-probability", "0"), "--logit-probability: wanted"),
        (("--zero-positions", "-1"), "--zero-positions: wanted"),
        (("--position", "99"), "position 99"),
        (("--target", "#99"), "99"),
        (("--format-of-features", "nonsense"), "--format-of-features: wanted one of"),
        (("--features", "no such folder"), "no such folder"),
    ],
)
def test_bad_input_gets_one_line(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*options)
    assert (status, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--load", "no.safetensors"), "no such file"),
        (("--load", "no.safetensors", "--edge", "a", "b"), "--edge needs a run"),
        (("--load", "no.safetensors", "--target", "a"), "--target needs a run"),
        (("--load", "no.safetensors", "--top-logits", "10"), "--top-logits needs a run"),
        (("--load", "no.safetensors", "--model", "two-layer"), "--model needs a run"),
        (("--load", "no.safetensors", "--folded"), "--folded needs a run"),
        (("--load", "no.safetensors", "--layer", "1"), "--layer needs a run"),
        (("--load", "no", "--export", "a.json", "--export-paths"), "--export-paths needs a run"),
        (("--model", "zero-layer"), "those of stories260k and two-layer come with"),
        (("--input-scale", "2"), "--input-scale goes with --features"),
        (("--folded",), "--folded goes with --features"),
        (("--hook-in", "mlp_in"), "--hook-in goes with --features"),
        (("--format-of-features", "sae-lens"), "goes with --features"),
    ],
)
def test_bad_input_without_a_model_gets_one_line(
    run: Run, options: tuple[str, ...], said: str
) -> None:
    status, out, err = run(*options, here=False)
    assert (status, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1


@pytest.mark.skipif(
    not (Path(pathexpand.__file__).parent / "embedded" / "two-layer" / "features").is_dir(),
    reason="no embedded features yet",
)
def test_an_embedded_model_has_features_of_its_own(run: Run) -> None:
    status, out, err = run(here=False)
    assert (status, err) == (0, "") and "two-layer" in out


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["graph", *options])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "") and len(err.splitlines()) == 1
    return err


def test_what_to_do_is_said_in_options(
    capsys: pytest.CaptureFixture[str], files: tuple[Path, Path], tmp_path: Path
) -> None:
    model, units = files
    given = ("--model", str(model), "--tokens", TOKENS, "--features")
    assert "or give --force" in refused(capsys, *given, str(units))
    layouts.gemma_scope(layouts.plain(), tmp_path / "gemma")
    line = refused(capsys, *given, str(tmp_path / "gemma"))
    assert "give --format-of-features gemma-scope-transcoder or gemma-scope-sae" in line
    named = (*given, str(tmp_path / "gemma"), "--format-of-features", "gemma-scope-sae")
    line = refused(capsys, *named)
    assert "give it as --hook-in" in line
    layouts.sae_lens(
        layouts.plain(), tmp_path / "lens", normalize_activations="expected_average_only_in"
    )
    line = refused(capsys, *given, str(tmp_path / "lens"))
    assert "wanted an input_scale" in line and "give it as --input-scale" in line
    line = refused(capsys, *given, str(tmp_path / "lens"), "--input-scale", "2")
    assert "wanted the model's 2 layers" in line  # read, but of another model


def test_units_trained_on_folded_weights(
    capsys: pytest.CaptureFixture[str], files: tuple[Path, Path], tmp_path: Path
) -> None:
    model, units = files
    folded = tmp_path / "folded"
    folded.mkdir()
    config = json.loads((model / "config.json").read_text())
    (folded / "config.json").write_text(json.dumps(config | {"normalization_type": "LNPre"}))
    norms = re.compile(r".*ln.*\.[wb]")
    some = {name: each for name, each in tensors(3).items() if not norms.fullmatch(name)}
    save_file(some, folded / "model.safetensors")
    given = ("--model", str(folded), "--tokens", TOKENS, "--features", str(units), "--force")
    assert "or give --folded if they were trained" in refused(capsys, *given)
    with pytest.raises(SystemExit) as end:
        main(["graph", *given, "--folded"])
    assert end.value.code == 0 and "closes" in capsys.readouterr().out


def test_paths_and_the_list_of_graphs_are_exported(run: Run, tmp_path: Path) -> None:
    file, listed = tmp_path / "a.json", tmp_path / "graph-metadata.json"
    status, _, err = run("--export", str(file), "--metadata", str(listed), "--export-paths")
    document = json.loads(file.read_text())
    check_graph_json(document)
    assert (status, err) == (0, "")
    assert json.loads(listed.read_text()) == {"graphs": [document["metadata"]]}
    assert any(link.get("paths") for link in document["links"])
    status, _, _ = run("--export", str(file))
    assert not any("paths" in link for link in json.loads(file.read_text())["links"])


def test_layers_without_features_are_named(
    run: Run, files: tuple[Path, Path], tmp_path: Path
) -> None:
    some = tmp_path / "some"
    layouts.sae_lens(
        layouts.plain(width=SIZES["d_model"]),
        some,
        architecture="jumprelu_transcoder",
        d_in=SIZES["d_model"],
        d_out=SIZES["d_model"],
        metadata={"hook_name": "blocks.1.mlp.hook_in", "hook_name_out": "blocks.1.hook_mlp_out"},
    )
    status, out, err = run("--features", str(some))
    assert (status, err) == (0, "")
    words = " ".join(out.split())
    assert "Layer 0 has no features: its MLP is one node at each position." in words
    assert "some: L0 of its layer" in words and "not comparable" in words
