"""A page inside a notebook: in a frame of its own, so that several do not meet."""

from __future__ import annotations

import html
from typing import Any

from pathexpand.errors import PathExpandError

_ALLOWED = "allow-scripts allow-downloads"
_STYLE = "width: 100%; border: 1px solid #ccc; box-sizing: border-box"


class Frame:
    """A page as a notebook shows it.

    >>> Frame("<p>all paths</p>", height=300)._repr_html_()[:7]
    '<iframe'
    """

    def __init__(self, page: str, *, height: int) -> None:
        """Keep a page, and how high its frame is, in pixels."""
        if isinstance(height, bool) or not isinstance(height, int) or height < 1:
            wanted = "a whole number of pixels"
            raise PathExpandError("height", wanted=wanted, got=repr(height)[:40])
        self.page = page
        self.height = height

    def __repr__(self) -> str:
        """Say how large it is: outside a notebook there is nothing to see."""
        return f"Frame({len(self.page):,} characters of HTML; save it as a file to open it)"

    def _repr_html_(self) -> str:
        """Put the page into a frame that shares nothing with the notebook around it."""
        return (
            f'<iframe srcdoc="{html.escape(self.page)}" sandbox="{_ALLOWED}" loading="lazy" '
            f'style="{_STYLE}; height: {self.height}px" title="pathexpand"></iframe>'
        )


def display(frame: Frame) -> None:
    """Show a frame in the notebook at hand; elsewhere say that there is none.

    >>> display(Frame("<p>all paths</p>", height=300))
    Traceback (most recent call last):
    ...
    pathexpand.errors.PathExpandError: show: wanted a notebook; write a file instead:
    to_html("paths.html")
    """
    shell: Any = None
    try:
        from IPython import get_ipython
        from IPython.display import display as show

        shell = get_ipython()
    except ImportError:
        pass
    if shell is None:
        raise PathExpandError(
            "show",
            wanted="a notebook",
            remedy='write a file instead: to_html("paths.html")',
        )
    show(frame)
