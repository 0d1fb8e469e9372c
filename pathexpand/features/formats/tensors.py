"""The tensors of one file, taken by name and shape and mapped into memory where they can be."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from pathexpand.errors import FileError
from pathexpand.features.rows import FeatureRows
from pathexpand.model.shown import cut
from pathexpand.model.tensors import Stored, read_file

Array = npt.NDArray[Any]
_LOCAL_HEADER = 30  # bytes of a zip member's own header, its name and extra field apart


class Tensors:
    """The tensors of a file, each of which is to be taken by what a format says of it."""

    def __init__(self, file: FilePath, found: Mapping[str, Stored | Array]) -> None:
        """Keep what a file holds; nothing is read."""
        self.file, self._found = file, found
        self._taken: set[str] = set()

    @classmethod
    def read(cls, file: FilePath) -> Tensors:
        """Read the names and shapes in a `.safetensors` or `.npz` file; raises `FileError`."""
        return cls(file, read_npz(file) if file.suffix == ".npz" else read_file(file))

    def __contains__(self, name: str) -> bool:
        """Say whether there is a tensor of that name."""
        return name in self._found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors."""
        return tuple(self._found)

    def shape(self, name: str) -> tuple[int, ...]:
        """Give the shape of a tensor."""
        return tuple(self._known(name).shape)

    def take(self, name: str, *shape: int | None) -> Array:
        """Give a tensor as it is stored, if it has that shape; None stands for any size."""
        stored = self._known(name)
        own = tuple(stored.shape)
        if len(own) != len(shape) or any(
            n not in (None, m) for n, m in zip(shape, own, strict=True)
        ):
            wanted = ", ".join("any" if n is None else str(n) for n in shape)
            self.refuse(f"{cut(name)} of shape ({wanted})", f"{own}")
        self._taken.add(name)
        return stored.open() if isinstance(stored, Stored) else stored

    def vector(self, name: str, *shape: int) -> Array:
        """Give a tensor of floats as float64."""
        stored = self.take(name, *shape)
        if stored.dtype.kind != "f" and stored.dtype.name != "bfloat16":
            self.refuse(f"floats in {cut(name)}", f"{stored.dtype}")
        return np.asarray(stored, dtype=np.float64)

    def optional(self, name: str, *shape: int) -> Array | None:
        """Give a tensor of floats as float64, or None if there is none of that name."""
        return self.vector(name, *shape) if name in self else None

    def number(self, name: str) -> float:
        """Give the one number of a tensor without axes or with one entry."""
        stored = self._known(name)
        array = self.take(name, *([1] * len(stored.shape)))
        value = float(np.asarray(array, dtype=np.float64).reshape(()))
        if not math.isfinite(value):
            self.refuse(f"a number in {cut(name)}", f"{value}")
        return value

    def positive(self, name: str) -> float:
        """Give the one number of a tensor, which can be divided by."""
        value = self.number(name)
        if value <= 0:
            self.refuse(f"a positive {cut(name)}", f"{value:g}")
        return value

    def count(self, name: str) -> int:
        """Give the one number of a tensor, which is whole."""
        value = self.number(name)
        if value != int(value):
            self.refuse(f"a whole number in {cut(name)}", f"{value:g}")
        return int(value)

    def rows(self, name: str, *shape: int | None, turned: bool = False) -> FeatureRows:
        """Give a matrix by feature; a `turned` one is stored with a column a feature."""
        stored = self.take(name, *shape)
        return FeatureRows(f"{name} in {self.file}", stored.T if turned else stored)

    def close(self, ignored: Iterable[str] = ()) -> None:
        """Refuse a file with tensors that the format says nothing of."""
        rest = sorted(set(self._found) - self._taken - set(ignored))
        if rest:
            more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
            self.refuse("no other tensors", ", ".join(map(cut, rest[:3])) + more)

    def refuse(self, wanted: str, got: str) -> NoReturn:
        """Raise a `FileError` about the file."""
        raise FileError(f"{self.file}", wanted=wanted, got=got)

    def _known(self, name: str) -> Stored | Array:
        if name not in self._found:
            self.refuse(f"a tensor {name}", ", ".join(map(cut, list(self._found)[:6])) or "none")
        return self._found[name]


def read_npz(file: FilePath) -> dict[str, Array]:
    """Map the arrays of an `.npz` file, or read those that are compressed; raises `FileError`."""
    try:
        with zipfile.ZipFile(file) as archive:
            return {
                each.filename.removesuffix(".npy"): _member(file, archive, each)
                for each in archive.infolist()
            }
    except FileNotFoundError:
        raise FileError(f"{file}", wanted="an .npz file", got="no such file") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        got = cut(str(error), 120)
        raise FileError(f"{file}", wanted="a whole .npz file of plain arrays", got=got) from None


def _member(file: FilePath, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Array:
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0}
        read[2, 0] = np.lib.format.read_array_header_2_0
        if version not in read:
            raise ValueError(f"{entry.filename} of format {version}")
        shape, turned, dtype = read[version](stream)
        begin = stream.tell()
        if dtype.hasobject:
            raise ValueError(f"{entry.filename} of Python objects, which are never loaded")
        if entry.compress_type != zipfile.ZIP_STORED or 0 in shape or not shape:
            rest = np.frombuffer(stream.read(), dtype)
            return rest.reshape(shape, order="F" if turned else "C")
    with file.open("rb") as raw:
        raw.seek(entry.header_offset)
        header = raw.read(_LOCAL_HEADER)
    lengths = np.frombuffer(header[26:30], "<u2")
    start = entry.header_offset + _LOCAL_HEADER + int(lengths.sum()) + begin
    mapped = np.memmap(file, dtype, "r", start, shape, "F" if turned else "C")
    return np.asarray(mapped)
