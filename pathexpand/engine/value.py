"""The value of a path, worked back from the target to its source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenSource, FrozenSum
from pathexpand.symbolic import Head, Path

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Readout:
    """A linear reading of the last residual stream at one position.

    The reading is `stream[position] @ direction + constant`; `direction` is (d_model,).
    """

    position: int
    direction: Array
    constant: Any


@dataclass(frozen=True, slots=True, eq=False)
class Suffix:
    """The later part of a path: `row` (position,) and `vector` (d_model,).

    Completed by a source s it is worth `row @ s @ vector`.
    """

    row: Array
    vector: Array


def empty_suffix(frozen: FrozenSum, readout: Readout) -> Suffix:
    """Give the suffix that has passed no head: the readout itself."""
    row = np.zeros(frozen.positions, dtype=readout.direction.dtype)
    row[readout.position] = 1
    return Suffix(row, readout.direction)


def prepend(suffix: Suffix, frozen: FrozenSum, head: Head) -> Suffix:
    """Put an earlier head in front: the row moves by its pattern, the vector through W_V W_O."""
    layer = frozen.layers[head.layer]
    row = suffix.row @ layer.patterns[head.index]  # (query,) -> (key,)
    vector = layer.W_V[head.index] @ (layer.W_O[head.index] @ suffix.vector)  # (d_model,)
    return Suffix(row, vector)


def suffix_of(frozen: FrozenSum, readout: Readout, heads: Iterable[Head]) -> Suffix:
    """Give the suffix made of these heads, listed from early to late."""
    suffix = empty_suffix(frozen, readout)
    for head in reversed(tuple(heads)):
        suffix = prepend(suffix, frozen, head)
    return suffix


def completed(suffix: Suffix, source: FrozenSource) -> Array:
    """Give the worth of a suffix with a source in front, split by source position: (position,)."""
    out: Array = suffix.row * (source.values @ suffix.vector)
    return out


def path_value_by_token(frozen: FrozenSum, readout: Readout, path: Path) -> Array:
    """Give a path's value split by source position: (position,).

    A bias born in the logits belongs to no token; it is booked at the readout's own position.
    """
    check_path(frozen, path)
    if path.source == "b_U":
        split = np.zeros(frozen.positions, dtype=readout.direction.dtype)
        split[readout.position] = readout.constant
        return split
    source = next(each for each in frozen.sources if each.label == path.source)
    return completed(suffix_of(frozen, readout, path.components), source)


def path_value(frozen: FrozenSum, readout: Readout, path: Path) -> Any:
    """Give a path's value: the sum of its values by source position."""
    return path_value_by_token(frozen, readout, path).sum()


def path_stream(frozen: FrozenSum, position: int, path: Path) -> Array:
    """Give what a path adds to the last residual stream at one position: (d_model,).

    Worked forward, from source to stream; `path_value` works back. Together they are a check.
    """
    check_path(frozen, path)
    if path.source == "b_U":
        raise PathExpandError("path b_U", wanted="a path through the stream", got="a logit bias")
    source = next(each for each in frozen.sources if each.label == path.source)
    row = np.zeros(frozen.positions, dtype=source.values.dtype)
    row[position] = 1
    for head in reversed(path.components):
        row = row @ frozen.layers[head.layer].patterns[head.index]  # (query,) -> (key,)
    stream: Array = row @ source.values  # (d_model,)
    for head in path.components:
        layer = frozen.layers[head.layer]
        stream = (stream @ layer.W_V[head.index]) @ layer.W_O[head.index]  # (d_model,)
    return stream


def check_path(frozen: FrozenSum, path: Path) -> None:
    """Refuse a path that this sum does not have."""
    births = {each.label: each.boundary for each in frozen.sources}
    if path.source == "b_U" and frozen.has_unembed_bias:
        return
    if path.source not in births:
        known = ", ".join([*births, *(["b_U"] if frozen.has_unembed_bias else [])])
        raise PathExpandError(f"path {path}", wanted=f"a source among {known}", got=path.source)
    for head in path.components:
        if head.layer >= len(frozen.layers) or head.index >= len(frozen.layers[head.layer].heads):
            raise PathExpandError(f"path {path}", wanted="heads of the model", got=head.label)
    if path.components and path.components[0].layer < births[path.source]:
        raise PathExpandError(
            f"path {path}",
            wanted=f"heads of layer {births[path.source]} or later after {path.source}",
            got=path.components[0].label,
        )
