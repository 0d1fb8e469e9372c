"""A graph in a file of our own: nothing is lost, and nothing in it is ever run.

The file is a `.safetensors` file. "graph" in it holds, as bytes of JSON, the nodes and the names;
the other tensors are the arrays, the weights by row with zeros left out.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path as FilePath
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from pathexpand.errors import FileError, PathExpandError
from pathexpand.features.graph import Graph
from pathexpand.features.replacement import Node
from pathexpand.model.shown import cut, shown
from pathexpand.model.tensors import Stored, read_file
from pathexpand.writing import whole

Array = npt.NDArray[Any]
_FORMAT = "pathexpand graph 1"
_SUFFIX = ".safetensors"
_NEEDED = {
    "feature": ("kind", "label", "layer", "position", "index", "activation", "value"),
    "error": ("kind", "label", "layer", "position"),
    "mlp": ("kind", "label", "layer", "position"),
    "token": ("kind", "label", "position"),
    "position": ("kind", "label", "position"),
    "constant": ("kind", "label"),
    "logit": ("kind", "label", "position", "value"),
}
_BY_NODE = ("logit_weights", "gap", "gap_bound", "remainder")
_PARTS = {"row_ends": "I64", "columns": "I32", "entries": "F64"} | dict.fromkeys(_BY_NODE, "F64")
_MEMBERS: dict[str, type] = {
    "kind": str,
    "label": str,
    "layer": int,
    "position": int,
    "index": int,
    "token": int,
    "activation": float,
    "value": float,
}


def save_graph(graph: Graph, file: str | FilePath) -> None:
    """Write a graph to a `.safetensors` file, whole or not at all; the run behind it stays behind.

    Raises `FileError` for another kind of name or where it cannot be written, and
    `PathExpandError` for numbers that are not finite.
    """
    place = _checked(file)
    arrays = {name: getattr(graph, name) for name in ("weights", *_BY_NODE)}
    for name, array in arrays.items():
        if array.dtype != np.float64 or not np.isfinite(array).all():
            raise PathExpandError(f"graph {name}", wanted="finite numbers in float64")
    head = {
        "format": _FORMAT,
        "model": graph.model,
        "prompt": list(graph.prompt),
        "fit": graph.fit,
        "nodes": [asdict(node) for node in graph.nodes],
    }
    try:
        text = json.dumps(head, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise PathExpandError("graph nodes", wanted="finite numbers") from None
    tensors = _sparse(graph.weights) | {name: arrays[name] for name in _BY_NODE}
    # Bytes come last: the numbers before them stay aligned.
    tensors["graph"] = np.frombuffer(text.encode("ascii"), np.uint8)
    _write_whole(place, tensors)


def load_graph(file: str | FilePath) -> Graph:
    """Read what `Graph.save` wrote, equal to the last bit; it has no run, so no `paths`.

    Raises `FileError` for a file that is not whole or holds something else.

    >>> load_graph("no such file.safetensors")
    Traceback (most recent call last):
    ...
    pathexpand.errors.FileError: no such file.safetensors: wanted a .safetensors file, got no such
    file
    """
    place = _checked(file)
    stored = read_file(place)
    if "graph" not in stored or stored["graph"].kind != "U8":
        _refuse(place, "a file of something else")
    head = _head(place, stored["graph"])
    length = len(head["prompt"])
    nodes = tuple(_node(place, number, each, length) for number, each in enumerate(head["nodes"]))
    arrays = {name: _array(place, stored, name) for name in _PARTS}
    if any(len(arrays[name]) != len(nodes) for name in ("row_ends", *_BY_NODE)):
        _refuse(place, "arrays of other lengths than its nodes")
    weights = _dense(place, arrays["row_ends"], arrays["columns"], arrays["entries"])
    return Graph(
        head["model"],
        tuple(head["prompt"]),
        nodes,
        weights,
        logit_weights=arrays["logit_weights"],
        gap=arrays["gap"],
        gap_bound=arrays["gap_bound"],
        remainder=arrays["remainder"],
        fit=head.get("fit", ""),
    )


def _checked(file: str | FilePath) -> FilePath:
    if not isinstance(file, str | FilePath):
        raise FileError("graph", wanted="the name of a file", got=shown(file))
    place = FilePath(file)
    if place.suffix != _SUFFIX:
        raise FileError(f"{place}", wanted=f"a name that ends in {_SUFFIX} for a graph")
    return place


def _sparse(weights: Array) -> dict[str, Array]:
    """Give the entries of a matrix that are not +0, row by row, and where each row ends."""
    bits = np.ascontiguousarray(weights).view(np.int64)  # by bits, so that -0 stays
    columns = [np.flatnonzero(row).astype(np.int32) for row in bits]
    entries = [row[at] for row, at in zip(weights, columns, strict=True)]
    none: list[Array] = [np.zeros(0, np.int32)]
    return {
        "row_ends": np.cumsum([len(at) for at in columns], dtype=np.int64),
        "columns": np.concatenate(columns or none),
        "entries": np.concatenate(entries or [np.zeros(0)]),
    }


def _dense(file: FilePath, ends: Array, columns: Array, entries: Array) -> Array:
    count = len(ends)
    sizes = np.diff(ends, prepend=0)
    fits = (sizes >= 0).all() and (int(ends[-1]) if count else 0) == len(columns) == len(entries)
    if not fits or not ((columns >= 0) & (columns < count)).all():
        _refuse(file, "weights between nodes that it has not")
    rows = np.repeat(np.arange(count), sizes)
    within = np.diff(columns) > 0
    if not (within | (np.diff(rows) > 0)).all():
        _refuse(file, "weights out of order")
    weights = np.zeros((count, count))
    weights[rows, columns] = entries
    return weights


def _array(file: FilePath, stored: dict[str, Stored], name: str) -> Array:
    """Give one array, in memory: the file may go."""
    tensor = stored.get(name)
    if tensor is None or tensor.kind != _PARTS[name] or len(tensor.shape) != 1:
        _refuse(file, f"no {name}" if tensor is None else f"{name} of another kind")
    array = np.array(tensor.open())
    if not np.isfinite(array).all():
        _refuse(file, f"{name} that are not finite")
    return array


def _head(file: FilePath, tensor: Stored) -> dict[str, Any]:
    try:
        head = json.loads(tensor.open().tobytes())
    except (ValueError, RecursionError) as error:
        _refuse(file, cut(str(error), 120))
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        _refuse(file, shown(head.get("format") if isinstance(head, dict) else head))
    texts = head.get("prompt")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        _refuse(file, "a prompt that is no text")
    if not isinstance(head.get("model"), str) or not isinstance(head.get("nodes"), list):
        _refuse(file, "no model or no nodes")
    if not isinstance(head.get("fit", ""), str):
        _refuse(file, "a fit that is no text")
    return head


def _node(file: FilePath, number: int, given: Any, length: int) -> Node:
    """Make a node of a prompt of some length; a member may be null where its kind may lack it."""
    if not isinstance(given, dict) or set(given) != set(_MEMBERS):
        _refuse(file, f"a node {number} with other members")
    needed = _NEEDED.get(given["kind"]) if isinstance(given["kind"], str) else None
    if needed is None:
        _refuse(file, f"a node that is {shown(given['kind'])}")
    for name, kind in _MEMBERS.items():
        value = given[name]
        if value is None and name not in needed:
            continue
        # Whole numbers count from 0; JSON as Python reads it may hold NaN.
        if type(value) is not kind or not (kind is str or _is_plain(value)):
            _refuse(file, f"{name} {shown(value)} of node {number}")
    if given["position"] is not None and given["position"] >= length:
        _refuse(file, f"a node {number} at position {given['position']} of {length}")
    return Node(**given)


def _is_plain(value: Any) -> bool:
    return value >= 0 if type(value) is int else math.isfinite(value)


def _refuse(file: FilePath, got: str) -> NoReturn:
    raise FileError(f"{file}", wanted="a graph written by pathexpand", got=got)


def _write_whole(file: FilePath, tensors: dict[str, Array]) -> None:
    with whole(file) as stream:
        stream.write(_file_header(tensors))
        for array in tensors.values():
            stream.write(np.ascontiguousarray(array).astype(_little(array), copy=False).data)


def _file_header(tensors: dict[str, Array]) -> bytes:
    """Say where each tensor lies, as `.safetensors` files do: 8 bytes of length, then JSON."""
    header: dict[str, Any] = {"__metadata__": {"format": _FORMAT}}
    at = 0
    for name, array in tensors.items():
        kind, end = _PARTS.get(name, "U8"), at + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _little(array: Array) -> np.dtype[Any]:
    return array.dtype.newbyteorder("<")
