"""A symbolic path-expansion engine for transformers: every path, ranked, and a sum that closes.

>>> import pathexpand
>>> run = pathexpand.load("two-layer").run("to be or not to")
>>> table = run.paths(top=5)
>>> abs(table.gap) <= table.gap_bound
True
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers read it; `typing` takes its time to import

__version__ = "0.1.0"

# What `pathexpand.NAME` gives and where it lives. Imported at first use: `import pathexpand`
# itself loads nothing.
_PUBLIC = {
    "AnalysisTable": "pathexpand.table",
    "Budget": "pathexpand.engine.search",
    "Checkpoint": "pathexpand.model.checkpoint",
    "Config": "pathexpand.model.config",
    "Certificate": "pathexpand.certificate",
    "DatasetTable": "pathexpand.table",
    "Expansion": "pathexpand.symbolic",
    "Factored": "pathexpand.lowrank",
    "Graph": "pathexpand.features",
    "Head": "pathexpand.symbolic",
    "Mlp": "pathexpand.symbolic",
    "Model": "pathexpand.api",
    "Network": "pathexpand.symbolic",
    "Neuron": "pathexpand.symbolic",
    "NormTable": "pathexpand.table",
    "Path": "pathexpand.symbolic",
    "PathExpandError": "pathexpand.errors",
    "PathTable": "pathexpand.table",
    "Query": "pathexpand.symbolic.query",
    "Run": "pathexpand.api",
    "Sample": "pathexpand.engine.sampling",
    "ScoreTable": "pathexpand.table",
    "Term": "pathexpand.symbolic",
    "TotalsTable": "pathexpand.table",
    "UnitSet": "pathexpand.features",
    "certify": "pathexpand.certificate",
    "check_certificate": "pathexpand.certificate",
    "count": "pathexpand.symbolic",
    "equation": "pathexpand.symbolic",
    "expand": "pathexpand.symbolic",
    "from_state_dict": "pathexpand.api",
    "from_transformer_lens": "pathexpand.api.live",
    "from_transformers": "pathexpand.api.live",
    "iterate": "pathexpand.symbolic",
    "load": "pathexpand.api",
    "load_graph": "pathexpand.features",
    "load_units": "pathexpand.features",
    "prune": "pathexpand.features",
    "verify_run": "pathexpand.laws",
}
__all__ = [
    "AnalysisTable",
    "Budget",
    "Certificate",
    "Checkpoint",
    "Config",
    "DatasetTable",
    "Expansion",
    "Factored",
    "Graph",
    "Head",
    "Mlp",
    "Model",
    "Network",
    "Neuron",
    "NormTable",
    "Path",
    "PathExpandError",
    "PathTable",
    "Query",
    "Run",
    "Sample",
    "ScoreTable",
    "Term",
    "TotalsTable",
    "UnitSet",
    "certify",
    "check_certificate",
    "count",
    "equation",
    "expand",
    "from_state_dict",
    "from_transformer_lens",
    "from_transformers",
    "iterate",
    "load",
    "load_graph",
    "load_units",
    "prune",
    "verify_run",
]

if TYPE_CHECKING:
    from typing import Any

    from pathexpand.api import Model, Run, from_state_dict, load
    from pathexpand.api.live import from_transformer_lens, from_transformers
    from pathexpand.certificate import Certificate, check_certificate
    from pathexpand.certificate.certify import certify
    from pathexpand.engine.sampling import Sample
    from pathexpand.engine.search import Budget
    from pathexpand.errors import PathExpandError
    from pathexpand.features import Graph, UnitSet, load_graph, load_units, prune
    from pathexpand.laws import verify_run
    from pathexpand.lowrank import Factored
    from pathexpand.model.checkpoint import Checkpoint
    from pathexpand.model.config import Config
    from pathexpand.symbolic import (
        Expansion,
        Head,
        Mlp,
        Network,
        Neuron,
        Path,
        Term,
        count,
        equation,
        expand,
        iterate,
    )
    from pathexpand.symbolic.query import Query
    from pathexpand.table import (
        AnalysisTable,
        DatasetTable,
        NormTable,
        PathTable,
        ScoreTable,
        TotalsTable,
    )


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pathexpand' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*globals(), *_PUBLIC])
