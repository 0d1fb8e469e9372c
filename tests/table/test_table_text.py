"""Tables as people read them."""

from __future__ import annotations

import io
import itertools
import re
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pathexpand.table import AnalysisTable, Field, PathRow, SourceToken, Summary
from pathexpand.table.figures import Scale, percent, upper
from pathexpand.table.shorten import shorten_path, shorten_token, shorten_tokens, width
from pathexpand.table.spelling import can_show, visible

LONG = "embed > " + " > ".join(f"L{layer}H{layer * 7 % 12}" for layer in range(12))


def long_row(token: SourceToken) -> PathRow:
    return PathRow(1, LONG, 12, "virtual head", -1234.5, -301.0, -1234.5, token, 1.0)


def test_text_says_everything(table):
    text = table.to_text(100)
    for said in (
        "tiny",
        "8 tokens: <|bos|> ' the' 'the'",
        "7, after '|`<b>&'",
        "logit of ' the' minus logit of 'the'",
        "' the' @1",
        "67.1%",
        "3 paths",
        "5 paths",
        "Certified: each of the 3 unlisted paths has |value| of at most 0.29.",
    ):
        assert said in text, said
    closing = dict(re.findall(r"^(listed|remainder|sum|dense) +([-\d.]+)", text, re.MULTILINE))
    assert closing == {
        "listed": "2.4500",
        "remainder": "1.6500",
        "sum": "4.1000",
        "dense": "4.1000",
    }


@pytest.mark.parametrize("room", [40, 50, 60, 80, 100, 200])
@pytest.mark.parametrize("ascii", [False, True])
def test_text_fits(make, room, ascii):
    token = SourceToken(3, 555, "'漢字 antidisestablishmentarianism'")
    table = make(rows=(long_row(token),), remainder_count=4, tokens=(token,) * 64, position=3)
    text = table.to_text(room, ascii=ascii)
    assert max(cell_len(line) for line in text.splitlines()) <= room
    assert "-1234.5" in text
    assert text.isascii() or not ascii


def test_room_is_used(make):
    token = SourceToken(3, 555, "'word'")
    wide = make(rows=(long_row(token),), remainder_count=4).to_text(200)
    assert LONG in wide
    assert "virtual head" in wide
    assert "…" not in wide


def test_numbers_are_right_aligned(table):
    lines = table.to_text(100).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("rank"))
    ends = {
        line.index(number) + len(number)
        for line, number in zip(lines[start + 2 : start + 4], ("2.7500", "-0.3000"), strict=True)
    }
    assert len(ends) == 1


def test_claims(make, table):
    assert "Complete" in make(rows=table.rows, remainder_count=0, path_count=2).to_text()

    def said(**parts):
        return " ".join(make(**parts).to_text().split())

    assert (
        "Certified: each unlisted path of order 1 or less has |value| of at most 0.29, each "
        "longer one of at most 1.7." in said(max_order=1, longer_bound=1.7)
    )
    unseen = said(max_order=1, longer_bound=None)
    assert "of at most 0.29; longer ones were not looked at." in unseen
    assert "Certified: each of the 3 unlisted paths has" in said(max_order=1)
    stopped = said(certified=False, bound=0.5)
    assert (
        "Stopped early: each of the 3 unlisted paths has |value| of at most 0.5. Rows marked ? "
        "may be outranked." in stopped
    )
    unknown = said(certified=False, bound=None)
    assert "Stopped early: no bound is known for 3 unlisted paths." in unknown
    one = said(remainder_count=1, path_count=3)
    assert "Certified: the unlisted path has |value| of at most 0.29." in one
    assert "2 of 5 paths were valued." in said(visited=2)
    assert "were valued" not in said(visited=5)
    assert "DOES NOT CLOSE" in make(gap=1.0).to_text()
    assert "DOES NOT CLOSE" not in table.to_text()


def test_thousands_are_separated(make):
    count = 23_298_085_122_481
    text = make(path_count=count, remainder_count=count - 2).to_text(80)
    assert "23,298,085,122,481 paths" in text
    assert "23,298,085,122,479 unlisted paths" in " ".join(text.split())


def test_a_norm_table(norms):
    text = norms.to_text(80)
    assert "2 of 7 paths listed; squared norms sum to 1000." in text
    assert "Certified: each of the 5 unlisted paths has a norm of at most 3.1." in text


def test_rows_that_may_be_outranked_are_marked(make, table):
    rows = (table.rows[0], replace(table.rows[1], certain=False))
    text = make(rows=rows, certified=False, bound=0.5).to_text(80)
    ranks = re.findall(r"^ *(\d+\??) +(?:embed|b_U)", text, re.MULTILINE)
    assert ranks == ["1", "2?"]
    assert "2?" not in table.to_text(80)


def test_a_query_is_named_and_what_is_outside_is_closed(make):
    asked = make(query="embed → *", outside=0.65, outside_count=2, remainder=1.0, remainder_count=1)
    for ascii in (False, True):
        text = asked.to_text(80, ascii=ascii)
        assert re.search(r"^query +embed " + ("->" if ascii else "→"), text, re.MULTILINE) or ascii
        assert re.search(r"^outside +0\.6500 .*2 paths not in the query", text, re.MULTILINE)
        assert text.isascii() or not ascii
    assert asked.sum == 2.45 + 1.0 + 0.65
    assert [each["value"] for each in asked.closing_records()] == [1.0, 0.65]


def test_centred_norms_say_so(norms):
    assert "each row less its mean" in " ".join(replace(norms, centred=True).to_text(80).split())
    assert "query" in replace(norms, query="embed > *").to_text(80)


def test_no_rows(make):
    assert "5 paths" in make(rows=(), listed=0.0, remainder=4.1, remainder_count=5).to_text(80)


def test_color_is_only_added(table):
    plain, coloured = table.to_text(80), table.to_text(80, color=True)
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    strip = re.compile(r"\x1b\[[\d;]*m")
    bare = [strip.sub("", line).rstrip() for line in coloured.splitlines()]
    assert bare == plain.splitlines()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_printing_never_fails(table, monkeypatch, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    print(table)
    sys.stdout.flush()
    written = raw.getvalue().decode(encoding)
    assert ("…" in written or "─" in written) == (encoding == "utf-8")
    assert repr(table) == str(table)


def test_nothing_of_a_token_is_invisible_or_markup(make):
    nasty = ("[bold]x[/bold]", ":smile:", "\x1b[31m", "a\u202eb", "a\nb", "\t")
    tokens = tuple(SourceToken(n, n, text) for n, text in enumerate(nasty))
    text = make(tokens=tokens, position=4).to_text(120)
    assert "[bold]x[/bold] :smile: \\x1b[31m a\\u202eb a\\nb \\t" in text
    assert "\x1b" not in text


# --- other markup -----------------------------------------------------------------------------


def test_html_is_inert(make):
    attack = "'</td></script><img src=x onerror=alert(1)>'"
    token = SourceToken(0, 9, attack)
    row = PathRow(1, "embed", 0, "direct", 1.0, None, 1.0, token, 1.0)
    table = make(
        tokens=(token,), position=0, rows=(row,), remainder_count=4, target=attack, model=attack
    )
    html = table._repr_html_()
    tags = set(re.findall(r"</?([a-z]+)", html))
    assert tags == {"div", "span", "table", "thead", "tbody", "tr", "th", "td"}
    assert html.count("&lt;img src=x onerror=alert(1)&gt;") == 5
    assert "script" not in tags


def test_html_keeps_the_spaces_of_tokens(make):
    token = SourceToken(0, 9, "'  '")
    row = PathRow(1, "embed", 0, "direct", 1.0, None, 1.0, token, 1.0)
    html = make(tokens=(token,), position=0, rows=(row,), remainder_count=4)._repr_html_()
    assert 'white-space: pre; text-align: left;">&#x27;  &#x27; @0</td>' in html


def test_markdown_has_the_same_cells_in_every_row(make):
    token = SourceToken(0, 9, "'|`||``'")
    row = PathRow(1, "embed", 0, "direct", 1.0, None, 1.0, token, 1.0)
    text = make(tokens=(token,), position=0, rows=(row,), remainder_count=4).to_markdown()
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line[:1] == "|"]
    assert set(bars) == {9}
    assert "``` '\\|`\\|\\|``' @0 ```" in text
    assert "(remainder)" in text


def test_latex_escapes(make):
    token = SourceToken(0, 9, r"'\%$#_&{}~^ --'")
    row = PathRow(1, "embed", 0, "direct", 1.0, None, 1.0, token, 1.0)
    text = make(tokens=(token,), position=0, rows=(row,), remainder_count=4).to_latex()
    (line,) = (line for line in text.splitlines() if r"\texttt{embed}" in line)
    assert line.count(" & ") == 7
    assert r"\textbackslash{}\%\$\#\_\&\{\}\textasciitilde{}\textasciicircum{}\ {-}{-}" in line
    assert text.count("{") == text.count("}") + line.count(r"\{") - line.count(r"\}")


@pytest.mark.parametrize("method", ["to_markdown", "to_latex"])
def test_markup_in_ascii(table, method):
    assert not table.sheet().head[1].text.isascii()
    assert getattr(table, method)(ascii=True).isascii()


# --- cutting ----------------------------------------------------------------------------------


def test_paths_keep_both_ends():
    assert shorten_path(LONG, 200) == LONG
    for room in range(18, 100):
        cut = shorten_path(LONG, room)
        assert width(cut) <= room
        assert cut.startswith("embed > ")
        assert cut.endswith(" > L11H5")


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(5, 120))
def test_cut_paths_fit(heads, room):
    path = " > ".join(["embed", *(f"L{n}H{head}" for n, head in enumerate(heads))])
    assert width(shorten_path(path, room)) <= room


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=40), st.integers(20, 90))
def test_cut_prompts_fit_and_keep_the_last_token(texts, room):
    shown = [f"'{visible(text)}'"[:8] for text in texts]
    cut = shorten_tokens(shown, room)
    assert width(cut) <= max(room, width(shown[-1]) + 2)
    assert cut.endswith(shown[-1])


def test_cut_tokens_are_told_apart_by_their_ids():
    texts = ["'aaaaaaaaaaaaaaaaaaaab'", "'aaaaaaaaaaaaaaaaaaaac'", "'漢字漢字漢字漢字漢字'"]
    cut = [shorten_token(text, token, 14) for token, text in enumerate(texts, start=70)]
    assert len(set(cut)) == 3
    assert all(width(each) <= 14 for each in cut)


@given(st.lists(st.text(max_size=8), min_size=2, max_size=6, unique=True))
def test_escaping_keeps_tokens_apart(texts):
    quoted = ["'" + text.replace("\\", "\\\\") + "'" for text in texts]
    for ascii in (False, True):
        shown = [visible(text, ascii=ascii) for text in quoted]
        assert len(set(shown)) == len(texts)
        assert all(each.isprintable() for text in shown for each in text)


# --- numbers ----------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=6))
def test_numbers_keep_their_size(numbers):
    scale = Scale.of(numbers)
    largest = max(map(abs, numbers))
    for number in numbers:
        written = scale.write(number)
        assert len(written) <= 12
        assert (float(written) == 0) == (number == 0)
        assert abs(float(written) - number) <= 1e-3 * largest + 0.06 * abs(number)


@given(st.floats(0, 1e300))
def test_a_printed_bound_is_a_bound(bound):
    for digits in (2, 4):
        assert bound <= float(upper(bound, digits=digits)) <= bound * 1.11 + 1e-322


@given(st.floats(-1e12, 1e12))
def test_percentages_are_short(share):
    assert len(percent(share)) <= 10


def test_neighbouring_scales_agree():
    written = [Scale.of([10.0**power]).write(10.0**power) for power in range(-4, 8)]
    assert written[0] == "1.0000e-04"
    assert written[3:6] == ["0.10000", "1.0000", "10.0000"]
    assert written[-1] == "1.0000e+07"
    assert all(len(a) <= 10 for a, _ in itertools.pairwise(written))


def test_encodings():
    assert can_show("plain", None)
    assert not can_show("⊗", None)
    assert not can_show("é", "no-such-encoding")


def measured(columns: int) -> AnalysisTable:
    fields = (Field("head", "text"), *(Field(f"behaviour {n}", "number") for n in range(columns)))
    rows = tuple((f"L0H{n}", *(n + 0.5,) * columns) for n in range(3))
    remark = "characteristically uninterrupted remarks, notwithstanding narrowness"
    return AnalysisTable("demo", (), fields, rows, (Summary("mean of all", 1.5, remark),))


@pytest.mark.parametrize("room", [40, 60, 80])
@pytest.mark.parametrize("columns", [1, 5, 12])
def test_many_columns_are_parted_and_none_is_lost(columns, room):
    text = measured(columns).to_text(room)
    assert max(map(len, text.splitlines())) <= room
    headings = [line for line in text.splitlines() if line.startswith("head")]
    found = [name for line in headings for name in line.split() if name.isdigit()]
    assert found == [str(n) for n in range(columns)]  # each once, in order
    assert text.count("L0H2") == len(headings)


@pytest.mark.parametrize("room", [40, 50, 80])
def test_remarks_break_between_words_alone(room):
    table = measured(1)
    words = table.closing[0].remark.split()
    assert [word for word in table.to_text(room).split() if word in words] == words


def test_columns_that_are_cut_share_the_room():
    fields = (Field("one", "text"), Field("other", "text"))
    text = AnalysisTable("demo", (), fields, (("a" * 100, "b" * 100),)).to_text(80)
    row = text.splitlines()[2].split()
    assert [len(cell) for cell in row] == [39, 39]
