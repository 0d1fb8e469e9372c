"""The options that choose a model and what it reads, and the run they stand for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pathexpand.errors import FileError, PromptError
from pathexpand.model.shown import FILE_ROOM, ROOM, cut, shown

if TYPE_CHECKING:
    from pathexpand.api import Run
    from pathexpand.frozen import MlpMode

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_MODEL = "two-layer"
DEFAULT_PROMPT = "Humpty Dumpty sat on a wall. Humpty D"
_ID = re.compile(r"[+-]?[0-9]{1,18}")


def modelled(command: Command) -> Command:
    """Add the option that chooses a model."""
    return click.option(
        "--model",
        metavar="NAME|DIR|FILE",
        default=DEFAULT_MODEL,
        show_default=True,
        help='An embedded model (see "pathexpand models"), the directory of a checkpoint '
        "(config.json and .safetensors files), or such a file.",
    )(command)


def prompted(command: Command) -> Command:
    """Add the options that choose a model, a prompt, a position and a target."""
    return attended(_TARGET(command))


def attended(command: Command) -> Command:
    """Add the options that choose a model, a prompt, a position and what MLPs are."""
    return with_mlp(located(command))


def located(command: Command) -> Command:
    """Add the options that choose a model, a prompt and a position."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def with_mlp(command: Command) -> Command:
    """Add the option that says what an MLP is in a path."""
    return click.option(
        "--mlp",
        type=click.Choice(("source", "frozen", "neurons")),
        default="source",
        show_default=True,
        help="What an MLP is in a path: a source of what it wrote (L3M), one component with its "
        "gates held fixed (L3M), or a component for each neuron (L3N210). No effect on a model "
        "without MLPs.",
    )(command)


def queried(command: Command) -> Command:
    """Add the option that asks for some paths only."""
    return click.option(
        "--query",
        metavar="QUERY",
        callback=checked_text,
        help='Only paths such as "embed > * > L1H2"; "pathexpand query" explains the language.',
    )(command)


def read_run(
    model: str,
    *,
    prompt: str | None,
    prompt_file: str | None,
    tokens: str | None,
    mlp: MlpMode = "source",
) -> Run:
    """Load a model and run the prompt that was given, or the default one.

    >>> len(read_run("two-layer", prompt=None, prompt_file=None, tokens="0 5,7").tokens)
    3
    """
    given = [each for each in (prompt, prompt_file, tokens) if each is not None]
    if len(given) > 1:
        raise click.UsageError("Give one of --prompt, --prompt-file and --tokens.", _context())
    from pathexpand.api import load
    from pathexpand.model.checkpoint import EMBEDDED

    loaded = load(model, mlp=mlp)
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
    bare = text.strip()
    if bare.startswith("[") and bare.endswith("]"):
        bare = bare[1:-1].strip()
    pieces = re.split(r"\s*,\s*|\s+", bare) if bare else []
    for piece in pieces:
        if not _ID.fullmatch(piece):
            got = shown(piece) if piece else f"nothing at a comma of {shown(text)}"
            raise PromptError("tokens", wanted="ids such as 1,2,3", got=got)
    return [int(piece) for piece in pieces]


def read_bytes(file: str) -> bytes:
    """Read a file whole; - is standard input. Raises `FileError`.

    >>> read_bytes("no such file")
    Traceback (most recent call last):
    ...
    pathexpand.errors.FileError: no such file: cannot read: No such file or directory
    """
    closed = FileError("standard input", wanted="an open stream", got="a closed one")
    if file == "-" and sys.stdin is None:
        raise closed
    try:
        return sys.stdin.buffer.read() if file == "-" else FilePath(file).read_bytes()
    except OSError as error:
        raise FileError(f"{cut(file, FILE_ROOM)}: cannot read: {error.strerror}") from None
    except ValueError as error:  # a stream closed since, or a name no file can have
        if file == "-":
            raise closed from None
        raise FileError(f"{cut(file, FILE_ROOM)}: cannot read: {error}") from None


def _read_text(file: str) -> str:
    try:
        return read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{file}", wanted="text in UTF-8", got=_where(error)) from None


def checked_text(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Refuse bytes that are no UTF-8; the operating system hands them over as lone surrogates."""
    if text is not None and not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(f"{option.name}", wanted="text in UTF-8", got=_where(error)) from None
    return text


def checked_texts(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str | None, ...]:
    """Refuse bytes that are no UTF-8 in any of several texts."""
    return tuple(checked_text(context, option, text) for text in texts)


def _where(error: UnicodeError) -> str:
    return cut(str(error), 2 * ROOM)


def _context() -> click.Context | None:
    return click.get_current_context(silent=True)


_OPTIONS: list[Callable[[Command], Command]] = [
    modelled,
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
        help="Where it is read, from 0, or from the end if negative. Default: the last token.",
    ),
]
_TARGET = click.option(
    "--target",
    metavar="TOKEN",
    callback=checked_text,
    help="A token's text or id, or A-B for the difference of two logits. Default: the most likely "
    "next token.",
)
