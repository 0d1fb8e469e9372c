from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pathexpand.api import Run
from pathexpand.certificate import Certificate, certify
from pathexpand.certificate.rows import NEAR
from pathexpand.engine.search import Budget
from pathexpand.laws.problems import random_model
from pathexpand.table import PathTable


def a_run() -> Run:
    model = random_model(seed=11, n_layers=3, n_heads=3, d_vocab_out=11)
    return model.run([1, 7, 2, 9, 4], mask=[1, 1, 1, 1, 1])


@pytest.fixture(scope="session")
def run() -> Run:
    return a_run()


@pytest.fixture(scope="session", params=["whole", "query", "order", "stopped"])
def certificate(run: Run, request: pytest.FixtureRequest) -> Certificate:
    """Certificates of every kind of search, of a model of 3 layers with every bias."""
    options: dict[str, Any] = {
        "whole": {"top": 8},
        "query": {"top": 5, "query": "* > L1H0 > *"},
        "order": {"top": 6, "max_order": 1},
        "stopped": {"top": 8, "budget": Budget(nodes=4)},
    }[request.param]
    return certify(run, run.searched_paths((3, 5), position=3, **options))


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
