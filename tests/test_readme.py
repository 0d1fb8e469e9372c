"""Every command in the README gives the output that stands under it; every example runs."""

import doctest
import os
import re
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SHARED_MODELS = ROOT.parent / "shared" / "models"
OTHERS = ("stories260k", "sort-nano")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def sessions() -> list[tuple[str, str]]:
    """Give each `$ command` of the console blocks with the output under it."""
    found = []
    for kind, text in BLOCKS:
        if kind == "console":
            for piece in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, output = piece.partition("\n")
                found.append((command, output))
    return found


def steady(text: str) -> str:
    """Blank what another processor may round otherwise: gaps, errors and their bounds."""
    text = re.sub(r"^gap +\S+ +rounding allows \S+", "gap", text, flags=re.MULTILINE)
    text = re.sub(r"(yes) +\S+ +\S+", r"\1", text)
    text = re.sub(r"the gap is \S+", "the gap is", text)
    return re.sub(r" +", " ", text)


def last_step(command: str) -> list[str]:
    """Give the part of a command that follows the set-up of its environment."""
    words = shlex.split(command.rpartition("&& ")[2])
    name = words[0].removeprefix(".venv/bin/")
    return [str(Path(sys.executable).parent / name), *words[1:]]


@cache
def folder() -> str:
    """Give the directory that the commands run in, with the models that others made in it."""
    place = Path(tempfile.mkdtemp(prefix="readme-"))
    for name in OTHERS:
        (place / name).symlink_to(SHARED_MODELS / name)
    return str(place)


def printed(command: str) -> str:
    done = subprocess.run(
        last_step(command),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
        cwd=folder(),
        env=os.environ | {"PYTHONIOENCODING": "utf-8", "COLUMNS": "80"},
    )
    return done.stdout


def example(*values: str) -> Any:
    """Mark an example that needs a model which is not part of the package."""
    needs = any(f"model {name}" in values[0] or f'"{name}/' in values[0] for name in OTHERS)
    marks = [pytest.mark.shared_models] if needs else []
    return pytest.param(*values, marks=marks, id=values[0][:60])


RUN = [each for each in sessions() if "pytest" not in each[0]]


@pytest.mark.parametrize(("command", "output"), [example(*each) for each in RUN])
def test_command_prints_what_the_readme_shows(command: str, output: str) -> None:
    assert steady(printed(command)) == steady(output)


def test_set_up_commands_are_one_line_each() -> None:
    set_up = [command for command, _ in sessions() if "venv" in command.split("&&")[0]]
    assert len(set_up) == 2
    assert all(command.startswith("python3 -m venv .venv && ") for command in set_up)


@pytest.mark.parametrize("text", [example(text) for kind, text in BLOCKS if kind == "python"])
def test_python_example_runs(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder())
    if ">>>" not in text:
        exec(compile(text, "README.md", "exec"), {})
        return
    case = doctest.DocTestParser().get_doctest(text, {}, "README.md", "README.md", 0)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(optionflags=flags).run(case)
    assert result.failed == 0
    assert result.attempted > 0


def rewrite() -> None:
    """Put what the commands print now into the README."""
    text = README
    for command, output in RUN:
        text = text.replace(f"$ {command}\n{output}", f"$ {command}\n{printed(command)}")
    (ROOT / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    rewrite()
