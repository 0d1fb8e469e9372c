"""How a table of a run's paths is laid out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from pathexpand.table.figures import Scale, counted, percent, small, upper, whole
from pathexpand.table.held import dense_remark, mlps_line
from pathexpand.table.sheet import Closing, Column, Line, Sheet
from pathexpand.table.shorten import shorten_path, shorten_token, shorten_tokens
from pathexpand.table.spelling import visible

if TYPE_CHECKING:
    from pathexpand.table.path_table import PathRow, PathTable, SourceToken


class Ranked(Protocol):
    """What the rows of every table of paths have."""

    @property
    def rank(self) -> int:
        """The place in the ranking, from 1."""

    @property
    def path(self) -> str:
        """The path's labels."""

    @property
    def order(self) -> int:
        """The number of heads."""

    @property
    def kind(self) -> str:
        """The paper's name for paths of this order."""


def path_sheet(table: PathTable, *, ascii: bool) -> Sheet:
    """Lay out a table of paths.

    >>> from pathexpand.api import load
    >>> sheet = path_sheet(load("two-layer").run("to be or not to").paths(), ascii=True)
    >>> [line.label for line in sheet.closing]
    ['listed', 'remainder', 'sum', 'dense', 'gap']
    """
    return Sheet(
        head=_head(table, ascii=ascii),
        columns=(*path_columns(table.rows, ascii=ascii), *_value_columns(table, ascii=ascii)),
        closing=_closing(table),
        claims=(
            *_fault(table),
            claim(table, table.remainder_count),
            *_searched(table),
            *_energy(table),
        ),
        good=table.certified and table.closes,
    )


def mark(*, ascii: bool) -> str:
    """Give the mark that stands for what is left out.

    >>> mark(ascii=True)
    '...'
    """
    return "..." if ascii else "…"


def path_columns(rows: Sequence[Ranked], *, ascii: bool) -> tuple[Column, ...]:
    """Give the columns that say which paths are listed.

    >>> path_columns([], ascii=True)[1].name
    'path'
    """
    paths = [visible(row.path, ascii=ascii) for row in rows]
    kinds = tuple(row.kind for row in rows)
    return (
        Column("rank", tuple(_rank(row) for row in rows), right=True),
        Column(
            "path",
            tuple(paths),
            literal=True,
            shorten=lambda row, room: shorten_path(paths[row], room, mark=mark(ascii=ascii)),
            least=26,
        ),
        Column("order", tuple(str(row.order) for row in rows), right=True, leave=5),
        Column(
            "kind",
            kinds,
            shorten=lambda row, room: kinds[row].removesuffix(" head"),
            least=len("virtual"),
            leave=4,
        ),
    )


def _rank(row: Ranked) -> str:
    """Write the place in the ranking, with a mark if a path not visited could push it out."""
    return str(row.rank) + ("" if getattr(row, "certain", True) else "?")


class Searched(Protocol):
    """What tables know of the paths that are not listed."""

    def __len__(self) -> int:
        """Give the number of listed paths."""

    def __iter__(self) -> Iterator[object]:
        """Yield the rows."""

    @property
    def certified(self) -> bool:
        """Whether no unlisted path within the order is larger than a listed one."""

    @property
    def bound(self) -> float | None:
        """The largest size of an unlisted path within the order."""

    @property
    def longer_bound(self) -> float | None:
        """The largest size of a path above the order, if that is known."""

    @property
    def max_order(self) -> int | None:
        """The order up to which paths were ranked."""


def claim(table: Searched, unlisted: int, *, size: str = "|value|") -> str:
    """Say in a sentence what is known of the paths that are not listed.

    >>> from pathexpand.api import load
    >>> run = load("two-layer").run("to be or not to")
    >>> claim(run.paths(top=100), 0)
    'Complete: no path is left out.'
    """
    if not unlisted and not len(table):
        return "No path matches the query."
    if not unlisted:
        return "Complete: no path is left out."
    if table.bound is None:
        paths = counted(unlisted, "unlisted path")
        return f"Stopped early: no bound is known for {paths}. Rows marked ? may be outranked."
    bound = f"{size} of at most {upper(table.bound)}"
    beyond = table.longer_bound
    longer = table.max_order is not None and beyond != 0
    each = "the unlisted path has"
    if unlisted > 1:
        each = f"each of the {whole(unlisted)} unlisted paths has"
    if longer:
        each = f"each unlisted path of order {table.max_order or 0} or less has"
    said = f"{each} {bound}" + ("" if longer else ".")
    if longer and beyond is None:
        said += "; longer ones were not looked at."
    elif longer and beyond is not None:
        said += f", each longer one of at most {upper(beyond)}."
    if table.certified and any(not getattr(row, "certain", True) for row in table):
        return f"Certified up to rounding: {said} Rows marked ? may be outranked."
    if table.certified:
        return f"Certified: {said}"
    rows = " Rows marked ? may be outranked." if len(table) else ""
    return f"Stopped early: {said}{rows}"


def _head(table: PathTable, *, ascii: bool) -> tuple[Line, ...]:
    last = visible(table.tokens[table.position].text, ascii=ascii)
    return (
        Line("model", visible(table.model, ascii=ascii)),
        prompt_line(table.tokens, ascii=ascii),
        Line("position", f"{table.position}, after {last}"),
        Line("target", visible(table.target, ascii=ascii)),
        *mlps_line(table.mlps),
        *asked(table.query, ascii=ascii),
    )


def prompt_line(tokens: Sequence[SourceToken], *, ascii: bool = False) -> Line:
    """Give the line that shows a prompt, token by token.

    >>> from pathexpand.api import load
    >>> prompt_line(load("two-layer").run("to be").source_tokens).text
    "3 tokens: <|bos|> 'to' ' be'"
    """
    texts = [visible(token.text, ascii=ascii) for token in tokens]
    number = f"{counted(len(texts), 'token')}: "
    return Line(
        "prompt",
        number + " ".join(texts),
        lambda room: number + shorten_tokens(texts, room - len(number), mark=mark(ascii=ascii)),
    )


def _energy(table: PathTable) -> tuple[str, ...]:
    """Say how much is left in the remainder, path by path: its sum alone may hide it."""
    if not table.remainder_count or table.remainder_energy is None:
        return ()
    return (f"Squared values in the remainder sum to at most {upper(table.remainder_energy)}.",)


def asked(query: str, *, ascii: bool) -> tuple[Line, ...]:
    """Give the line that names a query, if not every path was asked for.

    >>> asked("*", ascii=True)
    ()
    """
    return () if query == "*" else (Line("query", visible(query, ascii=ascii)),)


def _searched(table: PathTable) -> tuple[str, ...]:
    """Say how little was visited, where that is worth saying."""
    if table.visited is None or table.visited >= table.path_count:
        return ()
    return (f"{whole(table.visited)} of {counted(table.path_count, 'path')} were valued.",)


def _value_columns(table: PathTable, *, ascii: bool) -> tuple[Column, ...]:
    scale, rows = _scale(table), table.rows
    tokens = [row.source_token for row in rows]
    return (
        Column("value", tuple(scale.write(row.value) for row in rows), right=True),
        Column("share", tuple(percent(row.share) for row in rows), right=True, leave=2),
        Column("running", tuple(scale.write(row.running) for row in rows), right=True, leave=3),
        Column(
            "source",
            tuple(_source(token, ascii=ascii) for token in tokens),
            literal=True,
            shorten=lambda row, room: _source(tokens[row], room, ascii=ascii),
            least=16,
            leave=1,
        ),
    )


def _source(token: SourceToken | None, room: int | None = None, *, ascii: bool) -> str:
    """Write a source token with its position."""
    if token is None:
        return ""
    text, place = visible(token.text, ascii=ascii), f" @{token.position}"
    if room is None:
        return text + place
    return shorten_token(text, token.id, room - len(place), mark=mark(ascii=ascii)) + place


def _scale(table: PathTable) -> Scale:
    rows: Sequence[PathRow] = table.rows
    return Scale.of(
        [table.dense, table.sum, table.listed, table.remainder, table.outside]
        + [row.value for row in rows]
        + [row.running for row in rows]
    )


def _closing(table: PathTable) -> tuple[Closing, ...]:
    write = _scale(table).write

    def share(part: float) -> str:
        return percent(part / table.dense) if table.dense else "-"

    return (
        Closing("listed", write(table.listed), share(table.listed), counted(len(table), "path")),
        Closing(
            "remainder",
            write(table.remainder),
            share(table.remainder),
            counted(table.remainder_count, "path"),
        ),
        *(
            (
                Closing(
                    "outside",
                    write(table.outside),
                    share(table.outside),
                    f"{counted(table.outside_count, 'path')} not in the query",
                ),
            )
            if table.outside_count
            else ()
        ),
        Closing("sum", write(table.sum), share(table.sum), counted(table.path_count, "path")),
        Closing(
            "dense",
            write(table.dense),
            share(table.dense),
            dense_remark("the model's own forward pass", table.soft_cap),
        ),
        Closing("gap", small(table.gap), "", f"rounding allows {upper(table.gap_bound, digits=2)}"),
    )


def _fault(table: PathTable) -> tuple[str, ...]:
    if table.closes:
        return ()
    return ("THE SUM DOES NOT CLOSE: the gap is larger than rounding explains.",)
