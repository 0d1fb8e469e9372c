"""The `pathexpand` program: its commands, its exit codes and its error line.

Only click is imported here and by the command modules; what is heavy is imported when a command
runs, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import click

from pathexpand import __version__
from pathexpand.cli.check import check
from pathexpand.cli.circuits import circuits
from pathexpand.cli.compose import compose
from pathexpand.cli.count import count
from pathexpand.cli.dataset import dataset
from pathexpand.cli.expand import expand
from pathexpand.cli.graph import graph
from pathexpand.cli.heads import heads
from pathexpand.cli.importance import importance
from pathexpand.cli.models import models
from pathexpand.cli.output import INTERRUPTED, complain, emit
from pathexpand.cli.query import query
from pathexpand.cli.report import report
from pathexpand.cli.scores import scores
from pathexpand.cli.table import table
from pathexpand.cli.total import total
from pathexpand.cli.tutorial import tutorial
from pathexpand.cli.verify import verify
from pathexpand.errors import PathExpandError

WRONG = 2  # bad input, or something that cannot be read or written


class Program(click.Group):
    """A group of commands that ends quietly on Ctrl-C: click would print an empty line first."""

    def invoke(self, context: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise click.Abort from None


@click.group(
    cls=Program,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="pathexpand", message="%(prog)s %(version)s")
@click.pass_context
def program(context: click.Context) -> None:
    """Take a transformer apart into its paths, rank them, and close the sum.

    "pathexpand table" ranks the paths of an embedded two-layer model on a short prompt.
    """
    if context.invoked_subcommand is None:
        emit(lambda ascii: context.get_help() + "\n")


for command in (
    table,
    total,
    report,
    dataset,
    scores,
    circuits,
    compose,
    heads,
    importance,
    graph,
    expand,
    count,
    verify,
    check,
    models,
    query,
    tutorial,
):
    program.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit: 0 done, 1 a law or a check fails, 2 bad input, 130 interrupted.

    >>> main(["count", "--layers", "2", "--heads", "12"])
    Traceback (most recent call last):
    ...
    SystemExit: 0
    """
    sys.exit(_status(arguments))


def _status(arguments: Sequence[str] | None) -> int:
    try:
        with warnings.catch_warnings():
            # Overflow is caught where a table is built; stderr holds one line or none.
            warnings.simplefilter("ignore", RuntimeWarning)
            status = program.main(
                None if arguments is None else list(arguments),
                prog_name="pathexpand",
                standalone_mode=False,
            )
    except (click.Abort, KeyboardInterrupt):
        if sys.stderr is not None and sys.stderr.isatty():
            print(file=sys.stderr)  # the terminal itself has written ^C
        complain("interrupted: nothing was written")
        return INTERRUPTED
    except click.ClickException as error:
        complain(_usage(error))
        return WRONG
    except (PathExpandError, OSError) as error:
        complain(str(error))
        return WRONG
    except MemoryError:
        complain("out of memory")
        return WRONG
    return status if isinstance(status, int) else 0


def _usage(error: click.ClickException) -> str:
    line = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    return f"{line} See: {context.command_path} --help" if context is not None else line
