"""Check a certificate, and draw samples, against the search and against enumeration.

    python benchmarks/certificate.py

The embedded two-layer model: the time to check a table's certificate over the time to make the
table, and the time to draw 10,000 named paths over the time to value every named path.
"""

import time
from collections.abc import Callable
from itertools import product

import numpy as np

import pathexpand
from pathexpand.certificate import certify, check_certificate

PROMPT = "Humpty Dumpty sat on a wall. Humpty D"


def main() -> None:
    model = pathexpand.load("two-layer")
    run = model.run(PROMPT)
    searched = run.searched_paths(top=10)
    certificate = certify(run, searched)
    making = timed(lambda: run.paths(top=10))
    checking = timed(lambda: check_certificate(certificate, model))
    print(f"table {1000 * making:.1f} ms, check {1000 * checking:.1f} ms: {checking / making:.1f}")
    drawing = timed(lambda: run.sample(10_000))
    listing = timed(lambda: named_squares(run))
    sample = run.sample(10_000)
    print(f"10,000 draws {1000 * drawing:.0f} ms, every named path {1000 * listing:.0f} ms")
    print(
        f"ratio {drawing / listing:.2f}; energy off by {sample.energy / named_squares(run) - 1:.1e}"
    )


def named_squares(run: pathexpand.Run) -> float:
    """Sum the squares of the contributions of all named paths, one by one."""
    frozen = run.frozen
    readout = run.target().readout(run.model.weights, run.position())
    embed = frozen.sources[0].values
    first, second = frozen.layers
    total = float((embed[readout.position] @ readout.direction) ** 2)
    for layer in frozen.layers:
        for n in range(len(layer.heads)):
            read = embed @ (layer.W_V[n] @ (layer.W_O[n] @ readout.direction))
            total += float(((layer.patterns[n][readout.position] * read) ** 2).sum())
    for a, b in product(range(len(first.heads)), range(len(second.heads))):
        behind = second.W_V[b] @ (second.W_O[b] @ readout.direction)
        read = embed @ (first.W_V[a] @ (first.W_O[a] @ behind))
        row = second.patterns[b][readout.position]
        total += float(((row[:, None] * first.patterns[a] * read) ** 2).sum())
    return total


def timed(job: Callable[[], object]) -> float:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        job()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


if __name__ == "__main__":
    main()
