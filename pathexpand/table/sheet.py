"""What is on a printed table, before it is text, Markdown, LaTeX or HTML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pathexpand.table.shorten import width

_GAP = 2  # spaces between columns, where there is room


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name and cells, and what becomes of it where there is little room.

    `shorten` gives the cell of a row in so many terminal cells, down to `least`: cut, or broken
    into lines. Columns with a
    `leave` number are left out, highest first, when shortening is not enough. `literal` cells
    hold names or tokens, to be shown letter by letter.
    """

    name: str
    cells: tuple[str, ...]
    right: bool = False
    literal: bool = False
    shorten: Callable[[int, int], str] | None = None
    least: int = 0
    leave: int = 0

    @property
    def natural(self) -> int:
        """The terminal cells that the column takes when nothing is cut.

        >>> Column("path", ("embed > L0H1", "embed")).natural
        12
        """
        return max(map(width, (self.name, *self.cells)))

    @property
    def narrowest(self) -> int:
        """The terminal cells that the column needs at least.

        >>> Column("path", ("embed > L0H1", "embed")).narrowest
        12
        """
        if self.shorten is None:
            return self.natural
        return min(self.natural, max(self.least, width(self.name)))

    def within(self, room: int) -> Column:
        """Give the column with its cells cut to a width.

        >>> column = Column("path", ("embed",), shorten=lambda row, room: "e…")
        >>> column.within(4).cells
        ('e…',)
        """
        if self.shorten is None or self.natural <= room:
            return self
        cells = tuple(self.shorten(row, room) for row in range(len(self.cells)))
        return Column(self.name, cells, self.right, self.literal)


@dataclass(frozen=True, slots=True)
class Line:
    """A labelled line over a table; `shorten` gives its text in so many terminal cells."""

    label: str
    text: str
    shorten: Callable[[int], str] | None = None

    def within(self, room: int) -> str:
        """Give the text cut to a width, if it can be.

        >>> Line("model", "two-layer").within(3)
        'two-layer'
        """
        return self.text if self.shorten is None else self.shorten(room)


@dataclass(frozen=True, slots=True)
class Closing:
    """A line under a table: a label, a number, its share, and what is to be said of it."""

    label: str
    number: str
    share: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Lines over a table, its columns, the lines that close it, and what it claims.

    `good` says that the claim is the strongest there is; it only picks a colour.
    """

    head: tuple[Line, ...]
    columns: tuple[Column, ...]
    closing: tuple[Closing, ...]
    claims: tuple[str, ...]
    good: bool

    @property
    def rows(self) -> list[list[str]]:
        """The cells, row by row.

        >>> Sheet((), (Column("a", ("1", "2")), Column("b", ("3", "4"))), (), (), True).rows
        [['1', '3'], ['2', '4']]
        """
        return [list(row) for row in zip(*(column.cells for column in self.columns), strict=True)]


@dataclass(frozen=True, slots=True)
class Fitted:
    """Columns that fit side by side with so many spaces between them."""

    columns: tuple[Column, ...]
    gap: int

    @property
    def width(self) -> int:
        """The terminal cells that they take: more than there is room for where nothing helped.

        >>> Fitted((Column("a", ("1",)), Column("b", ("22",))), 1).width
        4
        """
        return sum(column.natural for column in self.columns) + self.gap * (len(self.columns) - 1)


def fit(columns: tuple[Column, ...], room: int) -> Fitted:
    """Shorten columns, then move them together, then leave some out, until they fit.

    Columns that are cut share what room there is.

    >>> rank, kind = Column("rank", ("1",)), Column("kind", ("virtual head",), leave=1)
    >>> fit((rank, kind), 17).gap
    1
    >>> [column.name for column in fit((rank, kind), 10).columns]
    ['rank']
    """
    kept = list(columns)
    gap = _GAP if _needed(kept, _GAP) <= room else 1
    while _needed(kept, gap) > room:
        least_wanted = max(kept, key=lambda column: column.leave)
        if not least_wanted.leave:
            break
        kept.remove(least_wanted)
    spare = _shared([each.natural - each.narrowest for each in kept], room - _needed(kept, gap))
    fitted = (each.within(each.narrowest + extra) for each, extra in zip(kept, spare, strict=True))
    return Fitted(tuple(fitted), gap)


def parted(columns: tuple[Column, ...], room: int) -> list[Fitted]:
    """Fit columns in a room, in several blocks if need be, each beginning with the names.

    The names are the columns up to the first that holds names or tokens; where these take more
    than half of the room, the first column alone. A block has at least one other column.

    >>> columns = tuple(Column(name, ("1",)) for name in ("head", "previous", "first", "last"))
    >>> for each in parted(columns, 16):
    ...     print(*(column.name for column in each.columns))
    head previous
    head first last
    """
    fitted = fit(columns, room)
    if fitted.width <= room:
        return [fitted]
    kept = [each for each in columns if not each.leave]
    count = 1 + next((n for n, each in enumerate(kept) if each.literal), 0)
    names = kept[: count if _needed(kept[:count], 1) <= room // 2 else 1]
    blocks: list[list[Column]] = []
    for column in kept[len(names) :]:
        if blocks and _needed([*blocks[-1], column], 1) <= room:
            blocks[-1].append(column)
        else:
            blocks.append([*names, column])
    return [fit(tuple(block), room) for block in blocks or [names]]


def _shared(wanted: list[int], spare: int) -> list[int]:
    """Give each what it wants of what there is, or all that want more the same."""
    given = [0] * len(wanted)
    for left, place in zip(
        range(len(wanted), 0, -1), sorted(range(len(wanted)), key=wanted.__getitem__), strict=True
    ):
        given[place] = max(min(wanted[place], spare // left), 0)
        spare -= given[place]
    return given


def _needed(columns: list[Column], gap: int) -> int:
    return sum(column.narrowest for column in columns) + gap * (len(columns) - 1)
