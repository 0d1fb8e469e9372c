"""What of a model, apart from its weights, changes numbers."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from typing import Any

from pathexpand.api import Model
from pathexpand.certificate.block import NORMS
from pathexpand.model.weights import Block, HeadNorm, Norm

# What it is called, which start token text gets, and how its files were laid out.
_ALL_THE_SAME = ("model_name", "default_prepend_bos", "bos_token_id", "layout")


def architecture(model: Model) -> dict[str, Any]:
    """Give it as plain numbers, texts, lists and dictionaries.

    `config` has the names of `pathexpand.model.config.Config`, `blocks` says for each layer whether
    it is parallel, by what its outputs are multiplied, its activation and its norms.

    >>> from pathexpand.api import load
    >>> found = architecture(load("one-layer"))
    >>> found["config"]["attention_dir"], found["blocks"]
    ('causal', [{'parallel': False, 'scale': 1.0}])
    """
    weights, config = model.weights, model.config
    found: dict[str, Any] = {
        "config": {
            each.name: _plain(getattr(config, each.name))
            for each in fields(config)
            if each.name not in _ALL_THE_SAME
        },
        "blocks": [_block(weights.outline(layer)) for layer in range(len(weights.blocks))],
        "embed_norms": [_norm(norm) for norm in weights.embed_norms],
    }
    if weights.final_norm is not None:
        found["final_norm"] = _norm(weights.final_norm)
    if weights.transform is not None:
        found["transform"] = {"act": weights.transform.act}
        if weights.transform.norm is not None:
            found["transform"]["norm"] = _norm(weights.transform.norm)
    return found


def _block(block: Block) -> dict[str, Any]:
    found: dict[str, Any] = {"parallel": block.parallel, "scale": block.scale}
    if block.mlp is not None:
        found["act"] = block.mlp.act
    for name in NORMS:
        norm = getattr(block, name)
        if norm is not None:
            found[name] = _norm(norm)
    for name in ("q_norm", "k_norm"):
        norm = getattr(block.attn, name)
        if norm is not None:
            found[name] = _norm(norm)
    return found


def _norm(norm: Norm | HeadNorm) -> dict[str, Any]:
    found = {"kind": norm.kind, "eps": norm.eps}
    return found | {"across": norm.across} if isinstance(norm, HeadNorm) else found


def _plain(value: Any) -> Any:
    """Give a tuple as a list, and what holds members as a dictionary."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _plain(each) for key, each in asdict(value).items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
