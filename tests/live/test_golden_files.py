"""The golden files are what the installed transformers gives today."""

import subprocess
import sys

import pytest

from tests.live.golden import SCRIPT

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="needs transformers")


def test_golden_files_are_not_stale() -> None:
    command = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.rstrip().endswith("cases as stored")
