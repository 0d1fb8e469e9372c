"""Files written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import BinaryIO

from pathexpand.errors import FileError


@contextmanager
def whole(file: FilePath) -> Iterator[BinaryIO]:
    """Open a file to be written: a new one beside it takes its place when all is written.

    A device or a pipe cannot be replaced and is written to. Raises `FileError`.

    >>> with whole(FilePath("no such directory") / "table.csv") as stream:
    ...     pass
    Traceback (most recent call last):
    ...
    pathexpand.errors.FileError: no such directory/table.csv: cannot write: No such file or
    directory
    """
    try:
        if file.exists() and not stat.S_ISREG(file.stat().st_mode):
            with file.open("wb") as stream:  # of a directory this says that it is one
                yield stream
            return
        yield from _replaced(file.resolve())
    except (OSError, RuntimeError) as error:  # RuntimeError: symbolic links in a circle
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"{file}: cannot write: {reason}") from None


def _replaced(file: FilePath) -> Iterator[BinaryIO]:
    part = file.parent / f".pathexpand-{os.getpid()}.part"
    stream = part.open("xb")
    try:
        with stream:
            yield stream
        if file.exists():
            part.chmod(stat.S_IMODE(file.stat().st_mode))
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
