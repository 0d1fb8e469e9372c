"""Torch tensors become arrays, and back. Torch is never imported: whoever has a tensor has it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.errors import ModelError
from pathexpand.model.shown import cut, shown
from pathexpand.model.tensors import FORMATS

Array = npt.NDArray[Any]
# Classes whose numbers are what their memory holds. Others (quantised, sharded over machines) may
# hold anything.
_PLAIN = ("Tensor", "Parameter", "Buffer")


def loaded_torch() -> Any:
    """Give the torch module that is loaded; raises `ModelError` if none is."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise ModelError("model", wanted="an object made of torch tensors", got="no torch loaded")
    return torch


def arrays_of(state: Mapping[str, Any]) -> dict[str, Array]:
    """Copy a state dict to arrays, each in its own number format, bfloat16 as well.

    What is trained on later does not change them. Two names of one tensor give one array. Buffers
    that hold no floats are looked into where they are. Raises `ModelError` for tensors that hold
    no plain numbers: quantised, sharded, or on the meta device.
    """
    found: dict[str, Array] = {}
    made: dict[Any, Array] = {}
    for name, tensor in state.items():
        _check_plain(name, tensor)
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if key not in made:
            made[key] = as_array(name, tensor)
        found[name] = made[key]
    return found


def as_array(name: str, tensor: Any) -> Array:
    """Give a tensor as an array, in its own number format; raises `ModelError` if it has none."""
    torch = loaded_torch()
    own = tensor.detach().to("cpu", copy=tensor.is_floating_point())
    try:
        if tensor.dtype == torch.bfloat16:  # unknown to numpy itself
            import ml_dtypes

            whole: Array = own.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
            return whole
        array: Array = own.numpy()
    except (TypeError, RuntimeError, ValueError):
        got = f"{tensor.dtype}".removeprefix("torch.")
        raise ModelError(f"tensor {cut(name)}", wanted=FORMATS, got=got) from None
    return array


def token_tensor(model: Any, ids: npt.NDArray[np.int64]) -> Any:
    """Give ids (batch, position) as a tensor where the first parameter of a model is."""
    torch = loaded_torch()
    device = next(iter(model.parameters())).device
    return torch.tensor(ids.tolist(), dtype=torch.long, device=device)


@contextmanager
def at_rest(model: Any) -> Iterator[None]:
    """Switch dropout and gradients off, and give every module its own mode back afterwards."""
    active = [module for module in model.modules() if module.training]
    for module in active:
        module.training = False
    try:
        with loaded_torch().no_grad():
            yield
    finally:
        for module in active:
            module.training = True


def _check_plain(name: str, tensor: Any) -> None:
    kind = type(tensor)
    is_tensor = kind.__name__ in _PLAIN and kind.__module__.partition(".")[0] == "torch"
    if not is_tensor or tensor.is_quantized or tensor.is_sparse:
        raise ModelError(
            f"tensor {cut(name)}",
            wanted="a plain torch tensor",
            got="a quantised or sparse one" if is_tensor else f"a {kind.__name__}",
            remedy="use the model before it was quantised or sharded",
        )
    if tensor.is_meta:
        raise ModelError(
            f"tensor {cut(name)}",
            wanted="numbers",
            got="a tensor on the meta device",
            remedy="load the whole model into memory (no offloading, no low-memory skeleton)",
        )


def class_names(model: object) -> list[str]:
    """Give the names of an object's class and of all it inherits from.

    >>> class_names(True)
    ['bool', 'int', 'object']
    """
    return [each.__name__ for each in type(model).__mro__]


def check_module(model: object, wanted: str) -> None:
    """Refuse what has no state dict; raises `ModelError`."""
    if not callable(getattr(model, "state_dict", None)) or isinstance(model, type):
        raise ModelError("model", wanted=wanted, got=shown(model))
