"""Named tensors in `.safetensors` files: the header is read and checked, numbers are mapped."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from pathexpand.errors import FileError, ModelError
from pathexpand.model.shown import cut, shown

FORMATS = "float64, float32, float16 or bfloat16"
INDEX = "model.safetensors.index.json"
CONVERSION = (
    'pickles are never loaded; convert it with: python -c "from transformers import '
    "AutoModelForCausalLM as M; M.from_pretrained('DIR').save_pretrained('NEW', "
    'safe_serialization=True)"'
)
_LONGEST_HEADER = 100_000_000  # bytes, the limit of the safetensors format itself
# Bools and whole numbers are read for buffers such as masks; as weights they are refused.
_DTYPES: dict[str, str] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "|b1"}
_DTYPES |= {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}
_BYTES = {kind: int(dtype[-1]) for kind, dtype in _DTYPES.items()}
_BYTES |= {"BF16": 2, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in a file: where its numbers lie. Nothing is read before `open`."""

    name: str
    file: FilePath
    kind: str
    shape: tuple[int, ...]
    start: int

    def open(self) -> npt.NDArray[Any]:
        """Map the numbers into memory, read-only, in the format they have in the file.

        The mapping ends with the last array that looks into it. Raises `ModelError` for a format
        that holds no plain numbers.
        """
        dtype = number_format(self)
        if math.prod(self.shape) == 0:
            return np.zeros(self.shape, dtype=dtype)
        try:
            mapped = np.memmap(self.file, dtype, "r", offset=self.start, shape=self.shape)
        except (OSError, ValueError) as error:  # changed since its header was read
            _refuse(self.file, str(error))
        return np.asarray(mapped)


def number_format(tensor: Stored) -> np.dtype[Any]:
    """Give the numpy dtype of a tensor's numbers; raises `ModelError` if there is none."""
    if tensor.kind == "BF16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    if tensor.kind not in _DTYPES:
        raise ModelError(f"tensor {cut(tensor.name)}", wanted=FORMATS, got=tensor.kind)
    return np.dtype(_DTYPES[tensor.kind])


def read_file(file: FilePath) -> dict[str, Stored]:
    """Read the header of a `.safetensors` file: every tensor by name.

    Raises `FileError` for a file that is absent, cut short or of another kind (a pickle is never
    opened), or whose header does not fit the file.
    """
    if file.suffix != ".safetensors":
        raise FileError(
            f"{file}",
            wanted="a .safetensors file",
            got=f"a {file.suffix or 'nameless'} file",
            remedy=CONVERSION if file.suffix in (".bin", ".pt", ".pth") else "",
        )
    header, begin, size = _header(file)
    spans, found = [], {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensor, stop = _entry(file, name, entry, begin)
        spans.append((tensor.start, stop, name))
        found[name] = tensor
    at = begin
    for start, stop, name in sorted(spans):
        if start != at:
            _refuse(file, f"numbers of {cut(name)} that do not begin where those before end")
        at = stop
    if at != size:
        _refuse(file, f"{size} bytes where its header tells of {at}")
    return found


def read_shards(index: FilePath) -> dict[str, Stored]:
    """Read the headers of all files that an index names: every tensor by name.

    Raises `FileError` for an index that is no index, and for files that do not hold what it says.
    """
    where = _weight_map(index)
    found: dict[str, Stored] = {}
    for shard in sorted(set(where.values())):
        file = index.parent / shard
        if not file.is_file():
            raise FileError(
                f"{index}", wanted=f"the file {cut(shard)} it names", got="no such file"
            )
        inside = read_file(file)
        absent = [name for name, each in where.items() if each == shard and name not in inside]
        if absent:
            more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            listed = ", ".join(map(cut, absent[:3])) + more
            raise FileError(
                f"{file}", wanted=f"{listed}, as {index.name} says", got="no such tensor"
            )
        found |= {name: each for name, each in inside.items() if where.get(name, shard) == shard}
    return found


def _weight_map(index: FilePath) -> dict[str, str]:
    try:
        raw = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{index}", wanted="an index as JSON", got=cut(str(error), 120)) from None
    where = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(where, dict) or not where:
        raise FileError(f"{index}", wanted='names and files under "weight_map"', got=shown(where))
    for shard in where.values():
        # A name with a folder in it could reach any file of the machine.
        plain = isinstance(shard, str) and FilePath(shard).name == shard and "\\" not in shard
        if not shard or not plain:
            raise FileError(f"{index}", wanted="names of files beside it", got=shown(shard))
    return where


def _header(file: FilePath) -> tuple[Mapping[str, Any], int, int]:
    """Give a file's header, where its numbers begin, and its size."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            first = stream.read(8)
            length = int.from_bytes(first, "little")
            if len(first) < 8:
                _refuse(file, f"{size} bytes")
            if length > _LONGEST_HEADER:
                _refuse(file, f"a header of {length} bytes, more than {_LONGEST_HEADER}")
            if length > size - 8:
                _refuse(file, f"{size} bytes with a header of {length}")
            text = stream.read(length)
    except FileNotFoundError:
        raise FileError(f"{file}", wanted="a .safetensors file", got="no such file") from None
    except OSError as error:
        _refuse(file, str(error.strerror))
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        _refuse(file, f"a header that is no JSON: {cut(str(error), 120)}")
    if not isinstance(header, dict):
        _refuse(file, f"a header that is a {type(header).__name__}")
    return header, 8 + length, size


def _entry(file: FilePath, name: str, entry: Any, begin: int) -> tuple[Stored, int]:
    """Check what a header says of one tensor; give it and where its numbers end."""
    fits = isinstance(entry, dict) and {"dtype", "shape", "data_offsets"} <= set(entry)
    if not fits or not isinstance(entry["dtype"], str):
        _refuse(file, f"a header that does not describe {cut(name)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    whole = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    if not whole or not all(type(n) is int and 0 <= n < 2**63 for n in (*shape, *offsets)):
        _refuse(file, f"a header with no shape or place for {cut(name)}")
    size = offsets[1] - offsets[0]
    if size < 0:
        _refuse(file, f"a header in which {cut(name)} ends before it begins")
    kind = entry["dtype"]
    if kind in _BYTES and size != math.prod(shape) * _BYTES[kind]:
        _refuse(file, f"a header that gives {cut(name)}, {kind} of shape {shape}, {size} bytes")
    return Stored(name, file, kind, tuple(shape), begin + offsets[0]), begin + offsets[1]


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name that stands there twice")
    return members


def _refuse(file: FilePath, got: str) -> NoReturn:
    raise FileError(f"{file}", wanted="a whole .safetensors file", got=got)
