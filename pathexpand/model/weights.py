"""The weights of an attention-only transformer, under TransformerLens names and shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError
from pathexpand.model.config import Config
from pathexpand.model.numbers import is_real
from pathexpand.model.shown import ROOM, cut, shown
from pathexpand.model.tensors import FORMATS

Array = npt.NDArray[Any]

# Buffers that TransformerLens keeps beside its weights; they hold no learnt number.
_BUFFERS = re.compile(r"blocks\.\d+\.attn\.(mask|IGNORE|rotary_sin|rotary_cos)")
_BLOCK = re.compile(r"blocks\.(\d{1,9})\.", re.ASCII)
_LATER = (
    (re.compile(r"(^|\.)(ln\w*|norm\w*)\."), "normalisation layers"),
    (re.compile(r"\.mlp\."), "MLP layers"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """The weights of one attention layer.

    Shapes: `W_Q W_K W_V` (head, d_model, d_head), `W_O` (head, d_head, d_model),
    `b_Q b_K b_V` (head, d_head), `b_O` (d_model,). A bias may be absent.
    """

    W_Q: Array
    W_K: Array
    W_V: Array
    W_O: Array
    b_Q: Array | None = None
    b_K: Array | None = None
    b_V: Array | None = None
    b_O: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One layer of the model: its attention. An MLP and norms will stand beside it here."""

    attn: Attention


@dataclass(frozen=True, eq=False)
class Weights:
    """All weights of a model.

    Shapes: `W_E` (d_vocab, d_model), `W_pos` (n_ctx, d_model), `W_U` (d_model, d_vocab_out),
    `b_U` (d_vocab_out,). `W_pos` and `b_U` may be absent. Arrays are read-only.
    """

    W_E: Array
    W_U: Array
    blocks: tuple[Block, ...] = ()
    W_pos: Array | None = None
    b_U: Array | None = None

    @cached_property
    def mean_unembed(self) -> Array:
        """The mean over the vocabulary of W_U's columns: (d_model,)."""
        out: Array = self.W_U.sum(axis=1) / self.W_U.shape[1]
        return out

    @cached_property
    def mean_unembed_size(self) -> Array:
        """The mean over the vocabulary of the absolute values of W_U's columns: (d_model,)."""
        out: Array = abs(self.W_U).sum(axis=1) / self.W_U.shape[1]
        return out

    def named(self) -> Iterator[tuple[str, Array]]:
        """Yield each tensor with its TransformerLens name, in a fixed order."""
        yield "embed.W_E", self.W_E
        if self.W_pos is not None:
            yield "pos_embed.W_pos", self.W_pos
        for layer, block in enumerate(self.blocks):
            for field in fields(Attention):
                array = getattr(block.attn, field.name)
                if array is not None:
                    yield f"blocks.{layer}.attn.{field.name}", array
        yield "unembed.W_U", self.W_U
        if self.b_U is not None:
            yield "unembed.b_U", self.b_U


def wanted_shapes(config: Config) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Give every tensor's TransformerLens name with its shape and whether it must be there."""
    heads, stream, head = config.n_heads, config.d_model, config.d_head
    wanted: dict[str, tuple[tuple[int, ...], bool]] = {
        "embed.W_E": ((config.d_vocab, stream), True)
    }
    if config.positional_embedding_type != "none":
        # Without attention, shortformer positions are read by nothing.
        needed = config.n_layers > 0 or config.positional_embedding_type == "standard"
        wanted["pos_embed.W_pos"] = ((config.n_ctx, stream), needed)
    for layer in range(config.n_layers):
        at = f"blocks.{layer}.attn."
        wanted |= {at + name: ((heads, stream, head), True) for name in ("W_Q", "W_K", "W_V")}
        wanted[at + "W_O"] = ((heads, head, stream), True)
        wanted |= {at + name: ((heads, head), False) for name in ("b_Q", "b_K", "b_V")}
        wanted[at + "b_O"] = ((stream,), False)
    wanted["unembed.W_U"] = ((stream, config.d_vocab_out), True)
    wanted["unembed.b_U"] = ((config.d_vocab_out,), False)
    return wanted


def weights_from_tensors(tensors: Mapping[str, Array], config: Config) -> Weights:
    """Build the weights from named tensors, after checking every name, shape and number.

    Floats become float64; exact numbers (Python objects such as `Fraction`) are kept. Arrays of
    whole numbers are refused, as they are in a file: they may be packed weights. A bias that is
    zero everywhere is the same as no bias and is left out. Raises `ModelError` that lists all
    missing, unexpected and misshapen tensors.
    """
    names = _names(tensors)
    _check_depth(names, config.n_layers)
    wanted = wanted_shapes(config)
    arrays = {name: _as_array(name, tensors[name]) for name in wanted if name in tensors}
    _reconcile(names, arrays, wanted)
    kept = {name: _checked(name, array) for name, array in arrays.items()}
    kept = {name: a for name, a in kept.items() if wanted[name][1] or _any_nonzero(a)}
    blocks = tuple(
        Block(
            Attention(
                **{
                    field.name: kept[f"blocks.{layer}.attn.{field.name}"]
                    for field in fields(Attention)
                    if f"blocks.{layer}.attn.{field.name}" in kept
                }
            )
        )
        for layer in range(config.n_layers)
    )
    return Weights(
        W_E=kept["embed.W_E"],
        W_U=kept["unembed.W_U"],
        blocks=blocks,
        W_pos=kept.get("pos_embed.W_pos"),
        b_U=kept.get("unembed.b_U"),
    )


def _names(tensors: object) -> list[str]:
    """Give the names of all tensors but buffers; refuse by name what is not supported yet."""
    if not isinstance(tensors, Mapping):
        raise ModelError("weights", wanted="a mapping of names to arrays", got=shown(tensors))
    for name in tensors:
        if not isinstance(name, str):
            raise ModelError("weights", wanted="names that are text", got=shown(name))
    names = [name for name in tensors if not _BUFFERS.fullmatch(name)]
    for pattern, meaning in _LATER:
        found = sorted(name for name in names if pattern.search(name))
        if found:
            raise ModelError(f"tensor {cut(found[0])}: {meaning} are not supported yet")
    return names


def _check_depth(names: list[str], depth: int) -> None:
    """Compare the layers before a table of them is made."""
    blocks = [found for name in names if (found := _BLOCK.match(name))]
    given = 1 + max((int(block[1]) for block in blocks), default=-1)
    if given < depth:
        raise ModelError(
            "weights", wanted=f"{depth} layers, as config n_layers says", got=f"tensors of {given}"
        )


def _reconcile(
    names: list[str],
    arrays: Mapping[str, Array],
    wanted: Mapping[str, tuple[tuple[int, ...], bool]],
) -> None:
    faults = [
        f"{name} {shape} is missing"
        for name, (shape, needed) in wanted.items()
        if needed and name not in arrays
    ]
    faults += [
        f"{name} has shape {array.shape}, wanted {wanted[name][0]}"
        for name, array in arrays.items()
        if array.shape != wanted[name][0]
    ]
    faults += [f"{cut(name)} is not known" for name in names if name not in wanted]
    if faults:
        more = f" and {len(faults) - 6} more" if len(faults) > 6 else ""
        raise ModelError("weights: " + "; ".join(faults[:6]) + more)


def _as_array(name: str, tensor: object) -> Array:
    try:
        return np.asarray(tensor)
    except Exception as error:  # rows of different lengths, or a foreign array's own error
        got = cut(" ".join(str(error).split()), 2 * ROOM)
        raise ModelError(f"tensor {name}", wanted="a numpy array", got=got) from None


def _checked(name: str, array: Array) -> Array:
    if array.dtype != object:
        if not np.issubdtype(array.dtype, np.floating):
            raise ModelError(
                f"tensor {name}", wanted=f"real numbers as {FORMATS}", got=str(array.dtype)
            )
        with np.errstate(over="ignore"):
            array = np.array(array, dtype=np.float64)
        if not np.isfinite(array).all():
            count = int(np.size(array) - np.count_nonzero(np.isfinite(array)))
            raise ModelError(
                f"tensor {name}", wanted="finite numbers", got=f"{count} that are NaN or infinite"
            )
    else:
        for each in array.ravel().tolist():
            # Exact numbers of other kinds (polynomials, say) only have to add, subtract, multiply.
            exact = all(hasattr(each, f"__{name}__") for name in ("add", "sub", "mul"))
            if not is_real(each) and (isinstance(each, float | complex | bool) or not exact):
                raise ModelError(f"tensor {name}", wanted="finite real numbers", got=shown(each))
        array = array.copy()
    array.setflags(write=False)
    return array


def _any_nonzero(array: Array) -> bool:
    return bool(np.any(array != 0))
