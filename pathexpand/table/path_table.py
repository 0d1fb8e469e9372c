"""The table of ranked paths of a run, closed by a remainder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from pathexpand.errors import PathExpandError
from pathexpand.table.abstract import Table
from pathexpand.table.document import Record, check_finite, read
from pathexpand.table.held import check_held
from pathexpand.table.sheet import Sheet


class Paged(Protocol):
    """What gives a page of HTML."""

    def page(self) -> str:
        """Give the page."""


@dataclass(frozen=True, slots=True)
class SourceToken:
    """A token of the prompt: its position, its id, and its text made visible.

    >>> SourceToken(12, 816, "' bu'")
    SourceToken(position=12, id=816, text="' bu'")
    """

    position: int
    id: int
    text: str

    def __post_init__(self) -> None:
        """Refuse a position or an id below 0."""
        if self.position < 0 or self.id < 0:
            raise PathExpandError(
                "source token",
                wanted="a position and an id of at least 0",
                got=f"{self.position} and {self.id}",
            )


@dataclass(frozen=True, slots=True)
class PathRow:
    """One ranked path.

    `share` is the value over the dense value (None where that is 0), `running` the sum of the
    values down to this row, `source_token` the token with the largest part of the value and
    `source_value` that part. `certain` says that the path surely belongs among the listed: its
    |value| is at least the table's bound.

    >>> PathRow(1, "embed", 0, "direct", 2.0, 0.5, 2.0, SourceToken(0, 7, "'a'"), 2.0).share
    0.5
    """

    rank: int
    path: str
    order: int
    kind: str
    value: float
    share: float | None
    running: float
    source_token: SourceToken | None
    source_value: float | None
    certain: bool = True

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite."""
        check_finite(
            value=self.value,
            share=self.share,
            running=self.running,
            source_value=self.source_value,
        )

    def record(self) -> dict[str, Any]:
        """Give the row as a flat dictionary.

        >>> row = PathRow(1, "b_U", 0, "direct", 2.0, 0.5, 2.0, None, None)
        >>> row.record()["path"], row.record()["source_token"]
        ('b_U', None)
        """
        token = self.source_token
        return {
            "rank": self.rank,
            "path": self.path,
            "order": self.order,
            "kind": self.kind,
            "value": self.value,
            "share": self.share,
            "running": self.running,
            "source_token": None if token is None else token.text,
            "source_position": None if token is None else token.position,
            "source_id": None if token is None else token.id,
            "source_value": self.source_value,
            "certain": self.certain,
        }


@dataclass(frozen=True, slots=True, repr=False)
class PathTable(Table):
    """Ranked paths, closed: listed + remainder + outside = dense, but for a gap under its bound.

    `remainder` is the sum of the `remainder_count` unlisted paths of the query, `outside` of the
    `outside_count` paths that it does not match, both found without the dense value. `certified`
    says that no unlisted path of the query is larger in |value| than a listed one, up to
    `max_order` components if that is set. Every unlisted path has |value| of at most `bound`, or
    `longer_bound` if it is longer (None: longer ones were not looked at). `remainder_energy`
    bounds the sum of their squared values, and `visited` counts the paths that were valued. `mlps`
    says what the model's MLPs are in a path ("source", "frozen" or "neurons"; None without MLPs).
    Where there is a `soft_cap` on the logits, all values are those before it. `origin` makes the
    explorer of the run that the table is of; a table that was read from a file has none. Raises
    `PathExpandError` for numbers that are not finite or counts that do not add up.

    >>> from pathexpand.api import load
    >>> table = load("two-layer").run("to be or not to").paths(top=2)
    >>> [row.rank for row in table], table.closes
    ([1, 2], True)
    """

    model: str
    tokens: tuple[SourceToken, ...]
    position: int
    target: str
    dense: float
    rows: tuple[PathRow, ...]
    listed: float
    remainder: float
    remainder_count: int
    gap: float
    gap_bound: float
    path_count: int
    certified: bool
    bound: float | None
    max_order: int | None = None
    longer_bound: float | None = 0.0
    visited: int | None = None
    remainder_energy: float | None = None
    query: str = "*"
    outside: float = 0.0
    outside_count: int = 0
    mlps: str | None = None
    soft_cap: float | None = None
    origin: Callable[[PathTable], Paged] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Refuse a table that contradicts itself."""
        check_finite(
            dense=self.dense,
            listed=self.listed,
            remainder=self.remainder,
            gap=self.gap,
            gap_bound=self.gap_bound,
            bound=self.bound,
            longer_bound=self.longer_bound,
            remainder_energy=self.remainder_energy,
            outside=self.outside,
            soft_cap=self.soft_cap,
        )
        check_held(self.mlps, self.soft_cap)
        for fault, is_so in self._faults().items():
            if is_so:
                raise PathExpandError("table", wanted=fault)

    def _faults(self) -> dict[str, bool]:
        return {
            "a position of the prompt": not 0 <= self.position < len(self.tokens),
            "ranks 1, 2, 3, …": [row.rank for row in self.rows] != [*range(1, len(self) + 1)],
            "as many paths listed and unlisted as there are": (
                min(self.remainder_count, self.outside_count) < 0
                or len(self) + self.remainder_count + self.outside_count != self.path_count
            ),
            "a bound, as it is certified": self.certified and self.bound is None,
            "a gap bound of at least 0": self.gap_bound < 0,
        }

    def __len__(self) -> int:
        """Give the number of listed paths."""
        return len(self.rows)

    def __iter__(self) -> Iterator[PathRow]:
        """Yield the rows, largest |value| first."""
        return iter(self.rows)

    def __getitem__(self, index: int) -> PathRow:
        """Give a row, counted from 0."""
        return self.rows[index]

    @property
    def sum(self) -> float:
        """Listed + remainder + outside."""
        return self.listed + self.remainder + self.outside

    @property
    def closes(self) -> bool:
        """Whether the gap between the sum and the dense value is within its bound."""
        return abs(self.gap) <= self.gap_bound

    def to_records(self) -> list[dict[str, Any]]:
        """Give one flat dictionary a row, with plain numbers and texts.

        >>> from pathexpand.api import load
        >>> load("two-layer").run("to be or not to").paths(top=2).to_records()[1]["rank"]
        2
        """
        return [row.record() for row in self.rows]

    def document(self) -> dict[str, Any]:
        """Give all the table holds as plain numbers, texts, lists and dictionaries.

        >>> from pathexpand.api import load
        >>> list(load("two-layer").run("to be or not to").paths(top=2).document())[:3]
        ['table', 'model', 'tokens']
        """
        return {
            "table": "paths",
            "model": self.model,
            "tokens": [
                {"position": each.position, "id": each.id, "text": each.text}
                for each in self.tokens
            ],
            "position": self.position,
            "target": self.target,
            "dense": self.dense,
            "rows": self.to_records(),
            "listed": self.listed,
            "remainder": self.remainder,
            "remainder_count": self.remainder_count,
            "gap": self.gap,
            "gap_bound": self.gap_bound,
            "path_count": self.path_count,
            "certified": self.certified,
            "bound": self.bound,
            "max_order": self.max_order,
            "longer_bound": self.longer_bound,
            "visited": self.visited,
            "remainder_energy": self.remainder_energy,
            "query": self.query,
            "outside": self.outside,
            "outside_count": self.outside_count,
            "mlps": self.mlps,
            "soft_cap": self.soft_cap,
        }

    @classmethod
    def from_json(cls, text: str) -> PathTable:
        """Read what `to_json` wrote, exact to the last digit; raises `FileError`.

        >>> PathTable.from_json("[]")
        Traceback (most recent call last):
        ...
        pathexpand.errors.FileError: table: wanted JSON with "table": "paths", got 'list'
        """
        table = read(text, "paths")
        return cls(
            model=table.text("model"),
            tokens=tuple(
                SourceToken(each.whole("position"), each.whole("id"), each.text("text"))
                for each in table.records("tokens")
            ),
            position=table.whole("position"),
            target=table.text("target"),
            dense=table.number("dense"),
            rows=tuple(_read_row(each) for each in table.records("rows")),
            listed=table.number("listed"),
            remainder=table.number("remainder"),
            remainder_count=table.whole("remainder_count"),
            gap=table.number("gap"),
            gap_bound=table.number("gap_bound"),
            path_count=table.whole("path_count"),
            certified=table.flag("certified"),
            bound=table.number_or_none("bound"),
            max_order=table.whole_or_none("max_order"),
            longer_bound=table.number_or_none("longer_bound"),
            visited=table.whole_or_none("visited"),
            remainder_energy=table.number_or_none("remainder_energy"),
            query=table.text("query"),
            outside=table.number("outside"),
            outside_count=table.whole("outside_count"),
            mlps=table.text_if_any("mlps"),
            soft_cap=table.number_if_any("soft_cap"),
        )

    def closing_records(self) -> list[dict[str, Any]]:
        """Give all that is not listed as records, so that the values sum to the dense value.

        >>> from pathexpand.api import load
        >>> run = load("two-layer").run("to be or not to")
        >>> [record["path"] for record in run.paths(query="* > L1H0").closing_records()]
        ['(remainder)', '(outside)']
        """
        parts = [("remainder", self.remainder, self.listed + self.remainder)]
        if self.outside_count:
            parts.append(("outside", self.outside, self.sum))
        return [
            {
                "path": f"({name})",
                "kind": name,
                "value": value,
                "share": value / self.dense if self.dense else None,
                "running": running,
            }
            for name, value, running in parts
        ]

    def page(self) -> str:
        """Give an explorer of these paths as a page of HTML; from a file's table, its rows alone.

        >>> from pathexpand.api import load
        >>> load("two-layer").run("to be or not to").paths(top=2).page()[:15]
        '<!DOCTYPE html>'
        """
        # Zero-argument super() does not know a class that slots made anew.
        return Table.page(self) if self.origin is None else self.origin(self).page()

    def sheet(self, *, ascii: bool = False) -> Sheet:
        """Lay the table out for printing; with `ascii`, in ASCII alone.

        >>> from pathexpand.api import load
        >>> sheet = load("two-layer").run("to be or not to").paths().sheet()
        >>> [column.name for column in sheet.columns][:4]
        ['rank', 'path', 'order', 'kind']
        """
        from pathexpand.table.path_sheet import path_sheet

        return path_sheet(self, ascii=ascii)

    def _columns(self) -> list[str]:
        return list(PathRow(1, "", 0, "", 0.0, None, 0.0, None, None).record())


def _read_row(row: Record) -> PathRow:
    position, token = row.whole_or_none("source_position"), None
    if position is not None:
        token = SourceToken(position, row.whole("source_id"), row.text("source_token"))
    return PathRow(
        rank=row.whole("rank"),
        path=row.text("path"),
        order=row.whole("order"),
        kind=row.text("kind"),
        value=row.number("value"),
        share=row.number_or_none("share"),
        running=row.number("running"),
        source_token=token,
        source_value=row.number_or_none("source_value"),
        certain=row.flag("certain"),
    )
