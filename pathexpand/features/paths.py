"""An edge of a graph as the sum of the paths that carry it: through heads, and through skips."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.ranking import rank
from pathexpand.engine.search import Budget
from pathexpand.engine.total import frozen_streams
from pathexpand.engine.value import Readout, empty_suffix
from pathexpand.errors import PathExpandError
from pathexpand.features.graph import Graph, Logits, feature_readers, logit_readers, name_of
from pathexpand.features.graph_table import a_kind, check_top
from pathexpand.features.replacement import Node, Readers, Replacement
from pathexpand.frozen import FrozenSource, FrozenStage, FrozenSum
from pathexpand.symbolic import Path
from pathexpand.symbolic.query import everything
from pathexpand.table import AnalysisTable, Field, Summary
from pathexpand.table.abstract import Tabled

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class EdgePath:
    """One path of an edge: the heads and skips it passes through, and what it brings."""

    components: tuple[str, ...]
    value: float
    written_at: int | None = None

    @property
    def label(self) -> str:
        """The components, or "direct" where there are none, and the layer it was written at.

        The layer is named where a feature writes at several.
        """
        label = " > ".join(self.components) or "direct"
        return label if self.written_at is None else f"L{self.written_at}M > {label}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EdgePaths(Tabled):
    """The largest paths of an edge, closed by what is not listed.

    `by_last` parts the edge by the last head or skip of its paths: "direct" has none.

    `weight` is the edge in the graph. Every unlisted path is at most `bound` in size; `count` is
    how many there are in all.
    """

    source: str
    target: str
    weight: float
    paths: tuple[EdgePath, ...]
    remainder: float
    bound: float
    certified: bool
    count: int
    gap_bound: float
    by_last: dict[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """How far the paths are off the edge."""
        return self.weight - sum(path.value for path in self.paths) - self.remainder

    @property
    def closes(self) -> bool:
        """Whether rounding explains the gap."""
        return abs(self.gap) <= self.gap_bound

    def _claim(self, left: int) -> str:
        if not self.count:
            return f"No path leads from {self.source} to {self.target}."
        if not self.weight and not self.bound and not any(path.value for path in self.paths):
            return f"No path brings anything from {self.source} to {self.target}."
        if left:
            several = f"each of the {left:,} unlisted paths"
            unlisted = "the unlisted path" if left == 1 else several
            said = f"{unlisted} has |value| of at most {self.bound:.4g}."
            return f"{'Certified' if self.certified else 'Stopped early'}: {said}"
        return "Complete: no path is left out."

    def table(self) -> AnalysisTable:
        """Tabulate the paths with the edge they add up to."""
        running, rows = 0.0, []
        for rank_, path in enumerate(self.paths, start=1):
            running += path.value
            rows.append((rank_, path.label, path.value, share(path.value, self.weight), running))
        left = self.count - len(self.paths)
        return AnalysisTable(
            "edge paths",
            (("source", self.source), ("target", self.target)),
            (
                Field("rank", "count"),
                Field("path", "text"),
                Field("value", "number"),
                Field("share", "share", 1),
                Field("running", "number", 2),
            ),
            tuple(rows),
            (
                Summary("listed", running, f"{len(self.paths):,} paths"),
                Summary("remainder", self.remainder, f"{left:,} paths"),
                Summary("edge", self.weight, "its weight in the graph"),
                Summary("gap", self.gap, f"rounding allows {self.gap_bound:.1e}"),
            ),
            (self._claim(left),),
            self.closes and self.certified,
        )


def edge_paths(
    graph: Graph,
    source: str | int,
    target: str | int,
    *,
    top: int = 10,
    budget: Budget | None = None,
) -> EdgePaths:
    """Rank the paths of heads and skips that carry an edge from a source to a target.

    Raises `PathExpandError` for a negative `top`, for nodes that there are not, for a target that
    reads nothing, and for a graph that was read from a file and has no run any more.
    """
    check_top(top)
    start, end = graph.find(source), graph.find(target)
    made, node, reader = graph.made, graph.nodes[start], graph.nodes[end]
    subject = f"edge from {name_of(node)} to {name_of(reader)}"
    if made is None:
        wanted = "a graph of a run"
        raise PathExpandError(subject, wanted=wanted, got="one read from a file")
    if reader.kind not in ("feature", "logit"):
        wanted = "a feature or a logit as its target"
        raise PathExpandError(subject, wanted=wanted, got=a_kind(reader))
    column = _column(made, node)
    readers = _readers(graph, made, reader)
    names = name_of(node), name_of(reader)
    if column is None:  # a constant of the target itself
        weight = float(graph.weights[end, start])
        own = (EdgePath((), weight),) if weight else ()
        return EdgePaths(*names, weight, own, 0.0, 0.0, True, len(own), 0.0, {"direct": weight})
    frozen = sum_from(made, column, readers.boundary)
    if frozen is None:
        return EdgePaths(*names, 0.0, (), 0.0, 0.0, True, 0, 0.0)
    readout = Readout(int(readers.positions[0]), readers.directions[0], 0.0)
    query = everything(frozen.network())
    found = rank(frozen, readout, query, top=top, budget=budget)
    last = by_last(frozen, readout)
    return EdgePaths(
        *names,
        # Where pruning has taken the edge away, the run still has it.
        float(graph.weights[end, start] or made.edges(readers)[0, column]),
        tuple(_path(row.path, row.value, len(frozen.sources) > 1) for row in found.rows),
        found.remainder,
        found.found.bound,
        found.found.certified,
        query.count(),
        2 * (found.rounding + float(made.rounding(readers)[0])),
        last,
    )


def share(part: float, whole: float) -> float | None:
    """Give a share; of nothing only nothing has one.

    >>> share(0.0, -2.0), share(1.0, 4.0), share(0.0, 0.0), share(1.0, 0.0)
    (0.0, 0.25, 0.0, None)
    """
    if not part:
        return 0.0
    return part / whole if whole else None


def _path(path: Path, value: float, several: bool) -> EdgePath:
    """Give a path of an edge, with the layer where it was written if there are several."""
    layer = re.match(r"L(\d+)", path.source) if several else None
    written = None if layer is None else int(layer[1])
    return EdgePath(tuple(each.label for each in path.components), value, written)


def by_last(frozen: FrozenSum, readout: Readout) -> dict[str, float]:
    """Part a sum by the last component of its paths, "direct" being those without any.

    Summed over the heads of a layer, these are what a layer's heads bring; all add up to the sum.
    """
    streams = frozen_streams(frozen)
    suffix = empty_suffix(frozen, readout)
    read: Array = suffix.rows.T @ suffix.vectors  # (position, d_model)
    found: dict[str, float] = {}
    direct = 0.0
    for boundary in reversed(range(frozen.depth + 1)):
        for source in (each for each in frozen.sources if each.boundary == boundary):
            direct += float((read * source.values).sum())
        if boundary:
            stage = frozen.stages[boundary - 1]
            for group in stage.groups:
                worth = group.worth(read, streams[boundary - 1])
                found |= {c.label: float(v) for c, v in zip(group.components, worth, strict=True)}
            read = stage.past(read)
    return {"direct": direct, **dict(sorted(found.items()))}


def sum_from(made: Replacement, column: int, boundary: int) -> FrozenSum | None:
    """Give the frozen sum of what one column is born with, up to a boundary.

    Where an SAE stands for the stream, it begins there. None if nothing gets that far.
    """
    cuts = [n for n in range(boundary) if made.stages[n] is None]
    first = cuts[-1] + 1 if cuts else 0
    stages: list[FrozenStage] = []
    values, streams = [_born(made, column, first)], [made.sizes[first][0]]
    for at in range(first + 1, boundary + 1):
        stage = made.stages[at - 1]
        assert stage is not None  # the last cut is behind
        if not stage.groups and stage.carry is None:  # nothing happens there
            values[-1], streams[-1] = values[-1] + _born(made, column, at), made.sizes[at][0]
            continue
        stages.append(stage)
        values.append(_born(made, column, at))
        streams.append(made.sizes[at][0])
    sources = tuple(
        FrozenSource(_label(stages, place), place, array)
        for place, array in enumerate(values)
        if array.any()
    )
    if not sources:
        return None
    return FrozenSum(sources, tuple(stages), tuple(streams), made.run.mask[made.row], None)


def _born(made: Replacement, column: int, boundary: int) -> Array:
    """Give what one column is born with at a boundary: (position, d_model)."""
    values = np.zeros((made.positions, made.run.residual[0].shape[2]))
    for born in made.born[boundary]:
        own = born.columns == column
        np.add.at(values, born.positions[own], born.vectors[own])
    return values


def _label(stages: Sequence[FrozenStage], boundary: int) -> str:
    """Give a label under which something may be born at a boundary.

    Only its place matters: paths of an edge all start at one node.
    """
    if not boundary:
        return "embed"
    layers = [stage.components[0].layer for stage in stages[:boundary] if stage.components]
    behind = stages[boundary - 1].components
    if not layers:
        return "pos"  # the only label that may be born anywhere
    alone = bool(behind) and behind[0].rank == 0 and not any(c.rank for c in behind)
    return f"L{layers[-1]}{'bias' if alone and _is_next(stages, boundary) else 'Mbias'}"


def _is_next(stages: Sequence[FrozenStage], boundary: int) -> bool:
    """Say whether the MLP of the same layer comes right behind a boundary."""
    if boundary >= len(stages) or not stages[boundary].components:
        return False
    return stages[boundary].components[0].layer == stages[boundary - 1].components[0].layer


def _column(made: Replacement, node: Node) -> int | None:
    for number, each in enumerate(made.nodes):
        if each == node:
            return number
    return None


def _readers(graph: Graph, made: Replacement, node: Node) -> Readers:
    """Say what one target reads."""
    if node.kind == "feature":
        assert node.layer is not None and node.position is not None and node.index is not None
        unit = made.unit(node.layer)
        assert unit is not None  # a feature is of a unit
        place, feature = np.array([node.position]), np.array([node.index])
        return feature_readers(made, unit, place, feature)
    assert graph.unembed is not None and node.position is not None and node.token is not None
    one = Logits(np.array([node.token]), np.ones(1))
    return logit_readers(made, graph.unembed, one, node.position)[0]
