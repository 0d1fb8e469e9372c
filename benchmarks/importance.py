"""Term importance in one call, against the passes it takes by hand.

    python benchmarks/importance.py

A random model of 6 layers × 6 heads with the vocabulary of a small language model, 4 prompts of 128
tokens. By hand, each order, layer and head takes forward passes of its own with frozen patterns
(the paper's algorithm): so many plain passes over the same text are the alternative.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pathexpand
from pathexpand.circuits.importance import PARTS, importance
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import final_logits, forward

LAYERS, HEADS, D_MODEL, D_HEAD, VOCABULARY, LENGTH, PROMPTS = 6, 6, 192, 32, 4096, 128, 4
REPEATS = 3


def main() -> None:
    checkpoint = random_model().checkpoint
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, VOCABULARY, LENGTH) for _ in range(PROMPTS)]
    passes(checkpoint, prompts)  # the first reads the weights
    for part in PARTS:
        sums = len(importance(checkpoint, prompts[:1], parts=(part,)).variants)
        times = [
            (timed(passes, checkpoint, prompts), timed(importance, checkpoint, prompts, part))
            for _ in range(REPEATS)
        ]
        once, took = (min(each) for each in zip(*times, strict=True))
        print(
            f"{part:<12} {sums:3} losses {took:6.3f} s = {took / once:5.1f} plain passes of "
            f"{once:.3f} s; by hand {sums}, ratio {took / once / sums:.2f}"
        )


def timed(work: Callable[..., object], checkpoint: Checkpoint, prompts: Any, *parts: Any) -> float:
    start = time.perf_counter()
    if parts:
        work(checkpoint, prompts, parts=parts)
    else:
        work(checkpoint, prompts)
    return time.perf_counter() - start


def passes(checkpoint: Checkpoint, prompts: list[np.ndarray]) -> None:
    """Run each prompt, with logits and losses at every position."""
    for ids in prompts:
        run = forward(
            checkpoint.weights, checkpoint.config, ids[None], np.ones((1, len(ids)), dtype=bool)
        )
        logits = final_logits(checkpoint.weights, checkpoint.config, run, 0)
        top = logits.max(axis=1, keepdims=True)
        np.log(np.exp(logits - top).sum(axis=1))


def random_model() -> pathexpand.Model:
    rng = np.random.default_rng(0)
    tensors = {
        "embed.W_E": rng.normal(size=(VOCABULARY, D_MODEL)),
        "unembed.W_U": rng.normal(size=(D_MODEL, VOCABULARY)) / np.sqrt(D_MODEL),
    }
    for layer in range(LAYERS):
        at = f"blocks.{layer}.attn."
        for name in ("W_Q", "W_K", "W_V"):
            tensors[at + name] = rng.normal(size=(HEADS, D_MODEL, D_HEAD)) / np.sqrt(D_MODEL)
        tensors[at + "W_O"] = rng.normal(size=(HEADS, D_HEAD, D_MODEL)) / np.sqrt(D_MODEL)
    config = {
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "d_model": D_MODEL,
        "d_head": D_HEAD,
        "d_vocab": VOCABULARY,
        "n_ctx": LENGTH,
        "positional_embedding_type": "none",
    }
    return pathexpand.from_state_dict(tensors, config)


if __name__ == "__main__":
    main()
