"""The attribution graph of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pathexpand.api.given import check_counts
from pathexpand.errors import ModelError, PathExpandError
from pathexpand.features.fit import check_units, first_counted, reconstruction
from pathexpand.features.formats import load_units
from pathexpand.features.graph import Attribution, Graph, Logits, graph
from pathexpand.features.influence import EDGES, NODES, check_shares
from pathexpand.features.replacement import replacement
from pathexpand.features.streaming import pruned_graph
from pathexpand.features.unit import UnitSet
from pathexpand.model.checkpoint import EMBEDDED, EMBEDDED_FOLDER, Checkpoint
from pathexpand.model.forward import capped
from pathexpand.model.shown import check_flag, shown
from pathexpand.model.tokenizer import show_token
from pathexpand.progress import listener, watched
from pathexpand.target import DifferenceTarget, LogitTarget, TargetLike, read_target

if TYPE_CHECKING:
    from pathexpand.api.run import Run

Array = npt.NDArray[Any]
Features = UnitSet | str | FilePath | None


@watched("drawing up the graph")
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
    check_counts(top_logits, None, names=("top_logits", ""))
    check_counts(zero_positions, None, names=("zero_positions", ""))
    for name, flag in (("force", force), ("folded", folded)):
        check_flag(name, flag)
    shares = _shares(prune)
    if zero_positions > len(run.tokens):
        wanted = f"at most the {len(run.tokens)} positions of this prompt"
        raise PathExpandError("zero_positions", wanted=wanted, got=str(zero_positions))
    units, fit = read_features(
        run, features, zero_positions=zero_positions, force=force, folded=folded
    )
    place = run.position(position)
    run = _until(run, place)
    logits = _logits(run, targets, place, top_logits, probability)
    made = replacement(
        run.model.weights,
        run.model.config,
        run.dense,
        units,
        zero_positions=zero_positions,
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
    heard = listener(report, _rows_done)
    if shares is None:
        return graph(whole, report=heard)
    return pruned_graph(whole, nodes=shares[0], edges=shares[1], report=heard)


def _rows_done(done: int, total: int) -> tuple[str, float]:
    return f"{done:,} of {total:,} features and logits", done / total


def _until(run: Run, place: int) -> Run:
    """Give the run up to a position, where nothing behind it can matter."""
    if run.model.config.attention_dir != "causal" or place + 1 == len(run.tokens):
        return run
    from pathexpand.api.run import Run as Cut
    from pathexpand.api.run import cut_row

    return Cut(run.model, cut_row(run.dense, 0, place + 1))


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
    run: Run,
    features: Features,
    *,
    zero_positions: int = 0,
    force: bool = False,
    folded: bool = False,
) -> tuple[UnitSet, str]:
    """Give the units, read from a directory if need be, and say how well they fit this run.

    None are those that come with the package for this model. Neither a start token nor the first
    `zero_positions` count in the fit.

    Raises `ModelError` for units that do not fit the model, or that miss more than they find on
    this prompt (unless `force`), and `FileError`.
    """
    if features is None:
        place, name = own_features(run.model.checkpoint)
        units = replace(load_units(place), name=f"those of {name}")
    else:
        units = features if isinstance(features, UnitSet) else load_units(features)
    units = check_units(units, run.model.checkpoint, folded=folded)
    first = max(zero_positions, first_counted(run.model.checkpoint, run.dense))
    if not run.dense.mask[0, first:].any():
        return units, f"{units.name}: not measured, no position has features"
    measured = reconstruction(units, run, first=first, force=force, folded=folded)
    parts = [
        f"{each.label} {each.remark if each.value is None else format(each.value, '.4g')}"
        for each in measured.closing
    ]
    return units, f"{units.name}: {', '.join(parts)}"


def own_features(checkpoint: Checkpoint) -> tuple[FilePath, str]:
    """Give the directory of the features that come with the package for a model, and its name.

    An embedded model is known by its name, others by the digest of their weights.
    """
    config = checkpoint.config
    known = embedded_features()
    for name, (place, about) in known.items():
        if name in EMBEDDED and config.model_name == name:
            return place, name
        size = about["n_layers"], about["d_model"]
        alike = size == (config.n_layers, config.d_model)  # reading all weights takes its time
        if alike and checkpoint.digest() == about["sha256"]:
            return place, name
    raise ModelError(
        "features",
        wanted="a directory of trained features",
        got="none",
        remedy=f"those of {' and '.join(known) or 'no model'} come with the package",
    )


def embedded_features() -> dict[str, tuple[FilePath, dict[str, Any]]]:
    """Give the features that come with the package: by model their directory and whose they are.

    >>> list(embedded_features())
    ['stories260k', 'two-layer']
    """
    found = {}
    files = (*EMBEDDED_FOLDER.glob("*/training.json"), *EMBEDDED_FOLDER.glob("*/*/training.json"))
    for file in sorted(files):
        about = json.loads(file.read_text(encoding="utf-8")).get("model")
        if isinstance(about, dict) and "sha256" in about:  # a model's own has none
            found[about["name"]] = file.parent, about
    return found


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
        several = isinstance(targets, Sequence) and not isinstance(targets, str)
        if not several and not (isinstance(targets, np.ndarray) and targets.ndim):
            wanted = "a list of tokens"
            raise PathExpandError("targets of a graph", wanted=wanted, got=shown(targets))
        tokens = []
        for target in targets:
            what = read_target(run.model.checkpoint, target, centred=None)
            if not isinstance(what, LogitTarget):
                wanted = "single tokens"
                got = "a difference" if isinstance(what, DifferenceTarget) else "a direction"
                raise PathExpandError("targets of a graph", wanted=wanted, got=got)
            tokens.append(what.token)
        if not tokens:
            raise PathExpandError("targets of a graph", wanted="at least one token", got="none")
        chosen = np.array(list(dict.fromkeys(tokens)), dtype=np.intp)
        return Logits(chosen, odds[chosen])
    number = isinstance(probability, int | float | np.number) and not isinstance(probability, bool)
    if not number or not 0 < probability <= 1:
        wanted = "a number above 0, at most 1"
        raise PathExpandError("probability", wanted=wanted, got=repr(probability)[:40])
    if not most:
        raise PathExpandError("top_logits", wanted="at least 1", got="0")
    order = np.argsort(-odds, kind="stable")[:most]
    enough = int(np.searchsorted(np.cumsum(odds[order]), probability)) + 1
    chosen = order[:enough].astype(np.intp)
    return Logits(chosen, odds[chosen])
