"""Bounds hold for the exact values of paths, not only for the computed ones, whatever cancels."""

from fractions import Fraction

import numpy as np
import pytest

from pathexpand.api import Run, from_state_dict
from pathexpand.engine import prompt_tree
from pathexpand.symbolic import Path


def cancelling(seed: int) -> Run:
    """Give a run whose heads write far more than the target reads, so that most of it cancels."""
    rng = np.random.default_rng(seed)
    d, heads, size = 3, 2, 10.0 ** rng.integers(4, 17)
    unembed = np.ones((d, 2)) + np.array([[0.0, 1.0]])
    tensors = {"embed.W_E": rng.normal(size=(4, d)), "unembed.W_U": unembed}
    for layer in range(2):
        at = f"blocks.{layer}.attn."
        tensors |= {at + name: rng.normal(size=(heads, d, 1)) for name in ("W_Q", "W_K", "W_V")}
        hidden = rng.normal(size=(heads, 1, 1)) * np.array([1.0, -1.0, 0.0]) * size
        tensors[at + "W_O"] = rng.normal(size=(heads, 1, d)) + hidden
    sizes = {"n_layers": 2, "n_heads": heads, "d_model": d, "d_head": 1, "d_vocab": 4, "n_ctx": 3}
    model = from_state_dict(
        tensors, sizes | {"d_vocab_out": 2, "positional_embedding_type": "none"}
    )
    return model.run(rng.integers(0, 4, 3))


def exact_value(run: Run, path: Path) -> Fraction:
    """Work a path out in rational arithmetic, from the very numbers the engine was given."""
    frozen, weights = run.frozen, run.model.weights
    stream = [[Fraction(float(x)) for x in row] for row in frozen.sources[0].values]
    for head in path.components:
        layer = frozen.layers[head.layer]
        stream = product(product(stream, layer.W_V[head.index]), layer.W_O[head.index])
        stream = product(
            [[Fraction(float(x)) for x in row] for row in layer.patterns[head.index]], stream
        )
    return sum(
        (x * Fraction(float(u)) for x, u in zip(stream[-1], weights.W_U[:, 0], strict=True)),
        Fraction(0),
    )


def product(left: list[list[Fraction]], right: object) -> list[list[Fraction]]:
    columns = list(zip(*[[Fraction(x) for x in row] for row in right], strict=True))
    return [
        [sum((a * b for a, b in zip(row, column, strict=True)), Fraction(0)) for column in columns]
        for row in left
    ]


def false_bounds(seeds: range) -> int:
    """Count tables whose bound an unlisted path exceeds, or that call a wrong row certain."""
    wrong = 0
    for seed in seeds:
        run = cancelling(seed)
        table = run.paths(0, top=3, centred=False)
        exact = {str(p): abs(exact_value(run, p)) for p in run.model.network.paths()}
        listed = [row.path for row in table]
        most = max(value for path, value in exact.items() if path not in listed)
        assert table.bound is not None
        wrong += most > Fraction(table.bound)
    return wrong


def test_no_exact_value_exceeds_the_bound() -> None:
    assert false_bounds(range(80)) == 0


def test_bounds_that_forget_rounding_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_tree, "gamma", lambda steps: 0.0)
    assert false_bounds(range(80)) > 0
