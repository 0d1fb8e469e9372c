"""`pathexpand scores`: why a head looks where it does, as pairs of paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pathexpand.cli.output import complain
from pathexpand.cli.prompt import attended, read_run
from pathexpand.cli.table import read_budget, write, written

if TYPE_CHECKING:
    from pathexpand.api import Run
    from pathexpand.table import ScoreTable

DEFAULT_MODEL, DEFAULT_HEAD = "two-layer", "L1H0"  # its induction head


@click.command(
    short_help="Expand a head's attention score into pairs of paths.",
    epilog="A pair is a path to the query and one to the key; composition says which of the two "
    "passes through a component before this head. In csv the rows with (remainder) and, in models "
    "with ALiBi, (alibi) close the sum.",
)
@attended
@click.option(
    "--head",
    metavar="HEAD",
    help=f"Such as L1H0. Default: {DEFAULT_HEAD}, in the {DEFAULT_MODEL} model.",
)
@click.option(
    "--key",
    type=int,
    metavar="N",
    help="Position of the key. Default: the one that gets most attention.",
)
@click.option(
    "--over",
    type=int,
    metavar="N",
    help="Expand the log of how many times more attention the key gets than this one.",
)
@click.option(
    "--why", is_flag=True, help="As --over, with the key that gets most attention beside."
)
@click.option("--top", type=int, default=10, show_default=True, metavar="N", help="Rows to list.")
@click.option("--nodes", type=int, metavar="N", help="Stop after so many suffixes.")
@click.option("--seconds", type=float, metavar="S", help="Stop the search after so long.")
@click.option("--memory", type=float, metavar="GB", help="Stop when the search holds so much.")
@click.option("--plot", metavar="FILE", help="Draw the head's pattern too, as .png or .svg.")
@written
def scores(
    *,
    model: str,
    head: str | None,
    position: int | None,
    key: int | None,
    over: int | None,
    why: bool,
    top: int,
    nodes: int | None,
    seconds: float | None,
    memory: float | None,
    plot: str | None,
    kind: str | None,
    out: str | None,
    **prompt: Any,
) -> int:
    """Say why a head looks from one position at another, as a sum over pairs of paths.

    Listed + remainder = the score of the dense pass (before the softmax), but for rounding, and
    each unlisted pair is bounded, as in "pathexpand table". --position is the query's.
    """
    context = click.get_current_context(silent=True)
    if why and over is not None:
        raise click.UsageError("Give one of --why and --over.", context)
    if plot is not None:
        from pathexpand.plot.figure import check_file

        check_file(plot)
    run = read_run(model, **prompt)
    if head is None:
        if model != DEFAULT_MODEL and run.model.config.n_layers:
            raise click.UsageError("This model needs --head.", context)
        head = DEFAULT_HEAD
    ask = run.why if why or over is not None else run.scores
    options: dict[str, Any] = {"over": over} if why or over is not None else {}
    budget = read_budget(nodes, seconds, memory)
    found: ScoreTable = ask(head, position, key, top=top, budget=budget, **options)
    write(found, kind, out)
    if plot is not None:
        _draw(run, found.head, plot)
    if found.closes:
        return 0
    complain("the sum does not close: the gap is larger than its bound")
    return 1


def _draw(run: Run, head: str, file: str) -> None:
    from pathexpand.plot import attention_pattern, save

    save(attention_pattern(run, head), file)
