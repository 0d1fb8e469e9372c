"""`pathexpand tutorial`: the notebooks, listed or copied out."""

from __future__ import annotations

import shlex

import click

from pathexpand.cli.output import emit
from pathexpand.table.spelling import visible


@click.command(short_help="Copy the tutorial's notebooks out.")
@click.argument("directory", required=False)
@click.option("--force", is_flag=True, help="Overwrite notebooks that are there.")
def tutorial(directory: str | None, force: bool) -> None:
    """Copy the tutorial's notebooks into DIRECTORY, or list them.

    The directory is made if need be. Nothing is written where a notebook is there already, unless
    --force is given.
    """
    if directory is None:
        if force:
            raise click.UsageError("--force wants a DIRECTORY.", click.get_current_context())
        emit(lambda ascii: _listed())
        return
    from pathexpand.tutorial.notebook import copy_out

    names = [file.name for file in copy_out(directory, force=force)]

    def told(ascii: bool) -> str:
        place = visible(directory, ascii=ascii)
        files = "".join(f"  {name}\n" for name in names)
        return (
            f"{len(names)} notebooks written to {place}:\n{files}"
            f"Open them: pip install 'pathexpand[tutorial]' && jupyter lab {shlex.quote(place)}\n"
        )

    emit(told)


def _listed() -> str:
    from pathexpand.tutorial.notebook import notebooks

    lines = [f"{each.file}: {each.title}\n  {each.about}\n" for each in notebooks()]
    return "".join(lines) + 'Copy them out with "pathexpand tutorial DIRECTORY".\n'
