"""The table of paths ranked over a data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from pathexpand.errors import FileError, PathExpandError
from pathexpand.table.abstract import Table
from pathexpand.table.document import Record, check_finite, read
from pathexpand.table.held import check_held
from pathexpand.table.sheet import Sheet

Measure = Literal["rms", "mean"]
_MEASURES: dict[str, Measure] = {"rms": "rms", "mean": "mean"}


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """One path ranked over many prompts.

    `rms` is the root mean square and `mean` the mean of its values, `standard_error` that of the
    mean (None for a single prompt), `share` the mean over the mean dense value (None where that is
    0). `certain` says that the path surely belongs among the listed. Raises `PathExpandError` for
    numbers that are not finite or negative sizes.

    >>> DatasetRow(1, "embed", 0, "direct", 3.0, -1.0, 0.5, -0.25).rms
    3.0
    """

    rank: int
    path: str
    order: int
    kind: str
    rms: float
    mean: float
    standard_error: float | None
    share: float | None
    certain: bool = True

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be those of a path."""
        check_finite(
            rms=self.rms, mean=self.mean, standard_error=self.standard_error, share=self.share
        )
        if min(self.rms, self.standard_error or 0.0) < 0:
            raise PathExpandError(
                "row", wanted="sizes of at least 0", got=f"{self.rms} and {self.standard_error}"
            )


@dataclass(frozen=True, slots=True, repr=False)
class DatasetTable(Table):
    """Paths ranked over a data set, their means closed against the mean dense value.

    `by` says what they are ranked by: "rms" or "mean" (its |mean|). `dense`, `listed`,
    `remainder` and `outside` are means over the `prompts` prompts; the other members are as in
    `PathTable`, with that size for |value|. `rounds` counts the passes over the prompts that the
    search made. Raises `PathExpandError` for numbers that are not finite or counts that do not add
    up.

    >>> from pathexpand.api import load
    >>> table = load("two-layer").dataset_paths(["to be or not", "that is the"], top=2)
    >>> [row.rank for row in table], table.closes, table.certified
    ([1, 2], True, True)
    """

    model: str
    by: Measure
    prompts: int
    target: str
    rows: tuple[DatasetRow, ...]
    dense: float
    listed: float
    remainder: float
    remainder_count: int
    gap: float
    gap_bound: float
    path_count: int
    certified: bool
    bound: float
    max_order: int | None = None
    longer_bound: float = 0.0
    visited: int | None = None
    rounds: int | None = None
    query: str = "*"
    outside: float = 0.0
    outside_count: int = 0
    mlps: str | None = None
    soft_cap: float | None = None

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
            outside=self.outside,
            soft_cap=self.soft_cap,
        )
        check_held(self.mlps, self.soft_cap)
        for fault, is_so in self._faults().items():
            if is_so:
                raise PathExpandError("table", wanted=fault)

    def _faults(self) -> dict[str, bool]:
        return {
            "rms or mean to rank by": self.by not in _MEASURES,
            "at least one prompt": self.prompts < 1,
            "ranks 1, 2, 3, …": [row.rank for row in self.rows] != [*range(1, len(self) + 1)],
            "as many paths listed and unlisted as there are": (
                min(self.remainder_count, self.outside_count) < 0
                or len(self) + self.remainder_count + self.outside_count != self.path_count
            ),
            "bounds of at least 0": min(self.bound, self.longer_bound, self.gap_bound) < 0,
        }

    def __len__(self) -> int:
        """Give the number of listed paths."""
        return len(self.rows)

    def __iter__(self) -> Iterator[DatasetRow]:
        """Yield the rows, largest first."""
        return iter(self.rows)

    def __getitem__(self, index: int) -> DatasetRow:
        """Give a row, counted from 0."""
        return self.rows[index]

    @property
    def sum(self) -> float:
        """Listed + remainder + outside, as means."""
        return self.listed + self.remainder + self.outside

    @property
    def closes(self) -> bool:
        """Whether the gap between the sum and the mean dense value is within its bound."""
        return abs(self.gap) <= self.gap_bound

    def to_records(self) -> list[dict[str, Any]]:
        """Give one dictionary a row, with plain numbers and texts.

        >>> from pathexpand.api import load
        >>> load("zero-layer").dataset_paths([[1, 2], [3]]).to_records()[0]["path"]
        'embed'
        """
        return [asdict(row) for row in self.rows]

    def document(self) -> dict[str, Any]:
        """Give all the table holds as plain numbers, texts, lists and dictionaries.

        >>> from pathexpand.api import load
        >>> list(load("zero-layer").dataset_paths([[1, 2], [3]]).document())[:3]
        ['table', 'model', 'by']
        """
        members = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"table": "dataset"} | members | {"rows": self.to_records()}

    @classmethod
    def from_json(cls, text: str) -> DatasetTable:
        """Read what `to_json` wrote, exact to the last digit; raises `FileError`.

        >>> from pathexpand.api import load
        >>> table = load("zero-layer").dataset_paths([[1, 2], [3]])
        >>> DatasetTable.from_json(table.to_json()) == table
        True
        """
        table = read(text, "dataset")
        by = _MEASURES.get(table.text("by"))
        if by is None:
            raise FileError("table by", wanted="rms or mean", got=repr(table.text("by")))
        return cls(
            model=table.text("model"),
            by=by,
            prompts=table.whole("prompts"),
            target=table.text("target"),
            rows=tuple(_read_row(each) for each in table.records("rows")),
            dense=table.number("dense"),
            listed=table.number("listed"),
            remainder=table.number("remainder"),
            remainder_count=table.whole("remainder_count"),
            gap=table.number("gap"),
            gap_bound=table.number("gap_bound"),
            path_count=table.whole("path_count"),
            certified=table.flag("certified"),
            bound=table.number("bound"),
            max_order=table.whole_or_none("max_order"),
            longer_bound=table.number("longer_bound"),
            visited=table.whole_or_none("visited"),
            rounds=table.whole_or_none("rounds"),
            query=table.text("query"),
            outside=table.number("outside"),
            outside_count=table.whole("outside_count"),
            mlps=table.text_if_any("mlps"),
            soft_cap=table.number_if_any("soft_cap"),
        )

    def closing_records(self) -> list[dict[str, Any]]:
        """Give all that is not listed as records, so that the means sum to the mean dense value.

        >>> from pathexpand.api import load
        >>> table = load("zero-layer").dataset_paths([[1, 2], [3]])
        >>> [record["path"] for record in table.closing_records()]
        ['(remainder)']
        """
        parts = [("remainder", self.remainder)]
        parts += [("outside", self.outside)] if self.outside_count else []
        return [
            {
                "path": f"({name})",
                "kind": name,
                "mean": value,
                "share": value / self.dense if self.dense else None,
            }
            for name, value in parts
        ]

    def sheet(self, *, ascii: bool = False) -> Sheet:
        """Lay the table out for printing; with `ascii`, in ASCII alone.

        >>> from pathexpand.api import load
        >>> sheet = load("zero-layer").dataset_paths([[1, 2], [3]]).sheet()
        >>> [column.name for column in sheet.columns][-4:]
        ['rms', 'mean', '±', 'share']
        """
        from pathexpand.table.dataset_sheet import dataset_sheet

        return dataset_sheet(self, ascii=ascii)

    def _columns(self) -> list[str]:
        return [field.name for field in fields(DatasetRow)]


def _read_row(row: Record) -> DatasetRow:
    return DatasetRow(
        rank=row.whole("rank"),
        path=row.text("path"),
        order=row.whole("order"),
        kind=row.text("kind"),
        rms=row.number("rms"),
        mean=row.number("mean"),
        standard_error=row.number_or_none("standard_error"),
        share=row.number_or_none("share"),
        certain=row.flag("certain"),
    )
