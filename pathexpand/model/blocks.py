"""Layers that are read when asked for, and kept as long as there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from pathexpand.model.parts import Array, Block

ALL = 3 * 2**30  # bytes: a model that takes no more as float64 is kept whole
FEW = 2**30  # bytes that are kept of a larger one


class Kept:
    """What was made lately, up to a number of bytes; the newest is kept in any case."""

    def __init__(self, room: int) -> None:
        """Begin empty."""
        self._room = room
        self._found: OrderedDict[Any, tuple[Any, int]] = OrderedDict()

    def has(self, key: Any) -> bool:
        """Say whether something stands under a key."""
        return key in self._found

    def get(self, key: Any, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """Give what stands under a key, making it if it is not there (any more)."""
        if key in self._found:
            self._found.move_to_end(key)
            return self._found[key][0]
        made = make()
        self._found[key] = made, size(made)
        while len(self._found) > 1 and sum(each for _, each in self._found.values()) > self._room:
            self._found.popitem(last=False)
        return made


class Blocks(Sequence[Block]):
    """The layers of a model, each read when it is asked for.

    `read(layer, dtype)` gives a layer with its numbers in that format, checked; `outline(layer)`
    gives it without its matrices; `size` is what all layers take as float64, in bytes.
    """

    def __init__(
        self,
        count: int,
        read: Callable[[int, npt.DTypeLike], Block],
        outline: Callable[[int], Block],
        size: int,
        *,
        room: int | None = None,
    ) -> None:
        """Remember how to read; nothing is read yet. `room` is how many bytes to keep."""
        self._count, self._read, self._outline = count, read, outline
        self.size = size
        room = (ALL if size <= ALL else FEW) if room is None else room
        self._kept, self._single = Kept(room), Kept(room)

    def passing(self) -> Blocks:
        """Give the same layers for one pass over them: only the last one read is kept."""
        return Blocks(self._count, self._read, self._outline, self.size, room=0)

    def __len__(self) -> int:
        """Give the number of layers."""
        return self._count

    @overload
    def __getitem__(self, layer: int) -> Block: ...
    @overload
    def __getitem__(self, layer: slice) -> tuple[Block, ...]: ...
    def __getitem__(self, layer: int | slice) -> Block | tuple[Block, ...]:
        """Read one layer, or several, as float64."""
        if isinstance(layer, slice):
            return tuple(self[each] for each in range(*layer.indices(self._count)))
        return self.get(range(self._count)[layer], np.float64)

    def __iter__(self) -> Iterator[Block]:
        """Read one layer after the other."""
        return (self[layer] for layer in range(self._count))

    def get(self, layer: int, dtype: npt.DTypeLike) -> Block:
        """Read one layer with its numbers in a format, float64 or float32."""
        wide = dtype == np.float64
        kept = self._kept if wide else self._single

        def make() -> Block:
            if not wide and self._kept.has(layer):
                found: Block = recast(self.get(layer, np.float64), dtype)
                return found
            return self._read(layer, dtype)

        block: Block = kept.get(layer, make, bytes_of)
        return block

    def outline(self, layer: int) -> Block:
        """Read a layer but for its matrices: these have their shapes, and are NaN throughout."""
        return self._outline(layer)


def recast(value: Any, dtype: npt.DTypeLike) -> Any:
    """Give a block, or a part of one, with its floats in another format, read-only."""
    if isinstance(value, np.ndarray):
        if value.dtype != object:
            value = value.astype(dtype, order="K")
            value.setflags(write=False)
        return value
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in fields(value)}
        return replace(value, **{name: recast(part, dtype) for name, part in parts.items()})
    return value


def bytes_of(value: Any) -> int:
    """Count the bytes of all arrays in a block."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if is_dataclass(value):
        return sum(bytes_of(getattr(value, each.name)) for each in fields(value))
    return 0


def blank(shape: tuple[int, ...]) -> Array:
    """Give an array of NaN that takes no memory."""
    return np.broadcast_to(np.float64("nan"), shape)
