"""Write what TransformerLens' own HookedTransformer makes of small random models.

Not a test and not needed by one: it needs torch, transformer-lens (below 4) and numpy. Run as
`python tests/reference/make_transformer_lens.py`; it rewrites the folder transformer_lens.

Every case is a folder: `config.json`, the plain JSON part of `HookedTransformerConfig.to_dict()`;
`model.safetensors`, the whole `state_dict()`; `expected.safetensors`, the tokens, the mask where
one was given, and what the model made of them. `refused.json` holds models of other kinds: what
sets their configuration apart from a plain attention-only one, and the shapes of their tensors.
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
# Models that cannot be read yet, each with the setting that a refusal should name.
REFUSED: dict[str, dict[str, Any]] = {
    "normalization_type": {"normalization_type": "LN"},
    "normalization_type LNPre": {"normalization_type": "LNPre"},
    "normalization_type RMS": {"normalization_type": "RMS"},
    "attn_only": {"attn_only": False, "act_fn": "relu"},
    "positional_embedding_type": {"positional_embedding_type": "rotary", "rotary_dim": 4},
    "positional_embedding_type alibi": {"positional_embedding_type": "alibi"},
    "n_key_value_heads": {"n_heads": 4, "n_key_value_heads": 2},
    "blocks.0.attn._W_K is not known": {"n_key_value_heads": 3},
    "use_local_attn": {"use_local_attn": True, "window_size": 2, "attn_types": ["local"]},
    "attn_scores_soft_cap": {"attn_scores_soft_cap": 5.0},
    "output_logits_soft_cap": {"output_logits_soft_cap": 5.0},
    "use_qk_norm": {"use_qk_norm": True},
    "post_embedding_ln": {"post_embedding_ln": True},
    "use_attention_sinks": {"use_attention_sinks": True},
    "clip_qkv": {"clip_qkv": 0.5},
    "use_logn_attn": {"use_logn_attn": True, "train_seq_length": 4},
}


def build(settings: dict[str, Any]) -> HookedTransformer:
    """Build a float64 model, attention-only unless the settings say otherwise."""
    plain = {"attn_only": True, "normalization_type": None, "dtype": torch.float64}
    config = HookedTransformerConfig(**{**plain, "device": "cpu", "seed": 1, **settings})
    return HookedTransformer(config).eval()


def draw(model: HookedTransformer, seed: int) -> None:
    """Draw every weight and bias: none is zero, and scores are of the order of one."""
    generator = np.random.default_rng(seed)
    for name, parameter in sorted(model.named_parameters()):
        matrix = name.rpartition(".")[2] in ("W_Q", "W_K", "W_V", "W_O", "W_U")
        size = 0.8 / parameter.shape[-2] ** 0.5 if matrix else 0.6
        values = generator.normal(size=tuple(parameter.shape)) * size
        parameter.data.copy_(torch.from_numpy(values))


def plain_json(config: dict[str, Any]) -> dict[str, Any]:
    """Keep what JSON can hold (the dtype is all that it cannot)."""
    kinds = (bool, int, float, str, list, type(None))
    return {key: value for key, value in config.items() if isinstance(value, kinds)}


def write_case(name: str, settings: dict[str, Any], shape: int | list[list[int]]) -> None:
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
    folder = FOLDER / name
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
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, (settings, shape) in CASES.items():
        write_case(name, settings, shape)
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
