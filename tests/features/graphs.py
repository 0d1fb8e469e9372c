"""Random units, their graphs, and the models that have golden graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pathexpand.api import Model, Run
from pathexpand.features.formats import load_units
from pathexpand.features.graph import Attribution, Graph, Logits, graph
from pathexpand.features.replacement import Replacement, replacement
from pathexpand.features.unit import Kind, SetKind, Unit, UnitSet
from tests.reference import test_families as families

Array = np.ndarray[Any, Any]
PROMPT = [3, 1, 4, 1, 5, 9, 2]
GOLDEN = Path(__file__).parents[1] / "reference" / "graphs"
CASES = sorted(file.parent.name for file in GOLDEN.glob("*/golden.npz"))


def family(name: str, place: Path) -> Run:
    """Run the last row of a family's golden file."""
    checkpoint, stored = families.read(name, place), families.golden(name)
    mask = stored.get("mask")
    row = [int(token) for token in stored["tokens"][-1]]
    return Model(checkpoint).run(row, mask=None if mask is None else mask[-1].astype(bool))


def random_units(
    run: Run,
    *,
    kind: Kind = "transcoder",
    hook: str = "mlp_in",
    layers: Sequence[int] | None = None,
    clt: bool = False,
    skip: bool = False,
    features: int = 17,
    seed: int = 0,
    **rest: Any,
) -> UnitSet:
    """Draw units that fit a run's model; every layer that has an MLP gets one, by default.

    What an MLP beside attention reads is the stream before both.
    """
    rng, width = np.random.default_rng(seed), run.dense.residual[0].shape[2]
    blocks = run.model.weights.blocks
    if kind == "transcoder" and hook == "resid_mid" and any(block.parallel for block in blocks):
        hook = "resid_pre"
    places = [n for n, block in enumerate(blocks) if block.mlp is not None or kind == "sae"]
    if layers is not None:
        places = list(layers)
    units = []
    for layer in places:
        writes = tuple(n for n in places if n >= layer) if clt else (layer,)
        own: dict[str, Any] = dict(rest)
        if own.get("activation") == "jumprelu":
            own["threshold"] = rng.uniform(0, 1, features)
        if skip:
            own["skip"] = rng.normal(size=(width, width)) / 2
        units.append(
            Unit.of(
                layer=layer,
                kind=kind,
                hook_in=hook,  # type: ignore[arg-type]
                E=rng.normal(size=(features, width)),
                D=[rng.normal(size=(features, width)) for _ in writes],
                writes=writes,
                b_enc=rng.normal(size=features),
                b_dec=rng.normal(size=width),
                **own,
            )
        )
    named: SetKind = "saes" if kind == "sae" else ("clt" if clt else "transcoders")
    return UnitSet(tuple(units), named)


def made_of(run: Run, units: UnitSet, zero: int = 0) -> Replacement:
    return replacement(run.model.weights, run.model.config, run.dense, units, zero_positions=zero)


def graph_of(
    run: Run,
    units: UnitSet,
    zero: int = 0,
    *,
    logits: Logits | None = None,
    position: int | None = None,
) -> Graph:
    """Make the graph of units in a run, for three logits if none are given."""
    if position is None:
        position = int(np.flatnonzero(run.dense.mask[0])[-1])
    if logits is None:
        top = np.argsort(-run.logits(position), kind="stable")[:3]
        logits = Logits(top, np.array([0.5, 0.2, 0.1]))
    whole = Attribution.of(
        made_of(run, units, zero),
        run.unembed,
        logits,
        names=[str(token) for token in run.tokens],
        logit_names=[str(token) for token in logits.tokens],
        position=position,
    )
    return graph(whole)


def gross(made: Graph) -> Array:
    """Give what the rows add up to by size: (node,)."""
    return np.asarray(abs(made.weights).sum(axis=1))


def key(node: Any) -> tuple[Any, ...]:
    """Say which node it is, whatever its number and its values."""
    return (node.kind, node.label, node.layer, node.position, node.index, node.token)


def by_key(made: Graph) -> dict[tuple[Any, ...], int]:
    return {key(node): n for n, node in enumerate(made.nodes)}


def changed(units: UnitSet, layer: int, **parts: Any) -> UnitSet:
    """Give the units with some parts of one layer's changed."""
    return replace(
        units,
        units=tuple(
            replace(unit, **parts) if unit.layer == layer else unit for unit in units.units
        ),
    )


def golden(name: str) -> dict[str, Array]:
    with np.load(GOLDEN / name / "golden.npz") as stored:
        return dict(stored)


def golden_units(name: str) -> UnitSet:
    return load_units(GOLDEN / name / "transcoders")
