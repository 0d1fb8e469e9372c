"""The command line: `pathexpand table`, `expand`, `count`, `verify` and `models`."""

from pathexpand.cli.program import main

__all__ = ["main"]
