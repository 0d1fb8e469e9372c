"""`pathexpand count`: how many paths a network has."""

from __future__ import annotations

from typing import Any

import click

from pathexpand.cli.network import described, grouped, read_network
from pathexpand.cli.output import emit


@click.command(short_help="Count a network's paths.")
@described
@click.option("--by-order", is_flag=True, help="Count each number of components on its own.")
def count(*, by_order: bool, **sizes: Any) -> None:
    """Count a network's paths, exactly and without listing them.

    \b
    pathexpand count --layers 12 --heads 12 --by-order
    pathexpand count --layers 12 --heads 12 --neurons 3072
    """
    network = read_network(**sizes)
    total = grouped(network.count())
    lines = [f"{total} path{'' if total == '1' else 's'}"]
    if by_order:
        numbers = [("order", "paths")]
        numbers += [(str(n), grouped(each)) for n, each in enumerate(network.count_by_order())]
        numbers += [("all", total)]
        room = max(len(number) for _, number in numbers)
        lines = [f"{order:>5}  {number:>{room}}" for order, number in numbers]
    emit(lambda ascii: "\n".join(lines) + "\n")
