"""Check certificates, and draw samples, against the search and against enumeration.

    python benchmarks/certificate.py

The time to check a table's certificate over the time to make the table: of the embedded two-layer
model, and of random models with 3 layers of 6 heads and 768 neurons, their MLPs taken in each way.
And the time to draw 10,000 named paths over the time to value every named path.
"""

import time
from collections.abc import Callable
from itertools import product

import numpy as np

import pathexpand
from pathexpand.certificate import certify, check_certificate
from pathexpand.frozen import HeadGroup
from pathexpand.laws.design import Design, random_transformer

PROMPT = "Humpty Dumpty sat on a wall. Humpty D"


def main() -> None:
    model = pathexpand.load("two-layer")
    run = model.run(PROMPT)
    compare("two-layer", run, top=10)
    for mlp in ("source", "frozen", "neurons"):
        design = Design(
            n_layers=3, n_heads=6, n_key_value_heads=6, d_model=192, d_head=32, d_mlp=768,
            d_vocab=97, d_vocab_out=97, n_ctx=12, mlp=mlp,
        )  # fmt: skip
        large = random_transformer(design, seed=1).run(list(range(12)))
        compare(f"3 × 6 × 768, {mlp}", large, top=100)
    drawing = timed(lambda: run.sample(10_000))
    listing = timed(lambda: named_squares(run))
    sample = run.sample(10_000)
    print(f"10,000 draws {1000 * drawing:.0f} ms, every named path {1000 * listing:.0f} ms")
    print(
        f"ratio {drawing / listing:.2f}; energy off by {sample.energy / named_squares(run) - 1:.1e}"
    )


def compare(name: str, run: pathexpand.Run, *, top: int) -> None:
    """Print how long a table takes, and its check, which must pass."""
    certificate = certify(run, run.searched_paths(top=top))
    assert all(finding.holds for finding in check_certificate(certificate, run.model))
    making = timed(lambda: run.paths(top=top))
    checking = timed(lambda: check_certificate(certificate, run.model))
    times = f"table {1000 * making:.1f} ms, check {1000 * checking:.1f} ms"
    print(f"{name}: {run.model.count():.1e} paths, {times}: {checking / making:.1f}")


def named_squares(run: pathexpand.Run) -> float:
    """Sum the squares of the contributions of all named paths, one by one."""
    frozen = run.frozen
    readout = run.target().readout(run.unembed, run.position())
    embed = frozen.sources[0].values
    groups = [group for stage in frozen.stages for group in stage.groups]
    first, second = (group for group in groups if isinstance(group, HeadGroup))
    total = float((embed[readout.position] @ readout.direction) ** 2)
    for group in (first, second):
        for n in range(len(group.components)):
            read = embed @ (group.W_V[n] @ (group.W_O[n] @ readout.direction))
            total += float(((group.patterns[n][readout.position] * read) ** 2).sum())
    for a, b in product(range(len(first.components)), range(len(second.components))):
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
