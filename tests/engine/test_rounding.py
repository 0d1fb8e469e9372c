"""Gap bounds against exact arithmetic, on weights chosen to break them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pathexpand import laws
from pathexpand.api import Model, Run, from_state_dict
from pathexpand.engine.remainder import remainder
from pathexpand.engine.rounding import TINY, UNIT, gamma
from pathexpand.engine.value import path_value
from pathexpand.laws.exact import exact_run, fractions
from pathexpand.model.config import Config
from pathexpand.symbolic import Path

Fill = Callable[[np.random.Generator, tuple[int, ...]], Any]


def spread(low: int, high: int) -> Fill:
    return lambda rng, shape: rng.normal(size=shape) * 10.0 ** rng.integers(low, high, size=shape)


def nearly_one(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.choice([-1, 1], size=shape) * (1 + rng.integers(0, 3, size=shape) * 2.0**-50)


def sparse(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return spread(-8, 9)(rng, shape) * (rng.random(shape) < 0.3)


FILLS: dict[str, Fill] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "spread over 16 decades": spread(-8, 9),
    "spread over 40 decades": spread(-20, 21),
    "small integers": lambda rng, shape: rng.integers(-3, 4, size=shape) * 1.0,
    "cancelling": nearly_one,
    "mostly zero": sparse,
    "underflowing": spread(-160, -140),
    "both ends": lambda rng, shape: (
        rng.normal(size=shape) * 10.0 ** rng.choice([-150, 0, 30], shape)
    ),
}


def filled(fill: Fill, rng: np.random.Generator, **sizes: int) -> Model:
    base = laws.random_model(seed=int(rng.integers(1000)), **sizes)
    tensors = {name: fill(rng, array.shape) for name, array in base.weights.named()}
    for name in tensors:
        if name.split(".")[-1] in ("W_Q", "W_K", "b_Q", "b_K"):
            tensors[name] = rng.normal(size=tensors[name].shape)
    with np.errstate(under="ignore"):
        return from_state_dict(tensors, base.config)


def exactly(run: Run) -> Run:
    """Run the very same float weights and patterns in rational arithmetic."""
    tensors = {name: fractions(array) for name, array in run.model.weights.named()}
    model = from_state_dict(tensors, run.model.config)
    return exact_run(model, run.tokens.tolist(), [fractions(pattern) for pattern in run.patterns])


def exact_value(run: Run, target: Any, centred: bool) -> Fraction:
    exact = exactly(run)
    what = run.target(target, centred=centred)
    if hasattr(what, "direction"):
        return sum(
            (
                Fraction(float(w)) * x
                for w, x in zip(what.direction, exact.dense.residual[-1][0, -1], strict=True)
            ),
            Fraction(0),
        )
    return Fraction(what.dense(exact.logits(), exact.dense.residual[-1][0, -1]))


@pytest.mark.parametrize("name", FILLS)
def test_tables_stay_within_their_gap_bound_of_the_exact_value(name: str) -> None:
    rng = np.random.default_rng(len(name))
    for trial in range(12):
        model = filled(
            FILLS[name],
            rng,
            n_layers=int(rng.integers(0, 4)),
            n_heads=int(rng.integers(1, 4)),
            d_model=int(rng.integers(1, 4)),
            d_head=int(rng.integers(1, 3)),
            d_vocab=3,
            d_vocab_out=3,
            n_ctx=3,
        )
        run = model.run(rng.integers(0, 3, size=int(rng.integers(1, 4))))
        target: Any = [(0, 1), 0, rng.normal(size=model.config.d_model)][trial % 3]
        centred = bool(trial % 2)
        most = [None, 0, 1][int(rng.integers(3))]
        table = run.paths(target, top=int(rng.integers(0, 9)), max_order=most, centred=centred)
        exact = exact_value(run, target, centred)
        errors = (
            abs(Fraction(table.dense) - exact),
            abs(Fraction(table.listed) + Fraction(table.remainder) - exact),
            abs(Fraction(table.gap)),
        )
        assert max(errors) <= table.gap_bound
        assert np.isfinite(table.gap_bound)


def plain(n_layers: int, n_heads: int, d_model: int, d_head: int = 1) -> dict[str, Any]:
    tensors: dict[str, Any] = {
        "embed.W_E": np.zeros((2, d_model)),
        "unembed.W_U": np.zeros((d_model, 2)),
    }
    for layer in range(n_layers):
        for name in ("W_Q", "W_K", "W_V"):
            tensors[f"blocks.{layer}.attn.{name}"] = np.zeros((n_heads, d_model, d_head))
        tensors[f"blocks.{layer}.attn.W_O"] = np.zeros((n_heads, d_head, d_model))
    return tensors


def model_of(tensors: dict[str, Any]) -> Model:
    layers = sum(name.endswith("W_O") for name in tensors)
    heads, d_head, d_model = tensors["blocks.0.attn.W_O"].shape
    sizes = {"n_layers": layers, "n_heads": heads, "d_model": d_model, "d_head": d_head}
    return from_state_dict(
        tensors, Config(d_vocab=2, n_ctx=2, positional_embedding_type="none", **sizes)
    )


def test_many_small_terms_after_a_huge_one() -> None:
    """Each of hundreds of additions to 2^53 rounds the same way: 120 in all were not bounded."""
    tensors = plain(4, 4, 2)
    tensors["embed.W_E"][:, 0] = 1
    for layer in range(4):
        tensors[f"blocks.{layer}.attn.W_V"][:, 0, 0] = 1.0
        tensors[f"blocks.{layer}.attn.W_O"][:, 0, 0] = 1.01
    tensors["blocks.0.attn.b_O"] = np.array([1e-9, 0.0])
    tensors["blocks.3.attn.b_O"] = np.array([0.0, 2.0**53])
    tensors["unembed.W_U"][:, 0] = [1.01, 1.0]
    run = model_of(tensors).run([0])
    readout = run.target(0, centred=False).readout(run.unembed, 0)
    paths = list(run.model.network.paths())
    values = {path: Fraction(float(path_value(run.frozen, readout, path))) for path in paths}
    for source in ("L0bias", "embed"):
        listed = [path for path in paths if path.source == source]
        found = remainder(run.frozen, readout, listed, measured=True)
        exact = sum(values[path] for path in paths if path.source != source)
        error = abs(Fraction(float(found.value)) - exact)
        assert error <= 2 * found.rounding
        if source == "L0bias":
            assert error > 100


def test_underflow_that_a_large_weight_blows_up() -> None:
    """1e-200 · 1e-200 is 0 on its way forward, but not on its way back from 1e300."""
    tensors = plain(1, 1, 3)
    tensors["embed.W_E"][:, 0] = 1
    tensors["blocks.0.attn.W_V"][0, 0, 0] = 1e-200
    tensors["blocks.0.attn.W_O"][0, 0, 1] = 1e-200
    tensors["unembed.W_U"][1, 0] = 1e300
    table = model_of(tensors).run([0]).paths(0, centred=False)
    assert table.dense == 0.0
    assert 0 < abs(table.gap) <= table.gap_bound < 1e-20


def test_a_total_that_cancels_is_held_against_its_parts() -> None:
    """Pitfall 25: 1e8 + 1 - 1e8; the bound follows Σ|term|, not |total|."""
    tensors = plain(2, 1, 1)
    tensors["embed.W_E"][:] = 1.0
    tensors["unembed.W_U"][0, 0] = 1.0
    tensors["blocks.0.attn.b_O"] = np.array([1e8 + 0.1])
    tensors["blocks.1.attn.b_O"] = np.array([-1e8])
    table = model_of(tensors).run([0]).paths(0, centred=False, top=1)
    assert table.dense == pytest.approx(1.1)
    assert abs(table.gap) <= table.gap_bound
    assert 1e-8 * UNIT < table.gap_bound < 1e-5
    assert table.gap_bound > UNIT * 1e8


def test_exact_integers_leave_no_gap() -> None:
    tensors = plain(2, 2, 3)
    rng = np.random.default_rng(1)
    tensors = {name: rng.integers(-3, 4, a.shape) * 1.0 for name, a in tensors.items()}
    run = model_of(tensors).run([0])  # one token: every pattern is 1
    for token in (0, 1):
        assert run.paths(token, centred=False, top=2).gap == 0.0


def test_bounds_are_not_idle() -> None:
    """On ordinary weights the bound stays within a few thousand units of the sizes."""
    table = laws.random_model(seed=1).run([3, 1, 4, 1]).paths(2, centred=False, top=5)
    sizes = sum(abs(row.value) for row in table.rows)
    assert table.gap_bound < 1e4 * UNIT * sizes


def test_gamma_and_the_floor() -> None:
    assert gamma(0) == 0.0
    assert gamma(2) > 2 * UNIT
    assert UNIT * TINY == 5e-324


def test_one_head_one_position_no_layers() -> None:
    for layers, heads, d_head in ((0, 1, 1), (1, 1, 1), (3, 1, 1)):
        model = laws.random_model(
            seed=1, n_layers=layers, n_heads=heads, d_head=d_head, d_model=1, d_vocab=1, n_ctx=1
        )
        run = model.run([0])
        table = run.paths(0, top=100)
        assert table.remainder_count == 0
        assert table.remainder == 0.0
        assert abs(table.gap) <= table.gap_bound
        assert Path.parse(table[0].path) in set(model.network.paths())
