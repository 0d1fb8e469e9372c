"""Path sums close on checkpoints of every architecture, however their MLPs are taken."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import pathexpand
from pathexpand.engine.enumeration import enumerate_values
from pathexpand.errors import ModelError
from pathexpand.frozen import MLP_MODES, frozen_layer
from pathexpand.model.parts import Attention, Block, Mlp, Norm

FAMILIES = Path(__file__).parents[1] / "reference" / "families"
CASES = sorted(each.parent.name for each in FAMILIES.glob("*/golden.safetensors"))


def test_there_are_cases_of_every_family() -> None:
    assert len(CASES) >= 80
    assert len({case.split("-")[0] for case in CASES}) == 19


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mlp", MLP_MODES)
def test_paths_sum_to_the_reference_logits_and_are_ranked_rightly(case: str, mlp: str) -> None:
    model = pathexpand.load(FAMILIES / case, mlp=mlp)  # type: ignore[arg-type]
    golden = load_file(FAMILIES / case / "golden.safetensors")
    mask, types = golden.get("mask"), golden.get("token_types")
    row = 1
    run = model.run(
        golden["tokens"][row],
        mask=None if mask is None else mask[row],
        types=None if types is None else types[row],
    )
    place = run.position()
    wanted = golden.get("uncapped", golden["logits"])[row, place]
    table = run.paths(3, centred=False, top=5)
    assert table.closes
    assert table.certified
    # The reference computes in float64 too; both are off by some hundred units at most.
    assert abs(table.sum - wanted[3]) <= 1e-12 * abs(wanted).max()
    readout = run.target(3, centred=False).readout(run.unembed, place)
    values = np.concatenate(
        [each.values for each in enumerate_values(run.frozen, readout, max_order=2)]
    )
    best = np.sort(abs(values))[::-1][:5]
    assert all(abs(row.value) >= best[n] * (1 - 1e-9) for n, row in enumerate(table.rows))
    assert abs(run.total(target=3, centred=False).sum() - table.dense) <= table.gap_bound


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"parallel": True, "ln2_after": True}, "no norm of the stream in a parallel block"),
        ({"parallel": True, "ln1_after": True}, "no norm of the stream in a parallel block"),
        ({"ln2_after": True, "mlp": False}, "an MLP in front of its norm of the stream"),
    ],
)
def test_norms_of_the_stream_stand_where_an_architecture_has_them(parts: Any, said: str) -> None:
    ones, norm = np.ones((1, 2, 2)), Norm("layer", None, None, 1e-5)
    mlp = Mlp(np.ones((2, 3)), np.ones((3, 2)), "relu") if parts.get("mlp", True) else None
    given = {
        name: norm if name.startswith("ln") else parts[name] for name in parts.keys() - {"mlp"}
    }
    block = Block(Attention(ones, ones, ones, ones), mlp, **given)
    trace: Any = None
    with pytest.raises(ModelError, match=said):
        frozen_layer(0, block, trace, ones[0])
