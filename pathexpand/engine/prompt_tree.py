"""The paths of one run as a tree to search: sizes are |values|, bounds come from energies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.engine.energy import Energies
from pathexpand.engine.search import Node
from pathexpand.engine.value import Readout, Suffix, empty_suffix, path_value, prepend
from pathexpand.frozen import FrozenSum
from pathexpand.symbolic import Head, Network, Path

Array = npt.NDArray[Any]


class PromptTree:
    """The suffixes of one run; each carries its row (position,) and its vector (d_model,)."""

    def __init__(self, frozen: FrozenSum, readout: Readout, energy: Energies) -> None:
        """Take a run cut at the readout's position, and the energies of its heads."""
        self.frozen, self.readout, self.energy = frozen, readout, energy
        self.network: Network = frozen.network()
        self.sources = {source.label: source.values for source in frozen.sources}

    def root(self) -> tuple[Array, Array]:
        """Give the readout's row and direction."""
        suffix = empty_suffix(self.frozen, self.readout)
        return suffix.row, suffix.vector

    def longer(self, carried: tuple[Array, Array], head: Head) -> tuple[Array, Array]:
        """Move the row by the head's pattern and the vector through W_V W_O."""
        suffix = prepend(Suffix(*carried), self.frozen, head)
        return suffix.row, suffix.vector

    def sizes(self, nodes: list[Node], source: str) -> Array:
        """Give |value| of each suffix with a source in front: (suffix,)."""
        rows = np.stack([node.carried[0] for node in nodes])  # (suffix, position)
        vectors = np.stack([node.carried[1] for node in nodes])  # (suffix, d_model)
        return abs(((rows @ self.sources[source]) * vectors).sum(axis=1))

    def bounds(self, layer: int, nodes: list[Node]) -> Callable[[int, list[int], list[int]], Array]:
        """Prepare √energy of the suffixes continued by each head of a layer."""
        rows = np.stack([node.carried[0] for node in nodes])  # (suffix, position)
        vectors = np.stack([node.carried[1] for node in nodes])  # (suffix, d_model)
        at = self.frozen.layers[layer]
        heads, d_head, d_model = at.W_O.shape
        moved = rows @ at.patterns  # (head, suffix, key)
        read = vectors @ at.W_O.reshape(-1, d_model).T  # (suffix, head * d_head)
        inner = np.swapaxes(read.reshape(len(nodes), heads, d_head), 0, 1)  # (head, suffix, d_head)

        def ask(state: int, which: list[int], some: list[int]) -> Array:
            pick = np.ix_(which, some)
            return self.energy.bound(layer, state, which, moved[pick], inner[pick])

        return ask

    def size(self, path: Path) -> float:
        """Give |value| of one path."""
        return abs(float(path_value(self.frozen, self.readout, path)))
