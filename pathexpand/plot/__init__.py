"""Pictures of what an analysis found, by matplotlib (the extra `pathexpand[plot]`)."""

from __future__ import annotations

from pathexpand.plot.attention import attention_pattern
from pathexpand.plot.behaviours import behaviour_matrix
from pathexpand.plot.composition import composition_matrix
from pathexpand.plot.eigenvalues import eigenvalue_plane, induction_plane
from pathexpand.plot.figure import check_file, new_axes, save
from pathexpand.plot.heatmap import token_heatmap
from pathexpand.plot.importance import importance_bars
from pathexpand.plot.waterfall import order_waterfall

__all__ = [
    "attention_pattern",
    "behaviour_matrix",
    "check_file",
    "composition_matrix",
    "eigenvalue_plane",
    "importance_bars",
    "induction_plane",
    "new_axes",
    "order_waterfall",
    "save",
    "token_heatmap",
]
