"""Starts `python -m pathexpand.train`."""

from __future__ import annotations

from pathexpand.train.command import main

if __name__ == "__main__":
    main(prog_name="python -m pathexpand.train")
