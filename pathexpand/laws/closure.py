"""Law 1: the sum of all paths is the dense forward pass, in floats and in exact numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.engine.remainder import remainder
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.value import Readout
from pathexpand.frozen import Carry, FrozenStage, FrozenSum
from pathexpand.laws.cut import cut
from pathexpand.laws.reference import references
from pathexpand.laws.result import Deviation, LawResult, judged, unequal
from pathexpand.symbolic import Path
from pathexpand.target import DifferenceTarget, DirectionTarget, LogitTarget, Target, TargetLike

Array = npt.NDArray[Any]


def check_closure(
    run: Run, target: TargetLike | Target | None = None, *, position: int | None = None
) -> LawResult:
    """Check that the total of all paths equals the dense value, for every kind of target.

    The target's own value is looked at, and beside it, unless the model is large, a raw and a
    centred logit, a difference of two logits and a direction that reads every part of the stream.

    >>> from pathexpand import api
    >>> check_closure(api.load("two-layer").run("to be")).holds
    True
    """
    place = run.position(position)
    deviations = []
    for what in _targets(run, run.target(target, position=place)):
        readout = what.readout(run.unembed, place)
        dense = run.dense_value(what, place)
        total = run.total(target=what, position=place).sum()
        bound = 2 * (run.dense_rounding(what, readout) + totals_rounding(run, readout))
        deviations.append(Deviation(abs(total - dense), bound, what.describe(None)))
    return judged("closure of totals", deviations, f"{len(deviations)} targets, position {place}")


def check_table_closure(
    run: Run,
    target: TargetLike | Target | None = None,
    *,
    position: int | None = None,
    top: int = 10,
    max_order: int | None = None,
) -> LawResult:
    """Check that a table's rows and its remainder add up to the dense value within its gap bound.

    The dense value and the sum are worked out again; only the remainder and the bound are taken
    from the table.

    >>> from pathexpand import api
    >>> check_table_closure(api.load("two-layer").run("to be")).holds
    True
    """
    place = run.position(position)
    what = run.target(target, position=place)
    table = run.paths(what, position=place, top=top, max_order=max_order)
    dense = run.dense_value(what, place)
    listed = float(sum(row.value for row in table.rows))
    deviations = [
        Deviation(abs(dense - (listed + table.remainder)), table.gap_bound, "the gap"),
        unequal(table.dense, dense, "dense value"),
        unequal(table.listed, listed, "listed sum"),
        unequal(table.gap, dense - (listed + table.remainder), "gap"),
        unequal(
            len(table.rows) + table.remainder_count, run.model.network.count(), "number of paths"
        ),
    ]
    return judged(
        "closure of the table",
        deviations,
        f"{len(table.rows)} listed + {table.remainder_count:,} in the remainder",
    )


def check_remainder(
    run: Run,
    target: TargetLike | Target | None = None,
    *,
    position: int | None = None,
    top: int = 10,
) -> LawResult:
    """Check that the remainder is the sum of the unlisted paths, each evaluated by itself.

    Looked at with every path listed, with none, and with the `top` ones; a model with too many
    paths is cut to some of its heads first.

    >>> from pathexpand import api
    >>> check_remainder(api.load("two-layer").run("to be")).holds
    True
    """
    place = run.position(position)
    what = run.target(target, position=place)
    small = cut(run)
    readout = what.readout(small.run.unembed, place)
    known = {each.path: each for each in references(small.run, what, place)}
    listed = [Path.parse(row.path) for row in small.run.paths(what, position=place, top=top)]
    deviations = []
    for subject, paths in (("the top", listed), ("none", []), ("all", list(known))):
        found = remainder(small.run.frozen, readout, paths, measured=True)
        rest = [known[path] for path in set(known) - set(paths)]
        error = abs(found.value - sum(each.value for each in rest))
        bound = 2 * found.rounding + sum(each.rounding for each in rest)
        bound += gamma(len(rest)) * float(sum(each.sizes.sum() for each in rest))
        deviations.append(Deviation(error, bound, f"remainder with {subject} listed"))
        deviations.append(unequal(found.count, len(rest), f"number of unlisted, {subject} listed"))
    return judged("remainder", deviations, small.detail)


def totals_rounding(run: Run, readout: Readout) -> float:
    """Bound the rounding of `totals`, whose functionals are kept apart by order.

    A rounding error in the functional of one order at one boundary is read by the whole stream
    there, so each counts as gamma(n) times its own size, however much the orders cancel.

    >>> from pathexpand import api
    >>> run = api.load("two-layer").run("to be")
    >>> 0 < totals_rounding(run, run.target().readout(run.unembed, 1)) < 1e-9
    True
    """
    frozen, size = run.frozen, readout.direction.size
    reads = np.zeros((frozen.depth + 1, frozen.positions, size))  # (order, position, d_model)
    reads[0, readout.position] = readout.direction
    total = gamma(reads.size) * (abs(float(readout.constant)) + TINY)
    for boundary in reversed(range(frozen.depth + 1)):
        # The last sum runs over orders, sources and positions, each a sum over the stream.
        for source in (each for each in frozen.sources if each.boundary == boundary):
            sizes = abs(reads) * abs(source.values) + TINY
            total += gamma(reads.size * len(frozen.sources)) * float(sizes.sum())
        if not boundary:
            return total
        stage = frozen.stages[boundary - 1]
        some = frozen.depth - boundary + 1  # orders from this one on are still 0
        spread, longer = _past_sizes(stage.carry, abs(reads)), np.array(stage.past(reads))
        for group in stage.groups:
            spread[1 : some + 1] += abs(group).pull(abs(reads[:some]), floor=TINY)
            longer[1 : some + 1] += group.pull(reads[:some])
        stream = abs(frozen.streams[boundary - 1]) + TINY
        total += gamma(_steps(stage, size)) * float((spread * stream).sum())
        reads = longer
    return total


def route_steps(frozen: FrozenSum) -> int:
    """Count the roundings, one after another, on the longest way through a frozen sum.

    >>> from pathexpand import api
    >>> route_steps(api.load("zero-layer").run("to be").frozen) < 500
    True
    """
    d_model = int(frozen.sources[0].values.shape[1])
    own = sum(_steps(stage, d_model) + len(frozen.sources) for stage in frozen.stages)
    return own + d_model + frozen.positions + len(frozen.sources)


def _past_sizes(carry: Carry | None, reads: Array) -> Array:
    """Carry sizes of functionals (…, position, d_model) back past a norm of the stream."""
    if carry is None:
        return reads + TINY
    reads = reads * carry.scale[:, None] + TINY
    if carry.norm.weight is not None:
        reads = reads * abs(carry.norm.weight) + TINY
    if carry.norm.kind == "layer":
        reads = reads + reads.sum(axis=-1, keepdims=True) / reads.shape[-1]
    return reads


def _steps(stage: FrozenStage, d_model: int) -> int:
    """Count the roundings, one after another, that a functional can meet in a stage."""
    through = max((group.steps for group in stage.groups), default=0)
    return through + len(stage.groups) + 3 + (0 if stage.carry is None else d_model + 8)


def _targets(run: Run, given: Target) -> list[Target]:
    config = run.model.config
    vocabulary, d_model = config.d_vocab_out, config.d_model
    work = config.n_layers**2 * (config.n_heads + config.d_mlp / 8) * len(run.tokens) * d_model
    if work > 10_000_000:
        return [given]
    token = given.token if isinstance(given, LogitTarget | DifferenceTarget) else vocabulary // 2
    other = (token + 1 + vocabulary // 3) % vocabulary
    zigzag = np.array([(-1) ** n * (1 + n % 3) for n in range(d_model)], dtype=float)
    targets: list[Target] = [given, LogitTarget(token, centred=False), LogitTarget(token)]
    if other != token:
        targets.append(DifferenceTarget(token, other))
    return [*targets, DirectionTarget(zigzag)]
