"""The story model (Llama form): a real checkpoint directory of Hugging Face, with its tokenizer."""

from __future__ import annotations

from pathlib import Path as FilePath

import numpy as np
import pytest

from pathexpand.model.checkpoint import Checkpoint, read_checkpoint
from pathexpand.model.forward import Forward, final_logits, forward
from pathexpand.model.prompt import Tokens, read_prompt

pytestmark = pytest.mark.shared_models
STORY = (
    "The boy went to the store with his dad. He wanted to buy a new toy truck. "
    "His dad said no because the truck cost too much money."
)


@pytest.fixture(scope="module")
def model(shared_models: FilePath) -> Checkpoint:
    return read_checkpoint(shared_models / "stories260k")


def run(model: Checkpoint, tokens: Tokens) -> Forward:
    return forward(model.weights, model.config, tokens.ids[None], tokens.mask[None])


def test_sizes(model: Checkpoint) -> None:
    config = model.config
    assert (config.n_layers, config.n_heads, config.n_key_value_heads) == (5, 8, 4)
    assert (config.d_model, config.d_head, config.d_mlp, config.n_ctx) == (64, 8, 172, 512)


def test_nats_a_token_on_a_story(model: Checkpoint) -> None:
    """Pitfall 15: the tokenizer itself puts the start token there, once."""
    tokens = read_prompt(model, STORY)
    assert (tokens.ids == 1).sum() == 1
    every = final_logits(model.weights, model.config, run(model, tokens), 0)
    top = every.max(axis=-1)
    likelihood = top + np.log(np.exp(every - top[:, None]).sum(axis=-1))
    losses = likelihood[:-1] - every[np.arange(len(every) - 1), tokens.ids[1:]]
    assert losses.mean() == pytest.approx(1.47638, abs=5e-6)


@pytest.mark.parametrize("start", ["", "<s>"])
def test_the_next_word(model: Checkpoint, start: str) -> None:
    tokens = read_prompt(model, f"{start}Once upon a time, there was a little girl named")
    made = run(model, tokens)
    best = int(final_logits(model.weights, model.config, made, 0, -1).argmax())
    assert model.tokenizer is not None
    assert model.tokenizer.show(best) == "' Lily'"
    assert tokens.ids[:2].tolist().count(1) == 1


def test_start_tokens_on_request(model: Checkpoint) -> None:
    bare = read_prompt(model, "Once", prepend_bos=False).ids.tolist()
    assert 1 not in bare
    for wanted in (None, True):
        assert read_prompt(model, "Once", prepend_bos=wanted).ids.tolist() == [1, *bare]
    given = np.array([1, 1, *bare])
    assert read_prompt(model, given, prepend_bos=True).ids.tolist() == given.tolist()


def test_every_token_looks_different(model: Checkpoint) -> None:
    """Pitfall 36: also a byte and the character that it is."""
    assert model.tokenizer is not None
    shown = [model.tokenizer.show(token) for token in range(512)]
    assert len(set(shown)) == 512
    assert model.tokenizer.show(13) == "b'\\n'"
    assert all(text.isprintable() for text in shown)


def test_float32_tells_the_same_story(model: Checkpoint) -> None:
    tokens = read_prompt(model, STORY)
    exact = final_logits(model.weights, model.config, run(model, tokens))
    single = forward(
        model.weights, model.config, tokens.ids[None], tokens.mask[None], dtype=np.float32
    )
    rounded = final_logits(model.weights, model.config, single)
    assert rounded.dtype == np.float32
    assert abs(rounded - exact).max() < 1e-4 * abs(exact).max()
