"""What moves along a path adds up to its value, at every step and place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path as FilePath

import numpy as np
import numpy.typing as npt
import pytest

from pathexpand import laws
from pathexpand.api import Model, Run
from pathexpand.engine.flow import Flow, path_flow
from pathexpand.engine.value import Readout, path_value_by_token
from pathexpand.frozen import FrozenSum, MlpMode
from pathexpand.frozen.group import HeadGroup, NeuronGroup
from pathexpand.symbolic import Path
from tests.reference import test_families as families


def run_of(name: str, tmp_path: FilePath, mlp: MlpMode) -> Run:
    checkpoint, stored = families.read(name, tmp_path), families.golden(name)
    mask = stored.get("mask")
    row = [int(token) for token in stored["tokens"][-1]]
    mask = None if mask is None else mask[-1].astype(bool)
    return Model(checkpoint, mlp=mlp).run(row, mask=mask)


def flows(run: Run, top: int = 60) -> list[tuple[FrozenSum, Readout, Path, Flow]]:
    place = run.position()
    readout = run.target().readout(run.unembed, place)
    near = run.frozen.until(place)
    paths = [Path.parse(row.path) for row in run.paths(top=top)]
    return [(near, readout, path, path_flow(near, readout, path)) for path in paths]


def adds_up(near: FrozenSum, readout: Readout, path: Path, flow: Flow) -> bool:
    """Say whether every step carries the value on: what arrives at a place leaves it."""
    value = path_value_by_token(near, readout, path)
    at: npt.NDArray[np.float64] = flow.by_token
    size = abs(at).sum() + sum(abs(move).sum() for move in flow.moves)
    # Each part is a product of the same numbers in another order: a few hundred roundings.
    near_enough = 1e-12 * size + 1e-300
    good = abs(at - value).max() <= near_enough
    for move in flow.moves:
        good &= abs(move.sum(axis=0) - at).max() <= near_enough
        at = move.sum(axis=1)
    if path.components:
        end = np.zeros(near.positions)
        end[readout.position] = value.sum()
        good &= abs(at - end).max() <= near_enough
    return bool(good)


@pytest.mark.parametrize("mlp", ["source", "frozen", "neurons"])
@pytest.mark.parametrize("name", families.OWN)
def test_every_step_carries_the_value_on(name: str, mlp: MlpMode, tmp_path: FilePath) -> None:
    found = flows(run_of(name, tmp_path, mlp))
    assert max(path.order for _, _, path, _ in found) > 1
    assert all(adds_up(*each) for each in found)


def test_a_constant_of_the_readout_moves_nothing(tmp_path: FilePath) -> None:
    run = laws.random_model(seed=1).run([1, 2, 3])
    readout = run.target(5, centred=False).readout(run.unembed, 2)
    flow = path_flow(run.frozen, readout, Path.parse("b_U"))
    assert flow.moves == () and flow.by_token.sum() == readout.constant != 0


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (HeadGroup, lambda move: move.T),
        (HeadGroup, lambda move: np.tril(np.ones_like(move)) * move.sum() / move.size),
        (HeadGroup, abs),
        (NeuronGroup, lambda move: 2 * move),
        (NeuronGroup, lambda move: np.roll(move, 1, axis=0)),
    ],
)
def test_a_wrong_split_is_seen(
    kind: type[HeadGroup | NeuronGroup],
    wrong: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: FilePath,
) -> None:
    run = run_of("gpt2", tmp_path, "neurons")
    assert all(adds_up(*each) for each in flows(run))
    right = kind.flow
    monkeypatch.setattr(kind, "flow", lambda *given: wrong(right(*given)))
    assert not all(adds_up(*each) for each in flows(run))
