"""Bridges that TransformerLens 4 makes from a configuration of its own, with no other library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.errors import ModelError
from tests.live.golden import load_script
from tests.live.lens import Lens

make = load_script()
torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformer_lens", reason="needs TransformerLens")
from transformer_lens.config import TransformerBridgeConfig  # noqa: E402
from transformer_lens.model_bridge import TransformerBridge  # noqa: E402

TOKENS = [3, 1, 4, 7, 20, 22, 2, 9]
SIZES: dict[str, Any] = {
    "n_layers": 3,
    "n_heads": 4,
    "d_model": 14,
    "d_head": 6,
    "d_mlp": 17,
    "d_vocab": 23,
    "n_ctx": 11,
    "act_fn": "gelu_new",
    "normalization_type": "LN",
    "architecture": "TransformerLensNative",
    "device": "cpu",
}
ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 4}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "attention only": {"attn_only": True, "normalization_type": None},
    "LNPre": {"normalization_type": "LNPre"},
    "RMSPre": {"normalization_type": "RMSPre", "act_fn": "relu"},
    "last RMS": {"final_rms": True},
    "grouped": {
        **ROTARY,
        "normalization_type": "RMS",
        "n_key_value_heads": 2,
        "gated_mlp": True,
        "act_fn": "silu",
    },
    "caps": {"attn_scores_soft_cap": 2.0, "output_logits_soft_cap": 3.0},
    "other outputs": {"d_vocab_out": 29},
    "bidirectional": {"attention_dir": "bidirectional"},
    "own scale": {"attn_scale": 1.7},
}


def boot(settings: dict[str, Any]) -> Any:
    """Boot a bridge in which no weight and no bias is zero or one."""
    bridge = TransformerBridge.boot_native(
        TransformerBridgeConfig(**{**SIZES, **settings}), dtype=torch.float64
    )
    random = np.random.default_rng(0)
    norms = [id(each) for name, each in bridge.named_parameters() if "ln" in name]
    with torch.no_grad():
        for name, parameter in bridge.named_parameters():
            one = id(parameter) in norms and name.endswith("weight")
            values = 0.35 * random.normal(size=tuple(parameter.shape)) + one
            parameter.copy_(torch.from_numpy(values))
    return bridge.eval()


@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_native_bridge_gives_its_own_numbers(name: str, processed: bool) -> None:
    with make.in_float64():
        bridge = boot(CASES[name])
        if processed:
            bridge.enable_compatibility_mode(disable_warnings=True)
        lens = Lens(bridge, TOKENS)
    lens.check_dense()
    lens.check_parts()
    lens.check_closure(5)


def test_what_cannot_be_read_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="config act_fn 'solu': a softmax over neurons is not"):
        pathexpand.from_transformer_lens(boot({"act_fn": "solu"}))
