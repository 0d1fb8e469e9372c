"""Tables of real runs say what MLPs are in a path, and that values are those before a cap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.certificate import certify, check_certificate
from tests.api.models import small

MODES = {
    "source": "mlps each MLP's output is a source",
    "frozen": "mlps each MLP whole, its gates held fixed",
    "neurons": "mlps neuron by neuron",
}
CAPPED = "own forward pass, before its soft cap"
PROMPT = [3, 1, 4]


def spaced(table: Any) -> str:
    return " ".join(table.to_text(100).split())


@pytest.mark.parametrize("mlp", MODES)
def test_every_table_says_what_mlps_are(mlp: str) -> None:
    model = small(mlp=mlp)
    run = model.run(PROMPT)
    plain = pathexpand.load("two-layer")
    for table in (
        run.paths(top=2),
        run.totals_table(by="source"),
        model.dataset_paths([PROMPT, [2, 5]], top=2),
    ):
        assert MODES[mlp] in spaced(table)
        assert type(table).from_json(table.to_json()) == table
    for table in (plain.run("to be").paths(top=2), plain.paths(top=2)):
        assert "mlps" not in spaced(table)


def test_the_dense_line_of_a_capped_model() -> None:
    model, plain = small(output_logits_soft_cap=30.0), small()
    direction = np.arange(1.0, 8.0)
    for each, said in ((model, True), (plain, False)):
        run = each.run(PROMPT)
        assert (CAPPED in spaced(run.paths(2, top=2))) is said
        assert (CAPPED in spaced(run.totals_table(target=2))) is said
        found = each.dataset_paths([PROMPT, [2, 5]], top=2, centred=False)
        assert ("forward passes, before its soft cap" in spaced(found)) is said
        assert CAPPED not in spaced(run.paths(direction, top=2))


def test_a_certificate_whose_table_says_otherwise_fails() -> None:
    for model, change in (
        (small(mlp="neurons"), {"mlps": "frozen"}),
        (small(mlp="neurons"), {"mlps": None}),
        (small(output_logits_soft_cap=30.0), {"soft_cap": None}),
        (small(output_logits_soft_cap=30.0), {"soft_cap": 31.0}),
    ):
        run = model.run(PROMPT)
        sound = certify(run, run.searched_paths(2, top=3))
        assert all(each.holds for each in check_certificate(sound, model))
        edited = replace(sound, table=replace(sound.table, **change)).sealed()
        fails = [each.name for each in check_certificate(edited, model) if not each.holds]
        assert fails == ["question"]
