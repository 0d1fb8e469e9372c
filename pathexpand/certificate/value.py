"""One path's value as a dense product: patterns multiplied, then maps multiplied, then joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.certificate.held import Held
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.symbolic import Path

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Valued:
    """A path's value split by source position (position,), and what rounding may do to each part.

    `rounding` covers this value and another that was worked out in another order.
    """

    by_token: Array
    rounding: Array

    @property
    def value(self) -> float:
        """The value itself."""
        return float(self.by_token.sum())

    @property
    def slack(self) -> float:
        """What rounding may do to the value."""
        return float(self.rounding.sum())


def valued(held: Held, path: Path) -> Valued:
    """Value one path forward: (A^hk … A^h1)[p, j] · (s[j] OV^h1 … OV^hk · direction).

    The search works back from the readout, row by row. Rounding is that of each product on the
    way, as what follows reads it (Higham, section 3.1), for both ways: to first order, doubled.

    >>> from pathexpand.api import load
    >>> run = load("two-layer").run("to be or not to")
    >>> from pathexpand.certificate.held import hold
    >>> held = hold(run, run.target(), run.position(), same_patterns=True)
    >>> path = Path.parse("embed > L0H1 > L1H2")
    >>> abs(valued(held, path).value - run.value(path)) <= valued(held, path).slack
    True
    """
    if path.source == "b_U":
        split = np.zeros(held.positions)
        split[held.position] = held.constant
        return Valued(split, gamma(2) * abs(split))
    source = held.source(path.source)
    product = np.eye(held.positions)
    fields, sizes = [source.values], [source.size]  # (position, d_model)
    for head in path.components:
        w_v, w_o = held.maps(head)
        product = held.pattern(head) @ product  # (query, key)
        sizes.append((abs(fields[-1]) @ abs(w_v) + TINY) @ abs(w_o) + TINY)
        fields.append((fields[-1] @ w_v) @ w_o)
    reads, local = held.direction, np.zeros(held.positions)
    spread = sizes[-1] @ abs(reads)  # (position,)
    for size, head in zip(sizes[-2::-1], reversed(path.components), strict=True):
        w_v, w_o = held.maps(head)
        local += size @ abs(w_v) @ (abs(w_o) @ abs(reads) + TINY)
        reads = w_v @ (w_o @ reads)  # (d_model,)
        spread += size @ abs(reads)
    split = product[held.position] * (fields[-1] @ held.direction)
    row = abs(product[held.position])
    doubt = sum(held.doubts[head.layer] for head in path.components) + _born(held, source.boundary)
    unsure = 4 * gamma(held.steps) * (spread + local + TINY) + doubt * spread
    return Valued(split, row * unsure + TINY)


def _born(held: Held, boundary: int) -> float:
    """Give the doubt about a source: biases are seen through the patterns of their layer."""
    return held.doubts[boundary - 1] if boundary else 0.0
