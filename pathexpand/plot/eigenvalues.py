"""Eigenvalues in the complex plane, and pairs of heads on the two axes of induction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.copying import positivity
from pathexpand.circuits.induction import InductionPair, InductionPlane
from pathexpand.errors import PathExpandError
from pathexpand.plot.figure import new_axes
from pathexpand.plot.names import readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMED = 5  # pairs that are named at most
_LINE = 0.1  # height of a name, on the axis
_STRONG = 0.1  # of the strongest pair's strength: weaker pairs are not named


def eigenvalue_plane(
    eigenvalues: npt.NDArray[Any], *, ax: Axes | None = None, title: str = ""
) -> Axes:
    """Draw one circuit's eigenvalues (n,), each as a dot; Re Σλ / Σ|λ| stands above.

    Both axes have one scale. Raises `PathExpandError` for anything but a row of finite numbers.

    >>> eigenvalue_plane(np.array([2.0, 1j, -1j])).get_title()
    'Re Σλ / Σ|λ| = 0.50'
    """
    values = np.asarray(eigenvalues, dtype=complex)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        got = f"an array of shape {values.shape}"
        raise PathExpandError("eigenvalues", wanted="one row of finite numbers", got=got)
    ax = new_axes(width=4.0, height=4.0) if ax is None else ax
    reach = 1.1 * float(abs(values).max()) or 1.0
    ax.axhline(0, color="0.7", linewidth=0.7, zorder=0)
    ax.axvline(0, color="0.7", linewidth=0.7, zorder=0)
    ax.scatter(values.real, values.imag, s=14, facecolors="none", edgecolors="black")
    score = f"Re Σλ / Σ|λ| = {float(positivity(values)):.2f}"
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="Re λ", ylabel="Im λ")
    ax.set_title(f"{readable(title)}  {score}" if title else score, fontsize=10)
    return ax


def induction_plane(found: InductionPlane, *, ax: Axes | None = None) -> Axes:
    """Draw every pair of heads, copying from left to right and matching from bottom to top.

    A dot is the larger the stronger the pair; the strongest are named.

    >>> from pathexpand import load
    >>> from pathexpand.circuits import induction
    >>> plane = induction.induction_plane(load("two-layer").checkpoint)
    >>> induction_plane(plane).texts[0].get_text()
    'L0H3, L1H0'
    """
    ax = new_axes() if ax is None else ax
    strengths = np.array([pair.strength for pair in found.pairs])
    most = float(strengths.max(initial=0)) or 1.0
    points = found.points
    ax.axhline(0, color="0.8", linewidth=0.7, zorder=0)
    ax.axvline(0, color="0.8", linewidth=0.7, zorder=0)
    ax.scatter(
        points[:, 0],
        points[:, 1],
        s=10 + 90 * strengths / most,
        facecolors="none",
        edgecolors="black",
        linewidths=0.8,
    )
    _name(ax, [pair for pair in found.pairs[:_NAMED] if pair.strength > _STRONG * most])
    ax.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), title=readable(found.model))
    ax.set_xlabel("copying: OV of the later head, Re Σλ / Σ|λ|")
    ax.set_ylabel("matching: K-composition term, Re Σλ / Σ|λ|")
    return ax


def _name(ax: Axes, pairs: list[InductionPair]) -> None:
    """Name pairs in a column to their left, none over another, each with a line to its dot."""
    left = min((pair.copying for pair in pairs), default=0.0) - 0.2
    height = 1.0 + _LINE
    for pair in sorted(pairs, key=lambda pair: -pair.matching):
        height = min(height - _LINE, pair.matching)
        ax.annotate(
            f"{pair.earlier}, {pair.later}",
            (pair.copying, pair.matching),
            xytext=(max(left, -0.7), height),
            ha="right",
            va="center",
            fontsize=8,
            arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "shrinkB": 5},
        )
