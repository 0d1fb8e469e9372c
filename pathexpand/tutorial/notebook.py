"""The notebooks: which there are, and how they are copied out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path as FilePath

from pathexpand.errors import FileError
from pathexpand.model.shown import FILE_ROOM, cut
from pathexpand.writing import whole


@dataclass(frozen=True, slots=True)
class Notebook:
    """One notebook of the tutorial: its file's name, its title, and what it is about."""

    file: str
    title: str
    about: str

    @property
    def text(self) -> str:
        """The notebook as it is in its file, JSON without outputs."""
        return files("pathexpand.tutorial").joinpath(self.file).read_text(encoding="utf-8")


def notebooks() -> tuple[Notebook, ...]:
    """List the notebooks in order, each with the title and the first sentence that it gives itself.

    >>> [notebook.file for notebook in notebooks()][:2]
    ['1-zero-layers.ipynb', '2-one-layer.ipynb']
    """
    names = (each.name for each in files("pathexpand.tutorial").iterdir())
    return tuple(_read(name) for name in sorted(names) if name.endswith(".ipynb"))


def _read(name: str) -> Notebook:
    first = "".join(json.loads(Notebook(name, "", "").text)["cells"][0]["source"])
    title, about = first.split("\n\n")[:2]
    return Notebook(name, title.removeprefix("# "), " ".join(about.split()))


def copy_out(directory: str | FilePath, *, force: bool = False) -> tuple[FilePath, ...]:
    """Copy all notebooks into a directory, which is made if need be; give the files written.

    Nothing is written where one of them is there already, unless `force`; each is written whole or
    not at all. Raises `FileError`, also for a directory whose parent does not exist.

    >>> copy_out("no such directory/tutorial")
    Traceback (most recent call last):
    ...
    pathexpand.errors.FileError: no such directory/tutorial: cannot make the directory: No such file
    or directory
    """
    place, given = FilePath(directory), cut(str(directory), FILE_ROOM)
    if not str(directory).strip():
        raise FileError("tutorial", wanted="the name of a directory", got="an empty one")
    found = notebooks()
    try:
        if place.exists() and not place.is_dir():
            raise FileError(given, wanted="a directory", got="a file")
        _refuse_others(given, [place / each.file for each in found], force=force)
        place.mkdir(exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a name that no system takes
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"{given}: cannot make the directory: {reason}") from None
    for each in found:
        with whole(place / each.file) as stream:
            stream.write(each.text.encode("utf-8"))
    return tuple(place / each.file for each in found)


def _refuse_others(given: str, written: Sequence[FilePath], *, force: bool) -> None:
    """Refuse what would be lost, and what no file can take the place of."""
    there = [file for file in written if file.exists() or file.is_symlink()]
    folders = [file for file in there if file.is_dir()]
    if folders:
        raise FileError(given, wanted="files", got=f"a directory {folders[0].name}")
    if there and not force:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise FileError(
            given,
            wanted="none of the notebooks there yet",
            got=f"{there[0].name}{more}",
            remedy="--force replaces them, and what was written in them is lost",
        )
