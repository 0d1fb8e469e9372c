"""From a dense forward pass to the frozen sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError, PathExpandError
from pathexpand.frozen.group import Group, HeadGroup, MlpGroup, NeuronGroup
from pathexpand.frozen.norm import Carry, back, through
from pathexpand.frozen.sum import FrozenSource, FrozenStage, FrozenSum
from pathexpand.frozen.unembed import has_constant
from pathexpand.model.config import Config
from pathexpand.model.forward import Forward, LayerTrace
from pathexpand.model.weights import Attention, Block, Mlp, Norm, Weights
from pathexpand.symbolic import Component, Head, Network, Neuron, Source
from pathexpand.symbolic import Mlp as MlpComponent

Array = npt.NDArray[Any]
MlpMode = Literal["source", "frozen", "neurons"]
MLP_MODES: tuple[str, ...] = get_args(MlpMode)


def freeze(
    weights: Weights, config: Config, run: Forward, *, row: int = 0, mlp: MlpMode = "source"
) -> FrozenSum:
    """Freeze one row of a dense forward pass.

    `mlp` says what an MLP is: a source that writes what it wrote, one component with its gates
    held fixed, or a component for each neuron. Norms are folded into what reads behind them and
    what writes in front of them. All that the layers add and that no path brings (biases, what
    norms add) is a source born with the layer's attention or MLP.
    """
    check_mode(mlp)
    sources = list(embedding_sources(weights, config, run, row))
    stages: list[FrozenStage] = []
    streams = [run.residual[0][row]]
    for layer in range(len(weights.blocks)):
        block, trace, last = weights.blocks[layer], run.layers[layer], run.residual[layer + 1][row]
        for stage, born, stream in frozen_layer(layer, block, trace, last, row=row, mlp=mlp):
            stages.append(stage)
            streams.append(stream)
            sources += [FrozenSource(label, len(stages), values) for label, values in born]
    constant = "b_U" if has_constant(weights) else None
    return FrozenSum(tuple(sources), tuple(stages), tuple(streams), run.mask[row], constant)


# A stage, what is born behind it (label and values), and the dense stream there.
Passed = tuple[FrozenStage, list[tuple[str, Array]], Array]


def frozen_layer(
    layer: int,
    block: Block,
    trace: LayerTrace,
    last: Array,
    *,
    row: int = 0,
    mlp: MlpMode = "source",
) -> list[Passed]:
    """Freeze one layer of one row of a dense forward pass: its stages in order.

    `last` (position, d_model) is the row's stream behind the layer.
    """
    _check_norms(block)
    return list(_Layer(layer, block, trace, row, mlp).stages(last))


def network_of(weights: Weights, config: Config, *, mlp: MlpMode = "source") -> Network:
    """Give the symbolic network of a model, with the same sources as its frozen runs."""
    check_mode(mlp)
    sources = [Source("embed", 0)]
    if config.positional_embedding_type == "standard" and weights.pos is not None:
        sources.append(Source("pos", 0))
    if weights.types is not None:
        sources.append(Source("type", 0))
    if any(norm.bias is not None for norm in weights.embed_norms):
        sources.append(Source("embedbias", 0))
    stages: list[tuple[Component, ...]] = []
    for layer in range(len(weights.blocks)):
        for components, labels in _shape(layer, weights.outline(layer), mlp):
            stages.append(components)
            sources += [Source(label, len(stages)) for label in labels]
    if has_constant(weights):
        sources.append(Source("b_U", None))
    return Network(stages=tuple(stages), sources=tuple(sources))


def check_mode(mlp: object) -> None:
    """Refuse a way to take MLPs that there is not."""
    if mlp not in MLP_MODES:
        raise PathExpandError("mlp", wanted="source, frozen or neurons", got=repr(mlp)[:40])


def embedding_sources(
    weights: Weights, config: Config, run: Forward, row: int
) -> Iterator[FrozenSource]:
    """Give what is born before the first stage, behind the norms of the embedding."""
    found = {"embed": weights.embedded(run.tokens[row])}
    if config.positional_embedding_type == "standard" and weights.pos is not None:
        found["pos"] = weights.positions(run.places[row])
    if weights.types is not None:
        types = np.zeros_like(run.tokens[row]) if run.types is None else run.types[row]
        found["type"] = weights.types.at(types)
    for norm, scales in zip(weights.embed_norms, run.embed_scales, strict=True):
        found = {label: _normed(norm, scales[row], values) for label, values in found.items()}
        if norm.bias is not None:
            bias = np.tile(norm.bias, (len(run.tokens[row]), 1))
            found["embedbias"] = found.get("embedbias", 0) + bias
    for label, values in found.items():
        yield FrozenSource(label, 0, values)


def _shape(
    layer: int, block: Block, mlp: MlpMode
) -> Iterator[tuple[tuple[Component, ...], list[str]]]:
    """Yield each stage of a layer: its components, and what is born behind it."""
    _check_norms(block)
    heads: tuple[Component, ...] = tuple(Head(layer, n) for n in range(len(block.attn.W_O)))
    own = _mlp_components(layer, block, mlp)
    first = [f"L{layer}bias"] if _attention_adds(block) else []
    second = [f"L{layer}M"] if block.mlp is not None and mlp == "source" else []
    second += [f"L{layer}Mbias"] if _mlp_adds(block, mlp) else []
    if _is_one_stage(block, mlp):
        yield (*heads, *own), first + second
    else:
        yield heads, first
        yield own, second


def _check_norms(block: Block) -> None:
    """Refuse norms of the stream in places that no known architecture has them."""
    if block.parallel and (block.ln1_after is not None or block.ln2_after is not None):
        raise ModelError("block", wanted="no norm of the stream in a parallel block", got="one")
    if block.mlp is None and block.ln2_after is not None:
        raise ModelError("block", wanted="an MLP in front of its norm of the stream", got="none")


def _mlp_components(layer: int, block: Block, mlp: MlpMode) -> tuple[Component, ...]:
    if block.mlp is None or mlp == "source":
        return ()
    if mlp == "frozen":
        return (MlpComponent(layer),)
    return tuple(Neuron(layer, n) for n in range(block.mlp.W_out.shape[0]))


def _is_one_stage(block: Block, mlp: MlpMode) -> bool:
    """Say whether nothing of the layer reads or passes what its attention wrote."""
    if block.parallel or block.mlp is None:
        return True
    return mlp == "source" and block.ln2_after is None


def _attention_adds(block: Block) -> bool:
    attn = block.attn
    biases = [attn.b_V, attn.b_O, _bias(block.ln1), _bias(block.ln1_post), _bias(block.ln1_after)]
    return any(bias is not None for bias in biases)


def _mlp_adds(block: Block, mlp: MlpMode) -> bool:
    """Say whether the MLP adds what no component and no source of its own stands for."""
    if block.mlp is None:
        return False
    biases = [_bias(block.ln2_after)]
    if mlp != "source":
        biases += [block.mlp.b_in, block.mlp.b_out, _bias(block.ln2), _bias(block.ln2_post)]
    return any(bias is not None for bias in biases)


def _bias(norm: Norm | None) -> Array | None:
    return None if norm is None else norm.bias


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One block with what one row of a dense pass holds fixed in it."""

    layer: int
    block: Block
    trace: LayerTrace
    row: int
    mlp: MlpMode

    def stages(self, last: Array) -> Iterator[Passed]:
        """Yield each stage, what is born behind it, and the stream there; `last` is the final."""
        block, heads = self.block, self._heads()
        first = [(f"L{self.layer}bias", self._attention_bias())] if _attention_adds(block) else []
        own, second = self._own(), self._born_with_mlp()
        if _is_one_stage(block, self.mlp):
            yield FrozenStage((heads, *own), self._carry("1")), first + second, last
        else:
            middle = self.trace.middle
            assert middle is not None  # a sequential block with an MLP has one
            yield FrozenStage((heads,), self._carry("1")), first, middle[self.row]
            yield FrozenStage(own, self._carry("2")), second, last

    def _scale(self, name: str) -> Array | None:
        scale: Array | None = getattr(self.trace, f"scale{name}")
        return None if scale is None else scale[self.row]

    def _carry(self, which: str) -> Carry | None:
        norm, scale = getattr(self.block, f"ln{which}_after"), self._scale(f"{which}_after")
        return None if norm is None or scale is None else Carry(norm, scale)

    def _writing(self, which: str, rows: Array) -> Array:
        """Fold the norms that outputs (…, d_model) pass on to the stream, the scales left out."""
        rows = through(getattr(self.block, f"ln{which}_post"), rows)
        return through(getattr(self.block, f"ln{which}_after"), rows)

    def _row_scale(self, which: str) -> Any:
        """Give what each position's output is multiplied by: (position,), or a number."""
        scale: Any = 1 if self.block.scale == 1 else self.block.scale  # no 1.0: exact stays
        for name in (f"{which}_post", f"{which}_after"):
            factor = self._scale(name)
            scale = scale if factor is None else scale * factor
        return scale

    def _added(self, which: str, output: Array) -> Array:
        """Send what attention or the MLP writes (position, d_model) into the stream, β included."""
        post, after = getattr(self.block, f"ln{which}_post"), self._carry(which)
        scale = self._scale(f"{which}_post")
        if post is not None and scale is not None:
            output = _normed(post, scale, output)
            output = output if post.bias is None else output + post.bias
        output = output if self.block.scale == 1 else output * self.block.scale
        if after is not None:
            output = after.push(output)
            output = output if after.norm.bias is None else output + after.norm.bias
        return output

    def _heads(self) -> HeadGroup:
        attn, pattern = self.block.attn, self.trace.pattern[self.row]
        scale, rows = self._scale("1"), self._row_scale("1")
        if scale is not None:
            pattern = pattern * scale  # the scale at the key
        if isinstance(rows, np.ndarray):
            pattern = pattern * rows[:, None]
        elif rows != 1:
            pattern = pattern * rows
        shared = per_head(attn, attn.W_V)
        return HeadGroup(
            tuple(Head(self.layer, n) for n in range(len(attn.W_O))),
            pattern,
            back(self.block.ln1, shared),
            self._writing("1", attn.W_O),
        )

    def _attention_bias(self) -> Array:
        """Give what attention adds that no path brings: (position, d_model).

        A value bias is seen through the pattern, so a head adds rowsum(A) b_V W_O: the whole of
        b_V W_O only where its row sums to 1, nothing where the row is masked.
        """
        attn, pattern = self.block.attn, self.trace.pattern[self.row]
        total: Any = np.zeros((pattern.shape[1], attn.W_O.shape[-1]), dtype=attn.W_O.dtype)
        bias, beta = attn.b_V, _bias(self.block.ln1)
        if beta is not None:
            seen = beta @ attn.W_V  # (kv_head, d_head)
            bias = seen if bias is None else bias + seen
        if bias is not None:
            bias = per_head(attn, bias)
            for row, each, out in zip(pattern, bias, attn.W_O, strict=True):
                total = total + np.outer(row.sum(axis=1), each @ out)  # (query, d_model)
        total = total if attn.b_O is None else total + attn.b_O
        return self._added("1", total)

    def _gates(self) -> Array:
        gates = self.trace.gates
        assert gates is not None  # the block has an MLP
        out: Array = gates[self.row]
        return out

    def _own(self) -> tuple[Group, ...]:
        mlp = self.block.mlp
        components = _mlp_components(self.layer, self.block, self.mlp)
        if mlp is None or not components:
            return ()
        gates, scale, rows = self._gates(), self._scale("2"), self._row_scale("2")
        gates = gates if scale is None else gates * scale[:, None]
        gates = gates * (rows[:, None] if isinstance(rows, np.ndarray) else rows)
        kind: Any = MlpGroup if self.mlp == "frozen" else NeuronGroup
        w_in, w_out = back(self.block.ln2, mlp.W_in), self._writing("2", mlp.W_out)
        return (kind(components, gates, w_in, w_out),)

    def _born_with_mlp(self) -> list[tuple[str, Array]]:
        block, mlp = self.block, self.block.mlp
        if mlp is None:
            return []
        born = []
        if self.mlp == "source":
            output, after = self.trace.mlp_out, self._carry("2")
            assert output is not None
            values = output[self.row]  # what is added, before the stream passes its norm
            born.append((f"L{self.layer}M", values if after is None else after.push(values)))
        if _mlp_adds(block, self.mlp):
            born.append((f"L{self.layer}Mbias", self._mlp_bias(mlp)))
        return born

    def _mlp_bias(self, mlp: Mlp) -> Array:
        """Give what the MLP adds that no path brings: (position, d_model)."""
        gates = self._gates()  # (position, neuron)
        if self.mlp == "source":  # only what the norm of the stream adds
            beta = _bias(self.block.ln2_after)
            assert beta is not None
            return np.tile(beta, (len(gates), 1))
        total: Any = np.zeros((len(gates), mlp.W_out.shape[1]), dtype=mlp.W_out.dtype)
        bias, beta = mlp.b_in, _bias(self.block.ln2)
        if beta is not None:
            seen = beta @ mlp.W_in  # (neuron,)
            bias = seen if bias is None else bias + seen
        if bias is not None:
            total = total + (gates * bias) @ mlp.W_out  # (position, d_model)
        total = total if mlp.b_out is None else total + mlp.b_out
        return self._added("2", total)


def per_head(attn: Attention, shared: Array) -> Array:
    """Give each query head its key-value head's part: (kv_head, …) to (head, …)."""
    return shared if len(shared) == len(attn.W_O) else shared[attn.kv_of]


def _normed(norm: Norm, scale: Array, rows: Array) -> Array:
    """Send vectors (position, d_model) through a norm, β left out."""
    return through(norm, rows) * scale[:, None]
