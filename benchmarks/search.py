"""Certified ranking against enumeration by matrix products.

    python benchmarks/search.py [a] [b] [c] [d]

(a) 8 layers × 8 heads, d_model 64, 16 tokens, top 100: the search, and what enumeration by matrix
    products reaches in the same time and misses.
(b) The shape of GPT-2 small, attention only: 12 × 12 heads, d_model 768, 32 tokens,
    23,298,085,122,481 paths, random weights. A head's norm is the part of a random vector's length
    that it passes on: all 0.144 (singular values near 0.5), spread like exp(N(0, 1)), all 0.5 (flat
    and strong, where the bound is loose: stopped after a minute), and all 0.25. Enumeration goes to
    order 3, and last to order 4, which takes minutes.
(c) How the search grows with layers, heads, positions and the number of rows.
(d) The spread norms of (b) once more, and how many suffixes the plain bound of Cauchy and Schwarz
    would need there: U² = |a|₁ Σ_j |a_j| wᵀ M[j] w, with M from A's row sums. Not by default.

Enumeration is `enumerate_values`: every suffix extended by every head, all at once, by matrix
products. Set OPENBLAS_NUM_THREADS to choose the number of cores.
"""

import resource
import sys
import time
from itertools import count
from unittest import mock

import numpy as np

import pathexpand
from pathexpand.engine import energy as energy_pass
from pathexpand.engine.energy import energies
from pathexpand.engine.enumeration import enumerate_values
from pathexpand.engine.kernel import HeadKernel
from pathexpand.engine.prompt_tree import PromptTree
from pathexpand.engine.search import Budget, Found, Progress, search
from pathexpand.engine.value import Readout
from pathexpand.frozen import FrozenSum
from pathexpand.symbolic.query import everything


def main() -> None:
    chosen = sys.argv[1:] or ["a", "b", "c"]
    print(f"matrix products: {gigaflops():.0f} Gflop/s in float64, one at a time in this process")
    if "a" in chosen:
        against_enumeration()
    if "b" in chosen:
        gpt2_shape("all 0.144 (singular values near 0.5)", 0.5 * (64 / 768) ** 0.5, 0.0)
        gpt2_shape("spread", 1.0, 1.0, enumerate_to=3)
        gpt2_shape("all 0.5", 0.5, 0.0)
        gpt2_shape("all 0.25", 0.25, 0.0, enumerate_to=4)
    if "c" in chosen:
        growth()
    if "d" in chosen:
        plain_bound()


def against_enumeration() -> None:
    print("\n(a) 8 × 8 heads, d_model 64, 16 tokens, top 100")
    frozen, readout = problem(8, 8, 64, 8, 16, 1.0, 0.0)
    start = time.perf_counter()
    found = ranked(frozen, readout, 100)
    seconds = time.perf_counter() - start
    total = frozen.network().count()
    print(f"search       {seconds:6.2f} s, {len(found.expanded):,} suffixes, {found.visited:,} of")
    print(f"             {total:,} paths valued; certified: {found.certified}")
    compare(frozen, readout, found, seconds)


def compare(frozen: FrozenSum, readout: Readout, found: Found, seconds: float) -> None:
    """Enumerate to higher and higher orders until it takes as long as the search."""
    for order in count(1):
        start = time.perf_counter()
        valued = sum(
            each.values.size for each in enumerate_values(frozen, readout, max_order=order)
        )
        taken = time.perf_counter() - start
        missed = sum(path.order > order for path in found.paths)
        print(
            f"enumeration  {taken:6.2f} s to order {order}: {valued:,} paths valued, misses "
            f"{missed} of the top {len(found.paths)}"
        )
        if taken > seconds or not missed:
            break


def gpt2_shape(kind: str, norm: float, spread: float, *, enumerate_to: int = 0) -> None:
    print(f"\n(b) 12 × 12 heads, d_model 768, 32 tokens, head norms {kind}")
    frozen, readout = problem(12, 12, 768, 64, 32, norm, spread)
    query = everything(frozen.network())
    start = time.perf_counter()
    energy = energies(frozen, query)
    seconds = time.perf_counter() - start
    flops = energy_flops(12, 12, 768, 64, 32)
    print(f"energy pass {seconds:5.1f} s: {flops / seconds / 1e9:.0f} Gflop/s of its products")
    tree = PromptTree(frozen, readout, query, energy)
    for top in (10, 100, 1000):
        curve: list[Progress] = []
        start = time.perf_counter()
        found = search(tree, query, top=top, budget=Budget(seconds=60), report=curve.append)
        seconds = time.perf_counter() - start
        print(
            f"top {top:5} {seconds:6.1f} s, {len(found.expanded):,} suffixes, "
            f"{len(found.expanded) / seconds:,.0f} a second; certified: {found.certified}; "
            f"orders {min(p.order for p in found.paths)} to {max(p.order for p in found.paths)}"
        )
        marks = [curve[int(part * (len(curve) - 1))] for part in (0, 0.1, 0.3, 1)]
        print("          bound / smallest listed at", end="")
        for mark in marks:
            print(f"  {mark.seconds:.1f} s: {mark.bound:.3g}/{mark.cut:.3g}", end="")
        print()
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
    if enumerate_to:
        enumeration(frozen, readout, found, enumerate_to)


def plain_bound() -> None:
    print("\n(d) 12 × 12 heads, head norms spread: suffixes that our bound and the plain one need")
    frozen, readout = problem(12, 12, 768, 64, 32, 1.0, 1.0)
    suffixes_needed("ours", frozen, readout)
    with (
        mock.patch.object(energy_pass, "_weights", plain_weights),
        mock.patch.object(HeadKernel, "_own", plain_own),
    ):
        suffixes_needed("plain", frozen, readout)


def suffixes_needed(name: str, frozen: FrozenSum, readout: Readout) -> None:
    query = everything(frozen.network())
    tree = PromptTree(frozen, readout, query, energies(frozen, query))
    for top in (10, 100, 1000):
        start = time.perf_counter()
        found = search(tree, query, top=top, budget=Budget(seconds=120))
        seconds = time.perf_counter() - start
        said = "certified" if found.certified else "stopped"
        print(f"{name:6} top {top:5} {len(found.expanded):7,} suffixes {seconds:6.1f} s, {said}")


def plain_weights(patterns: np.ndarray, seen: object, *, named: bool) -> tuple:
    sizes = abs(patterns)
    return sizes, sizes.sum(axis=2)


def plain_own(self: HeadKernel, heads: list[int], rows: np.ndarray, inner: np.ndarray):
    kernel, low, size = self.kernels[heads], inner.astype(np.float32), abs(rows)
    count, d_head, positions, _ = kernel.shape
    half = (low @ kernel.reshape(count, d_head, -1)).reshape(count, -1, positions, d_head)
    forms = np.maximum(np.einsum("hstb,hsb->hst", half, low).astype(np.float64), 0)
    scale = self.scales[heads][:, None]
    return np.sqrt(size.sum(axis=2) * (size * forms).sum(axis=2) * scale) * (1 + 1e-5)


def enumeration(frozen: FrozenSum, readout: Readout, found: Found, order: int) -> None:
    start = time.perf_counter()
    valued = sum(each.values.size for each in enumerate_values(frozen, readout, max_order=order))
    missed = sum(path.order > order for path in found.paths)
    print(
        f"enumeration to order {order}: {time.perf_counter() - start:.1f} s, {valued:,} paths, "
        f"misses {missed} of the top {len(found.paths)} and bounds nothing"
    )


def growth() -> None:
    print("\n(c) growth, from 4 × 4 heads, d_model 64, 16 tokens, top 100")
    base = {"layers": 4, "heads": 4, "positions": 16, "top": 100}
    print(f"{'layers':>6} {'heads':>6} {'positions':>9} {'top':>6} {'seconds':>8} {'suffixes':>9}")
    cases = [base]
    cases += [base | {"layers": n} for n in (8, 12)]
    cases += [base | {"heads": n} for n in (8, 16)]
    cases += [base | {"positions": n} for n in (32, 64)]
    cases += [base | {"top": n} for n in (10, 1000)]
    for case in cases:
        frozen, readout = problem(case["layers"], case["heads"], 64, 8, case["positions"], 1.0, 0.0)
        start = time.perf_counter()
        found = ranked(frozen, readout, case["top"])
        seconds = time.perf_counter() - start
        print(
            f"{case['layers']:6} {case['heads']:6} {case['positions']:9} {case['top']:6} "
            f"{seconds:8.2f} {len(found.expanded):9,}"
        )


def ranked(frozen: FrozenSum, readout: Readout, top: int) -> Found:
    query = everything(frozen.network())
    tree = PromptTree(frozen, readout, query, energies(frozen, query))
    return search(tree, query, top=top)


def problem(
    layers: int, heads: int, d_model: int, d_head: int, length: int, norm: float, spread: float
) -> tuple[FrozenSum, Readout]:
    """Give a random model's run, read at its last position for one token's centred logit.

    Head norms are all `norm` if `spread` is 0, and otherwise spread like exp(N(0, spread²)).
    """
    rng = np.random.default_rng(0)
    vocabulary = 1000
    tensors = {
        "embed.W_E": rng.normal(size=(vocabulary, d_model)),
        "unembed.W_U": rng.normal(size=(d_model, vocabulary)) / np.sqrt(d_model),
    }
    for layer in range(layers):
        for name in ("W_Q", "W_K", "W_V"):
            weight = rng.normal(size=(heads, d_model, d_head)) / np.sqrt(d_model)
            tensors[f"blocks.{layer}.attn.{name}"] = weight
        norms = np.exp(spread * rng.normal(size=heads)) if spread else np.full(heads, norm)
        weight = rng.normal(size=(heads, d_head, d_model)) / np.sqrt(d_head)
        tensors[f"blocks.{layer}.attn.W_O"] = weight * norms[:, None, None]
    config = {
        "n_layers": layers,
        "n_heads": heads,
        "d_model": d_model,
        "d_head": d_head,
        "d_vocab": vocabulary,
        "n_ctx": length,
        "positional_embedding_type": "none",
    }
    model = pathexpand.from_state_dict(tensors, config)
    run = model.run(rng.integers(0, vocabulary, length))
    return run.frozen, run.target(5).readout(run.unembed, length - 1)


def energy_flops(layers: int, heads: int, d_model: int, d_head: int, positions: int) -> float:
    """Count the products of the energy pass: K out of M for each head, and M out of K again."""
    width = heads * d_head
    there = 2 * d_model * d_model * width + 2 * d_model * width * d_head
    back = 2 * width * d_head * d_model + 2 * d_model * width * d_model
    return positions * (layers * there + (layers - 1) * back)


def gigaflops() -> float:
    """Measure the speed of a large matrix product."""
    matrix = np.random.default_rng(0).normal(size=(1500, 1500))
    best = min(timed(matrix) for _ in range(5))
    return float(2 * 1500**3 / best / 1e9)


def timed(matrix: np.ndarray) -> float:
    start = time.perf_counter()
    matrix @ matrix
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
