"""A run with everything that is not linear held fixed: position map ⊗ linear map throughout."""

from pathexpand.frozen.freeze import (
    MLP_MODES,
    MlpMode,
    check_mode,
    freeze,
    frozen_layer,
    network_of,
    per_head,
)
from pathexpand.frozen.group import Group, HeadGroup, MlpGroup, NeuronGroup
from pathexpand.frozen.norm import Carry
from pathexpand.frozen.sum import FrozenSource, FrozenStage, FrozenSum
from pathexpand.frozen.unembed import Unembed, unembed

__all__ = [
    "MLP_MODES",
    "Carry",
    "FrozenSource",
    "FrozenStage",
    "FrozenSum",
    "Group",
    "HeadGroup",
    "MlpGroup",
    "MlpMode",
    "NeuronGroup",
    "Unembed",
    "check_mode",
    "freeze",
    "frozen_layer",
    "network_of",
    "per_head",
    "unembed",
]
