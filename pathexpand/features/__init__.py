"""Sparse features of MLPs and streams: units, read from the formats in use, and their fit."""

from __future__ import annotations

from pathexpand.features.basis import FeatureCircuit, feature_ov, feature_qk
from pathexpand.features.encode import Active
from pathexpand.features.fit import at_hook, check_units, reconstruction
from pathexpand.features.formats import load_units
from pathexpand.features.graph import Graph, Logits
from pathexpand.features.graph_file import load_graph
from pathexpand.features.influence import Scores, prune, scores
from pathexpand.features.intervention import (
    FeatureChange,
    HeadChange,
    PathChange,
    frozen_effect,
    linear_effect,
    rerun,
)
from pathexpand.features.rows import FeatureRows
from pathexpand.features.unit import Unit, UnitSet

__all__ = [
    "Active",
    "FeatureChange",
    "FeatureCircuit",
    "FeatureRows",
    "Graph",
    "HeadChange",
    "Logits",
    "PathChange",
    "Scores",
    "Unit",
    "UnitSet",
    "at_hook",
    "check_units",
    "feature_ov",
    "feature_qk",
    "frozen_effect",
    "linear_effect",
    "load_graph",
    "load_units",
    "prune",
    "reconstruction",
    "rerun",
    "scores",
]
