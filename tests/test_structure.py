"""Dependencies point one way, and starting is cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pathexpand"

# Each part may import the parts before it and its own modules, nothing after it.
ORDER = (
    "errors",
    "writing",
    "progress",
    "symbolic",
    "lowrank",
    "model",
    "frozen",
    "engine",
    "target",
    "page",
    "table",
    "circuits",
    "features",
    "plot",
    "report",
    "api",
    "certificate",
    "laws",
    "tutorial",
    "cli",
)
APART = {"train": {"errors", "model", "train"}, "embedded": set()}


def imports(file: Path) -> set[str]:
    """Give the parts of the package that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] + [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "pathexpand" and len(parts) > 1:
                found.add(parts[1])
    return {
        name for name in found if (PACKAGE / name).exists() or (PACKAGE / f"{name}.py").exists()
    }


def part(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if file != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_dependencies_point_one_way(file: Path) -> None:
    own = part(file)
    allowed = APART[own] if own in APART else set(ORDER[: ORDER.index(own) + 1])
    assert imports(file) <= allowed


def test_the_order_test_sees_a_wrong_import(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("def f():\n    from pathexpand.cli import main\n    import pathexpand.api\n")
    assert imports(file) == {"cli", "api"}


def loaded_after(code: str) -> set[str]:
    code += "\nimport sys; print(*sorted(name.split('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


HEAVY = {"numpy", "sympy", "rich", "opt_einsum", "pandas", "torch", "hypothesis", "tokenizers"}


@pytest.mark.parametrize(
    ("code", "may"),
    [
        ("import pathexpand", set()),
        ("import pathexpand.symbolic", set()),
        ("import pathexpand.cli", set()),
        ("import pathexpand.api", {"numpy"}),
        (
            "import pathexpand; pathexpand.load('two-layer').run([1, 2]).paths()",
            {"numpy", "tokenizers"},
        ),
    ],
)
def test_starting_loads_only_what_it_needs(code: str, may: set[str]) -> None:
    assert loaded_after(code) & HEAVY <= may
