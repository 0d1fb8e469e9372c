"""Models of transformers in memory: the same as their files, and as what they compute."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.api.live.tensors import arrays_of
from pathexpand.errors import ModelError
from pathexpand.frozen import MLP_MODES
from pathexpand.model.forward import capped, final_logits, forward
from tests.live.golden import SCRIPT, load_script
from tests.reference.rounding import apart, patterns_apart, within

make = load_script()
torch = pytest.importorskip("torch", reason="needs torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
FOLDER = SCRIPT.parent
TOKENIZER = Path(pathexpand.__file__).parent / "embedded" / "two-layer" / "tokenizer.json"
NORMED_STREAM = ("bloom-post-norm",)  # its stream is not what `hidden_states` holds


def class_of(name: str) -> Any:
    """Give the class that a case was saved from."""
    architecture = json.loads((FOLDER / name / "config.json").read_text())["architectures"][0]
    return getattr(transformers, architecture)


def read(name: str) -> Any:
    """Load a case with transformers, in the number format it is stored in."""
    raw = json.loads((FOLDER / name / "config.json").read_text())
    dtype = getattr(torch, raw.get("dtype", raw.get("torch_dtype")))
    model = class_of(name).from_pretrained(FOLDER / name)
    return model.to(dtype)


def fresh(name: str, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """Make a case with other weights and another prompt than its golden file, in float64.

    Gives the model and what it makes of the prompt. To be called within `make.in_float64()`.
    """
    case = replace(make.CASES[name], **changes)
    family = make.FAMILIES[case.family]
    config = getattr(transformers, family.config)(**{**family.sizes, **case.config})
    model, random = make.build(config, family), make.generator(f"fresh {name}")
    make.randomise(model, family, torch.float64, random)
    return model, arrays_of(make.golden(model, make.prompt(case, config.vocab_size, random)))


@pytest.mark.parametrize("name", make.CASES)
def test_a_live_model_is_what_its_directory_is(name: str) -> None:
    live, stored = pathexpand.from_transformers(read(name)), pathexpand.load(FOLDER / name)
    assert live.config == replace(stored.config, model_name=live.config.model_name)
    assert live.checkpoint.digest() == stored.checkpoint.digest()
    assert live.config.model_name == name


@pytest.mark.parametrize("name", make.CASES)
def test_fresh_weights_give_what_transformers_computes(name: str) -> None:
    with make.in_float64():
        model, theirs = fresh(name)
        checkpoint = pathexpand.from_transformers(model).checkpoint
    weights, config, tokens = checkpoint.weights, checkpoint.config, theirs["tokens"]
    mask = theirs.get("mask", np.ones(tokens.shape, dtype=bool))
    run = forward(weights, config, tokens, mask, types=theirs.get("token_types"))
    before = final_logits(weights, config, run)
    bound = within(checkpoint, tokens.shape[1])
    assert bound < 2e-12
    assert apart(before, theirs.get("uncapped", theirs["logits"]), mask) <= bound
    assert apart(capped(config, before), theirs["logits"], mask) <= bound
    patterns = [theirs[f"pattern.{layer}"] for layer in range(config.n_layers)]
    assert patterns_apart(run, patterns) <= bound
    for layer in range(0 if name in NORMED_STREAM else config.n_layers):
        assert apart(run.residual[layer], theirs[f"residual.{layer}"], mask) <= bound


@pytest.mark.parametrize("name", make.CASES)
def test_tables_close_on_live_logits(name: str) -> None:
    with make.in_float64():
        model, theirs = fresh(name, token_types=False)
        ours = pathexpand.from_transformers(model)
    tokens = theirs["tokens"][0]
    mask = theirs.get("mask", np.ones(theirs["tokens"].shape, dtype=bool))[0]
    logits = theirs.get("uncapped", theirs["logits"])[0, np.flatnonzero(mask)[-1]]
    off = within(ours.checkpoint, len(tokens)) * abs(logits).max()
    for mlp in MLP_MODES:
        table = ours.with_mlp(mlp).run(tokens, mask=mask).paths(3, top=4, centred=False)
        assert table.certified
        assert abs(table.gap) <= table.gap_bound < 1e-8
        assert abs(table.listed + table.remainder - logits[3]) <= off + table.gap_bound


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_numbers_are_taken_as_they_are(dtype: str) -> None:
    model = read("llama").to(getattr(torch, dtype))
    arrays = arrays_of(model.state_dict())
    assert {str(array.dtype) for array in arrays.values()} == {dtype}
    for name, tensor in model.state_dict().items():
        assert np.array_equal(arrays[name].astype(np.float64), tensor.double().numpy())
    ours = pathexpand.from_transformers(model)
    embed = model.get_input_embeddings().weight
    assert np.array_equal(ours.weights.W_E, embed.detach().double().numpy())


def test_training_on_changes_nothing() -> None:
    model = read("llama")
    ours, before = pathexpand.from_transformers(model), pathexpand.load(FOLDER / "llama")
    arrays = arrays_of(model.state_dict())
    kept = {name: array.copy() for name, array in arrays.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    assert all(np.array_equal(arrays[name], array) for name, array in kept.items())
    assert ours.checkpoint.digest() == before.checkpoint.digest()
    assert np.array_equal(ours.run([1, 2]).logits(), before.run([1, 2]).logits())


def test_one_tensor_under_two_names_is_copied_once() -> None:
    model = read("gpt2")
    arrays = arrays_of(model.state_dict())
    assert arrays["lm_head.weight"] is arrays["transformer.wte.weight"]


def test_dropout_plays_no_part_and_modes_stay_as_they_are() -> None:
    model = read("gpt2").train()
    model.transformer.h[1].eval()
    before = [module.training for module in model.modules()]
    assert model.config.resid_pdrop > 0
    ours = pathexpand.from_transformers(model)
    assert [module.training for module in model.modules()] == before
    assert ours.checkpoint.digest() == pathexpand.load(FOLDER / "gpt2").checkpoint.digest()


@pytest.mark.parametrize("name", ["llama-dynamic", "phi3-longrope", "gpt_neox-dynamic"])
def test_checking_leaves_angles_as_they_are(name: str) -> None:
    """Some of these models remember the longest prompt they have seen."""
    model, untouched = read(name).eval(), read(name).eval()
    pathexpand.from_transformers(model)
    with torch.no_grad():
        for ids in ([[1, 2, 3, 4, 5, 6]], [[1, 2, 3]]):
            given = torch.tensor(ids)
            assert torch.equal(model(given).logits, untouched(given).logits)


def test_what_torch_compile_wraps_is_read() -> None:
    model = read("llama")
    wrapped = torch.compile(model)
    ours = pathexpand.from_transformers(wrapped)
    assert ours.checkpoint.digest() == pathexpand.load(FOLDER / "llama").checkpoint.digest()


def test_a_tokenizer_gives_the_same_ids() -> None:
    given = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), bos_token="<|bos|>")
    config = transformers.GPT2Config(
        vocab_size=len(given), n_embd=8, n_head=2, n_layer=1, n_positions=32
    )
    model = transformers.GPT2LMHeadModel(config)
    text = "to be or not to be"
    for tokenizer in (given, given.backend_tokenizer):
        ours = pathexpand.from_transformers(model, tokenizer)
        assert ours.run(text).tokens.tolist() == given(text).input_ids
    again = pathexpand.from_transformers(model, ours.tokenizer)
    assert again.run(text).tokens.tolist() == given(text).input_ids


@pytest.mark.shared_models
def test_a_trained_model_and_its_tokenizer(shared_models: Path) -> None:
    folder = shared_models / "stories260k"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    live, stored = pathexpand.from_transformers(model, tokenizer), pathexpand.load(folder)
    text = "Once upon a time, there was a little girl named"
    one, other = live.run(text), stored.run(text)
    assert one.tokens.tolist() == other.tokens.tolist() == tokenizer(text).input_ids
    assert str(one.paths(top=5)) == str(other.paths(top=5))


def refused(model: Any, match: str, **options: Any) -> None:
    with pytest.raises(ModelError, match=match):
        pathexpand.from_transformers(model, **options)


def test_what_has_no_numbers_is_refused() -> None:
    config = read("llama").config
    with torch.device("meta"):
        skeleton = class_of("llama")(config)
    refused(skeleton, r"tensor .*: wanted numbers, got a tensor on the meta device; load the whole")


def test_quantised_models_are_refused() -> None:
    model = read("llama")
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.to(torch.float8_e4m3fn))
    refused(model, r"tensor lm_head.weight: wanted float64, .* or bfloat16, got float8_e4m3fn")
    model = read("llama")
    packed = model.lm_head.weight.detach().to(torch.int8)
    model.lm_head.weight = torch.nn.Parameter(packed, requires_grad=False)
    refused(model, r"tensor lm_head.weight: wanted real numbers .*, got int8")
    model = read("llama")
    model.config.quantization_config = {"quant_method": "gptq"}
    refused(model, r"quantization_config 'gptq': quantised weights are not supported")


def test_tensors_that_are_more_than_their_memory_are_refused() -> None:
    class Packed(torch.Tensor):
        pass

    model = read("llama")
    state = model.state_dict() | {"lm_head.weight": torch.zeros(11, 12).as_subclass(Packed)}
    model.state_dict = lambda: state
    refused(model, r"tensor lm_head.weight: wanted a plain torch tensor, got a Packed; use the")
    model.state_dict = lambda: state | {"lm_head.weight": torch.zeros(11, 12).to_sparse()}
    refused(model, r"wanted a plain torch tensor, got a quantised or sparse one")
    model.state_dict = lambda: state | {"lm_head.weight": ("packed", 3)}
    refused(model, r"wanted a plain torch tensor, got a tuple")


def test_models_that_compute_something_else_are_refused() -> None:
    model = read("llama")
    handle = model.model.layers[1].register_forward_hook(lambda *given: 2 * given[-1])
    refused(model, r"its logits on 7 tokens and ours: wanted a difference of at most 3.5e-04 of")
    pathexpand.from_transformers(model, check=False)
    handle.remove()
    pathexpand.from_transformers(model)

    def stop(*_: Any) -> None:
        raise RuntimeError("no\nmore")

    model.model.layers[1].register_forward_hook(stop)
    refused(model, r"wanted one that runs on 7 tokens, got RuntimeError: no more; check=False")


def test_extra_and_missing_tensors_are_listed() -> None:
    model = read("llama")
    model.lm_head.adapter = torch.nn.Linear(2, 3)
    refused(model, r"lm_head.adapter.weight is not known; lm_head.adapter.bias is not known")
    refused(read("llama").model, r"lm_head.weight \(11, 12\) is missing")
    refused(read("bert").bert, r"wanted a masked-token head")


def test_models_with_adapters_are_refused() -> None:
    model = read("llama")
    model.peft_config = {}
    refused(model, r"got one with adapters beside it; give model.merge_and_unload\(\)")


def test_other_families_are_refused_by_name() -> None:
    config = transformers.MambaConfig(vocab_size=5, hidden_size=4, num_hidden_layers=1)
    refused(transformers.MambaForCausalLM(config), r"model_type 'mamba': not supported; known are")


def test_tokenizers_that_are_not_fast_are_refused() -> None:
    refused(read("llama"), r"tokenizer: wanted a fast tokenizer", tokenizer=object())
