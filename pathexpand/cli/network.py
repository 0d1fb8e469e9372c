"""The options that describe a network, and the network they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pathexpand.errors import LimitError, PathExpandError
from pathexpand.model.shown import cut, shown

if TYPE_CHECKING:
    from pathexpand.symbolic import Network

Command = TypeVar("Command", bound=Callable[..., Any])

_MOST = 1000  # layers, or heads in a layer: beyond any model, and still counted at once
_MOST_NEURONS = 1_000_000  # in all layers


class _Count(click.IntRange):
    """A number of parts; one of endless digits is over the limit, and is not repeated whole."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the number, no more of it than a line can show."""
        short: Any = cut(value) if isinstance(value, str) else value
        return super().convert(short, param, ctx)


def described(command: Command) -> Command:
    """Add the options that describe a network by its sizes or by a model."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_network(
    *,
    layers: int | None,
    heads: str | None,
    neurons: int | None,
    mlp: str | None,
    parallel: bool,
    positions: bool,
    biases: bool,
    unembed_bias: bool,
    model: str | None,
) -> Network:
    """Build the network that was described.

    >>> sources = dict(positions=False, biases=False, unembed_bias=False, model=None)
    >>> mlps = dict(neurons=5, mlp=None, parallel=False)
    >>> read_network(layers=None, heads="4,3", **mlps, **sources).count()
    720
    """
    if model is not None:
        given = any(size is not None for size in (layers, heads, neurons))
        if given or parallel or positions or biases or unembed_bias:
            raise click.UsageError(
                "A --model has its own sizes and sources, but for --mlp.", _context()
            )
        from pathexpand.api import load

        return load(model, mlp=mlp or "source").network  # type: ignore[arg-type]
    if heads is None or (layers is None and "," not in heads):
        raise click.UsageError("Give --layers and --heads, or --model.", _context())
    from pathexpand.symbolic import Network

    sources = {"positions": positions, "biases": biases, "unembed_bias": unembed_bias}
    sizes = _read_heads(heads)
    mlp = _read_mlp(mlp, neurons, parallel)
    if mlp is None:
        return Network.attention_only(layers, sizes, **sources)
    depth = len(sizes) if isinstance(sizes, tuple) else layers or 0
    if depth * (neurons or 0) > _MOST_NEURONS:
        wanted = f"at most {_MOST_NEURONS:,} in all layers"
        raise LimitError("neurons", wanted=wanted, got=f"{depth * (neurons or 0):,}")
    return Network.transformer(layers, sizes, neurons or 0, mlp=mlp, parallel=parallel, **sources)


def grouped(number: int) -> str:
    """Write a number with commas, also one of more digits than Python writes at once.

    >>> grouped(1234567), len(grouped(10**6000))
    ('1,234,567', 8001)
    """
    head, tail = divmod(number, 10**3000)
    return f"{grouped(head)},{tail:03999,}" if head else f"{tail:,}"


def _read_mlp(mlp: str | None, neurons: int | None, parallel: bool) -> str | None:
    """Return what becomes of the MLPs, or None without them; --neurons alone asks for neurons."""
    if mlp == "neurons" and neurons is None:
        raise click.UsageError("--mlp neurons needs --neurons.", _context())
    if mlp not in (None, "neurons") and neurons is not None:
        raise click.UsageError(f"--mlp {mlp} has no use for --neurons.", _context())
    if mlp is None and neurons is None and parallel:
        raise click.UsageError("--parallel needs MLPs: give --mlp or --neurons.", _context())
    return "neurons" if neurons is not None else mlp


def _read_heads(text: str) -> int | tuple[int, ...]:
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", text):
        raise PathExpandError(
            "heads", wanted="a number, or one a layer such as 4,3", got=shown(text)
        )
    # Cut before they are read: Python refuses numbers of thousands of digits.
    sizes = tuple(int(size.lstrip("0")[:9] or "0") for size in text.split(","))
    if len(sizes) > _MOST or max(sizes) > _MOST:
        raise LimitError(
            "heads", wanted=f"at most {_MOST} in each of at most {_MOST} layers", got=cut(text)
        )
    return sizes if "," in text else sizes[0]


def _context() -> click.Context | None:
    return click.get_current_context(silent=True)


_OPTIONS: list[Callable[[Command], Command]] = [
    click.option("--layers", type=_Count(0, _MOST), metavar="N", help=f"Layers, at most {_MOST}."),
    click.option(
        "--heads",
        metavar="N",
        help=f"Heads in each layer, at most {_MOST}; 4,3 gives each layer its own number.",
    ),
    click.option(
        "--neurons",
        type=_Count(0, _MOST_NEURONS),
        metavar="N",
        help="Neurons in each layer's MLP, each a component.",
    ),
    click.option(
        "--mlp",
        type=click.Choice(["source", "frozen", "neurons"]),
        help="Take each MLP's output as a source, each MLP as one component with frozen gates, or "
        "its neurons: --neurons, or those of the --model.",
    ),
    click.option(
        "--parallel", is_flag=True, help="Let heads and MLP of a layer read the same stream."
    ),
    click.option("--positions", is_flag=True, help="Add position embeddings as a source."),
    click.option("--biases", is_flag=True, help="Add the constants of each layer."),
    click.option("--unembed-bias", is_flag=True, help="Add the bias of the logits."),
    click.option(
        "--model", metavar="NAME|DIR|FILE", help="Take sizes and sources from a model instead."
    ),
]
