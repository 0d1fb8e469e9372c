"""An attribution graph by us and by circuit-tracer, on the CPU, in one run.

    python benchmarks/graph.py [--layers N] [--python PYTHON] [--small]

The same random model with the same transcoders (16 layers, d_model 64, 256 features a layer, unless
--layers says otherwise; --small takes a stored two-layer case) and the same tokens. PYTHON is an
interpreter that has circuit-tracer (CIRCUIT_TRACER_PYTHON is looked at, too); without one only our
side is run, and that is said. Each side runs in a process of its own, in float64, single-threaded
unless OPENBLAS_NUM_THREADS says otherwise, and its peak memory is its own. "pruned" is our graph
pruned as it is made, which never holds all weights.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GRAPHS = Path(__file__).parents[1] / "tests" / "reference" / "graphs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--python", default=os.environ.get("CIRCUIT_TRACER_PYTHON"))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--ours", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--pruned", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.ours:
        print(json.dumps(ours(Path(asked.ours), pruned=asked.pruned)))
        return
    if asked.python is None and not asked.small:
        sys.exit("The large case is made by circuit-tracer: give --python, or take --small.")
    with tempfile.TemporaryDirectory() as place:
        folder = GRAPHS / "relu-layer-norm-0" if asked.small else Path(place) / "large"
        if not asked.small:
            make = [asked.python, str(GRAPHS / "make.py"), "--large", str(folder)]
            subprocess.run([*make, "--layers", str(asked.layers)], check=True)
        compare(folder, asked.python)


def compare(folder: Path, python: str | None) -> None:
    env = {"OPENBLAS_NUM_THREADS": "1"} | os.environ | {"OMP_NUM_THREADS": "1"}
    rows = {}
    for name, more in (("ours", []), ("pruned", ["--pruned"])):
        command = [sys.executable, __file__, "--ours", str(folder), *more]
        rows[name] = measured(command, env)
    if python is None:
        print("circuit-tracer was not run: no --python")
    else:
        command = [python, str(GRAPHS / "time_circuit_tracer.py"), str(folder)]
        rows["circuit-tracer"] = measured(command, env)
    print(f"{'':15} {'nodes':>6} {'attribute':>10} {'prune':>8} {'peak MB':>8}")
    for name, row in rows.items():
        print(
            f"{name:15} {row.get('nodes', ''):>6} {row['attribute']:>9.2f}s {row['prune']:>7.2f}s "
            f"{row['peak']:>8.0f}"
        )
    if python is not None:
        whole, theirs = rows["ours"], rows["circuit-tracer"]
        took = [each["attribute"] + each["prune"] for each in (whole, theirs)]
        print(f"time {took[0] / took[1]:.2f} ×, memory {whole['peak'] / theirs['peak']:.2f} ×")


def measured(command: list[str], env: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def ours(folder: Path, *, pruned: bool) -> dict[str, float]:
    import numpy as np

    import pathexpand
    from pathexpand.features import load_units
    from pathexpand.features.influence import prune, scores

    with np.load(folder / "golden.npz") as kept:
        tokens = [int(token) for token in kept["tokens"]]
    model = pathexpand.load(folder)
    units = load_units(folder / "transcoders")
    start = time.perf_counter()
    options = {"zero_positions": 1, "force": True, "folded": True}
    graph = model.run(tokens).graph(units, prune=pruned, **options)
    middle = time.perf_counter()
    if not pruned:
        prune(graph)
    scores(graph)
    end = time.perf_counter()
    if not graph.closes:
        sys.exit("the graph does not close")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return {
        "nodes": len(graph),
        "attribute": middle - start,
        "prune": end - middle,
        "peak": peak,
    }


if __name__ == "__main__":
    main()
