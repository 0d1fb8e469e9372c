"""The composition scores of all pairs of heads as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pathexpand.circuits.composition import Composition
from pathexpand.plot.figure import figure_of, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CLEAR = 1.5  # times the score by chance: what is less is not drawn black
_MOST_NAMES = 32  # heads that can be named along an axis


def composition_matrix(
    composition: Composition, *, ax: Axes | None = None, most: float | None = None
) -> Axes:
    """Draw the scores, earlier heads from top to bottom and later ones from left to right.

    White is what random angles give, 1/√width, or less, and black is `most`: without it the largest
    score, but at least half as much again as by chance. Where the picture is hatched is no pair.

    >>> from pathexpand import load
    >>> from pathexpand.circuits.composition import composition
    >>> found = composition(load("two-layer").checkpoint, "K", samples=0)
    >>> composition_matrix(found).get_xlabel()
    'later head'
    """
    ax = new_axes() if ax is None else ax
    heads = composition.heads
    earlier = [n for n, head in enumerate(heads) if head.layer < heads[-1].layer]
    later = [n for n, head in enumerate(heads) if head.layer > 0]
    scores = composition.matrix[np.ix_(earlier, later)]
    least, darkest = shades(composition)
    image = ax.imshow(
        np.ma.masked_invalid(scores),
        cmap="Greys",
        vmin=least,
        vmax=darkest if most is None else most,
        aspect="auto",
        interpolation="nearest",
    )
    ax.patch.set(hatch="////", facecolor="white", edgecolor="0.8")
    _name(ax, [heads[n].label for n in earlier], [heads[n].label for n in later])
    _part(ax, [heads[n].layer for n in earlier], [heads[n].layer for n in later])
    ax.set(xlabel="later head", ylabel="earlier head", title=f"{composition.kind}-composition")
    bar = figure_of(ax).colorbar(image, ax=ax, extend="min")
    bar.set_label(f"score (random angles: {composition.analytic:.3f})")
    return ax


def shades(composition: Composition) -> tuple[float, float]:
    """Give the scores that are white and black in a picture of these alone.

    >>> from pathexpand import load
    >>> from pathexpand.circuits.composition import composition
    >>> white, black = shades(composition(load("two-layer").checkpoint, "V", samples=0))
    >>> black / white
    1.5
    """
    chance = composition.analytic
    return chance, max(float(np.nanmax(composition.matrix)), _CLEAR * chance)


def _name(ax: Axes, rows: list[str], columns: list[str]) -> None:
    """Name the heads, or where there are many the first of each layer."""
    for axis, names in ((ax.yaxis, rows), (ax.xaxis, columns)):
        many = len(names) > _MOST_NAMES
        places = [n for n, name in enumerate(names) if not many or name.endswith("H0")]
        texts = [names[n].removesuffix("H0") if many else names[n] for n in places]
        axis.set_ticks(places, labels=texts, fontsize=7)
    if len(columns) > 8:
        ax.tick_params(axis="x", labelrotation=90)


def _part(ax: Axes, rows: list[int], columns: list[int]) -> None:
    """Draw a line between layers."""
    for layers, line in ((rows, ax.axhline), (columns, ax.axvline)):
        for place in range(1, len(layers)):
            if layers[place] != layers[place - 1]:
                line(place - 0.5, color="0.6", linewidth=0.5)
