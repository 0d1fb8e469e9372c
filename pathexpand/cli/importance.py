"""`pathexpand importance`: how much paths of each order, layer and head matter to the loss."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import click

from pathexpand.cli.dataset import read_lines
from pathexpand.cli.output import warn
from pathexpand.cli.prompt import checked_texts, modelled, read_bytes, with_mlp
from pathexpand.cli.table import write, written
from pathexpand.errors import FileError

if TYPE_CHECKING:
    from pathexpand.model.checkpoint import Checkpoint

_JSON_LINES = (".jsonl", ".ndjson")
_KINDS = ("order", "layer", "head", "composition")


@click.command(
    short_help="Measure what paths of each order, layer and head do to the loss.",
    epilog="Numbers are nats a token. Standard errors of what is added and removed are in the "
    "tables of one kind (--by layer, --by head).",
)
@modelled
@with_mlp
@click.option(
    "--text",
    "file",
    metavar="FILE",
    help="A text, cut into prompts of the model's context; - is standard input. A .jsonl file has "
    'a prompt a line, {"text": ...} or {"tokens": [1, 2]}. Without one an embedded model reads a '
    "short example.",
)
@click.option(
    "--prompt",
    "prompts",
    metavar="TEXT",
    multiple=True,
    callback=checked_texts,
    help="A prompt, taken as typed; may be given several times.",
)
@click.option(
    "--by",
    type=click.Choice(_KINDS),
    help="Measure one kind alone: paths of each order, layer or head, or what Q- and "
    "K-composition are worth. Default: all.",
)
@click.option(
    "--query",
    "queries",
    metavar="QUERY",
    multiple=True,
    callback=checked_texts,
    help='Other paths, such as "* > L1H*"; may be given several times.',
)
@click.option("--max-order", type=int, metavar="N", help="Sum paths of higher orders as one.")
@click.option("--tokens-limit", type=int, metavar="N", help="Stop after N predicted tokens.")
@click.option("--plot", metavar="FILE", help="Draw the changes as bars too (.png or .svg).")
@written
def importance(
    *,
    model: str,
    mlp: Any,
    file: str | None,
    prompts: tuple[str, ...],
    by: Any,
    queries: tuple[str, ...],
    max_order: int | None,
    tokens_limit: int | None,
    plot: str | None,
    kind: str | None,
    out: str | None,
) -> None:
    """Measure how much paths of each kind matter to a model's next-token loss.

    Attention patterns are held fixed. Paths of order 0, 1, 2 and so on join one after another;
    those of one layer or head join the direct path alone, or are left out of the sum of all. Ctrl-C
    stops with the prompts that are done.
    """
    context = click.get_current_context(silent=True)
    if file is not None and prompts:
        raise click.UsageError("Give one of --text and --prompt.", context)
    if queries and by is not None:
        raise click.UsageError("--query takes no --by.", context)
    if plot is not None:
        from pathexpand.plot.figure import check_file

        check_file(plot)
    from pathexpand.api import load
    from pathexpand.circuits.importance import PARTS
    from pathexpand.circuits.importance import importance as measured

    checkpoint = load(model, mlp=mlp).checkpoint
    corpus = _corpus(checkpoint, model, file, prompts)
    found = measured(
        checkpoint,
        corpus.prompts,
        mlp=mlp,
        parts=PARTS if by is None else (by,),
        max_order=max_order,
        max_tokens=tokens_limit,
        queries=queries,
    )
    found = replace(found, text=corpus.name)
    write(found.table(by), kind, out)
    if found.stopped:
        warn("interrupted: the rest of the text was not read")
    if plot is not None:
        from pathexpand.plot.figure import save
        from pathexpand.plot.importance import importance_bars

        save(importance_bars(found, by=by), plot)


@dataclass(frozen=True, slots=True)
class _Corpus:
    """Prompts, and what they are called in the table."""

    name: str
    prompts: Iterable[Any]


def _corpus(
    checkpoint: Checkpoint, model: str, file: str | None, prompts: tuple[str, ...]
) -> _Corpus:
    """Give the prompts that were asked for, or those of the example."""
    from pathexpand.circuits.corpus import cut_text, example_text
    from pathexpand.model.checkpoint import EMBEDDED

    if prompts:
        return _Corpus("", prompts)
    if file is not None:
        name = "standard input" if file == "-" else file
        if FilePath(file).suffix.lower() in _JSON_LINES:
            return _Corpus(name, [line.prompt for line in read_lines(file)])
        return _Corpus(name, cut_text(checkpoint, _read_text(file)))
    if model not in EMBEDDED:
        context = click.get_current_context(silent=True)
        raise click.UsageError("This model needs --text or --prompt.", context)
    return _Corpus("the built-in example", cut_text(checkpoint, example_text()))


def _read_text(file: str) -> str:
    try:
        return read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        got = f"{error.reason} at byte {error.start}"
        raise FileError(file, wanted="text in UTF-8", got=got) from None
