"""Write what TransformerLens' own HookedTransformer makes of small random models.

Not a test and not needed by one: it needs torch, transformer-lens (below 4) and numpy. Run as
`python tests/reference/make_transformer_lens.py`; it rewrites the folder transformer_lens.

Every case is a folder: `config.json`, the plain JSON part of `HookedTransformerConfig.to_dict()`;
`model.safetensors`, the whole `state_dict()`; `expected.safetensors`, the tokens, the mask where
one was given, and what the model made of them. The folder transformer_lens has attention-only
models without norms, transformer_lens_whole all others. `refused.json` holds models that cannot be
read: what sets their configuration apart from a plain attention-only one, and the shapes of their
tensors.
"""

import json
import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from safetensors.torch import save_file
from transformer_lens import HookedTransformer, HookedTransformerConfig

FOLDER = Path(__file__).parent / "transformer_lens"
WHOLE_FOLDER = Path(__file__).parent / "transformer_lens_whole"
SIZES = {"n_heads": 3, "d_model": 11, "d_head": 5, "d_vocab": 13, "n_ctx": 9, "d_vocab_out": 17}
NARROW = {"n_heads": 2, "d_model": 13, "d_head": 3, "d_vocab": 7, "n_ctx": 5, "d_vocab_out": 11}
WIDE = {"n_heads": 3, "d_model": 5, "d_head": 2, "d_vocab": 7, "n_ctx": 6}
LEFT = [[0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]]
SCATTERED = [[1, 1, 0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 1, 1, 0, 0]]
SHORTFORMER = {"positional_embedding_type": "shortformer"}
BIDIRECTIONAL = {"attention_dir": "bidirectional"}

# name: configuration, and the number of positions or a mask. TransformerLens applies a padding mask
# only together with the causal one, so no bidirectional case has a mask.
CASES: dict[str, tuple[dict[str, Any], int | list[list[int]]]] = {
    "zero-layers": ({"n_layers": 0, **SIZES}, 4),
    "zero-layers-shortformer": ({"n_layers": 0, **SIZES, **SHORTFORMER}, 4),
    "one-layer": ({"n_layers": 1, **SIZES}, 9),
    "two-layers-shortformer": ({"n_layers": 2, **NARROW, **SHORTFORMER}, 5),
    "three-layers": ({"n_layers": 3, **NARROW}, 5),
    "bidirectional": ({"n_layers": 2, **NARROW, **BIDIRECTIONAL}, 5),
    "bidirectional-shortformer": ({"n_layers": 3, **WIDE, **BIDIRECTIONAL, **SHORTFORMER}, 6),
    "own-scale": ({"n_layers": 2, **WIDE, "attn_scale": 0.7}, 6),
    "no-scale": ({"n_layers": 2, **WIDE, "use_attn_scale": False}, 6),
    "scale-by-layer": ({"n_layers": 3, **NARROW, "scale_attn_by_inverse_layer_idx": True}, 5),
    "own-scale-by-layer": (
        {"n_layers": 2, **WIDE, "attn_scale": 1.9, "scale_attn_by_inverse_layer_idx": True},
        6,
    ),
    "no-scale-by-layer": (
        {"n_layers": 2, **WIDE, "use_attn_scale": False, "scale_attn_by_inverse_layer_idx": True},
        6,
    ),
    "split-inputs": (
        {"n_layers": 2, **NARROW, "use_split_qkv_input": True, "use_attn_result": True},
        5,
    ),
    "left-padding": ({"n_layers": 2, **NARROW}, LEFT),
    "left-padding-shortformer": ({"n_layers": 2, **NARROW, **SHORTFORMER}, LEFT),
    "scattered-padding": ({"n_layers": 2, **WIDE}, SCATTERED),
}
# Models with norms, MLPs and the rest. Slopes and angles that TransformerLens computes in float32
# are chosen so that they are exact there.
SMALL = {"n_layers": 2, "n_heads": 4, "d_model": 7, "d_head": 6, "d_vocab": 5, "n_ctx": 7}
GPT = {**SMALL, "attn_only": False, "normalization_type": "LN", "d_mlp": 11, "act_fn": "gelu"}
LLAMA = {
    **GPT,
    "normalization_type": "RMS",
    "act_fn": "silu",
    "gated_mlp": True,
    "eps": 0.03,
    "n_key_value_heads": 2,
    "positional_embedding_type": "rotary",
    "rotary_base": 16.0,
}
LOCAL = {"use_local_attn": True, "window_size": 3, "attn_types": ["local", "global"]}
PARTS = {
    "use_NTK_by_parts_rope": True,
    "NTK_by_parts_factor": 8.0,
    "NTK_original_ctx_len": 32,
    "rotary_dim": 4,
    "rotary_base": 256.0,
}
YARN = {
    "use_yarn_rope": True,
    "yarn_factor": 4.0,
    "yarn_attention_factor": 1.2,
    "n_layers": 3,
    "yarn_original_max_position_embeddings": 64,
    "yarn_beta_fast": 8.0,
    "yarn_truncate": False,
    "yarn_global_attn_only": True,
    **LOCAL,
    "attn_types": ["global", "local", "global"],
}
WHOLE: dict[str, tuple[dict[str, Any], int | list[list[int]]]] = {
    "layer-norm": (GPT, 7),
    "layer-norm-folded": ({**GPT, "normalization_type": "LNPre", "act_fn": "relu"}, 7),
    "rms-norm-folded": ({**GPT, "normalization_type": "RMSPre", "act_fn": "gelu_fast"}, 7),
    "no-norm": ({**GPT, "normalization_type": None, "act_fn": "relu2"}, 7),
    "norm-without-mlp": ({**SMALL, "normalization_type": "LN", "eps": 0.03}, 7),
    "final-rms": ({**GPT, "final_rms": True, "act_fn": "gelu_new"}, 7),
    "parallel-adjacent": (
        {**GPT, "parallel_attn_mlp": True, "positional_embedding_type": "rotary"}
        | {"rotary_dim": 4, "rotary_adjacent_pairs": True, "act_fn": "gelu_new"},
        7,
    ),
    "local": ({**GPT, **LOCAL, "use_attn_scale": False}, 7),
    "llama": (LLAMA, 7),
    "llama-left-padding": (LLAMA, LEFT),
    "one-key-value-head": ({**LLAMA, "n_key_value_heads": 1, "n_heads": 3}, 7),
    "query-key-norm": ({**LLAMA, "use_qk_norm": True, "n_key_value_heads": None}, 7),
    "before-and-after": (
        {**LLAMA, **LOCAL, "use_normalization_before_and_after": True, "rotary_base_local": 4.0}
        | {"attn_scores_soft_cap": 0.7, "output_logits_soft_cap": 1.3, "rotary_scaling_factor": 2.0}
        | {"act_fn": "gelu_pytorch_tanh"},
        7,
    ),
    "by-parts": ({**LLAMA, **PARTS}, 7),
    "yarn": ({**LLAMA, **YARN, "rotary_base": 1e4}, 7),
    "after-alone": (
        {**LLAMA, "original_architecture": "Olmo2ForCausalLM", "n_key_value_heads": 2}
        | {"d_head": 3, "d_model": 12, "rotary_dim": 2},
        7,
    ),
    "alibi": ({**GPT, "positional_embedding_type": "alibi", "post_embedding_ln": True}, 7),
    "sinks": ({**LLAMA, "use_attention_sinks": True}, 7),
    "shortformer": ({**GPT, **SHORTFORMER, "d_vocab_out": 3}, 7),
    "bidirectional": ({**GPT, **BIDIRECTIONAL, "act_fn": "silu"}, 7),
}
# Models that cannot be read, each with the setting that a refusal should name.
REFUSED: dict[str, dict[str, Any]] = {
    "clip_qkv": {"clip_qkv": 0.5},
    "use_logn_attn": {"use_logn_attn": True, "train_seq_length": 4},
    "use_dynamic_ntk_rope": {
        "use_dynamic_ntk_rope": True,
        "train_seq_length": 4,
        "positional_embedding_type": "rotary",
        "rotary_dim": 4,
    },
    "act_fn 'solu_ln'": {
        "attn_only": False,
        "act_fn": "solu_ln",
        "d_mlp": 7,
        "normalization_type": "LN",
    },
    "act_fn 'solu'": {"attn_only": False, "act_fn": "solu", "d_mlp": 7},
    "act_fn 'xielu'": {"attn_only": False, "act_fn": "xielu", "d_mlp": 7},
    "num_experts": {
        "attn_only": False,
        "act_fn": "silu",
        "d_mlp": 7,
        "gated_mlp": True,
        "num_experts": 2,
        "experts_per_token": 1,
    },
    "post_embedding_ln": {"post_embedding_ln": True},
}


MATRICES = ("W_Q", "W_K", "W_V", "W_O", "W_U", "W_in", "W_out", "W_gate")


def build(settings: dict[str, Any]) -> HookedTransformer:
    """Build a float64 model, attention-only unless the settings say otherwise."""
    plain = {"attn_only": True, "normalization_type": None, "dtype": torch.float64}
    config = HookedTransformerConfig(**{**plain, "device": "cpu", "seed": 1, **settings})
    return HookedTransformer(config).eval()


def draw(model: HookedTransformer, seed: int) -> None:
    """Draw every weight and bias: none is zero, and scores are of the order of one."""
    generator = np.random.default_rng(seed)
    for name, parameter in sorted(model.named_parameters()):
        last = name.rpartition(".")[2]
        size = 0.8 / parameter.shape[-2] ** 0.5 if last.lstrip("_") in MATRICES else 0.6
        values = generator.normal(size=tuple(parameter.shape)) * size
        values = 1 + values / 2 if last == "w" else values  # the weight of a norm
        parameter.data.copy_(torch.from_numpy(values))


def plain_json(config: dict[str, Any]) -> dict[str, Any]:
    """Keep what JSON can hold (the dtype is all that it cannot)."""
    kinds = (bool, int, float, str, list, type(None))
    return {key: value for key, value in config.items() if isinstance(value, kinds)}


def write_case(
    folder: Path, name: str, settings: dict[str, Any], shape: int | list[list[int]]
) -> None:
    """Run one model on a batch of two and write its folder."""
    seed = sum(name.encode())
    model = build(settings)
    draw(model, seed)
    mask = None if isinstance(shape, int) else torch.tensor(shape)
    length = shape if isinstance(shape, int) else len(shape[0])
    drawn = np.random.default_rng(seed + 1).integers(0, model.cfg.d_vocab, size=(2, length))
    tokens = torch.from_numpy(drawn)
    options = {"prepend_bos": False, "attention_mask": mask}
    with torch.no_grad():
        stream = model.input_to_embed(tokens, **options)[0]
        logits, cache = model.run_with_cache(tokens, **options)
    expected = {"tokens": tokens, "stream": stream, "logits": logits}
    if mask is not None:
        expected["mask"] = mask
    for layer in range(model.cfg.n_layers):
        for hook in (f"blocks.{layer}.attn.hook_pattern", f"blocks.{layer}.hook_resid_post"):
            expected[hook] = cache[hook]
    folder = folder / name
    folder.mkdir(parents=True)
    for file, tensors in (("model", model.state_dict()), ("expected", expected)):
        whole = {key: tensor.contiguous() for key, tensor in tensors.items()}
        save_file(whole, folder / f"{file}.safetensors")
    write_json(folder / "config.json", plain_json(model.cfg.to_dict()))


def refused() -> dict[str, Any]:
    """Give the models that cannot be read yet, by the setting to name."""
    sizes = {"n_layers": 1, **SIZES, "d_head": 4}
    usual = plain_json(build(sizes).cfg.to_dict())
    found: dict[str, Any] = {"": {"config": usual, "shapes": shapes(build(sizes))}}
    for name, settings in REFUSED.items():
        model = build({**sizes, **settings})
        config = plain_json(model.cfg.to_dict())
        apart = {key: value for key, value in config.items() if value != usual.get(key, ...)}
        found[name] = {"config": apart, "shapes": shapes(model)}
    return found


def shapes(model: HookedTransformer) -> dict[str, list[int]]:
    """Give the shape of every tensor of a model, buffers included."""
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}


def write_json(file: Path, content: object) -> None:
    """Write readable JSON."""
    file.write_text(json.dumps(content) + "\n", encoding="utf-8")


def main() -> None:
    """Write everything anew."""
    for folder, cases in ((FOLDER, CASES), (WHOLE_FOLDER, WHOLE)):
        shutil.rmtree(folder, ignore_errors=True)
        for name, (settings, shape) in cases.items():
            write_case(folder, name, settings, shape)
    write_json(FOLDER / "refused.json", refused())
    versions = {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "torch": torch.__version__,
        "transformer-lens": version("transformer-lens"),
    }
    write_json(FOLDER / "versions.json", versions)


if __name__ == "__main__":
    main()
