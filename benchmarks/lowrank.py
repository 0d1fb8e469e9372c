"""Factored matrices against their dense products: run ``python benchmarks/lowrank.py``.

Sizes are those of one head of a small model (d_model 768, d_head 64) seen through a vocabulary of
5,000. Each line compares two ways to the same number in one run, the best of a few repeats, so
the ratio means something on any machine; the two results are compared as well.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from pathexpand.lowrank import Factored, contract, plan


@dataclass(frozen=True)
class Case:
    name: str
    factored: Callable[[], Any]
    dense: Callable[[], Any]
    repeats: int = 3  # of the dense way, which may be slow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--d-model", type=int, default=768)
    parser.add_argument("--d-head", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=5000)
    parser.add_argument("--layers", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    compared = cases(options)
    print(f"{'':<44}{'factored':>10}{'dense':>11}{'ratio':>8}{'gap':>7}")
    for case in compared:
        case.factored()  # late imports and plans
        fast, result = best(case.factored, 5)
        slow, expected = best(case.dense, case.repeats)
        gap = np.max(np.abs(result - expected)) / np.max(np.abs(expected))
        print(
            f"{case.name:<44}{fast * 1e3:>7.2f} ms{slow * 1e3:>8.1f} ms"
            f"{slow / fast:>7.0f}×{gap:>7.0e}"
        )


def best(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return min(times), result


def cases(options: argparse.Namespace) -> list[Case]:
    rng = np.random.default_rng(options.seed)
    v, d, h, layers = options.vocabulary, options.d_model, options.d_head, options.layers

    def weights(rows: int, columns: int) -> np.ndarray:
        return rng.standard_normal((rows, columns)) / np.sqrt(columns)

    W_E, W_U = weights(v, d), weights(d, v)
    V, O, V2, O2 = weights(d, h), weights(h, d), weights(d, h), weights(h, d)  # noqa: E741
    OV, OV2 = Factored(V, O), Factored(V2, O2)
    full = Factored.product([W_E, OV, W_U])  # (v, h) @ (h, v)
    chain = [weights(*shape) for shape in pairwise([d, *[h, d] * layers])]
    residual = rng.standard_normal(d)
    print(plan([factor.shape for factor in [W_E, V, O, V2, O2, W_U]]), end="\n\n")
    return [
        Case("norm of OV", OV.norm, lambda: np.linalg.norm(V @ O), 5),
        Case("norm of OV OV'", lambda: (OV @ OV2).norm(), lambda: dense_norm(V, O, V2, O2), 5),
        Case(
            "singular values of OV",
            OV.singular_values,
            lambda: np.linalg.svd(V @ O, compute_uv=False)[:h],
        ),
        Case("eigenvalues of OV", OV.eigenvalues, lambda: dense_eigenvalues(V @ O, h), 1),
        Case(
            f"norm of W_E OV W_U, {v}×{v}",
            lambda: Factored.product([W_E, OV, W_U]).norm(),
            lambda: dense_norm(W_E, V, O, W_U),
        ),
        Case(f"trace of W_E OV W_U, {v}×{v}", full.trace, lambda: np.trace(full.dense())),
        Case(
            "product W_E OV OV' W_U, one row of it",
            lambda: W_E[0] @ Factored.product([OV, OV2, W_U]),
            lambda: dense_product(W_E, V, O, V2, O2, W_U)[0],
        ),
        Case(
            f"vector through {layers} layers",
            lambda: contract([residual, *chain]),
            lambda: residual @ dense_product(*chain),
        ),
    ]


def dense_product(*factors: np.ndarray) -> np.ndarray:
    return reduce(np.matmul, factors)


def dense_norm(*factors: np.ndarray) -> float:
    return float(np.linalg.norm(dense_product(*factors)))


def dense_eigenvalues(matrix: np.ndarray, count: int) -> np.ndarray:
    values = np.linalg.eigvals(matrix)
    return values[np.lexsort((-values.imag, -values.real, -np.abs(values)))][:count]


if __name__ == "__main__":
    main()
