"""Activation functions: each gate against its definition, number by number."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from pathexpand.errors import ModelError
from pathexpand.model.activation import GATES, check_activation, gate


def phi(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def by_tanh(slope: float) -> Callable[[float], float]:
    return lambda z: 0.5 * (1 + math.tanh(slope * (z + 0.044715 * z**3)))


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


DEFINITIONS: dict[str, Callable[[float], float]] = {
    "relu": lambda z: float(z > 0),
    "relu2": lambda z: max(z, 0.0),
    "gelu": phi,
    "gelu_python": phi,
    "gelu_new": by_tanh(math.sqrt(2 / math.pi)),
    "gelu_python_tanh": by_tanh(math.sqrt(2 / math.pi)),
    "gelu_accurate": by_tanh(math.sqrt(2 / math.pi)),
    "gelu_pytorch_tanh": by_tanh(math.sqrt(2 / math.pi)),
    "gelu_fast": by_tanh(0.7978845608),
    "bloom_gelu": by_tanh(0.79788456),
    "silu": sigmoid,
    "swish": sigmoid,
    "quick_gelu": lambda z: sigmoid(1.702 * z),
}
POINTS = np.concatenate([np.linspace(-9, 9, 4001), [0.0, 1e-300, -1e-300, 40.0, -40.0, 1e3, -1e3]])


def test_every_function_has_a_definition() -> None:
    assert DEFINITIONS.keys() == GATES.keys()


@pytest.mark.parametrize("act", GATES)
def test_gates_are_what_they_are_defined_as(act: str) -> None:
    wanted = np.array([DEFINITIONS[act](float(z)) for z in POINTS])
    ours = gate(act, POINTS)
    assert abs(ours - wanted).max() <= 2e-15 * max(1, abs(wanted).max())


@pytest.mark.parametrize("act", GATES)
def test_float32_gates(act: str) -> None:
    single = POINTS.astype(np.float32)
    before = single.copy()
    ours = gate(act, single)
    assert ours.dtype == np.float32
    assert (single == before).all()
    wanted = np.array([DEFINITIONS[act](float(z)) for z in single])
    assert abs(ours - wanted).max() <= 3e-7 * max(1, abs(wanted).max())


@pytest.mark.parametrize(
    ("act", "wanted"), [("relu", 0), ("relu2", 0), ("gelu", 0.5), ("silu", 0.5)]
)
def test_the_limit_at_zero(act: str, wanted: float) -> None:
    assert gate(act, np.zeros((2, 1))).tolist() == [[wanted], [wanted]]


def test_far_tails_are_finite() -> None:
    for act in GATES:
        with np.errstate(over="ignore", under="ignore"):
            found = gate(act, np.array([1e150, -1e150, 1e300, -1e300]))
        assert not np.isnan(found).any()


@pytest.mark.parametrize("act", ["solu", "", None, 3, ["gelu"], "GELU"])
def test_others_are_refused_by_name(act: object) -> None:
    with pytest.raises(ModelError, match=r"config act_fn .*: not supported; known activ") as e:
        check_activation(act)
    assert "\n" not in str(e.value)
