"""The table of ranked paths of a run, and the one from weights alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class SourceToken:
    """A token of the prompt: its position, its id, and its text made visible."""

    position: int
    id: int
    text: str


@dataclass(frozen=True, slots=True)
class PathRow:
    """One ranked path.

    `share` is the value over the dense value (None where that is 0), `running` the sum of the
    values down to this row, `source_token` the token with the largest part of the value and
    `source_value` that part.
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


@dataclass(frozen=True, slots=True)
class PathTable:
    """Ranked paths, closed: listed + remainder = dense, but for a gap under its bound.

    `remainder` is the sum of the `remainder_count` unlisted paths, found without the dense value.
    `certified` says that no path of any length is larger in |value| than those listed; then
    `bound` is the largest |value| among the unlisted. `max_order` is set if longer paths were not
    ranked.
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

    def __len__(self) -> int:
        """Give the number of listed paths."""
        return len(self.rows)

    def __iter__(self) -> Iterator[PathRow]:
        """Yield the rows, largest |value| first."""
        return iter(self.rows)

    def __getitem__(self, index: int) -> PathRow:
        """Give a row, counted from 0."""
        return self.rows[index]

    def to_records(self) -> list[dict[str, Any]]:
        """Give one dictionary a row, with plain numbers and texts."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class NormRow:
    """One path ranked by the norm of its matrix; `share` is its part of the squared norms."""

    rank: int
    path: str
    order: int
    kind: str
    norm: float
    share: float | None


@dataclass(frozen=True, slots=True)
class NormTable:
    """Paths ranked from weights alone, by the Frobenius norm of their end-to-end matrix.

    `energy` is the sum of squared norms over all ranked paths, listed or not. Norms of paths do
    not add up to the norm of their sum, so there is no dense value to close against.
    """

    model: str
    rows: tuple[NormRow, ...]
    energy: float
    path_count: int
    certified: bool
    bound: float | None
    max_order: int | None = None
