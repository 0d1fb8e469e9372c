"""Read named tensors from a `.safetensors` file."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import FileError, ModelError
from pathexpand.model.shown import cut

FORMATS = "float64, float32, float16 or bfloat16"
# Bools and whole numbers are read for buffers such as masks; as weights they are refused.
_DTYPES: dict[str, str] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1"}
_DTYPES |= {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}


def read_tensors(file: FilePath) -> dict[str, npt.NDArray[Any]]:
    """Read every tensor of a `.safetensors` file, bfloat16 included, as arrays.

    Raises `FileError` for a file that is absent, cut short or of another kind (a pickle is never
    opened), and `ModelError` for a number format that holds no plain numbers.
    """
    if file.suffix != ".safetensors":
        raise FileError(
            f"{file}",
            wanted="a .safetensors file",
            got=f"a {file.suffix or 'nameless'} file",
            remedy="save the weights with safetensors; pickles are never loaded",
        )
    from safetensors import SafetensorError, deserialize

    try:
        entries = deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        raise FileError(f"{file}", wanted="a .safetensors file", got="no such file") from None
    except (OSError, SafetensorError) as error:
        raise FileError(f"{file}", wanted="a whole .safetensors file", got=str(error)) from None
    return {name: _array(name, entry) for name, entry in entries}


def _array(name: str, entry: dict[str, Any]) -> npt.NDArray[Any]:
    kind = entry["dtype"]
    if kind not in _DTYPES:
        raise ModelError(f"tensor {cut(name)}", wanted=FORMATS, got=str(kind))
    flat = np.frombuffer(entry["data"], dtype=_DTYPES[kind])
    if kind == "BF16":  # the upper half of a float32
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.reshape(entry["shape"])
