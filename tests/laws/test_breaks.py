"""Broken engines, one fault each, and the laws that must see it."""

from __future__ import annotations

import numpy as np
import pytest

from pathexpand.api import Model, Run

from .examples import DESIGNS, LAWS, example
from .faults import FAULTS, Fault
from .layer_faults import LAYER_FAULTS

PLAIN = ("plain", "shortformer", "square", "cancelling", "ties", "bidirectional")
ALL = (*FAULTS, *LAYER_FAULTS)


@pytest.mark.parametrize("kind", [*PLAIN, *DESIGNS])
def test_every_law_holds_on_the_sound_engine(kind: str) -> None:
    for name, law in LAWS.items():
        result = law(example(kind))
        assert result.holds, f"{name}: {result}"


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_fault_is_caught(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    run = example(fault.on)
    fault.patch(monkeypatch)
    broken = again(run, rerun=fault.rerun)
    missed = [name for name in fault.caught_by if passes(name, broken)]
    assert fault.caught_by
    assert not missed


def test_every_law_catches_a_fault() -> None:
    caught = {name for fault in ALL for name in fault.caught_by}
    assert caught == set(LAWS)


def again(run: Run, *, rerun: bool) -> Run:
    """Give a run with nothing worked out yet; its dense pass is done over only if asked."""
    fresh = Run(Model(run.model.checkpoint, mlp=run.model.mlp), run.dense)
    return fresh.model.run([int(token) for token in run.tokens]) if rerun else fresh


def passes(name: str, run: Run) -> bool:
    """Say whether a law holds; a law that cannot even be run has caught the fault."""
    try:
        with np.errstate(all="ignore"):
            return LAWS[name](run).holds
    except Exception:
        return False
