"""A model that others trained (induction on words of eight letters): what it does, and why."""

from __future__ import annotations

from pathlib import Path as FilePath

import numpy as np
import pytest

from pathexpand import laws
from pathexpand.api import Model, load
from pathexpand.model.forward import forward, logits

pytestmark = pytest.mark.shared_models


def words(count: int) -> np.ndarray:  # type: ignore[type-arg]
    """Draw words: seven different letters, then one of the first six again; (word, 8)."""
    rng = np.random.default_rng(0)
    out = np.array([rng.permutation(26)[:8] for _ in range(count)])
    out[:, 7] = out[np.arange(count), rng.integers(0, 6, count)]
    return out


def read(shared_models: FilePath, name: str) -> Model:
    return load(shared_models / "induction-2l1h" / f"{name}.safetensors")


def answers(tokens: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Give the letter after the earlier copy of the last one."""
    earlier = (tokens[:, :7] == tokens[:, 7:]).argmax(axis=1)
    out: np.ndarray = tokens[np.arange(len(tokens)), earlier + 1]  # type: ignore[type-arg]
    return out


def measured(model: Model, tokens: np.ndarray) -> tuple[float, float]:  # type: ignore[type-arg]
    """Give accuracy and cross-entropy (nats) at the last position."""
    dense = forward(model.weights, model.config, tokens, np.ones(tokens.shape, dtype=bool))
    every = logits(model.weights, dense.residual[-1][:, -1])
    wanted = answers(tokens)
    top = every.max(axis=1)
    likelihood = top + np.log(np.exp(every - top[:, None]).sum(axis=1))
    loss = likelihood - every[np.arange(len(tokens)), wanted]
    return float((every.argmax(axis=1) == wanted).mean()), float(loss.mean())


def test_the_trained_model_does_its_task(shared_models: FilePath) -> None:
    accuracy, loss = measured(read(shared_models, "trained"), words(20_000))
    assert accuracy == pytest.approx(0.98, abs=0.01)
    assert loss == pytest.approx(0.119, abs=0.01)


def test_the_broken_model_does_it_worse(shared_models: FilePath) -> None:
    accuracy, loss = measured(read(shared_models, "broken-circuit"), words(5_000))
    assert accuracy < 0.9
    assert loss > 0.3


def leading(model: Model, count: int = 60) -> tuple[float, float]:
    """Give how often the answer's leading path runs through layer 1, and its mean share."""
    through, shares = 0, []
    tokens = words(count)
    for word, answer in zip(tokens, answers(tokens), strict=True):
        run = model.run(word)
        table = run.paths(int(answer), top=1)
        through += "L1H0" in table[0].path
        head = sum(
            run.value(path, target=int(answer))
            for path in ("embed > L1H0", "pos > L1H0", "embed > L0H0 > L1H0", "pos > L0H0 > L1H0")
        )
        shares.append(head / table.dense)
    return through / count, float(np.mean(shares))


def test_the_answer_comes_through_the_second_layer(shared_models: FilePath) -> None:
    often, share = leading(read(shared_models, "trained"))
    assert often > 0.9
    assert share > 0.5


def test_in_the_broken_model_it_does_not(shared_models: FilePath) -> None:
    sound, _ = leading(read(shared_models, "trained"))
    often, _ = leading(read(shared_models, "broken-circuit"))
    assert often < 0.5 < sound


def test_the_heads_attend_where_they_should(shared_models: FilePath) -> None:
    model, tokens = read(shared_models, "trained"), words(500)
    dense = forward(model.weights, model.config, tokens, np.ones(tokens.shape, dtype=bool))
    earlier = (tokens[:, :7] == tokens[:, 7:]).argmax(axis=1)
    assert dense.patterns[1][np.arange(500), 0, 7, earlier + 1].mean() == pytest.approx(
        0.89, abs=0.03
    )
    previous = dense.patterns[0][:, 0, range(1, 8), range(7)]
    assert previous.mean() > 0.5


def test_every_law_holds_on_it(shared_models: FilePath) -> None:
    for name in ("trained", "broken-circuit"):
        for found in laws.verify_run(read(shared_models, name).run([0, 1, 2, 3, 4, 5, 6, 3])):
            found.require()
