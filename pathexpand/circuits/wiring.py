"""Who writes what into the stream and who reads what from it, as matrices with norms folded in.

A norm is diag(scale) ⊗ a matrix (DESIGN section 3). From weights alone there is no scale, so what
is given here holds each norm's matrix, its weight and the mean it takes off, and leaves the scale
out. Arrays follow the row convention: a path acts as x → x W.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError, PathExpandError
from pathexpand.frozen.freeze import per_head
from pathexpand.frozen.norm import back, through
from pathexpand.lowrank import Factored
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.config import Config
from pathexpand.model.parts import Attention, Block, HeadNorm, Mlp, Norm
from pathexpand.model.shown import shown
from pathexpand.symbolic import Head
from pathexpand.symbolic.component import NUMBER

Array = npt.NDArray[Any]

_WRITERS = "embed, pos, L0H3, L0M or L0N5"
_READERS = "L1H0.q, L1H0.k, L1H0.v, L1M, L1M.gate, L1N3, L1N3.gate or unembed"
_PORT = re.compile(
    rf"(?P<end>embed|pos|unembed)|L{NUMBER}(?:H{NUMBER}(?:\.(?P<leg>[qkv]))?"
    rf"|(?P<mlp>M)(?P<gate>\.gate)?|N{NUMBER}(?P<own_gate>\.gate)?)",
    re.ASCII,
)
# Where in a layer something reads or writes: four places a layer, in the order the stream has them.
_ATTENTION, _AFTER_ATTENTION, _MLP, _AFTER_MLP, _PLACES = 0, 1, 2, 3, 4


@dataclass(frozen=True, slots=True, eq=False)
class HeadWeights:
    """The four matrices of each query head of one layer, with norms folded in.

    Shapes: `W_Q`, `W_K` and `W_V` (head, d_model, d_head), `W_O` (head, d_head, d_model); float64,
    one of each for every query head, also where several share a key-value head.
    """

    W_Q: Array
    W_K: Array
    W_V: Array
    W_O: Array

    def __post_init__(self) -> None:
        """Refuse shapes that do not meet."""
        heads, d_model, d_head = self.W_Q.shape
        values = self.W_V.shape[-1]
        wanted = {
            "W_K": (heads, d_model, d_head),
            "W_V": (heads, d_model, values),
            "W_O": (heads, values, d_model),
        }
        for name, shape in wanted.items():
            got = getattr(self, name).shape
            if got != shape:
                raise PathExpandError(f"{name} of a layer's heads", wanted=f"{shape}", got=f"{got}")

    def qk(self, head: int) -> Factored:
        """Give W_Q W_Kᵀ of one head: (d_model, d_model), not divided by the attention scale."""
        return Factored(self.W_Q[head], self.W_K[head].T)

    def ov(self, head: int) -> Factored:
        """Give W_V W_O of one head: (d_model, d_model)."""
        return Factored(self.W_V[head], self.W_O[head])


def head_weights(checkpoint: Checkpoint, layer: int) -> HeadWeights:
    """Give a layer's attention weights with the norms beside them folded in, float64.

    The matrix of the norm in front of attention is in `W_Q`, `W_K` and `W_V`; that of a norm behind
    it, and the block's residual scale, in `W_O`; that of query and key norms in `W_Q` and `W_K`.
    Scales of norms, biases and the attention scale are left out. Raises `PathExpandError` for a
    layer that there is not and `ModelError` for a mean taken over the queries of several heads.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> head_weights(read_checkpoint("two-layer"), 1).W_Q.shape
    (4, 192, 64)
    """
    block = _block(checkpoint, layer)
    attn = block.attn
    W_Q = _head_normed(attn.q_norm, back(block.ln1, attn.W_Q))
    W_K = _head_normed(attn.k_norm, back(block.ln1, attn.W_K))
    W_O = through(block.ln1_post, attn.W_O)
    return HeadWeights(
        W_Q,
        per_head(attn, W_K),  # (kv_head, d_model, d_head) -> (head, d_model, d_head)
        per_head(attn, back(block.ln1, attn.W_V)),
        W_O if block.scale == 1 else W_O * block.scale,
    )


def parse_head(config: Config, head: str | Head) -> Head:
    """Give a head of the model, from its label if need be.

    Raises `NotationError` for text that is no label and `PathExpandError` for a head that the
    model does not have.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> parse_head(read_checkpoint("two-layer").config, "L1H2")
    Head(layer=1, index=2)
    """
    found = head if isinstance(head, Head) else Head.parse(head)
    if found.layer >= config.n_layers or found.index >= config.n_heads:
        layers = f"{config.n_layers} layer{'s' if config.n_layers > 1 else ''}"
        raise PathExpandError(
            f"head {found.label}",
            wanted=f"a head of {layers} of {config.n_heads}"
            if config.n_layers
            else "a model with heads",
            got=found.label if config.n_layers else "one of no layers",
            remedy="layers and heads count from 0",
        )
    return found


def turned(checkpoint: Checkpoint, layer: int, W_Q: Array, offset: int | None) -> Array:
    """Turn queries as rotary positions do where the query stands `offset` places behind the key.

    `W_Q` (…, d_model, d_head) comes back so that W_Q W_Kᵀ is the score of that offset, the rotary
    attention factors of both sides included. Angles are those of the shortest prompt in which the
    offset occurs. Without rotary positions nothing turns. Raises `PathExpandError` for a rotary
    layer without an offset, for an offset where nothing turns, and for one that the layer's
    attention never sees.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> W_Q = np.ones((192, 64))
    >>> turned(read_checkpoint("two-layer"), 0, W_Q, None) is W_Q
    True
    """
    config = checkpoint.config
    _check_offset(checkpoint, layer, offset)
    rotary = config.rotary[layer]
    if rotary is None or offset is None:
        return W_Q
    rows = W_Q.reshape(1, -1, 1, W_Q.shape[-1])  # (…, d_model, d_head) -> (1, rows, 1, d_head)
    rows = rotary.turn(rows, np.array([[offset]]))
    out: Array = rows.reshape(W_Q.shape)
    if rotary.attention_factor != 1:  # the key has it too
        out = out.copy()
        out[..., : rotary.width] *= rotary.attention_factor
    return out


def embedding(checkpoint: Checkpoint) -> Array:
    """Give what each token writes into the stream, the embedding's norms folded in.

    (d_vocab, d_model), float64: to multiply it by something, `embedded` needs less memory.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> embedding(read_checkpoint("zero-layer")).shape
    (1024, 192)
    """
    rows = checkpoint.weights.W_E
    for norm in checkpoint.weights.embed_norms:
        rows = through(norm, rows)
    return rows


def unembedding(checkpoint: Checkpoint) -> Array:
    """Give what each logit reads of the last stream, the final norm folded in.

    (d_model, d_vocab_out), float64: to multiply it by something, `unembedded` needs less memory.
    Raises `ModelError` where a masked-token head stands between.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> unembedding(read_checkpoint("zero-layer")).shape
    (192, 1024)
    """
    _check_linear_end(checkpoint)
    return back(checkpoint.weights.final_norm, checkpoint.weights.W_U)


def embedded(checkpoint: Checkpoint, columns: Array) -> Array:
    """Multiply the embedding by something that reads it: (d_model, n) to (d_vocab, n).

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> embedded(read_checkpoint("zero-layer"), np.ones((192, 3))).shape
    (1024, 3)
    """
    weights = checkpoint.weights
    for norm in reversed(weights.embed_norms):
        columns = back(norm, columns)
    return weights.embed.products(np.ascontiguousarray(columns.T)).T


def unembedded(checkpoint: Checkpoint, rows: Array) -> Array:
    """Multiply something that is written by the unembedding: (n, d_model) to (n, d_vocab_out).

    Raises `ModelError` where a masked-token head stands between.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> unembedded(read_checkpoint("zero-layer"), np.ones((3, 192))).shape
    (3, 1024)
    """
    _check_linear_end(checkpoint)
    weights = checkpoint.weights
    return weights.unembedding.products(through(weights.final_norm, rows))


def has_norms(checkpoint: Checkpoint) -> bool:
    """Say whether the model has a norm anywhere, so that circuits hold but for scales.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> has_norms(read_checkpoint("two-layer"))
    False
    """
    weights = checkpoint.weights
    if weights.embed_norms or weights.final_norm is not None:
        return True
    return any(
        any(norm is not None for norm in _norms(weights.outline(layer)))
        for layer in range(checkpoint.config.n_layers)
    )


def write_matrix(checkpoint: Checkpoint, name: str) -> Array:
    """Give what a component writes into the stream: (n, d_model).

    `name` is "embed" (n is d_vocab), "pos" (n_ctx), a head "L0H3" (d_head, its W_O), an MLP "L0M"
    (d_mlp, its W_out) or a neuron "L0N5" (1). Norms behind it are folded in. Raises
    `PathExpandError` for anything else and for what the model does not have.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> write_matrix(read_checkpoint("two-layer"), "L0H3").shape
    (64, 192)
    """
    port = _Port.writer(checkpoint, name)
    if port.end == "embed":
        return embedding(checkpoint)
    if port.end == "pos":
        return _positions(checkpoint)
    if port.head is not None:
        out: Array = head_weights(checkpoint, port.layer).W_O[port.head]
        return out
    block = _block(checkpoint, port.layer)
    mlp = _mlp(block, port)
    W_out = mlp.W_out if port.neuron is None else mlp.W_out[port.neuron, None]  # (n, d_model)
    W_out = through(block.ln2_post, W_out)
    return W_out if block.scale == 1 else W_out * block.scale


def read_matrix(checkpoint: Checkpoint, name: str, offset: int | None = None) -> Array:
    """Give what a component reads from the stream: (d_model, n).

    `name` is a head's query, key or value "L1H0.q", "L1H0.k", "L1H0.v" (d_head), an MLP "L1M"
    (d_mlp, its W_in) or its gate "L1M.gate", a neuron "L1N3" (1) or its gate, or "unembed"
    (d_vocab_out). Norms in front of it are folded in. `offset` turns a query as rotary positions
    do; without it the query is as it stands before it is turned. Raises `PathExpandError` for
    anything else and for what the model does not have.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> read_matrix(read_checkpoint("two-layer"), "L1H0.q").shape
    (192, 64)
    """
    port = _Port.reader(checkpoint, name)
    if offset is not None and port.leg != "q":
        raise PathExpandError(
            f"offset {offset}", wanted="a query to turn, such as L1H0.q", got=name
        )
    if port.end == "unembed":
        return unembedding(checkpoint)
    if port.head is not None:
        each = getattr(head_weights(checkpoint, port.layer), f"W_{port.leg.upper()}")
        columns: Array = each[port.head]
        return columns if offset is None else turned(checkpoint, port.layer, columns, offset)
    block = _block(checkpoint, port.layer)
    mlp = _mlp(block, port)
    W_in = mlp.W_gate if port.gate else mlp.W_in
    if W_in is None:
        raise PathExpandError(f"reader {name}", wanted="a gated MLP", got="one without a gate")
    return back(block.ln2, W_in if port.neuron is None else W_in[:, port.neuron, None])


def virtual_weight(
    checkpoint: Checkpoint, writer: str, reader: str, *, offset: int | None = None
) -> Factored:
    """Give the matrix by which one component reads what another wrote, factored.

    (n of the writer, n of the reader): "A Mathematical Framework for Transformer Circuits",
    virtual weights. Names are those of `write_matrix` and `read_matrix`. Raises `PathExpandError`
    unless the reader reads behind the writer, and `ModelError` where the stream itself passes a
    norm between them.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> virtual_weight(read_checkpoint("two-layer"), "L0H3", "L1H0.k").shape
    (64, 64)
    """
    check_order(checkpoint, writer, reader)
    return Factored.product(
        [write_matrix(checkpoint, writer), read_matrix(checkpoint, reader, offset)]
    )


def check_order(checkpoint: Checkpoint, writer: str, reader: str) -> None:
    """Refuse a pair whose reader does not read, or not linearly, what the writer wrote.

    Components of one layer's attention read the same stream, and so does the MLP of a parallel
    block. Raises `PathExpandError`, and `ModelError` for a norm of the stream between the two.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> check_order(read_checkpoint("two-layer"), "L1H3", "L1H0.k")
    Traceback (most recent call last):
    ...
    pathexpand.errors.PathExpandError: L1H3 to L1H0.k: wanted a reader behind the writer, got one
    beside it
    """
    first, last = _Port.writer(checkpoint, writer), _Port.reader(checkpoint, reader)
    start, stop = first.place(checkpoint), last.place(checkpoint)
    if start >= stop:
        where = "one beside it" if start == stop else "one in front of it"
        raise PathExpandError(
            f"{writer} to {reader}", wanted="a reader behind the writer", got=where
        )
    check_crossing(checkpoint, start, stop)


def check_chain(checkpoint: Checkpoint, heads: tuple[Head, ...], *, ends: bool = False) -> None:
    """Refuse heads that do not stand behind one another, from the embedding on.

    With `ends` the chain goes on to the logits. Raises `PathExpandError`, and `ModelError` where
    the stream itself passes a norm on the way.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> check_chain(read_checkpoint("two-layer"), (Head(1, 0), Head(0, 2)))
    Traceback (most recent call last):
    ...
    pathexpand.errors.PathExpandError: L1H0 > L0H2: wanted heads of rising layers, got one of layer
    0 behind one of layer 1
    """
    for one, other in pairwise(heads):
        if one.layer >= other.layer:
            raise PathExpandError(
                f"{one} > {other}",
                wanted="heads of rising layers",
                got=f"one of layer {other.layer} behind one of layer {one.layer}",
            )
    stop = checkpoint.config.n_layers if ends else heads[-1].layer if heads else 0
    check_crossing(checkpoint, -1, _PLACES * stop)


def check_crossing(checkpoint: Checkpoint, start: int, stop: int) -> None:
    """Refuse a way along the stream that passes a norm of the stream itself.

    Places are four a layer: attention, the norm behind it, the MLP, the norm behind that.
    """
    for layer in range(max(start, 0) // _PLACES, (stop - 1) // _PLACES + 1):
        block = checkpoint.weights.outline(layer)
        for name, place in (("ln1_after", _AFTER_ATTENTION), ("ln2_after", _AFTER_MLP)):
            if getattr(block, name) is not None and start < _PLACES * layer + place < stop:
                raise ModelError(
                    f"model {checkpoint.config.model_name}",
                    wanted="a stream that goes from writer to reader as it is",
                    got=f"one that passes a norm in layer {layer} (post-norm blocks)",
                    remedy="a circuit from weights does not cross it; use paths on a prompt",
                )


# --- names -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Port:
    """A name for one end of a virtual weight, read: a component, and which of its matrices."""

    name: str
    end: str = ""
    layer: int = 0
    head: int | None = None
    leg: str = ""
    neuron: int | None = None
    gate: bool = False

    @classmethod
    def parse(cls, name: object) -> _Port | None:
        match = _PORT.fullmatch(name.strip()) if isinstance(name, str) else None
        if match is None:
            return None
        layer, head, neuron = match[2], match[3], match[7]
        return cls(
            match[0],
            match["end"] or "",
            int(layer or 0),
            None if head is None else int(head),
            match["leg"] or "",
            None if neuron is None else int(neuron),
            bool(match["gate"] or match["own_gate"]),
        )

    @classmethod
    def writer(cls, checkpoint: Checkpoint, name: object) -> _Port:
        port = cls.parse(name)
        if port is None or port.leg or port.gate or port.end == "unembed":
            raise PathExpandError("writer", wanted=_WRITERS, got=shown(name))
        return port._checked(checkpoint)

    @classmethod
    def reader(cls, checkpoint: Checkpoint, name: object) -> _Port:
        port = cls.parse(name)
        writes = port is not None and (
            port.end in ("embed", "pos") or (port.head is not None and not port.leg)
        )
        if port is None or writes:
            raise PathExpandError("reader", wanted=_READERS, got=shown(name))
        return port._checked(checkpoint)

    def _checked(self, checkpoint: Checkpoint) -> _Port:
        config = checkpoint.config
        if self.end:
            return self
        if self.head is not None:
            parse_head(checkpoint.config, Head(self.layer, self.head))
            return self
        mlp = _block_outline(checkpoint, self.layer).mlp
        count = 0 if mlp is None else mlp.W_out.shape[0]
        if mlp is None or (self.neuron or 0) >= count:
            raise PathExpandError(
                f"component {self.name}",
                wanted=f"an MLP in layer {self.layer}" if mlp is None else f"a neuron of {count}",
                got=f"a model of {config.n_layers} layers without it" if mlp is None else self.name,
            )
        return self

    def place(self, checkpoint: Checkpoint) -> int:
        """Give where in the stream it stands; components that stand together read the same."""
        if self.end:
            return _PLACES * checkpoint.config.n_layers if self.end == "unembed" else -1
        at = _PLACES * self.layer
        if self.head is not None or checkpoint.weights.outline(self.layer).parallel:
            return at + _ATTENTION
        return at + _MLP


# --- parts -----------------------------------------------------------------------------------


def _check_layer(checkpoint: Checkpoint, layer: int) -> None:
    count = checkpoint.config.n_layers
    if type(layer) is not int or not 0 <= layer < count:
        wanted = f"a layer from 0 to {count - 1}" if count else "a model with layers"
        raise PathExpandError("layer", wanted=wanted, got=shown(layer))


def _block(checkpoint: Checkpoint, layer: int) -> Block:
    _check_layer(checkpoint, layer)
    return checkpoint.weights.block(layer)


def _block_outline(checkpoint: Checkpoint, layer: int) -> Block:
    _check_layer(checkpoint, layer)
    return checkpoint.weights.outline(layer)


def _mlp(block: Block, port: _Port) -> Mlp:
    if block.mlp is None:
        raise PathExpandError(f"component {port.name}", wanted="an MLP", got="none")
    return block.mlp


def _positions(checkpoint: Checkpoint) -> Array:
    rows, kind = checkpoint.weights.W_pos, checkpoint.config.positional_embedding_type
    if rows is None or kind != "standard":
        raise PathExpandError(
            "writer pos", wanted="positions that are added to the stream", got=f"none ({kind})"
        )
    for norm in checkpoint.weights.embed_norms:
        rows = through(norm, rows)
    return rows


def _head_normed(norm: HeadNorm | None, columns: Array) -> Array:
    """Fold the matrix of a query or key norm into what makes them: (head, d_model, d_head)."""
    if norm is None:
        return columns
    if norm.kind == "layer":
        if norm.across:
            raise ModelError(
                "norm of queries and keys",
                wanted="one that takes the mean of each head",
                got="a mean over all heads, which mixes them",
            )
        columns = columns - columns.mean(axis=-1, keepdims=True)
    return columns if norm.weight is None else columns * norm.weight[:, None]


def _check_offset(checkpoint: Checkpoint, layer: int, offset: int | None) -> None:
    config = checkpoint.config
    _check_layer(checkpoint, layer)
    rotary, window = config.rotary[layer], config.window[layer]
    if rotary is None:
        if offset not in (None, 0) or isinstance(offset, bool):
            raise PathExpandError(
                "offset", wanted="none, as this model has no rotary positions", got=shown(offset)
            )
        return
    causal = config.attention_dir == "causal"
    most = min(config.n_ctx, config.n_ctx if window is None else window) - 1
    wanted = f"an offset (query minus key) from {0 if causal else -most} to {most}"
    if offset is None:
        raise PathExpandError(
            "rotary positions", wanted=wanted, got="none", remedy="the scores depend on it"
        )
    whole = isinstance(offset, int | np.integer) and not isinstance(offset, bool)
    if not whole or abs(offset) > most or (causal and offset < 0):
        raise PathExpandError("offset", wanted=wanted, got=shown(offset))


def _check_linear_end(checkpoint: Checkpoint) -> None:
    if checkpoint.weights.transform is not None:
        raise ModelError(
            f"model {checkpoint.config.model_name}",
            wanted="an unembedding that reads the stream",
            got="a masked-token head with an activation between them",
            remedy="a circuit from weights does not cross it; use paths on a prompt",
        )


def _norms(block: Block) -> Iterator[Norm | HeadNorm | None]:
    names = ("ln1", "ln2", "ln1_post", "ln2_post", "ln1_after", "ln2_after")
    yield from (getattr(block, name) for name in names)
    attn: Attention = block.attn
    yield from (attn.q_norm, attn.k_norm)
