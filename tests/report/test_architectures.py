"""Explorers of every kind of model open without a word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import pathexpand
from pathexpand import laws
from pathexpand.api import Model
from pathexpand.frozen import MlpMode
from pathexpand.report import Report
from tests.reference import test_families as families

from .conftest import Opened


def named(which: str) -> Report:
    zero, one, two = (pathexpand.load(f"{name}-layer") for name in ("zero", "one", "two"))
    return {
        "no heads": lambda: zero.run("to be or not").report(),
        "one layer": lambda: one.run("to be or not").report(),
        "one token": lambda: two.run([5]).report(),
        "no rows": lambda: two.run("to be").report(top=0),
        "no matches": lambda: two.run("to be").report(query="L0H0 > L0H1"),
        "a difference": lambda: two.run("to be or").report(" to-not"),
        "a source of every kind": lambda: laws.random_model(seed=1).run([1, 2, 3]).report(),
    }[which]()


def silent(page: Opened, report: Report) -> None:
    """Select rows and heads; nothing may be logged or asked for, and both are described."""
    page.select(*range(min(len(report.table), 12)))
    for head in report.heads[:3]:
        page.set("of head", head.label)
        assert head.label in page.text("about head")
    assert page.text("detail") and "dense" in page.text("kept")
    assert page.said() == [] and page.asked() == []


@pytest.mark.parametrize(
    "which",
    [
        "no heads",
        "one layer",
        "one token",
        "no rows",
        "no matches",
        "a difference",
        "a source of every kind",
    ],
)
def test_small_runs(which: str, opened: Callable[..., Opened]) -> None:
    report = named(which)
    silent(opened(report.page()), report)


@pytest.mark.parametrize(
    ("name", "mlp"),
    [("gpt2", "neurons"), ("gemma2", "frozen"), ("bert", "source"), ("falcon", "neurons"),
     ("bloom", "frozen")],
)  # fmt: skip
def test_architectures(
    name: str, mlp: MlpMode, opened: Callable[..., Opened], tmp_path: Path
) -> None:
    checkpoint, stored = families.read(name, tmp_path), families.golden(name)
    mask = stored.get("mask")
    row = [int(token) for token in stored["tokens"][-1]]
    mask = None if mask is None else mask[-1].astype(bool)
    report = Model(checkpoint, mlp=mlp).run(row, mask=mask).report(top=40)
    silent(opened(report.page()), report)
