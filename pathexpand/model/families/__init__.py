"""Hugging Face checkpoints: one small module a family, found by the configuration's model_type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from pathexpand.errors import ModelError
from pathexpand.model.assembly import Plan, Tensors, assemble
from pathexpand.model.config import Config
from pathexpand.model.families.family import Family
from pathexpand.model.families.settings import Settings
from pathexpand.model.shown import cut, shown
from pathexpand.model.tensors import Stored
from pathexpand.model.weights import Weights

# model_type and the module that reads it.
MODULES = {
    name: name
    for name in (
        *("bert", "bloom", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neo"),
        *("gpt_neox", "llama", "mistral", "olmo2", "opt", "phi", "phi3", "qwen2", "qwen3"),
        *("stablelm", "starcoder2"),
    )
} | {"gemma3": "gemma3_text"}
_DEPTHS = ("num_hidden_layers", "n_layer", "num_layers")
_CHUNK = 2**22  # numbers of two tables that are compared at once


def read_family(raw: Mapping[str, Any], tensors: Mapping[str, Any]) -> tuple[Config, Weights]:
    """Build a model from a Hugging Face configuration and named tensors.

    The tensors are arrays or stand in files. Raises `ModelError`, also for a model_type that is
    not known: no code that comes with a checkpoint is ever run.
    """
    family = family_of(raw)
    settings = Settings(raw)
    named = _named(family, tensors)
    plan = family.plan(settings, named)
    depth = settings.name(*_DEPTHS)
    plan = replace(plan, ignored=family.buffers(), depth=depth)
    return plan.config, assemble(plan, _without_twin(plan, named))


def family_of(raw: Mapping[str, Any]) -> Family:
    """Give the family that reads a configuration; raises `ModelError` if there is none.

    >>> family_of({"model_type": "mamba"})
    Traceback (most recent call last):
    ...
    pathexpand.errors.ModelError: config model_type 'mamba': not supported; known are bert, ...
    """
    kind, known = raw.get("model_type"), f"known are {', '.join(sorted(MODULES))}"
    if kind is None:
        raise ModelError("config", wanted="a value for model_type", got="none", remedy=known)
    if not isinstance(kind, str) or kind not in MODULES:
        raise ModelError(f"config model_type {shown(kind)}: not supported", remedy=known)
    quantised = raw.get("quantization_config")
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
        named = "" if method is None else f" {shown(method)}"
        raise ModelError(
            f"config quantization_config{named}: quantised weights are not supported",
            remedy="use the checkpoint they were made from",
        )
    family: Family = import_module(f"{__name__}.{MODULES[kind]}").FAMILY
    return family


def _named(family: Family, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Give the tensors by their names without prefixes."""
    if not isinstance(tensors, Mapping):
        raise ModelError("weights", wanted="a mapping of names to arrays", got=shown(tensors))
    found: dict[str, Any] = {}
    for stored, tensor in tensors.items():
        if not isinstance(stored, str):
            raise ModelError("weights", wanted="names that are text", got=shown(stored))
        name = family.name(stored)
        if name in found:
            raise ModelError(f"weights: {cut(name)} is there twice, with a prefix and without")
        found[name] = tensor
    return found


def _without_twin(plan: Plan, tensors: Tensors) -> Tensors:
    """Leave out the unembedding where it is the embedding a second time.

    Some files hold both although one matrix serves as both. They are compared: if they differ,
    the configuration and the file contradict each other.
    """
    wanted = {rule.name: rule for rule in plan.rules}
    heads = ("lm_head.weight", "embed_out.weight", "cls.predictions.decoder.weight")
    for head in (name for name in heads if name in tensors and name not in wanted):
        for name in (rule.name for rule in plan.rules if "unembed" in rule.tall):
            if name in tensors and not _same(tensors[name], tensors[head]):
                raise ModelError(
                    f"weights: {head} differs from {name}, but the configuration ties them",
                    remedy="set tie_word_embeddings to false in config.json",
                )
        tensors = {name: tensor for name, tensor in tensors.items() if name != head}
    return tensors


def _same(one: Any, other: Any) -> bool:
    arrays = [
        each.open() if isinstance(each, Stored) else np.asarray(each) for each in (one, other)
    ]
    first, second = arrays
    if first.shape != second.shape or first.ndim != 2:
        return False
    step = max(_CHUNK // max(first.shape[1], 1), 1)
    return all(
        np.array_equal(first[start : start + step], second[start : start + step])
        for start in range(0, len(first), step)
    )
