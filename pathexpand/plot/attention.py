"""An attention pattern over the tokens of its prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from pathexpand.errors import PathExpandError
from pathexpand.plot.figure import new_axes
from pathexpand.plot.names import name_tokens
from pathexpand.symbolic import Head
from pathexpand.table.path_table import SourceToken

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    patterns = run.patterns
    if place.layer >= len(patterns) or place.index >= len(patterns[place.layer]):
        wanted = f"a head of {len(patterns)} layers of {len(patterns[0]) if patterns else 0}"
        raise PathExpandError(f"head {place}", wanted=wanted, got=place.label)
    pattern = np.asarray(patterns[place.layer][place.index], dtype=np.float64)
    size = len(pattern)
    side = min(max(0.26 * size + 1.6, 3.5), 16.0)
    ax = new_axes(width=side + 0.6, height=side) if ax is None else ax
    image = ax.imshow(pattern, cmap="Greys", vmin=0.0, vmax=max(1.0, float(pattern.max())))
    for axis in (ax.xaxis, ax.yaxis):
        name_tokens(axis, [token.text for token in run.source_tokens], numbered=True)
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    ax.set_title(f"attention of {place}")
    ax.figure.colorbar(image, ax=ax, shrink=0.7, label="weight")
    return ax
