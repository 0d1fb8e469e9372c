"""The way from the last stream to the logits, with its norm and gates held fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.frozen.norm import back, size_through, through
from pathexpand.model.forward import Forward
from pathexpand.model.weights import Norm, Weights

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Unembed:
    """The last stream read as logits, at each position of one run.

    `scale` (position,) is that of the final norm; `gates` (position, d_model) and
    `transform_scale` (position,) are those of a masked-token head. Each is None where there is
    none.
    """

    weights: Weights
    scale: Array | None
    gates: Array | None
    transform_scale: Array | None

    def direction(self, position: int, columns: Array) -> tuple[Array, Any]:
        """Give what a direction of the unembedding's input (d_model,) reads of the last stream.

        Returns the direction (d_model,) of the stream, and the constant beside it.
        """
        transform, constant = self.weights.transform, 0
        if transform is not None and self.gates is not None:
            columns, beta = _behind(transform.norm, columns, self.transform_scale, position)
            columns = columns * self.gates[position]
            bias = 0 if transform.b is None else transform.b @ columns
            columns, constant = transform.W @ columns, beta + bias
        columns, beta = _behind(self.weights.final_norm, columns, self.scale, position)
        return columns, constant + beta

    def logits(self, position: int, stream: Array) -> Array:
        """Give the logits of a part of the last stream (d_model,), constants left out."""
        rows = stream
        if self.weights.final_norm is not None and self.scale is not None:
            rows = through(self.weights.final_norm, rows) * self.scale[position]
        transform = self.weights.transform
        if transform is not None and self.gates is not None:
            rows = (rows @ transform.W) * self.gates[position]
            if transform.norm is not None and self.transform_scale is not None:
                rows = through(transform.norm, rows) * self.transform_scale[position]
        return self.weights.unembedding.products(rows)

    def constant(self, position: int) -> Array:
        """Give what is born in the logits: (d_vocab_out,)."""
        norm, transform = self.weights.final_norm, self.weights.transform
        exact = self.weights.exact
        rows = np.zeros(self.weights.unembedding.width, dtype=object if exact else np.float64)
        if norm is not None and norm.bias is not None:
            rows = rows + norm.bias
        if transform is not None and self.gates is not None:
            rows = rows @ transform.W
            rows = (rows if transform.b is None else rows + transform.b) * self.gates[position]
            if transform.norm is not None and self.transform_scale is not None:
                rows = through(transform.norm, rows) * self.transform_scale[position]
                rows = rows if transform.norm.bias is None else rows + transform.norm.bias
        out = self.weights.unembedding.products(rows)
        return out if self.weights.b_U is None else out + self.weights.b_U

    def size(self, position: int, stream: Array) -> tuple[Array, int]:
        """Bound the sizes that reach the unembedding from a stream (d_model,), and the roundings.

        Gives sizes (d_model,), and how many roundings may follow one another on the way.
        """
        rows, steps = abs(stream)[None], 0
        norm, scale = self.weights.final_norm, self.scale
        if norm is not None and scale is not None:
            rows = size_through(norm, rows, scale[position : position + 1])
            steps += rows.shape[1] + 8
        transform = self.weights.transform
        if transform is not None and self.gates is not None:
            rows = rows @ abs(transform.W)
            rows = rows if transform.b is None else rows + abs(transform.b)
            rows = rows * np.maximum(1, abs(self.gates[position]))
            if transform.norm is not None and self.transform_scale is not None:
                at = self.transform_scale[position : position + 1]
                rows = size_through(transform.norm, rows, at)
            steps += 2 * rows.shape[1] + 24
        return rows[0], steps


def unembed(weights: Weights, run: Forward, *, row: int = 0) -> Unembed:
    """Freeze the way to the logits of one row of a dense forward pass."""
    return Unembed(
        weights,
        None if run.final_scale is None else run.final_scale[row],
        None if run.transform_gates is None else run.transform_gates[row],
        None if run.transform_scale is None else run.transform_scale[row],
    )


def has_constant(weights: Weights) -> bool:
    """Say whether something is born in the logits: a bias, or what a norm before them adds."""
    transform = weights.transform
    biases = [weights.b_U, None if weights.final_norm is None else weights.final_norm.bias]
    if transform is not None:
        biases += [transform.b, None if transform.norm is None else transform.norm.bias]
    return any(bias is not None for bias in biases)


def _behind(
    norm: Norm | None, columns: Array, scale: Array | None, position: int
) -> tuple[Array, Any]:
    if norm is None or scale is None:
        return columns, 0
    constant = 0 if norm.bias is None else norm.bias @ columns
    return back(norm, columns[:, None])[:, 0] * scale[position], constant
