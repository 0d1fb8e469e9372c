"""One layer with all that is not linear in it held fixed: two affine maps of the stream.

The first is what attention does to it, the second what the MLP does. Applied to nothing they give
the constants; applied to sizes, with every number replaced by its size, they measure rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.norm import FixedNorm
from pathexpand.engine.rounding import TINY
from pathexpand.model.forward import LayerTrace
from pathexpand.model.weights import Block

Array = npt.NDArray[Any]
NORMS = ("ln1", "ln2", "ln1_post", "ln2_post", "ln1_after", "ln2_after")


@dataclass(frozen=True, slots=True, eq=False)
class FixedBlock:
    """A block and what one run did in it, on the first positions.

    Shapes: `pattern` (head, query, key); `norms` are those the block has, by name; `gates`
    (position, neuron) and `mlp_out` (position, d_model) are None without an MLP.
    """

    block: Block
    pattern: Array
    norms: dict[str, FixedNorm]
    gates: Array | None
    mlp_out: Array | None

    @classmethod
    def of(cls, block: Block, trace: LayerTrace, size: int) -> FixedBlock:
        """Take the first positions of a run's first row."""
        norms = {}
        for name in NORMS:
            norm, scale = getattr(block, name), getattr(trace, name.replace("ln", "scale"))
            if norm is not None and scale is not None:
                norms[name] = FixedNorm(norm, scale[0, :size])
        return cls(
            block,
            trace.pattern[0, :, :size, :size],
            norms,
            None if trace.gates is None else trace.gates[0, :size],
            None if trace.mlp_out is None else trace.mlp_out[0, :size],
        )

    # --- as the model applies it -------------------------------------------------------------

    def attention(self, stream: Array) -> Array:
        """Give what attention does to a stream (position, d_model), itself included."""
        attn, reads = self.block.attn, self._applied("ln1", stream)
        out = np.zeros_like(stream) if attn.b_O is None else np.tile(attn.b_O, (len(stream), 1))
        for head, kv in enumerate(attn.kv_of):
            values = reads @ attn.W_V[kv]  # (key, d_head)
            values = values if attn.b_V is None else values + attn.b_V[kv]
            out = out + self.pattern[head] @ values @ attn.W_O[head]  # (query, d_model)
        return self._added("1", stream, out)

    def mlp(self, stream: Array) -> Array:
        """Give what the MLP with its gates held fixed does to a stream, itself included."""
        mlp, gates = self.block.mlp, self.gates
        assert mlp is not None and gates is not None  # asked only where there is one
        inner = self._applied("ln2", stream) @ mlp.W_in  # (position, neuron)
        inner = inner if mlp.b_in is None else inner + mlp.b_in
        out = (inner * gates) @ mlp.W_out  # (position, d_model)
        return self._added("2", stream, out if mlp.b_out is None else out + mlp.b_out)

    def attention_size(self, sizes: Array) -> Array:
        """Bound what `attention` meets on its way with a stream of these sizes."""
        attn, reads = self.block.attn, self._sized("ln1", sizes) + TINY
        out = np.zeros_like(sizes) if attn.b_O is None else np.tile(abs(attn.b_O), (len(sizes), 1))
        for head, kv in enumerate(attn.kv_of):
            values = reads @ abs(attn.W_V[kv]) + TINY  # (key, d_head)
            values = values if attn.b_V is None else values + abs(attn.b_V[kv])
            out = out + (abs(self.pattern[head]) @ values + TINY) @ abs(attn.W_O[head]) + TINY
        return self._added_size("1", sizes, out)

    def mlp_size(self, sizes: Array) -> Array:
        """Bound what `mlp`, or the model's own MLP, meets with a stream of these sizes."""
        mlp, gates = self.block.mlp, self.gates
        assert mlp is not None and gates is not None
        inner = self._sized("ln2", sizes) @ abs(mlp.W_in) + TINY  # (position, neuron)
        inner = inner if mlp.b_in is None else inner + abs(mlp.b_in)
        # An activation is its argument times its gate, but for a few units of the argument.
        out = (inner * (1 + abs(gates))) @ abs(mlp.W_out) + TINY  # (position, d_model)
        out = out if mlp.b_out is None else out + abs(mlp.b_out)
        return self._added_size("2", sizes, out)

    def wrote(self) -> Array:
        """Give what the MLP really wrote, as it stands in the stream behind it."""
        assert self.mlp_out is not None
        after = self.norms.get("ln2_after")
        return self.mlp_out if after is None else after.push(self.mlp_out)

    def shift(self) -> Array:
        """Give what the norm behind the MLP adds to the stream: (position, d_model)."""
        after, written = self.norms.get("ln2_after"), self.mlp_out
        assert written is not None
        beta = None if after is None else after.norm.bias
        return np.zeros_like(written) if beta is None else np.tile(beta, (len(written), 1))

    def steps(self, which: str) -> int:
        """Count the roundings that may follow one another in attention ("1") or the MLP ("2")."""
        norms = sum(name.startswith(f"ln{which}") for name in self.norms)
        if which == "1":
            heads, d_head, d_model = self.block.attn.W_O.shape
            own = d_model + self.pattern.shape[1] + heads * d_head + d_head
        else:
            assert self.block.mlp is not None
            own = sum(self.block.mlp.W_in.shape)
            d_model = self.block.mlp.W_in.shape[0]
        return int(own + norms * (d_model + 8) + 12)

    # --- as position map ⊗ linear map ------------------------------------------------------------

    def heads(self) -> tuple[Array, Array, Array]:
        """Give the heads: patterns (head, query, key), W_V and W_O, with the norms around them."""
        attn, norm = self.block.attn, self.norms.get("ln1")
        pattern = self.pattern * self._row_scale("1")[:, None]
        pattern = pattern if norm is None else pattern * norm.scale
        values = attn.W_V if norm is None else norm.folded(attn.W_V)
        return pattern, values[attn.kv_of], self._written("1", attn.W_O)

    def neurons(self) -> tuple[Array, Array, Array]:
        """Give the neurons: gates (position, neuron), W_in, W_out, with the norms around them."""
        mlp, gates, norm = self.block.mlp, self.gates, self.norms.get("ln2")
        assert mlp is not None and gates is not None
        reads = mlp.W_in if norm is None else norm.folded(mlp.W_in)
        return gates * self.gate_scale[:, None], reads, self._written("2", mlp.W_out)

    @property
    def gate_scale(self) -> Array:
        """What the norms around the MLP multiply its gates by: (position,)."""
        norm, rows = self.norms.get("ln2"), self._row_scale("2")
        return rows if norm is None else rows * norm.scale

    def _applied(self, name: str, stream: Array) -> Array:
        return self.norms[name].applied(stream) if name in self.norms else stream

    def _sized(self, name: str, sizes: Array) -> Array:
        return self.norms[name].size(sizes) if name in self.norms else sizes

    def _added(self, which: str, stream: Array, out: Array) -> Array:
        out = stream + self.block.scale * self._applied(f"ln{which}_post", out)
        return self._applied(f"ln{which}_after", out)

    def _added_size(self, which: str, sizes: Array, out: Array) -> Array:
        out = sizes + abs(self.block.scale) * self._sized(f"ln{which}_post", out)
        return self._sized(f"ln{which}_after", out)

    def _written(self, which: str, rows: Array) -> Array:
        for name in (f"ln{which}_post", f"ln{which}_after"):
            rows = self.norms[name].linear(rows) if name in self.norms else rows
        return rows

    def _row_scale(self, which: str) -> Array:
        out = np.full(self.pattern.shape[1], float(self.block.scale))
        for name in (f"ln{which}_post", f"ln{which}_after"):
            out = out * self.norms[name].scale if name in self.norms else out
        return out
