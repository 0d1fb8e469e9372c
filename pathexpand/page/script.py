"""The scripts of pages: a few short ones of our own, put together from the package's files."""

from __future__ import annotations

from importlib.resources import files

_SHARED = ("page/address.js", "page/texts.js", "page/copying.js", "page/grid.js")


def script(*names: str) -> str:
    """Join scripts by the names of their files in the package, after what all pages share.

    >>> script("page/rows.js").startswith("// What is chosen on a page")
    True
    """
    place = files("pathexpand")
    return "\n".join(
        place.joinpath(name).read_text(encoding="utf-8") for name in (*_SHARED, *names)
    )
