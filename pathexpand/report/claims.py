"""What stands on top of an explorer: what it is of, the sum that closes, what is certified."""

from __future__ import annotations

from pathexpand.page.prose import escaped
from pathexpand.table import PathTable
from pathexpand.table.page import closing, head


def claims(table: PathTable) -> str:
    """Write the head, the closing sum and the claims of a table as markup.

    >>> from pathexpand.api import load
    >>> "Certified" in claims(load("two-layer").run("to be or not to").paths(top=3))
    True
    """
    sheet = table.sheet()
    return f"<h1>Paths to the {escaped(table.target)}</h1>{head(sheet)}{closing(sheet)}"
