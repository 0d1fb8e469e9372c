"""TransformerBridge, over the cases of the golden files: raw, and in compatibility mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pathexpand
from pathexpand.errors import ModelError
from tests.live.golden import SCRIPT, load_script
from tests.live.lens import Lens

make = load_script()
torch = pytest.importorskip("torch", reason="needs torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("transformer_lens", reason="needs TransformerLens")
from transformer_lens.model_bridge import TransformerBridge  # noqa: E402

FOLDER = SCRIPT.parent
TOKENIZER = Path(pathexpand.__file__).parent / "embedded" / "two-layer" / "tokenizer.json"
TOKENS = [3, 1, 4, 7, 10]
# What TransformerLens cannot boot or process, at least in some version.
NOT_BOOTED = ("falcon-grouped", "falcon-one-norm", "gpt_neox-no-bias", "phi-qk-norm")
NOT_PROCESSED = ("olmo2-bias", "phi-grouped")
# What we refuse, and how the line begins.
COMPUTES_ELSE = r"its logits on \d tokens and ours"
REFUSED = {
    "bloom-post-norm": "config apply_residual_connection_post_layernorm True: not supported",
    "gemma3_text-linear": COMPUTES_ELSE,  # a bridge caps no attention scores of a Gemma 3
    "gpt2-unscaled": COMPUTES_ELSE,  # a bridge divides all scores of a GPT-2
    "opt-350m": "project_in.weight is not known",
    "opt-no-final-norm": "project_in.weight is not known",
    "opt-post-norm": "wanted one that runs on",  # a bridge wants a last norm
    "opt-untied": "project_in.weight is not known",
    "stablelm-qk-norm": r"attn.q_norm.weight \(4,\) is missing",
    "starcoder2-sliding": COMPUTES_ELSE,  # a bridge knows no window of a Starcoder 2
}
READ = [name for name in make.CASES if name not in (*NOT_BOOTED, *REFUSED)]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer that stands in a folder, which TransformerLens insists on."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), bos_token="<|bos|>")
    made.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def boot(name: str, tokenizer: Any, *, processed: bool = False) -> Any:
    """Boot a case; to be called within `make.in_float64()`."""
    raw = json.loads((FOLDER / name / "config.json").read_text())
    cls = getattr(transformers, raw["architectures"][0])
    if name == "gpt2-base":
        cls = transformers.GPT2LMHeadModel
    model = cls.from_pretrained(FOLDER / name, attn_implementation="eager", dtype=torch.float64)
    bridge = TransformerBridge.boot_transformers(
        str(FOLDER / name), hf_model=model, tokenizer=tokenizer, dtype=torch.float64
    )
    if processed:
        bridge.enable_compatibility_mode(disable_warnings=True)
    return bridge


def lens(name: str, tokenizer: Any, *, processed: bool) -> Lens:
    with make.in_float64():
        return Lens(boot(name, tokenizer, processed=processed), TOKENS)


# Where a norm stands behind the embeddings, or behind each part, TransformerLens' parts and what
# it attributes to them are those in front of it.
NORMED = ("bloom", "bert")
POST_NORMS = (*NORMED, "gemma2", "gemma3", "olmo2")


@pytest.mark.parametrize("name", READ)
def test_a_bridge_gives_its_own_numbers(name: str, tokenizer: Any) -> None:
    seen = lens(name, tokenizer, processed=False)
    seen.check_dense()
    seen.check_closure(5)
    if not name.startswith(NORMED):
        seen.check_parts()


@pytest.mark.parametrize("name", [name for name in READ if name not in NOT_PROCESSED])
def test_so_does_one_in_compatibility_mode(name: str, tokenizer: Any) -> None:
    seen = lens(name, tokenizer, processed=True)
    seen.check_dense()
    seen.check_closure(5)
    if not name.startswith(NORMED):
        seen.check_parts()
    if not name.startswith(POST_NORMS):
        seen.check_sources(5)
        seen.check_heads(5)
        seen.check_rows(5)


@pytest.mark.parametrize("name", REFUSED)
def test_a_bridge_that_is_not_read_is_refused(name: str, tokenizer: Any) -> None:
    with make.in_float64():
        for processed in (False, True):
            bridge = boot(name, tokenizer, processed=processed)
            with pytest.raises(ModelError, match=REFUSED[name]):
                pathexpand.from_transformer_lens(bridge)


def test_queries_and_keys_stay_per_key_value_head(tokenizer: Any) -> None:
    with make.in_float64():
        ours = pathexpand.from_transformer_lens(boot("llama", tokenizer))
    assert ours.weights.blocks[0].attn.W_K.shape == (2, 12, 6)


def test_an_unprocessed_bridge_is_its_directory(tokenizer: Any) -> None:
    with make.in_float64():
        ours = pathexpand.from_transformer_lens(boot("llama", tokenizer))
    assert ours.checkpoint.digest() == pathexpand.load(FOLDER / "llama").checkpoint.digest()


@pytest.mark.parametrize("prepended", [True, False])
def test_text_gets_the_tokens_that_a_bridge_gives_it(prepended: bool, tokenizer: Any) -> None:
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=8, n_head=2, n_layer=1, n_positions=32
    )
    model = transformers.GPT2LMHeadModel(config)
    bridge = TransformerBridge.boot_transformers("gpt2", hf_model=model, tokenizer=tokenizer)
    bridge.cfg.default_prepend_bos = prepended
    run = pathexpand.from_transformer_lens(bridge).run("to be or not to be")
    assert run.tokens.tolist() == bridge.to_tokens("to be or not to be")[0].tolist()


@pytest.mark.shared_models
@pytest.mark.parametrize("processed", [False, True])
def test_a_trained_model(processed: bool, shared_models: Path) -> None:
    folder = str(shared_models / "stories260k")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    own = transformers.AutoTokenizer.from_pretrained(folder)
    bridge = TransformerBridge.boot_transformers(folder, hf_model=model, tokenizer=own)
    if processed:
        bridge.enable_compatibility_mode(disable_warnings=True)
    text = "Once upon a time, there was a little girl named"
    tokens = bridge.to_tokens(text)[0].tolist()
    seen = Lens(bridge, tokens)
    assert seen.ours.run(text).tokens.tolist() == tokens
    seen.check_dense()
    seen.check_parts()
    seen.check_closure(tokens[3])
    if processed:
        seen.check_sources(tokens[3])
        seen.check_heads(tokens[3])
        seen.check_rows(tokens[3])
