"""The dense pass and the loader against TransformerLens' own HookedTransformer.

The folder transformer_lens holds what `make_transformer_lens.py` wrote; neither torch nor
TransformerLens is needed to read it.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

import pathexpand
from pathexpand.api import Model, Run
from pathexpand.errors import ModelError

Array = npt.NDArray[Any]
FOLDER = Path(__file__).parent / "transformer_lens"
CASES = (
    "bidirectional",
    "bidirectional-shortformer",
    "left-padding",
    "left-padding-shortformer",
    "no-scale",
    "no-scale-by-layer",
    "one-layer",
    "own-scale",
    "own-scale-by-layer",
    "scale-by-layer",
    "scattered-padding",
    "split-inputs",
    "three-layers",
    "two-layers-shortformer",
    "zero-layers",
    "zero-layers-shortformer",
)
REFUSED = json.loads((FOLDER / "refused.json").read_text(encoding="utf-8"))
UNIT = float(np.finfo(np.float64).eps) / 2


@dataclass(frozen=True)
class Case:
    """A TransformerLens model, a batch, and what TransformerLens made of it.

    `tokens` and `mask` (batch, position); `patterns[l]` (batch, head, query, key); `residual[l]`
    (batch, position, d_model), before layer l and, last, after all; `logits` (batch, position,
    d_vocab_out).
    """

    config: dict[str, Any]
    tensors: dict[str, Array]
    tokens: Array
    mask: Array
    patterns: list[Array]
    residual: list[Array]
    logits: Array


def read(name: str) -> Case:
    config = json.loads((FOLDER / name / "config.json").read_text(encoding="utf-8"))
    found = load_file(FOLDER / name / "expected.safetensors")
    layers = [f"blocks.{layer}" for layer in range(config["n_layers"])]
    return Case(
        config=config,
        tensors=load_file(FOLDER / name / "model.safetensors"),
        tokens=found["tokens"],
        mask=found.get("mask", np.ones_like(found["tokens"])).astype(bool),
        patterns=[found[f"{layer}.attn.hook_pattern"] for layer in layers],
        residual=[found["stream"], *(found[f"{layer}.hook_resid_post"] for layer in layers)],
        logits=found["logits"],
    )


def runs(model: Model, case: Case) -> list[Run]:
    return model.runs(list(case.tokens), masks=list(case.mask))


def gamma(steps: int) -> float:
    return steps * UNIT / (1 - steps * UNIT)


def tolerances(case: Case) -> tuple[list[Array], list[Array], Array]:
    """Bound how far two float64 passes can be apart: patterns, residuals, logits.

    A first-order bound of one pass's rounding, carried forward place by place. A sum of n products
    in any order is off by at most gamma(n) times the sum of their sizes (Higham, section 3.1);
    scores off by at most d change a softmax by at most a factor exp(2 d). Twice that for two
    passes, and twice again for what is of second order.
    """
    config, tensors = case.config, case.tensors
    places = np.maximum(np.cumsum(case.mask, axis=1) - 1, 0)
    seen = np.broadcast_to(case.mask[:, None, None, :], (*case.mask.shape, 1, case.mask.shape[1]))
    seen = np.swapaxes(seen, 1, 2)  # (batch, 1, query, key)
    if config["attention_dir"] == "causal":
        seen = np.tril(seen)
    off = gamma(1) * abs(case.residual[0])
    residual, patterns = [off], []
    for layer, (stream, pattern) in enumerate(zip(case.residual, case.patterns, strict=False)):
        w = {
            name.rpartition(".")[2]: array
            for name, array in tensors.items()
            if name.startswith(f"blocks.{layer}.attn.W_") or f"blocks.{layer}.attn.b_" in name
        }
        reads, reads_off = stream, off
        if config["positional_embedding_type"] == "shortformer":
            reads = stream + tensors["pos_embed.W_pos"][places]
            reads_off = off + UNIT * abs(reads)
        q, q_off = projected(reads, reads_off, w["W_Q"], w["b_Q"])
        k, k_off = projected(reads, reads_off, w["W_K"], w["b_K"])
        v, v_off = projected(stream, off, w["W_V"], w["b_V"])
        scale = config["attn_scale"] if config["use_attn_scale"] else 1.0
        scale *= layer + 1 if config["scale_attn_by_inverse_layer_idx"] else 1
        size = abs(q) @ turned(abs(k)) / scale  # (batch, head, query, key)
        score_off = gamma(q.shape[-1] + 3) * size
        score_off += (q_off @ turned(abs(k)) + abs(q) @ turned(k_off)) / scale
        # The largest score is taken off first; exp itself is good to a few units.
        worst = np.max(np.where(seen, score_off + 2 * UNIT * size, 0), axis=-1, keepdims=True)
        pattern_off = pattern * (np.expm1(2 * worst) + gamma(pattern.shape[-1] + 10))
        z_off = gamma(pattern.shape[-1]) * pattern @ abs(v)
        z_off += pattern_off @ abs(v) + pattern @ v_off  # (batch, head, query, d_head)
        steps = gamma(len(w["W_O"]) * q.shape[-1] + 2)
        out = (steps * pattern @ abs(v) + z_off) @ abs(w["W_O"])  # (batch, head, query, d_model)
        off = off + out.sum(axis=1) + steps * (abs(w["b_O"]) + abs(stream))
        patterns.append(4 * pattern_off)
        residual.append(off)
    unembed, bias = abs(tensors["unembed.W_U"]), abs(tensors["unembed.b_U"])
    last = gamma(len(unembed) + 1) * (abs(case.residual[-1]) @ unembed + bias) + off @ unembed
    return patterns, [4 * each for each in residual], 4 * last


def projected(stream: Array, off: Array, weight: Array, bias: Array) -> tuple[Array, Array]:
    """Give q, k or v (batch, head, position, d_head), and how far it can be off."""
    stream, off, bias = stream[:, None], off[:, None], bias[:, None]
    size = abs(stream) @ abs(weight) + abs(bias)
    return stream @ weight + bias, gamma(weight.shape[1] + 1) * size + off @ abs(weight)


def turned(array: Array) -> Array:
    return np.swapaxes(array, -1, -2)


def worst(model: Model, case: Case) -> float:
    """Give the largest difference to TransformerLens, over its tolerance, at real positions.

    What stands at padding is arbitrary, and TransformerLens fills it otherwise than we do; what
    counts is that no real position sees it, so whole rows of patterns are compared.
    """
    patterns, residual, logits = tolerances(case)
    found = 0.0
    for row, run in enumerate(runs(model, case)):
        real = case.mask[row]
        at = np.flatnonzero(real)
        pairs = [
            (ours[:, real], theirs[row][:, real], within[row][:, real])
            for ours, theirs, within in zip(run.patterns, case.patterns, patterns, strict=True)
        ]
        pairs += [
            (ours[0, real], theirs[row, real], within[row, real])
            for ours, theirs, within in zip(
                run.dense.residual, case.residual, residual, strict=True
            )
        ]
        ours = np.stack([run.logits(int(position)) for position in at])
        pairs.append((ours, case.logits[row, real], logits[row, real]))
        for one, other, within in pairs:
            assert one.shape == other.shape == within.shape
            ratio = abs(one - other) / (within + np.finfo(np.float64).tiny)
            found = max(found, float(ratio.max()))
    return found


def test_every_stored_case_is_tested() -> None:
    assert sorted(place.name for place in FOLDER.iterdir() if place.is_dir()) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_state_dict_gives_the_same_numbers(name: str) -> None:
    case = read(name)
    assert worst(pathexpand.from_state_dict(case.tensors, case.config), case) <= 1


@pytest.mark.parametrize("name", CASES)
def test_a_saved_directory_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    """`safetensors` wrote the file from the whole state dict, buffers and all."""
    case = read(name)
    for file in ("config.json", "model.safetensors"):
        shutil.copy(FOLDER / name / file, tmp_path)
    model = pathexpand.load(tmp_path)
    assert worst(model, case) <= 1
    given = pathexpand.from_state_dict(case.tensors, case.config)
    assert model.checkpoint.digest() == given.checkpoint.digest()


@pytest.mark.parametrize("name", CASES)
def test_a_row_run_alone_gives_the_same_numbers(name: str) -> None:
    case = read(name)
    model = pathexpand.from_state_dict(case.tensors, case.config)
    within = tolerances(case)[2]
    for row, (tokens, mask) in enumerate(zip(case.tokens, case.mask, strict=True)):
        alone = model.run(tokens, mask=mask)
        without = model.run(tokens[mask])  # padding cut off altogether
        for place, position in enumerate(np.flatnonzero(mask)):
            for ours in (alone.logits(int(position)), without.logits(place)):
                assert (abs(ours - case.logits[row, position]) <= within[row, position]).all()


@pytest.mark.parametrize("name", CASES)
def test_padding_changes_nothing(name: str) -> None:
    """Also where TransformerLens would see it: it masks no padding in a bidirectional model."""
    case = read(name)
    model = pathexpand.from_state_dict(case.tensors, case.config)
    within = tolerances(case)[2]
    for row, (tokens, mask) in enumerate(zip(case.tokens, case.mask, strict=True)):
        run = model.run(np.pad(tokens, (2, 1)), mask=np.pad(mask, (2, 1)))
        for position in np.flatnonzero(mask):
            apart = abs(run.logits(int(position) + 2) - case.logits[row, position])
            assert (apart <= within[row, position]).all()


@pytest.mark.parametrize("name", CASES)
def test_tolerances_are_small(name: str) -> None:
    patterns, residual, logits = tolerances(read(name))
    assert max(float(each.max()) for each in (*patterns, *residual, logits)) < 1e-8


@pytest.mark.parametrize("name", CASES)
def test_the_sum_of_paths_closes_on_their_logits(name: str) -> None:
    case = read(name)
    within = tolerances(case)[2]
    for row, run in enumerate(runs(pathexpand.from_state_dict(case.tensors, case.config), case)):
        real = np.flatnonzero(case.mask[row])
        for position in {int(real[0]), int(real[len(real) // 2]), int(real[-1])}:
            logits, near = case.logits[row, position], within[row, position]
            for top in (5, 1000):
                table = run.paths(position=position, top=top)
                assert abs(table.gap) <= table.gap_bound
                table = run.paths(3, position=position, top=top, centred=False)
                assert abs(table.gap) <= table.gap_bound
                total = table.listed + table.remainder
                assert abs(total - logits[3]) <= near[3] + table.gap_bound
                table = run.paths((4, 0), position=position, top=top)
                assert abs(table.gap) <= table.gap_bound
                total = table.listed + table.remainder
                apart = near[4] + near[0] + UNIT * abs(logits[4] - logits[0])
                assert abs(total - (logits[4] - logits[0])) <= apart + table.gap_bound


# Each change is one that a wrong reading of TransformerLens would amount to.
Change = Callable[[Case], Case]


def weights(change: Callable[[str, dict[str, Array]], Array | None]) -> Change:
    """Change weights: `change` gives a tensor's new value by name, or None to leave it."""

    def changed(case: Case) -> Case:
        new = {name: change(name, case.tensors) for name in case.tensors}
        kept = {n: case.tensors[n] if a is None else a for n, a in new.items()}
        return replace(case, tensors=kept)

    return changed


def setting(**settings: Any) -> Change:
    return lambda case: replace(case, config=case.config | settings)


def queries_as_keys(name: str, tensors: dict[str, Array]) -> Array | None:
    if name[-2:] not in ("_Q", "_K"):
        return None
    return tensors[name[:-1] + ("K" if name[-1] == "Q" else "Q")]


def values_as_outputs(name: str, tensors: dict[str, Array]) -> Array | None:
    if name[-3:] not in ("W_V", "W_O"):
        return None
    return turned(tensors[name[:-1] + ("O" if name[-1] == "V" else "V")])


def zero(ending: str) -> Change:
    return weights(lambda name, tensors: 0 * tensors[name] if name.endswith(ending) else None)


def turned_heads(name: str, tensors: dict[str, Array]) -> Array | None:
    return tensors[name][::-1] if name.endswith("W_O") else None


def later_positions(name: str, tensors: dict[str, Array]) -> Array | None:
    return np.roll(tensors[name], 1, axis=0) if name.endswith("W_pos") else None


def turned_patterns(case: Case) -> Case:
    return replace(case, patterns=[turned(pattern) for pattern in case.patterns])


CHANGES: dict[str, tuple[str, Change]] = {
    "patterns transposed": ("bidirectional", turned_patterns),
    "W_Q for W_K": ("two-layers-shortformer", weights(queries_as_keys)),
    "W_O for W_V": ("one-layer", weights(values_as_outputs)),
    "heads of W_O in reverse": ("three-layers", weights(turned_heads)),
    "no b_Q": ("one-layer", zero("b_Q")),
    "no b_V": ("one-layer", zero("b_V")),
    "no b_O": ("one-layer", zero("b_O")),
    "no b_U": ("zero-layers", zero("b_U")),
    "positions one late": ("two-layers-shortformer", weights(later_positions)),
    "shortformer for standard": ("one-layer", setting(positional_embedding_type="shortformer")),
    "standard for shortformer": (
        "two-layers-shortformer",
        setting(positional_embedding_type="standard"),
    ),
    "causal for bidirectional": ("bidirectional", setting(attention_dir="causal")),
    "bidirectional for causal": ("one-layer", setting(attention_dir="bidirectional")),
    "own scale ignored": ("own-scale", setting(attn_scale=-1.0)),
    "scale for no scale": ("no-scale", setting(use_attn_scale=True, attn_scale=-1.0)),
    "no scale by layer": ("scale-by-layer", setting(scale_attn_by_inverse_layer_idx=False)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_reading_is_far_above_tolerance(change: str) -> None:
    name, apply = CHANGES[change]
    case = read(name)
    wrong = apply(case)
    model = pathexpand.from_state_dict(wrong.tensors, wrong.config)
    assert worst(model, replace(case, patterns=wrong.patterns)) > 1e6


@pytest.mark.parametrize("name", ["left-padding", "left-padding-shortformer"])
def test_ignoring_the_mask_is_far_above_tolerance(name: str) -> None:
    case = read(name)
    last = slice(-case.config["n_ctx"], None)  # without a mask, all of it must fit the context
    assert case.mask[1, last].sum() == case.mask[1].sum() < case.config["n_ctx"]
    run = pathexpand.from_state_dict(case.tensors, case.config).run(case.tokens[1, last])
    apart = abs(run.logits() - case.logits[1, -1])
    assert (apart / tolerances(case)[2][1, -1]).max() > 1e6


def refusal(name: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Give a configuration and weights (zeros) of a model that cannot be read."""
    tensors = {key: np.zeros(shape) for key, shape in REFUSED[name]["shapes"].items()}
    return REFUSED[""]["config"] | REFUSED[name]["config"], tensors


def test_what_the_refused_are_made_from_is_read() -> None:
    config, tensors = refusal("")
    assert pathexpand.from_state_dict(tensors, config).config.n_layers == 1


@pytest.mark.parametrize("name", [name for name in REFUSED if name])
def test_other_models_are_refused_by_name(name: str) -> None:
    config, tensors = refusal(name)
    named = name if " " in name else f"config {name}"
    with pytest.raises(ModelError) as caught:
        pathexpand.from_state_dict(tensors, config)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "name", [name for name in REFUSED if REFUSED[name]["shapes"] != REFUSED[""]["shapes"]]
)
def test_their_weights_are_refused_under_a_plain_configuration(name: str) -> None:
    sizes = {key: refusal(name)[0][key] for key in ("n_heads", "d_model", "d_head")}
    with pytest.raises(ModelError, match=r"is not known|is missing"):
        pathexpand.from_state_dict(refusal(name)[1], REFUSED[""]["config"] | sizes)
