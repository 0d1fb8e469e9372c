"""The runs that broken engines are shown on, and the laws by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from pathexpand import laws
from pathexpand.api import Model, Run, from_state_dict
from pathexpand.laws import Design, random_transformer
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.config import Config
from pathexpand.model.weights import Block
from pathexpand.target import DifferenceTarget

# --- the models the laws are run on ---------------------------------------------------------------


@cache
def example(kind: str) -> Run:
    """Give a run on which every fault of its kind shows."""
    if kind == "shortformer":
        return laws.random_model(seed=2, positions="shortformer").run([3, 1, 4, 1])
    if kind == "square":
        return laws.random_model(seed=3, d_model=3, d_head=3, n_heads=2).run([3, 1, 4])
    if kind == "cancelling":
        return cancelling().run([3, 1, 4, 1])
    if kind == "ties":
        return ties().run([1, 0, 1])
    if kind == "bidirectional":
        return laws.random_model(seed=5, direction="bidirectional").run([3, 1, 4, 1])
    if kind in DESIGNS:
        scale = {"faint": 0.02, "loud": 10.0}.get(kind, 1.0)
        model = random_transformer(DESIGNS[kind], seed=7, scale=scale)
        return (stretched(model) if kind == "stretched" else model).run([3, 1, 4, 1])
    return laws.random_model(seed=1).run([3, 1, 4, 1])


SMALL = {"n_heads": 2, "n_key_value_heads": 1, "d_mlp": 3}
BERT = Design(
    **SMALL,
    norms=("ln1_after", "ln2_after"),
    final_norm=False,
    embed_norms=1,
    types=3,
    transform=True,
    direction="bidirectional",
    mlp="neurons",
)
DESIGNS = {
    "norms": Design(**SMALL, mlp="neurons"),
    "whole": Design(**SMALL, mlp="frozen"),
    "written": Design(**SMALL, mlp="source"),
    "groups": Design(n_heads=6, n_key_value_heads=2, d_mlp=2, mlp="frozen", positions="rotary"),
    "gated": Design(**SMALL, mlp="neurons", norm="rms", act="silu", gated=True),
    "parallel": Design(**SMALL, mlp="neurons", parallel=True, window=2, sinks=True),
    "post": Design(
        **SMALL, mlp="neurons", norms=("ln1", "ln2", "ln1_post", "ln2_post"), residual_scale=0.5
    ),
    "BERT": BERT,
    "faint": BERT,
    "stretched": BERT,
    "BERT written": replace(BERT, mlp="source"),
    "loud": Design(**SMALL, mlp="neurons", norms=(), final_norm=False, act="relu2"),
}


def stretched(model: Model) -> Model:
    """Make every norm of a model 30 times as large."""

    def larger(block: Block) -> Block:
        norms = {name: getattr(block, name) for name in ("ln1_after", "ln2_after")}
        return replace(
            block, **{name: replace(n, weight=30 * n.weight) for name, n in norms.items()}
        )

    weights = replace(model.weights, blocks=tuple(map(larger, model.weights.blocks)))
    return Model(Checkpoint(model.config, weights), mlp=model.mlp)


def cancelling() -> Model:
    """Make a model whose paths are huge and whose total is not: 1e8 + small - 1e8."""
    model = laws.random_model(seed=4)
    tensors = {name: np.array(array) for name, array in model.weights.named()}
    push = np.arange(1.0, 8.0) * 1e8
    tensors["blocks.0.attn.b_O"] = push
    tensors["blocks.1.attn.b_O"] = -push
    for name in ("W_V", "W_O"):
        tensors[f"blocks.1.attn.{name}"] = tensors[f"blocks.1.attn.{name}"] * 1e-5
    return from_state_dict(tensors, model.config)


def ties() -> Model:
    """Make a model in which many paths are worth exactly the same: its heads are all alike."""
    config = Config(n_layers=2, n_heads=2, d_model=2, d_head=1, d_vocab=2, n_ctx=4)
    one = {"W_Q": (2, 2, 1), "W_K": (2, 2, 1), "W_V": (2, 2, 1), "W_O": (2, 1, 2)}
    tensors = {"embed.W_E": np.ones((2, 2)), "unembed.W_U": np.array([[1.0, 0], [0, 1]])}
    tensors["pos_embed.W_pos"] = np.zeros((4, 2))
    for layer in range(2):
        for name, shape in one.items():
            tensors[f"blocks.{layer}.attn.{name}"] = np.full(
                shape, 0.0 if name in "W_QW_K" else 1.0
            )
        tensors[f"blocks.{layer}.attn.W_O"][:, :, 1] = 0
    return from_state_dict(tensors, config)


# --- the laws, by the name that the table of faults uses ------------------------------------------

DIFFERENCE = DifferenceTarget(1, 0)


def exact(**settings: Any) -> laws.LawResult:
    model = laws.rational_model(seed=6, **settings)
    patterns = laws.rational_patterns(model, 3, seed=7)
    return laws.check_exact_closure(model, [3, 1, 4], patterns, position=1)


LAWS: dict[str, Callable[[Run], laws.LawResult]] = {
    "closure": laws.check_closure,
    "table closure": laws.check_table_closure,
    "difference": lambda run: laws.check_table_closure(run, DIFFERENCE),
    "remainder": laws.check_remainder,
    "exact": lambda run: exact(),
    "exact shortformer": lambda run: exact(positions="shortformer"),
    "polynomial": lambda run: laws.check_polynomial_identity(layers=2, heads=1, biases=True),
    "exact cut": laws.check_exact_cut,
    "terms": lambda run: laws.check_term_count(run.model),
    "enumeration": laws.check_enumeration_count,
    "totals": laws.check_totals,
    "top paths": lambda run: laws.check_top_paths(run, top=20),
    "few paths": lambda run: laws.check_top_paths(run, top=3),
    "short paths": lambda run: laws.check_top_paths(run, top=30, max_order=1),
    "value gauge": laws.check_value_gauge,
    "score gauge": laws.check_score_gauge,
    "permutation": laws.check_head_permutation,
    "neuron gauge": laws.check_neuron_gauge,
    "norm folding": laws.check_norm_folding,
    "path matrices": lambda run: laws.check_path_matrices(run.model),
    "path logits": laws.check_path_logits,
    "norms": lambda run: laws.check_norm_ranking(run.model, top=4),
    "layer sums": laws.check_layer_sums,
    "attention rows": laws.check_patterns,
    "text": lambda run: laws.check_text_round_trip(run.model),
    "JSON": laws.check_table_round_trip,
    "padding": laws.check_padding,
    "batch": laws.check_batch,
}
