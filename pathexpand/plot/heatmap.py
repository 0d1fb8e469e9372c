"""A head's OV or QK circuit over chosen tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.circuit import Circuit, read_token
from pathexpand.errors import PathExpandError
from pathexpand.model.shown import shown
from pathexpand.plot.figure import figure_of, new_axes
from pathexpand.plot.names import name_tokens, readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Tokens = Sequence[int | str]

_NUMBERED = 12  # tokens of a side up to which the numbers stand in the picture
_DARK = 0.6  # of the largest size: numbers on it are written in white


def token_heatmap(
    circuit: Circuit, rows: Tokens, columns: Tokens | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draw a circuit's entries for some tokens, given as texts or ids, rows from top to bottom.

    `columns` are those of `rows` if not given. Red raises, blue lowers, white is 0. Only the
    entries that are drawn are worked out. Raises `PathExpandError`.

    >>> from pathexpand import load
    >>> circuit = load("two-layer").circuits.ov("L1H0")
    >>> token_heatmap(circuit, [" to", " be", 300]).get_title()
    'OV circuit of L1H0'
    """
    sides = (rows, rows if columns is None else columns)
    ids = [
        _read(circuit, side, given, count)
        for side, given, count in zip(("rows", "columns"), sides, circuit.matrix.shape, strict=True)
    ]
    block = circuit.dense_block(*ids)  # (row, column)
    size = [min(max(0.3 * len(each) + 1.6, 3.2), 18.0) for each in ids]
    ax = new_axes(width=size[1] + 1.4, height=size[0]) if ax is None else ax
    most = float(abs(block).max()) or 1.0
    image = ax.imshow(
        block, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto", interpolation="nearest"
    )
    row, column, value = circuit.names
    for axis, tokens in ((ax.yaxis, ids[0]), (ax.xaxis, ids[1])):
        texts = [circuit.show(token) for token in tokens.tolist()]
        name_tokens(axis, texts, ids=tokens.tolist())
    if max(block.shape) <= _NUMBERED:
        _write_numbers(ax, block, most)
    ax.set(xlabel=column, ylabel=row, title=readable(f"{circuit.kind} circuit of {circuit.name}"))
    figure_of(ax).colorbar(image, ax=ax, label=value)
    return ax


def _read(circuit: Circuit, side: str, given: object, count: int) -> npt.NDArray[np.int64]:
    several = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str | bytes)
    if not several or not len(given):  # type: ignore[arg-type]
        wanted = "a list of at least one token"
        raise PathExpandError(f"{side} of a heat map", wanted=wanted, got=shown(given))
    tokens: Sequence[int | str] = given  # type: ignore[assignment]
    return np.array([read_token(circuit.checkpoint, each, count) for each in tokens])


def _write_numbers(ax: Axes, block: npt.NDArray[np.float64], most: float) -> None:
    digits = max(0, 2 - int(np.floor(np.log10(most)))) if most < 1e4 else 0
    for (row, column), number in np.ndenumerate(block):
        text = f"{number:.{min(digits, 3)}f}" if most >= 1e-2 else f"{number:.0e}"
        color = "white" if abs(number) > _DARK * most else "black"
        ax.text(column, row, text, ha="center", va="center", fontsize=6, color=color)
