"""What a report gathers, and how its page is written."""

from __future__ import annotations

import dataclasses
import re
import signal
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand import laws
from pathexpand.api import Run
from pathexpand.api import report as gathering
from pathexpand.engine.flow import path_flow
from pathexpand.errors import FileError, PathExpandError
from pathexpand.page import document as documents
from pathexpand.report import Pattern, Report
from pathexpand.symbolic import Path
from pathexpand.table import PathTable

PROMPT = "Humpty Dumpty sat on a wall. Humpty D"


@pytest.fixture(scope="module")
def run() -> Run:
    return pathexpand.load("two-layer").run(PROMPT)


@pytest.fixture(scope="module")
def report(run: Run) -> Report:
    return run.report(top=12)


def test_moves_are_the_largest_parts_of_the_flow(run: Run, report: Report) -> None:
    readout, moves = run.target().readout(run.unembed, 20), report.moves
    assert moves.drawn == len(report.table) and moves.first[-1] == len(moves.value)
    for n, row in enumerate(report.table):
        flow = path_flow(run.frozen, readout, Path.parse(row.path))
        for k in range(moves.first[n], moves.first[n + 1]):
            step, start, end = moves.step[k], moves.start[k], moves.end[k]
            whole = flow.by_token[start] if not step else flow.moves[step - 1][end, start]
            assert moves.value[k] == np.float32(whole)
        for step, moved in enumerate((flow.by_token, *flow.moves)):
            own = [
                abs(moves.value[k])
                for k in range(moves.first[n], moves.first[n + 1])
                if moves.step[k] == step
            ]
            assert max(own) == np.float32(abs(moved).max())
            assert own == sorted(own, reverse=True)


def test_levels_rise_from_tokens_to_logits(report: Report) -> None:
    assert report.levels == ("tokens", "L0 heads", "L1 heads", "logits")
    assert report.level_of["embed"] == 0 and report.level_of["L1H0"] == 2


def test_sources_of_every_kind_have_a_level() -> None:
    model = laws.random_model(seed=3)
    found = model.run([1, 2, 3]).report(5, top=10**6)
    assert set(found.level_of) >= {source.label for source in model.network.sources}
    assert found.level_of["b_U"] == len(found.levels) - 1
    assert found.page().startswith("<!DOCTYPE html>")


def test_heads_are_those_of_the_listed_paths(run: Run, report: Report) -> None:
    labels = {label for row in report.table for label in row.path.split(" > ")[1:]}
    assert {head.label for head in report.heads} == labels
    totals = run.head_totals()
    for head in report.heads:
        assert head.total == totals[head.label]
        for why in head.whys:
            again = run.why(head.label, why.query, why.key, over=why.over, top=8)
            assert [row.value for row in why] == [row.value for row in again]


def test_shorter_neighbours_are_valued(run: Run, report: Report) -> None:
    listed = {row.path for row in report.table}
    shorter = {
        " > ".join(pieces[:k] + pieces[k + 1 :])
        for pieces in (row.path.split(" > ") for row in report.table)
        for k in range(1, len(pieces))
    }
    assert set(report.nearby) == shorter - listed != set()
    for path, value in report.nearby.items():
        assert value == pytest.approx(run.value(path), abs=1e-12)


def test_capped_scores_are_explained_one_by_one(tmp_path: FilePath) -> None:
    from tests.features.graphs import family

    found = family("gemma2", tmp_path).report(top=30)
    whys = [why for head in found.heads for why in head.whys]
    assert whys and all(why.over is None for why in whys)
    assert found.page().startswith("<!DOCTYPE html>")


def test_a_search_that_is_stopped_says_so(run: Run) -> None:
    from pathexpand.engine.search import Budget

    found = run.report(top=10, budget=Budget(nodes=1))
    assert not found.table.certified
    assert "Stopped early" in found.page()


def test_moves_beyond_the_budget_are_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_WORK", 1e4)
    found = run.report(top=12)
    assert 0 < found.moves.drawn < 12
    assert len(found.moves.first) == 13 and found.moves.first[-1] == len(found.moves.value)


def test_patterns_keep_what_can_be_seen() -> None:
    pattern = np.array([[1.0, 0.0, 0.0], [0.9996, 0.0004, 0.0], [0.5, 0.3, 0.2]])
    found = Pattern.of(pattern, most=2)
    kept = list(zip(found.query.tolist(), found.key.tolist(), strict=True))
    assert kept == [(0, 0), (1, 0), (2, 0), (2, 1)]


def test_a_graph_of_another_run_is_refused(run: Run) -> None:
    other = pathexpand.load("two-layer").run("to be or not").graph(prune=True)
    for wrong in (other, "graph", True, run.report(top=1)):
        with pytest.raises(PathExpandError, match="graph: wanted") as caught:
            run.report(graph=wrong)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


# --- pages ----------------------------------------------------------------------------------------


def test_the_same_report_is_the_same_page(report: Report) -> None:
    pages = [re.sub(r"\bp\d{4,}\b", "p", report.page()) for _ in range(2)]
    assert pages[0] == pages[1]


def test_a_page_holds_all_it_needs(report: Report) -> None:
    page = report.page()
    markup = re.sub(r"(<script[^>]*>).*?</script>", r"\1", page, flags=re.DOTALL)
    assert markup.count("<script") > 4 and not re.search(r"\b(src|href)=", markup)
    assert "default-src 'none'" in page


def test_a_table_has_its_runs_explorer_and_one_from_a_file_its_rows(report: Report) -> None:
    table = report.table
    again = PathTable.from_json(table.to_json())
    assert again == table and again.origin is None
    assert "linkGraph" in table.page() and "linkGraph" not in again.page()
    assert "copyRows" in again.page()


@pytest.mark.shared_models
def test_ten_thousand_paths_stay_under_three_megabytes(shared_models: FilePath) -> None:
    model = pathexpand.load(shared_models / "stories260k", mlp="neurons")
    text = "Once upon a time, there was a little girl named Lily. She loved to play with her toys "
    text += (
        "and her best friend, a small brown dog called Max. One day, Lily and Max went to the park."
    )
    run = model.run(text)
    assert len(run.tokens) >= 64
    found = run.report(top=10_000)
    assert len(found.table) == 10_000 == found.moves.drawn
    assert len(found.page().encode()) < 3e6


@pytest.mark.parametrize("name", ["", "page", "page.pdf", "no/such/place/page.html"])
def test_bad_names_are_refused_before_any_work(
    name: str, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Report, "page", lambda self: pytest.fail("work was done"))
    with pytest.raises(FileError) as caught:
        report.to_html(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [None, 5, [], b"x.html", "a\0b.html", "a" * 300 + ".html"])
def test_what_is_no_name_is_refused(name: Any, report: Report) -> None:
    with pytest.raises(FileError) as caught:
        report.to_html(name)
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_ctrl_c_leaves_no_half_report(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends at Ctrl-C with what it has; a page made of that would not say so."""
    before, right, asked = signal.getsignal(signal.SIGINT), gathering.why_each, []

    def pressed(*given: Any, **options: Any) -> Any:
        for why in right(*given, **options):
            asked.append(why)
            if len(asked) == 2:
                with suppress(KeyboardInterrupt):  # as the search does
                    signal.raise_signal(signal.SIGINT)
            yield why

    monkeypatch.setattr(gathering, "why_each", pressed)
    with pytest.raises(KeyboardInterrupt):
        run.report(top=12)
    assert len(asked) == 2 and signal.getsignal(signal.SIGINT) is before


def test_a_budget_holds_for_expansions_too(run: Run) -> None:
    from pathexpand.engine.search import Budget

    whys = [why for head in run.report(top=12, budget=Budget(seconds=0)).heads for why in head.whys]
    heads = len(run.report(top=12).heads)
    assert len(whys) <= heads < sum(len(head.whys) for head in run.report(top=12).heads)
    few = run.report(top=12, budget=Budget(nodes=1)).heads
    assert all(not why.certified for head in few for why in head.whys)


def test_a_directory_is_no_file(report: Report, tmp_path: FilePath) -> None:
    (tmp_path / "page.html").mkdir()
    with pytest.raises(FileError, match="a directory"):
        report.to_html(tmp_path / "page.html")


def test_without_bokeh_there_is_one_line(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "find_spec", lambda name: None)
    for ask in (lambda: report.to_html("page.html"), lambda: report.table.page()):
        with pytest.raises(PathExpandError, match=r"pip install 'pathexpand\[report\]'"):
            ask()


def test_there_is_nothing_to_show_in_without_a_notebook(report: Report) -> None:
    with pytest.raises(PathExpandError, match="show: wanted a notebook"):
        report.show()
    for height in (0, -3, True, 1.5, "900"):
        with pytest.raises(PathExpandError, match="height: wanted"):
            report.show(height=height)  # type: ignore[arg-type]


def test_in_a_notebook_a_report_is_light(report: Report) -> None:
    assert len(report._repr_html_()) < 20_000 and ".show()" in report._repr_html_()


# --- the command ----------------------------------------------------------------------------------


def command(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[Any, str, str]:
    from pathexpand.cli import main

    with pytest.raises(SystemExit) as end:
        main(["report", *given])
    out, err = capsys.readouterr()
    return end.value.code, out, err


def test_the_command_writes_the_page_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: FilePath
) -> None:
    file = tmp_path / "a.html"
    proof = tmp_path / "proof.json"
    given = ("--out", str(file), "--top", "3", "--query", "* > L1H0", "--certificate", str(proof))
    assert command(capsys, *given) == (0, f"Wrote {file}\n", "")
    page = file.read_text(encoding="utf-8")
    assert "Certified" in page and "outside" in page and "linkGraph(graphModels" not in page
    assert {each.name for each in tmp_path.iterdir()} == {"a.html", "proof.json"}
    wrote = (0, f"Wrote {file}\n", "")
    assert command(capsys, "--out", str(file), "--graph", "--top", "3") == wrote
    assert "linkGraph(graphModels" in file.read_text(encoding="utf-8")
    assert command(capsys, "--out", str(file), "--weights-only") == wrote
    assert "copyRows" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--out", "page.txt"), "a name that ends in .html"),
        (("--out", ""), "--out wants the name of a file"),
        (("--out", "a" * 300 + ".html"), "cannot write"),
        (("--out", "no/such/a.html"), "a directory that exists"),
        (("--features", "x"), "--features goes with --graph"),
        (("--graph", "--weights-only"), "does not go with --weights-only"),
        (("--graph", "--model", "one-layer"), "come with the package"),
        (("--graph", "--features", "no such folder"), "no such folder"),
        (("--top", "-1"), "top: wanted"),
        (("--query", "L9H9"), "L9H9"),
        (("--target", "no such token at all"), "target"),
    ],
)
def test_bad_input_gets_one_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: FilePath,
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = command(capsys, *given)
    assert (status, out) == (2, "") and said in err and len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_page_of_a_changed_table_follows_it(report: Report) -> None:
    changed = dataclasses.replace(report.table, target="another target")
    assert "Paths to the another target" in changed.page()
