"""The value of a path, worked back from the target to its source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenSource, FrozenSum
from pathexpand.symbolic import Component, Path

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Readout:
    """A linear reading of the last residual stream at one position, or at several.

    The reading is `stream[position] @ direction + constant`; `direction` is (d_model,). `also` are
    other positions and the directions in which they are read besides.
    """

    position: int
    direction: Array
    constant: Any
    also: tuple[tuple[int, Array], ...] = ()

    @property
    def last(self) -> int:
        """The last position that is read."""
        return max(self.position, *(position for position, _ in self.also), 0)


@dataclass(frozen=True, slots=True, eq=False)
class Suffix:
    """The later part of a path, as a functional on the stream once `boundary` stages are passed.

    It is Σ row ⊗ vector over its pieces: `rows` (piece, position), `vectors` (piece, d_model).
    There is one piece until an MLP taken whole stands in it. Completed by a source s it is worth
    Σ row @ s @ vector.
    """

    boundary: int
    rows: Array
    vectors: Array

    def at(self, frozen: FrozenSum, boundary: int) -> Suffix:
        """Carry it back to an earlier boundary, through no component."""
        rows, vectors = self.rows, self.vectors
        for stage in reversed(frozen.stages[boundary : self.boundary]):
            if stage.carry is not None:
                rows, vectors = stage.carry.move(rows, vectors)
        return Suffix(boundary, rows, vectors)


def empty_suffix(frozen: FrozenSum, readout: Readout) -> Suffix:
    """Give the suffix that has passed no component: the readout itself."""
    ends = ((readout.position, readout.direction), *readout.also)
    rows = np.zeros((len(ends), frozen.positions), dtype=readout.direction.dtype)
    for row, (position, _) in zip(rows, ends, strict=True):
        row[position] = 1
    return Suffix(frozen.depth, rows, np.stack([direction for _, direction in ends]))


def prepend(suffix: Suffix, frozen: FrozenSum, component: Component) -> Suffix:
    """Put an earlier component in front: rows move by its positions, vectors by its linear map."""
    stage, group, index = frozen.places[component]
    behind = suffix.at(frozen, stage + 1)
    return Suffix(stage, *group.move(behind.rows, behind.vectors, index))


def suffix_of(frozen: FrozenSum, readout: Readout, components: Iterable[Component]) -> Suffix:
    """Give the suffix made of these components, listed from early to late."""
    suffix = empty_suffix(frozen, readout)
    for component in reversed(tuple(components)):
        suffix = prepend(suffix, frozen, component)
    return suffix


def completed(suffix: Suffix, frozen: FrozenSum, source: FrozenSource) -> Array:
    """Give the worth of a suffix with a source in front, split by source position: (position,)."""
    near = suffix.at(frozen, source.boundary)
    out: Array = (near.rows * (near.vectors @ source.values.T)).sum(axis=0)
    return out


@np.errstate(over="ignore", invalid="ignore")
def path_value_by_token(frozen: FrozenSum, readout: Readout, path: Path) -> Array:
    """Give a path's value split by source position: (position,).

    A bias born in the logits belongs to no token; it is booked at the readout's own position.
    """
    check_path(frozen, path)
    if path.source == frozen.constant:
        split = np.zeros(frozen.positions, dtype=readout.direction.dtype)
        split[readout.position] = readout.constant
        return split
    source = next(each for each in frozen.sources if each.label == path.source)
    return completed(suffix_of(frozen, readout, path.components), frozen, source)


def path_value(frozen: FrozenSum, readout: Readout, path: Path) -> Any:
    """Give a path's value: the sum of its values by source position."""
    return path_value_by_token(frozen, readout, path).sum()


def path_stream(frozen: FrozenSum, position: int, path: Path) -> Array:
    """Give what a path adds to the last residual stream at one position: (d_model,).

    Worked forward, from source to stream; `path_value` works back. Together they are a check.
    """
    check_path(frozen, path)
    if path.source == frozen.constant:
        wanted = "a path through the stream"
        raise PathExpandError(f"path {path}", wanted=wanted, got="a constant of the readout")
    source = next(each for each in frozen.sources if each.label == path.source)
    stream, boundary = source.values, source.boundary
    for component in path.components:
        stage, group, index = frozen.places[component]
        stream = group.write(past(frozen, stream, boundary, stage), index)
        boundary = stage + 1
    out: Array = past(frozen, stream, boundary, frozen.depth)[position]
    return out


def past(frozen: FrozenSum, stream: Array, boundary: int, end: int) -> Array:
    """Carry a stream forward from one boundary to another, through no component."""
    for stage in frozen.stages[boundary:end]:
        if stage.carry is not None:
            stream = stage.carry.push(stream)
    return stream


def check_path(frozen: FrozenSum, path: Path) -> None:
    """Refuse a path that this sum does not have."""
    births = {each.label: each.boundary for each in frozen.sources}
    if path.source == frozen.constant:
        return
    if path.source not in births:
        known = ", ".join([*births, *([frozen.constant] if frozen.constant else [])])
        raise PathExpandError(f"path {path}", wanted=f"a source among {known}", got=path.source)
    boundary, before = births[path.source], path.source
    for component in path.components:
        if component not in frozen.places:
            raise PathExpandError(
                f"path {path}", wanted="components of the model", got=component.label
            )
        stage = frozen.places[component][0]
        if stage < boundary:
            raise PathExpandError(
                f"path {path}", wanted=f"what reads {before}", got=component.label
            )
        boundary, before = stage + 1, component.label
