"""The names that libraries give to places of a layer, and the layer in them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pathexpand.errors import ModelError
from pathexpand.features.unit import Hook
from pathexpand.model.shown import shown

# TransformerLens, relative to a block. Its hook_mlp_in is the stream in front of the norm.
LENS: Mapping[str, Hook] = {
    "hook_resid_pre": "resid_pre",
    "hook_resid_mid": "resid_mid",
    "hook_resid_post": "resid_post",
    "hook_mlp_in": "resid_mid",
    "ln2.hook_normalized": "ln2_normalized",
    "mlp.hook_in": "mlp_in",
    "mlp.hook_out": "mlp_raw",
    "hook_mlp_out": "mlp_out",
    "hook_attn_out": "attn_out",
}
# Gemma 2 and 3 under their Hugging Face names, relative to a layer: four norms each.
GEMMA: Mapping[str, Hook] = {
    "output": "resid_post",
    "pre_feedforward_layernorm.output": "mlp_in",
    "mlp.output": "mlp_raw",
    "post_feedforward_layernorm.output": "mlp_out",
    "post_attention_layernorm.output": "attn_out",
}
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
_GEMMA_LAYER = re.compile(r"(?:model\.)?(?:language_model\.)?layers\.([^.]+)\.(.+)")
# What EleutherAI's coders call modules: `layers.3.mlp` or `h.3.mlp`, with or without a prefix.
_MODULE = re.compile(r"(?:[A-Za-z_]+\.)*(?:layers|h|blocks)\.(\d+)(?:\.(\w+))?")


def lens_hook(name: object, subject: str) -> tuple[int, Hook]:
    """Read a whole TransformerLens name such as `blocks.3.hook_resid_pre`."""
    found = _BLOCK.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise ModelError(subject, wanted="a hook such as blocks.3.hook_resid_pre", got=shown(name))
    return int(found[1]), block_hook(found[2], subject)


def block_hook(name: object, subject: str) -> Hook:
    """Read a TransformerLens name relative to a block, such as `hook_mlp_out`."""
    if not isinstance(name, str) or name not in LENS:
        raise ModelError(subject, wanted=f"one of {', '.join(LENS)}", got=shown(name))
    return LENS[name]


def gemma_hook(name: object, subject: str) -> tuple[str, Hook]:
    """Read a Hugging Face name such as `model.layers.5.output`: the layer as text, and the hook."""
    found = _GEMMA_LAYER.fullmatch(name) if isinstance(name, str) else None
    if found is None or found[2] not in GEMMA:
        wanted = f"model.layers.N. and one of {', '.join(GEMMA)}"
        raise ModelError(subject, wanted=wanted, got=shown(name))
    return found[1], GEMMA[found[2]]


def module(name: str, subject: str) -> tuple[int, str]:
    """Read a module's name such as `layers.3.mlp`: the layer, and "", "mlp" or "attn"."""
    found = _MODULE.fullmatch(name)
    kinds = {None: "", "mlp": "mlp", "attn": "attn", "self_attn": "attn", "attention": "attn"}
    if found is None or found[2] not in kinds:
        wanted = "a module such as layers.3, layers.3.mlp or h.3.mlp"
        raise ModelError(subject, wanted=wanted, got=shown(name))
    return int(found[1]), kinds[found[2]]
