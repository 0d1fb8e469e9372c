"""`pathexpand models`: the models that come with the package."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING

import click

from pathexpand.cli.output import emit

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_ABOUT = {
    "zero-layer": "The direct path alone: what follows what.",
    "one-layer": "Skip-trigrams: each head reads tokens and writes to the logits.",
    "two-layer": "Heads that read heads: virtual heads and induction. The default.",
}
_FEATURES = ("two-layer/features", "stories260k-transcoders")


@click.command(short_help="List the embedded models.")
def models() -> None:
    """List the attention-only models that come with the package, their sizes, and features.

    Features are for "pathexpand graph"; the model they are of need not come with the package.
    """
    from importlib.resources import files

    folder = files("pathexpand.embedded")
    entries = [
        line
        for name, about in _ABOUT.items()
        if (folder / name / "config.json").is_file()
        for line in (_sizes(folder / name, name), f"  {about}")
    ] + [line for place in _FEATURES for line in _features(folder.joinpath(*place.split("/")))]
    room = max(shutil.get_terminal_size((80, 24)).columns, 40)
    emit(lambda ascii: "\n".join(_wrapped(line, room) for line in entries) + "\n")


def _wrapped(line: str, room: int) -> str:
    """Break a line that is too long for a narrow terminal."""
    return textwrap.fill(line, room, subsequent_indent="    ", break_on_hyphens=False)


def _features(folder: Traversable) -> list[str]:
    """Say what features are for which model, if they are there."""
    import json

    if not (folder / "training.json").is_file():
        return []
    about = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    layers = about["layers"]
    of = f"{len(layers)} layers" if len(layers) > 1 else f"layer {layers[0]}"
    what = "an SAE" if about["kind"] == "sae" else "transcoders"
    name = about["model"]["name"]
    when = "where no --features are given."
    if name not in _ABOUT:
        when = "for that model, not itself in the package."
    return [f"features of {name}: {what} of {of}", f'  Taken by "pathexpand graph" {when}']


def _sizes(folder: Traversable, name: str) -> str:
    import json

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = len((folder / "model.safetensors").read_bytes()) / 1e6
    layers, heads = config["n_layers"], config["n_heads"]
    parts = [
        f"{layers} layer{'' if layers == 1 else 's'}" + (f" of {heads} heads" if layers else ""),
        f"d_model {config['d_model']}",
        f"vocab {config['d_vocab']}",
        f"context {config['n_ctx']}",
        f"{size:.1f} MB",
    ]
    return f"{name}: {', '.join(parts)}"
