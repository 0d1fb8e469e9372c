"""`pathexpand table`: the ranked paths of a run, or of weights alone."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import click

from pathexpand.cli.output import complain, emit, wants_color
from pathexpand.cli.prompt import prompted, read_run

if TYPE_CHECKING:
    from pathexpand.table import Table

FORMATS = ("text", "csv", "tsv", "json", "md", "latex")
_SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".json": "json", ".md": "md", ".tex": "latex"}
_FILE_WIDTH = 80


@click.command(
    short_help="Rank a model's paths on a prompt.",
    epilog="Numbers in csv, tsv and json are exact. In csv and tsv the last row, (remainder), is "
    "the sum of all unlisted paths: the value column adds up to the dense logit.",
)
@prompted
@click.option("--top", type=int, default=10, show_default=True, metavar="N", help="Rows to list.")
@click.option(
    "--max-order",
    type=int,
    metavar="N",
    help="Rank only paths of at most N heads; longer ones stay in the remainder.",
)
@click.option("--raw", is_flag=True, help="Read the logit itself, not minus the vocabulary mean.")
@click.option(
    "--weights-only", is_flag=True, help="No prompt: rank by the norm of each path's matrix."
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    help="Default: text, or what the name of --out ends in.",
)
@click.option("--out", metavar="FILE", help="Write to a file, whole or not at all.")
def table(
    *,
    top: int,
    max_order: int | None,
    raw: bool,
    weights_only: bool,
    kind: str | None,
    out: str | None,
    model: str,
    position: int | None,
    target: str | None,
    **prompt: Any,
) -> int:
    """Rank a model's paths by what each adds to a logit, and close the sum.

    Listed + remainder = the logit of the dense forward pass, but for rounding. The logit is read
    minus its mean over the vocabulary, as a softmax does not see that.
    """
    kind = kind or _SUFFIXES.get(FilePath(out or "").suffix.lower(), "text")
    if weights_only:
        if raw or position is not None or target is not None or any(prompt.values()):
            raise click.UsageError(
                "--weights-only takes no prompt, position, target or --raw.",
                click.get_current_context(silent=True),
            )
        from pathexpand.api import load

        write(load(model).paths(top=top, max_order=max_order), kind, out)
        return 0
    found = read_run(model, **prompt).paths(
        target, position=position, top=top, max_order=max_order, centred=not raw
    )
    write(found, kind, out)
    if found.closes:
        return 0
    complain("the sum does not close: the gap is larger than its bound")
    return 1


def write(found: Table, kind: str, out: str | None) -> None:
    """Print a table, or write it to a file, in one of `FORMATS`.

    >>> from pathexpand.api import load
    >>> write(load("zero-layer").paths(top=0), "csv", None)
    rank,path,order,kind,norm,share
    """

    def render(ascii: bool) -> str:
        if kind == "text":
            width = None if out is None else _FILE_WIDTH
            return found.to_text(width, ascii=ascii, color=out is None and wants_color())
        if kind == "json":
            return found.to_json(ascii=ascii)
        if kind in ("csv", "tsv"):
            text = found.to_csv() if kind == "csv" else found.to_tsv()
            return text.encode("ascii", "backslashreplace").decode() if ascii else text
        return found.to_markdown(ascii=ascii) if kind == "md" else found.to_latex(ascii=ascii)

    emit(render, out)
