from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pathexpand.api import Run
from pathexpand.certificate import Certificate, certify
from pathexpand.certificate.rows import NEAR
from pathexpand.engine.search import Budget
from pathexpand.laws.design import Design, random_transformer
from pathexpand.laws.problems import random_model
from pathexpand.table import PathTable

POST = ("ln1", "ln2", "ln1_after", "ln2_after")
SEARCHES: dict[str, dict[str, Any]] = {
    "whole": {"top": 8},
    "query": {"top": 5, "query": "* > L1H0 > *"},
    "order": {"top": 6, "max_order": 1},
    "stopped": {"top": 8, "budget": Budget(nodes=4)},
}
DESIGNS = {
    "source": Design(mlp="source"),
    "frozen": Design(mlp="frozen", norm="rms", gated=True, act="silu"),
    "neurons": Design(mlp="neurons", positions="rotary"),
    "beside": Design(mlp="neurons", parallel=True, gated=True, act="gelu_new"),
    "post-norm": Design(mlp="neurons", norms=POST, act="relu", embed_norms=1, types=2),
    "bidirectional": Design(mlp="frozen", norms=POST, direction="bidirectional", transform=True),
}
CASES = [(model, "whole") for model in DESIGNS] + [("heads", search) for search in SEARCHES]


def a_run(name: str = "heads") -> Run:
    """Give a run of a model with every bias: of 3 layers of heads, or of one of the designs."""
    if name == "heads":
        model = random_model(seed=11, n_layers=3, n_heads=3, d_vocab_out=11)
    else:
        model = random_transformer(DESIGNS[name], seed=11)
    return model.run([1, 7, 2, 9, 4], mask=[1, 1, 1, 1, 1])


@pytest.fixture(scope="session", params=CASES, ids=" ".join)
def case(request: pytest.FixtureRequest) -> tuple[Run, Certificate]:
    """A run and a certificate: of every kind of search, and of every kind of model."""
    model, search = request.param
    run = a_run(model)
    return run, certify(run, run.searched_paths((3, 5), position=3, **SEARCHES[search]))


@pytest.fixture
def run(case: tuple[Run, Certificate]) -> Run:
    return case[0]


@pytest.fixture
def certificate(case: tuple[Run, Certificate]) -> Certificate:
    return case[1]


def with_table(certificate: Certificate, **changes: Any) -> Certificate:
    """Change members of the table and seal again, as somebody who wants to deceive would."""
    return replace(certificate, table=replace(certificate.table, **changes)).sealed()


def reranked(table: PathTable, rows: list[Any], **changes: Any) -> PathTable:
    """Give a table other rows, with everything that follows from them put right."""
    running, fixed = 0.0, []
    bound = changes.get("bound", table.bound)
    for rank, row in enumerate(rows, start=1):
        running += row.value
        fixed.append(
            replace(
                row,
                rank=rank,
                running=running,
                share=row.value / table.dense,
                certain=abs(row.value) >= bound * NEAR,
            )
        )
    remainder = table.remainder + table.listed - running
    total = running + remainder + table.outside
    return replace(
        table,
        rows=tuple(fixed),
        listed=running,
        remainder=remainder,
        remainder_count=table.remainder_count + len(table) - len(rows),
        gap=table.dense - total,
        **changes,
    )
