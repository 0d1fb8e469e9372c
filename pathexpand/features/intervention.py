"""Interventions: scale or remove features, heads and single paths, and see what moves.

`frozen_effect` and `linear_effect` hold patterns, norm scales, which features are on, errors and
MLPs without units as they were: the first holds all other features' activations too, the second
lets each feature that is on move with what it reads. In both a change is pushed forward through
the run, no graph is asked. `rerun` makes the change in a dense pass of the model itself, where
everything is worked out again, and says how far the two predictions were off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.wiring import parse_head
from pathexpand.errors import PathExpandError
from pathexpand.features.graph import (
    Attribution,
    Graph,
    Logits,
    feature_readers,
    logit_readers,
    name_of,
)
from pathexpand.features.graph_table import check_top
from pathexpand.features.replacement import Node, Readers, Replacement, reading_norm
from pathexpand.features.unit import Unit
from pathexpand.frozen import HeadGroup
from pathexpand.frozen.freeze import per_head
from pathexpand.frozen.norm import through
from pathexpand.model.forward import Forward, final_logits, forward
from pathexpand.model.norm import normed
from pathexpand.model.parts import Block
from pathexpand.model.shown import shown
from pathexpand.symbolic import Head
from pathexpand.symbolic.component import NUMBER
from pathexpand.table import AnalysisTable, Field, Summary
from pathexpand.table.abstract import Tabled

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.intp]
Mode = Literal["held", "linear"]
_FEATURE = re.compile(rf"L{NUMBER}F{NUMBER}(?:@{NUMBER})?", re.ASCII)
_MODES = {
    "held": "All other features hold their activations: this is the direct effect.",
    "linear": "Features that are on move with what they read; none goes on or off.",
}


# --- changes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FeatureChange:
    """A feature held at a factor times its activation, at one position or at all of them.

    `feature` is "L3F17@4" or, for all positions, "L3F17"; a factor of 0 removes it.

    >>> str(FeatureChange("L3F17@4", 0))
    'L3F17@4 × 0'
    """

    feature: str
    factor: float

    def __post_init__(self) -> None:
        """Refuse what is no name of a feature, and no factor."""
        if not isinstance(self.feature, str) or not _FEATURE.fullmatch(self.feature):
            wanted = "a name such as L3F17@4, or L3F17 for all positions"
            raise PathExpandError("feature", wanted=wanted, got=shown(self.feature))
        _check_factor(self.feature, self.factor)

    @property
    def place(self) -> tuple[int, int, int | None]:
        """The layer, the feature's index, and the position if there is one."""
        match = _FEATURE.fullmatch(self.feature)
        assert match is not None  # checked on construction
        layer, index, position = match.groups()
        return int(layer), int(index), None if position is None else int(position)

    def __str__(self) -> str:
        """Say what is changed, and by how much."""
        return f"{self.feature} × {self.factor:g}"


@dataclass(frozen=True, slots=True)
class HeadChange:
    """A head whose output is multiplied by a factor, at some positions or at all of them.

    Its output is what its own W_O makes of the values it mixes, b_V among them and b_O not;
    `positions` are those of the query.

    >>> str(HeadChange("L1H2", 0.5, (3, 4)))
    'L1H2 at 3, 4 × 0.5'
    """

    head: str | Head
    factor: float
    positions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what is no head, and no factor."""
        own = self.head if isinstance(self.head, Head) else Head.parse(self.head)
        object.__setattr__(self, "head", own)
        _check_factor(own.label, self.factor)
        if self.positions is not None:
            places = self.positions
            if isinstance(places, str) or not isinstance(places, Iterable) or not tuple(places):
                wanted = "None for all, or some such as (3, 4)"
                raise PathExpandError(f"{own.label} positions", wanted=wanted, got=shown(places))
            object.__setattr__(self, "positions", tuple(places))

    def __str__(self) -> str:
        """Say what is changed, where, and by how much."""
        at = "" if self.positions is None else f" at {', '.join(map(str, self.positions))}"
        return f"{self.head}{at} × {self.factor:g}"


@dataclass(frozen=True, slots=True)
class PathChange:
    """One path of an edge, its value in the run multiplied by a factor.

    It goes from a node such as "L0F3@2" through heads and skips ("L1H2", "L2M"), past all that is
    not named, to a feature or logit. It alone changes: the target reads the rest as it was. What a
    source writes in several layers counts where all of the path's components stand behind it.

    >>> str(PathChange("L0F3@2", ("L1H2",), "L2F5@4", 0))
    'L0F3@2 > L1H2 > L2F5@4 × 0'
    """

    source: str
    components: tuple[str, ...]
    target: str
    factor: float

    def __post_init__(self) -> None:
        """Refuse components that are no sequence of labels, and what is no factor."""
        if isinstance(self.components, str) or not isinstance(self.components, Sequence):
            wanted = 'a sequence of labels, such as ("L0H1", "L1H2")'
            raise PathExpandError("components", wanted=wanted, got=shown(self.components))
        for end, name in (("source", self.source), ("target", self.target)):
            if not isinstance(name, str):
                raise PathExpandError(end, wanted="a name such as L3F17@4", got=shown(name))
        object.__setattr__(self, "components", tuple(map(str, self.components)))
        _check_factor(f"path from {self.source}", self.factor)

    def __str__(self) -> str:
        """Say which path is changed, and by how much."""
        return f"{' > '.join((self.source, *self.components, self.target))} × {self.factor:g}"


Change = FeatureChange | HeadChange | PathChange
Given = Graph | Attribution | Replacement
"""What is changed; logits are those of the first two, the second holds no weights."""


def _check_factor(subject: str, factor: object) -> None:
    number = isinstance(factor, int | float | np.number) and not isinstance(factor, bool)
    if not number or not np.isfinite(float(factor)):  # type: ignore[arg-type]
        raise PathExpandError(subject, wanted="a finite factor", got=shown(factor))


# --- what comes of them --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Effect(Tabled):
    """How far changes move what is read, with the rest held fixed.

    `nodes` are all features that are on, then the graph's logits; `before` and `change` (node,) are
    what each read in the run, and what is added to it.
    """

    mode: Mode
    changes: tuple[str, ...]
    nodes: tuple[Node, ...]
    before: Array
    change: Array

    def of(self, name: str) -> float:
        """Give the change of one node, by its name such as "L3F17@4"."""
        return float(self.change[_numbered(self.nodes, name)])

    def table(self, top: int = 10) -> AnalysisTable:
        """Tabulate the nodes that move most, and every logit."""
        check_top(top)
        order = np.argsort(-abs(self.change), kind="stable")
        order = order[self.change[order] != 0]
        kinds = np.array([node.kind for node in self.nodes])
        features = order[kinds[order] == "feature"]
        listed = [*features[:top], *np.flatnonzero(kinds == "logit")]
        rows = tuple(
            (
                name_of(self.nodes[n]),
                float(self.before[n]),
                float(self.change[n]),
                float(self.before[n] + self.change[n]),
            )
            for n in listed
        )
        return AnalysisTable(
            f"frozen effect, {self.mode}",
            tuple(("change", each) for each in self.changes),
            (
                Field("node", "text"),
                Field("before", "number", 1),
                Field("change", "number"),
                Field("after", "number", 2),
            ),
            rows,
            (
                Summary(
                    "features that move",
                    None,
                    f"{len(features):,}, {min(top, len(features))} listed",
                ),
            ),
            (
                "Patterns, norm scales, which features are on, and errors are held fixed.",
                _MODES[self.mode],
            ),
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rerun(Tabled):
    """What changes do to the logits in a pass in which everything is worked out again.

    `nodes` are the graph's logits, each less the vocabulary mean, before a soft cap: `before`
    (node,) in the run, `held` and `linear` (node,) how the two frozen predictions move it, `change`
    (node,) how the pass moved it. `switched_on` and `switched_off` count the features that the pass
    turned on or off, of `on` that were on. `run` is the pass.
    """

    changes: tuple[str, ...]
    nodes: tuple[Node, ...]
    before: Array
    held: Array
    linear: Array
    change: Array
    switched_on: int
    switched_off: int
    on: int
    run: Forward

    @property
    def after(self) -> Array:
        """The logits of the pass: (node,)."""
        out: Array = self.before + self.change
        return out

    @property
    def difference(self) -> Array:
        """The pass's change less the one that `linear` predicted: (node,)."""
        out: Array = self.change - self.linear
        return out

    def table(self) -> AnalysisTable:
        """Tabulate the logits with both predictions and what the pass gave."""
        columns = (self.before, self.held, self.linear, self.change, self.difference)
        rows = tuple(
            (node.label, node.token, *map(float, numbers))
            for node, *numbers in zip(self.nodes, *columns, strict=True)
        )
        size = float(abs(self.change).max(initial=0.0))
        return AnalysisTable(
            "intervention",
            tuple(("change", each) for each in self.changes),
            (
                Field("token", "token"),
                Field("id", "count", 2),
                Field("before", "number", 1),
                Field("held", "number"),
                Field("linear", "number"),
                Field("rerun", "number"),
                Field("difference", "number"),
            ),
            rows,
            (
                Summary("largest change", size, "of the rerun"),
                Summary("held is off by", float(abs(self.change - self.held).max(initial=0.0))),
                Summary("linear is off by", float(abs(self.difference).max(initial=0.0))),
                Summary(
                    "features switched",
                    None,
                    f"{self.switched_on:,} on, {self.switched_off:,} off, of {self.on:,}",
                ),
            ),
            (
                "held and linear are predictions with patterns, norm scales, errors and the set of "
                "features fixed; in the rerun attention, norms and the model's own MLPs are worked "
                "out again. difference = rerun − linear.",
                "Logits are less the vocabulary mean, before a soft cap.",
            ),
        )


def frozen_effect(given: Given, changes: Change | Iterable[Change]) -> Effect:
    """Give how far changes move all features and logits, all else held fixed.

    The other features hold their activations too. Twice a feature moves each target by the graph's
    edge from the feature to it. Of a `Replacement` there are no logits. Raises `PathExpandError`
    for a graph that was read from a file, for features that are off, heads that there are not,
    paths that lead nowhere, and for one thing changed twice.
    """
    return _effect(_Plan.of(given, changes), "held")


def linear_effect(given: Given, changes: Change | Iterable[Change]) -> Effect:
    """Give how far changes move all features and logits, features that are on moving with them.

    Activations follow pre-activations, so that effects pass through features as well: along all
    paths of the graph. Changed features stay at what they were set to. Raises as `frozen_effect`.
    """
    return _effect(_Plan.of(given, changes), "linear")


def rerun(graph: Graph | Attribution, changes: Change | Iterable[Change]) -> Rerun:
    """Make changes in a dense pass in which all else is worked out again.

    A feature is held at its factor times its activation in the run: the difference to what it
    would have been in this pass is written to the MLP's output or, for an SAE, to the stream. A
    path adds (factor − 1) times its value in the run to what its target reads. Raises as
    `frozen_effect`.
    """
    if not isinstance(graph, Graph | Attribution):
        raise PathExpandError("rerun", wanted="a graph, with its logits", got=shown(graph))
    plan = _Plan.of(graph, changes)
    passed = _Pass(plan)
    made, row = plan.made, slice(plan.made.row, plan.made.row + 1)
    types = None if made.run.types is None else made.run.types[row]
    run = forward(
        made.weights,
        made.config,
        made.run.tokens[row],
        made.run.mask[row],
        types=types,
        edit=passed.edit,
    )
    held, linear = _effect(plan, "held"), _effect(plan, "linear")
    count = len(plan.logits)
    start = len(held.nodes) - count
    before = held.before[start:]
    after = np.zeros(count)
    for n, node in enumerate(plan.logits):
        assert node.position is not None and node.token is not None  # a logit has both
        values = final_logits(made.weights, made.config, run, 0, node.position)
        after[n] = values[node.token] - values.mean() + plan.logit_shifts[n]
    return Rerun(
        plan.said,
        plan.logits,
        before,
        held.change[start:],
        linear.change[start:],
        after - before,
        passed.switched_on,
        passed.switched_off,
        sum(map(len, made.active.values())),
        run,
    )


# --- the changes, read -----------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Plan:
    """Changes of one run, read: what they set, by columns of the run and by place.

    `columns[layer]` are the columns of a layer's features, in the order of what is on. `parts`
    (column,) is what a held feature writes more than it did, over what it did, where `is_held`;
    `held[layer]` are the same by position and feature, as activations. `heads` are factors
    (position,); `shifts` (column,) and `logit_shifts` are what paths add to what is read.
    """

    made: Replacement
    logits: tuple[Node, ...]
    readers: list[Readers]
    values: list[float]
    said: tuple[str, ...]
    columns: dict[int, Indices] = field(default_factory=dict)
    parts: Array = field(default_factory=lambda: np.zeros(0))
    is_held: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    held: dict[int, dict[tuple[int, int], float]] = field(default_factory=dict)
    heads: dict[Head, Array] = field(default_factory=dict)
    shifts: Array = field(default_factory=lambda: np.zeros(0))
    logit_shifts: Array = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, given: Given, changes: Change | Iterable[Change]) -> _Plan:
        listed = _listed(changes)
        made, logits, readers, values = _subject(given)
        plan = cls(made, logits, readers, values, tuple(map(str, listed)))
        kinds = [(n, node.layer) for n, node in enumerate(made.nodes) if node.kind == "feature"]
        for layer in made.active:
            plan.columns[layer] = np.array([n for n, own in kinds if own == layer], dtype=np.intp)
        plan.parts, plan.shifts = np.zeros(len(made.nodes)), np.zeros(len(made.nodes))
        plan.is_held = np.zeros(len(made.nodes), dtype=bool)
        plan.logit_shifts = np.zeros(len(logits))
        seen: set[object] = set()
        for change in listed:
            plan._read(change, seen)
        return plan

    def _read(self, change: Change, seen: set[object]) -> None:
        if isinstance(change, FeatureChange):
            self._feature(change, seen)
        elif isinstance(change, HeadChange):
            self._head(change, seen)
        elif isinstance(change, PathChange):
            self._path(change, seen)
        else:
            wanted = "a FeatureChange, HeadChange or PathChange"
            raise PathExpandError("change", wanted=wanted, got=shown(change))

    def _feature(self, change: FeatureChange, seen: set[object]) -> None:
        layer, index, position = change.place
        active = self.made.active.get(layer)
        if active is None:
            known = ", ".join(map(str, sorted(self.made.active)))
            wanted = f"a feature of layer {known}"
            raise PathExpandError(f"feature {change.feature}", wanted=wanted, got="none there")
        self._check_there(change)
        on = active.features == index
        if position is not None:
            on &= active.positions == position
        if not on.any():
            raise PathExpandError(
                f"feature {change.feature}",
                wanted="one that is on",
                got="one that is off" + ("" if position is None else f" at position {position}"),
                remedy="there is nothing to scale",
            )
        columns = self.columns[layer][on]
        self.parts[columns], self.is_held[columns] = change.factor - 1, True
        here = self.held.setdefault(layer, {})
        places = range(self.made.zero_positions, self.made.positions)
        was = dict(zip(active.positions[on].tolist(), active.act[on].tolist(), strict=True))
        for place in places if position is None else (position,):
            _once(seen, ("feature", layer, place, index), str(change))
            here[place, index] = change.factor * was.get(place, 0.0)

    def _check_there(self, change: FeatureChange) -> None:
        """Refuse features and positions that there are not."""
        layer, index, position = change.place
        unit, last = self.made.unit(layer), self.made.positions - 1
        assert unit is not None  # what is active is of a unit
        subject = f"feature {change.feature}"
        if index >= unit.features:
            wanted = f"features 0 to {unit.features - 1} of layer {layer}"
            raise PathExpandError(subject, wanted=wanted, got=str(index))
        if position is not None and position > last:
            wanted = f"positions 0 to {last} of this prompt"
            raise PathExpandError(subject, wanted=wanted, got=str(position))
        if position is not None and position < self.made.zero_positions:
            wanted = f"positions {self.made.zero_positions} to {last}, where features are looked at"
            raise PathExpandError(subject, wanted=wanted, got=str(position))

    def _head(self, change: HeadChange, seen: set[object]) -> None:
        head, made = change.head, self.made
        assert isinstance(head, Head)  # made one on construction
        parse_head(made.config, head)
        places = range(made.positions) if change.positions is None else change.positions
        factors = self.heads.setdefault(head, np.ones(made.positions))
        for place in places:
            whole = isinstance(place, int | np.integer) and not isinstance(place, bool)
            if not whole or not 0 <= place < made.positions:
                wanted = f"positions from 0 to {made.positions - 1}"
                raise PathExpandError(f"head {head}", wanted=wanted, got=shown(place))
            _once(seen, (head, int(place)), str(change))
            factors[place] = change.factor

    def _path(self, change: PathChange, seen: set[object]) -> None:
        made = self.made
        source = _numbered(made.nodes, change.source)
        targets = [node for node in made.nodes if node.kind == "feature"]
        at = _numbered((*targets, *self.logits), change.target) - len(targets)
        _once(seen, (source, change.components, at), str(change))
        if at >= 0:
            value = _path_value(made, source, change, self.readers[at])
            self.logit_shifts[at] += (change.factor - 1) * value
            return
        node = targets[at + len(targets)]
        assert node.layer is not None and node.position is not None and node.index is not None
        unit = made.unit(node.layer)
        assert unit is not None  # a feature is of a unit
        place, index = np.array([node.position]), np.array([node.index])
        value = _path_value(made, source, change, feature_readers(made, unit, place, index))
        self.shifts[_numbered(made.nodes, change.target)] += (change.factor - 1) * value


def _subject(
    given: Given,
) -> tuple[Replacement, tuple[Node, ...], list[Readers], list[float]]:
    """Give the run, the logits, what each reads, and its value."""
    if isinstance(given, Replacement):
        return given, (), [], []
    known = isinstance(given, Graph | Attribution)
    if not known or given.made is None or given.unembed is None:
        got = "one read from a file" if isinstance(given, Graph) else shown(given)
        raise PathExpandError("intervention", wanted="a graph of a run", got=got)
    nodes = tuple(node for node in given.nodes if node.kind == "logit")
    readers, values = [], []
    for node in nodes:
        assert node.position is not None and node.token is not None  # a logit has both
        one = Logits(np.array([node.token]), np.ones(1))
        reader, value = logit_readers(given.made, given.unembed, one, node.position)
        readers.append(reader)
        values.append(float(value[0]))
    return given.made, nodes, readers, values


def _listed(changes: Change | Iterable[Change]) -> tuple[Change, ...]:
    if isinstance(changes, FeatureChange | HeadChange | PathChange):
        return (changes,)
    if isinstance(changes, str) or not isinstance(changes, Iterable):
        wanted = "a FeatureChange, HeadChange or PathChange, or several"
        raise PathExpandError("changes", wanted=wanted, got=shown(changes))
    return tuple(changes)


def _once(seen: set[object], what: object, said: str) -> None:
    if what in seen:
        raise PathExpandError("changes", wanted="each thing once", got=f"{said} again")
    seen.add(what)


def _numbered(nodes: Sequence[Node], name: str) -> int:
    """Give a node's number, from its name; of labels alone, one that only one node has."""
    found = [n for n, node in enumerate(nodes) if name == name_of(node)]
    found = found or [n for n, node in enumerate(nodes) if name == node.label]
    if len(found) != 1:
        got = "none of this run" if not found else f"that of {len(found)} nodes"
        wanted = "the name of one node, such as L3F17@4"
        raise PathExpandError(f"node {shown(name)}", wanted=wanted, got=got)
    return found[0]


def _path_value(made: Replacement, column: int, change: PathChange, readers: Readers) -> float:
    """Push what a column wrote through a path's components, and read it."""
    cuts = [n for n in range(readers.boundary) if made.stages[n] is None]
    first = cuts[-1] + 1 if cuts else 0
    stream = np.zeros((made.positions, made.run.residual[0].shape[2]))
    left = list(change.components)
    for boundary in range(first, readers.boundary + 1):
        if len(left) == len(change.components):
            for born in made.born[boundary]:
                own = born.columns == column
                np.add.at(stream, born.positions[own], born.vectors[own])
        if boundary == readers.boundary:
            break
        stage = made.stages[boundary]
        assert stage is not None  # it is behind the last cut
        for group in stage.groups:
            labels = [each.label for each in group.components]
            if left and left[0] in labels:
                stream = group.write(stream, labels.index(left.pop(0)))
                break
        else:
            stream = stream if stage.carry is None else stage.carry.push(stream)
    if left:
        raise PathExpandError(
            f"path from {change.source} to {change.target}",
            wanted="heads and skips that stand between the two, in order",
            got=shown(left[0]),
        )
    return float(readers.directions[0] @ stream[int(readers.positions[0])])


# --- frozen --------------------------------------------------------------------------------------


def _effect(plan: _Plan, mode: Mode) -> Effect:
    made = plan.made
    parts, changes = plan.parts.copy(), np.zeros(len(made.nodes))
    logits = plan.logit_shifts.copy()
    moved = np.zeros((made.positions, made.run.residual[0].shape[2]))  # of the stream
    for boundary in range(made.depth + 1):
        for born in made.born[boundary]:
            some = parts[born.columns] != 0
            vectors = parts[born.columns[some]][:, None] * born.vectors[some]
            np.add.at(moved, born.positions[some], vectors)
        for layer in _reading(made, boundary):
            unit, active, columns = made.unit(layer), made.active[layer], plan.columns[layer]
            assert unit is not None  # what is active is of a unit
            readers = feature_readers(made, unit, active.positions, active.features)
            read = _read(readers, moved) + plan.shifts[columns]
            changes[columns] = read
            if mode == "linear":  # activations are pre-activations where they are on
                free = ~plan.is_held[columns]
                parts[columns[free]] = read[free] / active.pre[free]
        if boundary < made.depth:
            moved = _past(plan, boundary, moved)
    for n, readers in enumerate(plan.readers):
        logits[n] += _read(readers, moved)[0]
    columns = np.array([n for n, node in enumerate(made.nodes) if node.kind == "feature"], np.intp)
    nodes = tuple(made.nodes[n] for n in columns)
    before = np.array([*(node.value for node in nodes), *plan.values], dtype=np.float64)
    change = np.concatenate([changes[columns], logits])
    return Effect(mode, plan.said, (*nodes, *plan.logits), before, change)


def _reading(made: Replacement, boundary: int) -> Iterator[int]:
    for layer, at in sorted(made.reads_at.items()):
        if at == boundary:
            yield layer


def _read(readers: Readers, moved: Array) -> Array:
    out: Array = np.einsum("nd,nd->n", readers.directions, moved[readers.positions])
    return out


def _past(plan: _Plan, boundary: int, moved: Array) -> Array:
    """Take a change of the stream (position, d_model) past one stage."""
    stage = plan.made.stages[boundary]
    if stage is None:  # an SAE stands for the stream: only its features go on
        return np.zeros_like(moved)
    out = moved if stage.carry is None else stage.carry.push(moved)
    for group in stage.groups:
        if not isinstance(group, HeadGroup):
            out = out + group.push(moved)
            continue
        own = [head for head in group.components if head in plan.heads]
        factors = np.ones(group.patterns.shape[:2])  # (head, query)
        for head in own:
            factors[head.index] = plan.heads[head]
            out = out + (plan.heads[head] - 1)[:, None] * head_output(plan.made, head)
        group = replace(group, patterns=group.patterns * factors[..., None]) if own else group
        out = out + group.push(moved)
    return out


def head_output(made: Replacement, head: Head) -> Array:
    """Give what a head wrote in the run, b_V and all, as it reached the stream behind it.

    (position, d_model): the norms behind attention are passed with their scales held fixed, their
    biases and b_O left out.
    """
    block, trace = made.weights.blocks[head.layer], made.run.layers[head.layer]
    attn, row = block.attn, made.row
    stream = made.run.residual[head.layer][row]
    reads = stream if block.ln1 is None else normed(block.ln1, stream)[0]
    values = reads @ per_head(attn, attn.W_V)[head.index]  # (position, d_head)
    if attn.b_V is not None:
        values = values + per_head(attn, attn.b_V)[head.index]
    out: Array = (trace.pattern[row, head.index] @ values) @ attn.W_O[head.index]
    out = through(block.ln1_post, out) * block.scale
    if trace.scale1_post is not None:
        out = out * trace.scale1_post[row][:, None]
    out = through(block.ln1_after, out)
    return out if trace.scale1_after is None else out * trace.scale1_after[row][:, None]


# --- worked out again ------------------------------------------------------------------------


class _Pass:
    """What a dense pass is edited by, and what it turned on and off."""

    def __init__(self, plan: _Plan) -> None:
        self.plan, self.made = plan, plan.made
        self.switched_on = self.switched_off = 0
        # What changed features write: by the layer it is written to.
        self.waiting: dict[int, Array] = {}
        self.shifts: dict[int, dict[tuple[int, int], float]] = {}
        for layer, columns in plan.columns.items():
            active, amounts = self.made.active[layer], plan.shifts[columns]
            for n in np.flatnonzero(amounts):
                place = int(active.positions[n]), int(active.features[n])
                self.shifts.setdefault(layer, {})[place] = float(amounts[n])

    def edit(self, layer: int, place: str, array: Array) -> Array:
        """Give what stands in place of an array of the pass."""
        if place == "heads":
            return self._heads(layer, array)
        unit, block = self.made.unit(layer), self.made.weights.blocks[layer]
        if unit is not None and place == _read_place(unit, block):
            written = self._changed(unit, _input(unit, block, array[0]))
            if unit.kind == "sae":
                return array + written[layer] if layer in written else array
            for target, vectors in written.items():
                self.waiting[target] = self.waiting.get(target, 0) + vectors
        here = {each.hook_out for each in self.made.units if each.kind == "transcoder"}
        if place in here and layer in self.waiting:
            return array + self.waiting.pop(layer)
        return array

    def _heads(self, layer: int, mixed: Array) -> Array:
        """Multiply what heads mix, (batch, head, position, d_head)."""
        own = {head: each for head, each in self.plan.heads.items() if head.layer == layer}
        if not own:
            return mixed
        factors = np.ones(mixed.shape[1:3])
        for head, each in own.items():
            factors[head.index] = each
        out: Array = mixed * factors[..., None]
        return out

    def _changed(self, unit: Unit, x: Array) -> dict[int, Array]:
        """Give what changed features write more than they would have, by target layer."""
        self._count(unit, x)
        held = self.plan.held.get(unit.layer, {})
        shifts = self.shifts.get(unit.layer, {})
        out: dict[int, Array] = {}
        for position in sorted({place for place, _ in (*held, *shifts)}):
            one = x[position][None]
            found = unit.encode(one)
            wanted = _at(shifts, position)
            other = _shifted(unit, wanted).encode(one) if wanted else found
            acts, was = np.zeros(unit.features), np.zeros(unit.features)
            acts[other.features], was[found.features] = other.act, found.act
            for feature, value in _at(held, position).items():
                acts[feature] = value
            which = np.flatnonzero(acts != was)
            amounts = (acts - was)[which] * found.back[0]
            for target in unit.writes if len(which) else ():
                vectors = out.setdefault(target, np.zeros((len(x), unit.d_out)))
                vectors[position] = amounts @ unit.decoder(which, target)
        return out

    def _count(self, unit: Unit, x: Array) -> None:
        """Count what the pass turns on and off."""
        now, was = unit.encode(x), self.made.active[unit.layer]
        keep = now.positions >= self.made.zero_positions
        here = set(zip(now.positions[keep].tolist(), now.features[keep].tolist(), strict=True))
        before = set(zip(was.positions.tolist(), was.features.tolist(), strict=True))
        self.switched_on += len(here - before)
        self.switched_off += len(before - here)


def _at(places: Mapping[tuple[int, int], float], position: int) -> dict[int, float]:
    return {feature: value for (place, feature), value in places.items() if place == position}


def _read_place(unit: Unit, block: Block) -> str:
    """Say at which place of the pass a unit's input is there."""
    if unit.kind == "sae":
        return unit.hook_in
    return "resid_pre" if block.parallel else "resid_mid"


def _input(unit: Unit, block: Block, stream: Array) -> Array:
    norm = None if unit.kind == "sae" else reading_norm(unit, block)
    return stream if norm is None else normed(norm, stream)[0]


def _shifted(unit: Unit, shifts: Mapping[int, float]) -> Unit:
    """Give a unit some of whose features read more or less, gates included."""
    amounts = np.zeros(unit.features)
    for feature, value in shifts.items():
        amounts[feature] = value
    bias = unit.gate_bias
    if unit.gate_gain is not None and bias is not None:
        bias = bias + amounts * unit.gate_gain
    return replace(unit, b_enc=unit.b_enc + amounts, gate_bias=bias)
