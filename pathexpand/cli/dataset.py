"""`pathexpand dataset`: the ranked paths of a model over many prompts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import click

from pathexpand.cli.output import complain
from pathexpand.cli.prompt import checked_text, modelled, queried, read_bytes, with_mlp
from pathexpand.cli.table import read_budget, write, written
from pathexpand.errors import FileError, PathExpandError, PromptError
from pathexpand.model.shown import cut, shown

if TYPE_CHECKING:
    from pathexpand.api import Model

_JSON_LINES = (".jsonl", ".ndjson")
_REMEDY = 'a prompt that itself starts with { is written as {"text": "{ …"}'


@click.command(
    short_help="Rank a model's paths over many prompts.",
    epilog="A file of JSON lines (its name ends in .jsonl, or its first line starts with {) has "
    'one {"text": ...} or {"tokens": [1, 2]} a line, if wanted with a "target" of its own. In any '
    "other file each line is a prompt as it stands. Blank lines are passed over.",
)
@modelled
@with_mlp
@click.option(
    "--prompts",
    "file",
    metavar="FILE",
    required=True,
    help="The prompts, one a line; - is standard input.",
)
@click.option(
    "--by",
    type=click.Choice(("rms", "mean")),
    default="rms",
    show_default=True,
    help="Rank by the root mean square of a path's values, or by their |mean|.",
)
@click.option(
    "--target",
    metavar="TOKEN",
    callback=checked_text,
    help="A token's text or id, or A-B for the difference of two logits. Default: each prompt's "
    "most likely next token.",
)
@queried
@click.option("--top", type=int, default=10, show_default=True, metavar="N", help="Rows to list.")
@click.option(
    "--max-order", type=int, metavar="N", help="Rank only paths of at most N heads and MLPs."
)
@click.option("--raw", is_flag=True, help="Read the logit itself, not minus the vocabulary mean.")
@click.option("--nodes", type=int, metavar="N", help="Stop after so many suffixes.")
@click.option("--seconds", type=float, metavar="S", help="Stop the search after so long.")
@click.option("--rounds", type=int, metavar="N", help="Stop after so many passes over the prompts.")
@click.option(
    "--cache",
    type=click.IntRange(min=0),
    default=250,
    show_default=True,
    metavar="MB",
    help="Memory for what the search can keep of the prompts from round to round.",
)
@written
def dataset(
    *,
    model: str,
    mlp: Any,
    file: str,
    by: Any,
    target: str | None,
    raw: bool,
    nodes: int | None,
    seconds: float | None,
    cache: int,
    kind: str | None,
    out: str | None,
    **options: Any,
) -> int:
    """Rank a model's paths by what they add to a logit over many prompts, and close the mean.

    Each prompt is read at its last token. However many paths there are, the list is exact: the
    search ends when no path that is left can be larger. Stopped sooner, by an option or Ctrl-C,
    the table still bounds every unlisted path.
    """
    budget = read_budget(nodes, seconds, None)
    lines = read_lines(file)
    from pathexpand.api import load

    loaded = load(model, mlp=mlp)
    prompts, targets = _checked_prompts(loaded, file, lines, centred=False if raw else None)
    if targets is not None and target is not None:
        raise click.UsageError(
            "--target is for prompts without a target of their own.",
            click.get_current_context(silent=True),
        )
    found = loaded.dataset_paths(
        prompts,
        by=by,
        target=target,
        targets=targets,
        centred=False if raw else None,
        budget=budget,
        cache=cache * 10**6,
        **options,
    )
    write(found, kind, out)
    if found.closes:
        return 0
    complain("the sum does not close: the gap is larger than its bound")
    return 1


@dataclass(frozen=True, slots=True)
class Line:
    """A prompt of a file: the number of its line from 1, what it says, and its own target."""

    number: int
    prompt: Any
    target: Any = None


def read_lines(file: str) -> list[Line]:
    """Read the prompts of a file, one a line.

    Raises `FileError` for a file that cannot be read or has no prompt, and `PromptError`, with the
    line, for a line that is none.

    >>> read_lines("no such file")
    Traceback (most recent call last):
    ...
    pathexpand.errors.FileError: no such file: cannot read: No such file or directory
    """
    raw = read_bytes(file)
    texts = [
        (number, _decoded(file, number, line.removesuffix(b"\r")))
        for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1)
        if line.strip()
    ]
    if not texts:
        raise FileError(file, wanted="at least one prompt", got="an empty file")
    # A broken first object is not taken for prose: every line would be, without a word.
    if FilePath(file).suffix.lower() in _JSON_LINES or texts[0][1].lstrip().startswith("{"):
        return [_read_object(file, number, text) for number, text in texts]
    return [Line(number, text) for number, text in texts]


def _decoded(file: str, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{file} line {number}", wanted="text in UTF-8", got=f"{error.reason} at {error.start}"
        ) from None


def _read_object(file: str, number: int, text: str) -> Line:
    subject = f"{file} line {number}"
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode("utf-8")  # refuses half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise PromptError(
            subject, wanted="a JSON object", got=cut(str(error)), remedy=_REMEDY
        ) from None
    if not isinstance(found, dict) or ("text" in found) == ("tokens" in found):
        wanted = 'a JSON object with one of "text" and "tokens"'
        raise PromptError(subject, wanted=wanted, got=cut(text), remedy=_REMEDY)
    prompt = found.get("text", found.get("tokens"))
    if "text" in found and not isinstance(prompt, str):
        raise PromptError(subject, wanted='a string as "text"', got=shown(prompt))
    if "tokens" in found and not (
        isinstance(prompt, list) and all(type(each) is int for each in prompt)
    ):
        raise PromptError(subject, wanted='a list of ids as "tokens"', got=shown(prompt))
    target = found.get("target")
    return Line(number, prompt, tuple(target) if isinstance(target, list) else target)


def _checked_prompts(
    model: Model, file: str, lines: list[Line], *, centred: bool | None
) -> tuple[list[Any], list[Any] | None]:
    """Give the token ids of each line and, if any has one, the targets; errors name the line."""
    from pathexpand.model.prompt import read_prompt
    from pathexpand.target import read_target

    prompts, targets = [], []
    for line in lines:
        try:
            prompts.append(read_prompt(model.checkpoint, line.prompt).ids)
            what = line.target
            if what is not None:
                what = read_target(model.checkpoint, what, centred=centred)
            targets.append(what)
        except PathExpandError as error:
            raise PromptError(
                f"{file} line {line.number}: {error.subject}",
                wanted=error.wanted,
                got=error.got,
                remedy=error.remedy,
            ) from None
    return prompts, targets if any(each is not None for each in targets) else None
