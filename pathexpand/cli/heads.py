"""`pathexpand heads`: what each head does, on tokens or from its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pathexpand.cli.prompt import modelled, read_bytes
from pathexpand.cli.table import write, written
from pathexpand.errors import FileError, PathExpandError
from pathexpand.model.shown import cut

if TYPE_CHECKING:
    from pathexpand.circuits.copying import Spectra
    from pathexpand.model.checkpoint import Checkpoint

_MOST_PLANES = 9  # heads whose eigenvalues are drawn in one picture
_FROM_WEIGHTS = ("plane", "copying", "matching")
_DEFAULT = click.core.ParameterSource.DEFAULT


@click.command(
    short_help="Find previous-token, induction, copying and other heads.",
    epilog="Without --text, --plane, --copying or --matching, heads are scored on random tokens "
    "that are repeated once.",
)
@modelled
@click.option("--text", metavar="FILE", help="Score heads on a text; - is standard input.")
@click.option(
    "--plane",
    is_flag=True,
    help="Find induction heads from weights alone: copying by OV, matching by K-composition.",
)
@click.option("--copying", is_flag=True, help="Score the OV circuits by their eigenvalues.")
@click.option("--matching", is_flag=True, help="Score the QK circuits by their eigenvalues.")
@click.option(
    "--behaviour",
    "behaviours",
    multiple=True,
    type=click.Choice(("previous", "duplicate", "induction", "current", "first")),
    help="Only this behaviour; can be given several times.",
)
@click.option(
    "--offset",
    type=int,
    metavar="N",
    help="Query minus key, for --plane and --matching in a model with rotary positions.",
)
@click.option("--top", type=int, metavar="N", help="List only the N largest.")
@click.option(
    "--threshold",
    type=float,
    default=0.4,
    show_default=True,
    metavar="X",
    help="Attention from which a head is said to show a behaviour.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="Of what is random."
)
@click.option("--plot", metavar="FILE", help="Draw what is found, as .png or .svg.")
@written
def heads(
    *,
    model: str,
    text: str | None,
    offset: int | None,
    top: int | None,
    plot: str | None,
    kind: str | None,
    out: str | None,
    **options: Any,
) -> None:
    """Say what each head does: what it attends to, or what its weights match and copy."""
    chosen = _chosen(text, offset, options)
    if top is not None and top < 0:
        raise PathExpandError("top", wanted="a whole number of rows", got=str(top))
    if options["seed"] < 0:
        raise PathExpandError(
            "seed", wanted="a whole number of at least 0", got=str(options["seed"])
        )
    if plot is not None:
        from pathexpand.plot.figure import check_file

        check_file(plot)
    words = None if text is None else _read_text(text)
    from pathexpand.api import load

    checkpoint = load(model).checkpoint
    found = _found(checkpoint, chosen, words, offset, options)
    if plot is not None:
        _draw(found, plot)
    # The induction plane lists the first ten pairs, as there are many more of them than heads.
    write(found.table(top=10 if chosen == "plane" and top is None else top), kind, out)


def _chosen(text: str | None, offset: int | None, options: dict[str, Any]) -> str:
    """Give what was asked for; refuse what does not go together."""
    asked = [name for name in _FROM_WEIGHTS if options[name]]
    context = click.get_current_context(silent=True)
    if len(asked) + (text is not None) > 1:
        raise click.UsageError("Give one of --text, --plane, --copying and --matching.", context)
    if options["behaviours"] and asked:
        raise click.UsageError(f"--{asked[0]} has no use for --behaviour.", context)
    for name, used_by in (("threshold", ()), ("seed", ("copying",))):
        is_given = context is not None and context.get_parameter_source(name) is not _DEFAULT
        for each in asked:
            if is_given and each not in used_by:
                raise click.UsageError(f"--{each} has no use for --{name}.", context)
    if offset is not None and asked not in (["plane"], ["matching"]):
        raise click.UsageError("--offset is for --plane and --matching.", context)
    return asked[0] if asked else "attention"


def _found(
    checkpoint: Checkpoint,
    chosen: str,
    words: str | None,
    offset: int | None,
    options: dict[str, Any],
) -> Any:
    if chosen == "plane":
        from pathexpand.circuits.induction import induction_plane

        return induction_plane(checkpoint, offset=offset)
    if chosen == "copying":
        from pathexpand.circuits.copying import copying

        return copying(checkpoint, seed=options["seed"])
    if chosen == "matching":
        from pathexpand.circuits.copying import matching

        return matching(checkpoint, offset=offset)
    from pathexpand.circuits.detection import detect, detect_on

    shared = {"behaviours": options["behaviours"] or None, "threshold": options["threshold"]}
    if words is not None:
        return detect_on(checkpoint, [words], **shared)
    return detect(checkpoint, seed=options["seed"], **shared)


def _draw(found: Any, file: str) -> None:
    from pathexpand.circuits.copying import Spectra
    from pathexpand.circuits.induction import InductionPlane
    from pathexpand.plot import behaviour_matrix, induction_plane, save

    if isinstance(found, Spectra):
        save(_planes(found), file)
    elif isinstance(found, InductionPlane):
        save(induction_plane(found), file)
    else:
        save(behaviour_matrix(found), file)


def _planes(found: Spectra) -> Any:
    """Draw the eigenvalues of the heads with the largest scores."""
    from pathexpand.plot import eigenvalue_plane, new_axes

    order = sorted(range(len(found.heads)), key=lambda n: -found.scores[n])[:_MOST_PLANES]
    axes = new_axes(width=3.5, height=3.5, count=len(order))
    every = axes if isinstance(axes, list) else [axes]
    for ax, n in zip(every, order, strict=True):
        eigenvalue_plane(found.eigenvalues[n], ax=ax, title=found.heads[n])
    return every[0]


def _read_text(file: str) -> str:
    try:
        words = read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(file, wanted="text in UTF-8", got=cut(str(error))) from None
    if not words.strip():
        raise FileError(file, wanted="a text", got="an empty file")
    return words
