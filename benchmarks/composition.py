"""Composition and copying scores of all heads, against TransformerLens on equal weights.

    python benchmarks/composition.py [--other PYTHON] [--d-model N] [--kinds QKV]

A model of 12 layers of 12 heads with random weights, d_model 768: all composition scores of each
kind, with and without samples of chance, and all 144 copying scores with a vocabulary of 50,257.

`--other`, or PATHEXPAND_TRANSFORMER_LENS, names the python of an environment with TransformerLens
(2.16 was measured: it needs numpy<2 and pyarrow<20). It scores the same weights, cast to float32,
in a process of its own; the largest difference between both sides' scores is printed. It takes
9 to 18 GB at d_model 768.

Each line is a fresh process; its memory is what it held at most beyond what it held with the
weights loaded (read from Linux's /proc). OPENBLAS_NUM_THREADS and OMP_NUM_THREADS choose the number
of cores; where others use them too, compare the seconds of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LAYERS, HEADS, VOCABULARY = 12, 12, 50_257

OTHER_SIDE = """
import json, sys, time
import numpy as np
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

file, out, kind = sys.argv[1:]
held = np.load(file)
layers, heads, d_model, d_head = held["W_Q"].shape
def held_bytes(line):
    text = open("/proc/self/status").read()
    return int(text.split(line + ":")[1].split()[0]) / 1e3

config = HookedTransformerConfig(
    n_layers=layers, n_heads=heads, d_model=d_model, d_head=d_head, n_ctx=8, d_vocab=16,
    attn_only=True, normalization_type=None, device="cpu",
)
model = HookedTransformer(config)
with torch.no_grad():
    for layer, block in enumerate(model.blocks):
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            getattr(block.attn, name).copy_(torch.from_numpy(held[name][layer]))
    open("/proc/self/clear_refs", "w").write("5")
    before = held_bytes("VmRSS")
    start, began = time.perf_counter(), time.process_time()
    scores = model.all_composition_scores(kind)
    seconds = time.perf_counter() - start
    processor = time.process_time() - began
peak = held_bytes("VmHWM")
np.save(out, scores.numpy().reshape(layers * heads, layers * heads))
print(json.dumps({"seconds": seconds, "processor": processor, "megabytes": peak - before}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", default=os.environ.get("PATHEXPAND_TRANSFORMER_LENS"))
    parser.add_argument("--d-model", type=int, default=768)
    parser.add_argument("--kinds", default="QKV")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        work(options.job, options.d_model)
        return
    print(f"{LAYERS} layers of {HEADS} heads, d_model {options.d_model}, d_head {d_head(options)}")
    print(f"{'':40}{'seconds':>9}{'processor':>11}{'added MB':>10}")
    for kind in options.kinds:
        own = in_a_process(f"scores {kind}", options.d_model)
        report(f"{kind}: all scores", own)
        report(
            f"{kind}: with 1,000 samples of chance", in_a_process(f"chance {kind}", options.d_model)
        )
        if options.other:
            compare(options, kind, own)
    if not options.other:
        print("TransformerLens is not compared: --other names the python of its environment")
    report(
        f"copying of all heads, vocabulary {VOCABULARY:,}", in_a_process("copying", options.d_model)
    )
    report("with diagonals of 2,000 tokens", in_a_process("diagonals", options.d_model))


def compare(options: argparse.Namespace, kind: str, own: dict[str, Any]) -> None:
    """Let the other side score the same weights, and hold its scores against ours."""
    with tempfile.TemporaryDirectory() as folder:
        weights, theirs = Path(folder) / "weights.npz", Path(folder) / "scores.npy"
        np.savez(weights, **stacked(options.d_model))
        done = subprocess.run(
            [options.other, "-c", OTHER_SIDE, str(weights), str(theirs), kind],
            check=True,
            capture_output=True,
            text=True,
        )
        other = json.loads(done.stdout.splitlines()[-1])
        scores = np.load(theirs)
    report(f"{kind}: TransformerLens, float32", other)
    ours = np.array(own["scores"])
    pairs = np.isfinite(ours)
    gap = np.max(abs(scores[pairs] - ours[pairs]) / ours[pairs])
    print(
        f"   {other['seconds'] / own['seconds']:.1f} times as long "
        f"({other['processor'] / own['processor']:.1f} in processor time), "
        f"{other['megabytes'] / max(own['megabytes'], 1):.0f} times the memory; scores differ by "
        f"at most {gap:.0e} of themselves; no pair elsewhere: {not scores[~pairs].any()}"
    )


def report(label: str, found: dict[str, Any]) -> None:
    seconds, processor = found["seconds"], found["processor"]
    print(f"{label:40}{seconds:9.2f}{processor:11.2f}{found['megabytes']:10.0f}", flush=True)


def in_a_process(job: str, d_model: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--job", job, "--d-model", str(d_model)],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def work(job: str, d_model: int) -> None:
    """Do one job, and print what it took as JSON."""
    from pathexpand.circuits.composition import composition
    from pathexpand.circuits.copying import copying

    name, _, kind = job.partition(" ")
    checkpoint = model(d_model, VOCABULARY if name in ("copying", "diagonals") else 16)
    calls: dict[str, Callable[[], Any]] = {
        "scores": lambda: composition(checkpoint, kind, samples=0).matrix,  # type: ignore[arg-type]
        "chance": lambda: composition(checkpoint, kind).matrix,  # type: ignore[arg-type]
        "copying": lambda: copying(checkpoint, sample=0).scores,
        "diagonals": lambda: copying(checkpoint).scores,
    }
    forget_peak()
    before = held("VmRSS")
    start, began = time.perf_counter(), time.process_time()
    scores = calls[name]()
    found: dict[str, Any] = {
        "seconds": time.perf_counter() - start,
        "processor": time.process_time() - began,
        "megabytes": held("VmHWM") - before,
    }
    if name == "scores":
        found["scores"] = scores.tolist()
    print(json.dumps(found))


def model(d_model: int, vocabulary: int) -> Any:
    """Make the model: float32 weights, as checkpoints have them."""
    import pathexpand

    config = {
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "d_model": d_model,
        "d_head": d_model // HEADS,
        "d_vocab": vocabulary,
        "n_ctx": 8,
        "attn_only": True,
        "positional_embedding_type": "standard",
        "attention_dir": "causal",
    }
    held = stacked(d_model)
    rng = np.random.default_rng(1)

    def rows(count: int) -> np.ndarray:
        return rng.standard_normal((count, d_model), dtype=np.float32)

    tensors = {"embed.W_E": rows(vocabulary), "unembed.W_U": rows(vocabulary).T}
    tensors["pos_embed.W_pos"] = rows(8)
    for layer in range(LAYERS):
        for name, array in held.items():
            tensors[f"blocks.{layer}.attn.{name}"] = array[layer]
    return pathexpand.from_state_dict(tensors, config).checkpoint


def stacked(d_model: int) -> dict[str, np.ndarray]:
    """Draw all heads' matrices: (layer, head, d_model, d_head), W_O turned over."""
    rng = np.random.default_rng(0)
    shape = (LAYERS, HEADS, d_model, d_model // HEADS)

    def draw() -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32) / np.float32(d_model**0.5)

    W_Q, W_K, W_V, W_O = (draw() for _ in range(4))
    return {"W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": np.swapaxes(W_O, 2, 3).copy()}


def d_head(options: argparse.Namespace) -> int:
    return int(options.d_model // HEADS)


def forget_peak() -> None:
    """Let the peak of this process's memory begin anew (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def held(line: str) -> float:
    """Give what this process holds (VmRSS), or has held at most (VmHWM), in megabytes (Linux)."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{line}:")[1].split()[0]) / 1e3


if __name__ == "__main__":
    main()
