"""Standard output in any encoding, files written whole, and the one line of an error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path as FilePath

from pathexpand.errors import FileError
from pathexpand.table.spelling import can_show, visible
from pathexpand.writing import whole

INTERRUPTED = 130  # the exit status after Ctrl-C


def emit(render: Callable[[bool], str], file: str | None = None) -> None:
    r"""Print a text, or write it to a file in UTF-8.

    `render` is called with True, for ASCII alone, where the text cannot be encoded. A reader that
    closes the pipe early has what it wanted: no error. Raises `FileError`.

    >>> emit(lambda ascii: "two lines\nof text\n")
    two lines
    of text
    """
    if file is None and sys.stdout is None:
        raise FileError("standard output", wanted="an open stream", got="a closed one")
    text = render(False)
    if not can_show(text, sys.stdout.encoding if file is None else "utf-8"):
        text = render(True)
    if file is not None:
        write_whole(FilePath(file), text)
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go()
    except OSError as error:
        _let_go()
        raise FileError(f"standard output: cannot write: {error.strerror}") from None


def write_whole(file: FilePath, text: str) -> None:
    """Write a file whole or not at all: a new file beside it takes its place when complete.

    Raises `FileError`.

    >>> write_whole(FilePath("no such directory") / "table.csv", "")
    Traceback (most recent call last):
    ...
    pathexpand.errors.FileError: no such directory/table.csv: cannot write: No such file or
    directory
    """
    with whole(file) as stream:
        stream.write(text.encode("utf-8"))


def complain(line: str) -> None:
    """Print one error line on standard error, whatever is in it.

    >>> complain("nobody reads doctests' standard error")
    """
    with contextlib.suppress(OSError, AttributeError):  # no standard error, nobody to tell
        print(f"pathexpand: error: {visible(line)}", file=sys.stderr)


def warn(line: str) -> None:
    """Print one line on standard error that is no error but must not be missed.

    >>> warn("nobody reads doctests' standard error")
    """
    with contextlib.suppress(OSError, AttributeError):
        print(f"pathexpand: note: {visible(line)}", file=sys.stderr)


def wants_color() -> bool:
    """Say whether standard output is a terminal whose user wants colour (https://no-color.org).

    >>> wants_color()
    False
    """
    quiet = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not quiet and sys.stdout.isatty()


def _let_go() -> None:
    """Send what is still buffered nowhere, so that the interpreter's last flush is quiet."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
