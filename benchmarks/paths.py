"""Value every path of a GPT-2-wide two-layer model against its own dense forward pass.

    python benchmarks/paths.py

Random weights, 12 heads a layer, d_model 768, d_head 64, vocabulary 50,257, 64 tokens. The
alternative a user would pick is one dense forward pass (which values no path at all), timed in the
same run. The goal is a ratio of at most 3.
"""

import time
from collections.abc import Callable

import numpy as np

import pathexpand
from pathexpand.engine.enumeration import enumerate_values
from pathexpand.frozen import freeze
from pathexpand.model.forward import forward, logits

SIZES = {"n_layers": 2, "n_heads": 12, "d_model": 768, "d_head": 64}
VOCABULARY, LENGTH, ROUNDS = 50257, 64, 7


def main() -> None:
    model = random_model()
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (1, LENGTH))
    mask = np.ones_like(ids, dtype=bool)
    run = model.run(ids[0])
    readout = run.target(5).readout(run.unembed, LENGTH - 1)

    def dense_last() -> None:
        stream = forward(model.weights, model.config, ids, mask).residual[-1]
        logits(model.weights, stream[:, -1])

    def dense_all() -> None:
        logits(model.weights, forward(model.weights, model.config, ids, mask).residual[-1])

    def paths() -> None:
        frozen = freeze(model.weights, model.config, run.dense)
        count = sum(valued.values.size for valued in enumerate_values(frozen, readout))
        assert count == 169

    def table() -> None:
        run.paths(5, top=25)

    seconds = medians(dense_last, dense_all, paths, table)
    print(f"{'':44}{'ms':>9}  {'ratio':>6}")
    names = (
        "dense forward, logits at the last position",
        "dense forward, logits at every position",
        "all 169 paths at one position",
        "the closed table (remainder, bound, 25 rows)",
    )
    for name, value in zip(names, seconds, strict=True):
        print(f"{name:44}{1000 * value:9.1f}  {value / seconds[0]:6.2f}")


def random_model() -> pathexpand.Model:
    """Give a model with weights of the usual size, so that nothing overflows or vanishes."""
    rng = np.random.default_rng(0)
    d_model, d_head, heads = SIZES["d_model"], SIZES["d_head"], SIZES["n_heads"]
    tensors = {
        "embed.W_E": rng.normal(size=(VOCABULARY, d_model)) * 0.1,
        "unembed.W_U": rng.normal(size=(d_model, VOCABULARY)) * 0.1,
    }
    for layer in range(SIZES["n_layers"]):
        for name in ("W_Q", "W_K", "W_V"):
            weight = rng.normal(size=(heads, d_model, d_head)) / np.sqrt(d_model)
            tensors[f"blocks.{layer}.attn.{name}"] = weight
        weight = rng.normal(size=(heads, d_head, d_model)) / np.sqrt(heads * d_head)
        tensors[f"blocks.{layer}.attn.W_O"] = weight
    config = SIZES | {"d_vocab": VOCABULARY, "n_ctx": LENGTH, "positional_embedding_type": "none"}
    return pathexpand.from_state_dict(tensors, config)


def medians(*jobs: Callable[[], None]) -> list[float]:
    """Time jobs in turn, several rounds, and give each one's median seconds."""
    times: list[list[float]] = [[] for _ in jobs]
    for _ in range(ROUNDS):
        for job, kept in zip(jobs, times, strict=True):
            start = time.perf_counter()
            job()
            kept.append(time.perf_counter() - start)
    return [float(np.median(kept)) for kept in times]


if __name__ == "__main__":
    main()
