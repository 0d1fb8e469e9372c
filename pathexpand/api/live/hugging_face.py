"""A Hugging Face model in memory."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from pathexpand.api.live.probe import check_logits
from pathexpand.api.live.tensors import arrays_of, check_module, class_names
from pathexpand.api.live.tokenizer import tokenizer_of
from pathexpand.api.model import Model
from pathexpand.errors import ModelError
from pathexpand.frozen import MlpMode
from pathexpand.model.checkpoint import checkpoint_from_state_dict
from pathexpand.model.families import family_of
from pathexpand.model.shown import check_flag, shown

_WANTED = "a model of transformers"


def from_transformers(
    model: Any, tokenizer: Any = None, *, mlp: MlpMode = "source", check: bool = True
) -> Model:
    """Take a Hugging Face model that is in memory, of any family that a directory may hold.

    Its weights are copied, from any device and in any float format: training it further changes
    nothing here. Dropout and the mode it is in play no part. `tokenizer` is its fast tokenizer, if
    text is to be read. With `check`, the model is run on a few tokens and refused unless its
    logits are ours. `mlp` is as for `load`. Raises `ModelError` for other objects, quantised or
    half-loaded ones, families that are not known, and tensors that do not fit.
    """
    check_flag("check", check)
    check_module(model, _WANTED)
    names = class_names(model)
    if "HookedRootModule" in names or "TransformerBridge" in names:
        remedy = "use from_transformer_lens"
        raise ModelError("model", wanted=_WANTED, got=f"a {names[0]}", remedy=remedy)
    if getattr(model, "peft_config", None) is not None:
        remedy = "give model.merge_and_unload()"
        raise ModelError("model", wanted=_WANTED, got="one with adapters beside it", remedy=remedy)
    inner = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    raw, own = raw_config(inner), tokenizer_of(tokenizer)
    family_of(raw)  # what is not known is refused before anything is copied
    checkpoint = checkpoint_from_state_dict(arrays_of(inner.state_dict()), raw, tokenizer=own)
    if check:
        headless = inner.get_output_embeddings() is None  # GPT2Model, say

        def run(ids: Any) -> Any:
            out = inner(input_ids=ids)
            return out.last_hidden_state if headless else out.logits

        check_logits(checkpoint, inner, run, headless=headless)
    return Model(checkpoint, mlp=mlp)


def raw_config(model: Any) -> dict[str, Any]:
    """Give the configuration of a model of transformers as its `config.json` would hold it.

    Raises `ModelError` if it has none.
    """
    config: Any = getattr(model, "config", None)
    if not callable(getattr(config, "to_dict", None)):
        raise ModelError(
            "model", wanted=f"{_WANTED}, with its config", got=f"a {shown(type(model).__name__)}"
        )
    raw: dict[str, Any] = config.to_dict()
    name = PurePath(str(getattr(config, "_name_or_path", "") or "")).name
    return {"model_name": name or raw.get("model_type") or "model"} | raw
