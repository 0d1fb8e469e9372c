"""Top entries of a circuit over a whole vocabulary: run ``python benchmarks/circuits.py``.

A QK circuit of 50,257 tokens and a head of 64 numbers has 2.5 billion entries, 10 GB in float32.
Its 20 largest are found exactly by `largest`, by value and by absolute value, and beside it the
plain blocked float32 product is timed that a user would write, which selects nothing at all. Both
are repeated in turns in one run, so that the ratio means something on any machine. The matrix is
random: its rows are of like norm, so that no block can be skipped, which is the hard case; a second
one has the norms of a real vocabulary's tail. Peak memory is that of a process of its own, which
finds the entries and does nothing else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pathexpand.circuits.largest import Largest, largest
from pathexpand.lowrank import Factored

ROWS = 1024  # at once in the plain product


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=50_257)
    parser.add_argument("--d-head", type=int, default=64)
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-memory", action="store_true", help="what the child process does")
    options = parser.parse_args()
    if options.only_memory:
        print(memory(options))
        return
    print(f"{options.vocabulary:,}² entries, width {options.d_head}, top {options.top}")
    for name, spread in (("equal norms", 0.0), ("norms spread by e^±0.5", 0.5)):
        matrix = circuit(options, spread)
        rows, columns = matrix.left.astype(np.float32), matrix.right.astype(np.float32)
        ways: dict[str, Callable[[], Any]] = {
            "plain float32 product, nothing selected": lambda: plain(rows, columns),  # noqa: B023
            "largest by value": lambda: largest(matrix, options.top),  # noqa: B023
            "largest by size": lambda: largest(matrix, options.top, by="size"),  # noqa: B023
        }
        times = in_turns(ways, options.repeats)
        base = times["plain float32 product, nothing selected"]
        print(name)
        for way, seconds in times.items():
            print(f"  {way:<42}{seconds:>8.2f} s{seconds / base:>8.2f} ×")
    check(options)
    command = [sys.executable, str(Path(__file__)), "--only-memory"]
    for name in ("vocabulary", "d_head", "top", "seed"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    print(f"peak memory of a process that finds them {done.stdout.strip()}")


def circuit(options: argparse.Namespace, spread: float) -> Factored:
    rng = np.random.default_rng(options.seed)
    sides = [rng.standard_normal((options.vocabulary, options.d_head)) for _ in range(2)]
    sides = [side * np.exp(spread * rng.standard_normal((len(side), 1))) for side in sides]
    return Factored(sides[0], sides[1].T)


def plain(rows: np.ndarray, columns: np.ndarray) -> int:
    count = 0
    for start in range(0, len(rows), ROWS):
        block = rows[start : start + ROWS] @ columns
        count += block.size
    return count


def in_turns(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, call in ways.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: min(each) for name, each in times.items()}


def check(options: argparse.Namespace) -> None:
    """Compare with brute force on rows and columns that can be held."""
    matrix = circuit(options, 0.5)
    rows, columns = np.arange(0, 3000, 3), np.arange(1, 6000, 2)
    rows, columns = rows[rows < options.vocabulary], columns[columns < options.vocabulary]
    found: Largest = largest(matrix, options.top, rows=rows, columns=columns)
    dense = matrix.left[rows] @ matrix.right[:, columns]
    wanted = np.sort(dense.ravel())[::-1][: options.top]
    gap = float(np.max(np.abs(found.values - wanted)))
    print(f"against brute force on {dense.shape[0]:,} × {dense.shape[1]:,}: gap {gap:.0e}")


def memory(options: argparse.Namespace) -> str:
    largest(circuit(options, 0.0), options.top, by="size")
    text = Path("/proc/self/status").read_text(encoding="utf-8")  # Linux
    return f"{int(text.split('VmHWM:')[1].split()[0]) / 1e6:.2f} GB"


if __name__ == "__main__":
    main()
