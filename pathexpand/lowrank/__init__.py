"""Low-rank algebra: products of matrices that stay factored, and chains contracted cheaply."""

from __future__ import annotations

from pathexpand.lowrank.chain import Contraction, Step, bottleneck, contract, plan
from pathexpand.lowrank.factored import SVD, Factored

__all__ = ["SVD", "Contraction", "Factored", "Step", "bottleneck", "contract", "plan"]
