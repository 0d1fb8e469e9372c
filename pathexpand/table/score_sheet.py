"""How a table of an attention score is laid out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pathexpand.table.figures import Scale, counted, percent, small, upper, whole
from pathexpand.table.path_sheet import mark
from pathexpand.table.sheet import Closing, Column, Line, Sheet
from pathexpand.table.shorten import shorten_path, shorten_tokens
from pathexpand.table.spelling import visible

if TYPE_CHECKING:
    from pathexpand.table.score_table import ScoreTable

_SIDES = {
    "none": "composed on neither side",
    "Q": "composed on the query's side",
    "K": "composed on the key's side",
    "both": "composed on both sides",
}


def score_sheet(table: ScoreTable, *, ascii: bool) -> Sheet:
    """Lay out the pairs of a score.

    >>> from pathexpand.api import load
    >>> table = load("two-layer").run("to be or not to").scores("L1H0", top=3)
    >>> [line.label for line in score_sheet(table, ascii=True).closing][:2]
    ['listed', 'remainder']
    """
    return Sheet(
        head=_head(table, ascii=ascii),
        columns=_columns(table, ascii=ascii),
        closing=tuple(_closing(table)),
        claims=tuple(_claims(table)),
        good=table.certified and table.closes,
    )


def _head(table: ScoreTable, *, ascii: bool) -> tuple[Line, ...]:
    texts = [visible(token.text, ascii=ascii) for token in table.tokens]
    number = f"{counted(len(texts), 'token')}: "

    def at(position: int, attention: float) -> str:
        return f"{position}, {texts[position]}, attention {attention:.4g}"

    over = []
    if table.over is not None and table.attention_over is not None:
        over = [Line("over", at(table.over, table.attention_over))]
    return (
        Line("model", visible(table.model, ascii=ascii)),
        Line(
            "prompt",
            number + " ".join(texts),
            lambda room: number + shorten_tokens(texts, room - len(number), mark=mark(ascii=ascii)),
        ),
        Line("head", table.head),
        Line("query", f"{table.query}, {texts[table.query]}"),
        Line("key", at(table.key, table.attention)),
        *over,
    )


def _columns(table: ScoreTable, *, ascii: bool) -> tuple[Column, ...]:
    rows, write = table.rows, _scale(table).write
    ranks = tuple(str(row.rank) + ("" if row.certain else "?") for row in rows)
    return (
        Column("rank", ranks, right=True),
        _paths("query path", [visible(row.query_path, ascii=ascii) for row in rows], ascii=ascii),
        _paths("key path", [visible(row.key_path, ascii=ascii) for row in rows], ascii=ascii),
        Column("composition", tuple(row.composition for row in rows), leave=1),
        Column("value", tuple(write(row.value) for row in rows), right=True),
        Column("share", tuple(percent(row.share) for row in rows), right=True, leave=2),
        Column("running", tuple(write(row.running) for row in rows), right=True, leave=3),
    )


def _paths(name: str, paths: list[str], *, ascii: bool) -> Column:
    return Column(
        name,
        tuple(paths),
        literal=True,
        shorten=lambda row, room: shorten_path(paths[row], room, mark=mark(ascii=ascii)),
        least=19,
    )


def _scale(table: ScoreTable) -> Scale:
    numbers = [table.dense, table.sum, table.listed, table.remainder]
    rows = [number for row in table.rows for number in (row.value, row.running)]
    return Scale.of([*numbers, *rows, *(each.value for each in table.compositions)])


def _closing(table: ScoreTable) -> Iterator[Closing]:
    write = _scale(table).write

    def line(label: str, value: float, remark: str) -> Closing:
        share = percent(value / table.dense) if table.dense else "-"
        return Closing(label, write(value), share, remark)

    yield line("listed", table.listed, counted(len(table), "pair"))
    yield line("remainder", table.remainder, counted(table.remainder_count, "pair"))
    if table.alibi is not None:
        yield line("ALiBi", table.alibi, "no pair of paths: it depends on the distance alone")
    yield line("sum", table.sum, counted(table.pair_count, "pair"))
    yield line("dense", table.dense, _dense(table))
    allowed = upper(table.gap_bound, digits=2)
    yield Closing("gap", small(table.gap), "", f"rounding allows {allowed}")
    for each in table.compositions:
        remark = f"{counted(each.pairs, 'pair')}, {_SIDES[each.composition]}"
        yield line(each.composition, each.value, remark)


def _dense(table: ScoreTable) -> str:
    if table.over is None:
        said = "the model's own score"
        return said if table.soft_cap is None else f"{said}, before its cap of {table.soft_cap:g}"
    return "log of key's over the other's attention"


def _claims(table: ScoreTable) -> Iterator[str]:
    if not table.closes:
        yield "THE SUM DOES NOT CLOSE: the gap is larger than rounding explains."
    if not table.remainder_count:
        yield "Complete: no pair is left out."
        return
    each = "the unlisted pair"
    if table.remainder_count > 1:
        each = f"each of the {whole(table.remainder_count)} unlisted pairs"
    if table.bound is None:
        unlisted = counted(table.remainder_count, "unlisted pair")
        yield f"Stopped early: no bound is known for {unlisted}."
        return
    said = f"{each} has |value| of at most {upper(table.bound)}."
    marked = " Rows marked ? may be outranked." if not all(row.certain for row in table) else ""
    yield f"{'Certified' if table.certified else 'Stopped early'}: {said}{marked}"
    if table.visited < table.pair_count:
        yield f"{whole(table.visited)} of {counted(table.pair_count, 'pair')} were valued."
