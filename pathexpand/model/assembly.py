"""From named tensors to weights: every name and shape is accounted for, every number checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError
from pathexpand.model.blocks import Blocks, blank
from pathexpand.model.config import Config
from pathexpand.model.numbers import is_real
from pathexpand.model.parts import (
    Array,
    Attention,
    Block,
    HeadNorm,
    Mlp,
    Norm,
    NormKind,
    Transform,
)
from pathexpand.model.rows import Rows
from pathexpand.model.shown import ROOM, cut, shown
from pathexpand.model.tensors import FORMATS, Stored, number_format
from pathexpand.model.weights import Weights

Tensors = Mapping[str, Array | Stored]
Fields = Mapping[str, Array]
NormName = Literal["ln1", "ln2", "ln1_post", "ln2_post", "ln1_after", "ln2_after"]
_CHECKED = 2**28  # bytes of float64: a model that takes no more is read, and checked, at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What the layers are, apart from their numbers.

    `norms` names the norms that a block has; where they are not `affine` they have no weight, and
    where they are, only those whose weight is there. `head_norm` is the kind of norm on queries
    and keys, `across` whether it is one over all heads. With `bias_after_gate`, b_in is added
    after the gate (TransformerLens). `final_norm` and `embed_norm` are kinds of norm, and
    `embed_norms` how many there are; `transform` is the activation function of the head's.
    """

    norm: NormKind = "layer"
    eps: float = 1e-5
    norms: tuple[NormName, ...] = ("ln1", "ln2")
    affine: bool = True
    act: str | None = None
    parallel: bool = False
    scale: float = 1.0
    head_norm: NormKind | None = None
    across: bool = False
    bias_after_gate: bool = False
    final_norm: NormKind | None = None
    embed_norms: int = 0
    embed_norm: NormKind = "layer"
    transform: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One tensor: its name and shape, whether it must be there, and the fields it fills.

    `layer` is the block whose fields they are; None is the model itself. `split` gives the fields
    as views of the tensor. `tall` names those that are tall matrices (a row a token, say), which
    keep their number format.
    """

    name: str
    shape: tuple[int, ...]
    split: Callable[[Array], Iterable[tuple[str, Array]]]
    needed: bool = True
    layer: int | None = None
    tall: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """All there is to know of a model before its numbers are read.

    `layers` stands before the number of a layer in a tensor's name; `ignored` are names that are
    no weights; `depth` is the configuration's own key for the number of layers.
    """

    config: Config
    form: Form
    rules: Sequence[Rule]
    layers: str = "blocks"
    ignored: re.Pattern[str] = field(default=re.compile(r"(?!)"))
    depth: str = "n_layers"


def assemble(plan: Plan, tensors: Tensors) -> Weights:
    """Build the weights of a model.

    Raises `ModelError` that lists all missing, unexpected and misshapen tensors, or names one
    that does not hold finite real numbers. Numbers of a large model are checked as they are read.
    """
    names = [name for name in tensors if not plan.ignored.fullmatch(name)]
    _check_depth(names, plan)
    arrays = _reconcile(names, plan, tensors)
    by_layer: dict[int | None, list[Rule]] = {}
    for rule in plan.rules:
        if rule.name in arrays:
            by_layer.setdefault(rule.layer, []).append(rule)
    weights = _weights(plan, by_layer, arrays)
    if _bytes(plan.rules) <= _CHECKED:
        for _ in weights.named():
            pass
    return weights


def _weights(plan: Plan, by_layer: Mapping[int | None, list[Rule]], arrays: Tensors) -> Weights:
    form, config = plan.form, plan.config

    def read(layer: int, dtype: npt.DTypeLike) -> Block:
        def change(name: str, _: str, array: Array) -> Array:
            return checked(name, array, dtype)

        return block_of(_fields(by_layer.get(layer, []), arrays, change), form)

    def outline(layer: int) -> Block:
        return block_of(_fields(by_layer.get(layer, []), arrays, _outlined), form)

    layered = [rule for rule in plan.rules if rule.layer is not None]
    tall = _tall(by_layer.get(None, []), arrays)
    short = [rule for rule in by_layer.get(None, []) if not rule.tall]
    fields = _fields(short, arrays, lambda name, _, array: checked(name, array))
    return Weights(
        embed=Rows(*tall["embed"], fields.get("embed_factor"), config.embed_scale),
        unembedding=Rows(*tall["unembed"], fields.get("unembed_factor"), config.logit_scale),
        blocks=Blocks(config.n_layers, read, outline, _bytes(layered)),
        pos=Rows(*tall["pos"]) if "pos" in tall else None,
        types=Rows(*tall["types"]) if "types" in tall else None,
        b_U=fields.get("b_U"),
        embed_norms=tuple(
            norm_of(fields, f"embed_norms.{n}", form.embed_norm, form.eps)
            for n in range(form.embed_norms)
        ),
        final_norm=_final_norm(fields, form),
        transform=_transform(fields, form),
    )


def block_of(fields: Fields, form: Form) -> Block:
    """Put one layer together from its fields, such as `attn.W_Q` and `ln1.w`."""
    attn = Attention(
        **{key: value for key, value in _under("attn", fields).items() if "." not in key},
        q_norm=_head_norm(fields, "attn.q_norm", form),
        k_norm=_head_norm(fields, "attn.k_norm", form),
    )
    mlp = None
    parts = _under("mlp", fields)
    if form.act is not None:
        if form.bias_after_gate and "b_in" in parts:
            # act(x W_gate) · (x W_in) + b_in: what b_in writes is a constant.
            parts["b_out"] = parts.pop("b_in") @ parts["W_out"] + parts.get("b_out", 0)
            parts["b_out"].setflags(write=False)
        mlp = Mlp(**parts, act=form.act)
    norms: dict[str, Norm] = {
        name: norm_of(fields, name, form.norm, form.eps)
        for name in form.norms
        if not form.affine or f"{name}.w" in fields
    }
    return Block(attn, mlp, form.parallel, scale=form.scale, **norms)


def norm_of(fields: Fields, at: str, kind: NormKind, eps: float) -> Norm:
    """Put a norm together from `AT.w` and `AT.b`, each of which may be absent."""
    return Norm(kind, fields.get(f"{at}.w"), fields.get(f"{at}.b"), eps)


def checked(name: str, array: Array, dtype: npt.DTypeLike = np.float64) -> Array:
    """Give an array in a float format, read-only, after checking that its numbers are finite.

    Exact numbers (dtype object) are kept. Raises `ModelError`.
    """
    if array.dtype == object:
        return _checked_exact(name, array)
    with np.errstate(over="ignore", invalid="ignore"):
        out = np.array(array, dtype=dtype, order="K")
        # A finite sum has no NaN or infinity in it; one that is not may just have overflowed.
        finite = np.isfinite(out.sum()) or bool(np.isfinite(out).all())
    if not finite:
        count = int(np.size(out) - np.count_nonzero(np.isfinite(out)))
        raise ModelError(
            f"tensor {name}", wanted="finite numbers", got=f"{count} that are NaN or infinite"
        )
    out.setflags(write=False)
    return out


def _checked_exact(name: str, array: Array) -> Array:
    for each in array.ravel().tolist():
        # Exact numbers of other kinds (polynomials, say) only have to add, subtract, multiply.
        exact = all(hasattr(each, f"__{sign}__") for sign in ("add", "sub", "mul"))
        if not is_real(each) and (isinstance(each, float | complex | bool) or not exact):
            raise ModelError(f"tensor {name}", wanted="finite real numbers", got=shown(each))
    out = array.copy()
    out.setflags(write=False)
    return out


def _final_norm(fields: Fields, form: Form) -> Norm | None:
    if form.final_norm is None:
        return None
    return norm_of(fields, "final_norm", form.final_norm, form.eps)


def _transform(fields: Fields, form: Form) -> Transform | None:
    if form.transform is None:
        return None
    norm = norm_of(fields, "transform.norm", form.norm, form.eps)
    return Transform(fields["transform.W"], fields.get("transform.b"), form.transform, norm)


def _head_norm(fields: Fields, at: str, form: Form) -> HeadNorm | None:
    if form.head_norm is None:
        return None
    weight, bias = fields.get(f"{at}.w"), fields.get(f"{at}.b")
    if f"{at}.w.0" in fields:  # a tensor a head
        each = _under(f"{at}.w", fields)
        weight = np.stack([each[str(head)] for head in range(len(each))])  # (head, d_head)
        weight.setflags(write=False)
    return HeadNorm(form.head_norm, weight, bias, form.eps, form.across)


def _under(part: str, fields: Fields) -> dict[str, Array]:
    at = f"{part}."
    return {key.removeprefix(at): value for key, value in fields.items() if key.startswith(at)}


def _fields(
    rules: Iterable[Rule], arrays: Tensors, change: Callable[[str, str, Array], Array]
) -> dict[str, Array]:
    """Read the tensors of some rules; `change` (name, field, array) is applied to each field.

    A bias of zeros is the same as none, and is left out.
    """
    found: dict[str, Array] = {}
    for rule in rules:
        tensor = arrays[rule.name]
        whole = tensor.open() if isinstance(tensor, Stored) else tensor
        for key, part in rule.split(whole):
            value = change(rule.name, key, part)
            last = key.rpartition(".")[2]
            if (last != "b" and not last.startswith("b_")) or np.any(value != 0):
                found[key] = value
    return found


def _outlined(name: str, key: str, array: Array) -> Array:
    """Check a bias or a norm; give a matrix without its numbers."""
    return blank(array.shape) if ".W_" in key else checked(name, array)


def _tall(rules: Iterable[Rule], arrays: Tensors) -> dict[str, tuple[str, Array]]:
    """Give the name and the numbers of each tall matrix, in the format they are stored in.

    A large one in a file stays there.
    """
    found: dict[str, tuple[str, Array]] = {}
    for rule in rules:
        if not rule.tall:
            continue
        tensor = arrays[rule.name]
        whole = tensor.open() if isinstance(tensor, Stored) else tensor
        if whole.dtype == object:
            whole = checked(rule.name, whole)
        elif isinstance(tensor, Stored) and _bytes([rule]) <= _CHECKED:
            whole = np.array(whole, order="K")
        found |= {key: (rule.name, part) for key, part in rule.split(whole)}
    return found


def _bytes(rules: Iterable[Rule]) -> int:
    """Count what the tensors of some rules take as float64."""
    return 8 * sum(math.prod(rule.shape) for rule in rules)


def _check_depth(names: list[str], plan: Plan) -> None:
    """Compare the numbers of layers: one line tells more than a list of tensors."""
    pattern = re.compile(rf"{re.escape(plan.layers)}\.(\d{{1,9}})\.", re.ASCII)
    found = [match for name in names if (match := pattern.match(name))]
    given = 1 + max((int(match[1]) for match in found), default=-1)
    depth = plan.config.n_layers
    if given < depth:
        raise ModelError(
            "weights",
            wanted=f"{depth} layers, as config {plan.depth} says",
            got=f"tensors of {given}",
        )


def _reconcile(names: list[str], plan: Plan, tensors: Tensors) -> dict[str, Array | Stored]:
    """Compare the tensors there are with those there should be; give those that are used.

    Arrays are copied, in their own format: what is read of them later must not have changed.
    """
    wanted = {rule.name: rule for rule in plan.rules}
    arrays = {name: _as_array(name, tensors[name]) for name in names if name in wanted}
    faults = [
        f"{name} {rule.shape} is missing"
        for name, rule in wanted.items()
        if rule.needed and name not in arrays
    ]
    faults += [
        f"{name} has shape {array.shape}, wanted {wanted[name].shape}"
        for name, array in arrays.items()
        if array.shape != wanted[name].shape
    ]
    faults += [f"{cut(name)} is not known" for name in names if name not in wanted]
    if faults:
        more = f" and {len(faults) - 6} more" if len(faults) > 6 else ""
        raise ModelError("weights: " + "; ".join(faults[:6]) + more)
    for name, array in arrays.items():
        dtype = number_format(array) if isinstance(array, Stored) else array.dtype
        if dtype.kind != "O" and not is_float(dtype):
            wanted_kind = f"real numbers as {FORMATS}"
            raise ModelError(f"tensor {name}", wanted=wanted_kind, got=str(dtype))
    return {
        name: array if isinstance(array, Stored) else np.array(array, order="K")
        for name, array in arrays.items()
    }


def is_float(dtype: np.dtype[Any]) -> bool:
    """Say whether a number format is one of plain floating-point numbers.

    >>> is_float(np.dtype("float16")), is_float(np.dtype("int8"))
    (True, False)
    """
    return np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"


def _as_array(name: str, tensor: object) -> Array | Stored:
    if isinstance(tensor, Stored):
        return tensor
    try:
        return np.asarray(tensor)
    except Exception as error:  # rows of different lengths, or a foreign array's own error
        got = cut(" ".join(str(error).split()), 2 * ROOM)
        raise ModelError(f"tensor {name}", wanted="a numpy array", got=got) from None
