"""A checkpoint whose parts do not add up is refused, by layer and size of the error."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import pathexpand
from pathexpand.engine import identities
from pathexpand.engine.identities import check_identities
from pathexpand.errors import ModelError
from pathexpand.frozen import HeadGroup
from tests.api.models import SIZES, small, tensors


def test_identities_hold_on_random_models() -> None:
    for seed in range(20):
        model = small(seed, act_fn="relu", parallel_attn_mlp=bool(seed % 2))
        check_identities(model.weights, model.config)


def test_a_layer_that_does_not_add_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    real = identities.frozen_layer

    def wrong(layer, *given):  # type: ignore[no-untyped-def]
        stages = real(layer, *given)
        group = stages[0][0].groups[0]
        if layer == 1 and isinstance(group, HeadGroup):
            object.__setattr__(group, "W_O", group.W_O[::-1])
        return stages

    monkeypatch.setattr(identities, "frozen_layer", wrong)
    with pytest.raises(ModelError, match=r"layer 1: wanted a sum .* off by \d"):
        check_identities(model.weights, model.config)


def test_loading_looks_at_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(
        {k: v.astype(np.float32) for k, v in tensors().items()}, tmp_path / "model.safetensors"
    )
    config = SIZES | {"n_ctx": 9, "normalization_type": "LN", "act_fn": "gelu"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert pathexpand.load(tmp_path).run([1, 2]).paths(top=1).closes
    bad = identities.Identity("layer 0 MLP", 0.5, 1e-12)
    monkeypatch.setattr(identities, "identities", lambda *given: [bad])
    with pytest.raises(
        ModelError, match=r"layer 0 MLP: .* off by 0.5, where rounding allows 1e-12"
    ):
        pathexpand.load(tmp_path)


def test_an_overflow_is_called_one(tmp_path: Path) -> None:
    big = {name: 1e200 * array for name, array in tensors().items()}
    model = pathexpand.from_state_dict(
        big, SIZES | {"n_ctx": 9, "normalization_type": "LN", "act_fn": "gelu"}
    )
    with pytest.raises(ModelError, match="overflow in"):
        check_identities(model.weights, model.config)
