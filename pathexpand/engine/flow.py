"""What moves where along a path: its value, split by source position and by each step's moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from pathexpand.engine.value import (
    Readout,
    check_path,
    completed,
    empty_suffix,
    past,
    path_value_by_token,
    prepend,
)
from pathexpand.frozen import FrozenSum
from pathexpand.symbolic import Path

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """A path's value split in two ways that both sum to it.

    `by_token` (position,) says where it starts. `moves` holds for each component, from early to
    late, what it carries from a position to another: (position read at, position from). What
    arrives at a position in one step leaves it in the next.
    """

    by_token: Array
    moves: tuple[Array, ...]


def path_flow(frozen: FrozenSum, readout: Readout, path: Path) -> Flow:
    """Split a path's value by where it starts, and by what each component moves where.

    The stream comes forward to each component, and the functional of what follows comes back to it.

    >>> from pathexpand.api import load
    >>> run = load("two-layer").run("to be or not to be")
    >>> readout = run.target().readout(run.unembed, 6)
    >>> flow = path_flow(run.frozen, readout, Path.parse("embed > L0H3 > L1H0"))
    >>> [move.shape for move in flow.moves]
    [(7, 7), (7, 7)]
    """
    check_path(frozen, path)
    if path.source == frozen.constant:
        return Flow(path_value_by_token(frozen, readout, path), ())
    behind = [empty_suffix(frozen, readout)]
    for component in reversed(path.components):
        behind.append(prepend(behind[-1], frozen, component))
    source = next(each for each in frozen.sources if each.label == path.source)
    stream, boundary, moves = source.values, source.boundary, []
    for component, suffix in zip(path.components, behind[-2::-1], strict=True):
        stage, group, index = frozen.places[component]
        stream = past(frozen, stream, boundary, stage)
        later = suffix.at(frozen, stage + 1)
        moves.append(group.flow(later.rows, later.vectors, stream, index))
        stream, boundary = group.write(stream, index), stage + 1
    return Flow(completed(behind[-1], frozen, source), tuple(moves))
