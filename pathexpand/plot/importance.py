"""Bars of how much paths of each kind change a model's loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pathexpand.plot.names import readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pathexpand.circuits.importance import Importance

_LEFT_OUT, _JOINED = "0.75", "0.35"  # shades of grey


def importance_bars(found: Importance, *, by: Any = None, ax: Axes | None = None) -> Axes:
    """Draw one bar a row: nats that the paths save, with standard errors where there are some.

    A dark bar is what joining saves (an order joins the one before, a layer or head the direct
    path), a light one what leaving out costs. Draws on `ax`, or a new figure's. Raises
    `PathExpandError` where matplotlib is not installed.

    >>> from pathexpand.circuits.importance import importance
    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> found = importance(read_checkpoint("two-layer"), ["to be or not to be"])
    >>> len(importance_bars(found, by="order").patches)
    3
    """
    bars = _bars(found, by)
    if ax is None:
        from pathexpand.plot.figure import new_axes

        ax = new_axes(height=1.2 + 0.24 * len(bars))
    places = [-number for number in range(len(bars))]  # the first on top
    for place, (_, saved, error, color) in zip(places, bars, strict=True):
        ax.barh(place, saved, xerr=error, color=color, height=0.8, ecolor="0.1", capsize=2)
    ax.set_yticks(places, [readable(name) for name, *_ in bars])
    ax.margins(y=0.01)
    ax.axvline(0, color="0.1", linewidth=0.8)
    ax.set_xlabel("nats a token (to the right: the paths help)")
    ax.set_title(f"Term importance: {readable(found.model)}, {int(found.predicted.sum()):,} tokens")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def _bars(found: Importance, by: Any) -> list[tuple[str, float, float | None, str]]:
    """Give each bar's name, the nats that the paths save, the error, and the colour."""
    bars = []
    names = {"order": "order ", "composition": "composition "}
    for term in found.terms(by):
        name = names.get(term.kind, "") + term.label
        if term.kind == "composition" and term.marginal is not None:
            bars.append((name, term.marginal.value, term.marginal.error, _LEFT_OUT))
        elif term.marginal is not None:
            bars.append((name, -term.marginal.value, term.marginal.error, _JOINED))
        if term.added is not None:
            bars.append((f"{name}, joining", -term.added.value, term.added.error, _JOINED))
        if term.removed is not None:
            bars.append((f"{name}, left out", term.removed.value, term.removed.error, _LEFT_OUT))
    return bars
