"""Names of tokens and models as matplotlib can draw them: no formula, no missing letter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from pathexpand.table.shorten import shorten_end, shorten_token
from pathexpand.table.spelling import visible

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.ft2font import FT2Font

_MOST = 64  # names that do not run into each other along an axis
_ROOM = 14  # letters of a token's name
_SIZE = 7  # points


def readable(text: str, *, family: str | None = None) -> str:
    r"""Write a text so that a font can show it: letters it lacks as escapes.

    A dollar starts no formula. Without a `family` it is matplotlib's own.

    >>> print(readable("caf\u00e9 \U0001f600 $x$"))
    café \U0001f600 \$x\$
    """
    return _drawable(text, family).replace("$", r"\$")


def name_tokens(
    axis: Axis,
    texts: Sequence[str],
    *,
    ids: Sequence[int] | None = None,
    numbered: bool = False,
) -> None:
    """Name tokens along an axis, with their positions if `numbered`; of very many, only some.

    The `ids` are shown of those whose texts are cut.

    >>> from pathexpand.plot.figure import new_axes
    >>> ax = new_axes()
    >>> name_tokens(ax.yaxis, ["' to'", "' be'"], numbered=True)
    >>> [each.get_text() for each in ax.get_yticklabels()]
    ["' to' 0", "' be' 1"]
    """
    from matplotlib.axis import XAxis

    step = max(-(-len(texts) // _MOST), 1)
    places = range(0, len(texts), step)
    names = [_cut(texts[n], None if ids is None else ids[n]) for n in places]
    if numbered:
        names = [f"{name} {n}" for name, n in zip(names, places, strict=True)]
    axis.set_ticks(places, labels=names, fontsize=_SIZE, family="monospace")
    if isinstance(axis, XAxis):
        axis.set_tick_params(rotation=90)


def _cut(text: str, token: int | None) -> str:
    drawn = _drawable(text, "monospace")
    cut = shorten_end(drawn, _ROOM) if token is None else shorten_token(drawn, token, _ROOM)
    return cut.replace("$", r"\$")


def _drawable(text: str, family: str | None) -> str:
    return "".join(
        each if each.isascii() or _has(family, each) else visible(each, ascii=True)
        for each in visible(text)
    )


def _has(family: str | None, letter: str) -> bool:
    from matplotlib.font_manager import FontProperties, findfont

    file = str(findfont(FontProperties(family=family)))
    return bool(_font(file).get_char_index(ord(letter)))


@cache
def _font(file: str) -> FT2Font:
    from matplotlib.ft2font import FT2Font as Font

    return Font(file)
