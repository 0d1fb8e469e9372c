"""A model of TransformerLens in memory: a HookedTransformer, or a TransformerBridge."""

from __future__ import annotations

from typing import Any

from pathexpand.api.live.bridge import bridge_checkpoint
from pathexpand.api.live.probe import check_logits
from pathexpand.api.live.tensors import arrays_of, check_module, class_names
from pathexpand.api.live.tokenizer import bare_tokenizer_of
from pathexpand.api.model import Model
from pathexpand.errors import ModelError
from pathexpand.frozen import MlpMode
from pathexpand.model.checkpoint import Checkpoint, checkpoint_from_state_dict
from pathexpand.model.shown import check_flag

_WANTED = "a HookedTransformer or a TransformerBridge of TransformerLens"


def from_transformer_lens(model: Any, *, mlp: MlpMode = "source", check: bool = True) -> Model:
    """Take a model of TransformerLens that is in memory, its weights as they are.

    They may be folded, centred or raw, of a bridge in compatibility mode or not: the table is
    that of the numbers the object computes with. They are copied. Its tokenizer comes along, and
    text gets a start token where its configuration says so. The other options are those of
    `from_transformers`. Raises `ModelError`.
    """
    check_flag("check", check)
    check_module(model, _WANTED)
    names = class_names(model)
    if "TransformerBridge" in names:
        checkpoint, module = bridge_checkpoint(model), model.original_model
    elif "HookedTransformer" in names:
        checkpoint, module = _hooked_checkpoint(model), model
    else:
        remedy = "use from_transformers" if "PreTrainedModel" in names else ""
        raise ModelError("model", wanted=_WANTED, got=f"a {names[0]}", remedy=remedy)
    if check:
        check_logits(checkpoint, module, model)
    return Model(checkpoint, mlp=mlp)


def _hooked_checkpoint(model: Any) -> Checkpoint:
    tokenizer = bare_tokenizer_of(getattr(model, "tokenizer", None))
    arrays = arrays_of(model.state_dict())
    return checkpoint_from_state_dict(arrays, model.cfg.to_dict(), tokenizer=tokenizer)
