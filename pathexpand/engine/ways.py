"""How the states of a query lead through the components of a stage, group by group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pathexpand.frozen import FrozenSum, Group
from pathexpand.symbolic.query import Query


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """Components of one group that lead from one state of a query to another.

    Reading backward, `before` is the state behind them and `after` the one in front. `which` are
    their indices in the group, None for all; `number` is the group's place in its stage.
    """

    group: Group
    number: int
    before: int
    after: int
    which: tuple[int, ...] | None

    @property
    def count(self) -> int:
        """The number of components."""
        return len(self.group.components) if self.which is None else len(self.which)


def ways(frozen: FrozenSum, query: Query, stage: int) -> Iterator[Way]:
    """Yield every way through a stage."""
    groups = frozen.stages[stage].groups
    for before in range(query.states):
        after, start = query.after(before, stage), 0
        for number, group in enumerate(groups):
            size = len(group.components)
            own = after[start : start + size]
            start += size
            for state in sorted({each for each in own if each is not None}):
                which = tuple(n for n, each in enumerate(own) if each == state)
                yield Way(group, number, before, state, None if len(which) == size else which)
