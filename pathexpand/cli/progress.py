"""How a search stands, told on standard error while somebody waits at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathexpand.engine.search import Progress

_SILENT_SECONDS = 0.5  # a search that ends sooner shows nothing


@contextmanager
def watched() -> Iterator[Callable[[Progress], None] | None]:
    """Give a listener that shows a search's progress, or None if standard error is no terminal.

    >>> with watched() as report:
    ...     report is None or callable(report)
    True
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.status import Status

    status = Status("", console=Console(stderr=True))
    started = False

    def report(progress: Progress) -> None:
        nonlocal started
        if progress.seconds < _SILENT_SECONDS:
            return
        if not started:
            status.start()
            started = True
        if progress.prepared < 1:
            status.update(f"energies: {progress.prepared:.0%}; Ctrl-C stops here")
            return
        status.update(
            f"{progress.nodes:,} suffixes, {progress.visited:,} paths valued; unlisted at most "
            f"{progress.bound:.4g}, listed at least {progress.cut:.4g}; Ctrl-C stops here"
        )

    try:
        yield report
    finally:
        if started:
            status.stop()
