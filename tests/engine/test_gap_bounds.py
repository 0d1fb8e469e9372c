"""Tables of every architecture close within their gap bound, on weights chosen to break it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pathexpand.api import Run
from pathexpand.errors import ModelError
from pathexpand.laws import Design, random_transformer
from pathexpand.laws.design import build
from pathexpand.laws.strategies import designs, prompts
from tests.engine.test_rounding import FILLS

many = settings(
    max_examples=300,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def hard_run(design: Design, fill: str, seed: int, tokens: list[int]) -> Run | None:
    """Run a model of such weights; None where its own numbers leave the range of floats."""
    rng = np.random.default_rng(seed)

    def drawn(shape: tuple[int, ...]) -> Any:
        return np.asarray(FILLS[fill](rng, shape), dtype=np.float64)

    try:
        run = build(design, drawn).run(tokens)
        run.paths(0, top=0)
    except ModelError:
        return None
    return run


@many
@given(st.data())
def test_tables_close_whatever_the_weights(data: st.DataObject) -> None:
    design, fill = data.draw(designs()), data.draw(st.sampled_from(sorted(FILLS)))
    tokens = data.draw(prompts(random_transformer(design, seed=0)))
    with np.errstate(all="ignore"):
        run = hard_run(design, fill, data.draw(st.integers(0, 999)), tokens)
        assume(run is not None and run.model.network.count() <= 3000)
        assert run is not None
        target = data.draw(st.sampled_from([0, np.linspace(-1, 1, design.d_model)]))
        table = run.paths(target, top=data.draw(st.integers(0, 5)))
    assert np.isfinite(table.gap_bound)
    assert abs(table.gap) <= table.gap_bound


@pytest.mark.parametrize("mlp", ["source", "frozen", "neurons"])
@pytest.mark.parametrize("norms", [("ln1", "ln2"), ("ln1_after", "ln2_after"), ()], ids=str)
def test_bounds_are_not_idle(norms: tuple[str, ...], mlp: Any) -> None:
    """On ordinary weights a bound stays far below anything that matters."""
    design = Design(norms=norms, mlp=mlp, n_layers=3)
    table = random_transformer(design, seed=1).run([3, 1, 4, 1]).paths(2, centred=False, top=5)
    sizes = sum(abs(row.value) for row in table.rows)
    assert 0 < table.gap_bound < 1e-9 * sizes
