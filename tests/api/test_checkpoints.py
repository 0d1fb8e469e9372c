"""Path sums close on checkpoints of every architecture, however their MLPs are taken."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import pathexpand
from pathexpand.engine.enumeration import enumerate_values
from pathexpand.frozen import MLP_MODES

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
