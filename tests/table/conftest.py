from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pathexpand.table import NormRow, NormTable, PathRow, PathTable, SourceToken

TEXTS = ("<|bos|>", "' the'", "'the'", "'\\n\\t'", "'café'", "'漢字'", "b'\\xf0'", "'|`<b>&'")
Make = Callable[..., PathTable]


@pytest.fixture
def make() -> Make:
    """Build a table of two listed paths and three unlisted ones, with parts replaced."""

    def build(**parts: Any) -> PathTable:
        tokens = tuple(SourceToken(n, 100 + n, text) for n, text in enumerate(TEXTS))
        rows = (
            PathRow(1, "embed > L0H1", 1, "head", 2.75, 2.75 / 4.1, 2.75, tokens[1], 2.5),
            PathRow(2, "b_U", 0, "direct", -0.3, -0.3 / 4.1, 2.45, None, None),
        )
        whole = {
            "model": "tiny",
            "tokens": tokens,
            "position": 7,
            "target": "logit of ' the' minus logit of 'the'",
            "dense": 4.1,
            "rows": rows,
            "listed": 2.45,
            "remainder": 1.65,
            "remainder_count": 3,
            "gap": 4.1 - (2.45 + 1.65),
            "gap_bound": 1e-14,
            "path_count": 5,
            "certified": True,
            "bound": 0.29,
        }
        return PathTable(**(whole | parts))

    return build


@pytest.fixture
def table(make: Make) -> PathTable:
    return make()


@pytest.fixture
def norms() -> NormTable:
    rows = (
        NormRow(1, "embed > L0H1", 1, "head", 30.0, 0.9),
        NormRow(2, "embed > L0H1 > L1H2", 2, "virtual head", 9.5, 0.09025),
    )
    return NormTable("tiny", rows, energy=1000.0, path_count=7, certified=True, bound=3.1)
