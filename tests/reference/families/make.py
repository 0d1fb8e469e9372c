"""Write tiny random checkpoints of every architecture family, and what transformers makes of them.

Not a test and not needed by one: it needs torch, safetensors and transformers 5. Run as

    python tests/reference/families/make.py               write every case again
    python tests/reference/families/make.py --only NAME   write one case (may be given repeatedly)
    python tests/reference/families/make.py --check       write nothing; compare with what is stored

`--check` prints a line for each difference and exits 1 when there is any: configurations must be
equal up to the version of transformers, stored tensors equal, golden values equal within 1e-11 of
the largest entry of their tensor.

Every case is a folder. `config.json` and `model.safetensors` (for one case several shards and
`model.safetensors.index.json`) are what `save_pretrained` writes. `golden.safetensors` holds

    tokens       (2, n) int64
    mask         (2, n) bool, only if the case gives one: true for tokens, false for padding
    token_types  (2, n) int64, only if the case gives them
    logits       (2, n, vocab) float64, as the model returns them: capped if the family caps them
    uncapped     (2, n, vocab) float64, before the cap, only if there is one
    pattern.L    (2, heads, n, n) float64, the attention pattern of layer L
    residual.L   (2, n, d_model) float64, `hidden_states[L]`: the stream that layer L reads. The
                 last of them (L = number of layers) comes after the final norm, and for an OPT
                 model with `project_out` after that projection too.

A folder with `same_as.txt` instead of tensors holds another spelling of the configuration of the
case which that file names: what transformers 4 wrote, or a flag that changes nothing but rounding.
This script checks that transformers reads both spellings alike.

Every parameter is random, also the ones that transformers starts at zero or one. The values are
exact in the type they are stored in, and the golden values are computed from them in float64.
transformers casts to float32 in many places (norms, softmax, rotary angles, ALiBi), so everything
runs inside a mode that turns each such cast into one to float64 and refuses any narrower tensor.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.models.falcon import modeling_falcon

FOLDER = Path(__file__).parent
TOLERANCE = 1e-11
VOCAB = 11
Config = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """The names of the classes of transformers, and the sizes of a case that says nothing else."""

    config: str
    model: str
    sizes: Config
    norm_adds_one: bool = False


@dataclass(frozen=True)
class Case:
    """A configuration that differs from its family's sizes in `config`, and a prompt."""

    family: str
    config: Config = field(default_factory=dict)
    length: int = 5
    lengths: tuple[int, int] | None = None
    token_types: bool = False
    dtype: torch.dtype = torch.float32
    base_only: bool = False
    max_shard_size: str = "1GB"


@dataclass(frozen=True)
class Spelling:
    """Another configuration file for the tensors of the case `of`."""

    of: str
    respell: Callable[[Config], Config]


LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 12,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 7,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}
WIDE_HEAD = {**GROUPED, "head_dim": 6}
# Five angles, so that each kind of scaling treats some of them differently from others.
LONG_HEAD = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 10}
FULL, SLIDING = "full_attention", "sliding_attention"


def rope(kind: str = "default", theta: float = 10.0, **others: Any) -> Config:
    """What transformers 5 calls `rope_parameters`."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **others}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "short_factor": [1.0, 1.25, 1.5, 1.75, 2.0],
    "long_factor": [1.5, 2.0, 3.0, 5.0, 8.0],
}

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCAB,
            "n_positions": 7,
            "n_embd": 12,
            "n_layer": 2,
            "n_head": 3,
            "n_inner": 5,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gpt_neo": Family(
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        {
            "vocab_size": VOCAB,
            "max_position_embeddings": 7,
            "hidden_size": 12,
            "num_layers": 2,
            "num_heads": 3,
            "intermediate_size": 5,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 3,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gpt_neox": Family(
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {
            "vocab_size": VOCAB,
            "hidden_size": 12,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 5,
            "max_position_embeddings": 7,
        },
    ),
    "opt": Family(
        "OPTConfig",
        "OPTForCausalLM",
        {
            "vocab_size": VOCAB,
            "hidden_size": 12,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "ffn_dim": 5,
            "max_position_embeddings": 7,
        },
    ),
    "bloom": Family(
        "BloomConfig",
        "BloomForCausalLM",
        {"vocab_size": VOCAB, "hidden_size": 10, "n_layer": 2, "n_head": 5},
    ),
    "llama": Family("LlamaConfig", "LlamaForCausalLM", LLAMA),
    "mistral": Family("MistralConfig", "MistralForCausalLM", LLAMA),
    "qwen2": Family("Qwen2Config", "Qwen2ForCausalLM", LLAMA),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM", {**LLAMA, "head_dim": 6}),
    "gemma": Family(
        "GemmaConfig", "GemmaForCausalLM", {**LLAMA, "head_dim": 6}, norm_adds_one=True
    ),
    "gemma2": Family(
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {**LLAMA, "head_dim": 6, "query_pre_attn_scalar": 5, "sliding_window": 3},
        norm_adds_one=True,
    ),
    "gemma3_text": Family(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**LLAMA, "head_dim": 6, "query_pre_attn_scalar": 5, "sliding_window": 3},
        norm_adds_one=True,
    ),
    "phi": Family("PhiConfig", "PhiForCausalLM", LLAMA),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM", LLAMA),
    "olmo2": Family("Olmo2Config", "Olmo2ForCausalLM", LLAMA),
    "falcon": Family(
        "FalconConfig",
        "FalconForCausalLM",
        {
            "vocab_size": VOCAB,
            "hidden_size": 12,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "ffn_hidden_size": 5,
            "max_position_embeddings": 7,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "stablelm": Family("StableLmConfig", "StableLmForCausalLM", LLAMA),
    "starcoder2": Family("Starcoder2Config", "Starcoder2ForCausalLM", LLAMA),
    "bert": Family(
        "BertConfig",
        "BertForMaskedLM",
        {
            "vocab_size": VOCAB,
            "hidden_size": 12,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 5,
            "max_position_embeddings": 7,
        },
    ),
}

CASES: dict[str, Case] = {
    "gpt2": Case("gpt2", {"n_layer": 3, "n_inner": 7}, length=6),
    "gpt2-inner": Case("gpt2", {"n_embd": 6, "n_head": 2, "n_inner": None}),
    "gpt2-untied": Case("gpt2", {"tie_word_embeddings": False, "activation_function": "relu"}),
    "gpt2-unscaled": Case("gpt2", {"scale_attn_weights": False, "activation_function": "gelu"}),
    "gpt2-silu": Case("gpt2", {"activation_function": "silu", "layer_norm_epsilon": 0.03}),
    "gpt2-by-layer": Case("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2-mask": Case("gpt2", lengths=(5, 3)),
    "gpt2-base": Case("gpt2", {"n_embd": 10, "n_head": 2}, base_only=True),
    "gpt2-float16": Case("gpt2", dtype=torch.float16),
    "gpt_neo": Case(
        "gpt_neo",
        {"attention_types": [[["global", "local"], 1], [["local"], 1]], "num_layers": 3},
        length=6,
    ),
    "gpt_neo-local": Case(
        "gpt_neo",
        {"attention_types": [[["local"], 2]], "window_size": 2, "tie_word_embeddings": False}
        | {"activation_function": "relu", "layer_norm_epsilon": 0.03},
    ),
    "gpt_neo-inner": Case("gpt_neo", {"hidden_size": 6, "num_heads": 2, "intermediate_size": None}),
    "gpt_neox": Case("gpt_neox", {"hidden_size": 16, "num_attention_heads": 2}),
    "gpt_neox-sequential": Case(
        "gpt_neox",
        {"use_parallel_residual": False, "hidden_size": 16, "num_attention_heads": 2}
        | rope(partial_rotary_factor=0.5),
    ),
    "gpt_neox-full-rotary": Case(
        "gpt_neox",
        {"tie_word_embeddings": True, "hidden_act": "gelu_new", "layer_norm_eps": 0.03}
        | rope(theta=100.0, partial_rotary_factor=1.0),
    ),
    "gpt_neox-no-bias": Case(
        "gpt_neox",
        {"attention_bias": False, "hidden_act": "gelu_fast"} | rope(partial_rotary_factor=1.0),
    ),
    "gpt_neox-dynamic": Case(
        "gpt_neox",
        {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 4}
        | rope("dynamic", factor=3.0, partial_rotary_factor=0.75),
    ),
    "opt": Case("opt", {"ffn_dim": 7}, length=6),
    "opt-350m": Case("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 7}),
    "opt-post-norm": Case("opt", {"do_layer_norm_before": False, "activation_function": "gelu"}),
    "opt-no-bias": Case("opt", {"enable_bias": False}),
    "opt-no-affine": Case("opt", {"layer_norm_elementwise_affine": False}),
    "opt-no-final-norm": Case("opt", {"_remove_final_layer_norm": True, "word_embed_proj_dim": 7}),
    "opt-untied": Case(
        "opt",
        {"tie_word_embeddings": False, "word_embed_proj_dim": 17, "hidden_size": 10}
        | {"num_attention_heads": 2},
    ),
    "opt-mask": Case("opt", lengths=(3, 5)),
    "bloom": Case("bloom"),
    "bloom-post-norm": Case(
        "bloom",
        {"apply_residual_connection_post_layernorm": True, "hidden_size": 6, "n_head": 2}
        | {"tie_word_embeddings": False, "layer_norm_epsilon": 0.03},
    ),
    "bloom-six-heads": Case("bloom", {"hidden_size": 6, "n_head": 6}),
    "bloom-mask": Case("bloom", {"hidden_size": 9, "n_head": 3}, lengths=(3, 5)),
    "llama": Case("llama", {**WIDE_HEAD, "num_hidden_layers": 3}, length=6),
    "llama-bias": Case(
        "llama",
        {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 0.03} | rope(theta=100.0),
    ),
    "llama-tied": Case("llama", {"tie_word_embeddings": True, "hidden_act": "gelu"}),
    "llama-ungrouped": Case("llama", {"num_key_value_heads": None, "hidden_act": "relu2"}),
    "llama-linear": Case("llama", LONG_HEAD | rope("linear", factor=3.0)),
    "llama-dynamic": Case(
        "llama", {**LONG_HEAD, "max_position_embeddings": 4} | rope("dynamic", factor=3.0)
    ),
    "llama-dynamic-short": Case("llama", LONG_HEAD | rope("dynamic", factor=3.0)),
    "llama-yarn": Case(
        "llama", {**LONG_HEAD, "max_position_embeddings": 2048} | rope("yarn", **YARN)
    ),
    "llama-yarn-beta": Case(
        "llama",
        {**LONG_HEAD, "max_position_embeddings": 128}
        | rope(
            "yarn",
            factor=2.0,
            original_max_position_embeddings=64,
            attention_factor=1.3,
            beta_fast=4.0,
            beta_slow=1.5,
            truncate=False,
        ),
    ),
    "llama-yarn-mscale": Case(
        "llama",
        {**LONG_HEAD, "max_position_embeddings": 2048}
        | rope("yarn", **YARN, mscale=1.5, mscale_all_dim=0.7),
    ),
    "llama-longrope": Case(
        "llama",
        {**LONG_HEAD, "max_position_embeddings": 8}
        | rope("longrope", **LONGROPE, factor=2.0, original_max_position_embeddings=4),
    ),
    "llama-longrope-short": Case(
        "llama",
        {**LONG_HEAD, "max_position_embeddings": 16}
        | rope("longrope", **LONGROPE, attention_factor=1.2, original_max_position_embeddings=8),
    ),
    "llama-llama3": Case(
        "llama", {**LONG_HEAD, "max_position_embeddings": 256} | rope("llama3", **LLAMA3)
    ),
    "llama-bfloat16": Case("llama", dtype=torch.bfloat16),
    "llama-sharded": Case("llama", max_shard_size="3KB"),
    "llama-mask": Case("llama", lengths=(5, 2)),
    "mistral": Case("mistral", {**WIDE_HEAD, "sliding_window": 3}, length=6),
    "mistral-full": Case(
        "mistral",
        {"sliding_window": None, "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"}
        | rope(theta=100.0),
    ),
    "qwen2": Case("qwen2", {**GROUPED, "hidden_size": 16}),
    "qwen2-sliding": Case(
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 1}
        | {"num_hidden_layers": 3, "tie_word_embeddings": True},
    ),
    "qwen2-layer-types": Case(
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 3, "layer_types": [SLIDING, FULL]}
        | {"max_position_embeddings": 2048}
        | rope("yarn", **YARN),
    ),
    "qwen3": Case("qwen3", WIDE_HEAD),
    "qwen3-sliding": Case(
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 1}
        | {"attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 0.03},
    ),
    "gemma": Case("gemma", GROUPED, length=6),
    "gemma-bias": Case(
        "gemma",
        {"attention_bias": True, "hidden_act": "relu", "tie_word_embeddings": False}
        | {"rms_norm_eps": 0.03},
    ),
    "gemma2": Case(
        "gemma2",
        {**GROUPED, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        length=6,
    ),
    "gemma2-uncapped": Case(
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None}
        | {"layer_types": [FULL, SLIDING], "attention_bias": True, "tie_word_embeddings": False}
        | {"hidden_activation": "gelu"},
    ),
    "gemma3_text": Case(
        "gemma3_text",
        {
            **GROUPED,
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, SLIDING, FULL],
            "rope_parameters": {
                SLIDING: {"rope_type": "default", "rope_theta": 10.0},
                FULL: {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
        length=6,
    ),
    "gemma3_text-linear": Case(
        "gemma3_text",
        {
            "layer_types": [FULL, SLIDING],
            "rope_parameters": {
                SLIDING: {"rope_type": "default", "rope_theta": 10.0},
                FULL: {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0},
            },
            "final_logit_softcapping": 3.0,
            "attn_logit_softcapping": 2.0,
            "attention_bias": True,
        },
    ),
    "gemma3_text-bidirectional": Case(
        "gemma3_text",
        {"use_bidirectional_attention": True, "sliding_window": 4, "layer_types": [FULL, SLIDING]},
    ),
    "phi": Case("phi", {"num_key_value_heads": None}),
    "phi-qk-norm": Case("phi", {"qk_layernorm": True, "hidden_act": "relu"}),
    "phi-grouped": Case(
        "phi",
        {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
        | {"tie_word_embeddings": True, "layer_norm_eps": 0.03}
        | rope(theta=100.0, partial_rotary_factor=1.0),
    ),
    "phi3": Case("phi3", {**GROUPED, "hidden_size": 16}),
    "phi3-longrope": Case(
        "phi3",
        {"num_attention_heads": 2, "max_position_embeddings": 8}
        | {"original_max_position_embeddings": 4}
        | rope("longrope", short_factor=[1.0, 1.5, 2.0], long_factor=[1.5, 3.0, 8.0]),
    ),
    "phi3-longrope-short": Case(
        "phi3",
        {"num_attention_heads": 2, "max_position_embeddings": 32}
        | {"original_max_position_embeddings": 8}
        | rope("longrope", short_factor=[1.0, 1.5, 2.0], long_factor=[1.5, 3.0, 8.0]),
    ),
    "phi3-partial": Case("phi3", {"tie_word_embeddings": True} | rope(partial_rotary_factor=0.5)),
    "phi3-sliding": Case("phi3", {"sliding_window": 2, "hidden_act": "gelu", "rms_norm_eps": 0.03}),
    "olmo2": Case("olmo2", {**GROUPED, "hidden_size": 16}),
    "olmo2-bias": Case(
        "olmo2",
        {"attention_bias": True, "tie_word_embeddings": True, "hidden_act": "gelu_new"}
        | rope("linear", factor=2.0),
    ),
    "falcon": Case("falcon"),
    "falcon-grouped": Case(
        "falcon",
        {"new_decoder_architecture": True, "hidden_size": 16, "num_attention_heads": 4}
        | {"num_kv_heads": 2},
    ),
    "falcon-one-norm": Case(
        "falcon",
        {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "num_kv_heads": 2}
        | {"hidden_size": 8, "num_attention_heads": 4}
        | {"tie_word_embeddings": False, "layer_norm_epsilon": 0.03},
    ),
    "falcon-alibi": Case(
        "falcon", {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}
    ),
    "falcon-sequential": Case("falcon", {"parallel_attn": False, "activation": "relu"}),
    "falcon-separate": Case("falcon", {"multi_query": False, "bias": True, **rope(theta=100.0)}),
    "stablelm": Case("stablelm", {"hidden_size": 16, "num_attention_heads": 2}),
    "stablelm-bias": Case(
        "stablelm",
        {"use_qkv_bias": True, "tie_word_embeddings": True, "hidden_act": "relu"}
        | rope(partial_rotary_factor=0.5),
    ),
    "stablelm-qk-norm": Case(
        "stablelm",
        {"qk_layernorm": True, "hidden_size": 16, "num_attention_heads": 4}
        | {"num_key_value_heads": 2, "layer_norm_eps": 0.03}
        | rope(partial_rotary_factor=1.0),
    ),
    "stablelm-parallel": Case(
        "stablelm", {"use_parallel_residual": True, **rope(partial_rotary_factor=1.0)}
    ),
    "starcoder2": Case("starcoder2", {**GROUPED, "hidden_size": 16}),
    "starcoder2-sliding": Case(
        "starcoder2", {"sliding_window": 2, "norm_epsilon": 0.03, **rope(theta=100.0)}
    ),
    "starcoder2-no-bias": Case(
        "starcoder2", {"use_bias": False, "tie_word_embeddings": False, "hidden_act": "gelu"}
    ),
    "bert": Case("bert", {"type_vocab_size": 3}, length=6, token_types=True),
    "bert-mask": Case("bert", {"hidden_act": "relu"}, lengths=(5, 3), token_types=True),
    "bert-untied": Case(
        "bert", {"tie_word_embeddings": False, "hidden_act": "gelu_new", "layer_norm_eps": 0.03}
    ),
    "bert-decoder": Case("bert", {"is_decoder": True}),
}


def without(config: Config, *keys: str) -> Config:
    return {key: value for key, value in config.items() if key not in keys}


def defaults(config: Config) -> Any:
    """The class of a configuration, whose attributes are the defaults."""
    return getattr(transformers, FAMILIES[config["model_type"]].config)


def v4(config: Config) -> Config:
    """What every file of transformers 4 has in another place, or leaves out as the default."""
    newer = ("dtype", "rope_parameters", "layer_types", "use_bidirectional_attention")
    old = without(config, *newer, "_sliding_window_pattern")
    old |= {"torch_dtype": config["dtype"], "transformers_version": "4.50.0"}
    if old.get("tie_word_embeddings") == defaults(config).tie_word_embeddings is True:
        del old["tie_word_embeddings"]
    if old.get("pad_token_id") is defaults(config).pad_token_id is None:
        old.pop("pad_token_id", None)
    return old


def v4_rope(config: Config) -> Config:
    """Old rotary settings: the base at the top, the rest in `rope_scaling`, which may be null."""
    scaling = dict(config["rope_parameters"])
    old = v4(config) | {"rope_theta": scaling.pop("rope_theta")}
    if "partial_rotary_factor" in scaling:
        old["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    return old | {"rope_scaling": None if scaling["rope_type"] == "default" else scaling}


def v4_typed(config: Config) -> Config:
    """Older still: the kind of scaling is called `type`, and the original length is not in it."""
    old = v4_rope(config)
    scaling = without(old["rope_scaling"], "rope_type", "original_max_position_embeddings")
    return old | {"rope_scaling": {**scaling, "type": old["rope_scaling"]["rope_type"]}}


def v4_llama(config: Config) -> Config:
    """As before `head_dim` and `mlp_bias` were settings of a Llama."""
    return without(v4_rope(config), "head_dim", "mlp_bias")


def v4_gemma2(config: Config) -> Config:
    """Both names of the activation, and the pattern of windows left to the code."""
    old = v4_rope(config)
    return without(old, "rope_scaling") | {
        "hidden_act": old["hidden_activation"],
        "cache_implementation": "hybrid",
    }


def v4_gemma3(config: Config) -> Config:
    """Two bases, and a scaling that is about the full layers only."""
    both = config["rope_parameters"]
    full = without(both[FULL], "rope_theta")
    return v4(config) | {
        "rope_theta": both[FULL]["rope_theta"],
        "rope_local_base_freq": both[SLIDING]["rope_theta"],
        "rope_scaling": None if full["rope_type"] == "default" else full,
        "sliding_window_pattern": config["layer_types"].index(FULL) + 1,
    }


def v4_neox(config: Config) -> Config:
    """The file of a Pythia, from before there was a setting for biases."""
    parameters = config["rope_parameters"]
    return without(v4(config), "attention_bias", "is_decoder") | {
        "rotary_emb_base": parameters["rope_theta"],
        "rotary_pct": parameters["partial_rotary_factor"],
    }


def old_bloom(config: Config) -> Config:
    """The published BLOOM files call two sizes differently."""
    return without(v4(config), "hidden_size", "n_head") | {
        "n_embed": config["hidden_size"],
        "num_attention_heads": config["n_head"],
    }


# `reorder_and_upcast_attn` only says in which order and in which type the scores are rounded, and
# `hidden_act: gelu` of a Gemma means the approximation by tanh.
#
# The files were also given to transformers 4.46.3 and 4.57.1 themselves. Both agree with the golden
# values as far as float32 goes, but for the yarn scaling, the partial rotary of Phi-3, the windows
# of Qwen2 and Gemma 3, which only 4.57.1 knows in this form, and for the `gelu` of Gemma, which
# 4.57.1 alone takes at its word.
SPELLINGS: dict[str, Spelling] = {
    "gpt2-reorder": Spelling("gpt2-by-layer", lambda old: old | {"reorder_and_upcast_attn": True}),
    "gpt_neox-v4": Spelling("gpt_neox", v4_neox),
    "gpt_neox-sequential-v4": Spelling("gpt_neox-sequential", v4_neox),
    "bloom-v4": Spelling("bloom", old_bloom),
    "llama-v4": Spelling("llama-ungrouped", v4_llama),
    "llama-wide-head-v4": Spelling("llama", v4_rope),
    "llama-llama3-v4": Spelling("llama-llama3", v4_rope),
    "llama-linear-v4": Spelling("llama-linear", v4_typed),
    "llama-yarn-v4": Spelling("llama-yarn", v4_rope),
    "mistral-v4": Spelling("mistral", lambda new: without(v4_rope(new), "rope_scaling")),
    "qwen2-sliding-v4": Spelling("qwen2-sliding", v4_rope),
    "gemma-v4": Spelling("gemma", lambda new: v4_rope(new) | {"hidden_act": "gelu"}),
    "gemma2-v4": Spelling("gemma2", v4_gemma2),
    "gemma3_text-v4": Spelling("gemma3_text", v4_gemma3),
    "phi-v4": Spelling("phi", v4_rope),
    "phi3-v4": Spelling("phi3", v4_rope),
    "phi3-longrope-v4": Spelling("phi3-longrope", v4_typed),
    "phi3-partial-v4": Spelling("phi3-partial", v4_rope),
    "stablelm-v4": Spelling("stablelm", v4_rope),
}


class Float64(TorchFunctionMode):
    """Wherever torch is asked for a narrower floating type, give it float64."""

    NARROW = (torch.float32, torch.float16, torch.bfloat16)
    CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in self.CASTS:
            return args[0].double()
        wide = {key: self._widen(value) for key, value in (kwargs or {}).items()}
        result = func(*map(self._widen, args), **wide)
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor) and value.dtype in self.NARROW:
                raise TypeError(f"{func} has made a tensor of {value.dtype}")
        return result

    def _widen(self, value: Any) -> Any:
        narrow = isinstance(value, torch.dtype) and value in self.NARROW
        return torch.float64 if narrow else value


@contextmanager
def in_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64(), torch.no_grad(), patch.object(modeling_falcon, *HALF_ALIBI):
            yield
    finally:
        torch.set_default_dtype(before)


def half_alibi(*args: Any, **kwargs: Any) -> Tensor:
    """Falcon's eager attention adds ALiBi twice, once with the mask; its other kinds, once."""
    slopes: Tensor = whole_alibi(*args, **kwargs)
    return slopes / 2


whole_alibi = modeling_falcon.build_alibi_tensor
HALF_ALIBI = ("build_alibi_tensor", half_alibi)


def generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def normal(shape: torch.Size, random: torch.Generator) -> Tensor:
    return 0.3 * torch.randn(shape, generator=random, dtype=torch.float64)


@torch.no_grad()
def randomise(
    model: nn.Module, family: Family, dtype: torch.dtype, random: torch.Generator
) -> None:
    """Give every parameter a random value that is exact in `dtype`."""
    done: set[int] = set()
    for module in model.modules():
        scale = "Norm" in type(module).__name__ and not family.norm_adds_one
        for name, parameter in module.named_parameters(recurse=False):
            # Tied parameters are met once under each of their names.
            if id(parameter) in done:
                continue
            done.add(id(parameter))
            value = normal(parameter.shape, random) + (1 if scale and name == "weight" else 0)
            parameter.copy_(value.to(dtype).double())


def build(config: transformers.PreTrainedConfig, family: Family) -> nn.Module:
    config._attn_implementation = "eager"
    model: nn.Module = getattr(transformers, family.model)(config)
    return model.double().eval()


def prompt(case: Case, vocab: int, random: torch.Generator) -> dict[str, Tensor]:
    """Two rows of distinct tokens, with the mask and the token types that the case asks for."""
    rows = [torch.randperm(vocab, generator=random)[: case.length] for _ in range(2)]
    given = {"tokens": torch.stack(rows)}
    if case.lengths is not None:
        given["mask"] = torch.arange(case.length) < torch.tensor(case.lengths)[:, None]
    if case.token_types:
        given["token_types"] = torch.randint(2, (2, case.length), generator=random)
    return given


def golden(model: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the model makes of the prompt."""
    kept: list[Tensor] = []
    head = model.get_output_embeddings()
    hook = head.register_forward_hook(lambda _, __, output: kept.append(output))
    with torch.autocast("cpu", enabled=False):
        output = model(
            input_ids=given["tokens"],
            attention_mask=given["mask"].long() if "mask" in given else None,
            output_attentions=True,
            output_hidden_states=True,
            use_cache=False,
            **({"token_type_ids": given["token_types"]} if "token_types" in given else {}),
        )
    hook.remove()
    found = {**given, "logits": output.logits}
    if not torch.equal(kept[0], output.logits):
        found["uncapped"] = kept[0]
    found |= {f"pattern.{layer}": value for layer, value in enumerate(output.attentions)}
    found |= {f"residual.{layer}": value for layer, value in enumerate(output.hidden_states)}
    for name, value in found.items():
        assert value.dtype in (torch.float64, torch.int64, torch.bool), (name, value.dtype)
        assert not value.is_floating_point() or value.isfinite().all(), name
    return {name: value.detach().contiguous() for name, value in found.items()}


def make_case(name: str, case: Case, folder: Path) -> None:
    """Write the checkpoint and the golden file of one case."""
    family, random = FAMILIES[case.family], generator(name)
    with in_float64():
        config = getattr(transformers, family.config)(**{**family.sizes, **case.config})
        model = build(config, family)
    randomise(model, family, case.dtype, random)  # rounds, as nothing in float64 does
    with in_float64():
        found = golden(model, prompt(case, config.vocab_size, random))
    saved = (model.base_model if case.base_only else model).to(case.dtype)
    saved.save_pretrained(folder, max_shard_size=case.max_shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_file(found, folder / "golden.safetensors")
    for file in folder.iterdir():
        file.chmod(0o644)


def make_spelling(spelling: Spelling, folder: Path, made: Path) -> None:
    """Write another spelling of a configuration, checking that it gives the same model."""
    original = made / spelling.of
    respelled = spelling.respell(json.loads((original / "config.json").read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(respelled, indent=2, sort_keys=True) + "\n")
    (folder / "same_as.txt").write_text(spelling.of + "\n")
    if respelled.get("reorder_and_upcast_attn"):
        return  # it insists on float32, see above SPELLINGS
    case = CASES[spelling.of]
    family = FAMILIES[case.family]
    stored = load_file(original / "golden.safetensors")
    with in_float64():
        model = build(getattr(transformers, family.config).from_pretrained(folder), family)
    randomise(model, family, case.dtype, generator(spelling.of))
    with in_float64():
        given = {key: stored[key] for key in ("tokens", "mask", "token_types") if key in stored}
        differing = compare_tensors(golden(model, given), stored, TOLERANCE)
    assert not differing, (folder.name, differing)


def make(names: list[str], into: Path) -> None:
    """Write the named cases into a folder; a spelling finds its case there or among the stored."""
    for name in names:
        folder = into / name
        shutil.rmtree(folder, ignore_errors=True)
        if name in CASES:
            make_case(name, CASES[name], folder)
        else:
            of = SPELLINGS[name].of
            make_spelling(SPELLINGS[name], folder, into if (into / of).exists() else FOLDER)


def compare_tensors(new: dict[str, Tensor], old: dict[str, Tensor], tolerance: float) -> list[str]:
    """Say how two sets of tensors differ."""
    lines = [f"{key}: only in one of them" for key in sorted(new.keys() ^ old.keys())]
    for key in sorted(new.keys() & old.keys()):
        a, b = new[key], old[key]
        if a.dtype != b.dtype or a.shape != b.shape:
            lines.append(f"{key}: {a.dtype} {tuple(a.shape)} for {b.dtype} {tuple(b.shape)}")
        elif not torch.equal(a, b):
            apart = (a.double() - b.double()).abs().max() / b.double().abs().max()
            if not apart <= tolerance:
                lines.append(f"{key}: apart by {apart:.1e} of the largest entry")
    return lines


def read_text(path: Path) -> Any:
    """The content of a text file; of a JSON file, all but the version of transformers."""
    if path.suffix != ".json":
        return path.read_text()
    return without(json.loads(path.read_text()), "transformers_version")


def compare_folders(new: Path, old: Path) -> list[str]:
    """Say how two folders of one case differ."""
    files = {path.name for folder in (new, old) for path in folder.glob("*")}
    lines = []
    for file in sorted(files):
        a, b = new / file, old / file
        if not (a.exists() and b.exists()):
            lines.append(f"{file}: only in the {'new' if a.exists() else 'stored'} folder")
        elif a.suffix == ".safetensors":
            tolerance = TOLERANCE if file == "golden.safetensors" else 0.0
            lines += [
                f"{file}: {line}" for line in compare_tensors(load_file(a), load_file(b), tolerance)
            ]
        elif read_text(a) != read_text(b):
            lines.append(f"{file}: differs")
    return [f"{new.name}: {line}" for line in lines]


def check(names: list[str]) -> list[str]:
    """Make the named cases elsewhere and say how they differ from the stored ones."""
    with tempfile.TemporaryDirectory() as elsewhere:
        make(names, Path(elsewhere))
        lines = [
            line
            for name in names
            for line in compare_folders(Path(elsewhere) / name, FOLDER / name)
        ]
    known = {*CASES, *SPELLINGS}
    stored = [path.parent.name for path in FOLDER.glob("*/config.json")]
    return lines + [f"{name}: not a case" for name in sorted(stored) if name not in known]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the stored files")
    parser.add_argument("--only", action="append", metavar="NAME", help="this case only")
    options = parser.parse_args()
    names = options.only or [*CASES, *SPELLINGS]
    unknown = [name for name in names if name not in CASES and name not in SPELLINGS]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if not options.check:
        make(names, FOLDER)
        return 0
    lines = check(names)
    print("\n".join(lines) or f"{len(names)} cases as stored")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
