"""`pathexpand verify`: the laws, measured on a model and a prompt."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from pathexpand.cli.output import INTERRUPTED, complain, emit, wants_color
from pathexpand.cli.prompt import prompted, read_run
from pathexpand.progress import clear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pathexpand.laws import LawResult
    from pathexpand.table.sheet import Column


@click.command(short_help="Check the laws on a model and a prompt.")
@prompted
def verify(*, model: str, position: int | None, target: str | None, **prompt: Any) -> int:
    """Check on a model and a prompt that the paths add up and are ranked rightly.

    Prints each law with the error that was measured and the bound it must stay within. The exit
    status is 1 if one fails.
    """
    from pathexpand.laws import verify_run

    run = read_run(model, **prompt)
    place = run.position(position)
    what = run.target(target, position=place)
    with _interruptible():
        results = verify_run(run, target=what, position=place)
    head = {
        "model": run.model.config.model_name,
        "prompt": f"{len(run.tokens)} tokens, read at position {place}",
        "target": run.describe(what),
    }
    emit(lambda ascii: _written(head, results, ascii=ascii))
    return 0 if all(result.holds for result in results) else 1


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the program at once.

    The laws build tables, which would take it as a wish for what is found so far.
    """

    def stop(number: int, frame: object) -> None:
        clear()
        complain("interrupted: not all laws were checked")
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _written(head: dict[str, str], results: Sequence[LawResult], *, ascii: bool) -> str:
    from pathexpand.table.sheet import Line, Sheet
    from pathexpand.table.spelling import visible
    from pathexpand.table.text import text

    failed = [result for result in results if not result.holds]
    claims = [f"{result.name} FAILS: {result.detail}" for result in failed]
    claims += [f"{len(failed)} of {len(results)} laws fail."] if failed else []
    sheet = Sheet(
        head=tuple(Line(label, visible(said, ascii=ascii)) for label, said in head.items()),
        columns=_columns(results, ascii=ascii),
        closing=(),
        claims=tuple(claims) or (_all_hold(results),),
        good=not failed,
    )
    return text(sheet, ascii=ascii, color=wants_color()) + "\n"


def _verdict(result: LawResult) -> str:
    if not result.applies:
        return "-"
    return "yes" if result.holds else "NO"


def _all_hold(results: Sequence[LawResult]) -> str:
    others = [result for result in results if not result.applies]
    said = f"All {len(results) - len(others)} laws that apply hold."
    reasons = [f"{each.name} {each.detail.replace(': ', ', as ', 1)}." for each in others]
    return " ".join([said, *reasons]) if others else f"All {len(results)} laws hold."


def _columns(results: Sequence[LawResult], *, ascii: bool) -> tuple[Column, ...]:
    from pathexpand.table.figures import small, upper
    from pathexpand.table.sheet import Column
    from pathexpand.table.shorten import wrap
    from pathexpand.table.spelling import visible

    names = [result.name for result in results]
    details = [visible(result.detail, ascii=ascii) for result in results]
    return (
        Column(
            "law",
            tuple(names),
            shorten=lambda row, room: wrap(names[row], room),
            least=len("permutation"),
        ),
        Column("holds", tuple(_verdict(result) for result in results)),
        Column(
            "error",
            tuple(small(each.error) if each.applies else "" for each in results),
            right=True,
        ),
        Column(
            "bound",
            tuple(upper(each.bound, digits=2) if each.applies else "" for each in results),
            right=True,
        ),
        Column(
            "checked on",
            tuple(details),
            shorten=lambda row, room: wrap(details[row], room),
            least=10,
        ),
    )
