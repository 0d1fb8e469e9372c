"""`pathexpand total`: sums over paths, none of them listed."""

from __future__ import annotations

from typing import Any

import click

from pathexpand.cli.prompt import prompted, queried, read_run
from pathexpand.cli.table import write, written


@click.command(short_help="Sum a model's paths without listing them.")
@prompted
@queried
@click.option(
    "--by",
    type=click.Choice(("order", "source", "token", "head", "pair")),
    default="order",
    show_default=True,
    help="What the sums are over: paths of each number of heads, from each source or token, "
    "through each head or pair of heads.",
)
@click.option(
    "--plot", metavar="FILE", help="With --by order: draw how the orders add up (.png or .svg)."
)
@click.option("--raw", is_flag=True, help="Read the logit itself, not minus the vocabulary mean.")
@written
def total(
    *,
    by: str,
    query: str | None,
    plot: str | None,
    raw: bool,
    kind: str | None,
    out: str | None,
    model: str,
    position: int | None,
    target: str | None,
    **prompt: Any,
) -> None:
    """Sum all paths of a query exactly, however many there are."""
    if plot is not None:
        if by != "order":
            context = click.get_current_context(silent=True)
            raise click.UsageError("--plot goes with --by order.", context)
        from pathexpand.plot.figure import check_file

        check_file(plot)
    run = read_run(model, **prompt)
    found = run.totals_table(
        by=by, query=query, target=target, position=position, centred=False if raw else None
    )
    write(found, kind, out)
    if plot is not None:
        from pathexpand.plot import order_waterfall, save

        save(order_waterfall(found), plot)
