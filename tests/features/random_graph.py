"""Graphs of small random models through random units, for tests of what is done with graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from pathexpand.features.graph import Attribution, Graph, Logits, graph
from pathexpand.features.replacement import replacement
from pathexpand.features.unit import Unit, UnitSet
from pathexpand.model.tokenizer import show_token
from tests.api.models import small

PROMPT = [3, 1, 4, 1, 5, 9, 2]
FEATURES = 19


def random_units(
    seed: int, layers: int, width: int, *, skip: bool = True, clt: bool = True, **options: Any
) -> UnitSet:
    draw = np.random.default_rng(seed).normal
    units = []
    for layer in range(layers):
        writes = tuple(range(layer, layers)) if clt else (layer,)
        units.append(
            Unit.of(
                layer=layer,
                kind="transcoder",
                hook_in="mlp_in",
                E=draw(size=(FEATURES, width)),
                D=[draw(size=(FEATURES, width)) for _ in writes],
                writes=writes,
                b_enc=draw(size=FEATURES),
                b_dec=draw(size=width),
                skip=draw(size=(width, width)) if skip else None,
                **options,
            )
        )
    return UnitSet(tuple(units), "clt" if clt else "transcoders")


def random_graph(
    seed: int = 7, *, layers: int = 3, zero_positions: int = 1, **options: Any
) -> Graph:
    model = small(seed, sizes={"n_layers": layers})
    run = model.run(PROMPT)
    units = random_units(seed, layers, model.config.d_model, **options)
    made = replacement(model.weights, model.config, run.dense, units, zero_positions=zero_positions)
    top = np.argsort(-run.logits(), kind="stable")[:3]
    whole = Attribution.of(
        made,
        run.unembed,
        Logits(top, np.array([0.5, 0.2, 0.1])),
        names=[show_token(None, int(token)) for token in run.tokens],
        logit_names=[show_token(None, int(token)) for token in top],
        position=len(PROMPT) - 1,
    )
    return graph(whole)
