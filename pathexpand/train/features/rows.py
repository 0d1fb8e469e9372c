"""What features read and what they stand for, row by row, from the package's own dense pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pathexpand.errors import ModelError, PathExpandError
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import Forward, forward
from pathexpand.model.parts import Array
from pathexpand.train.features.passing import Tokens, through

AT_ONCE = 64
SAME = 0.9999  # the cosine from which on two directions count as one


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Holds what features read, (row, d_in), and what they stand for, (row, d_out)."""

    reads: Array
    writes: Array

    def __post_init__(self) -> None:
        """Refuse rows that are not of the same positions."""
        if len(self.reads) != len(self.writes):
            raise ModelError("rows", wanted=f"{len(self.reads)}", got=f"{len(self.writes)}")


def stream_rows(
    checkpoint: Checkpoint, tokens: Tokens, layer: int, *, dtype: type[np.floating] = np.float32
) -> Rows:
    """Give the stream before a layer, at every position of every text."""
    parts = [run.residual[layer] for run in runs(checkpoint, tokens, dtype)]
    stream = flat(parts)  # (row · position, d_model)
    return Rows(reads=stream, writes=stream)


def mlp_rows(
    checkpoint: Checkpoint, tokens: Tokens, *, dtype: type[np.floating] = np.float32
) -> tuple[Rows, ...]:
    """Give what each layer's MLP reads, behind its norm, and writes; raises `ModelError`."""
    layers = range(checkpoint.config.n_layers)
    blocks = [checkpoint.weights.block(layer, dtype) for layer in layers]
    found: list[tuple[list[Array], list[Array]]] = [([], []) for _ in layers]
    for run in runs(checkpoint, tokens, dtype):
        for block, trace, (reads, writes) in zip(blocks, run.layers, found, strict=True):
            if trace.mlp_out is None or trace.middle is None:
                raise ModelError("layer", wanted="an MLP behind its attention", got="none")
            reads.append(through(block.ln2, trace.middle))
            writes.append(trace.mlp_out)
    return tuple(Rows(reads=flat(reads), writes=flat(writes)) for reads, writes in found)


def runs(checkpoint: Checkpoint, tokens: Tokens, dtype: type[np.floating]) -> Iterator[Forward]:
    """Run the model on some rows (batch, position) at a time."""
    for start in range(0, len(tokens), AT_ONCE):
        part = tokens[start : start + AT_ONCE]
        seen = np.ones_like(part, dtype=bool)
        yield forward(checkpoint.weights, checkpoint.config, part, seen, dtype=dtype)


def flat(parts: Sequence[Array]) -> Array:
    """Join (batch, position, d) arrays into rows, (batch · position, d)."""
    return np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])


def distinct(directions: Iterable[Array], wanted: int) -> list[int]:
    """Give the places of the first rows (d,) that point apart; raises `PathExpandError`.

    Texts share their first tokens, so rows repeat. Features that start from the same row get the
    same gradients, in whatever they do, and would stay the same for ever.

    >>> distinct(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), 3)
    [0, 2, 3]
    """
    chosen: list[int] = []
    units: list[Array] = []
    for place, row in enumerate(directions):
        length = np.linalg.norm(row)
        # A row of zeros has no direction: a feature that starts there would read nothing.
        if length > 0 and not (units and (np.array(units) @ row).max() >= SAME * length):
            chosen.append(place)
            units.append(row / length)
        if len(chosen) == wanted:
            return chosen
    raise PathExpandError(
        "rows to start from",
        wanted=f"{wanted} that point apart",
        got=str(len(chosen)),
        remedy="train fewer features, or on more text",
    )
