"""Sparse features of MLPs and streams: units, read from the formats in use, and their fit."""

from __future__ import annotations

from pathexpand.features.encode import Active
from pathexpand.features.fit import at_hook, check_units, reconstruction
from pathexpand.features.formats import load_units
from pathexpand.features.rows import FeatureRows
from pathexpand.features.unit import Unit, UnitSet

__all__ = [
    "Active",
    "FeatureRows",
    "Unit",
    "UnitSet",
    "at_hook",
    "check_units",
    "load_units",
    "reconstruction",
]
