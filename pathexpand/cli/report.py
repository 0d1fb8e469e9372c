"""`pathexpand report`: the ranked paths of a run in one page to explore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pathexpand.cli.output import emit
from pathexpand.cli.table import rank, ranked, read_budget
from pathexpand.table.spelling import visible

if TYPE_CHECKING:
    from pathexpand.api import Run
    from pathexpand.features.graph import Graph

_OUT = "paths.html"


@click.command(
    short_help="Write a model's paths on a prompt as a page to explore.",
    epilog="The page is one file with all its scripts: it opens from disk without a network. "
    'It needs bokeh: pip install "pathexpand[report]".',
)
@ranked(top=100)
@click.option(
    "--graph", is_flag=True, help="Show the attribution graph of its features too, pruned."
)
@click.option(
    "--features",
    metavar="DIR",
    help="Features for --graph. Default: those that come with the package for the model.",
)
@click.option(
    "--out",
    metavar="FILE",
    default=_OUT,
    show_default=True,
    help="The page, whole or not at all; its name ends in .html.",
)
def report(*, graph: bool, features: str | None, out: str, **given: Any) -> int:
    """Write the ranked paths, where they move, and why heads look there, as one page of HTML.

    On top stands what "pathexpand table" says: the sum that closes, and what is certified. Below,
    paths can be sorted, filtered and selected; the selected ones are drawn over tokens and layers.
    """
    from pathexpand.page.document import check_page

    context = click.get_current_context(silent=True)
    if features is not None and not graph:
        raise click.UsageError("--features goes with --graph.", context)
    if graph and given["weights_only"]:
        raise click.UsageError(
            "--graph needs a prompt: it does not go with --weights-only.", context
        )
    if not out:
        raise click.UsageError("--out wants the name of a file that ends in .html.", context)
    check_page(out)
    found = rank(out, **given)
    if found.run is None or found.searched is None:
        found.table.to_html(out)
    else:
        from pathexpand.api.report import run_report

        drawn = _graph(found.run, features, given) if graph else None
        what = found.searched.target
        budget = read_budget(given["nodes"], given["seconds"], given["memory"])
        table = found.searched.table
        run_report(found.run, what, table, graph=drawn, budget=budget).to_html(out)
    emit(lambda ascii: f"Wrote {visible(out, ascii=ascii)}\n")
    return found.end()


def _graph(run: Run, features: str | None, given: dict[str, Any]) -> Graph:
    return run.graph(features, position=given["position"], prune=True)
