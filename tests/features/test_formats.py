"""The same function is the same unit, whatever layout it was stored in; bad files say why."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pathexpand
from pathexpand.errors import PathExpandError
from pathexpand.features import Unit, at_hook, check_units, load_units
from tests.features import layouts
from tests.features.layouts import FEATURES, LAYER, LAYERS, WIDTH, Array, Plain

EXACT = 1e-12
GOLDEN = Path(__file__).parents[1] / "reference" / "graphs"


def jumping(p: Plain) -> Callable[[Array], Array]:
    return lambda pre: pre * (pre > p.threshold)


def acts(unit: Unit, x: Array) -> Array:
    on, out = unit.encode(x), np.zeros((len(x), unit.features))
    out[on.positions, on.features] = on.act
    return out


def agree(unit: Unit, x: Array, act: Array, written: Array) -> float:
    """Give the largest difference of activations and of what is written."""
    out = unit.decode(unit.encode(x), x)
    return max(abs(acts(unit, x) - act).max(), abs(out - written).max())


# --- one function, all layouts ------------------------------------------------------------------


@pytest.mark.parametrize("name", layouts.TRANSCODERS)
def test_transcoders(name: str, tmp_path: Path) -> None:
    p, x = layouts.plain(), layouts.inputs()
    units = load_units(tmp_path, **layouts.TRANSCODERS[name](p, tmp_path))
    unit = units.unit(LAYER)
    assert (units.kind, unit.hook_in, unit.hook_out) == ("transcoders", "mlp_in", "mlp_out")
    assert agree(unit, x, *p.dense(x, jumping(p))) < EXACT


@pytest.mark.parametrize("name", layouts.SAES)
def test_saes(name: str, tmp_path: Path) -> None:
    p, x = layouts.plain(), layouts.inputs()
    units = load_units(tmp_path, **layouts.SAES[name](p, tmp_path))
    unit = units.unit(LAYER)
    assert (units.kind, unit.hook_in, unit.hook_out) == ("saes", "resid_post", "resid_post")
    assert agree(unit, x, *p.dense(x, jumping(p))) < EXACT


@pytest.mark.parametrize("name", layouts.SKIPPING)
def test_skips(name: str, tmp_path: Path) -> None:
    p, x = layouts.plain(), layouts.inputs()
    unit = load_units(tmp_path, **layouts.SKIPPING[name](p, tmp_path)).unit(LAYER)
    act, written = p.dense(x, jumping(p))
    assert agree(unit, x, act, written + x @ p.skip) < EXACT
    assert agree(unit, x, act, written + x @ p.skip.T) > 0.1  # the other way round is seen


@pytest.mark.parametrize("name", layouts.CROSS)
def test_cross_layer_transcoders(name: str, tmp_path: Path) -> None:
    c = layouts.cross()
    layouts.CROSS[name](c, tmp_path)
    units = load_units(tmp_path)
    assert (units.kind, units.layers) == ("clt", (0, 1, 2))
    for s, unit in enumerate(units):
        x = layouts.inputs(s)
        pre = x @ c.E[s].T + c.b_enc[s]
        act = pre * (pre > c.threshold[s])
        assert abs(acts(unit, x) - act).max() < EXACT
        assert unit.writes == tuple(range(s, LAYERS))
        for t in unit.writes:
            own = c.b_dec[t] if t == s else 0
            out = unit.decode(unit.encode(x), x, t)
            assert abs(out - own - act @ c.D[s][t - s]).max() < EXACT


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*/golden.npz")), ids=lambda f: f.parent.name)
def test_circuit_tracer_finds_the_same_features(file: Path) -> None:
    golden = np.load(file)
    model = pathexpand.load(file.parent)
    run = model.run([int(token) for token in golden["tokens"]])
    units = check_units(load_units(file.parent / "transcoders"), model.checkpoint, folded=True)
    where, act = golden["active_features"], golden["activation_values"]
    for unit in units:
        on = unit.encode(at_hook(model.checkpoint, run.dense, unit.layer, unit.hook_in))
        keep, theirs = on.positions >= 1, where[:, 0] == unit.layer
        found = np.stack([on.positions[keep], on.features[keep]], axis=1)
        assert (found == where[theirs][:, 1:]).all()
        assert abs(on.act[keep] - act[theirs]).max() < EXACT


def test_b_dec_taken_off_inputs(tmp_path: Path) -> None:
    p, x = layouts.subtracting(), layouts.inputs()
    expected = p.dense(x, lambda pre: np.maximum(pre, 0))
    for name, given in (
        ("lens", layouts.sae_lens(p, tmp_path / "lens", architecture="standard",
                                  apply_b_dec_to_input=True)),
        ("dictionary", layouts.dictionary(p, tmp_path / "dictionary", "AutoEncoder")),
    ):  # fmt: skip
        units = load_units(tmp_path / name, **given)
        assert agree(units.unit(LAYER), x, *expected) < EXACT
        assert "b_dec is subtracted from inputs." in units.notes


def test_llama_scope(tmp_path: Path) -> None:
    p, x = layouts.plain(), layouts.inputs()
    layouts.llama_scope(p, tmp_path, 0.9)
    scale = np.sqrt(WIDTH) / 2.5
    threshold = 0.9 / scale / np.linalg.norm(p.D, axis=1)
    unit = load_units(tmp_path).unit(LAYER)
    assert agree(unit, x, *p.dense(x, lambda pre: pre * (pre > threshold))) < EXACT


def test_gated(tmp_path: Path) -> None:
    p, x = layouts.plain(), layouts.inputs()
    rng = np.random.default_rng(3)
    r_mag, b_gate, b_mag = rng.normal(size=(3, FEATURES)) / 2
    layouts.sae_lens(p, tmp_path / "lens", architecture="gated")
    weights = {"W_enc": p.E.T, "W_dec": p.D, "b_dec": p.b_dec}
    layouts.save(
        tmp_path / "lens" / "sae_weights.safetensors",
        **weights, r_mag=r_mag, b_gate=b_gate, b_mag=b_mag,
    )  # fmt: skip
    product = x @ p.E.T
    act = (product + b_gate > 0) * np.maximum(product * np.exp(r_mag) + b_mag, 0)
    unit = load_units(tmp_path / "lens").unit(LAYER)
    assert agree(unit, x, act, act @ p.D + p.b_dec) < EXACT

    trainer = {"dict_class": "GatedAutoEncoder", "layer": LAYER, "submodule_name": "resid_post_3"}
    layouts.write_json(tmp_path / "dictionary" / "config.json", trainer=trainer)
    layouts.save(
        tmp_path / "dictionary" / "ae.safetensors",
        **{"encoder.weight": p.E, "decoder.weight": p.D.T, "decoder_bias": p.b_dec},
        r_mag=r_mag, gate_bias=b_gate, mag_bias=b_mag,
    )  # fmt: skip
    product = (x - p.b_dec) @ p.E.T
    act = (product + b_gate > 0) * np.maximum(product * np.exp(r_mag) + b_mag, 0)
    unit = load_units(tmp_path / "dictionary").unit(LAYER)
    assert agree(unit, x, act, act @ p.D + p.b_dec) < EXACT


def test_batch_topk_is_what_it_was_saved_as(tmp_path: Path) -> None:
    p, x = layouts.subtracting(), layouts.inputs()
    layouts.dictionary(p, tmp_path, "BatchTopKSAE", k=np.array(4.0), threshold=np.array(0.7))
    unit = load_units(tmp_path).unit(LAYER)
    assert agree(unit, x, *p.dense(x, lambda pre: pre * (pre > 0.7))) < EXACT


def test_transcoder_circuits(tmp_path: Path) -> None:
    p, x = layouts.subtracting(), layouts.inputs()
    out = p.b_dec + 1
    layouts.save(
        tmp_path / "transcoder.safetensors",
        W_enc=p.E.T, W_dec=p.D, b_enc=p.b_enc, b_dec=p.b_dec, b_dec_out=out,
    )  # fmt: skip
    act, written = p.dense(x, lambda pre: np.maximum(pre, 0))
    unit = load_units(tmp_path, layer=LAYER).unit(LAYER)
    assert agree(unit, x, act, written + 1) < EXACT
    with pytest.raises(PathExpandError, match="layer=…"):
        load_units(tmp_path)


# --- top-k: three meanings ----------------------------------------------------------------------


def largest(pre: Array, k: int, rank: Array | None = None) -> Array:
    """Keep the k largest of each row, by sorting."""
    out = np.zeros_like(pre)
    order = np.argsort(-(pre if rank is None else rank), axis=1, kind="stable")[:, :k]
    np.put_along_axis(out, order, np.take_along_axis(pre, order, axis=1), axis=1)
    return out


def test_topk_keeps_negative_ones_in_circuit_tracer_alone(tmp_path: Path) -> None:
    p = layouts.subtracting()
    # Fewer than k are above 0: then the meanings differ.
    p = Plain(p.E / 4, p.D, p.b_enc - 1, p.b_dec, p.threshold, p.skip, p.pre_bias)
    x, k = layouts.inputs(), 9
    layouts.circuit_tracer(p, tmp_path / "tracer")
    for layer in range(LAYER + 1):
        file = tmp_path / "tracer" / f"layer_{layer}.safetensors"
        tensors = load_file(file)
        del tensors["activation_function.threshold"]
        save_file(tensors | {"k": np.array(k)}, file)
    setting = tmp_path / "tracer" / "config.yaml"
    setting.write_text(setting.read_text() + f"activation: topk\nk: {k}\n")
    layouts.sae_lens(p, tmp_path / "lens", architecture="topk", k=k, apply_b_dec_to_input=True)
    layouts.sparsify(p, tmp_path / "sparsify", k=k)
    layouts.dictionary(p, tmp_path / "dictionary", "AutoEncoderTopK", k=np.array(k),
                       threshold=np.array(-1.0))  # fmt: skip
    whole = x @ p.E.T + p.b_enc
    kept = largest(whole, k)
    assert (kept < 0).any()
    unit = load_units(tmp_path / "tracer").unit(LAYER)
    assert agree(unit, x, kept, kept @ p.D + p.b_dec) < EXACT
    assert (np.bincount(unit.encode(x).positions) == k).all()
    positive = p.dense(x, lambda pre: np.maximum(largest(pre, k), 0))
    assert positive[0].any(axis=1).all() and ((positive[0] > 0).sum(axis=1) < k).any()
    for name in ("lens", "sparsify", "dictionary"):
        assert agree(load_units(tmp_path / name).unit(LAYER), x, *positive) < EXACT, name


def test_groupmax(tmp_path: Path) -> None:
    p, x = layouts.plain(features=12), layouts.inputs()
    layouts.sparsify(p, tmp_path, k=3, activation="groupmax", transcode=True,
                     module=f"h.{LAYER}.mlp", skip_connection=True)  # fmt: skip
    pre = np.maximum(x @ p.E.T + p.b_enc, 0).reshape(len(x), 3, 4)
    act = np.where(pre == pre.max(axis=2, keepdims=True), pre, 0).reshape(len(x), 12)
    unit = load_units(tmp_path).unit(LAYER)
    assert (unit.kind, unit.hook_in, unit.hook_out) == ("transcoder", "mlp_in", "mlp_raw")
    assert agree(unit, x, act, act @ p.D + p.b_dec + x @ p.skip) < EXACT


def test_topk_by_the_length_of_decoder_rows(tmp_path: Path) -> None:
    p, x, k = layouts.plain(), layouts.inputs(), 4
    length = np.linalg.norm(p.D, axis=1)
    layouts.sae_lens(p, tmp_path / "lens", architecture="topk", k=k,
                     rescale_acts_by_decoder_norm=True)  # fmt: skip
    act = np.maximum(largest((x @ p.E.T + p.b_enc) * length, k), 0)
    unit = load_units(tmp_path / "lens").unit(LAYER)
    assert agree(unit, x, act, act / length @ p.D + p.b_dec) < EXACT

    layouts.llamascopium_plain(p, tmp_path / "scope")
    file = tmp_path / "scope" / "config.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps(raw | {"act_fn": "topk", "top_k": k,
                                      "sparsity_include_decoder_norm": True}))  # fmt: skip
    weights = tmp_path / "scope" / "sae_weights.safetensors"
    tensors = load_file(weights)
    save_file({n: a for n, a in tensors.items() if "threshold" not in n}, weights)
    unit = load_units(tmp_path / "scope").unit(LAYER)
    assert agree(unit, x, act / length, act / length @ p.D + p.b_dec) < EXACT
    plainly = np.maximum(largest(x @ p.E.T + p.b_enc, k), 0)
    assert abs(plainly - act / length).max() > 0.1


# --- norms --------------------------------------------------------------------------------------


def test_average_norms_are_folded(tmp_path: Path) -> None:
    p, x, s = layouts.subtracting(), layouts.inputs(), 0.37
    layouts.sae_lens(p, tmp_path, architecture="standard", apply_b_dec_to_input=True,
                     normalize_activations="expected_average_only_in")  # fmt: skip
    with pytest.raises(PathExpandError, match="wanted an input_scale"):
        load_units(tmp_path)
    act, written = p.dense(x * s, lambda pre: np.maximum(pre, 0))
    unit = load_units(tmp_path, input_scale=s).unit(LAYER)
    assert agree(unit, x, act, written / s) < EXACT


def test_constant_norm_is_held_and_undone(tmp_path: Path) -> None:
    p, x = layouts.plain(), layouts.inputs()
    layouts.sae_lens(p, tmp_path, normalize_activations="constant_norm_rescale")
    scale = np.sqrt(WIDTH) / np.linalg.norm(x, axis=1, keepdims=True)
    act, written = p.dense(x * scale, jumping(p))
    units = load_units(tmp_path)
    unit = units.unit(LAYER)
    assert agree(unit, x, act, written / scale) < EXACT
    assert any("held fixed" in note for note in units.notes)
    on = unit.encode(x)
    pre = on.scale[on.positions] * np.einsum("nd,nd->n", x[on.positions], unit.reads(on.features))
    assert abs(pre + unit.constants(on.features) - on.pre).max() < EXACT


@pytest.mark.parametrize("architecture", ["jumprelu", "jumprelu_transcoder"])
def test_layer_norm_is_undone_for_saes_alone(architecture: str, tmp_path: Path) -> None:
    p, x = layouts.plain(), layouts.inputs()
    layouts.sae_lens(p, tmp_path, architecture=architecture, normalize_activations="layer_norm")
    mean, spread = x.mean(axis=1, keepdims=True), x.std(axis=1, ddof=1, keepdims=True)
    act, written = p.dense((x - mean) / (spread + 1e-5), jumping(p))
    if architecture == "jumprelu":
        written = written * spread + mean
    unit = load_units(tmp_path).unit(LAYER)
    assert agree(unit, x, act, written) < EXACT
    on = unit.encode(x)
    pre = on.scale[on.positions] * np.einsum("nd,nd->n", x[on.positions], unit.reads(on.features))
    assert abs(pre + unit.constants(on.features) - on.pre).max() < EXACT


def test_scaling_factors_of_old_files(tmp_path: Path) -> None:
    p, x = layouts.plain(), layouts.inputs()
    layouts.sae_lens_5(p, tmp_path)
    file, factor = tmp_path / "sae_weights.safetensors", np.random.default_rng(8).uniform(1, 2, 13)
    save_file(load_file(file) | {"scaling_factor": factor}, file)
    act, _ = p.dense(x, jumping(p))
    out = load_units(tmp_path).unit(LAYER)
    assert agree(out, x, act, act * factor @ p.D + p.b_dec) < EXACT


# --- thresholds ---------------------------------------------------------------------------------


def test_thresholds_below_0_differ_between_libraries(tmp_path: Path) -> None:
    p, x = layouts.plain(), layouts.inputs()
    p = Plain(p.E, p.D, p.b_enc, p.b_dec, -p.threshold, p.skip)
    pre = x @ p.E.T + p.b_enc
    layouts.circuit_tracer(p, tmp_path / "tracer")
    layouts.sae_lens_transcoder(p, tmp_path / "lens")
    given = layouts.gemma_scope(p, tmp_path / "gemma")
    assert (acts(load_units(tmp_path / "tracer").unit(LAYER), x) < 0).any()
    for unit in (load_units(tmp_path / "lens"), load_units(tmp_path / "gemma", **given)):
        assert abs(acts(unit.unit(LAYER), x) - np.maximum(pre, 0)).max() < EXACT


# --- narrow numbers, read by need ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_numbers_are_widened(dtype: str, tmp_path: Path) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    p, x = layouts.plain(), layouts.inputs()
    layouts.sae_lens(p, tmp_path)
    file = tmp_path / "sae_weights.safetensors"
    save_file({name: array.astype(kind) for name, array in load_file(file).items()}, file)
    names = ("E", "D", "b_enc", "b_dec", "threshold")
    rounded = {name: getattr(p, name).astype(kind).astype(np.float64) for name in names}
    low = Plain(**rounded, skip=p.skip)
    unit = load_units(tmp_path).unit(LAYER)
    assert agree(unit, x, *low.dense(x, jumping(low))) < EXACT
    assert (unit.E.dtype, unit.decoder([1]).dtype) == (np.float64, np.float64)
    assert abs(unit.E - p.E).max() > 0


def test_matrices_stay_on_the_disk(tmp_path: Path) -> None:
    def base(array: Any) -> Any:
        while array.base is not None and not isinstance(array, np.memmap):
            array = array.base
        return array

    p = layouts.plain()
    for name, write in (("lens", layouts.sae_lens), ("gemma", layouts.gemma_scope)):
        units = load_units(tmp_path / name, **write(p, tmp_path / name))
        unit = units.units[0]
        for rows in (unit.W_enc, *unit.W_dec):
            assert isinstance(base(rows.stored), np.memmap)


def test_compressed_npz(tmp_path: Path) -> None:
    p, x = layouts.plain(), layouts.inputs()
    given = layouts.gemma_scope(p, tmp_path)
    file = next(tmp_path.rglob("params.npz"))
    arrays = dict(np.load(file))
    np.savez_compressed(file, **arrays)
    unit = load_units(tmp_path, **given).unit(LAYER)
    assert agree(unit, x, *p.dense(x, jumping(p))) < EXACT


# --- what is refused, and how it is said --------------------------------------------------------


def refused(place: Path, **given: Any) -> str:
    with pytest.raises(PathExpandError) as caught:
        load_units(place, **given)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_two_formats_with_the_same_files(tmp_path: Path) -> None:
    layouts.gemma_scope(layouts.plain(), tmp_path)
    line = refused(tmp_path)
    assert "gemma-scope-transcoder or gemma-scope-sae" in line
    assert "got files of several formats" in line
    assert "hook_in" in refused(tmp_path, format="gemma-scope-sae")


def test_unknown_places_and_formats(tmp_path: Path) -> None:
    assert "neither" in refused(tmp_path / "absent")
    assert "sae-lens: cfg.json, sae_weights.safetensors" in refused(tmp_path)
    assert "circuit-tracer" in refused(tmp_path, format="sae lens")
    layouts.sae_lens(layouts.plain(), tmp_path)
    assert "config.yaml" in refused(tmp_path, format="circuit-tracer")
    for value in ("", 3, None):
        assert "a directory" in refused(value)  # type: ignore[arg-type]


def test_options_that_the_files_answer(tmp_path: Path) -> None:
    layouts.sae_lens(layouts.plain(), tmp_path)
    for option, value in (("layer", 3), ("hook_in", "resid_pre"), ("hook_out", "mlp_out")):
        assert f"no {option}" in refused(tmp_path, **{option: value})
    # Files of this kind may need it; these do not.
    assert "no input_scale" in refused(tmp_path, input_scale=2.0)
    for option, value in (("layer", -1), ("hook_in", "hook_resid_pre"), ("input_scale", 0)):
        assert option in refused(tmp_path, **{option: value})


def test_numbers_that_cannot_be(tmp_path: Path) -> None:
    p = layouts.plain()
    layouts.dictionary(p, tmp_path / "k", "AutoEncoderTopK", k=np.array(2.5))
    assert "a whole number in k" in refused(tmp_path / "k")
    layouts.dictionary(p, tmp_path / "t", "BatchTopKSAE", threshold=np.array(np.nan))
    assert "a number in threshold" in refused(tmp_path / "t")
    layouts.llamascopium(p, tmp_path / "scope")
    file = tmp_path / "scope" / "sae_weights.safetensors"
    good = load_file(file)
    norm = next(name for name in good if name.startswith("dataset_average"))
    save_file(good | {norm: np.array(0.0)}, file)
    assert "a positive dataset_average" in refused(tmp_path / "scope")
    log = "activation_function.log_jumprelu_threshold"
    save_file(good | {log: good[log] * np.nan}, file)
    assert "threshold: wanted finite numbers" in refused(tmp_path / "scope")
    save_file(good | {"b_E": good["b_E"].astype(np.int64)}, file)
    assert "floats in b_E, got int64" in refused(tmp_path / "scope")
    save_file(good | {"W_D": good["W_D"].astype(np.int8)}, file)
    assert "floats, got int8" in refused(tmp_path / "scope")


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    layouts.write_json(tmp_path / "config.json", trainer={"dict_class": "AutoEncoder", "layer": 1})
    (tmp_path / "ae.pt").write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")
    for place in (tmp_path, tmp_path / "ae.pt"):
        line = refused(place)
        assert "pickles are never loaded" in line and "python -c" in line
        assert "'ae.safetensors'" in line
    assert not (tmp_path / "hacked").exists()


def test_npz_of_objects_is_not_loaded(tmp_path: Path) -> None:
    given = layouts.gemma_scope(layouts.plain(), tmp_path)
    file = next(tmp_path.rglob("params.npz"))
    np.savez(file, W_enc=np.array([[1, "x"]], dtype=object))
    assert "never loaded" in refused(tmp_path, **given)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.99])
@pytest.mark.parametrize("name", ["sae-lens", "gemma-scope"])
def test_truncated_files(name: str, share: float, tmp_path: Path) -> None:
    given = layouts.SAES[name](layouts.plain(), tmp_path)
    file = next(f for f in tmp_path.rglob("*") if f.suffix in (".safetensors", ".npz"))
    data = file.read_bytes()
    file.write_bytes(data[: int(share * len(data))])
    assert str(file) in refused(tmp_path, **given)


def test_wrong_shapes_and_tensors(tmp_path: Path) -> None:
    p = layouts.plain()
    layouts.sae_lens(p, tmp_path)
    file = tmp_path / "sae_weights.safetensors"
    good = load_file(file)
    for name, array, told in (
        ("W_dec", good["W_dec"].T.copy(), "W_dec of shape (13, any), got (7, 13)"),
        ("threshold", good["threshold"][:-1], "threshold of shape (13), got (12,)"),
        ("W_enc", good["W_enc"][0], "W_enc of shape (any, any), got (13,)"),
        ("b_dec", good["b_dec"] * np.nan, f"{tmp_path}, features of layer 3: b_dec: wanted finite"),
        ("extra", good["b_dec"], "no other tensors, got extra"),
    ):
        save_file(good | {name: array}, file)
        assert told in refused(tmp_path)
    save_file({n: a for n, a in good.items() if n != "b_enc"}, file)
    assert "a tensor b_enc" in refused(tmp_path)


def test_numbers_that_are_not_finite_are_met_when_read(tmp_path: Path) -> None:
    p, x = layouts.plain(), layouts.inputs()
    p.E[4, 2] = np.inf
    layouts.sae_lens(p, tmp_path)
    unit = load_units(tmp_path).unit(LAYER)
    with pytest.raises(PathExpandError, match="1 that are NaN or infinite"):
        unit.encode(x)


def test_missing_layers(tmp_path: Path) -> None:
    layouts.circuit_tracer(layouts.plain(), tmp_path / "plt")
    (tmp_path / "plt" / "layer_1.safetensors").unlink()
    assert "no layer_1.safetensors" in refused(tmp_path / "plt")
    layouts.circuit_tracer_clt(layouts.cross(), tmp_path / "clt")
    (tmp_path / "clt" / "W_dec_1.safetensors").unlink()
    assert "W_dec_1.safetensors" in refused(tmp_path / "clt")
    layouts.gemma_scope_2_clt(layouts.cross(), tmp_path / "gemma")
    (tmp_path / "gemma" / "params_layer_0.safetensors").unlink()
    assert "no params_layer_0.safetensors" in refused(tmp_path / "gemma")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"architecture": "temporal"}, "architecture"),
        ({"normalize_activations": "covariance_whitening"}, "covariance_whitening"),
        ({"reshape_activations": "hook_z"}, "hook_z"),
        ({"metadata": {"hook_name": "blocks.2.attn.hook_z"}}, "attn.hook_z"),
        ({"metadata": {"hook_name": "blocks.2.hook_resid_pre", "hook_head_index": 3}}, "heads"),
        ({"metadata": {}}, "hook_name"),
        ({"architecture": "topk"}, "a positive whole number"),
        ({"apply_b_dec_to_input": "yes"}, "true or false"),
    ],
)
def test_settings_of_sae_lens_that_are_not_read(
    change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    layouts.sae_lens(layouts.plain(), tmp_path)
    raw = json.loads((tmp_path / "cfg.json").read_text())
    (tmp_path / "cfg.json").write_text(json.dumps(raw | change))
    assert told in refused(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sae_type": "lorsa"}, "lorsa"),
        ({"act_fn": "batchtopk"}, "convert it to jumprelu"),
        ({"use_glu_encoder": True}, "gated encoders"),
        ({"norm_activation": "batch-wise"}, "batch-wise"),
        ({"norm_activation": "token-wise"}, "token-wise"),
        ({"sparsity_include_decoder_norm": None}, "sparsity_include_decoder_norm"),
        ({"hook_point_out": "blocks.2.hook_mlp_out"}, "layer 2"),
    ],
)
def test_settings_of_llamascopium_that_are_not_read(
    change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    layouts.llamascopium(layouts.plain(), tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | change))
    assert told in refused(tmp_path)


def test_settings_of_circuit_tracer_that_are_not_read(tmp_path: Path) -> None:
    layouts.circuit_tracer(layouts.plain(), tmp_path)
    file = tmp_path / "config.yaml"
    good = file.read_text()
    for bad, told in (
        (good.replace("transcoder_set", "lorsa"), "lorsa"),
        (good.replace("mlp.hook_in", "attn.hook_z"), "attn.hook_z"),
        (good.replace("feature_output_hook", "other"), "feature_output_hook"),
        (good + "activation: gelu\n", "gelu"),
        ("- a\n- b\n", "names and values"),
        ("a: [1,\n", "YAML"),
    ):
        file.write_text(bad)
        assert told in refused(tmp_path)
    for layer in range(LAYER + 1):
        (tmp_path / f"layer_{layer}.safetensors").unlink()
    file.write_text(good + 'transcoders: ["hf://a/b/c.npz"]\n')
    assert "download" in refused(tmp_path)


def test_transcoders_that_a_configuration_lists(tmp_path: Path) -> None:
    p, x = layouts.plain(), layouts.inputs()
    layouts.circuit_tracer(p, tmp_path)
    (tmp_path / "set").mkdir()
    for layer in range(LAYER + 1):
        (tmp_path / f"layer_{layer}.safetensors").rename(
            tmp_path / "set" / f"{9 - layer}.safetensors"
        )
    files = json.dumps([f"set/{9 - layer}.safetensors" for layer in range(LAYER + 1)])
    file = tmp_path / "config.yaml"
    file.write_text(file.read_text() + f"transcoders: {files}\n")
    assert agree(load_units(tmp_path).unit(LAYER), x, *p.dense(x, jumping(p))) < EXACT


def test_yaml_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts.circuit_tracer(layouts.plain(), tmp_path)
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert 'pip install "pathexpand[features]"' in refused(tmp_path)
    # JSON is YAML, and needs no library.
    hooks = {"feature_input_hook": "mlp.hook_in", "feature_output_hook": "hook_mlp_out"}
    layouts.write_json(tmp_path / "config.yaml", model_kind="transcoder_set", **hooks)
    assert load_units(tmp_path).layers == (0, 1, 2, 3)


def test_cross_layer_coders_of_sparsify_are_refused(tmp_path: Path) -> None:
    layouts.sparsify(layouts.plain(), tmp_path, n_targets=3)
    assert "cross-layer coders" in refused(tmp_path)
    layouts.sparsify(layouts.plain(), tmp_path / "b", module="embed_tokens")
    assert "embed_tokens" in refused(tmp_path / "b")


def test_several_folders_are_one_set(tmp_path: Path) -> None:
    for layer in (10, 2, 0):
        layouts.sparsify(layouts.plain(layer), tmp_path, module=f"layers.{layer}")
    units = load_units(tmp_path)
    assert units.layers == (0, 2, 10)
    assert abs(units.unit(10).E - layouts.plain(10).E).max() == 0
    assert load_units(tmp_path / "layers.2" / "cfg.json").layers == (2,)


def test_a_layer_that_is_given_counts_more_than_a_folders_name(tmp_path: Path) -> None:
    layouts.sparsify(layouts.plain(), tmp_path, module="layers.2")
    assert load_units(tmp_path, layer=5).layers == (5,)
    assert load_units(tmp_path, layer=5, hook_in="resid_pre").unit(5).hook_in == "resid_pre"


def test_sets_are_named_after_the_directory_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "mine"
    for layer in (1, 0):
        layouts.sparsify(layouts.plain(layer), place, module=f"layers.{layer}")
    assert load_units(place).name == "mine"
    assert load_units(place / "layers.1").name == "layers.1"
    assert load_units(place / "layers.1" / "cfg.json").name == "layers.1"
    monkeypatch.chdir(place)
    assert load_units(".").name == "mine"
    assert load_units("two-layer").name == "two-layer"
    # A folder of that name is not looked at, a longer path to one is.
    layouts.sparsify(layouts.plain(), tmp_path / "two-layer", module="layers.0")
    monkeypatch.chdir(tmp_path)
    assert load_units("./two-layer").name == "two-layer"
    assert load_units("./two-layer").format == "sparsify"
