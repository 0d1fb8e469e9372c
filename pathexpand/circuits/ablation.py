"""A forward pass without Q- or K-composition: patterns of queries or keys no head has moved.

It is the dense pass but for what queries, keys or both read, so it is no sum of paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError, PathExpandError
from pathexpand.frozen import HeadGroup, MlpMode, frozen_layer
from pathexpand.frozen.norm import through
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import Forward, LayerTrace, forward
from pathexpand.model.parts import Block
from pathexpand.model.prompt import Tokens
from pathexpand.model.shown import shown

Array = npt.NDArray[Any]
Composition = Literal["Q", "K", "QK"]
COMPOSITIONS: tuple[str, ...] = get_args(Composition)


def without_composition(
    checkpoint: Checkpoint, tokens: Tokens, kind: Composition, *, mlp: MlpMode = "source"
) -> Forward:
    """Run a prompt with the patterns of queries ("Q"), keys ("K") or both that no head has moved.

    In each layer, queries or keys read what of the stream has passed no head; values read all of
    it. The norm in front takes the scale of the whole stream, as values see it. Later layers see
    what the new patterns wrote, and their MLPs and norms are worked out again. With `mlp` "source"
    what an MLP wrote counts as moved by no head; otherwise the MLP, its gates as they are in this
    pass, is applied to what no head has moved. Raises `ModelError` where the stream itself passes
    a norm.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> from pathexpand.model.prompt import read_prompt
    >>> checkpoint = read_checkpoint("two-layer")
    >>> tokens = read_prompt(checkpoint, "to be or not to be")
    >>> without = [without_composition(checkpoint, tokens, kind).patterns for kind in ("Q", "K")]
    >>> [bool(np.array_equal(one, other)) for one, other in zip(*without)]
    [True, False]
    """
    if kind not in COMPOSITIONS:
        raise PathExpandError("composition", wanted='"Q", "K" or "QK"', got=shown(kind))
    check_streams(checkpoint)
    direct = _Direct(kind, mlp)
    types = None if tokens.types is None else tokens.types[None]
    with np.errstate(over="ignore", invalid="ignore"):
        return forward(
            checkpoint.weights,
            checkpoint.config,
            tokens.ids[None],
            tokens.mask[None],
            types=types,
            legs=direct.legs,
            watch=direct.passed,
        )


def check_streams(checkpoint: Checkpoint) -> None:
    """Refuse a model whose stream itself passes a norm, by name and layer."""
    for layer in range(len(checkpoint.weights.blocks)):
        block = checkpoint.weights.outline(layer)
        for name in ("ln1_after", "ln2_after"):
            if getattr(block, name) is not None:
                raise ModelError(
                    f"model {checkpoint.config.model_name}",
                    wanted="a stream that heads only add to",
                    got=f"one that passes a norm ({name}) in layer {layer}",
                    remedy="Q- and K-composition cannot be left out there",
                )


@dataclass(slots=True)
class _Direct:
    """What no head has moved, followed through one forward pass: (position, d_model)."""

    kind: Composition
    mlp: MlpMode
    stream: Array | None = field(default=None)

    def legs(
        self, layer: int, block: Block, reads: Array, scale: Array | None
    ) -> tuple[Array, Array]:
        """Give what queries and what keys read: (batch, position, d_model)."""
        if self.stream is None:  # the first layer reads what no head has moved
            return reads, reads
        own = through(block.ln1, self.stream)[None]
        if scale is not None:
            own = own * scale[..., None]
        if block.ln1 is not None and block.ln1.bias is not None:
            own = own + block.ln1.bias
        return own if "Q" in self.kind else reads, own if "K" in self.kind else reads

    def passed(
        self, layer: int, block: Block, trace: LayerTrace, before: Array, after: Array
    ) -> None:
        """Add what the layer writes through no head."""
        stream: Any = before[0] if self.stream is None else self.stream
        for stage, born, _ in frozen_layer(layer, block, trace, after[0], mlp=self.mlp):
            written = [group.push(stream) for group in stage.groups if not _is_heads(group)]
            stream = sum([*written, *(values for _, values in born)], start=stream)
        self.stream = stream


def _is_heads(group: object) -> bool:
    return isinstance(group, HeadGroup)
