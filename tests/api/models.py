"""Small random models with norms and MLPs, for tests of the API."""

from typing import Any

import numpy as np

import pathexpand
from pathexpand.api import Model

SIZES = {"n_layers": 2, "n_heads": 3, "d_model": 7, "d_head": 5, "d_mlp": 11, "d_vocab": 13}


def tensors(seed: int = 0, *, scale: float = 1.0, **sizes: int) -> dict[str, np.ndarray]:
    rng, size = np.random.default_rng(seed), SIZES | {"n_ctx": 9} | sizes
    d, heads, d_head, d_mlp = (size[key] for key in ("d_model", "n_heads", "d_head", "d_mlp"))
    shapes: dict[str, tuple[int, ...]] = {
        "embed.W_E": (size["d_vocab"], d),
        "pos_embed.W_pos": (size["n_ctx"], d),
        "unembed.W_U": (d, size["d_vocab"]),
        "unembed.b_U": (size["d_vocab"],),
        "ln_final.w": (d,),
        "ln_final.b": (d,),
    }
    for layer in range(size["n_layers"]):
        at = f"blocks.{layer}."
        for name in "QKV":
            shapes |= {
                f"{at}attn.W_{name}": (heads, d, d_head),
                f"{at}attn.b_{name}": (heads, d_head),
            }
        shapes |= {f"{at}attn.W_O": (heads, d_head, d), f"{at}attn.b_O": (d,)}
        shapes |= {f"{at}mlp.W_in": (d, d_mlp), f"{at}mlp.b_in": (d_mlp,)}
        shapes |= {f"{at}mlp.W_out": (d_mlp, d), f"{at}mlp.b_out": (d,)}
        for name in ("ln1", "ln2"):
            shapes |= {f"{at}{name}.w": (d,), f"{at}{name}.b": (d,)}
    return {name: scale * rng.normal(size=shape) for name, shape in shapes.items()}


def small(
    seed: int = 0, *, mlp: Any = "source", sizes: dict[str, int] | None = None, **raw: Any
) -> Model:
    size = SIZES | {"n_ctx": 9} | (sizes or {})
    config = size | {"normalization_type": "LN", "act_fn": "gelu"} | raw
    return pathexpand.from_state_dict(tensors(seed, **(sizes or {})), config, mlp=mlp)
