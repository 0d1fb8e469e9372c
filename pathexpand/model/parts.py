"""The parts of a transformer's layers as values: norms, attention, MLPs, blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NormKind = Literal["layer", "rms"]


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """A norm of the stream: x ↦ (x − mean) / sqrt(var + eps) · weight + bias, or without the mean.

    Shapes: `weight` and `bias` (d_model,), either of which may be absent. `kind` "rms" takes no
    mean off. Gemma's weight has its 1 already added.
    """

    kind: NormKind
    weight: Array | None
    bias: Array | None
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorm:
    """A norm of queries or keys.

    Shapes: `weight` and `bias` (1 or heads, d_head). With `across`, one norm is taken over all
    heads together (OLMo 2); without, one for each head.
    """

    kind: NormKind
    weight: Array | None
    bias: Array | None
    eps: float
    across: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """The weights of one attention layer.

    Shapes: `W_Q` (head, d_model, d_head), `W_K W_V` (kv_head, d_model, d_head),
    `W_O` (head, d_head, d_model), `b_Q` (head, d_head), `b_K b_V` (kv_head, d_head),
    `b_O` (d_model,), `sinks` (head,): a logit that joins each softmax and is dropped from it.
    A bias, a norm and the sinks may be absent.
    """

    W_Q: Array
    W_K: Array
    W_V: Array
    W_O: Array
    b_Q: Array | None = None
    b_K: Array | None = None
    b_V: Array | None = None
    b_O: Array | None = None
    q_norm: HeadNorm | None = None
    k_norm: HeadNorm | None = None
    sinks: Array | None = None

    @property
    def kv_of(self) -> npt.NDArray[np.intp]:
        """The key-value head that each query head reads: (head,).

        >>> zeros = [np.zeros((heads, 3, 1)) for heads in (4, 2, 2)]
        >>> Attention(*zeros, np.zeros((4, 1, 3))).kv_of
        array([0, 0, 1, 1])
        """
        return np.arange(len(self.W_Q)) // (len(self.W_Q) // len(self.W_K))


@dataclass(frozen=True, slots=True, eq=False)
class Mlp:
    """The weights of one MLP.

    Plain: act(x W_in + b_in) W_out + b_out. Gated, where there is a `W_gate`:
    (act(x W_gate + b_gate) · (x W_in + b_in)) W_out + b_out. Shapes: `W_in` and `W_gate`
    (d_model, d_mlp), `W_out` (d_mlp, d_model), `b_in` and `b_gate` (d_mlp,), `b_out` (d_model,).
    """

    W_in: Array
    W_out: Array
    act: str
    W_gate: Array | None = None
    b_in: Array | None = None
    b_gate: Array | None = None
    b_out: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One layer: attention, and an MLP unless the model has none.

    Attention reads the stream through `ln1`; what it writes goes through `ln1_post` and is
    multiplied by `scale` before it is added; the stream then goes through `ln1_after`. The MLP
    likewise with `ln2`, `ln2_post`, `ln2_after`. In a `parallel` block the MLP reads the stream
    from before attention. A norm that is absent changes nothing.
    """

    attn: Attention
    mlp: Mlp | None = None
    parallel: bool = False
    ln1: Norm | None = None
    ln2: Norm | None = None
    ln1_post: Norm | None = None
    ln2_post: Norm | None = None
    ln1_after: Norm | None = None
    ln2_after: Norm | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Transform:
    """What a masked-LM head does before it unembeds: norm(act(x W + b)).

    Shapes: `W` (d_model, d_model), `b` (d_model,).
    """

    W: Array
    b: Array | None
    act: str
    norm: Norm | None
