"""Law 1: the sum of all paths is the dense forward pass, in floats and in exact numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.engine.remainder import remainder
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.value import Readout
from pathexpand.laws.reference import cut, dense_rounding, references
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
        readout = what.readout(run.model.weights, place)
        dense = what.dense(run.model.weights, run.dense.residual[-1][0, place])
        total = run.total(target=what, position=place).sum()
        bound = 2 * (dense_rounding(run, what, readout) + totals_rounding(run, readout))
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
    dense = float(what.dense(run.model.weights, run.dense.residual[-1][0, place]))
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
    readout = what.readout(small.run.model.weights, place)
    streams = tuple(stream[0] for stream in small.run.dense.residual)
    known = {each.path: each for each in references(small.run, readout)}
    listed = [Path.parse(row.path) for row in small.run.paths(what, position=place, top=top)]
    deviations = []
    for subject, paths in (("the top", listed), ("none", []), ("all", list(known))):
        found = remainder(small.run.frozen, readout, paths, streams=streams)
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
    >>> 0 < totals_rounding(run, run.target().readout(run.model.weights, 1)) < 1e-9
    True
    """
    depth, size = len(run.frozen.layers), readout.direction.size
    reads = np.zeros((depth + 1, len(run.tokens), size))  # (order, position, d_model)
    reads[0, readout.position] = readout.direction
    total = gamma(reads.size) * (abs(float(readout.constant)) + TINY)
    for boundary in reversed(range(depth + 1)):
        # The last sum runs over orders, sources and positions, each a sum over the stream.
        for source in (each for each in run.frozen.sources if each.boundary == boundary):
            sizes = abs(reads) * abs(source.values) + TINY
            total += gamma(reads.size * len(run.frozen.sources)) * float(sizes.sum())
        if not boundary:
            return total
        attn = run.model.weights.blocks[boundary - 1].attn
        stream = abs(run.dense.residual[boundary - 1][0]) + TINY
        spread = abs(reads)
        longer = reads.copy()
        some = depth - boundary + 1  # orders from this one on are still 0
        for pattern, w_v, w_o in zip(run.patterns[boundary - 1], attn.W_V, attn.W_O, strict=True):
            mixed = abs(pattern).T @ (abs(reads[:some]) @ abs(w_o).T + TINY) + TINY
            spread[1 : some + 1] += mixed @ abs(w_v).T + TINY  # (order, position, d_model)
            longer[1 : some + 1] += (pattern.T @ (reads[:some] @ w_o.T)) @ w_v.T
        steps = len(run.tokens) + sum(attn.W_V.shape) + 3
        total += gamma(steps) * float((spread * stream).sum())
        reads = longer
    return total


def _targets(run: Run, given: Target) -> list[Target]:
    vocabulary, d_model = run.model.weights.W_U.shape[1], run.model.config.d_model
    work = run.model.config.n_layers**2 * run.model.config.n_heads * len(run.tokens) * d_model
    if work > 10_000_000:
        return [given]
    token = given.token if isinstance(given, LogitTarget | DifferenceTarget) else vocabulary // 2
    other = (token + 1 + vocabulary // 3) % vocabulary
    zigzag = np.array([(-1) ** n * (1 + n % 3) for n in range(d_model)], dtype=float)
    targets: list[Target] = [given, LogitTarget(token, centred=False), LogitTarget(token)]
    if other != token:
        targets.append(DifferenceTarget(token, other))
    return [*targets, DirectionTarget(zigzag)]
