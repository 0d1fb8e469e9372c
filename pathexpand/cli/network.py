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


class _Layers(click.IntRange):
    """A number of layers; one of endless digits is over the limit, and is not repeated whole."""

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
    positions: bool,
    biases: bool,
    unembed_bias: bool,
    model: str | None,
) -> Network:
    """Build the network that was described.

    >>> sizes = dict(positions=False, biases=False, unembed_bias=False, model=None)
    >>> read_network(layers=None, heads="4,3", **sizes).count()
    20
    """
    described_by_size = heads is not None or layers is not None
    if model is not None:
        if described_by_size or positions or biases or unembed_bias:
            raise click.UsageError("A --model has its own sizes and sources.", _context())
        from pathexpand.api import load

        return load(model).network
    if heads is None or (layers is None and "," not in heads):
        raise click.UsageError("Give --layers and --heads, or --model.", _context())
    from pathexpand.symbolic import Network

    return Network.attention_only(
        layers,
        _read_heads(heads),
        positions=positions,
        biases=biases,
        unembed_bias=unembed_bias,
    )


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
    click.option("--layers", type=_Layers(0, _MOST), metavar="N", help=f"Layers, at most {_MOST}."),
    click.option(
        "--heads",
        metavar="N",
        help=f"Heads in each layer, at most {_MOST}; 4,3 gives each layer its own number.",
    ),
    click.option("--positions", is_flag=True, help="Add position embeddings as a source."),
    click.option("--biases", is_flag=True, help="Add a constant born in each layer."),
    click.option("--unembed-bias", is_flag=True, help="Add the bias of the logits."),
    click.option(
        "--model", metavar="NAME|DIR|FILE", help="Take sizes and sources from a model instead."
    ),
]
