"""Objects that are no models: these tests need nothing that is not always there."""

from typing import Any

import pytest

import pathexpand
from pathexpand.errors import ModelError


class Config:
    def to_dict(self) -> dict[str, Any]:
        return {"model_type": "gpt2"}


class PreTrainedModel:
    config = Config()

    def state_dict(self) -> dict[str, Any]:
        return {"wte.weight": [1.0]}


class HookedRootModule(PreTrainedModel):
    pass


@pytest.mark.parametrize("model", [None, 3, "gpt2", {}, PreTrainedModel], ids=str)
def test_what_has_no_tensors_is_no_model(model: object) -> None:
    with pytest.raises(ModelError, match="model: wanted a model of transformers, got"):
        pathexpand.from_transformers(model)
    with pytest.raises(ModelError, match="model: wanted a HookedTransformer or a TransformerBr"):
        pathexpand.from_transformer_lens(model)


def test_each_kind_is_sent_to_its_own_reader() -> None:
    with pytest.raises(ModelError, match="got a HookedRootModule; use from_transformer_lens"):
        pathexpand.from_transformers(HookedRootModule())
    with pytest.raises(ModelError, match="got a PreTrainedModel; use from_transformers"):
        pathexpand.from_transformer_lens(PreTrainedModel())


def test_a_model_without_configuration_is_refused() -> None:
    model = PreTrainedModel()
    model.config = {}  # type: ignore[assignment]
    with pytest.raises(ModelError, match="wanted a model of transformers, with its config"):
        pathexpand.from_transformers(model)


def test_what_is_not_made_of_torch_tensors_is_refused() -> None:
    with pytest.raises(ModelError, match=r"tensor wte.weight: wanted a plain torch tensor"):
        pathexpand.from_transformers(PreTrainedModel())
