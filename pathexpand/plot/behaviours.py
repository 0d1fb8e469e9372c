"""How much each head does each behaviour, as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pathexpand.circuits.detection import Detection
from pathexpand.plot.figure import figure_of, new_axes
from pathexpand.plot.names import readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NAMES = 48  # heads that can be named along the axis


def behaviour_matrix(found: Detection, *, ax: Axes | None = None) -> Axes:
    """Draw the scores, heads from top to bottom and behaviours from left to right.

    >>> from pathexpand import load
    >>> from pathexpand.circuits.detection import detect
    >>> behaviour_matrix(detect(load("two-layer").checkpoint, batch=2)).get_ylabel()
    'head'
    """
    height = min(max(2.0, 0.2 * len(found.heads) + 1), 12.0)
    ax = new_axes(width=4.5, height=height) if ax is None else ax
    image = ax.imshow(
        np.ma.masked_invalid(found.scores),
        cmap="Greys",
        vmin=0,
        vmax=1,
        aspect="auto",
        interpolation="nearest",
    )
    many = len(found.heads) > _MOST_NAMES
    places = [n for n, head in enumerate(found.heads) if not many or head.index == 0]
    names = [f"L{found.heads[n].layer}" if many else found.heads[n].label for n in places]
    ax.set_yticks(places, labels=names, fontsize=7)
    ax.set_xticks(range(len(found.behaviours)), labels=found.behaviours, fontsize=8)
    ax.set(ylabel="head", title=readable(found.model))
    figure_of(ax).colorbar(image, ax=ax).set_label("mean attention")
    return ax
