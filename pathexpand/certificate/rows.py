"""The rows of a table: what they say of themselves, and their values, worked forward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pathexpand.certificate.finding import Compared, Finding, equal, judge
from pathexpand.certificate.held import Held
from pathexpand.certificate.value import valued
from pathexpand.errors import PathExpandError
from pathexpand.symbolic import Path
from pathexpand.symbolic.query import Query
from pathexpand.table import PathRow, PathTable

NEAR = 1 - 1e-9  # a row is certain from this part of the bound on, which is rounded up


def read_paths(table: PathTable, query: Query) -> list[Path] | None:
    """Read the rows' paths; None unless each is a path of the query.

    >>> from pathexpand.api import load
    >>> run = load("two-layer").run("to be or not to")
    >>> read_paths(run.paths(top=3), run.model.query("* > L0H0")) is None
    True
    """
    try:
        paths = [Path.parse(row.path) for row in table.rows]
    except PathExpandError:
        return None
    return paths if all(query.matches(path) for path in paths) else None


def check_rows(table: PathTable, query: Query) -> Finding:
    """Check that rows are distinct paths of the query, in order, and what can be read off them.

    >>> from pathexpand.api import load
    >>> run = load("two-layer").run("to be or not to")
    >>> check_rows(run.paths(top=3), run.model.query()).detail
    '3 rows: paths of the query, ranks, ties, shares, running sums'
    """
    compared: list[Compared] = []
    paths: list[Path] = []
    for row in table.rows:
        try:
            path = Path.parse(row.path)
        except PathExpandError as error:
            compared.append(equal(row.path, str(error), f"path of row {row.rank}"))
            continue
        compared += _read_off(row, path, table, query)
        paths.append(path)
    compared.append(equal(len(set(paths)), len(table), "number of different paths"))
    compared += _ranked(table, paths)
    detail = f"{len(table)} rows: paths of the query, ranks, ties, shares, running sums"
    return judge("rows", compared, detail)


def _read_off(row: PathRow, path: Path, table: PathTable, query: Query) -> Iterator[Compared]:
    name, most = f"row {row.rank}", math.inf if table.max_order is None else table.max_order
    yield equal(row.path, str(path), f"{name}, path")
    yield equal(query.matches(path), True, f"{name}, is a path of the query")
    yield equal(row.order, path.order, f"{name}, order")
    yield equal(path.order <= most, True, f"{name}, order of at most {table.max_order}")
    yield equal(row.kind, path.kind, f"{name}, kind")
    share = row.value / table.dense if table.dense else None
    yield equal(row.share, share, f"{name}, share")
    certain = table.bound is not None and abs(row.value) >= table.bound * NEAR
    yield equal(row.certain, certain, f"{name}, certain")
    token = row.source_token
    known = token is None or (
        token.position < len(table.tokens) and token == table.tokens[token.position]
    )
    yield equal(known, True, f"{name}, source token is one of the prompt")
    yield equal(row.source_value is None, token is None, f"{name}, source value")


def _ranked(table: PathTable, paths: Sequence[Path]) -> Iterator[Compared]:
    """Compare neighbours: larger |value| first, equal ones in the order of `Path`."""
    running = 0.0
    for row in table.rows:
        running += row.value
        yield equal(row.running, running, f"row {row.rank}, running sum")
    if len(paths) != len(table):
        return
    keys = [(-abs(row.value), path) for row, path in zip(table.rows, paths, strict=True)]
    for rank, (one, other) in enumerate(pairwise(keys), start=1):
        yield equal(one < other, True, f"row {rank} before row {rank + 1}")


def check_values(table: PathTable, held: Held, paths: Sequence[Path]) -> Finding:
    """Check each row's value and source token by a forward pass of its own.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate.held import hold
    >>> run = load("two-layer").run("to be or not to")
    >>> table, held = run.paths(top=3), hold(run, run.target(), run.position(), same=True)
    >>> check_values(table, held, [Path.parse(row.path) for row in table]).holds
    True
    """
    compared: list[Compared] = []
    for row, path in zip(table.rows, paths, strict=True):
        compared += _valued(row, held, path)
    return judge("values", compared, f"{len(table)} rows, each from its source to the readout")


def _valued(row: PathRow, held: Held, path: Path) -> Iterator[Compared]:
    name, known = f"row {row.rank} {row.path}", valued(held, path)
    yield Compared(abs(row.value - known.value), known.slack, f"{name}: value")
    sizes = abs(known.by_token)
    if row.source_token is None or row.source_value is None:
        largest = valued(held, path, token=int(sizes.argmax()))
        none = row.path == "b_U" or abs(largest.value) <= largest.slack
        yield equal(none, True, f"{name}: no source token is larger than 0")
        return
    place = row.source_token.position
    yield equal(place < sizes.size, True, f"{name}: a source token that can be seen")
    if place < sizes.size:
        part = valued(held, path, token=place)
        yield Compared(abs(row.source_value - part.value), part.slack, f"{name}: source value")
        sizes[place] = 0
        other = valued(held, path, token=int(sizes.argmax()))
        slack = part.slack + other.slack
        yield Compared(abs(other.value) - abs(part.value), slack, f"{name}: strongest source")
