"""Figures, made without any global state outside notebooks, and written whole or not at all."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from pathexpand.errors import FileError, PathExpandError
from pathexpand.model.shown import FILE_ROOM, cut
from pathexpand.progress import in_notebook
from pathexpand.writing import whole as whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
_DOTS = 150  # an inch
_SETTINGS: Any = {"svg.hashsalt": "pathexpand", "svg.fonttype": "path"}  # the same bytes every time


def check_file(name: str | FilePath) -> FilePath:
    """Refuse a picture that could not be written, before any work is done for it.

    Raises `FileError` for a name that ends in neither .png nor .svg and for a directory that does
    not exist, `PathExpandError` where matplotlib is not installed.

    >>> check_file("scores.png").suffix
    '.png'
    >>> check_file("scores.gif")
    Traceback (most recent call last):
    ...
    pathexpand.errors.FileError: scores.gif: wanted a name that ends in .png or .svg
    """
    file, written = FilePath(name), cut(str(name), FILE_ROOM)
    if file.suffix.lower() not in SUFFIXES:
        raise FileError(written, wanted="a name that ends in .png or .svg")
    if not file.absolute().parent.is_dir():
        raise FileError(f"{written}: cannot write", wanted="a directory that exists")
    if find_spec("matplotlib") is None:
        raise PathExpandError("plots", wanted="matplotlib", remedy="pip install 'pathexpand[plot]'")
    return file


def new_axes(*, width: float = 5.5, height: float = 4.5, count: int = 1, across: int = 3) -> Any:
    """Make a figure of its own, with one pair of axes or a list of them; sizes in inches, each.

    In a notebook it is one of pyplot's, so that it shows below the cell; elsewhere nothing but
    the axes holds it.

    >>> new_axes(width=2, height=2).figure.get_size_inches().tolist()
    [2.0, 2.0]
    """
    if find_spec("matplotlib") is None:
        raise PathExpandError("plots", wanted="matplotlib", remedy="pip install 'pathexpand[plot]'")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(count, across)
    rows = -(-count // columns)
    size = (width * columns, height * rows)
    if in_notebook():
        from matplotlib import pyplot

        figure = pyplot.figure(figsize=size, layout="constrained")
    else:
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(count)]
    return axes[0] if count == 1 else axes


def figure_of(ax: Axes) -> Figure:
    """Give the whole figure that axes stand in.

    >>> figure_of(new_axes()).axes[0].get_title()
    ''
    """
    figure: Any = ax.get_figure(root=True)
    return figure  # type: ignore[no-any-return]


def save(figure: Figure | Axes, file: str | FilePath) -> None:
    """Write a figure, or that of some axes, as PNG or SVG by the file's name, whole or not at all.

    Raises `FileError`.

    >>> save(new_axes(), "no such directory/scores.png")
    Traceback (most recent call last):
    ...
    pathexpand.errors.FileError: no such directory/scores.png: cannot write: wanted a directory that
    exists
    """
    target = check_file(file)
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Whole

    whole = figure if isinstance(figure, Whole) else figure_of(figure)
    drawn, suffix = BytesIO(), target.suffix.lower()[1:]
    metadata: dict[str, Any] = {"Date": None} if suffix == "svg" else {"Software": None}
    with rc_context(_SETTINGS):
        whole.savefig(drawn, format=suffix, dpi=_DOTS, metadata=metadata)
    with whole_file(target) as stream:
        stream.write(drawn.getvalue())
