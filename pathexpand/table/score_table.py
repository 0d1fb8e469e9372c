"""The table of an attention score's pairs of paths, closed by a remainder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from pathexpand.errors import PathExpandError
from pathexpand.table.abstract import Table
from pathexpand.table.document import Record, check_finite, read
from pathexpand.table.path_table import SourceToken
from pathexpand.table.sheet import Sheet


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One pair of paths: to the query and to the key.

    `composition` says which side passes through a component before the head: none, Q, K or both.
    `certain` says that the pair surely belongs among the listed.

    >>> ScoreRow(1, "embed", "embed > L0H3", "K", 6.4, 0.6, 6.4).composition
    'K'
    """

    rank: int
    query_path: str
    key_path: str
    composition: str
    value: float
    share: float | None
    running: float
    certain: bool = True

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite."""
        check_finite(value=self.value, share=self.share, running=self.running)


@dataclass(frozen=True, slots=True)
class CompositionSum:
    """The sum over all pairs of one kind of composition, and their number."""

    composition: str
    value: float
    pairs: int

    def __post_init__(self) -> None:
        """Refuse a number that is not finite."""
        check_finite(value=self.value)


@dataclass(frozen=True, slots=True, repr=False)
class ScoreTable(Table):
    """The pairs of an attention score, closed: listed + remainder (+ ALiBi) = dense but for a gap.

    Positions count from 0. With `over`, values are of the score at `key` less that at `over`: the
    log of how many times more attention `key` gets. `attention` and `attention_over` are the
    pattern's entries. `compositions` sum all pairs by kind, listed or not. `certified` says that no
    unlisted pair is larger in |value| than a listed one, `bound` that each has at most this.
    `soft_cap` is what the model caps scores at afterwards. Raises `PathExpandError` for numbers
    that are not finite or counts that do not add up.

    >>> from pathexpand.api import load
    >>> table = load("two-layer").run("to be or not to").scores("L1H0", top=3)
    >>> len(table), table.certified, table.closes
    (3, True, True)
    """

    model: str
    tokens: tuple[SourceToken, ...]
    head: str
    query: int
    key: int
    over: int | None
    attention: float
    attention_over: float | None
    dense: float
    rows: tuple[ScoreRow, ...]
    listed: float
    remainder: float
    remainder_count: int
    alibi: float | None
    gap: float
    gap_bound: float
    pair_count: int
    certified: bool
    bound: float | None
    visited: int
    compositions: tuple[CompositionSum, ...]
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        """Refuse a table that contradicts itself."""
        numbers = ("dense", "listed", "remainder", "alibi", "gap", "gap_bound", "bound")
        check_finite(**{name: getattr(self, name) for name in numbers})
        places = [self.query, self.key, *([] if self.over is None else [self.over])]
        faults = {
            "positions of the prompt": not all(0 <= n < len(self.tokens) for n in places),
            "ranks 1, 2, 3, …": [row.rank for row in self.rows] != [*range(1, len(self) + 1)],
            "as many pairs listed and unlisted as there are": (
                len(self) + self.remainder_count != self.pair_count or self.remainder_count < 0
            ),
            "a bound, as it is certified": self.certified and self.bound is None,
            "a gap bound of at least 0": self.gap_bound < 0,
        }
        for wanted, is_so in faults.items():
            if is_so:
                raise PathExpandError("table", wanted=wanted)

    def __len__(self) -> int:
        """Give the number of listed pairs."""
        return len(self.rows)

    def __iter__(self) -> Iterator[ScoreRow]:
        """Yield the rows, largest |value| first."""
        return iter(self.rows)

    def __getitem__(self, index: int) -> ScoreRow:
        """Give a row, counted from 0."""
        return self.rows[index]

    @property
    def sum(self) -> float:
        """Listed + remainder + what ALiBi adds."""
        return self.listed + self.remainder + (self.alibi or 0.0)

    @property
    def closes(self) -> bool:
        """Whether the gap between the sum and the dense score is within its bound."""
        return abs(self.gap) <= self.gap_bound

    def to_records(self) -> list[dict[str, Any]]:
        """Give one flat dictionary a row."""
        return [asdict(row) for row in self.rows]

    def closing_records(self) -> list[dict[str, Any]]:
        """Give the records that close the sum in CSV: the remainder, and what ALiBi adds."""
        empty: dict[str, Any] = dict.fromkeys(self._columns())
        found = [empty | {"query_path": "(remainder)", "value": self.remainder}]
        if self.alibi is not None:
            found.append(empty | {"query_path": "(alibi)", "value": self.alibi})
        return found

    def document(self) -> dict[str, Any]:
        """Give all the table holds as plain numbers, texts, lists and dictionaries."""
        return {"table": "scores"} | {
            field.name: _plain(getattr(self, field.name)) for field in fields(self)
        }

    @classmethod
    def from_json(cls, text: str) -> ScoreTable:
        """Read what `to_json` wrote, exact to the last digit; raises `FileError`.

        >>> from pathexpand.api import load
        >>> table = load("two-layer").run("to be or not to").scores("L1H0", top=3)
        >>> ScoreTable.from_json(table.to_json()) == table
        True
        """
        table = read(text, "scores")
        return cls(
            model=table.text("model"),
            tokens=tuple(
                SourceToken(each.whole("position"), each.whole("id"), each.text("text"))
                for each in table.records("tokens")
            ),
            head=table.text("head"),
            query=table.whole("query"),
            key=table.whole("key"),
            over=table.whole_or_none("over"),
            attention=table.number("attention"),
            attention_over=table.number_or_none("attention_over"),
            dense=table.number("dense"),
            rows=tuple(_read_row(each) for each in table.records("rows")),
            listed=table.number("listed"),
            remainder=table.number("remainder"),
            remainder_count=table.whole("remainder_count"),
            alibi=table.number_or_none("alibi"),
            gap=table.number("gap"),
            gap_bound=table.number("gap_bound"),
            pair_count=table.whole("pair_count"),
            certified=table.flag("certified"),
            bound=table.number_or_none("bound"),
            visited=table.whole("visited"),
            compositions=tuple(
                CompositionSum(each.text("composition"), each.number("value"), each.whole("pairs"))
                for each in table.records("compositions")
            ),
            soft_cap=table.number_or_none("soft_cap"),
        )

    def sheet(self, *, ascii: bool = False) -> Sheet:
        """Lay the table out for printing; with `ascii`, in ASCII alone."""
        from pathexpand.table.score_sheet import score_sheet

        return score_sheet(self, ascii=ascii)

    def _columns(self) -> list[str]:
        return [field.name for field in fields(ScoreRow)]


def _plain(value: Any) -> Any:
    return [asdict(each) for each in value] if isinstance(value, tuple) else value


def _read_row(row: Record) -> ScoreRow:
    return ScoreRow(
        rank=row.whole("rank"),
        query_path=row.text("query_path"),
        key_path=row.text("key_path"),
        composition=row.text("composition"),
        value=row.number("value"),
        share=row.number_or_none("share"),
        running=row.number("running"),
        certain=row.flag("certain"),
    )
