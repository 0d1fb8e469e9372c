"""`pathexpand table`: the ranked paths of a run, or of weights alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import click

from pathexpand.cli.output import complain, emit, wants_color, warn, write_whole
from pathexpand.cli.prompt import Command, prompted, queried, read_run
from pathexpand.errors import FileError
from pathexpand.model.shown import FILE_ROOM, cut

if TYPE_CHECKING:
    from pathexpand.api import Run
    from pathexpand.api.run import SearchedPaths
    from pathexpand.engine.search import Budget
    from pathexpand.table import NormTable, PathTable, Table

FORMATS = ("text", "csv", "tsv", "json", "md", "latex")
_SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".json": "json", ".md": "md", ".tex": "latex"}
# Formats that somebody could take for granted; any other name is of a text.
_OTHERS = (
    *(".xlsx", ".xls", ".ods", ".html", ".htm", ".pdf", ".png", ".svg", ".docx", ".xml", ".jsonl"),
    *(".parquet", ".feather", ".pkl", ".npz", ".npy", ".yaml", ".yml", ".sqlite"),
    *(".db", ".h5", ".gz", ".zip"),
)
_FILE_WIDTH = 80
_PROMPTS = ("prompt", "prompt_file", "tokens")


def written(command: Command) -> Command:
    """Add the options that say how a table is written."""

    @wraps(command)
    def checked(*given: Any, **options: Any) -> Any:
        if options["out"] is not None:
            check_out(options["out"], options["kind"])
        return command(*given, **options)

    with_file: Any = click.option(
        "--out", metavar="FILE", help="Write to a file, whole or not at all."
    )(checked)
    found: Command = click.option(
        "--format",
        "kind",
        type=click.Choice(FORMATS),
        help="Default: text, or what the name of --out ends in.",
    )(with_file)
    return found


def ranked(*, top: int) -> Callable[[Command], Command]:
    """Add the options that say which paths are ranked, and how long; `top` is the usual number."""
    options = (
        click.option(
            "--top", type=int, default=top, show_default=True, metavar="N", help="Rows to list."
        ),
        click.option(
            "--max-order",
            type=int,
            metavar="N",
            help="Rank only paths of at most N heads and MLPs; longer ones stay in the remainder.",
        ),
        click.option(
            "--raw",
            is_flag=True,
            help="Read the logit itself, not minus the vocabulary mean (as is always done before "
            "a soft cap).",
        ),
        click.option(
            "--weights-only",
            is_flag=True,
            help="No prompt: rank by the norm of each path's matrix.",
        ),
        click.option("--nodes", type=int, metavar="N", help="Stop after so many suffixes."),
        click.option("--seconds", type=float, metavar="S", help="Stop the search after so long."),
        click.option(
            "--memory", type=float, metavar="GB", help="Stop when the search holds so much."
        ),
        click.option(
            "--certificate",
            metavar="FILE",
            help='Write also what "pathexpand check FILE" needs to re-check every claim.',
        ),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return prompted(queried(command))

    return add


@click.command(
    short_help="Rank a model's paths on a prompt.",
    epilog="Numbers in csv, tsv and json are exact. In csv and tsv the last row, (remainder), is "
    "the sum of all unlisted paths: the value column adds up to the dense logit.",
)
@ranked(top=10)
@written
def table(*, kind: str | None, out: str | None, **given: Any) -> int:
    """Rank a model's paths by what each adds to a logit, and close the sum.

    Listed + remainder = the logit of the dense forward pass, but for rounding. The logit is read
    minus its mean over the vocabulary, as a softmax does not see that.

    However many paths there are, the list is exact: the search ends when no path that is left can
    be larger. Stopped sooner, by an option or Ctrl-C, the table still bounds every unlisted path.
    """
    found = rank(out, **given)
    write(found.table, kind, out)
    return found.end()


@dataclass(frozen=True, slots=True)
class Found:
    """What was ranked: a table, and with a prompt the run that it is of and what a search found.

    `certificate` is a file to write, and `source` the model as it was given.
    """

    table: PathTable | NormTable
    run: Run | None = None
    searched: SearchedPaths | None = None
    certificate: str | None = None
    source: str = ""

    def end(self) -> int:
        """Write the certificate, if one is wanted, and give the program's exit status."""
        if self.certificate is not None and self.run is not None and self.searched is not None:
            from pathexpand.certificate import certify

            text = certify(self.run, self.searched, source=self.source).to_json()
            write_whole(FilePath(self.certificate), text)
        if getattr(self.table, "closes", True):
            return 0
        complain("the sum does not close: the gap is larger than its bound")
        return 1


def rank(
    out: str | None,
    *,
    top: int,
    query: str | None,
    max_order: int | None,
    nodes: int | None,
    seconds: float | None,
    memory: float | None,
    certificate: str | None,
    raw: bool,
    weights_only: bool,
    model: str,
    position: int | None,
    target: str | None,
    **prompt: Any,
) -> Found:
    """Rank what the options ask for.

    `out` is where the table will go. Raises `click.UsageError` for what does not go together.
    """
    options: dict[str, Any] = {
        "top": top,
        "query": query,
        "max_order": max_order,
        "budget": read_budget(nodes, seconds, memory),
    }
    if weights_only:
        given = (position, target, certificate, *(prompt[each] for each in _PROMPTS))
        if raw or any(each is not None for each in given):
            raise click.UsageError(
                "--weights-only takes no prompt, position, target, --raw or --certificate.",
                click.get_current_context(silent=True),
            )
        from pathexpand.api import load

        loaded = load(model, mlp=prompt["mlp"])
        return Found(loaded.paths(**options))
    if certificate is not None and out is not None and _same_file(certificate, out):
        raise click.UsageError(
            "--out and --certificate name the same file.", click.get_current_context(silent=True)
        )
    if certificate is not None and not FilePath(certificate).absolute().parent.is_dir():
        raise FileError(f"{certificate}: cannot write", wanted="a directory that exists")
    run = read_run(model, **prompt)
    searched = run.searched_paths(
        target, position=position, centred=False if raw else None, **options
    )
    return Found(searched.table, run, searched, certificate, model)


def write(found: Table, kind: str | None, out: str | None) -> None:
    """Print a table, or write it to a file, in one of `FORMATS`, or as the file's name says.

    >>> from pathexpand.api import load
    >>> write(load("zero-layer").paths(top=0), "csv", None)
    rank,path,order,kind,norm,share
    """

    kind = kind or _SUFFIXES.get(FilePath(out or "").suffix.lower(), "text")

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
    if kind in ("csv", "tsv") and not getattr(found, "certified", True):
        warn("the search stopped early: rows with certain False may be outranked")


def check_out(out: str, kind: str | None = None) -> None:
    """Refuse a name that says the file is of a format that tables are not written in.

    Raises `FileError`.

    >>> check_out("table.xlsx")
    Traceback (most recent call last):
    ...
    pathexpand.errors.FileError: table.xlsx: cannot write: wanted a name that ends in .csv, .tsv,
    .json, .md, .tex or .txt, or --format
    >>> check_out("table.xlsx", "csv")
    """
    if not out:
        raise FileError("--out", wanted="the name of a file", got="an empty one")
    if kind is None and FilePath(out).suffix.lower() in _OTHERS:
        wanted = "a name that ends in .csv, .tsv, .json, .md, .tex or .txt, or --format"
        raise FileError(f"{cut(out, FILE_ROOM)}: cannot write", wanted=wanted)


def _same_file(one: str, other: str) -> bool:
    return FilePath(one).resolve() == FilePath(other).resolve()


def read_budget(nodes: int | None, seconds: float | None, memory: float | None) -> Budget | None:
    """Give the budget that the options set; none if they set none.

    >>> read_budget(None, None, None)
    """
    if nodes is None and seconds is None and memory is None:
        return None
    from pathexpand.engine.search import Budget

    size = None if memory is None else memory * 1e9
    return Budget(nodes=nodes, seconds=seconds, memory=size)
