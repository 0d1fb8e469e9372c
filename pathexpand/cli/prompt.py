"""The options that choose a model and what it reads, and the run they stand for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pathexpand.errors import FileError, PromptError

if TYPE_CHECKING:
    from pathexpand.api import Run

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_MODEL = "two-layer"
DEFAULT_PROMPT = "Humpty Dumpty sat on a wall. Humpty D"
_ID = re.compile(r"[+-]?[0-9]{1,18}")


def prompted(command: Command) -> Command:
    """Add the options that choose a model, a prompt, a position and a target."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def queried(command: Command) -> Command:
    """Add the option that asks for some paths only."""
    return click.option(
        "--query",
        metavar="QUERY",
        callback=checked_text,
        help='Only paths such as "embed > * > L1H2"; "pathexpand query" explains the language.',
    )(command)


def read_run(model: str, *, prompt: str | None, prompt_file: str | None, tokens: str | None) -> Run:
    """Load a model and run the prompt that was given, or the default one.

    >>> len(read_run("two-layer", prompt=None, prompt_file=None, tokens="0 5,7").tokens)
    3
    """
    given = [each for each in (prompt, prompt_file, tokens) if each is not None]
    if len(given) > 1:
        raise click.UsageError("Give one of --prompt, --prompt-file and --tokens.", _context())
    from pathexpand.api import load
    from pathexpand.model.checkpoint import EMBEDDED

    loaded = load(model)
    if not given and model not in EMBEDDED:
        raise click.UsageError("This model needs --prompt, --prompt-file or --tokens.", _context())
    if tokens is not None:
        return loaded.run(read_ids(tokens))
    text = DEFAULT_PROMPT if prompt is None else prompt
    return loaded.run(text if prompt_file is None else _read_text(prompt_file))


def read_ids(text: str) -> list[int]:
    """Read token ids with commas or spaces between them.

    >>> read_ids("1,2, 3"), read_ids("[4 5]")
    ([1, 2, 3], [4, 5])
    """
    ids = []
    for piece in re.split(r"[,\s]+", text.strip().removeprefix("[").removesuffix("]").strip(" ,")):
        if piece and not _ID.fullmatch(piece):
            raise PromptError("tokens", wanted="ids such as 1,2,3", got=repr(piece))
        ids += [int(piece)] if piece else []
    return ids


def _read_text(file: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if file == "-" else FilePath(file).read_bytes()
        return raw.decode("utf-8")
    except OSError as error:
        raise FileError(f"{file}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FileError(f"{file}", wanted="text in UTF-8", got=str(error)) from None


def checked_text(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Refuse bytes that are no UTF-8; the operating system hands them over as lone surrogates."""
    if text is not None and not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(f"{option.name}", wanted="text in UTF-8", got=str(error)) from None
    return text


def _context() -> click.Context | None:
    return click.get_current_context(silent=True)


_OPTIONS: list[Callable[[Command], Command]] = [
    click.option(
        "--model",
        metavar="NAME|DIR|FILE",
        default=DEFAULT_MODEL,
        show_default=True,
        help='An embedded model (see "pathexpand models"), a directory with config.json and '
        "a .safetensors file, or that file.",
    ),
    click.option(
        "--prompt",
        metavar="TEXT",
        callback=checked_text,
        help="The text the model reads, taken as typed. Without one an embedded model reads "
        "an example.",
    ),
    click.option(
        "--prompt-file",
        metavar="FILE",
        help="Read the text from a file, every byte of it; - is standard input.",
    ),
    click.option(
        "--tokens",
        metavar="IDS",
        help='Token ids instead of text, such as "1,2,3", used exactly as given.',
    ),
    click.option(
        "--position",
        type=int,
        metavar="N",
        help="Where the logit is read, from 0, or from the end if negative. Default: the last "
        "token.",
    ),
    click.option(
        "--target",
        metavar="TOKEN",
        callback=checked_text,
        help="A token's text or id, or A-B for the difference of two logits. Default: the "
        "most likely next token.",
    ),
]
