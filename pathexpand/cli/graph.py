"""`pathexpand graph`: the attribution graph of a prompt through sparse features."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import click

from pathexpand.cli.output import complain, warn, write_whole
from pathexpand.cli.prompt import located, read_run
from pathexpand.cli.table import write, written
from pathexpand.errors import FileError, PathExpandError

if TYPE_CHECKING:
    from pathexpand.features.graph import Graph
    from pathexpand.table import Table

_CHOOSING = ("top_logits", "logit_probability")
_OF_UNITS = ("format_of_features", "layer", "hook_in", "hook_out", "input_scale")
# What errors of the library call things, and what they are here.
_NAMES = {
    "top": "--top",
    "top_logits": "--top-logits",
    "probability": "--logit-probability",
    "zero_positions": "--zero-positions",
    "nodes": "--nodes",
    "edges": "--edges",
    "targets of a graph": "--target",
    "format": "--format-of-features",
    "layer": "--layer",
    "hook_in": "--hook-in",
    "hook_out": "--hook-out",
    "input_scale": "--input-scale",
    "slug": "--slug",
    "most links": "--most-links",
}
_REMEDIES = (
    (re.compile(r"give format= as "), "give --format-of-features "),
    (re.compile(r"give it as load_units\(…, (\w+)=…\)"), r"give it as --\1"),
    (re.compile(r"or force it"), "or give --force"),
    (re.compile(r"or say folded=True"), "or give --folded"),
)
_OF_A_RUN = (
    "model",
    "prompt",
    "prompt_file",
    "tokens",
    "position",
    "features",
    "format_of_features",
    "layer",
    "hook_in",
    "hook_out",
    "input_scale",
    "folded",
    "targets",
    "top_logits",
    "logit_probability",
    "zero_positions",
    "force",
    "edge",
)


@click.command(
    short_help="Draw up which features a prediction comes from, and through which heads.",
    epilog="Nodes are named L1F17@4 (a feature at a position), embed@2, L1E@3 (what features "
    "miss), L0bias, or by a token, quotes included, for a logit. --node and --edge look at the "
    "whole graph; --export writes the pruned one, --save the whole.",
)
@located
@click.option(
    "--features",
    metavar="DIR|FILE",
    help="Trained features: transcoders or SAEs. Default: those that come with the package for "
    'this model (see "pathexpand models").',
)
@click.option(
    "--format-of-features",
    metavar="NAME",
    help="The format they are stored in, where their files do not tell.",
)
@click.option("--layer", type=int, metavar="N", help="The layer they are of, likewise.")
@click.option(
    "--hook-in", metavar="NAME", help="What they read, likewise, such as resid_pre or mlp_in."
)
@click.option("--hook-out", metavar="NAME", help="What they stand for, likewise.")
@click.option(
    "--input-scale",
    type=float,
    metavar="X",
    help="What their inputs are multiplied by on average, likewise.",
)
@click.option(
    "--folded",
    is_flag=True,
    help="They were trained on this model with its norms folded, as it is loaded.",
)
@click.option(
    "--target",
    "targets",
    metavar="TOKEN",
    multiple=True,
    help="A token whose logit is explained, by text or id; can be given several times. Default: "
    "the likeliest next tokens.",
)
@click.option(
    "--top-logits",
    type=int,
    default=10,
    show_default=True,
    metavar="N",
    help="At most so many of the likeliest next tokens.",
)
@click.option(
    "--logit-probability",
    type=float,
    default=0.95,
    show_default=True,
    metavar="P",
    help="As many of them as make up this probability.",
)
@click.option(
    "--zero-positions",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Leave features out at the first N positions: most were not trained on start tokens.",
)
@click.option(
    "--force", is_flag=True, help="Also with features that miss more of this prompt than they find."
)
@click.option(
    "--nodes",
    type=float,
    default=0.8,
    show_default=True,
    metavar="SHARE",
    help="Keep the nodes that make up this share of the influence.",
)
@click.option(
    "--edges",
    type=float,
    default=0.98,
    show_default=True,
    metavar="SHARE",
    help="And the edges that make up this share. What is pruned is each node's remainder.",
)
@click.option("--top", type=int, default=10, show_default=True, metavar="N", help="Rows to list.")
@click.option("--summary", is_flag=True, help="Count and score the graph, whole and pruned.")
@click.option("--node", metavar="NODE", help="List what a node reads, or what reads it.")
@click.option("--outgoing", is_flag=True, help="With --node: what reads it, in any case.")
@click.option(
    "--edge",
    nargs=2,
    metavar="SOURCE TARGET",
    help="Split one edge into the paths of heads that carry it.",
)
@click.option(
    "--export",
    metavar="FILE.json",
    help="Write the pruned graph as JSON for the pages of circuit-tracer and Neuronpedia.",
)
@click.option(
    "--metadata",
    metavar="FILE.json",
    help="With --export: write also the list of graphs, of this one alone, that a local page of "
    "circuit-tracer looks for beside them as graph-metadata.json.",
)
@click.option(
    "--export-paths",
    is_flag=True,
    help="With --export: add to links of features the three largest paths of heads that carry "
    "them, for at most 500 links.",
)
@click.option("--slug", metavar="NAME", help="With --export: its name there. Default: the file's.")
@click.option(
    "--constants",
    type=click.Choice(("drop", "nodes")),
    help="With --export: constants as a number in each node (drop, the default) or as bias nodes.",
)
@click.option(
    "--most-links",
    type=int,
    metavar="N",
    help="With --export: only the N links with most influence; the rest counts as pruned.",
)
@click.option("--save", metavar="FILE", help="Write the whole graph to a .safetensors file.")
@click.option("--load", metavar="FILE", help="Show such a graph; no model is run.")
@written
def graph(
    *,
    nodes: float,
    edges: float,
    export: str | None,
    metadata: str | None,
    save: str | None,
    load: str | None,
    kind: str | None,
    out: str | None,
    **given: Any,
) -> int:
    """Give the features that a prediction comes from, as a graph in which every sum closes.

    Nodes are features, what they miss (errors), tokens, positions, constants and logits; an edge is
    what one brings to what another reads, by all heads. Each feature and each logit is the sum of
    its edges but for rounding.
    """
    _check(given, export=export, metadata=metadata, save=save, load=load, out=out)
    with _in_options():
        return _graph(given, (nodes, edges), export, metadata, save, load, (kind, out))


def _graph(
    given: dict[str, Any],
    shares: tuple[float, float],
    export: str | None,
    metadata: str | None,
    save: str | None,
    load: str | None,
    printed: tuple[str | None, str | None],
) -> int:
    from pathexpand.features.influence import prune

    whole = _read(given, shares) if load is None else _load(load)
    is_whole = not whole.remainder.any()
    if load is not None and not is_whole:
        warn("this graph was pruned before it was saved: it is shown as it is")
    pruned = prune(whole, nodes=shares[0], edges=shares[1]) if is_whole else whole
    found = _table(whole, pruned, given)
    if save is not None:
        whole.save(save)
    if export is not None:
        _export(whole, export, metadata, shares if is_whole else None, given)
    write(found, *printed)
    if whole.closes and pruned.closes and getattr(found, "good", True):
        return 0
    complain("a sum does not close: its gap is larger than its bound")
    return 1


def _check(
    given: dict[str, Any],
    *,
    export: str | None,
    metadata: str | None,
    save: str | None,
    load: str | None,
    out: str | None,
) -> None:
    """Refuse what does not go together, before anything is computed."""
    context = click.get_current_context(silent=True)
    shown = [name for name in ("summary", "node", "edge") if given[name] not in (None, False)]
    if len(shown) > 1:
        raise click.UsageError("Give one of --summary, --node and --edge.", context)
    if given["targets"] and any(_is_given(context, name) for name in _CHOOSING):
        raise click.UsageError("--target says which logits: no limit goes with it.", context)
    if given["folded"] and given["features"] is None and load is None:
        raise click.UsageError("--folded goes with --features.", context)
    if given["outgoing"] and given["node"] is None:
        raise click.UsageError("--outgoing goes with --node.", context)
    for name in ("slug", "constants", "most_links"):
        if export is None and given[name] is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --export.", context)
    for option, is_given in (
        ("metadata", metadata is not None),
        ("export-paths", given["export_paths"]),
    ):
        if export is None and is_given:
            raise click.UsageError(f"--{option} goes with --export.", context)
    if load is not None and given["export_paths"]:
        raise click.UsageError("--export-paths needs a run: it does not go with --load.", context)
    for name in _OF_A_RUN:
        if load is not None and _is_given(context, name):
            option = name.removesuffix("s") if name == "targets" else name.replace("_", "-")
            raise click.UsageError(f"--{option} needs a run: it does not go with --load.", context)
    named = (export, metadata, save, load, out)
    for option, file in zip(("export", "metadata", "save", "load", "out"), named, strict=True):
        if file == "":
            raise FileError(f"--{option}", wanted="the name of a file", got="an empty one")
    files = [FilePath(file).resolve() for file in named if file is not None]
    if len(set(files)) < len(files):
        raise click.UsageError("Two options name the same file.", context)
    for file in (export, metadata, save):
        if file is not None and not FilePath(file).absolute().parent.is_dir():
            raise FileError(f"{file}: cannot write", wanted="a directory that exists")
    if save is not None and not save.endswith(".safetensors"):
        raise FileError(f"{save}: cannot write", wanted="a name that ends in .safetensors")


def _is_given(context: click.Context | None, name: str) -> bool:
    default = click.core.ParameterSource.DEFAULT
    return context is not None and context.get_parameter_source(name) is not default


def _read(given: dict[str, Any], shares: tuple[float, float]) -> Graph:
    """Give the whole graph, or where it is too large to be held, the pruned one."""
    from pathexpand.errors import LimitError

    run = read_run(
        given["model"],
        **{name: given[name] for name in ("prompt", "prompt_file", "tokens")},
    )
    features: Any = given["features"]
    told: dict[str, Any] = {name: given[name] for name in _OF_UNITS if given[name] is not None}
    if told:
        from pathexpand.features.formats import load_units

        if features is None:
            context = click.get_current_context(silent=True)
            option = next(iter(told)).replace("_", "-")
            raise click.UsageError(f"--{option} goes with --features.", context)
        if "format_of_features" in told:
            told["format"] = told.pop("format_of_features")
        features = load_units(features, **told)
    options: dict[str, Any] = {
        "targets": given["targets"] or None,
        "top_logits": given["top_logits"],
        "probability": given["logit_probability"],
        "position": given["position"],
        "zero_positions": given["zero_positions"],
        "force": given["force"],
        "folded": given["folded"],
    }
    try:
        return run.graph(features, **options)
    except LimitError as error:
        warn(f"{error.got} nodes are too many to hold: pruned while it is made")
    return run.graph(features, **options, prune=shares)


def _load(file: str) -> Graph:
    from pathexpand.features.graph_file import load_graph

    return load_graph(file)


def _table(whole: Graph, pruned: Graph, given: dict[str, Any]) -> Table:
    from pathexpand.features.graph_table import edges_table, nodes_table, summary_table

    base = None if pruned is whole else whole
    if given["edge"] is not None:
        source, target = given["edge"]
        return whole.paths(source, target, top=given["top"]).table()
    if given["node"] is not None:
        way: Any = "outgoing" if given["outgoing"] else None
        return edges_table(whole, given["node"], top=given["top"], direction=way)
    if given["summary"]:
        return summary_table(pruned, whole=base)
    return nodes_table(pruned, top=given["top"], whole=base)


def _export(
    whole: Graph,
    file: str,
    metadata: str | None,
    shares: tuple[float, float] | None,
    given: dict[str, Any],
) -> None:
    from pathexpand.features.export import graph_json, graph_metadata, graph_text

    nodes, edges = shares or (None, None)
    slug = FilePath(file).stem if given["slug"] is None else given["slug"]
    document = graph_json(
        whole,
        slug=slug,
        constants=given["constants"] or "drop",
        nodes=nodes,
        edges=edges,
        most_links=given["most_links"],
        paths=given["export_paths"],
    )
    write_whole(FilePath(file), graph_text(document))
    if metadata is not None:
        write_whole(FilePath(metadata), graph_text(graph_metadata([document])))
    for claim in document["metadata"]["claims"]:
        if claim.startswith("Neuronpedia"):
            warn(claim)


@contextmanager
def _in_options() -> Iterator[None]:
    """Name options of the command in errors that name those of the library."""
    try:
        yield
    except PathExpandError as error:
        subject, remedy = _NAMES.get(error.subject, error.subject), error.remedy
        for pattern, here in _REMEDIES:
            found = pattern.search(remedy)
            if found is not None:
                said = found.expand(here).replace("_", "-")
                remedy = remedy[: found.start()] + said + remedy[found.end() :]
        raise type(error)(subject, wanted=error.wanted, got=error.got, remedy=remedy) from error
