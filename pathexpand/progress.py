"""How far long work has come: one line on a terminal's standard error, or under a notebook's cell.

Nobody who waits less than a second sees one, nor does a file, a pipe or a log. The environment
variable ``PATHEXPAND_PROGRESS=0`` turns it off; it is read each time.
"""

from __future__ import annotations

import html
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

Item = TypeVar("Item")

_PATIENCE = 0.7  # seconds in which nothing is shown
_PAUSE = 0.15  # seconds between two changes of the line
_OFF = "PATHEXPAND_PROGRESS"


@contextmanager
def watched(title: str) -> Iterator[None]:
    """Show that work is going on, from its first second to its end, where somebody watches.

    Also a decorator. What is told inside (`tell`) stands behind the title. Inside another one,
    nothing is shown: there is one line.

    >>> with watched("counting"):
    ...     tell("3 of 7", 3 / 7)
    """
    global _line
    place = None if _line is not None else _place()
    if place is None:
        yield
        return
    line = _Line(title, place)
    _line = line
    try:
        yield
    finally:
        _line = None
        line.close()


def tell(text: str, share: float | None = None) -> None:
    """Say how far the work has come that is being watched; `share` is the part that is done.

    >>> tell("nobody watches")
    """
    if _line is not None:
        _line.tell(text, share)


def tracked(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """Yield items, and tell before each how many are done.

    >>> list(tracked("abc", "letters", 3))
    ['a', 'b', 'c']
    """
    for done, item in enumerate(items):
        tell(f"{done:,} of {total:,} {what}", done / total)
        yield item


def listener(
    report: Callable[..., None] | None, said: Callable[..., tuple[str, float | None]]
) -> Callable[..., None] | None:
    """Give the listener a caller passed; without one, one for the line that is shown, if any is.

    `said` puts what a listener hears into words, and says what part is done.

    >>> listener(None, lambda done: (f"{done} done", None)) is None
    True
    """
    if report is not None or _line is None:
        return report

    def hear(*heard: Any) -> None:
        tell(*said(*heard))

    return hear


def clear() -> None:
    """Take the line away for good, before the program ends by itself.

    >>> clear()
    """
    if _line is not None:
        _line.close()


class _Place(ABC):
    """Where a line is shown; it starts once, changes, and leaves nothing behind."""

    @abstractmethod
    def show(self, text: str, share: float | None) -> None:
        """Show the line, or change it."""

    @abstractmethod
    def clear(self) -> None:
        """Take it away."""


class _Line:
    """A line that appears when its time has come, even where the work says nothing."""

    def __init__(self, title: str, place: _Place) -> None:
        self._title, self._place = title, place
        self._text = ""
        self._share: float | None = None
        self._start, self._changed = time.monotonic(), 0.0
        self._shown = self._closed = False
        self._lock = threading.RLock()  # a signal may come while it is held
        self._timer = threading.Timer(_PATIENCE, self._show)
        self._timer.daemon = True
        with suppress(RuntimeError):  # in a browser's own Python there are no threads
            self._timer.start()

    def tell(self, text: str, share: float | None) -> None:
        self._text, self._share = text, share
        now = time.monotonic()
        if now - self._start >= _PATIENCE and now - self._changed >= _PAUSE:
            self._show()

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._shown:
                self._place.clear()

    def _show(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._shown, self._changed = True, time.monotonic()
            self._place.show(": ".join(filter(None, (self._title, self._text))), self._share)


class _Terminal(_Place):
    """A line on standard error, kept in motion by rich."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._start = time.monotonic()

    def show(self, text: str, share: float | None) -> None:
        total = None if share is None else 1.0
        if self._bar is None:
            self._bar = _bar()
            self._task = self._bar.add_task(text, total=total, completed=share or 0.0)
            self._bar.tasks[0].start_time = self._start
            self._bar.start()
            return
        self._bar.update(self._task, description=text, total=total, completed=share or 0.0)

    def clear(self) -> None:
        self._bar.stop()


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    return Progress(
        SpinnerColumn("line"),
        BarColumn(12),
        TimeElapsedColumn(),
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
        console=Console(file=sys.stderr, force_jupyter=False),
        transient=True,
        expand=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


class _Notebook(_Place):
    """An output under the cell that is changed in place, so that there is never a second one."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._start = time.monotonic()

    def show(self, text: str, share: float | None) -> None:
        seconds = f"{time.monotonic() - self._start:.0f} s"
        value = "" if share is None else f' value="{share:.4f}"'
        bar = f'<progress max="1"{value} style="width: 12em"></progress>'
        self._put(f"{bar} {html.escape(text)} ({seconds})", f"{text} ({seconds})")

    def clear(self) -> None:
        self._put("", "")

    def _put(self, marked: str, plain: str) -> None:
        from IPython import display as shown

        display: Any = shown.display
        data = {"text/html": marked, "text/plain": plain}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


_line: _Line | None = None  # the one that is shown: a terminal has room for no second


def in_notebook() -> bool:
    """Say whether this is the kernel of a notebook.

    >>> in_notebook()
    False
    """
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _place() -> _Place | None:
    """Give where somebody watches, or None."""
    if os.environ.get(_OFF) == "0" or threading.current_thread() is not threading.main_thread():
        return None
    if in_notebook():
        return _Notebook()
    if os.environ.get("TERM") in ("dumb", "unknown"):
        return None
    try:
        return _Terminal() if sys.stderr is not None and sys.stderr.isatty() else None
    except ValueError:  # a closed stream
        return None
