"""The circuits of the paper, from weights: QK and OV, virtual weights, skip-trigrams, bigrams."""

from __future__ import annotations

from pathexpand.circuits.bigrams import Bigrams, bigrams
from pathexpand.circuits.circuit import Circuit, Directions, Entries, ov, qk
from pathexpand.circuits.largest import Largest, LargestInRows, largest, largest_in_rows
from pathexpand.circuits.overlap import (
    Deletion,
    Deletions,
    Overlap,
    deletions,
    deletions_in_weights,
    overlap,
)
from pathexpand.circuits.skip_trigrams import SkipTrigram, SkipTrigrams, skip_trigrams
from pathexpand.circuits.wiring import (
    HeadWeights,
    embedded,
    embedding,
    has_norms,
    head_weights,
    parse_head,
    read_matrix,
    turned,
    unembedded,
    unembedding,
    virtual_weight,
    write_matrix,
)

__all__ = [
    "Bigrams",
    "Circuit",
    "Deletion",
    "Deletions",
    "Directions",
    "Entries",
    "HeadWeights",
    "Largest",
    "LargestInRows",
    "Overlap",
    "SkipTrigram",
    "SkipTrigrams",
    "bigrams",
    "deletions",
    "deletions_in_weights",
    "embedded",
    "embedding",
    "has_norms",
    "head_weights",
    "largest",
    "largest_in_rows",
    "ov",
    "overlap",
    "parse_head",
    "qk",
    "read_matrix",
    "skip_trigrams",
    "turned",
    "unembedded",
    "unembedding",
    "virtual_weight",
    "write_matrix",
]
