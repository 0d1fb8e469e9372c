"""Time circuit-tracer on a case folder, and print what it took as JSON.

Run by an interpreter that has circuit-tracer, in a process of its own for the peak to be its own:

    python tests/reference/graphs/time_circuit_tracer.py FOLDER [--dtype float32] [--batch 512]

`load`, `attribute` and `prune` (with the scores) are seconds. `peak` is the process's largest
resident size at the end in megabytes (10⁶ bytes), `peak_attribute` the same before pruning, and
`before` the same before attributing, with everything imported and loaded.
"""

import argparse
import json
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from circuit_tracer.attribution.attribute import attribute
from circuit_tracer.graph import compute_graph_scores, prune_graph
from replacement import read_replacement


def resident() -> float:
    """Give the largest resident size so far, in megabytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--batch", type=int, default=512, help="circuit-tracer's own default")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    dtype = getattr(torch, asked.dtype)
    torch.set_default_dtype(dtype)
    with np.load(asked.folder / "golden.npz") as kept:
        tokens = torch.from_numpy(kept["tokens"])
    marks = [time.perf_counter()]
    model = read_replacement(asked.folder, dtype)
    marks.append(time.perf_counter())
    before = resident()
    graph = attribute(tokens, model, batch_size=asked.batch)
    marks.append(time.perf_counter())
    attributed = resident()
    prune_graph(graph)
    compute_graph_scores(graph)
    marks.append(time.perf_counter())
    load, took, prune = (round(end - start, 4) for start, end in pairwise(marks))
    found = {
        "load": load,
        "attribute": took,
        "prune": prune,
        "before": round(before, 1),
        "peak_attribute": round(attributed, 1),
        "peak": round(resident(), 1),
        "features": len(graph.active_features),
        "nodes": len(graph.adjacency_matrix),
        "logits": len(graph.logit_targets),
        "positions": len(tokens),
        "layers": model.cfg.n_layers,
        "dtype": asked.dtype,
        "batch": asked.batch,
        "threads": asked.threads,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
