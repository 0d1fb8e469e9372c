"""The line that says how far long work has come: who sees it, and that nothing of it is left."""

import io
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pathexpand import load, progress


class Seen:
    """A place that remembers what was shown there."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, float | None]] = []
        self.cleared = 0

    def show(self, text: str, share: float | None) -> None:
        self.lines.append((text, share))

    def clear(self) -> None:
        self.cleared += 1


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    place = Seen()
    monkeypatch.setattr(progress, "_place", lambda: place)
    monkeypatch.setattr(progress, "_PATIENCE", 0.05)
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    yield place
    assert progress._line is None


def test_quick_work_shows_nothing(seen: Seen) -> None:
    with progress.watched("quick"):
        progress.tell("half", 0.5)
    assert not seen.lines and not seen.cleared


def test_silent_work_shows_its_title(seen: Seen) -> None:
    with progress.watched("silent"):
        time.sleep(0.2)
    assert seen.lines == [("silent", None)] and seen.cleared == 1


def test_what_is_told_is_shown_and_taken_away(seen: Seen) -> None:
    with progress.watched("counting"):
        time.sleep(0.1)
        assert list(progress.tracked("abcd", "letters", 4)) == [*"abcd"]
    assert seen.lines[-1] == ("counting: 3 of 4 letters", 0.75) and seen.cleared == 1


def test_one_line_at_a_time(seen: Seen) -> None:
    with progress.watched("outer"), progress.watched("inner"):
        time.sleep(0.2)
        progress.tell("told")
    assert {text for text, _ in seen.lines} == {"outer", "outer: told"} and seen.cleared == 1


def test_an_error_takes_the_line_away(seen: Seen) -> None:
    with pytest.raises(KeyboardInterrupt), progress.watched("work"):
        time.sleep(0.2)
        raise KeyboardInterrupt
    assert seen.cleared == 1


def test_a_search_is_told_about(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    load("two-layer").run("to be or not to be").paths(top=3)
    load("two-layer").run("to be or not to be").graph()
    load("two-layer").circuits.importance(["to be or not to be"])
    said = "\n".join(text for text, _ in seen.lines)
    for part in ("ranking paths", "paths valued", "features and logits", "1 prompt, "):
        assert part in said


def test_an_own_listener_is_heard_in_its_place(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    heard: list[Any] = []
    load("two-layer").run("to be or not to be").paths(top=3, report=heard.append)
    assert heard and not any("valued" in text for text, _ in seen.lines)


def test_files_pipes_and_the_switched_off_see_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress._place() is None  # pytest's own capture

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("TERM", "xterm")
    assert progress._place() is not None
    monkeypatch.setenv("TERM", "dumb")
    assert progress._place() is None
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PATHEXPAND_PROGRESS", "0")
    assert progress._place() is None


SLOW = """
import time
from pathexpand import progress
with progress.watched("slow"):
    for _ in progress.tracked(range(20), "things", 20):
        time.sleep(0.06)
print("done")
"""


def on_a_terminal(code: str, *, stop_after: str = "") -> str:
    """Run code with a terminal as its standard error, and give all it wrote there."""
    screen, end = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    child = subprocess.Popen(
        [sys.executable, "-c", code], stderr=end, stdout=subprocess.PIPE, env=environment
    )
    os.close(end)
    written = b""
    while True:
        try:
            piece = os.read(screen, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        written += piece
        if stop_after and stop_after.encode() in written:
            child.send_signal(signal.SIGINT)
            stop_after = ""
    os.close(screen)
    child.communicate(timeout=60)
    return written.decode()


def test_a_terminal_is_left_as_it_was() -> None:
    written = on_a_terminal(SLOW)
    assert "slow: " in written and "of 20 things" in written
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is back
    assert written.endswith("\x1b[1A\x1b[2K")  # and the line is gone


def test_interrupted_work_leaves_the_cursor() -> None:
    code = "from pathexpand import cli, progress\nimport time\n"
    code += "from pathexpand.laws import verify\n"
    code += "verify._laws = lambda *a: [lambda: time.sleep(30)]\ncli.main(['verify'])"
    written = on_a_terminal(code, stop_after="checking laws")
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    assert written.count("interrupted") == 1 and "Traceback" not in written


def test_a_notebook_has_one_output_that_ends_empty() -> None:
    client, formats = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = formats.v4.new_notebook(cells=[formats.v4.new_code_cell(SLOW)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", "ignore")
        client.NotebookClient(notebook, kernel_name="python3", timeout=60).execute()
    first, second = notebook.cells[0].outputs
    assert first.output_type == "display_data" and first.data["text/html"] == ""
    assert second.text == "done\n"
