"""The attribution graph of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pathexpand.api.given import check_counts
from pathexpand.errors import ModelError, PathExpandError
from pathexpand.features.fit import check_units, reconstruction
from pathexpand.features.formats import load_units
from pathexpand.features.graph import Attribution, Graph, Logits, graph
from pathexpand.features.influence import EDGES, NODES, check_shares
from pathexpand.features.replacement import replacement
from pathexpand.features.streaming import pruned_graph
from pathexpand.features.unit import UnitSet
from pathexpand.model.checkpoint import EMBEDDED, EMBEDDED_FOLDER
from pathexpand.model.forward import capped
from pathexpand.model.shown import shown
from pathexpand.model.tokenizer import show_token
from pathexpand.target import LogitTarget, TargetLike, read_target

if TYPE_CHECKING:
    from pathexpand.api.run import Run

Array = npt.NDArray[Any]
Features = UnitSet | str | FilePath | None


def run_graph(
    run: Run,
    features: Features,
    targets: Sequence[TargetLike] | None,
    *,
    top_logits: int,
    probability: float,
    position: int | None,
    zero_positions: int,
    prune: bool | tuple[float, float],
    force: bool,
    folded: bool,
    report: Callable[[int, int], None] | None,
) -> Graph:
    """Put units into a run and work out the graph, whole or pruned as it is made."""
    check_counts(top_logits, zero_positions, names=("top_logits", "zero_positions"))
    shares = _shares(prune)
    units, fit = read_features(run, features, force=force, folded=folded)
    place = run.position(position)
    logits = _logits(run, targets, place, top_logits, probability)
    made = replacement(
        run.model.weights,
        run.model.config,
        run.dense,
        units,
        zero_positions=min(zero_positions, len(run.tokens)),
        fit=fit,
    )
    tokenizer = run.model.tokenizer
    whole = Attribution.of(
        made,
        run.unembed,
        logits,
        names=[token.text for token in run.source_tokens],
        logit_names=[show_token(tokenizer, int(token)) for token in logits.tokens],
        position=place,
    )
    if shares is None:
        return graph(whole, report=report)
    return pruned_graph(whole, nodes=shares[0], edges=shares[1], report=report)


def _shares(prune: bool | tuple[float, float]) -> tuple[float, float] | None:
    """Give the shares of influence to keep, or None to keep all."""
    if isinstance(prune, bool):
        return (NODES, EDGES) if prune else None
    if not isinstance(prune, tuple | list) or len(prune) != 2:
        wanted = "true, false, or two shares such as (0.8, 0.98)"
        raise PathExpandError("prune", wanted=wanted, got=shown(prune))
    check_shares(*prune)
    return prune[0], prune[1]


def read_features(
    run: Run, features: Features, *, force: bool = False, folded: bool = False
) -> tuple[UnitSet, str]:
    """Give the units, read from a directory if need be, and say how well they fit this run.

    None are the embedded model's own.

    Raises `ModelError` for units that do not fit the model, or that miss more than they find on
    this prompt (unless `force`), and `FileError`.
    """
    if features is None:
        name = run.model.config.model_name
        units = replace(load_units(own_features(name)), name=f"those of {name}")
    else:
        units = features if isinstance(features, UnitSet) else load_units(features)
    units = check_units(units, run.model.checkpoint, folded=folded)
    measured = reconstruction(units, run, force=force, folded=folded)
    known = [each for each in measured.closing if each.value is not None]
    parts = ", ".join(f"{each.label} {each.value:.4g}" for each in known)
    return units, f"{units.name}: {parts}"


def own_features(model: str) -> FilePath:
    """Give the directory of the features that come with an embedded model."""
    places = {name: EMBEDDED_FOLDER / name / "features" for name in EMBEDDED}
    own = places.get(model)
    if own is not None and own.is_dir():
        return own
    known = [name for name, place in places.items() if place.is_dir()]
    raise ModelError(
        "features",
        wanted="a directory of trained features",
        got="none",
        remedy=f"{', '.join(known) or 'no model'} has some of its own",
    )


def _logits(
    run: Run,
    targets: Sequence[TargetLike] | None,
    place: int,
    most: int,
    probability: float,
) -> Logits:
    """Give the logits to explain: those asked for, or the likeliest that make up a probability."""
    logits = capped(run.model.config, run.logits(place).astype(np.float64))
    odds = np.exp(logits - logits.max())
    odds /= odds.sum()
    if targets is not None:
        tokens = []
        for target in targets:
            what = read_target(run.model.checkpoint, target, centred=None)
            if not isinstance(what, LogitTarget):
                wanted = "single tokens"
                raise PathExpandError("targets of a graph", wanted=wanted, got="a difference")
            tokens.append(what.token)
        if not tokens:
            raise PathExpandError("targets of a graph", wanted="at least one token", got="none")
        chosen = np.array(list(dict.fromkeys(tokens)), dtype=np.intp)
        return Logits(chosen, odds[chosen])
    if isinstance(probability, bool) or not 0 < probability <= 1:
        wanted = "a number above 0, at most 1"
        raise PathExpandError("probability", wanted=wanted, got=repr(probability)[:40])
    if not most:
        raise PathExpandError("top_logits", wanted="at least 1", got="0")
    order = np.argsort(-odds, kind="stable")[:most]
    enough = int(np.searchsorted(np.cumsum(odds[order]), probability)) + 1
    chosen = order[:enough].astype(np.intp)
    return Logits(chosen, odds[chosen])
