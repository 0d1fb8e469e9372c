"""What a caller tells of features whose files do not say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, get_args

from pathexpand.errors import FileError, ModelError
from pathexpand.features.unit import Hook
from pathexpand.model.config import is_divisor
from pathexpand.model.shown import shown


@dataclass(frozen=True, slots=True)
class Given:
    """The layer and hooks of a unit, and the average scale of its inputs; None is not told."""

    layer: int | None = None
    hook_in: Hook | None = None
    hook_out: Hook | None = None
    input_scale: float | None = None

    def __post_init__(self) -> None:
        """Refuse layers, hooks and scales that there cannot be."""
        if self.layer is not None and (type(self.layer) is not int or self.layer < 0):
            raise ModelError("layer", wanted="a layer from 0", got=shown(self.layer))
        for name in ("hook_in", "hook_out"):
            value = getattr(self, name)
            if value is not None and value not in get_args(Hook):
                wanted = f"one of {', '.join(get_args(Hook))}"
                raise ModelError(name, wanted=wanted, got=shown(value))
        if self.input_scale is not None and not is_divisor(self.input_scale):
            raise ModelError("input_scale", wanted="a positive number", got=shown(self.input_scale))

    def need(self, name: str, subject: object) -> NoReturn:
        """Ask for what the files do not say."""
        remedy = f"give it as load_units(…, {name}=…)"
        wanted = f"{'an' if name[0] in 'aeio' else 'a'} {name}"
        raise FileError(f"{subject}", wanted=wanted, got="files that do not say", remedy=remedy)
