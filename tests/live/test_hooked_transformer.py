"""HookedTransformer (TransformerLens below 4): raw, and folded and centred as it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.errors import ModelError
from tests.live.lens import Lens

torch = pytest.importorskip("torch", reason="needs torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
transformer_lens = pytest.importorskip("transformer_lens", reason="needs TransformerLens")

TOKENIZER = Path(pathexpand.__file__).parent / "embedded" / "two-layer" / "tokenizer.json"
TOKENS = [3, 1, 4, 7, 20, 22, 2, 9]
SIZES = {
    "n_layers": 3,
    "n_heads": 4,
    "d_model": 14,
    "d_head": 6,
    "d_mlp": 17,
    "d_vocab": 23,
    "n_ctx": 11,
    "act_fn": "gelu_new",
    "normalization_type": "LN",
    "device": "cpu",
    "seed": 1,
}
ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 6}
GATED = {"normalization_type": "RMS", "act_fn": "silu", "gated_mlp": True}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "attention only": {"attn_only": True, "d_mlp": None, "act_fn": None},
    "RMS": GATED,
    "grouped": {**GATED, **ROTARY, "n_key_value_heads": 2},
    "rotary": {**ROTARY, "parallel_attn_mlp": True},
    "partial rotary": {**ROTARY, "rotary_dim": 4},
    "adjacent rotary": {**ROTARY, "rotary_adjacent_pairs": True},
    "ALiBi": {"positional_embedding_type": "alibi"},
    "shortformer": {"positional_embedding_type": "shortformer"},
    "local": {"use_local_attn": True, "window_size": 3, "attn_types": ["local", "global", "local"]},
    "caps": {"attn_scores_soft_cap": 2.0, "output_logits_soft_cap": 3.0},
    "other outputs": {"d_vocab_out": 29},
    "bidirectional": {"attention_dir": "bidirectional"},
    "no scale": {"use_attn_scale": False},
    "scale by layer": {"scale_attn_by_inverse_layer_idx": True},
    "split inputs": {"use_split_qkv_input": True, "use_attn_result": True},
}
# What else is read: norms without weights or in more places, embeddings with a norm.
ONLY_RAW: dict[str, dict[str, Any]] = {
    "no norm": {"attn_only": True, "d_mlp": None, "act_fn": None, "normalization_type": None},
    "LNPre": {"normalization_type": "LNPre"},
    "RMSPre": {"normalization_type": "RMSPre", "act_fn": "relu"},
    "last RMS": {"final_rms": True},
    "norms on both sides": {
        "use_normalization_before_and_after": True,
        "use_qk_norm": True,
        "normalization_type": "RMS",
        "act_fn": "silu",
    },
    "norm of embeddings": {"positional_embedding_type": "alibi", "post_embedding_ln": True},
}


def build(settings: dict[str, Any], *, dtype: Any = torch.float64, tokenizer: Any = None) -> Any:
    """Build a model in which no weight and no bias is zero or one."""
    config = transformer_lens.HookedTransformerConfig(**{**SIZES, "dtype": dtype, **settings})
    model = transformer_lens.HookedTransformer(config, tokenizer=tokenizer).eval()
    random = np.random.default_rng(0)
    for name, parameter in sorted(model.named_parameters()):
        values = 0.35 * random.normal(size=tuple(parameter.shape)) + name.endswith(".w")
        parameter.data.copy_(torch.from_numpy(values))
    return model


def process(model: Any) -> Any:
    """Fold and centre in place, as `from_pretrained` does."""
    kind = model.cfg.normalization_type
    model.process_weights_(
        center_writing_weights=kind.startswith("LN"),
        center_unembed=model.cfg.output_logits_soft_cap <= 0,
    )
    model.setup()  # it has new norms
    return model


@pytest.mark.parametrize("name", [*CASES, *ONLY_RAW])
def test_raw_weights_give_its_own_numbers(name: str) -> None:
    lens = Lens(build((CASES | ONLY_RAW)[name]), TOKENS)
    lens.check_dense()
    lens.check_closure(5)
    if "norm of" not in name:  # parts are those in front of the norm
        lens.check_parts()


@pytest.mark.parametrize("name", CASES)
def test_so_do_processed_ones(name: str) -> None:
    # TransformerLens 3 processes in float32, which leaves its tables of angles rounded to that.
    lens = Lens(process(build(CASES[name])), TOKENS, single="rotary" in name or name == "grouped")
    lens.check_dense()
    lens.check_parts()
    lens.check_closure(5)
    lens.check_sources(5)
    lens.check_heads(5)
    lens.check_rows(5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_narrow_numbers_are_taken_as_they_are(dtype: str) -> None:
    model = build({}, dtype=getattr(torch, dtype))
    ours = pathexpand.from_transformer_lens(model)
    assert np.array_equal(ours.weights.W_E, model.W_E.detach().double().numpy())
    assert np.array_equal(ours.weights.blocks[1].attn.W_O, model.W_O[1].detach().double().numpy())
    assert np.array_equal(ours.weights.W_U, model.W_U.detach().double().numpy())


def test_what_hooks_change_is_refused() -> None:
    model = build({})
    model.add_hook("blocks.0.hook_attn_out", lambda value, hook: 2 * value)
    with pytest.raises(ModelError, match=r"its logits on 8 tokens and ours: wanted a difference"):
        pathexpand.from_transformer_lens(model)
    pathexpand.from_transformer_lens(model, check=False)
    model.reset_hooks()
    pathexpand.from_transformer_lens(model)


def test_what_cannot_be_read_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="config act_fn 'solu_ln': a softmax over neurons is not"):
        pathexpand.from_transformer_lens(build({"act_fn": "solu_ln"}))


@pytest.mark.parametrize("prepended", [True, False])
def test_text_gets_the_tokens_it_gives_it(prepended: bool, tmp_path: Path) -> None:
    special = {"bos_token": "<|bos|>", "eos_token": "<|bos|>"}
    made = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), **special)
    made.save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    settings = {"d_vocab": len(tokenizer), "n_ctx": 32, "default_prepend_bos": prepended}
    model = build(settings, tokenizer=tokenizer)
    run = pathexpand.from_transformer_lens(model).run("to be or not to be")
    assert run.tokens.tolist() == model.to_tokens("to be or not to be")[0].tolist()
