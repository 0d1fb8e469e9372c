"""The command line: `pathexpand table`, `expand`, `count`, `verify` and `models`."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as type checkers read it; `typing` takes its time to import
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit, as `pathexpand.cli.program.main` says.

    Nothing is imported before this is called: Ctrl-C while the program is still being read in
    ends it as quietly as later.

    >>> main(["count", "--layers", "2", "--heads", "12"])
    Traceback (most recent call last):
    ...
    SystemExit: 0
    """
    try:
        from pathexpand.cli import program

        program.main(arguments)
    except KeyboardInterrupt:
        print("pathexpand: error: interrupted: nothing was written", file=sys.stderr)
        sys.exit(130)


__all__ = ["main"]
