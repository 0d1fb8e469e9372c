"""The errors a user can meet: what was looked at, what was wanted, what was got, what to do."""

from __future__ import annotations


class PathExpandError(Exception):
    """A user's mistake or bad data, told in one line.

    The line reads ``subject: wanted …, got …; remedy``. The command line prints it and exits
    with status 2; in Python it is an ordinary exception.

    >>> print(PathExpandError("token 99", wanted="an id below 64", got="99"))
    token 99: wanted an id below 64, got 99
    """

    def __init__(self, subject: str, *, wanted: str = "", got: str = "", remedy: str = "") -> None:
        """Keep the four parts and build the line from those that are given."""
        self.subject = subject
        self.wanted = wanted
        self.got = got
        self.remedy = remedy
        halves = [f"wanted {wanted}" if wanted else "", f"got {got}" if got else ""]
        middle = ", ".join(half for half in halves if half)
        line = f"{subject}: {middle}" if middle else subject
        super().__init__(f"{line}; {remedy}" if remedy else line)


class CompositionError(PathExpandError):
    """Two maps whose spaces do not meet, or two arrays whose shapes do not."""


class NotationError(PathExpandError):
    """Text that is not a term, a path or a label."""


class LimitError(PathExpandError):
    """More terms or paths than the limit that was set."""


class ModelError(PathExpandError):
    """A model, a configuration or a tensor that cannot be used as it is."""


class PromptError(PathExpandError):
    """A prompt, token, position or target that does not fit the model."""


class FileError(PathExpandError):
    """A file that cannot be read or written."""
