"""The frozen sum: one run's sources and components, with all that is not linear held fixed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.frozen.group import Group, HeadGroup
from pathexpand.frozen.norm import Carry
from pathexpand.symbolic import Component, Network, Source

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class FrozenSource:
    """An array (position, d_model) born in the stream once `boundary` stages are passed."""

    label: str
    boundary: int
    values: Array


@dataclass(frozen=True, slots=True, eq=False)
class FrozenStage:
    """Components that all read the same stream and add to it.

    `carry` is what the stream itself passes on its way, None where it goes on as it is. All of a
    stage's components already write behind it.
    """

    groups: tuple[Group, ...]
    carry: Carry | None = None

    @property
    def components(self) -> tuple[Component, ...]:
        """The components, in order."""
        return tuple(each for group in self.groups for each in group.components)

    def past(self, reads: Array) -> Array:
        """Carry functionals (…, position, d_model) back past the stage, through no component."""
        return reads if self.carry is None else self.carry.pull(reads)

    def pull(self, reads: Array) -> Array:
        """Carry functionals (…, position, d_model) back past and through the stage."""
        out = self.past(reads)
        for group in self.groups:
            out = out + group.pull(reads)
        return out

    def until(self, size: int) -> FrozenStage:
        """Give the stage on the first positions."""
        return FrozenStage(
            tuple(group.until(size) for group in self.groups),
            None if self.carry is None else self.carry.until(size),
        )


@dataclass(frozen=True, slots=True, eq=False)
class FrozenSum:
    """A run as a sum of paths: sources pushed through every choice of later components.

    `mask` (position,) is true at real tokens. `streams[b]` (position, d_model) is the stream of
    the dense pass once b stages are passed; it measures rounding. `constant` labels what is born in
    the readout itself: b_U in the logits, b_Q or b_K in a score, or None.
    """

    sources: tuple[FrozenSource, ...]
    stages: tuple[FrozenStage, ...]
    streams: tuple[Array, ...]
    mask: npt.NDArray[np.bool_]
    constant: str | None
    places: dict[Component, tuple[int, Group, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Note where each component is: its stage, its group, and its index in the group."""
        places = {
            component: (number, group, index)
            for number, stage in enumerate(self.stages)
            for group in stage.groups
            for index, component in enumerate(group.components)
        }
        object.__setattr__(self, "places", places)

    @property
    def positions(self) -> int:
        """The number of positions."""
        return int(self.mask.size)

    @property
    def depth(self) -> int:
        """The number of stages."""
        return len(self.stages)

    def until(self, position: int) -> FrozenSum:
        """Give the same sum up to a position, if no earlier position reads a later one.

        Otherwise give the sum itself. Paths read at `position` are the same in both.
        """
        size = position + 1
        heads = [g for stage in self.stages for g in stage.groups if isinstance(g, HeadGroup)]
        if any(np.any(group.patterns[:, :size, size:]) for group in heads):
            return self
        return FrozenSum(
            tuple(replace(source, values=source.values[:size]) for source in self.sources),
            tuple(stage.until(size) for stage in self.stages),
            tuple(stream[:size] for stream in self.streams),
            self.mask[:size],
            self.constant,
        )

    def first(self, depth: int) -> FrozenSum:
        """Give the sum as it stands after the first stages."""
        return FrozenSum(
            tuple(source for source in self.sources if source.boundary <= depth),
            self.stages[:depth],
            self.streams[: depth + 1],
            self.mask,
            self.constant,
        )

    def network(self) -> Network:
        """Give the symbolic network whose terms are this sum's paths."""
        sources = [Source(each.label, each.boundary) for each in self.sources]
        if self.constant is not None:
            sources.append(Source(self.constant, None))
        return Network(
            stages=tuple(stage.components for stage in self.stages), sources=tuple(sources)
        )
