"""`pathexpand count`: how many paths a network has."""

from __future__ import annotations

from typing import Any

import click

from pathexpand.cli.network import described, read_network
from pathexpand.cli.output import emit


@click.command(short_help="Count a network's paths.")
@described
@click.option("--by-order", is_flag=True, help="Count each number of heads on its own.")
def count(*, by_order: bool, **sizes: Any) -> None:
    """Count a network's paths, exactly and without listing them.

    \b
    pathexpand count --layers 12 --heads 12 --by-order
    """
    network = read_network(**sizes)
    total = f"{network.count():,}"
    lines = [f"{total} path{'' if total == '1' else 's'}"]
    if by_order:
        numbers = [("order", "paths")]
        numbers += [(str(n), f"{each:,}") for n, each in enumerate(network.count_by_order())]
        numbers += [("all", total)]
        room = max(len(number) for _, number in numbers)
        lines = [f"{order:>5}  {number:>{room}}" for order, number in numbers]
    emit(lambda ascii: "\n".join(lines) + "\n")
