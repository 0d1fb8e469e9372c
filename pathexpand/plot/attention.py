"""An attention pattern over the tokens of its prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from pathexpand.plot.figure import new_axes
from pathexpand.symbolic import Head
from pathexpand.table.path_table import SourceToken
from pathexpand.table.shorten import shorten_end

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NAMED = 64  # tokens beyond which their names would run into each other
_ROOM = 14  # letters of a token's name


class Attending(Protocol):
    """What is drawn: a run's patterns, and its tokens."""

    @property
    def patterns(self) -> tuple[npt.NDArray[Any], ...]:
        """The patterns, (head, query, key) a layer."""

    @property
    def source_tokens(self) -> tuple[SourceToken, ...]:
        """The tokens."""


def attention_pattern(run: Attending, head: Head | str, *, ax: Axes | None = None) -> Axes:
    """Draw where a head looks: a row for each query, a column for each key.

    >>> from pathexpand.api import load
    >>> attention_pattern(load("two-layer").run("to be or not"), "L0H3").get_title()
    'attention of L0H3'
    """
    place = head if isinstance(head, Head) else Head.parse(head)
    pattern = np.asarray(run.patterns[place.layer][place.index], dtype=np.float64)
    size = len(pattern)
    side = min(max(0.26 * size + 1.6, 3.5), 16.0)
    ax = new_axes(width=side + 0.6, height=side) if ax is None else ax
    image = ax.imshow(pattern, cmap="Greys", vmin=0.0, vmax=max(1.0, float(pattern.max())))
    names = [shorten_end(token.text, _ROOM) for token in run.source_tokens]
    if size <= _MOST_NAMED:
        # A dollar would start a formula.
        shown = [f"{name} {n}".replace("$", r"\$") for n, name in enumerate(names)]
        ax.set_xticks(range(size), shown, rotation=90, fontsize=7, family="monospace")
        ax.set_yticks(range(size), shown, fontsize=7, family="monospace")
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    ax.set_title(f"attention of {place}")
    ax.figure.colorbar(image, ax=ax, shrink=0.7, label="weight")
    return ax
