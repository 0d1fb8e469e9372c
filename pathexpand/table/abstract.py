"""What every table can be turned into."""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from pathexpand.errors import PathExpandError
from pathexpand.page.paged import Paged
from pathexpand.table.sheet import Sheet
from pathexpand.table.spelling import can_show

if TYPE_CHECKING:
    import pandas


class Tabled(Paged):
    """What an analysis found: shown as its table, at a prompt and in a notebook."""

    __slots__ = ()

    @abstractmethod
    def table(self) -> Table:
        """Give the table that shows it."""

    def page(self) -> str:
        """Give the table's page of HTML."""
        return self.table().page()

    def __repr__(self) -> str:
        """Write the table's text."""
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


class Table(Paged):
    """A ranking that goes to text, notebooks, files and data frames.

    A kind of table says what its records, its JSON document and its printed sheet hold; everything
    else follows from these.

    >>> from pathexpand.api import load
    >>> table = load("two-layer").run("to be or not to").paths(top=2)
    >>> isinstance(table, Table)
    True
    """

    __slots__ = ()

    @abstractmethod
    def to_records(self) -> list[dict[str, Any]]:
        """Give one dictionary a row, with plain numbers and texts."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Give all the table holds as plain numbers, texts, lists and dictionaries."""

    @abstractmethod
    def sheet(self, *, ascii: bool = False) -> Sheet:
        """Lay the table out for printing; with `ascii`, in ASCII alone."""

    def closing_records(self) -> list[dict[str, Any]]:
        """Give the records that close the sum in CSV; none unless the kind of table has some."""
        return []

    def to_pandas(self) -> pandas.DataFrame:
        """Give the rows as a data frame; what else the table holds is in its `attrs`.

        Raises `PathExpandError` where pandas is not installed.

        >>> from pathexpand.api import load
        >>> table = load("two-layer").run("to be or not to").paths(top=2)
        >>> table.to_pandas().shape
        (2, 12)
        """
        try:
            import pandas
        except ImportError:
            raise PathExpandError(
                "data frames", wanted="pandas", remedy="pip install 'pathexpand[pandas]'"
            ) from None
        document = self.document()
        frame = pandas.DataFrame(document.pop("rows"), columns=self._columns())
        frame.attrs.update(document)
        return frame

    def to_csv(self) -> str:
        """Write comma-separated values, each number to its last digit.

        A table of paths ends in a row ``(remainder)``, and with a query one ``(outside)``, so that
        the values sum to the dense value but for the gap.

        >>> from pathexpand.api import load
        >>> table = load("two-layer").run("to be or not to").paths(top=2)
        >>> [line.split(",")[1] for line in table.to_csv().splitlines()][::3]
        ['path', '(remainder)']
        """
        return self._delimited(",")

    def to_tsv(self) -> str:
        """Write tab-separated values, like `to_csv`.

        >>> from pathexpand.api import load
        >>> load("zero-layer").paths().to_tsv().splitlines()[0].split()
        ['rank', 'path', 'order', 'kind', 'norm', 'share']
        """
        return self._delimited("\t")

    def to_json(self, *, ascii: bool = False) -> str:
        """Write all the table holds as JSON; with `ascii`, other letters as escapes.

        >>> from pathexpand.api import load
        >>> from pathexpand.table import PathTable
        >>> table = load("two-layer").run("to be or not to").paths(top=2)
        >>> PathTable.from_json(table.to_json()) == table
        True
        """
        from pathexpand.table.document import write

        return write(self.document(), ascii=ascii) + "\n"

    def to_markdown(self, *, ascii: bool = False) -> str:
        """Write a Markdown table, with what it claims below.

        >>> from pathexpand.api import load
        >>> load("zero-layer").paths().to_markdown().splitlines()[0]
        '- model: `zero-layer`'
        """
        from pathexpand.table.markup import markdown

        return markdown(self.sheet(ascii=ascii)) + "\n"

    def to_latex(self, *, ascii: bool = False) -> str:
        r"""Write a LaTeX tabular; the head and the claims are comments around it.

        >>> from pathexpand.api import load
        >>> load("zero-layer").paths().to_latex().count(r"\begin{tabular}")
        1
        """
        from pathexpand.table.markup import latex

        return latex(self.sheet(ascii=ascii)) + "\n"

    def page(self) -> str:
        """Give a page of HTML with the rows to sort, filter, select and copy.

        It holds all its scripts and asks no network for anything. Raises `PathExpandError` where
        bokeh is not installed.

        >>> from pathexpand.api import load
        >>> load("zero-layer").paths().page()[:15]
        '<!DOCTYPE html>'
        """
        from pathexpand.table.page import page

        return page(self)

    def to_text(self, width: int | None = None, *, ascii: bool = False, color: bool = False) -> str:
        """Write text that fits `width` terminal cells; None takes the terminal's own, or 80.

        Where there is little room, paths and tokens are cut in the middle and columns that can be
        read off others are left out. `ascii` keeps to ASCII, `color` adds terminal colours.

        >>> from pathexpand.api import load
        >>> text = load("two-layer").run("to be or not to").paths(top=2).to_text(60)
        >>> max(map(len, text.splitlines())) <= 60
        True
        """
        from pathexpand.table.text import text

        return text(self.sheet(ascii=ascii), width=width, ascii=ascii, color=color) + "\n"

    def __str__(self) -> str:
        """Write text for the terminal at hand, in ASCII if it can show no more."""
        written = self.to_text().rstrip("\n")
        if sys.stdout is None or can_show(written, sys.stdout.encoding):
            return written
        return self.to_text(ascii=True).rstrip("\n")

    def __repr__(self) -> str:
        """Write the same text, so that a table typed at a prompt is seen."""
        return str(self)

    def _repr_html_(self) -> str:
        from pathexpand.table.markup import html

        return html(self.sheet())

    @abstractmethod
    def _columns(self) -> list[str]:
        """Name the members of a record, in order."""

    def _delimited(self, delimiter: str) -> str:
        import csv
        from io import StringIO

        written = StringIO()
        writer = csv.DictWriter(written, self._columns(), delimiter=delimiter, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.to_records())
        writer.writerows(self.closing_records())
        return written.getvalue()
