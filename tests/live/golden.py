"""The script that writes the golden files, as a module: its cases make live models too."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "reference" / "families" / "make.py"


def load_script() -> ModuleType:
    """Import the script; skip where what it needs is not installed."""
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("transformers", minversion="5", reason="needs transformers 5")
    if "golden_script" not in sys.modules:
        spec = importlib.util.spec_from_file_location("golden_script", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["golden_script"] = module  # dataclasses look themselves up there
        spec.loader.exec_module(module)
    return sys.modules["golden_script"]
