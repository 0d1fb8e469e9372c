"""`pathexpand circuits`: QK and OV circuits, skip-trigrams, bigrams and virtual weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pathexpand.cli.prompt import checked_texts, modelled, read_bytes
from pathexpand.cli.table import write, written
from pathexpand.errors import FileError

if TYPE_CHECKING:
    from pathexpand.circuits.circuit import Circuit
    from pathexpand.model.checkpoint import Checkpoint
    from pathexpand.table import Table

_OPTIONS = {"rows": "row", "columns": "column"}  # parameters of another name
# Which options go with which analysis; what is given beside another one is refused.
_GOES_WITH = {
    "--ov": {"--row", "--column", "--by", "--directions", "--own-in-top", "--centred", "--plot"},
    "--qk": {
        "--query-head",
        "--key-head",
        "--offset",
        "--row",
        "--column",
        "--by",
        "--directions",
        "--own-in-top",
        "--plot",
    },
    "--skip-trigrams": {"--offset", "--row", "--by", "--context", "--text", "--bugs"},
    "--bigrams": {"--text"},
    "--virtual": set(),
    "--deletions": set(),
}


@click.command(
    short_help="Read a head's QK and OV circuits, skip-trigrams or bigrams from the weights.",
    epilog='Heads are written L0H3, virtual heads "L0H3 > L1H0", tokens as texts or ids. The list '
    "is exact, though nothing as large as the vocabulary squared is made.",
)
@modelled
@click.option("--ov", metavar="HEADS", help="What the tokens a head attends to do to the logits.")
@click.option("--qk", metavar="HEAD", help="Which key tokens each query token attends to.")
@click.option("--skip-trigrams", metavar="HEAD", help="Source ... destination, output of a head.")
@click.option("--bigrams", is_flag=True, help="The direct path: which token follows which.")
@click.option(
    "--virtual", nargs=2, metavar="WRITER READER", help='What one reads of another: "L0H3 L1H0.k".'
)
@click.option("--deletions", is_flag=True, help="Heads that undo what earlier components write.")
@click.option("--query-head", metavar="HEADS", help="Earlier heads that the query comes through.")
@click.option("--key-head", metavar="HEADS", help="Earlier heads that the key comes through.")
@click.option(
    "--offset", type=int, metavar="N", help="Query minus key, where positions are rotary."
)
@click.option(
    "--row",
    "rows",
    metavar="TOKEN",
    multiple=True,
    callback=checked_texts,
    help="Rows of these tokens alone; can be given several times.",
)
@click.option(
    "--column",
    "columns",
    metavar="TOKEN",
    multiple=True,
    callback=checked_texts,
    help="Columns of these tokens alone; can be given several times.",
)
@click.option("--top", type=int, default=20, show_default=True, metavar="N", help="Rows to list.")
@click.option(
    "--by",
    type=click.Choice(("value", "size")),
    help="Rank by value (the default) or by absolute value.",
)
@click.option(
    "--directions", is_flag=True, help="The largest singular directions in place of entries."
)
@click.option(
    "--own-in-top",
    type=int,
    metavar="K",
    help="Also how many tokens are among the K largest of their own row: a pass over all.",
)
@click.option("--centred", is_flag=True, help="Take each OV row's mean over the outputs off.")
@click.option(
    "--context",
    type=int,
    metavar="N",
    help="Tokens that a skip-trigram's head chooses among. Default: 16.",
)
@click.option(
    "--plot",
    metavar="FILE",
    help="With --row: draw these rows and columns of a circuit as a heat map (.png or .svg).",
)
@click.option("--bugs", is_flag=True, help="What skip-trigrams of one source bring along unasked.")
@click.option(
    "--text",
    metavar="FILE",
    help="A text: for its bigrams, as the average tokens of a context, and to tell bugs from what "
    "does occur; - is standard input.",
)
@written
@click.pass_context
def circuits(
    context: click.Context, /, *, model: str, kind: str | None, out: str | None, **given: Any
) -> None:
    """Read circuits from the weights alone, over the whole vocabulary.

    Give one of --ov, --qk, --skip-trigrams, --bigrams, --virtual and --deletions.
    """
    mode = _mode(context, given)
    if given["plot"] is not None:
        if not given["rows"]:
            raise click.UsageError("--plot needs the tokens of --row.", context)
        from pathexpand.plot.figure import check_file

        check_file(given["plot"])
    from pathexpand.api import load

    write(_TABLES[mode](load(model).checkpoint, given), kind, out)


def _mode(context: click.Context, given: dict[str, Any]) -> str:
    """Give the one analysis that was asked for, if all else that was given goes with it."""
    named = {
        f"--{_OPTIONS.get(name, name).replace('_', '-')}"
        for name, value in given.items()
        if _is_given(value)
    }
    modes = [mode for mode in _GOES_WITH if mode in named]
    if len(modes) != 1:
        *most, last = _GOES_WITH
        raise click.UsageError(f"Give one of {', '.join(most)} and {last}.", context)
    stray = sorted(named - {modes[0], "--top"} - _GOES_WITH[modes[0]])
    if stray:
        raise click.UsageError(f"{stray[0]} does not go with {modes[0]}.", context)
    return modes[0]


def _is_given(value: object) -> bool:
    return value not in (None, False, ())


def _ov(checkpoint: Checkpoint, given: dict[str, Any]) -> Table:
    from pathexpand.circuits.circuit import ov

    return _circuit(ov(checkpoint, given["ov"], centred=given["centred"]), given)


def _qk(checkpoint: Checkpoint, given: dict[str, Any]) -> Table:
    from pathexpand.circuits.circuit import qk

    query, key = (() if given[n] is None else given[n] for n in ("query_head", "key_head"))
    return _circuit(
        qk(checkpoint, given["qk"], query=query, key=key, offset=given["offset"]), given
    )


def _circuit(circuit: Circuit, given: dict[str, Any]) -> Table:
    from pathexpand.circuits.circuit import read_token

    only = [
        [read_token(circuit.checkpoint, token, count) for token in given[side]] or None
        for side, count in zip(("rows", "columns"), circuit.matrix.shape, strict=True)
    ]
    if given["plot"] is not None and only[0] is not None:
        from pathexpand.plot import save, token_heatmap

        save(token_heatmap(circuit, only[0], only[1]), given["plot"])
    if given["directions"]:
        return circuit.directions(given["top"]).table()
    return circuit.table(
        given["top"],
        by=given["by"] or "value",
        rows=only[0],
        columns=only[1],
        own_in_top=given["own_in_top"],
    )


def _skip_trigrams(checkpoint: Checkpoint, given: dict[str, Any]) -> Table:
    from pathexpand.circuits.circuit import read_token
    from pathexpand.circuits.skip_trigrams import CONTEXT, skip_trigrams

    text = None if given["text"] is None else _tokens(checkpoint, given["text"])
    trigrams = skip_trigrams(
        checkpoint,
        given["skip_trigrams"],
        offset=given["offset"],
        context=CONTEXT if given["context"] is None else given["context"],
        corpus=text,
    )
    size = checkpoint.config.d_vocab
    only = [read_token(checkpoint, source, size) for source in given["rows"]] or None
    found = trigrams.top(given["top"], by=given["by"] or "value", sources=only)
    return trigrams.bugs(found, text=text).table(given["top"]) if given["bugs"] else found.table()


def _bigrams(checkpoint: Checkpoint, given: dict[str, Any]) -> Table:
    from pathexpand.circuits.bigrams import bigrams

    text = None if given["text"] is None else _tokens(checkpoint, given["text"], least=2)
    found = bigrams(checkpoint)
    return found.top(given["top"]) if text is None else found.compare(text, given["top"])


def _virtual(checkpoint: Checkpoint, given: dict[str, Any]) -> Table:
    from pathexpand.circuits.overlap import overlap

    return overlap(checkpoint, *given["virtual"]).table(given["top"])


def _deletions(checkpoint: Checkpoint, given: dict[str, Any]) -> Table:
    from pathexpand.circuits.overlap import deletions_in_weights

    return deletions_in_weights(checkpoint).table(given["top"])


def _tokens(checkpoint: Checkpoint, file: str, *, least: int = 1) -> list[int]:
    from pathexpand.model.tokenizer import encode_prompt
    from pathexpand.table.figures import counted

    try:
        text = read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{file}", wanted="text in UTF-8", got=str(error)) from None
    ids = encode_prompt(checkpoint.tokenizer, text, whole=False)
    if len(ids) < least:
        wanted, got = f"a text of at least {counted(least, 'token')}", counted(len(ids), "token")
        raise FileError(file, wanted=wanted, got=got)
    return ids


_TABLES = {
    "--ov": _ov,
    "--qk": _qk,
    "--skip-trigrams": _skip_trigrams,
    "--bigrams": _bigrams,
    "--virtual": _virtual,
    "--deletions": _deletions,
}
