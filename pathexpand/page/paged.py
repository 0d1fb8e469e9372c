"""What can be shown as a page of HTML: written to a file, and inside a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path as FilePath

HEIGHT = 900  # pixels of a frame in a notebook


class Paged(ABC):
    """What has a page of its own, for a file and for notebooks.

    >>> class Words(Paged):
    ...     def page(self) -> str:
    ...         return "<p>all paths</p>"
    >>> Words().to_html("words.pdf")
    Traceback (most recent call last):
    ...
    pathexpand.errors.FileError: words.pdf: wanted a name that ends in .html
    """

    __slots__ = ()

    @abstractmethod
    def page(self) -> str:
        """Give a page of HTML that holds all its scripts and asks no network for anything.

        Raises `PathExpandError` where bokeh is not installed.
        """

    def to_html(self, file: str | FilePath) -> None:
        """Write the page to a file that opens anywhere, whole or not at all; raises `FileError`."""
        from pathexpand.page.document import check_page, save

        check_page(file)
        save(self.page(), file)

    def show(self, *, height: int = HEIGHT) -> None:
        """Show the page in the notebook at hand, in a frame so many pixels high.

        Raises `PathExpandError` elsewhere.
        """
        from pathexpand.page.notebook import Frame, display

        display(Frame(self.page(), height=height))
