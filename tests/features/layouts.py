"""One random function, written in each layout that features are stored in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Array = np.ndarray[Any, Any]
LAYER, WIDTH, FEATURES = 3, 7, 13


@dataclass(frozen=True)
class Plain:
    """A function as plain arrays: rows are features, everything is in the units of the input."""

    E: Array
    D: Array
    b_enc: Array
    b_dec: Array
    threshold: Array
    skip: Array
    pre_bias: Array = field(default_factory=lambda: np.zeros(WIDTH))

    def dense(self, x: Array, gate: Callable[[Array], Array]) -> tuple[Array, Array]:
        """Give activations (position, feature) and the output without a skip."""
        act = gate((x - self.pre_bias) @ self.E.T + self.b_enc)
        return act, act @ self.D + self.b_dec


def plain(seed: int = 0, *, width: int = WIDTH, features: int = FEATURES) -> Plain:
    rng = np.random.default_rng(seed)
    return Plain(
        E=rng.normal(size=(features, width)),
        D=rng.normal(size=(features, width)),
        b_enc=rng.normal(size=features),
        b_dec=rng.normal(size=width),
        threshold=rng.uniform(0.1, 1.5, features),
        skip=rng.normal(size=(width, width)),
    )


def inputs(seed: int = 1, count: int = 11, width: int = WIDTH) -> Array:
    return np.random.default_rng(seed).normal(size=(count, width)) * 2 + 0.5


def save(file: Path, **tensors: Array) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, file)


def write_json(file: Path, **values: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values), encoding="utf-8")


def write_yaml(file: Path, **values: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


# --- one layer, JumpReLU ------------------------------------------------------------------------
# Each writes into a folder and gives what load_units has to be told.


def circuit_tracer(p: Plain, folder: Path, *, skip: bool = False) -> dict[str, Any]:
    write_yaml(
        folder / "config.yaml",
        model_kind="transcoder_set",
        feature_input_hook="mlp.hook_in",
        feature_output_hook="hook_mlp_out",
        model_name="made-up",
    )
    for layer in range(LAYER + 1):
        own = p if layer == LAYER else plain(100 + layer)
        tensors = {"W_enc": own.E, "W_dec": own.D, "b_enc": own.b_enc, "b_dec": own.b_dec}
        tensors["activation_function.threshold"] = own.threshold
        if skip:
            tensors["W_skip"] = own.skip.T
        save(folder / f"layer_{layer}.safetensors", **tensors)
    return {}


def gemma_scope(p: Plain, folder: Path) -> dict[str, Any]:
    place = folder / f"layer_{LAYER}" / "width_13" / "average_l0_5"
    place.mkdir(parents=True)
    np.savez(
        place / "params.npz",
        W_enc=p.E.T,
        W_dec=p.D,
        b_enc=p.b_enc,
        b_dec=p.b_dec,
        threshold=p.threshold,
    )
    return {"format": "gemma-scope-transcoder", "hook_in": "mlp_in"}


def gemma_scope_sae(p: Plain, folder: Path) -> dict[str, Any]:
    gemma_scope(p, folder)
    return {"format": "gemma-scope-sae", "hook_in": "resid_post"}


def gemma_scope_2(p: Plain, folder: Path, *, skip: bool = False) -> dict[str, Any]:
    write_json(
        folder / "config.json",
        architecture="jump_relu",
        model_name="made-up",
        hf_hook_point_in=f"model.layers.{LAYER}.pre_feedforward_layernorm.output",
        hf_hook_point_out=f"model.layers.{LAYER}.post_feedforward_layernorm.output",
        affine_connection=skip,
    )
    own = {"affine_skip_connection": p.skip} if skip else {}
    jumping = {"b_enc": p.b_enc, "b_dec": p.b_dec, "threshold": p.threshold}
    save(folder / "params.safetensors", w_enc=p.E.T, w_dec=p.D, **jumping, **own)
    return {}


def gemma_scope_2_sae(p: Plain, folder: Path) -> dict[str, Any]:
    gemma_scope_2(p, folder)
    write_json(
        folder / "config.json",
        architecture="jump_relu",
        hf_hook_point_in=f"model.layers.{LAYER}.output",
    )
    return {}


def sae_lens(
    p: Plain, folder: Path, *, architecture: str = "jumprelu", **extra: Any
) -> dict[str, Any]:
    config: dict[str, Any] = {"architecture": architecture, "d_in": WIDTH, "d_sae": FEATURES}
    about: dict[str, Any] = {"model_name": "made-up"}
    if "transcoder" in architecture:
        about["hook_name"] = f"blocks.{LAYER}.mlp.hook_in"
        about["hook_name_out"] = f"blocks.{LAYER}.hook_mlp_out"
        config |= {"d_out": WIDTH}
    else:
        about["hook_name"] = f"blocks.{LAYER}.hook_resid_post"
    config |= {"apply_b_dec_to_input": False, "normalize_activations": "none"}
    write_json(folder / "cfg.json", **(config | {"metadata": about} | extra))
    tensors = {"W_enc": p.E.T, "W_dec": p.D, "b_enc": p.b_enc, "b_dec": p.b_dec}
    if "jumprelu" in architecture:
        tensors["threshold"] = p.threshold
    if "skip" in architecture:
        tensors["W_skip"] = p.skip.T
    save(folder / "sae_weights.safetensors", **tensors)
    return {}


def sae_lens_transcoder(p: Plain, folder: Path) -> dict[str, Any]:
    return sae_lens(p, folder, architecture="jumprelu_transcoder")


def sae_lens_skip(p: Plain, folder: Path) -> dict[str, Any]:
    return sae_lens(p, folder, architecture="jumprelu_skip_transcoder")


def sae_lens_5(p: Plain, folder: Path) -> dict[str, Any]:
    """Write the flat configuration of versions before 6, with its older names."""
    sae_lens(p, folder)
    write_json(
        folder / "cfg.json",
        architecture="jumprelu",
        hook_point=f"blocks.{LAYER}.hook_resid_post",
        hook_point_layer=LAYER,
        activation_fn_str="relu",
        apply_b_dec_to_input=False,
        normalize_activations=False,
    )
    return {}


def llamascopium(
    p: Plain, folder: Path, *, gated: bool = True, norms: bool = True, sae: bool = False
) -> dict[str, Any]:
    """Write what training in normed units would have given."""
    hooks = (f"blocks.{LAYER}.mlp.hook_in", f"blocks.{LAYER}.hook_mlp_out")
    if sae:
        hooks = (f"blocks.{LAYER}.hook_resid_post",) * 2
    average = (3.5, 3.5 if sae else 1.25)
    scale_in, scale_out = (np.sqrt(WIDTH) / np.array(average)) if norms else (1.0, 1.0)
    D = p.D * scale_out / scale_in
    threshold = p.threshold * scale_in
    if gated:
        threshold = threshold * np.linalg.norm(D, axis=1)
    write_json(
        folder / "config.json",
        sae_type="sae",
        d_model=WIDTH,
        hook_point_in=hooks[0],
        hook_point_out=hooks[1],
        act_fn="jumprelu",
        norm_activation="dataset-wise" if norms else "inference",
        sparsity_include_decoder_norm=gated,
        use_decoder_bias=True,
        top_k=50,
    )
    told = {
        f"dataset_average_activation_norm.{h}": np.array(a)
        for h, a in zip(hooks, average, strict=True)
    }
    tensors = {"W_E": p.E.T, "b_E": p.b_enc * scale_in, "W_D": D, "b_D": p.b_dec * scale_out}
    tensors["activation_function.log_jumprelu_threshold"] = np.log(threshold)
    save(folder / "sae_weights.safetensors", **tensors, **told)
    return {}


def llamascopium_plain(p: Plain, folder: Path) -> dict[str, Any]:
    return llamascopium(p, folder, gated=False, norms=False)


def llamascopium_sae(p: Plain, folder: Path) -> dict[str, Any]:
    """Write it where older versions did."""
    llamascopium(p, folder, sae=True)
    (folder / "checkpoints").mkdir()
    (folder / "sae_weights.safetensors").rename(folder / "checkpoints" / "pruned.safetensors")
    return {}


def dictionary_jumping(p: Plain, folder: Path) -> dict[str, Any]:
    trainer = {"dict_class": "JumpReluAutoEncoder", "layer": LAYER}
    write_json(folder / "config.json", trainer=trainer)
    tensors = {"W_enc": p.E.T, "W_dec": p.D, "b_enc": p.b_enc, "b_dec": p.b_dec}
    save(folder / "ae.safetensors", **tensors, threshold=p.threshold)
    return {}


TRANSCODERS = {
    "circuit-tracer": circuit_tracer,
    "gemma-scope": gemma_scope,
    "gemma-scope-2": gemma_scope_2,
    "sae-lens": sae_lens_transcoder,
    "llamascopium": llamascopium,
    "llamascopium-plain": llamascopium_plain,
}
SAES = {
    "gemma-scope": gemma_scope_sae,
    "gemma-scope-2": gemma_scope_2_sae,
    "sae-lens": sae_lens,
    "sae-lens-5": sae_lens_5,
    "llamascopium": llamascopium_sae,
    "dictionary-learning": dictionary_jumping,
}
SKIPPING = {
    "circuit-tracer": lambda p, folder: circuit_tracer(p, folder, skip=True),
    "gemma-scope-2": lambda p, folder: gemma_scope_2(p, folder, skip=True),
    "sae-lens": sae_lens_skip,
}


# --- cross-layer --------------------------------------------------------------------------------

LAYERS = 3


@dataclass(frozen=True)
class Cross:
    """A cross-layer transcoder: D[s][t − s] (feature, width) writes from layer s into layer t."""

    E: Array  # (layer, feature, width)
    b_enc: Array
    b_dec: Array
    threshold: Array
    D: tuple[Array, ...]


def cross(seed: int = 5) -> Cross:
    rng = np.random.default_rng(seed)
    return Cross(
        rng.normal(size=(LAYERS, FEATURES, WIDTH)),
        rng.normal(size=(LAYERS, FEATURES)),
        rng.normal(size=(LAYERS, WIDTH)),
        rng.uniform(0.1, 1.5, (LAYERS, FEATURES)),
        tuple(rng.normal(size=(LAYERS - s, FEATURES, WIDTH)) for s in range(LAYERS)),
    )


def circuit_tracer_clt(c: Cross, folder: Path) -> None:
    write_yaml(
        folder / "config.yaml",
        model_kind="cross_layer_transcoder",
        feature_input_hook="mlp.hook_in",
        feature_output_hook="hook_mlp_out",
    )
    for s in range(LAYERS):
        own = {"W_enc": c.E, "b_enc": c.b_enc, "b_dec": c.b_dec, "threshold": c.threshold}
        tensors = {f"{name}_{s}": array[s] for name, array in own.items()}
        save(folder / f"W_enc_{s}.safetensors", **tensors)
        slots = c.D[s].transpose(1, 0, 2)  # (feature, slot, width)
        save(folder / f"W_dec_{s}.safetensors", **{f"W_dec_{s}": slots})


def gemma_scope_2_clt(c: Cross, folder: Path, *, whole: bool = True) -> None:
    write_json(
        folder / "config.json",
        architecture="jump_relu",
        hf_hook_point_in="model.layers.{layer}.pre_feedforward_layernorm.output",
        hf_hook_point_out="model.layers.{layer}.post_feedforward_layernorm.output",
    )
    for s in range(LAYERS):
        slots = c.D[s].transpose(1, 0, 2)
        if whole:  # what stands before the own layer is never read
            slots = np.concatenate([np.full((FEATURES, s, WIDTH), 7.5), slots], axis=1)
        save(
            folder / f"params_layer_{s}.safetensors",
            w_enc=c.E[s].T,
            w_dec=slots,
            b_enc=c.b_enc[s],
            b_dec=c.b_dec[s],
            threshold=c.threshold[s],
        )


def llamascopium_clt(c: Cross, folder: Path) -> None:
    reads = [f"blocks.{n}.mlp.hook_in" for n in range(LAYERS)]
    writes = [f"blocks.{n}.hook_mlp_out" for n in range(LAYERS)]
    average = np.array([1.5, 2.25, 3.5, 0.75, 1.25, 0.5])
    scales = np.sqrt(WIDTH) / average
    write_json(
        folder / "config.json",
        sae_type="clt",
        hook_points_in=reads,
        hook_points_out=writes,
        act_fn="jumprelu",
        norm_activation="dataset-wise",
        sparsity_include_decoder_norm=True,
    )
    tensors = {
        f"dataset_average_activation_norm.{h}": np.array(a)
        for h, a in zip(reads + writes, average, strict=True)
    }
    stored = [
        [c.D[s][t - s] * scales[LAYERS + t] / scales[s] for s in range(t + 1)]
        for t in range(LAYERS)
    ]
    for t in range(LAYERS):
        tensors[f"W_D.{t}"] = np.stack(stored[t])
        tensors[f"b_D.{t}"] = c.b_dec[t] * scales[LAYERS + t]
    lengths = np.sqrt(
        [sum(np.square(stored[t][s]).sum(axis=1) for t in range(s, LAYERS)) for s in range(LAYERS)]
    )
    gate = c.threshold * scales[:LAYERS, None] * lengths
    tensors["activation_function.log_jumprelu_threshold"] = np.log(gate)
    tensors |= {"W_E": c.E.transpose(0, 2, 1), "b_E": c.b_enc * scales[:LAYERS, None]}
    save(folder / "sae_weights.safetensors", **tensors)


CROSS = {
    "circuit-tracer": circuit_tracer_clt,
    "gemma-scope-2": gemma_scope_2_clt,
    "gemma-scope-2-triangle": lambda c, folder: gemma_scope_2_clt(c, folder, whole=False),
    "llamascopium": llamascopium_clt,
}


# --- with b_dec taken off the input -------------------------------------------------------------


def subtracting(seed: int = 0) -> Plain:
    p = plain(seed)
    return replace(p, pre_bias=p.b_dec)


def sparsify(
    p: Plain, folder: Path, *, k: int = 5, module: str = f"layers.{LAYER}", **extra: Any
) -> dict[str, Any]:
    place = folder / module
    write_json(place / "cfg.json", d_in=WIDTH, k=k, **extra)
    tensors = {"encoder.weight": p.E, "encoder.bias": p.b_enc, "W_dec": p.D, "b_dec": p.b_dec}
    if extra.get("skip_connection"):
        tensors["W_skip"] = p.skip.T
    save(place / "sae.safetensors", **tensors)
    return {}


def dictionary(p: Plain, folder: Path, kind: str, **extra: Array) -> dict[str, Any]:
    write_json(folder / "config.json", trainer={"dict_class": kind, "layer": LAYER})
    bias = "bias" if kind == "AutoEncoder" else "b_dec"
    tensors = {"encoder.weight": p.E, "encoder.bias": p.b_enc, "decoder.weight": p.D.T}
    save(folder / "ae.safetensors", **tensors, **{bias: p.b_dec}, **extra)
    return {}


def llama_scope(p: Plain, folder: Path, threshold: float) -> dict[str, Any]:
    """Write one threshold for all, on pre-activations times the decoder's lengths."""
    hook, scale = f"blocks.{LAYER}.hook_resid_post", np.sqrt(WIDTH) / 2.5
    write_json(
        folder / "hyperparams.json",
        d_model=WIDTH,
        hook_point_in=hook,
        hook_point_out=hook,
        act_fn="jumprelu",
        jump_relu_threshold=threshold,
        norm_activation="dataset-wise",
        dataset_average_activation_norm={"in": 2.5, "out": 2.5},
        sparsity_include_decoder_norm=True,
        apply_decoder_bias_to_pre_encoder=False,
        use_decoder_bias=True,
    )
    tensors = {"encoder.weight": p.E, "encoder.bias": p.b_enc * scale}
    tensors |= {"decoder.weight": p.D.T, "decoder.bias": p.b_dec * scale}
    save(folder / "checkpoints" / "final.safetensors", **tensors)
    return {}
