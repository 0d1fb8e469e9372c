"""An independent evaluation of single paths, and the sizes that rounding is measured against.

Nothing here calls the path engine. Sources are read from the weights, heads are applied forward
(from the source on, where the engine works back from the logits), position maps are multiplied out
as whole matrices. Beside each value stands its size: the same expression with every number
replaced by its absolute value. Whatever the order of its operations, an evaluation with at most n
roundings one after another is off by at most gamma(n) times that size (Higham, Accuracy and
Stability of Numerical Algorithms, 3.1), plus what underflow can do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Model, Run
from pathexpand.engine.rounding import TINY, constants_rounding, gamma, stream_rounding
from pathexpand.engine.total import functionals
from pathexpand.engine.value import Readout
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import forward
from pathexpand.model.weights import Attention, Block
from pathexpand.symbolic import Head, Path
from pathexpand.target import Target

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """One path evaluated independently.

    `values` and `sizes` (position,) are split by source position; `steps` is the number of
    roundings that a value of the path can meet one after another, on any route.
    """

    path: Path
    values: Array
    sizes: Array
    steps: int

    @property
    def value(self) -> Any:
        """The path's value."""
        return self.values.sum()

    @property
    def rounding(self) -> Any:
        """The most by which two evaluations of the path can differ; 0 for exact numbers."""
        if self.sizes.dtype == object:
            return 0
        return 2 * gamma(self.steps + self.sizes.size) * float(self.sizes.sum())


@dataclass(frozen=True, slots=True, eq=False)
class _Prefix:
    """A path as far as it has come: `moved` (query, key), `stream` (key, d_model) before moving."""

    path: Path
    moved: Array
    stream: Array
    sizes_moved: Array
    sizes: Array
    steps: int


def references(
    run: Run, readout: Readout, *, patterns: Sequence[Array] | None = None
) -> Iterator[Reference]:
    """Evaluate every path, each by itself, in no particular order.

    `patterns`, one array (head, query, key) a layer, stand in for the sizes of the run's own.

    >>> from pathexpand import api
    >>> run = api.load("two-layer").run("to be")
    >>> len(list(references(run, run.target().readout(run.model.weights, 1))))
    25
    """
    weights = run.model.weights
    bounds = [abs(pattern) for pattern in run.patterns] if patterns is None else patterns
    if weights.b_U is not None:
        yield _constant(run, readout)
    for start in _starts(run, readout.position, bounds):
        pending = [(start, _birth(start.path.source))]
        while pending:
            prefix, layer = pending.pop()
            yield _read(prefix, readout)
            for later in range(layer, len(weights.blocks)):
                for index in range(len(weights.blocks[later].attn.W_V)):
                    longer = _apply(run, prefix, Head(later, index), bounds)
                    pending.append((longer, later + 1))


def _constant(run: Run, readout: Readout) -> Reference:
    values = np.zeros(len(run.tokens), dtype=readout.direction.dtype)
    values[readout.position] = readout.constant
    return Reference(Path("b_U"), values, abs(values), 1)


def _starts(run: Run, position: int, bounds: Sequence[Array]) -> Iterator[_Prefix]:
    weights, config = run.model.weights, run.model.config
    tokens, places = run.dense.tokens[0], run.dense.places[0]
    still = np.eye(len(tokens), dtype=weights.W_E.dtype)
    if still.dtype == object:
        still = np.array([[int(i == j) for j in range(len(tokens))] for i in range(len(tokens))])
        still = still.astype(object)

    def begin(source: str, values: Array, sizes: Array, steps: int) -> _Prefix:
        return _Prefix(Path(source), still, values, still, sizes, steps)

    yield begin("embed", weights.W_E[tokens], abs(weights.W_E[tokens]), 0)
    if config.positional_embedding_type == "standard" and weights.W_pos is not None:
        yield begin("pos", weights.W_pos[places], abs(weights.W_pos[places]), 0)
    for layer, block in enumerate(weights.blocks):
        attn = block.attn
        if attn.b_V is None and attn.b_O is None:
            continue
        values, sizes = still[:, :1] * 0 * attn.W_O[0, :1], still[:, :1] * 0 * abs(attn.W_O[0, :1])
        if attn.b_V is not None:
            mixed = run.patterns[layer].sum(axis=2)[:, :, None] * attn.b_V[:, None]
            seen = bounds[layer].sum(axis=2)[:, :, None] * abs(attn.b_V)[:, None]
            for index, out in enumerate(attn.W_O):  # (position, d_head) @ (d_head, d_model)
                values, sizes = values + mixed[index] @ out, sizes + seen[index] @ abs(out)
        if attn.b_O is not None:
            values, sizes = values + attn.b_O, sizes + abs(attn.b_O)
        steps = len(tokens) + sum(attn.W_O.shape[:2]) + 2
        yield begin(f"L{layer}bias", values, sizes, steps)


def _apply(run: Run, prefix: _Prefix, head: Head, bounds: Sequence[Array]) -> _Prefix:
    attn = run.model.weights.blocks[head.layer].attn
    w_v, w_o = attn.W_V[head.index], attn.W_O[head.index]
    pattern, most = run.patterns[head.layer][head.index], bounds[head.layer][head.index]
    tiny = 0 if w_v.dtype == object else TINY
    return _Prefix(
        Path(prefix.path.source, (*prefix.path.components, head)),
        pattern @ prefix.moved,  # (query, key)
        (prefix.stream @ w_v) @ w_o,  # (key, d_model)
        most @ prefix.sizes_moved + tiny,
        (prefix.sizes @ abs(w_v) + tiny) @ abs(w_o) + tiny,
        prefix.steps + len(pattern) + sum(w_v.shape) + 2,
    )


def _read(prefix: _Prefix, readout: Readout) -> Reference:
    at, direction = readout.position, readout.direction
    tiny = 0 if direction.dtype == object else TINY
    return Reference(
        prefix.path,
        prefix.moved[at] * (prefix.stream @ direction),  # (key,)
        prefix.sizes_moved[at] * (prefix.sizes @ abs(direction) + tiny) + tiny,
        prefix.steps + len(direction) + 2,
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """A run small enough for every path of it to be evaluated, and what was cut to get there."""

    run: Run
    layers: int
    heads: int
    detail: str


def cut(run: Run, *, operations: float = 2e9, paths: int = 5_000) -> Cut:
    """Keep the first heads of each layer, or the first layers, until every path can be evaluated.

    Weights and patterns of what stays are the run's own; the dense pass is run again on them.
    `operations` and `paths` are what may be spent. A small model comes back as it is.

    >>> from pathexpand import api
    >>> run = api.load("two-layer").run("to be")
    >>> cut(run).detail, cut(run, paths=9).detail
    ('all 25 paths', 'all 9 paths of the first 2 of 4 heads a layer')
    """
    config = run.model.config
    positions = len(run.tokens)
    one = 4 * positions * (2 * config.d_model * max(config.d_head, 1) + positions**2)
    most = min(paths, int(operations / one))
    layers, heads = config.n_layers, config.n_heads
    while layers and _count(run, layers, heads) > most and (layers, heads) != (1, 1):
        layers, heads = (layers, heads - 1) if heads > 1 else (layers - 1, 1)
    if (layers, heads) == (config.n_layers, config.n_heads):
        return Cut(run, layers, heads, f"all {run.model.network.count():,} paths")
    smaller = cut_to(run, layers, heads)
    detail = f"all {smaller.model.network.count():,} paths of the first "
    detail += f"{heads} of {config.n_heads} heads a layer"
    if layers < config.n_layers:
        detail += f", first {layers} of {config.n_layers} layers"
    return Cut(smaller, layers, heads, detail)


def _count(run: Run, layers: int, heads: int) -> int:
    births = [_birth(source.label) for source in run.model.network.sources]
    return sum((1 + heads) ** (layers - birth) for birth in births if birth <= layers)


def _birth(source: str) -> int:
    """Say which layer is the first to read a source born in the stream."""
    return int(source.removeprefix("L").removesuffix("bias")) + 1 if "bias" in source else 0


def cut_to(run: Run, layers: int, heads: int) -> Run:
    """Keep the first heads of the first layers, with the run's own patterns.

    >>> from pathexpand import api
    >>> cut_to(api.load("two-layer").run("to be"), 1, 3).model.network.count()
    4
    """
    weights, config = run.model.weights, run.model.config
    blocks = tuple(Block(_first_heads(block.attn, heads)) for block in weights.blocks[:layers])
    smaller = replace(weights, blocks=blocks)
    sizes = replace(config, n_layers=layers, n_heads=heads, attn_scale=config.attn_scale[:layers])
    patterns = [pattern[:, :heads] for pattern in run.dense.patterns[:layers]]
    dense = forward(smaller, sizes, run.dense.tokens, run.dense.mask, patterns=patterns)
    return Run(Model(Checkpoint(sizes, smaller, run.model.tokenizer)), dense)


def _first_heads(attn: Attention, heads: int) -> Attention:
    kept = {field.name: getattr(attn, field.name) for field in fields(Attention)}
    return Attention(
        **{
            name: array if array is None or name == "b_O" else array[:heads]
            for name, array in kept.items()
        }
    )


def dense_rounding(run: Run, what: Target, readout: Readout) -> float:
    """Bound the rounding of a target's dense value, and of what the paths share with it.

    Shared are the bias sources and the readout's direction: both sides read the same arrays.

    >>> from pathexpand import api
    >>> run = api.load("two-layer").run("to be")
    >>> 0 < dense_rounding(run, run.target(), run.target().readout(run.model.weights, 1)) < 1e-9
    True
    """
    weights, streams = run.model.weights, tuple(stream[0] for stream in run.dense.residual)
    reads = functionals(run.frozen, readout)
    return (
        stream_rounding(weights, run.patterns, streams, reads)
        + constants_rounding(weights, run.patterns, reads)
        + what.rounding(weights, streams[-1][readout.position])
    )
