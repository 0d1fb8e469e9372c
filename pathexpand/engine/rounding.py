"""Bounds on what float64 rounding can do, derived from sizes, the machine's unit and magnitudes.

For frozen patterns the model is linear, so a rounding error made at one place reaches the result
only through the functional that reads that place: error = Σ ⟨functional, local error⟩. Each local
error is at most gamma(n) times the same expression with every number replaced by its size
(Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Sizes are floored at `TINY`,
since below it a number is rounded to a fixed grid and no longer to so many digits. Functionals and
streams are the computed ones; what that leaves out is of second order in the unit, and the whole
is doubled for it. (Second-order terms could only show where a stream and the functional that reads
it both cancel to the last digit at the same place: then the bound is itself at rounding level.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.frozen import FrozenSum
from pathexpand.frozen.norm import size_through
from pathexpand.model.forward import Forward, LayerTrace
from pathexpand.model.weights import Block, Weights

Array = npt.NDArray[Any]
UNIT = float(np.finfo(np.float64).eps) / 2
UNIT32 = float(np.finfo(np.float32).eps) / 2
TINY = 2.0**-1021  # UNIT * TINY is the smallest float: the error of one underflow


def gamma(steps: int, unit: float = UNIT) -> float:
    """Give γ_n = n u / (1 - n u), the relative error of n roundings one after another.

    >>> gamma(1) == 2.0**-53 / (1 - 2.0**-53)
    True
    """
    return steps * unit / (1 - steps * unit)


def dense_rounding(
    weights: Weights,
    run: Forward,
    frozen: FrozenSum,
    reads: Sequence[Array],
    *,
    row: int = 0,
    layers: int | None = None,
) -> float:
    """Bound the rounding of the dense pass, and of freezing it, as the functionals see it.

    `reads[b]` (position, d_model) is the functional that reads the frozen sum's boundary b. Each
    layer's steps are met twice: in the dense pass, and in what is folded and summed for the
    frozen sum. With `layers`, only the first layers come before what is read.
    """
    total = _embedding_rounding(weights, run, reads[0], row)
    boundary, labels = 0, {source.label for source in frozen.sources}
    for layer in range(len(weights.blocks) if layers is None else layers):
        block = weights.blocks[layer]
        local = LocalSizes(block, run.layers[layer], run.residual[layer][row], row)
        whole = run.residual[layer + 1][row].shape[0] + 2
        attention, steps = local.attention()
        after = boundary + 1
        total += 2 * gamma(steps + whole) * float((attention * abs(reads[after])).sum())
        if block.mlp is not None:
            two = _stands_alone(frozen, after, layer)
            after += two
            is_source = f"L{layer}M" in labels
            size, steps = local.added_mlp() if is_source else local.mlp()
            total += 2 * gamma(steps + 2) * float((size * abs(reads[after])).sum())
        boundary = after
    return total


def _stands_alone(frozen: FrozenSum, boundary: int, layer: int) -> bool:
    """Say whether the MLP of a layer has a stage of its own behind that of its attention."""
    if boundary >= frozen.depth:
        return False
    components = frozen.stages[boundary].components
    if components:
        return components[0].layer == layer
    # A stage without components is that of an MLP taken as a source, behind a norm of the stream.
    return frozen.stages[boundary].carry is not None


def _embedding_rounding(weights: Weights, run: Forward, reads: Array, row: int) -> float:
    size = abs(weights.embedded(run.tokens[row])) + TINY
    if weights.pos is not None:
        size = size + abs(weights.positions(run.places[row]))
    if weights.types is not None:
        size = size + abs(weights.types.whole()).max(axis=0)
    steps = 4
    for norm, scale in zip(weights.embed_norms, run.embed_scales, strict=True):
        size = size_through(norm, size, scale[row])
        steps += 2 * (size.shape[1] + 8)
    return gamma(steps) * float((size * abs(reads)).sum())


@dataclass(frozen=True, slots=True)
class LocalSizes:
    """The sizes met in one layer on one row, and how many roundings may follow one another."""

    block: Block
    trace: LayerTrace
    stream: Array
    row: int

    def attention(self) -> tuple[Array, int]:
        """Give sizes (position, d_model) behind attention and its norms."""
        attn, pattern = self.block.attn, abs(self.trace.pattern[self.row])
        heads, d_head, d_model = attn.W_O.shape
        reads = self._through("1", abs(self.stream)) + TINY
        total = np.zeros_like(reads)
        values = reads @ abs(attn.W_V) + TINY  # (kv_head, position, d_head)
        if attn.b_V is not None:
            values = values + abs(attn.b_V)[:, None]
        shared = attn.kv_of
        for head, out in enumerate(attn.W_O):
            mixed = pattern[head] @ values[shared[head]] + TINY  # (position, d_head)
            total = total + mixed @ abs(out) + TINY
        total = total if attn.b_O is None else total + abs(attn.b_O)
        steps = d_model + len(reads) + heads * d_head + d_head + 6
        return self._added("1", total, abs(self.stream)), steps + self._norm_steps("1", d_model)

    def mlp(self) -> tuple[Array, int]:
        """Give sizes (position, d_model) behind the MLP and its norms."""
        mlp, gates = self.block.mlp, self.trace.gates
        assert mlp is not None and gates is not None  # asked only where there is one
        middle = self.trace.middle
        before = self.stream if self.block.parallel or middle is None else middle[self.row]
        reads = self._through("2", abs(before)) + TINY
        inner = reads @ abs(mlp.W_in) + TINY  # (position, neuron)
        inner = inner if mlp.b_in is None else inner + abs(mlp.b_in)
        # An activation is z times its gate but for a few units of z itself.
        size = (abs(gates[self.row]) + (mlp.W_gate is None)) * inner
        total = size @ abs(mlp.W_out) + TINY  # (position, d_model)
        total = total if mlp.b_out is None else total + abs(mlp.b_out)
        steps = sum(mlp.W_in.shape) + 12 + self._norm_steps("2", mlp.W_in.shape[0])
        return self._added("2", total, abs(before)), steps

    def added_mlp(self) -> tuple[Array, int]:
        """Give sizes (position, d_model) of adding what the MLP wrote, taken as it is."""
        middle, written = self.trace.middle, self.trace.mlp_out
        assert written is not None  # asked only where there is an MLP
        before = self.stream if self.block.parallel or middle is None else middle[self.row]
        size = size_through(
            self.block.ln2_after,
            abs(before) + abs(written[self.row]) + TINY,
            self._scale("2_after"),
        )
        return size, 4 + (self.block.ln2_after is not None) * (size.shape[1] + 8)

    def _scale(self, name: str) -> Array | None:
        scale: Array | None = getattr(self.trace, f"scale{name}")
        return None if scale is None else scale[self.row]

    def _through(self, which: str, rows: Array) -> Array:
        return size_through(getattr(self.block, f"ln{which}"), rows, self._scale(which))

    def _added(self, which: str, rows: Array, before: Array) -> Array:
        post, after = f"ln{which}_post", f"ln{which}_after"
        rows = size_through(getattr(self.block, post), rows, self._scale(f"{which}_post"))
        rows = before + rows * abs(self.block.scale)
        return size_through(getattr(self.block, after), rows, self._scale(f"{which}_after"))

    def _norm_steps(self, which: str, d_model: int) -> int:
        names = (f"ln{which}", f"ln{which}_post", f"ln{which}_after")
        present = sum(getattr(self.block, name) is not None for name in names)
        return present * (d_model + 8)
