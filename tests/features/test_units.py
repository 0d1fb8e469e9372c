"""Units by themselves, and how they fit models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.api import Model, Run
from pathexpand.errors import PathExpandError
from pathexpand.features import (
    FeatureRows,
    Unit,
    UnitSet,
    at_hook,
    check_units,
    reconstruction,
    rows,
)
from tests.api.models import SIZES, small, tensors
from tests.features.layouts import Array, inputs, plain

EXACT = 1e-12
PROMPT = [3, 1, 4, 1, 5, 9]


def unit(layer: int = 1, **changes: Any) -> Unit:
    p = plain()
    given: dict[str, Any] = {"kind": "transcoder", "hook_in": "mlp_in", "E": p.E, "D": p.D}
    return Unit.of(**(given | {"layer": layer, "b_enc": p.b_enc, "b_dec": p.b_dec} | changes))


# --- a unit alone -------------------------------------------------------------------------------


def test_active_features_are_sorted_and_sparse() -> None:
    p, x = plain(), inputs()
    on = unit().encode(x)
    pre = x @ p.E.T + p.b_enc
    positions, features = np.nonzero(pre > 0)
    assert (on.positions == positions).all() and (on.features == features).all()
    assert abs(on.pre - pre[positions, features]).max() < EXACT
    assert (on.pre == on.act).all()
    assert (on.features[on.at(4)] == np.flatnonzero(pre[4] > 0)).all()


def test_jumprelu_is_strict() -> None:
    eye = np.eye(3)
    one = unit(E=eye, D=eye, b_enc=None, b_dec=None, activation="jumprelu",
               threshold=np.array([0.5, 1.0, 0.0]))  # fmt: skip
    on = one.encode(np.array([[0.5, 1.0, 0.0], [np.nextafter(0.5, 1), 1.5, -1.0]]))
    assert list(zip(on.positions, on.features, strict=True)) == [(1, 0), (1, 1)]
    assert on.act.tolist() == [np.nextafter(0.5, 1), 1.5]


@pytest.mark.parametrize(("rule", "kept"), [("topk", 2), ("topk_then_relu", 0)])
def test_topk_of_what_is_all_negative(rule: str, kept: int) -> None:
    one = unit(E=np.zeros((5, 3)), D=np.ones((5, 3)), b_enc=-np.ones(5), b_dec=None,
               activation="topk", k=2, topk_rule=rule)  # fmt: skip
    on = one.encode(np.zeros((1, 3)))
    assert on.features.tolist() == [0, 1][:kept]  # of equal ones, the lower index


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    p, x = plain(features=29), inputs()
    cases: list[dict[str, Any]] = [
        {},
        {"activation": "jumprelu", "threshold": p.threshold},
        {"activation": "topk", "k": 4, "topk_rule": "topk"},
        {"activation": "topk", "k": 4, "rank_gain": p.threshold},
    ]
    for case in cases:
        one = unit(E=p.E, D=p.D, b_enc=p.b_enc, **case)
        whole = one.encode(x)
        written = one.decode(whole)
        with monkeypatch.context() as patch:
            patch.setattr(rows, "_CHUNK", 8 * 7 * 3)  # three features a piece
            pieces = one.encode(x)
            assert (pieces.features == whole.features).all()
            assert abs(pieces.act - whole.act).max() < EXACT
            assert abs(one.decode(pieces) - written).max() < EXACT
            assert abs(one.W_enc.lengths() - np.linalg.norm(p.E, axis=1)).max() < EXACT


def test_ties_across_pieces_go_to_the_lower_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_CHUNK", 8 * 3 * 2)
    one = unit(E=np.zeros((7, 3)), D=np.ones((7, 3)), b_enc=np.array([1.0, 2, 1, 2, 2, 1, 2]),
               b_dec=None, activation="topk", k=3)  # fmt: skip
    assert one.encode(np.zeros((1, 3))).features.tolist() == [1, 3, 4]


def test_pre_is_scale_times_reads_plus_constants() -> None:
    p, x = plain(), inputs()
    one = unit(pre_bias=p.b_dec, scale_in="layer_norm", kind="sae", hook_in="resid_pre",
               unscaled=True)  # fmt: skip
    on = one.encode(x)
    read = np.einsum("nd,nd->n", x[on.positions], one.reads(on.features))
    assert abs(on.scale[on.positions] * read + one.constants(on.features) - on.pre).max() < EXACT
    raw = np.einsum("nd,nd->n", x[on.positions], one.encoder(on.features))
    assert abs(on.scale[on.positions] * raw + one.constants(on.features) - on.pre).max() > 0.1


def test_inputs_that_cannot_be() -> None:
    one = unit()
    for x in (np.zeros((3, 6)), np.zeros(7), np.full((1, 7), np.nan), np.full((1, 7), np.inf)):
        with pytest.raises(PathExpandError, match="input"):
            one.encode(x)
    with pytest.raises(PathExpandError, match="overflow"):
        one.encode(np.full((1, 7), 1e308))
    skipping = unit(skip=np.eye(7))
    with pytest.raises(PathExpandError, match="inputs too"):
        skipping.decode(skipping.encode(inputs()))
    with pytest.raises(PathExpandError, match="a layer it writes"):
        one.decoder([0], 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "mlp"},
        {"hook_in": "hook_resid_pre"},
        {"hook_out": "logits"},
        {"layer": -1},
        {"layer": True},
        {"b_enc": np.zeros(12)},
        {"b_enc": np.full(13, np.nan)},
        {"b_dec": np.zeros(6)},
        {"D": np.zeros((12, 7))},
        {"E": np.zeros(7)},
        {"E": np.zeros((13, 7), int)},
        {"activation": "gelu"},
        {"activation": "jumprelu"},
        {"activation": "jumprelu", "threshold": np.zeros(12)},
        {"threshold": np.zeros(13)},
        {"activation": "topk"},
        {"activation": "topk", "k": 14},
        {"activation": "topk", "k": 0},
        {"activation": "topk", "k": 2.0},
        {"activation": "topk", "k": 2, "topk_rule": "largest"},
        {"activation": "groupmax", "k": 5},
        {"activation": "gated", "gate_gain": np.ones(13)},
        {"rank_gain": np.ones(13)},
        {"skip": np.zeros((7, 6))},
        {"pre_bias": np.zeros(13)},
        {"scale_in": "batch_norm"},
        {"unscaled": True},
        {"writes": (1, 2)},
        {"writes": (0, 1), "D": [np.zeros((13, 7))] * 2},
        {"writes": (2,)},
        {"kind": "sae", "hook_out": "mlp_out"},
        {"kind": "sae", "skip": np.eye(7)},
    ],
)
def test_units_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(PathExpandError) as caught:
        unit(**changes)
    assert "\n" not in str(caught.value)


def test_vectors_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        unit().b_enc[0] = 1


def test_sets_that_cannot_be() -> None:
    sae = unit(kind="sae", hook_in="resid_pre")
    p = plain()
    crossing = unit(layer=0, writes=(0, 1), D=[p.D, p.D])
    for units, kind, told in (
        ((), "saes", "one unit a layer"),
        ((unit(1), unit(0)), "transcoders", "one unit a layer"),
        ((unit(0), unit(0)), "transcoders", "one unit a layer"),
        ((sae,), "transcoders", "transcoders alone"),
        ((unit(0), unit(1, hook_in="resid_mid")), "transcoders", "one hook_in"),
        ((crossing, unit(1)), "transcoders", "their own layer"),
        ((crossing,), "clt", "units of layers 1"),
        ((unit(),), "crosscoders", "transcoders, clt or saes"),
    ):
        with pytest.raises(PathExpandError, match=told):
            UnitSet(units, kind)  # type: ignore[arg-type]
    whole = UnitSet((crossing, unit(1)), "clt")
    assert [each.layer for each in whole.into(1)] == [0, 1]
    assert whole.unit(1) is whole.units[1] and len(whole) == 2
    with pytest.raises(PathExpandError, match="layer 0, 1"):
        whole.unit(2)


def test_names() -> None:
    assert repr(unit()) == "Unit(layer 1, transcoder: 13 features, mlp_in → mlp_out)"
    units = UnitSet((unit(0), unit(1)), "transcoders", name="mine")
    assert repr(units) == "UnitSet('mine': transcoders of layers 0, 1)"


def test_rows_with_gains() -> None:
    given = FeatureRows("W", np.arange(6.0).reshape(3, 2))
    own = given.scaled(np.array([1.0, 2.0, 3.0])).scaled(2.0).over(np.array([1.0, -1.0]))
    expected = given.stored * np.array([[2.0], [4.0], [6.0]]) * [1, -1]
    assert (own.whole() == expected).all()
    assert (own.at(np.array([2, 0])) == expected[[2, 0]]).all()
    assert (own.products(np.array([1.0, 3.0])) == expected @ [1, 3]).all()
    for changes in ({"gain": np.ones(2)}, {"columns": np.ones(3)}):
        with pytest.raises(PathExpandError, match="gains"):
            replace(given, **changes)


# --- in a model ---------------------------------------------------------------------------------


def model_and_run(**raw: Any) -> tuple[Model, Run]:
    model = small(**({"act_fn": "relu", "normalization_type": "LN"} | raw))
    return model, model.run(PROMPT)


def exact_transcoders(model: Model) -> UnitSet:
    """Give each MLP of a model as features: what is on are its neurons."""
    units = []
    for layer, block in enumerate(model.weights.blocks):
        mlp = block.mlp
        assert mlp is not None
        units.append(
            Unit.of(layer=layer, kind="transcoder", hook_in="mlp_in", E=mlp.W_in.T, D=mlp.W_out,
                    b_enc=mlp.b_in, b_dec=mlp.b_out)
        )  # fmt: skip
    return UnitSet(tuple(units), "transcoders", name="neurons")


def test_exact_transcoders_are_the_mlps() -> None:
    model, run = model_and_run()
    units = check_units(exact_transcoders(model), model.checkpoint)
    for one in units:
        x = at_hook(model.checkpoint, run.dense, one.layer, "mlp_in")
        y = at_hook(model.checkpoint, run.dense, one.layer, "mlp_out")
        assert abs(one.decode(one.encode(x), x) - y).max() < EXACT
    table = reconstruction(units, run)
    assert table.good and max(table.column("FVU")) < 1e-24
    gates = [run.dense.layers[layer].gates for layer in range(2)]
    on = [np.count_nonzero(gate) / len(PROMPT) for gate in gates if gate is not None]
    assert list(table.column("L0")) == pytest.approx(on)


@pytest.mark.parametrize("hook", ["resid_pre", "resid_mid", "resid_post", "mlp_in", "mlp_out",
                                  "mlp_raw", "attn_out"])  # fmt: skip
def test_identity_saes(hook: Any) -> None:
    _, run = model_and_run()
    eye = np.eye(SIZES["d_model"])
    one = Unit.of(layer=1, kind="sae", hook_in=hook, E=eye, D=eye, activation="identity")
    table = reconstruction(UnitSet((one,), "saes"), run)
    assert table.column("FVU") == (0.0,)
    assert table.column("L0") == (SIZES["d_model"],)


def test_a_clt_of_diagonal_slots_is_transcoders() -> None:
    model, run = model_and_run()
    units = exact_transcoders(model)
    first, last = units
    crossing = replace(
        first, writes=(0, 1), W_dec=(*first.W_dec, FeatureRows("0", 0 * first.W_dec[0].whole()))
    )
    clt = UnitSet((crossing, last), "clt")
    assert reconstruction(clt, run).rows == reconstruction(units, run).rows
    moved = replace(crossing, W_dec=(first.W_dec[0].scaled(0.5), first.W_dec[0].scaled(0.5)))
    assert reconstruction(UnitSet((moved, last), "clt"), run, force=True).column("FVU")[1] > 0.01


def test_bad_units_are_refused_unless_forced() -> None:
    model, run = model_and_run()
    units = exact_transcoders(model)
    turned = tuple(replace(one, W_dec=(one.W_dec[0].scaled(-3.0),)) for one in units)
    bad = replace(units, units=turned)
    with pytest.raises(PathExpandError, match="FVU at most 1"):
        reconstruction(bad, run)
    table = reconstruction(bad, run, force=True)
    assert not table.good and max(table.column("FVU")) > 1
    assert "Worse than a constant" in str(table)


def test_positions_that_count() -> None:
    _, run = model_and_run()
    eye = np.eye(SIZES["d_model"])
    one = Unit.of(layer=1, kind="sae", hook_in="resid_pre", E=eye, D=0.5 * eye,
                  activation="identity")  # fmt: skip
    units = UnitSet((one,), "saes")
    for first in (0, 2):
        x = run.dense.residual[1][0][first:]
        expected = np.square(x / 2).sum() / np.square(x - x.mean(axis=0)).sum()
        table = reconstruction(units, run, first=first, force=True)
        assert table.column("FVU")[0] == pytest.approx(expected)
    # One position has no variance.
    assert reconstruction(units, run, first=5).column("FVU") == (None,)
    for first in (-1, 6, 1.0):
        with pytest.raises(PathExpandError, match="0 to 5"):
            reconstruction(units, run, first=first)  # type: ignore[arg-type]


def test_a_start_token_does_not_count() -> None:
    model = pathexpand.load("two-layer")
    run = model.run("to be or not to be")
    eye = np.eye(192)
    one = Unit.of(layer=1, kind="sae", hook_in="resid_pre", E=eye, D=0.9 * eye,
                  activation="identity")  # fmt: skip
    table = reconstruction(UnitSet((one,), "saes"), run)
    assert "The first position is left out." in table.claims
    assert table.rows == reconstruction(UnitSet((one,), "saes"), run, first=1).rows
    assert table.rows != reconstruction(UnitSet((one,), "saes"), run, first=0).rows


def test_normalized_hooks_of_transformer_lens() -> None:
    """For an RMSNorm the hook comes before the weight, for a LayerNorm behind weight and bias."""
    for kind in ("RMS", "LN"):
        given_tensors = {
            name: array
            for name, array in tensors().items()
            if kind == "LN" or not ("ln" in name and name.endswith(".b"))
        }
        config = SIZES | {"n_ctx": 9, "normalization_type": kind, "act_fn": "relu"}
        model = pathexpand.from_state_dict(given_tensors, config)
        run = model.run(PROMPT)
        p = plain(features=11)
        given = Unit.of(layer=1, kind="transcoder", hook_in="ln2_normalized", E=p.E, D=p.D,
                        b_enc=p.b_enc, skip=p.skip, pre_bias=p.b_dec)  # fmt: skip
        fitted = check_units(UnitSet((given,), "transcoders"), model.checkpoint).units[0]
        x = at_hook(model.checkpoint, run.dense, 1, "mlp_in")
        norm = model.weights.block(1).ln2
        assert norm is not None and norm.weight is not None
        hooked = x / norm.weight if kind == "RMS" else x
        own, expected = fitted.encode(x), given.encode(hooked)
        assert fitted.hook_in == "mlp_in"
        assert (own.features == expected.features).all()
        assert abs(own.act - expected.act).max() < EXACT
        assert abs(fitted.decode(own, x) - given.decode(expected, hooked)).max() < EXACT


def test_units_that_do_not_fit_a_model() -> None:
    model, _ = model_and_run()
    attn_only = pathexpand.load("two-layer")
    p, wide = plain(), plain(width=192)
    skip_mid = unit(kind="sae", hook_in="resid_mid")
    for units, of, told in (
        (unit(E=wide.E), model, "width of 7, got reads of 192"),
        (unit(D=wide.D, b_dec=wide.b_dec), model, "width of 7, got writes of 192"),
        (unit(2), model, "the model's 2 layers"),
        (unit(E=wide.E, D=wide.D, b_dec=wide.b_dec), attn_only, "an MLP"),
        (skip_mid, small(parallel_attn_mlp=True), "between attention and MLP"),
    ):
        kind = "saes" if units.kind == "sae" else "transcoders"
        with pytest.raises(PathExpandError, match=told):
            check_units(UnitSet((units,), kind), of.checkpoint)
    with pytest.raises(PathExpandError, match="one unit for each of 2 layers"):
        check_units(UnitSet((unit(0, D=[p.D]),), "clt"), model.checkpoint)


def test_folded_models_are_refused() -> None:
    folded = {
        name: array
        for name, array in tensors().items()
        if not name.endswith((".w", ".b")) or name.startswith("unembed")
    }
    config = SIZES | {"n_ctx": 9, "normalization_type": "LNPre", "act_fn": "relu"}
    model = pathexpand.from_state_dict(folded, config)
    units = exact_transcoders(model)
    with pytest.raises(PathExpandError, match="without folding"):
        check_units(units, model.checkpoint)
    assert reconstruction(units, model.run(PROMPT), folded=True).good
    # What reads the stream itself does not see folded norms, but it does see centred weights.
    eye = np.eye(SIZES["d_model"])
    sae = Unit.of(layer=1, kind="sae", hook_in="resid_pre", E=eye, D=eye, activation="identity")
    assert reconstruction(UnitSet((sae,), "saes"), model.run(PROMPT)).good
    centred = {
        name: array - array.mean(axis=-1, keepdims=True) if name.endswith("W_O") else array
        for name, array in folded.items()
    }
    other = pathexpand.from_state_dict(centred, config)
    with pytest.raises(PathExpandError, match="centred"):
        check_units(UnitSet((sae,), "saes"), other.checkpoint)


def test_raw_outputs_come_before_the_norm_behind() -> None:
    place = Path(__file__).parents[1] / "reference" / "graphs" / "gemma-inner-1"
    model = pathexpand.load(place)
    golden = np.load(place / "golden.npz")
    run = model.run([int(token) for token in golden["tokens"]])
    block = model.weights.block(1)
    raw, added = (at_hook(model.checkpoint, run.dense, 1, h) for h in ("mlp_raw", "mlp_out"))
    assert block.ln2_post is not None and block.ln2_post.weight is not None
    scale = 1 / np.sqrt(np.square(raw).mean(axis=1, keepdims=True) + block.ln2_post.eps)
    assert abs(raw * scale * block.ln2_post.weight - added).max() < EXACT
    assert abs(raw - added).max() > 0.1


def test_hooks_that_a_layer_does_not_have() -> None:
    model = pathexpand.load("two-layer")
    run = model.run("to be")
    for hook in ("mlp_in", "mlp_raw", "mlp_out", "ln2_normalized"):
        with pytest.raises(PathExpandError):
            at_hook(model.checkpoint, run.dense, 0, hook)  # type: ignore[arg-type]


def dense_array(on: Any, count: int, features: int) -> Array:
    out = np.zeros((count, features))
    out[on.positions, on.features] = on.act
    return out


def test_splitting_and_scaling_features_change_nothing_written() -> None:
    p, x = plain(), inputs()
    one = unit(activation="jumprelu", threshold=p.threshold)
    written = one.decode(one.encode(x))
    c = np.random.default_rng(2).uniform(0.5, 3, 13)
    scaled = unit(E=p.E * c[:, None], b_enc=p.b_enc * c, D=p.D / c[:, None],
                  activation="jumprelu", threshold=p.threshold * c)  # fmt: skip
    assert abs(scaled.decode(scaled.encode(x)) - written).max() < EXACT
    split = unit(E=np.repeat(p.E, 2, axis=0), b_enc=np.repeat(p.b_enc, 2),
                 D=np.repeat(p.D / 2, 2, axis=0), activation="jumprelu",
                 threshold=np.repeat(p.threshold, 2))  # fmt: skip
    assert abs(split.decode(split.encode(x)) - written).max() < EXACT
    assert len(split.encode(x)) == 2 * len(one.encode(x))
    order = np.random.default_rng(3).permutation(13)
    turned = unit(E=p.E[order], b_enc=p.b_enc[order], D=p.D[order], activation="jumprelu",
                  threshold=p.threshold[order])  # fmt: skip
    own = dense_array(one.encode(x), 11, 13)[:, order]
    assert abs(dense_array(turned.encode(x), 11, 13) - own).max() < EXACT
