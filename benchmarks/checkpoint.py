"""Real checkpoints against the tools people use: a dense pass, an order-1 table, loading.

    python benchmarks/checkpoint.py [forward] [order1] [load]

(forward) GPT-2-small-sized random model, 64 tokens: our dense pass in float32 against that of
    transformers on the CPU, in the same process and on the same prompt.
(order1)  The same model: every head's direct path in a closed table (`run.paths(max_order=1)`),
    against TransformerLens' `stack_head_results` and `logit_attrs`, both with their dense pass;
    then the peak memory of each from load to table, in a process of its own.
(load)    Load time and peak memory of that checkpoint, and of one shaped like a model of a billion
    parameters (random, sharded, bf16): each in a process of its own (memory is read from /proc).

torch, transformers and transformer_lens must be installed for the first two; what is missing is
left out. Set OPENBLAS_NUM_THREADS and OMP_NUM_THREADS to choose the number of cores.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "n_positions": 1024,
    "vocab_size": 50257,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "max_position_embeddings": 2048,
    "vocab_size": 32000,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
TOKENS = 64
HERE = Path(__file__).parent


def main() -> None:
    chosen = sys.argv[1:] or ["forward", "order1", "load"]
    with tempfile.TemporaryDirectory() as place:
        small = write(Path(place) / "gpt2", GPT2, gpt2_tensors(), "F32", shards=1)
        if "forward" in chosen:
            dense_forward(small)
        if "order1" in chosen:
            order_one(small)
        if "load" in chosen:
            large = write(Path(place) / "llama", LLAMA, llama_tensors(), "BF16", shards=4)
            for name, folder in (("GPT-2 small, float32", small), ("1.1 billion, bf16", large)):
                loading(name, folder)


def dense_forward(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from pathexpand.model.checkpoint import read_checkpoint
    from pathexpand.model.forward import final_logits, forward

    checkpoint, ids = read_checkpoint(folder), prompt(GPT2["vocab_size"])
    mask = np.ones(ids.shape, dtype=bool)
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()

    def ours() -> np.ndarray:
        run = forward(checkpoint.weights, checkpoint.config, ids, mask, dtype=np.float32)
        return final_logits(checkpoint.weights, checkpoint.config, run)

    def their() -> np.ndarray:
        with torch.no_grad():
            return theirs(torch.tensor(ids)).logits.numpy()

    apart = abs(ours() - their()).max()
    one, other = fastest(ours), fastest(their)
    print(f"\nforward, float32, {TOKENS} tokens (largest difference of a logit {apart:.1g})")
    print(f"ours {1e3 * one:.0f} ms, transformers {1e3 * other:.0f} ms: {one / other:.2f} x")


def order_one(folder: Path) -> None:
    one, other = fastest(our_table(folder)), fastest(their_table())
    print(f"\norder-1 table, {TOKENS} tokens, dense pass included")
    print(f"ours {one:.2f} s (float64, closed), TransformerLens {other:.2f} s (float32): ", end="")
    print(f"{one / other:.2f} x")
    ours, theirs = (peak_of(whose, folder) for whose in ("ours", "theirs"))
    print(f"peak memory {ours:.2f} GB against {theirs:.2f} GB: {ours / theirs:.2f} x")


def our_table(folder: Path) -> Callable[[], object]:
    import pathexpand

    model, ids = pathexpand.load(folder), prompt(GPT2["vocab_size"])

    def work() -> None:
        table = model.run(ids[0]).paths(5, max_order=1, top=20)
        assert table.closes and table.certified

    return work


def their_table() -> Callable[[], object]:
    import torch
    import transformer_lens

    # Of the same sizes, with random weights of its own.
    lens = transformer_lens.HookedTransformer(
        transformer_lens.HookedTransformerConfig(
            n_layers=12, n_heads=12, d_model=768, d_head=64, d_mlp=3072, n_ctx=1024,
            d_vocab=50257, act_fn="gelu_new", normalization_type="LN", device="cpu",
        )
    )  # fmt: skip
    ids = torch.tensor(prompt(GPT2["vocab_size"]))

    def work() -> None:
        with torch.no_grad():
            _, cache = lens.run_with_cache(ids)
            stack = cache.stack_head_results(layer=-1, pos_slice=-1)
            cache.logit_attrs(stack, tokens=5, pos_slice=-1)

    return work


def peak_of(whose: str, folder: Path) -> float:
    """Give the peak memory of one table in GB, what the imports take left out."""
    imports = "pathexpand.api" if whose == "ours" else "torch, transformer_lens"
    work = "our_table(Path(sys.argv[1]))" if whose == "ours" else "their_table()"
    code = (
        f"import sys, {imports}; from pathlib import Path; sys.path.insert(0, {str(HERE)!r});"
        f"from checkpoint import *; base = peak(); {work}(); print(peak() - base)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1]) / 1e6


def peak() -> int:
    """Give the most memory that this process has had, in kilobytes."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def loading(name: str, folder: Path) -> None:
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    code = (
        "import sys, time, numpy, pathexpand.api;"
        "peak = lambda: int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]);"
        "base, start = peak(), time.perf_counter(); pathexpand.load(sys.argv[1]);"
        "print(time.perf_counter() - start, peak() - base)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    seconds, kilobytes = map(float, done.stdout.split())
    print(f"\nload {name}: {size / 1e9:.2f} GB on disk")
    print(f"{seconds:.1f} s, peak memory {kilobytes / 1e6:.2f} GB", end="")
    print(f": {kilobytes * 1024 / size:.2f} x the file (its probe included)")


def prompt(vocabulary: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, vocabulary, (1, TOKENS))


def fastest(work: Callable[[], object]) -> float:
    work()
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return float(best)


def gpt2_tensors() -> dict[str, tuple[int, ...]]:
    d = 768
    shapes = {"wte.weight": (50257, d), "wpe.weight": (1024, d)}
    for layer in range(12):
        at = f"h.{layer}."
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{at}{norm}.weight": (d,), f"{at}{norm}.bias": (d,)}
        shapes |= {f"{at}attn.c_attn.weight": (d, 3 * d), f"{at}attn.c_attn.bias": (3 * d,)}
        shapes |= {f"{at}attn.c_proj.weight": (d, d), f"{at}attn.c_proj.bias": (d,)}
        shapes |= {f"{at}mlp.c_fc.weight": (d, 4 * d), f"{at}mlp.c_fc.bias": (4 * d,)}
        shapes |= {f"{at}mlp.c_proj.weight": (4 * d, d), f"{at}mlp.c_proj.bias": (d,)}
    shapes |= {"ln_f.weight": (d,), "ln_f.bias": (d,)}
    return {f"transformer.{name}": shape for name, shape in shapes.items()}


def llama_tensors() -> dict[str, tuple[int, ...]]:
    d, m, kv = 2048, 5632, 256
    shapes = {"model.embed_tokens.weight": (32000, d), "lm_head.weight": (32000, d)}
    for layer in range(22):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}input_layernorm.weight": (d,)}
        shapes |= {f"{at}post_attention_layernorm.weight": (d,)}
        shapes |= {f"{at}self_attn.q_proj.weight": (d, d), f"{at}self_attn.o_proj.weight": (d, d)}
        shapes |= {f"{at}self_attn.{name}_proj.weight": (kv, d) for name in "kv"}
        shapes |= {f"{at}mlp.{name}_proj.weight": (m, d) for name in ("gate", "up")}
        shapes |= {f"{at}mlp.down_proj.weight": (d, m)}
    return shapes | {"model.norm.weight": (d,)}


def write(
    folder: Path, config: dict, shapes: dict[str, tuple[int, ...]], dtype: str, *, shards: int
) -> Path:
    """Write a random checkpoint shard by shard, so that little of it is ever in memory."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    rng, names = np.random.default_rng(0), list(shapes)
    index = {}
    for shard in range(shards):
        own = names[shard::shards]
        file = folder / f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        file = folder / "model.safetensors" if shards == 1 else file
        index |= dict.fromkeys(own, file.name)
        write_shard(file, {name: shapes[name] for name in own}, dtype, rng)
    if shards > 1:
        text = json.dumps({"metadata": {}, "weight_map": index})
        (folder / "model.safetensors.index.json").write_text(text)
    return folder


def write_shard(
    file: Path, shapes: dict[str, tuple[int, ...]], dtype: str, rng: np.random.Generator
) -> None:
    width, header, offset = 4 if dtype == "F32" else 2, {}, 0
    for name, shape in shapes.items():
        size = width * int(np.prod(shape))
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # as safetensors does, so that the numbers are aligned
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            values = 0.02 * rng.standard_normal(shape, dtype=np.float32)
            values += "norm" in name or (".ln_" in name and name.endswith("weight"))
            if dtype == "BF16":
                values = (values.view(np.uint32) >> 16).astype(np.uint16)
            out.write(values.tobytes())


if __name__ == "__main__":
    main()
