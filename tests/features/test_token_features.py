"""A circuit that is known, with features that are known: tokens, in the induction model."""

from __future__ import annotations

import numpy as np

import pathexpand
from pathexpand.features import Unit, UnitSet, prune
from pathexpand.features.graph import name_of

TEXT = "Humpty Dumpty sat on a wall. Humpty D"
QUERY, EARLIER, AFTER = 20, 5, 6  # ' D' again, the ' D' before, and the 'um' behind that


def token_features(model: pathexpand.Model) -> UnitSet:
    """Make an SAE of the embeddings with one feature a token: the nearest embedding is on."""
    rows = model.weights.W_E  # (d_vocab, d_model)
    half = (rows**2).sum(axis=1) / 2
    sae = Unit.of(
        layer=0,
        kind="sae",
        hook_in="resid_pre",
        E=rows,
        b_enc=-half,
        D=rows / half[:, None],
        activation="topk",
        k=1,
    )
    return UnitSet((sae,), "saes", name="tokens")


def test_token_features_tell_the_induction_circuit() -> None:
    model = pathexpand.load("two-layer")
    run = model.run(TEXT)
    graph = run.graph(token_features(model), targets=["um"])
    assert graph.closes
    features = [node for node in graph.nodes if node.kind == "feature"]
    assert [node.index for node in features] == run.tokens.tolist()  # one a position, its token
    errors = [n for n, node in enumerate(graph.nodes) if node.kind == "error"]
    assert abs(graph.weights[:, errors]).sum() < 1e-9
    # What moves the logit of 'um' is the feature of the 'um' that followed the same token before,
    um, source = graph.find(f"'um'@{QUERY}"), f"L0F{run.tokens[AFTER]}@{AFTER}"
    assert name_of(graph.nodes[int(np.argmax(graph.weights[um]))]) == source
    # by the induction head,
    paths = graph.paths(source, um)
    assert paths.paths[0].label == "L1H0" and paths.closes and paths.certified
    # which looks there because its query token stands right before.
    score = graph.attention("L1H0", AFTER, query=QUERY)
    top = score.table(1)[0]
    same = f"L0F{run.tokens[QUERY]}"
    assert (top["query node"], top["key node"]) == (f"{same}@{QUERY}", f"{same}@{EARLIER}")
    assert score.closes and top["value"] > 0.5 * score.score
    assert source in [name_of(node) for node in prune(graph).nodes]
