"""Encodings, closed pipes, interrupts and start: what only a process of its own shows."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from pathexpand.cli import main

ROOT = Path(__file__).parents[2]

PROMPT = "class Café:\n    <b>漢字😀</b>\t"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("kind", ["text", "csv", "json", "md", "latex"])
def test_a_narrow_stdout(spawn, encoding, kind):
    done = spawn(
        "table", "--prompt", PROMPT, "--format", kind, "--top", "50", PYTHONIOENCODING=encoding
    )
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode(encoding)
    if kind == "json":
        utf8 = spawn("table", "--prompt", PROMPT, "--format", kind, "--top", "50")
        assert json.loads(text) == json.loads(utf8.stdout)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["expand", "--layers", "2", "--heads", "2"],
        ["expand", "--layers", "12", "--heads", "12", "--equation"],
        ["models"],
        ["query"],
        ["tutorial"],
        ["--help"],
    ],
    ids=str,
)
def test_a_narrow_stdout_of_other_commands(spawn, encoding, arguments):
    done = spawn(*arguments, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    done.stdout.decode("ascii")


def test_an_error_about_strange_letters_on_an_ascii_stderr(spawn):
    done = spawn("table", "--target", "漢\n字", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"\\u6f22\\n\\u5b57" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["table"], ["expand", "--layers", "2", "--heads", "100", "--notation", "code"], ["--help"]],
    ids=str,
)
def test_a_closed_pipe_ends_quietly(arguments, command):
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=120)
    assert err == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")  # noqa: PTH110
def test_a_full_disk_is_one_line(command):
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = subprocess.run(
            command("count", "--layers", "2", "--heads", "2"),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


def test_no_stdout_is_one_line(command):
    shell = ["sh", "-c", 'exec "$@" >&-', "sh"]
    done = subprocess.run(
        [*shell, *command("count", "--layers", "2", "--heads", "2")],
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


def test_an_interrupt_ends_quietly():
    # The command waits for its standard input, so that the interrupt finds it at work.
    code = (
        "import os, signal, threading\nfrom pathexpand.cli import main\n"
        "threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "main(['table', '--prompt-file', '-'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.wait(60) == 130
    out, err = process.communicate()
    assert out == b""
    assert err.decode().split("\n")[-2] == "pathexpand: error: interrupted: nothing was written"
    assert b"Traceback" not in err


def read_terminal(words: list[str], columns: int, **variables: str) -> str:
    """Run the program on a terminal of its own and give what it showed."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        ["sh", "-c", f'stty cols {columns}; exec "$@"', "sh", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=kept | {"TERM": "xterm"} | variables,
    )
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    process.wait(60)
    return shown.decode().replace("\r\n", "\n")


def test_colour_and_width_on_a_terminal(command):
    coloured = read_terminal(command("table", "--top", "3"), 132)
    assert "\x1b[" in coloured
    plain = read_terminal(command("table", "--top", "3"), 132, NO_COLOR="1")
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) > 80
    narrow = read_terminal(command("table"), 60, NO_COLOR="1")
    assert max(map(len, narrow.splitlines())) <= 60


HEAVY = {"numpy", "sympy", "rich", "tabulate", "pandas", "opt_einsum", "tokenizers"}


@pytest.mark.parametrize(
    ("arguments", "may"),
    [
        (["--help"], set()),
        (["table", "--help"], set()),
        (["--version"], set()),
        (["count", "--layers", "12", "--heads", "12", "--by-order"], set()),
        (["expand", "--layers", "2", "--heads", "2"], set()),
        (["models"], set()),
        (["query"], set()),
        (["tutorial"], set()),
        (["total", "--tokens", "1,2", "--format", "csv"], {"numpy", "tokenizers"}),
        (["expand", "--layers", "1", "--heads", "1", "--format", "sympy"], {"sympy", "numpy"}),
        (["table", "--tokens", "1,2", "--format", "csv"], {"numpy", "tokenizers"}),
        (["table", "--tokens", "1,2"], {"numpy", "tokenizers", "rich"}),
    ],
    ids=lambda each: " ".join(sorted(each)),  # the same in every process, whatever its hashes
)
def test_only_what_is_needed_is_imported(arguments, may):
    code = (
        "import sys\nfrom pathexpand.cli import main\ntry:\n    main()\nfinally:\n"
        "    print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert HEAVY & set(done.stderr.split()) <= may


def test_an_interrupt_ends_verify_at_once():
    """The laws build tables, and these end well on Ctrl-C: the program must not go on for that."""
    code = (
        "import os, signal, time\nfrom pathexpand import laws\nfrom pathexpand.cli import main\n"
        "def swallowing(*run, **options):\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGINT)\n        time.sleep(9)\n"
        "    except KeyboardInterrupt:\n        return []\n"
        "laws.verify_run = swallowing\nmain(['verify'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 130
    assert done.stdout == b""
    assert done.stderr == b"pathexpand: error: interrupted: not all laws were checked\n"


@pytest.mark.parametrize("module", ["click", "pathexpand.cli.table", "numpy", "rich.text"])
def test_an_interrupt_while_the_program_is_read_in_is_quiet(module):
    """Most of a short command's time goes into imports."""
    code = (
        "import sys\nclass Pressed:\n    def find_spec(self, name, *rest):\n"
        f"        if name == {module!r}:\n            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Pressed())\nfrom pathexpand.cli import main\nmain(['table'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 130
    assert done.stdout == b""
    assert done.stderr.strip() == b"pathexpand: error: interrupted: nothing was written"


def test_ctrl_c_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pathexpand.cli.total.read_run", stopped)
    with pytest.raises(SystemExit) as done:
        main(["total"])
    assert done.value.code == 130
    out, err = capsys.readouterr()
    assert (out, err) == ("", "pathexpand: error: interrupted: nothing was written\n")


def test_the_program_starts_with_next_to_nothing_imported() -> None:
    """What is imported before the entry point runs cannot be interrupted in one line."""
    code = "import sys; before = set(sys.modules); import pathexpand.cli; print(*sorted("
    code += "set(sys.modules) - before - set(sys.builtin_module_names)))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert set(done.stdout.split()) <= {"__future__", "pathexpand", "pathexpand.cli"}
