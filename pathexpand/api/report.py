"""What an explorer shows of a run, gathered."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pathexpand.api.scores import why_each
from pathexpand.engine.flow import Flow, path_flow
from pathexpand.engine.search import Budget
from pathexpand.engine.total import component_totals
from pathexpand.engine.value import Readout, path_value
from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenSum
from pathexpand.model.shown import shown
from pathexpand.progress import tracked, watched
from pathexpand.report.contents import HeadPart, Moves, Pattern, Report
from pathexpand.symbolic import Head, Path
from pathexpand.table import PathTable, ScoreTable

if TYPE_CHECKING:
    from pathexpand.api.run import Run
    from pathexpand.features.graph import Graph
    from pathexpand.target import Target

Array = npt.NDArray[Any]

# A page of 10,000 paths shall stay under 3 MB, of which the scripts take 2.
_PARTS = 30_000  # parts of moves in all
_MOST = 12  # of a step
_SMALL = 0.01  # of a step's largest part: smaller ones are not drawn
_WORK = 2e10  # numbers touched while moves are worked out; what is beyond has no drawing
_ENTRIES = 16_000  # entries of patterns in all
_HEADS = 24
_PAIRS = 8  # rows of each expansion of a score
_SUFFIXES = 400  # that a search for them may expand
# Keys of a query that are held against each other, and expansions in all. With neurons each one
# takes about half a second, so there are fewer.
_KEYS = {False: 4, True: 3}
_EXPANSIONS = {False: 36, True: 24}
_SECONDS = 10.0  # that all expansions may take where no budget says otherwise
_MANY = 500  # components of a model that has neurons
_NEARBY = 300  # rows whose shorter neighbours are valued


@watched("gathering the explorer")
def run_report(
    run: Run, what: Target, table: PathTable, *, graph: Any = None, budget: Budget | None = None
) -> Report:
    """Gather what an explorer of a table of this run shows.

    The seconds of a `budget` end the expansions of scores as they end a search; without it these
    take ten seconds at most. Raises `KeyboardInterrupt` at Ctrl-C: half a page would mislead.
    """
    readout = what.readout(run.unembed, table.position)
    near = run.frozen.until(readout.last)
    paths = [Path.parse(row.path) for row in table.rows]
    moves, weight = _moves(near, readout, paths)
    return Report(
        table=table,
        network=run.model.network,
        levels=_levels(run.frozen),
        level_of=_level_of(run.frozen, paths),
        moves=moves,
        orders=run.totals_table(by="order", target=what, position=table.position),
        heads=tuple(_heads(run, readout, weight, Budget.given(budget))),
        nearby=_nearby(near, readout, paths),
        graph=graph,
    )


def check_graph(run: Run, graph: Graph) -> None:
    """Refuse what is no graph of a run's prompt."""
    from pathexpand.features.graph import Graph

    if not isinstance(graph, Graph):
        raise PathExpandError("graph", wanted="a graph, as run.graph() makes it", got=shown(graph))
    tokens = tuple(token.text for token in run.source_tokens)
    own = graph.prompt == tokens[: len(graph.prompt)]
    if not own or graph.model != run.model.config.model_name:
        raise PathExpandError(
            "graph", wanted="one of this run", got="one of another prompt or model"
        )


def _levels(frozen: FrozenSum) -> tuple[str, ...]:
    """Name the heights: the tokens, what each stage writes, the logits."""
    names = []
    for stage in frozen.stages:
        layers = sorted({each.layer for each in stage.components})
        kinds = sorted({"heads" if isinstance(each, Head) else "MLP" for each in stage.components})
        names.append(f"L{layers[0]} {' and '.join(kinds)}" if layers else "")
    return ("tokens", *names, "logits")


def _level_of(frozen: FrozenSum, paths: Sequence[Path]) -> dict[str, int]:
    found = {source.label: source.boundary for source in frozen.sources}
    if frozen.constant is not None:
        found[frozen.constant] = frozen.depth + 1
    for path in paths:
        for component in path.components:
            found[component.label] = frozen.places[component][0] + 1
    return found


def _moves(
    frozen: FrozenSum, readout: Readout, paths: Sequence[Path]
) -> tuple[Moves, dict[Head, Array]]:
    """Give the parts of all moves, and how much each head carries to each position."""
    counts, parts, spent, drawn = [0], [], 0.0, 0
    weight: dict[Head, Array] = {}
    steps = sum(path.order + 1 for path in paths)
    most = max(1, min(_MOST, _PARTS // max(steps, 1)))
    for number, path in enumerate(tracked(paths, "paths", len(paths))):
        spent += path.order * frozen.positions * (frozen.positions + readout.direction.size)
        if spent > _WORK:
            counts += [counts[-1]] * (len(paths) - number)
            break
        flow = path_flow(frozen, readout, path)
        found = list(_parts(flow, most))
        parts += found
        counts.append(counts[-1] + len(found))
        for component, move in zip(path.components, flow.moves, strict=True):
            if isinstance(component, Head):
                carried = abs(move).sum(axis=1).astype(np.float64)
                weight[component] = weight.get(component, 0.0) + carried
        drawn = number + 1
    table = np.array(parts, dtype=np.float64).reshape(-1, 4)
    moves = Moves(
        np.array(counts, dtype=np.int32),
        table[:, 0].astype(np.uint8),
        table[:, 1].astype(np.uint16),
        table[:, 2].astype(np.uint16),
        table[:, 3].astype(np.float32),
        drawn,
    )
    return moves, weight


def _parts(flow: Flow, most: int) -> Iterator[tuple[float, float, float, float]]:
    """Yield the largest parts of each step: its number, from where, to where, how much."""
    for step, moved in enumerate((np.diag(flow.by_token), *flow.moves)):
        flat = abs(moved).ravel().astype(np.float64)
        some = np.argpartition(-flat, min(most, flat.size) - 1)[:most]
        some = some[np.lexsort((some, -flat[some]))]
        for place in some:
            if flat[place] and flat[place] >= _SMALL * flat[some[0]]:
                end, start = divmod(int(place), moved.shape[1])
                yield step, start, end, float(moved[end, start])


def _heads(
    run: Run, readout: Readout, weight: dict[Head, Array], budget: Budget
) -> Iterator[HeadPart]:
    """Give the heads that carry most along the listed paths, each with why it looks there."""
    totals = component_totals(run.frozen, readout)
    order = sorted(weight, key=lambda head: (-float(weight[head].sum()), head.code))[:_HEADS]
    entries, expanded = 0, 0
    few = len(run.model.network.components) > _MANY
    seconds = _SECONDS if budget.seconds is None else budget.seconds
    end = time.monotonic() + seconds
    for number, head in enumerate(tracked(order, "heads", len(order))):
        pattern = Pattern.of(run.patterns[head.layer][head.index])
        entries += len(pattern.weight)
        if number and entries > _ENTRIES:
            break
        whys: tuple[ScoreTable, ...] = ()
        if expanded < _EXPANSIONS[few]:
            query = int(np.argmax(weight[head]))
            whys = tuple(_whys(run, head, query, _KEYS[few], end=end, nodes=budget.nodes))
        expanded += len(whys)
        yield HeadPart(head.label, float(totals[head]), pattern, whys)


def _whys(
    run: Run, head: Head, query: int, most: int, *, end: float, nodes: int | None
) -> Iterator[ScoreTable]:
    """Expand what a head gives one key over another, for the keys it looks at most."""
    row = run.patterns[head.layer][head.index][query]
    keys = [int(key) for key in np.argsort(-row, kind="stable")[:most] if row[key] > 0]
    limit = Budget(nodes=_SUFFIXES if nodes is None else min(nodes, _SUFFIXES))
    with interrupts() as check:
        for why in why_each(run, head, query, keys, top=_PAIRS, budget=limit):
            check()
            yield why
            if time.monotonic() > end:
                return


@contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """Give what raises `KeyboardInterrupt` after a Ctrl-C that a search ended at and kept.

    >>> with interrupts() as check:
    ...     check()
    """
    pressed = False

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check  # only there signals come
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def _nearby(frozen: FrozenSum, readout: Readout, paths: Sequence[Path]) -> dict[str, float]:
    """Value the unlisted paths that are one component shorter than one of the first listed."""
    listed, found = set(paths), {}
    for path in paths[:_NEARBY]:
        for left in range(path.order):
            kept = path.components[:left] + path.components[left + 1 :]
            shorter = Path(path.source, kept)
            if shorter not in listed and str(shorter) not in found:
                found[str(shorter)] = float(path_value(frozen, readout, shorter))
    return found
