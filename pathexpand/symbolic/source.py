"""Sources: where paths start, and where each of them enters the stream."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from pathexpand.errors import CompositionError, NotationError
from pathexpand.symbolic.component import NUMBER, shown
from pathexpand.symbolic.maps import W_E, W_POS, W_TYPE, LinearMap, constant

_AT_START = ("embed", "pos", "type", "embedbias")
_OF_LAYER = re.compile(f"L{NUMBER}(bias|M|Mbias)", re.ASCII)
_KINDS = ("bias", "M", "Mbias")
_IN_READOUT = ("b_U", "b_Q", "b_K")
_EMBEDDINGS = {"embed": W_E, "pos": W_POS, "type": W_TYPE}
_WANTED = "embed, pos, type, embedbias, b_U, or one of a layer such as L0bias, L0M or L0Mbias"


@dataclass(frozen=True, slots=True)
class Source:
    """Something born at one place: after how many stages, or None for one born in the logits.

    The labels are ``embed``, ``pos``, ``type`` and ``embedbias`` (the constant of a norm right
    after the embedding), born before the first stage; ``L3bias``, the constants of layer 3's
    attention; ``L3M``, the output of its MLP taken as it is; ``L3Mbias``, what constants its MLP
    adds besides; and ``b_U``, born in the logits. Where paths end in an attention score, ``b_Q``
    and ``b_K`` are born in the query and the key; ``pos`` may then be born right before what reads
    it, in models whose positions never enter the stream. Raises `NotationError` for any other
    label and `CompositionError` for a boundary where none of this label is born.

    >>> Source("embed", 0), Source("L3Mbias", 8)
    (Source(label='embed', boundary=0), Source(label='L3Mbias', boundary=8))
    """

    label: str
    boundary: int | None

    def __post_init__(self) -> None:
        """Refuse a boundary that does not fit the label."""
        key, given = source_key(self.label), self.boundary
        wanted = "boundary None" if key is None else "boundary 0"
        fits = given is None if key is None else type(given) is int and given == 0
        if self.label == "pos":
            wanted = "a boundary from 0 on"
            fits = type(given) is int and given >= 0
        elif key is not None and key[0] >= 0:
            wanted = "a boundary from 1 on"
            fits = type(given) is int and given > 0
        if not fits:
            raise CompositionError(f"source {self.label}", wanted=wanted, got=shown(given))


def source_key(label: str) -> tuple[int, int] | None:
    """Return the layer and rank after which this source is born, or None in the logits.

    A path from it passes only through components of a greater key; (-1, 1) stands for the
    embedding. Raises `NotationError` for a label that is no source.

    >>> source_key("embed"), source_key("L3bias"), source_key("L3M"), source_key("b_U")
    ((-1, 1), (3, 0), (3, 1), None)
    """
    group, layer, kind = source_order(label)
    if group < len(_AT_START):
        return -1, 1
    return (layer, min(kind, 1)) if group == len(_AT_START) else None


def source_order(label: str) -> tuple[int, int, int]:
    """Return the key that sources are sorted by.

    embed, pos, type and embedbias come first, then by layer its bias, M and Mbias, then b_U,
    b_Q and b_K.

    >>> sorted(["b_U", "L10bias", "L2Mbias", "L2M", "pos"], key=source_order)
    ['pos', 'L2M', 'L2Mbias', 'L10bias', 'b_U']
    """
    if not isinstance(label, str):
        raise NotationError("source", wanted=_WANTED, got=shown(label))
    return _order(label)


@lru_cache(maxsize=65536)
def _order(label: str) -> tuple[int, int, int]:
    if label in _AT_START:
        return _AT_START.index(label), 0, 0
    if label in _IN_READOUT:
        return len(_AT_START) + 1, 0, _IN_READOUT.index(label)
    match = _OF_LAYER.fullmatch(label)
    if match is None:
        raise NotationError("source", wanted=_WANTED, got=shown(label))
    return len(_AT_START), int(match[1]), _KINDS.index(match[2])


def source_map(label: str) -> LinearMap:
    """Return the map by which a source enters the stream or, for b_U, the logits.

    >>> print(source_map("embed"), source_map("L0bias"), source_map("L0M"), source_map("L0Mbias"))
    W_E b^L0 M^L0 b^L0M
    """
    source_order(label)
    return _EMBEDDINGS.get(label) or constant(label)


def source_label(start: LinearMap) -> str:
    """Return the label of the source that enters by this map.

    Raises `NotationError` for a map that is no source's.

    >>> source_label(W_E), source_label(constant("L0Mbias"))
    ('embed', 'L0Mbias')
    """
    for label, known in _EMBEDDINGS.items():
        if start == known:
            return label
    label = {"M": f"{start.label}M", "b": f"{start.label}bias"}.get(start.name, start.name)
    if source_map(label) != start:
        raise NotationError("source", wanted="the map of a source", got=str(start))
    return label
