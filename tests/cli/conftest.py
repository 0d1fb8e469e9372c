from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

CONFIG = {
    "n_layers": 2,
    "n_heads": 3,
    "d_model": 7,
    "d_head": 2,
    "d_vocab": 11,
    "n_ctx": 5,
    "attn_only": True,
    "positional_embedding_type": "shortformer",
    "model_name": "tiny",
}
Save = Callable[..., Path]


def tensors() -> dict[str, Any]:
    draw = np.random.default_rng(5).normal
    found = {"embed.W_E": draw(size=(11, 7)), "pos_embed.W_pos": draw(size=(5, 7))}
    for layer in range(2):
        at = f"blocks.{layer}.attn."
        found |= {at + name: draw(size=(3, 7, 2)) for name in ("W_Q", "W_K", "W_V")}
        found |= {at + "W_O": draw(size=(3, 2, 7)), at + "b_O": draw(size=7)}
    return found | {"unembed.W_U": draw(size=(7, 11)), "unembed.b_U": draw(size=11)}


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Save a small model without a tokenizer, some of it changed; None leaves a tensor out."""

    def build(config: dict[str, Any] | None = None, **changed: Any) -> Path:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(CONFIG | (config or {})))
        kept = {name: array for name, array in (tensors() | changed).items() if array is not None}
        save_file(kept, folder / "model.safetensors")
        return folder

    return build


class Outcome:
    """What a command printed, and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def refused(self) -> str:
        """Give the one error line, after checking that it is one and that nothing else came."""
        assert self.code == 2, (self.code, self.err)
        assert self.out == ""
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1
        assert self.err.startswith("pathexpand: error: ")
        assert "Traceback" not in self.err
        return self.err


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the program inside this process, from arguments to exit status."""
    from pathexpand.cli import main

    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def command() -> Callable[..., list[str]]:
    """Give the words that run the program as a process."""
    start = [sys.executable, "-c", "from pathexpand.cli import main; main()"]
    return lambda *arguments: [*start, *map(str, arguments)]


@pytest.fixture
def spawn(command: Callable[..., list[str]]) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run the program as its own process, with an environment of its own."""

    def run(
        *arguments: object, stdin: bytes = b"", **variables: str
    ) -> subprocess.CompletedProcess[bytes]:
        kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "PYTHONIOENCODING")}
        return subprocess.run(
            command(*arguments), input=stdin, capture_output=True, env=kept | variables, check=False
        )

    return run
