"""`pathexpand compose`: how much later heads read of what earlier heads write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pathexpand.cli.prompt import modelled
from pathexpand.cli.table import write, written
from pathexpand.errors import PathExpandError

if TYPE_CHECKING:
    from pathexpand.circuits.composition import Composition, Kind
    from pathexpand.model.checkpoint import Checkpoint


@click.command(
    short_help="Score the composition of heads, from weights alone.",
    epilog="A score is the Frobenius norm of the product of two heads' matrices over the product "
    "of their norms. Chance keeps both heads' singular values and turns one by random rotations.",
)
@modelled
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(("Q", "K", "V", "all")),
    default="all",
    show_default=True,
    help="What of the later head reads: its query, key or value.",
)
@click.option("--pair", nargs=2, metavar="EARLIER LATER", help="One pair alone, such as L0H3 L1H0.")
@click.option(
    "--offset",
    type=int,
    metavar="N",
    help="Query minus key, for Q and K in a model with rotary positions.",
)
@click.option("--top", type=int, default=10, show_default=True, metavar="N", help="Rows to list.")
@click.option(
    "--by",
    type=click.Choice(("score", "z")),
    default="score",
    show_default=True,
    help="Rank by the score, or by standard deviations above chance.",
)
@click.option(
    "--samples",
    type=int,
    default=1000,
    show_default=True,
    metavar="N",
    help="Samples of chance; 0 leaves it out.",
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Of the samples.")
@click.option("--plot", metavar="FILE", help="Draw all scores, as .png or .svg.")
@written
def compose(
    *,
    model: str,
    kinds: str,
    pair: tuple[str, str] | None,
    offset: int | None,
    top: int,
    by: str,
    samples: int,
    seed: int,
    plot: str | None,
    kind: str | None,
    out: str | None,
) -> None:
    """Score how much later heads read of what earlier heads write, beside chance.

    Every pair of heads of two layers is scored, for Q-, K- and V-composition.
    """
    if top < 0:
        raise PathExpandError("top", wanted="a whole number of rows", got=str(top))
    if by == "z" and not samples:
        raise click.UsageError("--by z needs samples.", click.get_current_context(silent=True))
    if plot is not None:
        if pair is not None:
            raise click.UsageError(
                "--plot draws all pairs: leave --pair out.", click.get_current_context(silent=True)
            )
        from pathexpand.plot.figure import check_file

        check_file(plot)
    from pathexpand.api import load

    checkpoint = load(model).checkpoint
    wanted: tuple[Kind, ...] = ("Q", "K", "V") if kinds == "all" else (kinds,)  # type: ignore[assignment]
    options: dict[str, Any] = {"samples": samples, "seed": seed}
    if pair is not None:
        write(_pair(checkpoint, pair, wanted, offset, options), kind, out)
        return
    from pathexpand.circuits.composition import composition, composition_table

    found = [
        composition(checkpoint, each, offset=_offset(each, wanted, offset), **options)
        for each in wanted
    ]
    if plot is not None:
        _draw(found, plot)
    write(composition_table(found, top=top, by=by), kind, out)


def _offset(kind: Kind, wanted: tuple[Kind, ...], offset: int | None) -> int | None:
    """Give the offset where it matters: V-composition beside others has no use for it."""
    return None if kind == "V" and len(wanted) > 1 else offset


def _pair(
    checkpoint: Checkpoint,
    pair: tuple[str, str],
    wanted: tuple[Kind, ...],
    offset: int | None,
    options: dict[str, Any],
) -> Any:
    from pathexpand.circuits.composition import composition_of, pair_table

    found = [
        composition_of(checkpoint, *pair, each, offset=_offset(each, wanted, offset), **options)
        for each in wanted
    ]
    return pair_table(checkpoint.config.model_name, found, offset=offset)


def _draw(found: list[Composition], file: str) -> None:
    from pathexpand.plot import composition_matrix, new_axes, save
    from pathexpand.plot.composition import shades

    axes = new_axes(count=len(found))
    every = axes if isinstance(axes, list) else [axes]
    most = max(shades(each)[1] for each in found)  # one scale for all kinds
    for each, ax in zip(found, every, strict=True):
        composition_matrix(each, ax=ax, most=most)
    save(every[0], file)
