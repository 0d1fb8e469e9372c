"""Starts `python -m pathexpand.train.features`, or says what it needs."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def start() -> None:
    """Run the command if torch is installed; exit with status 2 if not."""
    if find_spec("torch") is None:
        print("error: torch: wanted for training; pip install 'pathexpand[train]'", file=sys.stderr)
        sys.exit(2)
    from pathexpand.train.features.command import main

    main(prog_name="python -m pathexpand.train.features")


if __name__ == "__main__":
    start()
