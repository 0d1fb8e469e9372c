"""`pathexpand query`: the language of path queries."""

from __future__ import annotations

import click

from pathexpand.cli.output import emit


@click.command(short_help="Explain the language of path queries.")
def query() -> None:
    """Explain how to ask for some paths with --query."""
    from pathexpand.symbolic.query_text import QUERY_LANGUAGE

    text = QUERY_LANGUAGE.rstrip() + "\n"
    emit(lambda ascii: text.replace("…", "...").replace("→", "->") if ascii else text)
