"""Rank paths over a data set, against valuing every path on every prompt.

    python benchmarks/dataset.py

A random model of 6 layers × 6 heads (117,649 paths), 20 prompts of 12 tokens, top 50 by root mean
square. The alternative enumerates every path on each prompt and averages the squares.
"""

import time

import numpy as np

import pathexpand
from pathexpand.engine.enumeration import enumerate_values

LAYERS, HEADS, D_MODEL, D_HEAD, VOCABULARY, LENGTH, PROMPTS = 6, 6, 48, 8, 100, 12, 20


def main() -> None:
    model = random_model()
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, VOCABULARY, LENGTH) for _ in range(PROMPTS)]
    start = time.perf_counter()
    table = model.dataset_paths(prompts, by="rms", target=5, top=50)
    searched = time.perf_counter() - start
    start = time.perf_counter()
    largest = enumerated(model, prompts)
    listed = time.perf_counter() - start
    print(f"certified search  {searched:6.2f} s, certified: {table.certified}")
    print(f"enumeration       {listed:6.2f} s, ratio {searched / listed:.2f}")
    gap = max(abs(row.rms - value) for row, value in zip(table, largest, strict=False))
    print(f"largest difference of the 50 values: {gap:.1e}")


def enumerated(model: pathexpand.Model, prompts: list[np.ndarray]) -> np.ndarray:
    """Give the root mean squares of every path, largest first; blocks come in the same order."""
    squares = 0.0
    for prompt in prompts:
        run = model.run(prompt)
        readout = run.target(5).readout(run.unembed, LENGTH - 1)
        blocks = [block.values for block in enumerate_values(run.frozen, readout)]
        squares = squares + np.concatenate(blocks) ** 2
    return np.sort(np.sqrt(squares / len(prompts)))[::-1]


def random_model() -> pathexpand.Model:
    rng = np.random.default_rng(0)
    tensors = {
        "embed.W_E": rng.normal(size=(VOCABULARY, D_MODEL)),
        "unembed.W_U": rng.normal(size=(D_MODEL, VOCABULARY)) / np.sqrt(D_MODEL),
    }
    for layer in range(LAYERS):
        for name in ("W_Q", "W_K", "W_V"):
            weight = rng.normal(size=(HEADS, D_MODEL, D_HEAD)) / np.sqrt(D_MODEL)
            tensors[f"blocks.{layer}.attn.{name}"] = weight
        weight = rng.normal(size=(HEADS, D_HEAD, D_MODEL)) / np.sqrt(D_MODEL)
        tensors[f"blocks.{layer}.attn.W_O"] = weight
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
