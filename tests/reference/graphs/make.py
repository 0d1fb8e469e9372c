"""Write what circuit-tracer makes of small random models with random transcoders.

Not a test and not needed by one: it needs torch, transformer-lens (3.2), circuit-tracer (0.5) and
numpy. Run as

    python tests/reference/graphs/make.py                    # rewrite every case folder
    python tests/reference/graphs/make.py --check            # make all anew, compare with the files
    python tests/reference/graphs/make.py --large FOLDER     # one case of 16 layers, to be timed

Every case is a folder: `config.json` and `model.safetensors`, a TransformerLens model in float64;
`transcoders`, in circuit-tracer's own layout; `golden.npz`, what circuit-tracer found. In there,
nodes are in circuit-tracer's order: features by (layer, position, feature), errors by (layer,
position), tokens by position, logits by probability.

    tokens (position), logits (position, d_vocab)
    adjacency (target, source)                       row t, column s: what s adds to t
    active_features (feature, [layer, position, feature]), activation_values (feature)
    logit_ids, logit_probabilities (logit)
    node_influence, cumulative_influence (node)      of the whole graph
    edge_scores (target, source)                     of the graph of the nodes kept at 0.8
    kept_nodes (node), kept_edges (target, source)   pruned at 0.8 and 0.98
    scores                                           replacement, completeness; not pruned
    errors (layer, position, d_model)                what the error nodes write

Three arrays are ours, for circuit-tracer has no such thing: `values` (features, then logits) are
the numbers explained: pre-activations, and logits before a soft cap and without b_U, less their
mean over the vocabulary. `constants` are the same of the frozen model with no feature, error or
token in it, and `gap` is the largest |values − row sums| without and with the constants.
"""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from circuit_tracer.attribution.attribute import attribute
from circuit_tracer.graph import (
    compute_edge_influence,
    compute_graph_scores,
    compute_node_influence,
    prune_graph,
)
from replacement import read_model, read_replacement
from safetensors.torch import load_file, save_file
from transformer_lens import HookedTransformer, HookedTransformerConfig

HERE = Path(__file__).parent
NODES_KEPT, EDGES_KEPT = 0.8, 0.98
SAME = 1e-12  # relative to the largest number of an array
STEADY = 1e-9  # how far every choice must be from tipping over
SEEDS = (0, 1)

SIZES = {"n_layers": 2, "n_heads": 3, "d_model": 7, "d_head": 2, "d_mlp": 11, "d_vocab": 17}
PLAIN = {**SIZES, "n_ctx": 6, "act_fn": "gelu", "init_weights": False, "device": "cpu"}
ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 2}
DEEP = {"n_layers": 3, "n_heads": 2, "d_model": 5, "d_head": 3, "d_mlp": 13}
GEMMA = {
    **ROTARY,
    "normalization_type": "RMS",
    "use_normalization_before_and_after": True,
    "gated_mlp": True,
    "act_fn": "gelu_pytorch_tanh",
    "n_heads": 4,
    "n_key_value_heads": 2,
    "attn_scores_soft_cap": 3.0,
    "output_logits_soft_cap": 2.0,
    "use_local_attn": True,
    "window_size": 3,
    "attn_types": ["global", "local"],
    "eps": 1e-6,
}
MLP = ("mlp.hook_in", "mlp.hook_out")
STREAM = ("hook_resid_mid", "hook_mlp_out")


@dataclass(frozen=True, slots=True)
class Case:
    model: dict[str, Any]
    kind: str  # "relu", "jumprelu" or "topk"
    features: int
    hooks: tuple[str, str] = MLP
    cross: bool = False
    skip: bool = False
    k: int | None = None
    tokens: int = 5
    seeds: tuple[int, ...] = field(default=SEEDS)


CASES = {
    "relu-layer-norm": Case({"normalization_type": "LN"}, "relu", 13),
    "jumprelu-rms": Case({**ROTARY, "normalization_type": "RMSPre"}, "jumprelu", 13),
    "jumprelu-skip": Case({"normalization_type": "LNPre"}, "jumprelu", 13, skip=True),
    "topk": Case({"normalization_type": "LN", **ROTARY}, "topk", 13, k=7),
    "cross-relu": Case(
        {**DEEP, "normalization_type": "LN"}, "relu", 9, STREAM, cross=True, tokens=4
    ),
    "cross-jumprelu": Case(
        {**DEEP, **ROTARY, "normalization_type": "RMS"},
        "jumprelu",
        11,
        cross=True,
        tokens=4,
    ),
    "gemma": Case(GEMMA, "jumprelu", 13, ("ln2.hook_normalized", "hook_mlp_out"), seeds=(0,)),
    "gemma-inner": Case(GEMMA, "jumprelu", 13, MLP, seeds=(1,)),
    "four-layers": Case(
        {**DEEP, "n_layers": 4, "normalization_type": "LN"},
        "jumprelu",
        8,
        STREAM,
        skip=True,
    ),
}
LARGE = Case(
    {"n_layers": 16, "d_model": 64, "n_heads": 4, "d_head": 16, "d_mlp": 128, "d_vocab": 128}
    | {**ROTARY, "rotary_dim": 16, "normalization_type": "RMS", "n_ctx": 16},
    "jumprelu",
    256,
)


def draw(generator: np.random.Generator, *shape: int, low: float = -1.0) -> torch.Tensor:
    """Draw numbers, uniform from `low` to 1."""
    return torch.from_numpy(generator.uniform(low, 1.0, size=shape))


def write_model(folder: Path, case: Case, generator: np.random.Generator) -> None:
    """Write a random model and its configuration."""
    config = HookedTransformerConfig(
        **{**PLAIN, **case.model, "dtype": torch.float64, "model_name": "tiny"}
    )
    model = HookedTransformer(config)
    tensors = {name: draw(generator, *old.shape) for name, old in sorted(model.named_parameters())}
    save_file(tensors, folder / "model.safetensors")
    kinds = (bool, int, float, str, list, type(None))
    kept = {key: value for key, value in config.to_dict().items() if isinstance(value, kinds)}
    write_json(folder / "config.json", kept)


def write_transcoders(folder: Path, case: Case, generator: np.random.Generator) -> None:
    """Write random transcoders in circuit-tracer's layout."""
    sizes = {**PLAIN, **case.model}
    layers, wide = int(sizes["n_layers"]), int(sizes["d_model"])
    settings: dict[str, Any] = {
        "model_kind": "cross_layer_transcoder" if case.cross else "transcoder_set",
        "model_name": "tiny",
        "feature_input_hook": case.hooks[0],
        "feature_output_hook": case.hooks[1],
    }
    if case.kind == "topk":
        settings |= {"activation": "topk", "k": case.k}
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    for layer in range(layers):
        write = write_cross if case.cross else write_single
        write(folder, case, layer, (layers, wide), generator)


def write_single(
    folder: Path, case: Case, layer: int, sizes: tuple[int, int], generator: np.random.Generator
) -> None:
    """Write one layer's own transcoder."""
    wide = sizes[1]
    tensors = {
        "W_enc": draw(generator, case.features, wide),
        "W_dec": draw(generator, case.features, wide),
        "b_enc": draw(generator, case.features),
        "b_dec": draw(generator, wide),
    }
    if case.kind == "jumprelu":
        tensors["activation_function.threshold"] = draw(generator, case.features, low=0.0)
    if case.skip:
        tensors["W_skip"] = draw(generator, wide, wide)
    save_file(tensors, folder / f"layer_{layer}.safetensors")


def write_cross(
    folder: Path, case: Case, layer: int, sizes: tuple[int, int], generator: np.random.Generator
) -> None:
    """Write one layer of a cross-layer transcoder: it writes to this layer and all above."""
    layers, wide = sizes
    encoder = {
        f"W_enc_{layer}": draw(generator, case.features, wide),
        f"b_enc_{layer}": draw(generator, case.features),
        f"b_dec_{layer}": draw(generator, wide),
    }
    if case.kind == "jumprelu":
        encoder[f"threshold_{layer}"] = draw(generator, case.features, low=0.0)
    save_file(encoder, folder / f"W_enc_{layer}.safetensors")
    decoder = {f"W_dec_{layer}": draw(generator, case.features, layers - layer, wide)}
    save_file(decoder, folder / f"W_dec_{layer}.safetensors")


def inner_decoder_bias(model: Any, layer: int) -> torch.Tensor:
    """Give b_dec of a layer, which both kinds of transcoder keep elsewhere."""
    transcoders = model.transcoders
    return (
        transcoders[layer].b_dec if hasattr(transcoders, "__iter__") else transcoders.b_dec[layer]
    )


def frozen_constants(model: Any, tokens: torch.Tensor) -> tuple[dict[int, Any], torch.Tensor]:
    """Run the frozen model with no token, feature or error: the encoders' inputs, the last stream.

    What is left are biases and positions, b_dec, and the whole MLP output (less the skip) at the
    first position, where circuit-tracer has neither features nor errors.
    """
    with torch.no_grad():
        _, real = model.run_with_cache(tokens)
    inputs: dict[int, Any] = {}

    def stored(acts: torch.Tensor, hook: Any) -> torch.Tensor:
        return real[hook.name]

    def none(acts: torch.Tensor, hook: Any) -> torch.Tensor:
        return torch.zeros_like(acts)

    def keep(acts: torch.Tensor, hook: Any) -> None:
        inputs[int(hook.name.split(".")[1])] = acts[0]

    def constant(acts: torch.Tensor, hook: Any) -> torch.Tensor:
        layer = int(hook.name.split(".")[1])
        out = inner_decoder_bias(model, layer).expand_as(acts).clone()
        out[:, 0] = real[hook.name][:, 0]
        if not model.skip_transcoder:
            return out
        read = real[f"blocks.{layer}.{model.feature_input_hook}"]
        out[:, 0] -= model.transcoders.compute_skip(layer, read)[:, 0]
        return out + model.transcoders.compute_skip(layer, inputs[layer])

    hooks: list[tuple[Any, Any]] = [("hook_embed", none)]
    hooks += [(lambda name: name.endswith(("hook_pattern", "hook_scale")), stored)]
    for layer in range(model.cfg.n_layers):
        hooks.append((f"blocks.{layer}.{model.feature_input_hook}", keep))
        hooks.append((f"blocks.{layer}.{model.feature_output_hook}", constant))
    with torch.no_grad():
        last: list[torch.Tensor] = []
        hooks.append(("unembed.hook_pre", lambda acts, hook: last.append(acts[0, -1])))
        model.run_with_hooks(tokens, fwd_hooks=hooks)
    return inputs, last[0]


def plain_inputs(model: Any, tokens: torch.Tensor) -> tuple[dict[int, Any], torch.Tensor]:
    """Give the encoders' inputs and the last stream of the model as it is."""
    with torch.no_grad():
        _, real = model.run_with_cache(tokens)
    layers = range(model.cfg.n_layers)
    inputs = {layer: real[f"blocks.{layer}.{model.feature_input_hook}"][0] for layer in layers}
    return inputs, real["unembed.hook_pre"][0, -1]


def explained(model: Any, graph: Any, inputs: dict[int, Any], last: torch.Tensor) -> torch.Tensor:
    """Give the pre-activation of every active feature, then every logit less the mean."""
    values = []
    for layer, position, feature in graph.active_features.tolist():
        pre = model.transcoders.encode_layer(inputs[layer], layer, apply_activation_function=False)
        values.append(pre[position, feature])
    W_U = model.unembed.W_U
    values += [last @ (W_U[:, token] - W_U.mean(-1)) for token in graph.logit_token_ids.tolist()]
    return torch.stack(values).detach()


def steady(scores: torch.Tensor, threshold: float) -> float:
    """Give how far the running share of sorted scores stays from a threshold."""
    ordered = torch.sort(scores.flatten(), descending=True).values
    return float((torch.cumsum(ordered, 0) / ordered.sum() - threshold).abs().min())


def golden(folder: Path, tokens: torch.Tensor) -> dict[str, np.ndarray]:
    """Give what circuit-tracer makes of a case."""
    model = read_replacement(folder)
    with torch.no_grad():
        logits = read_model(folder)(tokens)[0]
        apart = (logits - model(tokens)[0]).abs().max()
        assert apart < SAME, f"the replacement model is another one: {apart}"
    graph = attribute(tokens, model, batch_size=64)
    A = graph.adjacency_matrix
    weights = torch.zeros(len(A))
    weights[-len(graph.logit_targets) :] = graph.logit_probabilities
    influence = compute_node_influence(A, weights)
    kept = prune_graph(graph, NODES_KEPT, EDGES_KEPT)
    inside = nodes_kept_first(influence, len(tokens) + len(graph.logit_targets))
    edges = compute_edge_influence(A * inside[:, None] * inside[None, :], weights)
    margin = min(steady(influence, NODES_KEPT), steady(edges, EDGES_KEPT))
    assert margin > STEADY, margin
    values = explained(model, graph, *plain_inputs(model, tokens))
    constants = explained(model, graph, *frozen_constants(model, tokens))
    explains = len(graph.active_features), len(graph.logit_targets)
    sums = torch.cat([A[: explains[0]].sum(1), A[-explains[1] :].sum(1)])
    gap = torch.stack([(values - sums).abs().max(), (values - sums - constants).abs().max()])
    assert gap[1] < SAME * values.abs().max(), gap
    found = {
        "tokens": tokens,
        "logits": logits,
        "adjacency": A,
        "active_features": graph.active_features,
        "activation_values": graph.activation_values,
        "logit_ids": graph.logit_token_ids,
        "logit_probabilities": graph.logit_probabilities,
        "node_influence": influence,
        "cumulative_influence": kept.cumulative_scores,
        "edge_scores": edges,
        "kept_nodes": kept.node_mask,
        "kept_edges": kept.edge_mask,
        "scores": torch.tensor(compute_graph_scores(graph)),
        "errors": model.setup_attribution(tokens).error_vectors,
        "values": values,
        "constants": constants,
        "gap": gap,
    }
    assert torch.equal(graph.selected_features, torch.arange(explains[0]))
    return {name: tensor.detach().numpy() for name, tensor in found.items()}


def nodes_kept_first(influence: torch.Tensor, always: int) -> torch.Tensor:
    """Give the nodes that are there when circuit-tracer scores edges: before any falls for them."""
    ordered = torch.sort(influence, descending=True).values
    share = torch.cumsum(ordered, 0) / ordered.sum()
    inside = influence >= ordered[int(torch.searchsorted(share, NODES_KEPT))]
    inside[-always:] = True
    return inside


def write_case(folder: Path, case: Case, seed: int) -> None:
    """Write everything of a case but what circuit-tracer makes of it."""
    generator = np.random.default_rng([seed, *folder.name.encode()])
    folder.mkdir(parents=True)
    write_model(folder, case, generator)
    write_transcoders(folder / "transcoders", case, generator)
    vocabulary = int({**PLAIN, **case.model}["d_vocab"])
    rest = 1 + generator.permutation(vocabulary - 1)[: case.tokens - 1]
    np.savez_compressed(folder / "golden.npz", tokens=np.array([0, *rest]))


def write_golden(folder: Path) -> None:
    """Add what circuit-tracer makes of a case."""
    with np.load(folder / "golden.npz") as kept:
        tokens = torch.from_numpy(kept["tokens"])
    np.savez_compressed(folder / "golden.npz", **golden(folder, tokens))


def write_all(into: Path) -> None:
    """Write every case."""
    for name, case in CASES.items():
        for seed in case.seeds:
            folder = into / f"{name}-{seed}"
            shutil.rmtree(folder, ignore_errors=True)
            write_case(folder, case, seed)
            write_golden(folder)
    names = ("numpy", "torch", "transformer-lens", "circuit-tracer")
    versions = {"python": sys.version.split()[0]} | {name: version(name) for name in names}
    write_json(into / "versions.json", versions)


def write_json(file: Path, content: object) -> None:
    """Write readable JSON."""
    file.write_text(json.dumps(content) + "\n", encoding="utf-8")


def read_any(file: Path) -> dict[str, np.ndarray]:
    """Read arrays, or the text of anything else."""
    if file.suffix == ".npz":
        with np.load(file) as arrays:
            return dict(arrays)
    if file.suffix == ".safetensors":
        return {name: tensor.numpy() for name, tensor in load_file(file).items()}
    return {"text": np.array(file.read_text(encoding="utf-8"))}


def differences(old: Path, new: Path) -> list[str]:
    """Name what differs between two files: drawn numbers not at all, computed ones by rounding."""
    ours, theirs = read_any(old), read_any(new)
    if set(ours) != set(theirs):
        return [f"{old}: {sorted(set(ours) ^ set(theirs))}"]
    found = []
    for name, array in ours.items():
        other = theirs[name]
        exact = old.suffix != ".npz" or array.dtype.kind != "f"
        if array.shape != other.shape or array.dtype != other.dtype:
            found.append(f"{old} {name}: {array.dtype}{array.shape} or {other.dtype}{other.shape}")
        elif exact and not np.array_equal(array, other):
            found.append(f"{old} {name}: not the same")
        elif not exact and name != "gap" and abs(array - other).max() > SAME * abs(array).max():
            found.append(f"{old} {name}: {abs(array - other).max():.1e} apart")
    return found


def check() -> int:
    """Make every case anew and compare it with the files."""
    with tempfile.TemporaryDirectory() as place:
        fresh = Path(place)
        write_all(fresh)
        made = {file.relative_to(fresh) for file in fresh.rglob("*") if file.is_file()}
        folders = [HERE / f"{name}-{seed}" for name, case in CASES.items() for seed in case.seeds]
        there = {file.relative_to(HERE) for top in folders for file in top.rglob("*.*")}
        there = {name for name in there if (HERE / name).is_file()} | {Path("versions.json")}
        found = [f"{name}: only once" for name in sorted(made ^ there)]
        for name in sorted(made & there - {Path("versions.json")}):
            found += differences(HERE / name, fresh / name)
    print("\n".join(found) or f"{len(made)} files are the same")
    return int(bool(found))


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--large", type=Path)
    parser.add_argument("--layers", type=int, default=LARGE.model["n_layers"])
    asked = parser.parse_args()
    torch.set_default_dtype(torch.float64)  # without it the adjacency is float32
    if asked.check:
        return check()
    if asked.large:
        sizes = {**LARGE.model, "n_layers": asked.layers}
        write_case(asked.large, Case(sizes, LARGE.kind, LARGE.features), 0)
    else:
        write_all(HERE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
