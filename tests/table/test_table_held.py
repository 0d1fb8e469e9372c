"""What a table says of MLPs and of a soft cap: over the rows, under them, and in files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pathexpand.errors import PathExpandError
from pathexpand.table import DatasetTable, NormTable, PathTable, TotalsTable

SAID = {
    "source": "mlps each MLP's output is a source",
    "frozen": "mlps each MLP whole, its gates held fixed",
    "neurons": "mlps neuron by neuron",
}


@pytest.fixture
def tables(table: PathTable, norms: NormTable):
    totals = TotalsTable("tiny", "logit of #3", 2, "*", "order", (), 1.0, 1.0, True)
    data = DatasetTable(
        model="tiny",
        by="rms",
        prompts=2,
        target="logit of #3",
        rows=(),
        dense=1.5,
        listed=0.0,
        remainder=1.5,
        remainder_count=3,
        gap=0.0,
        gap_bound=1e-14,
        path_count=3,
        certified=True,
        bound=0.3,
    )
    return table, norms, totals, data


def spaced(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("mlps", SAID)
def test_the_head_says_what_mlps_are(tables, mlps):
    for each in tables:
        held = replace(each, mlps=mlps)
        assert SAID[mlps] in spaced(held.to_text(80))
        assert "mlps" not in each.to_text(80)
        for text in (held.to_markdown(), held.to_latex(), held._repr_html_()):
            assert SAID[mlps].removeprefix("mlps ").split("'")[0] in text


def test_files_keep_it(tables):
    for each in tables:
        held = replace(each, mlps="frozen")
        assert type(each).from_json(held.to_json()) == held
        capped = held if isinstance(each, NormTable) else replace(held, soft_cap=2.5)
        assert type(each).from_json(capped.to_json()) == capped


def test_older_files_do_not_say(tables):
    for each in tables:
        document = json.loads(each.to_json())
        older = {key: value for key, value in document.items() if key not in ("mlps", "soft_cap")}
        assert older != document
        assert type(each).from_json(json.dumps(older)) == each


def test_what_mlps_cannot_be_is_refused(tables):
    for each in tables:
        for wrong in ("neuron", "", 3, ["neurons"]):
            with pytest.raises(PathExpandError, match="table mlps: wanted source, frozen, neu"):
                replace(each, mlps=wrong)
    for each in (tables[0], *tables[2:]):
        for cap in (0.0, -1.0):
            with pytest.raises(PathExpandError, match="table soft cap: wanted a number above 0"):
                replace(each, soft_cap=cap)


def test_the_dense_value_of_a_capped_model_is_said_to_be_the_one_before(tables):
    for each in (tables[0], *tables[2:]):
        plain, capped = (
            next(line for line in one.to_text(100).splitlines() if line.startswith("dense"))
            for one in (each, replace(each, soft_cap=30.0))
        )
        assert capped == f"{plain}, before its soft cap"
