"""`pathexpand expand`: a network's terms, or its equation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pathexpand.cli.network import described, grouped, read_network
from pathexpand.cli.output import emit
from pathexpand.errors import LimitError

if TYPE_CHECKING:
    from pathexpand.symbolic import Network


@click.command(
    short_help="Write a network as a sum of paths.",
    epilog="The sympy format is code: evaluate it after 'from sympy import *' and 'from "
    "sympy.physics.quantum import *'.",
)
@described
@click.option(
    "--format",
    "kind",
    type=click.Choice(["text", "latex", "sympy"]),
    default="text",
    show_default=True,
)
@click.option(
    "--notation",
    type=click.Choice(["paper", "code"]),
    help="paper: column vectors, read right to left (default); code: row vectors, as arrays are.",
)
@click.option(
    "--max-order", type=click.IntRange(0), metavar="N", help="At most N components in a term."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    metavar="N",
    help="Refuse to write more terms than this.",
)
@click.option("--equation", is_flag=True, help="Write sums over components instead of every term.")
def expand(
    *,
    kind: str,
    notation: str | None,
    max_order: int | None,
    limit: int,
    equation: bool,
    **sizes: Any,
) -> None:
    """Write a network as a sum of paths: position map, then linear map, for every term.

    \b
    pathexpand expand --layers 2 --heads 12 --equation
    pathexpand expand --layers 2 --heads 12 --neurons 3072 --equation
    """
    context = click.get_current_context(silent=True)
    if kind == "sympy" and notation == "code":
        raise click.UsageError("The sympy format has the paper's notation only.", context)
    if equation and max_order is not None:
        raise click.UsageError("--equation shows all orders: leave out --max-order.", context)
    network = read_network(**sizes)
    if not equation:
        _check_size(network, max_order, limit)
        emit(lambda ascii: _terms(network, kind, notation or "paper", max_order, ascii) + "\n")
    else:
        emit(lambda ascii: _equation(network, kind, notation or "paper", ascii) + "\n")


def _check_size(network: Network, max_order: int | None, limit: int) -> None:
    by_order = network.count_by_order()
    size = sum(by_order if max_order is None else by_order[: max_order + 1])
    if size > limit:
        raise LimitError(
            "expansion",
            wanted=f"at most {limit:,} terms",
            got=grouped(size),
            remedy="give --max-order or a larger --limit, or write the --equation",
        )


def _terms(network: Network, kind: str, notation: str, max_order: int | None, ascii: bool) -> str:
    from pathexpand.symbolic import expand, format_expansion, latex

    # The size is checked, by a limit that the user knows.
    terms = expand(network.expression(), max_order=max_order, limit=network.count())
    if kind == "sympy":
        return _sympy_code(terms)
    if kind == "latex":
        return latex(terms, notation=notation).replace(" + ", "\n+ ")
    return format_expansion(terms, notation=notation, ascii=ascii, lines=True)


def _equation(network: Network, kind: str, notation: str, ascii: bool) -> str:
    from pathexpand.symbolic import equation

    if kind == "sympy":
        return _sympy_code(network.expression())
    return equation(network, notation=notation, format=kind, ascii=ascii)


def _sympy_code(value: Any) -> str:
    from sympy import srepr

    from pathexpand.symbolic import to_sympy

    return str(srepr(to_sympy(value)))
