"""The explorer in a real browser, from disk and without a network."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from io import StringIO
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.api import Run
from pathexpand.page.document import document
from pathexpand.page.notebook import Frame
from pathexpand.page.prose import prose
from pathexpand.report import Report
from pathexpand.symbolic import Path
from pathexpand.symbolic.query import parse_query
from pathexpand.table import SourceToken

from .conftest import Opened

Open = Callable[..., Opened]
PROMPT = "Humpty Dumpty sat on a wall. Humpty D"
# What must never run, in whatever it stands.
ATTACK = '</script></title><img src=x onerror="window.hit=1"><script>window.hit=2</script>${hit}'
STRANGE = [
    ATTACK,
    "' 🦔👩‍🚀'",
    "' שלום'",
    "'\\n\\t'",
    "b'\\xe2'",
    "$$x$$",
    "<b>&amp;</b>",
    "'`\\\\'",
]


@cache
def run() -> Run:
    return pathexpand.load("two-layer").run(PROMPT)


@cache
def report() -> Report:
    return run().report()


@cache
def short() -> Report:
    """Give a report that leaves paths out."""
    return run().report(top=12)


@cache
def page_of(which: str) -> str:
    return {"whole": report, "short": short}[which]().page()


@pytest.fixture
def whole(opened: Open) -> Iterator[Opened]:
    """Open the whole report; nothing may go wrong on it."""
    page = opened(page_of("whole"))
    yield page
    assert page.said() == [] and page.asked() == []


def column(page: Opened, name: str) -> list[Any]:
    return list(page.run("return Array.from(at('paths').source.data[arguments[0]]);", name))


# --- the numbers ----------------------------------------------------------------------------------


def test_numbers_read_back_are_the_tables(whole: Opened) -> None:
    rows = report().table.rows
    assert column(whole, "value") == [row.value for row in rows]
    assert column(whole, "running") == [row.running for row in rows]
    assert column(whole, "share") == [row.share for row in rows]
    assert column(whole, "path") == [row.path for row in rows]
    assert column(whole, "order") == [row.order for row in rows]
    assert column(whole, "kind") == [row.kind for row in rows]
    tokens = [row.source_token for row in rows]
    assert column(whole, "source") == [f"{t.text} @{t.position}" if t else "" for t in tokens]


def test_the_claim_stands_on_top(whole: Opened, opened: Open) -> None:
    said = whole.text("claims")
    for part in ("model | two-layer", "dense | 17.5630", "gap |", "Complete: no path is left out."):
        assert part in said
    other = opened(page_of("short"))
    assert "Certified: each of the 13 unlisted paths has" in other.text("claims")
    assert "remainder | " in other.text("claims") and "13 paths" in other.text("claims")


def test_what_the_grid_draws_is_what_the_table_prints(whole: Opened) -> None:
    """The cells a reader sees, not only the data behind them."""
    cells = whole.run(
        "const grid = Bokeh.index.find_one_by_id(at('paths').id).grid; grid.render();"
        "return [0, 4].map((row) => grid.getColumns().map((_, n) =>"
        " grid.getCellNode(row, n).textContent));"
    )
    assert cells[0] == ["1", "embed > L1H0", "1", "head", "14.8435", "84.5%", "14.8435", "'um' @6"]
    assert cells[1][1:7] == ["embed > L0H3 > L1H0", "2", "virtual head", "-0.6128", "-3.5%",
                             "17.4853"]  # fmt: skip


def test_orders_step_up_to_the_dense_value(whole: Opened) -> None:
    data = whole.run(
        "const data = at('orders').renderers[0].data_source.data;"
        "return [Array.from(data.bottom), Array.from(data.top), Array.from(data.value)];"
    )
    totals = run().totals_table(by="order")
    ends = np.cumsum([row.value for row in totals])
    assert data[1][0] == pytest.approx(ends[0]) and data[1][-1] == report().table.dense
    assert [float(each) for each in data[2][:-1]] == [round(row.value, 4) for row in totals]
    assert data[0][-1] == 0 and ends[-1] == pytest.approx(report().table.dense)


# --- filters, the slider, the address -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "keeps"),
    [
        ("order", "2", lambda row: row.order == 2),
        ("kind", "virtual head", lambda row: row.kind == "virtual head"),
        ("head", "L1H0", lambda row: "L1H0" in row.path.split(" > ")),
        ("sign", "-", lambda row: row.value < 0),
        ("sign", "+", lambda row: row.value > 0),
        ("source", "5", lambda row: row.source_token.position == 5),
    ],
)
def test_filters_keep_what_they_say(
    whole: Opened, name: str, value: str, keeps: Callable[[Any], bool]
) -> None:
    whole.set(name, value)
    kept = [n for n, row in enumerate(report().table) if keeps(row)]
    assert whole.shown == kept and 0 < len(kept) < 25
    total = sum(report().table[n].value for n in kept)
    assert f"{len(kept)} of 25 paths shown, adding up to {total:.4f}" in whole.text("status")
    whole.click("clear")
    assert whole.shown == list(range(25))


def test_a_query_is_that_of_the_language(whole: Opened) -> None:
    for query in ("* > L1H0", "embed > (!L0H3)*", "not embed > L0H1", "embed > . > L1H0-2"):
        whole.set("query", query)
        matches = parse_query(query, report().network)
        kept = [n for n, row in enumerate(report().table) if matches.matches(Path.parse(row.path))]
        assert whole.shown == kept != []
    whole.set("query", "embed > L0H1 L1H0")
    assert "column 14: wanted >, | or the end, got 'L1H0'" in whole.text("status")
    whole.set("query", "* > L7H0")
    assert "L7H0" in whole.text("status")
    whole.set("query", "")
    assert whole.shown == list(range(25))


@pytest.mark.parametrize("share", [0, 50, 90, 97.5, 100])
def test_the_slider_says_what_a_shorter_list_leaves(opened: Open, share: float) -> None:
    page, table = opened(page_of("short")), short().table
    page.set("keep", share)
    sizes = np.cumsum([abs(row.value) for row in table])
    kept = int((sizes <= share / 100 * sizes[-1] * (1 + 1e-12)).sum())
    assert page.shown == list(range(kept))
    listed = sum(row.value for row in table.rows[:kept])
    rest = table.remainder + (table.listed - listed)
    said = page.text("kept")
    assert f"kept | {listed:.4f}" in said and f"| remainder | {rest:.4f}" in said
    assert f"{25 - kept} paths, each of at most" in said
    bound = float(re.search(r"each of at most (\S+)", said)[1])  # type: ignore[index]
    unlisted = [abs(row.value) for row in report().table.rows[kept:]]
    assert max(unlisted) <= bound <= max(unlisted) * 1.2
    assert page.said() == []


def test_the_address_brings_everything_back(whole: Opened) -> None:
    whole.set("query", "* > L1H*")
    whole.set("sign", "-")
    whole.set("keep", 99)
    whole.select(4, 5)
    whole.set("of head", "L1H1")
    state = (whole.shown, whole.text("detail"), whole.text("why"), whole.text("kept"))
    address = whole.run("return location.hash")
    whole.visit(address)
    again = (whole.shown, whole.text("detail"), whole.text("why"), whole.text("kept"))
    assert again == state and whole.run("return location.hash") == address
    whole.visit("#paths=0,7,99,x&keep=1e9&head=nobody&source=%00&query=%3E&key=9999")
    assert whole.run("return Array.from(at('paths').source.selected.indices)") == [6]
    assert "column 1" in whole.text("status")


def ranks(page: Opened) -> list[int]:
    """Give the ranks of the rows in the order in which they stand."""
    return [n + 1 for n in page.run("return viewOf(at('paths')).data.index;".replace(
        "viewOf(at('paths'))", "Bokeh.index.find_one_by_id(at('paths').id)"))]  # fmt: skip


def test_rows_are_sorted_as_numbers_and_by_place(whole: Opened) -> None:
    def click(title: str) -> None:
        whole.run(
            "const root = Bokeh.index.find_one_by_id(at('paths').id).shadow_el;"
            "[...root.querySelectorAll('.slick-header-column')]"
            ".find((each) => each.textContent.trim() === arguments[0]).click();",
            title,
        )

    table = report().table
    click("rank")
    assert ranks(whole) == list(range(1, 26))
    click("rank")
    assert ranks(whole) == list(range(25, 0, -1))
    click("source")
    places = [row.source_token.position for row in table if row.source_token]
    assert [places[rank - 1] for rank in ranks(whole)] == sorted(places)
    assert "sort=at" in whole.run("return location.hash")
    whole.set("sort", "-value")
    values = sorted((row.value for row in table), reverse=True)
    assert [table[rank - 1].value for rank in ranks(whole)] == values
    whole.visit("#sort=-order&order=77&keep=-5")
    orders = [table[rank - 1].order for rank in ranks(whole)]
    assert orders == sorted(orders, reverse=True)
    assert whole.run("return location.hash") == "#sort=-order"
    whole.click("clear")
    assert ranks(whole) == list(range(1, 26))


def test_what_has_the_focus_keeps_its_keys(opened: Open) -> None:
    from selenium.webdriver import ActionChains, Keys

    page = opened(run().report(top=25, graph=run().graph(prune=True)).page())
    view = "Bokeh.index.find_one_by_id(at(arguments[0]).id)"
    page.run(f"{view}.shadow_el.querySelector('.noUi-handle').focus();", "keep")
    ActionChains(page.browser).send_keys(Keys.ARROW_DOWN).perform()
    assert page.run("return at('paths').source.selected.indices.length") == 0
    assert page.run("return at('keep').value") < 100
    for name in ("paths", "nodes"):
        inside = f"return {view}.shadow_el.activeElement !== null"
        page.run(f"{view}.shadow_el.querySelector('[tabindex]').focus();", name)
        assert page.run(inside, name)
        for _ in range(3):
            ActionChains(page.browser).send_keys(Keys.TAB).perform()
        assert not page.run(inside, name)
    page.run("at('nodes').source.selected.indices = [3];")
    ActionChains(page.browser).send_keys(Keys.ESCAPE).perform()
    assert "Select a node" in page.text("about node")
    assert "node=" not in page.run("return location.hash")
    assert page.said() == []


def test_keys_alone_are_enough(whole: Opened) -> None:
    from selenium.webdriver import ActionChains, Keys

    def press(*keys: str) -> None:
        ActionChains(whole.browser).send_keys(*keys).perform()

    chosen = "return Array.from(at('paths').source.selected.indices)"
    press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert whole.run(chosen) == [2]
    press(Keys.ARROW_UP)
    assert whole.run(chosen) == [1]
    ActionChains(whole.browser).key_down(Keys.SHIFT).send_keys(Keys.ARROW_DOWN).key_up(
        Keys.SHIFT
    ).perform()
    assert whole.run(chosen) == [1, 2]
    press("/", "* > L0H3", Keys.ENTER)
    assert whole.run("return at('query').value") == "* > L0H3" and len(whole.shown) == 1
    press(Keys.ESCAPE)
    assert whole.run(chosen) == [] and len(whole.shown) == 25


# --- selected paths -------------------------------------------------------------------------------


def test_a_selected_path_is_drawn_and_described(whole: Opened) -> None:
    lines = "const d = at('drawing').renderers[0].data_source.data; return JSON.stringify(d);"
    before = whole.run(lines)
    whole.select(4)
    after = whole.run(lines)
    assert before != after
    drawn = json.loads(after)
    assert set(drawn["path"]) == {"embed > L0H3 > L1H0"}
    said = whole.text("detail")
    table = report().table
    for part in (
        "embed > L0H3 > L1H0",
        "-0.6128",
        "between positions | AL1H0 AL0H3",
        "WU WOVL1H0 WOVL0H3 WE",
    ):
        assert part in said
    rest = table.remainder + (table.listed - table[4].running)
    assert f"remainder after it | {rest:.4f}" in said
    assert "embed > L1H0 | 14.8435 | rank 1" in said and "embed > L0H3 | 0.1314 | rank 12" in said


def test_what_is_drawn_carries_the_value(whole: Opened) -> None:
    """What arrives at the last level is the path's value, and each move what the engine says."""
    moves = report().moves
    for n, row in enumerate(report().table):
        parts = slice(moves.first[n], moves.first[n + 1])
        for step in range(row.order + 1):
            of_step = moves.value[parts][moves.step[parts] == step]
            # Parts under a hundredth of the largest are left out, of 21 × 21 at most.
            assert abs(of_step.sum() - row.value) <= 0.01 * abs(of_step).max() * 441 + 1e-6
    whole.select(0)
    said = whole.run("return at('drawing').renderers[0].data_source.data.said")
    assert said[0] == "embed > L1H0; L1H0: 'um' @6 → ' D' @20, 14.8123"
    assert said[-1] == "embed > L1H0; logits: ' D' @20 → ' D' @20, 14.8435"


def test_what_is_too_small_to_draw_is_said(whole: Opened) -> None:
    moves, table = report().moves, report().table
    n = next(n for n, row in enumerate(table) if row.path == "embed > L0H2 > L1H1")
    whole.select(n)
    said = whole.text("detail")
    parts = slice(moves.first[n], moves.first[n + 1])
    for step, label in ((1, "L0H2"), (2, "L1H1")):
        drawn = float(moves.value[parts][moves.step[parts] == step].astype(np.float64).sum())
        assert f"{label} | {drawn:.4f} | {table[n].value - drawn:.4f}" in said
    assert "other tokens | " in said


def test_an_expansion_without_a_bound_is_shown(opened: Open) -> None:
    """As one is that was stopped before anything was known."""
    first, *others = report().heads
    why = dataclasses.replace(first.whys[0], certified=False, bound=None)
    stopped = dataclasses.replace(first, whys=(why, *first.whys[1:]))
    page = opened(dataclasses.replace(report(), heads=(stopped, *others)).page())
    assert "Stopped early: each unlisted pair has at most an unknown size" in page.text("why")
    assert page.said() == []


def test_signs_are_seen_without_colour(whole: Opened) -> None:
    whole.select(0, 4)
    dash, mark, colour = whole.run(
        "const d = at('drawing').renderers[0].data_source.data; return [d.dash, d.mark, d.colour];"
    )
    assert {(d, c) for d, c in zip(dash, colour, strict=True)} == {
        ("solid", "#0072b2"),
        ("10 5", "#d55e00"),
    }
    assert {"+", "−"} <= set(mark)


def test_neighbours_that_are_not_listed_have_their_value(opened: Open) -> None:
    page = opened(run().report(top=5).page())
    page.select(4)
    value = run().value("embed > L0H3")
    assert f"embed > L0H3 | {value:.4f} | not listed" in page.text("detail")


def test_rows_are_copied_with_all_digits(whole: Opened) -> None:
    whole.run(
        "Object.defineProperty(navigator, 'clipboard', {value:"
        " {writeText: async (text) => { window.copied = text; }}});"
    )
    whole.set("sign", "-")
    whole.click("copy")
    whole.wait("window.copied !== undefined")
    found = list(csv.DictReader(StringIO(whole.run("return window.copied"))))
    expected = [row for row in csv.DictReader(StringIO(report().table.to_csv()))
                if row["kind"] != "remainder" and float(row["value"]) < 0]  # fmt: skip
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name in ("path", "order", "kind", "source_token", "source_position"):
            assert one[name] == other[name]
        for name in ("value", "share", "running"):
            assert float(one[name]) == float(other[name])
    assert "Copied" in whole.text("status")


# --- heads ----------------------------------------------------------------------------------------


def test_a_head_says_what_goes_through_it_and_why_it_looks_there(whole: Opened) -> None:
    total = run().head_totals()["L1H0"]
    assert f"All paths through L1H0 add {total:.4f}" in whole.text("about head")
    assert "From ' D' @20 it looks at 'um' @6 0.930" in whole.text("about head")
    whole.set("key", "6")
    whole.set("over", "7")
    table = run().why("L1H0", 20, 6, over=7, top=8)
    said = whole.text("why")
    for row in table:
        assert f"{row.query_path} | {row.key_path} | {row.composition} | {row.value:.4f}" in said
    assert f"score | the model's own | | {table.dense:.4f}" in said
    whole.set("key", "7")
    whole.set("over", "6")
    back = run().why("L1H0", 20, 7, over=6, top=8)
    for row in back:
        assert f"{row.query_path} | {row.key_path} | {row.composition} | {row.value:.4f}" in (
            whole.text("why")
        )


def test_the_pattern_is_the_runs(whole: Opened) -> None:
    whole.set("of head", "L1H2")
    data = whole.run(
        "const d = at('attention').renderers[0].data_source.data;"
        "return [Array.from(d.x), Array.from(d.y), Array.from(d.weight)];"
    )
    pattern = run().patterns[1][2]
    found = np.zeros_like(pattern)
    for key, query, weight in zip(*data, strict=True):
        found[-int(query), int(key)] = weight
    assert abs(found - pattern).max() <= 5e-4


# --- graphs, notebooks, other tables --------------------------------------------------------------


def test_a_graph_closes_on_the_page(opened: Open) -> None:
    graph = run().graph(prune=True)
    page = opened(run().report(top=5, graph=graph).page(), "#node=L1F44@6")
    said = page.text("about node")
    n = graph.find("L1F44@6")
    assert said.startswith("L1F44@6 | is | feature") and "rounding allows" in said
    for s in np.argsort(-abs(graph.weights[n]))[:3]:
        assert f"{graph.nodes[s].name} |" in said
    value = float(f"{graph.values[n]:.5g}")
    assert f"value | | {value:g} | its pre-activation" in said
    split = graph.paths("embed@6", "L1F44@6", top=1).paths[0]
    assert f"by {split.label} {float(f'{split.value:.5g}'):g}" in said
    page.run("at('nodes').source.selected.indices = [];")
    assert "Select a node" in page.text("about node")
    assert page.said() == [] and page.asked() == []


def test_a_graph_is_a_page_of_its_own(opened: Open, tmp_path: FilePath) -> None:
    graph = run().graph(prune=True)
    graph.to_html(tmp_path / "graph.html")
    page = opened((tmp_path / "graph.html").read_text(encoding="utf-8"))
    page.set("nodes with", "L1F")
    features = [n for n, node in enumerate(graph.nodes) if node.name.startswith("L1F")]
    assert page.run("return Array.from(at('nodes').view.filter.indices)") == features
    assert page.said() == [] and page.asked() == []


def test_several_explorers_stand_in_one_notebook(opened: Open) -> None:
    frames = "".join(
        Frame(page_of(which), height=600)._repr_html_() for which in ("whole", "short")
    )
    outer = document(prose("<p>a notebook</p>"), title="notebook")
    head, end, rest = outer.replace("Content-Security-Policy", "x-none").rpartition("</body>")
    page = opened(head + frames + end + rest)
    counts = []
    for frame in page.browser.find_elements("tag name", "iframe"):
        page.browser.execute_script("arguments[0].scrollIntoView()", frame)
        page.browser.switch_to.frame(frame)
        page.wait("window.Bokeh && Bokeh.documents.length === 1")
        page.wait("Bokeh.documents[0].get_model_by_name('kept').text !== ''")
        counts.append(len(page.shown))
        page.select(1)
        assert "is | direct" in page.text("detail")
        page.browser.switch_to.default_content()
    assert counts == [25, 12]
    assert page.said() == []


@pytest.mark.parametrize("which", ["scores", "totals", "norms", "analysis", "empty"])
def test_every_table_is_a_page(which: str, opened: Open) -> None:
    model = run().model
    table = {
        "scores": lambda: run().scores("L1H0", top=5),
        "totals": lambda: run().totals_table(by="pair"),
        "norms": lambda: model.paths(top=4),
        "analysis": lambda: model.circuits.induction_plane().table(),
        "empty": lambda: model.paths(top=0),
    }[which]()
    page = opened(table.page())
    records = table.to_records()
    assert f"{len(records)} of {len(records)} rows shown." in page.text("status")
    if records:
        name = next(iter(records[0]))
        page.set("search", str(records[0][name]))
        assert 0 in page.run("return Array.from(at('rows').view.filter.indices)")
    assert page.said() == [] and page.asked() == []


# --- what stands in tokens ------------------------------------------------------------------------


def hostile() -> Report:
    """Give a report whose every text tries to be something else."""
    whole_, table = report(), report().table
    tokens = tuple(SourceToken(n, n, STRANGE[n % len(STRANGE)]) for n, _ in enumerate(table.tokens))
    rows = tuple(
        dataclasses.replace(row, source_token=tokens[row.source_token.position])
        if row.source_token
        else row
        for row in table.rows
    )
    named = dataclasses.replace(
        table, tokens=tokens, rows=rows, model=ATTACK, target=ATTACK, query=ATTACK
    )
    return dataclasses.replace(whole_, table=named)


def test_nothing_in_a_text_runs(opened: Open) -> None:
    page = opened(hostile().page(), "#query=" + ATTACK.replace("<", "%3C").replace("&", "%26"))
    for n in range(8):
        page.select(n)
    page.set("query", ATTACK)
    page.set("query", "")
    page.run("at('paths').source.selected.indices = [0, 1, 2];")
    page.set("of head", "L1H1")
    assert page.run("return window.hit") is None
    assert ATTACK in page.text("claims") and ATTACK in page.browser.title
    assert column(page, "source")[0] == f"{STRANGE[6]} @6"
    assert page.run("return document.querySelectorAll('img').length") == 0
    assert page.said() == [] and page.asked() == []


def test_a_page_may_ask_for_nothing(opened: Open) -> None:
    """The page's own policy holds even a script that would."""
    page = opened(page_of("short"))
    blocked = page.browser.execute_async_script(
        "const done = arguments[0];"
        "fetch('https://example.com/').then(() => done('asked'), () => done('blocked'));"
    )
    assert blocked == "blocked"
    assert any("Content Security Policy" in line for line in page.said())


def test_a_script_from_elsewhere_would_be_seen(opened: Open) -> None:
    page = page_of("short").replace("Content-Security-Policy", "x-none")
    page = '<script src="https://example.com/a.js"></script>'.join(page.rsplit("</body>", 1))
    assert opened(page).asked() == ["https://example.com/a.js"]
