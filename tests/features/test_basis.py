"""Heads between features, against plain products, paths of edges, scores of runs, and by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.circuits.circuit import ov
from pathexpand.circuits.wiring import head_weights
from pathexpand.errors import ModelError, PathExpandError
from pathexpand.features import basis
from pathexpand.features.attention import attention_score
from pathexpand.features.basis import feature_ov, feature_qk
from pathexpand.features.graph import Graph
from pathexpand.features.unit import Unit, UnitSet
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.symbolic import Head
from tests.api.models import small
from tests.features.graphs import PROMPT, changed, family, graph_of, random_units

Array = np.ndarray[Any, Any]
DEEP = {"n_layers": 3}


def _linear(norm: Any, rows: Array) -> Array:
    """Pass rows through a LayerNorm's matrix."""
    return np.asarray((rows - rows.mean(axis=1, keepdims=True)) * norm.weight)


def test_ov_is_the_plain_product() -> None:
    run = small(0, sizes=DEEP).run(PROMPT)
    units = random_units(run)
    checkpoint = run.model.checkpoint
    blocks = run.model.weights.blocks
    attn = blocks[1].attn
    D, E = units.unit(0).decoder(range(17)), units.unit(2).E
    wanted = _linear(blocks[1].ln1, D) @ attn.W_V[2] @ attn.W_O[2]
    wanted = _linear(blocks[2].ln2, wanted) @ E.T
    found = feature_ov(checkpoint, units, "L1H2", 0, 2)
    assert np.allclose(found.matrix.dense(), wanted, rtol=1e-12, atol=1e-12 * abs(wanted).max())
    swapped = feature_ov(checkpoint, units, "L1H2", 0, 1).matrix.dense()
    assert not np.allclose(swapped, wanted)
    order = np.argsort(-abs(wanted), axis=None, kind="stable")[:9]
    top = found.top(9)
    assert [top.rows.tolist(), top.columns.tolist()] == [
        each.tolist() for each in np.unravel_index(order, wanted.shape)
    ]
    assert found.entry(3, 5) == pytest.approx(wanted[3, 5], rel=1e-12)


def _small(seed: int, **rest: Any) -> Graph:
    run = small(seed, sizes=DEEP).run(PROMPT)
    return graph_of(run, random_units(run, seed=seed, **rest))


def _family(name: str, place: Path, **rest: Any) -> Graph:
    run = family(name, place)
    return graph_of(run, random_units(run, **rest))


GRAPHS: dict[str, Callable[[Path], Graph]] = {
    "plain": lambda place: _small(0),
    "middle": lambda place: _small(1, hook="resid_mid"),
    "saes": lambda place: _small(2, kind="sae", hook="resid_pre"),
    "saes behind": lambda place: _small(3, kind="sae", hook="resid_post"),
    "llama": lambda place: _family("llama", place),
    "qwen3": lambda place: _family("qwen3", place),
    "gemma2, raw": lambda place: _family("gemma2", place, hook_out="mlp_raw"),
    "olmo2": lambda place: _family("olmo2", place),
    "phi": lambda place: _family("phi", place),
}


@pytest.fixture(scope="module", params=GRAPHS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return GRAPHS[request.param](tmp_path_factory.mktemp("model"))


def _scale(made: Graph, layer: int, which: str, position: int) -> float:
    own = made.made
    assert own is not None
    scales = getattr(own.run.layers[layer], f"scale{which}")
    return 1.0 if scales is None else float(scales[own.row, position])


def test_ov_entries_are_paths_of_one_head_but_for_what_the_run_decides(made: Graph) -> None:
    """A path's value is activation, pattern and scales of norms times the entry."""
    own = made.made
    assert own is not None
    if own.weights.blocks[0].parallel:
        pytest.skip("two layers of blocks side by side have no features behind a later head")
    checkpoint, checked = _checkpoint(made), 0
    features = [n for n, node in enumerate(made.nodes) if node.kind == "feature"]
    rng = np.random.default_rng(5)
    for source, target in rng.permutation([(s, t) for s in features for t in features])[:400]:
        one, other = made.nodes[source], made.nodes[target]
        if one.layer >= other.layer or one.position > other.position:
            continue
        if own.units.kind == "saes" and one.layer + 1 < other.layer:
            continue  # another SAE stands between them
        for path in made.paths(int(source), int(target), top=50).paths:
            if len(path.components) != 1 or "H" not in path.components[0]:
                continue
            head = Head.parse(path.components[0])
            found = feature_ov(checkpoint, own.units, head, one.layer, other.layer)
            value = found.entry(one.index, other.index) * one.activation
            value *= own.run.layers[head.layer].pattern[
                own.row, head.index, other.position, one.position
            ]
            value *= _scale(made, head.layer, "1", one.position)
            value *= _scale(made, head.layer, "1_post", other.position)
            if own.units.units[0].hook_out == "mlp_raw":
                value *= _scale(made, one.layer, "2_post", one.position)
            if own.units.kind != "saes" and own.units.units[0].hook_in == "mlp_in":
                value *= _scale(made, other.layer, "2", other.position)
            assert path.value == pytest.approx(value, rel=1e-9, abs=1e-12)
            checked += 1
        if checked > 20:
            return
    assert checked


def _checkpoint(made: Graph) -> Checkpoint:
    assert made.made is not None
    return Checkpoint(made.made.config, made.made.weights)


def test_qk_entries_are_pairs_of_a_score_but_for_what_the_run_decides(made: Graph) -> None:
    own = made.made
    assert own is not None
    checkpoint, config = _checkpoint(made), own.config
    last = config.n_layers - 1
    head, query, key = Head(last, 1), own.positions - 1, own.positions - 3
    score = attention_score(own, head, query, key)
    rotary = config.rotary[last]
    norms = own.weights.blocks[last].attn
    assert norms is not None
    sides = [_side(made, position, head) for position in (query, key)]
    ratios = []
    for i in sides[0][:5]:
        for j in sides[1][:5]:
            one, other = made.nodes[i], made.nodes[j]
            offset = None if rotary is None else query - key
            found = feature_qk(checkpoint, own.units, head, one.layer, other.layer, offset=offset)
            value = found.entry(one.index, other.index) * one.activation * other.activation
            for node, position in ((one, query), (other, key)):
                value *= _scale(made, last, "1", position)
                if own.units.units[0].hook_out == "mlp_raw":
                    value *= _scale(made, node.layer, "2_post", position)
            ratios.append(score.pair(i, j) / value)
    assert ratios
    # Norms of queries and keys have scales of their own, the same for all pairs.
    assert np.allclose(ratios, 1 if norms.q_norm is None else ratios[0], rtol=1e-8)


def _side(made: Graph, position: int, head: Head) -> list[int]:
    """Give the features that a query or key reads directly: those at its own position."""
    own = made.made
    assert own is not None
    boundary = own.attends_at[head.layer]
    cuts = [n for n in range(boundary) if own.stages[n] is None]
    first = cuts[-1] + 1 if cuts else 0
    born = {
        int(column)
        for at in range(first, boundary + 1)
        for each in own.born[at]
        for column in each.columns
    }
    # Only what no head between moves: features of the stream right in front of the head's layer.
    near = head.layer if own.units.units[0].hook_out == "resid_pre" else head.layer - 1
    return [
        n
        for n in sorted(born)
        if made.nodes[n].kind == "feature"
        and made.nodes[n].position == position
        and made.nodes[n].layer == near
    ]


def test_a_cross_layer_feature_counts_with_all_it_writes_in_front() -> None:
    run = small(4, sizes=DEEP).run(PROMPT)
    units = random_units(run, clt=True)
    checkpoint = run.model.checkpoint
    blocks, unit = run.model.weights.blocks, units.unit(0)
    for head, targets in (("L1H0", (0,)), ("L2H0", (0, 1))):
        own = Head.parse(head)
        rows = sum(unit.decoder(range(17), target) for target in targets)
        attn = blocks[own.layer].attn
        wanted = _linear(blocks[own.layer].ln1, rows) @ attn.W_V[0] @ attn.W_O[0]
        wanted = _linear(blocks[2].ln2, wanted) @ units.unit(2).E.T
        found = feature_ov(checkpoint, units, own, 0, 2)
        assert np.allclose(found.matrix.dense(), wanted, rtol=1e-11, atol=1e-11)
        assert "cross-layer" in " ".join(found.table(3).claims)


def _by_hand(copy: Array, **rest: Any) -> tuple[Any, UnitSet]:
    """Give a model without norms whose head L0H0 has the OV circuit `copy`, and token SAEs."""
    d, vocab = len(copy), 7
    rng = np.random.default_rng(3)
    state = {
        "embed.W_E": rng.normal(size=(vocab, d)),
        "unembed.W_U": rng.normal(size=(d, vocab)),
    }
    for layer in range(2):
        at = f"blocks.{layer}.attn."
        state |= {f"{at}W_{name}": rng.normal(size=(1, d, d)) for name in "QKVO"}
    state["blocks.0.attn.W_V"], state["blocks.0.attn.W_O"] = np.eye(d)[None], copy[None]
    sizes = {"n_layers": 2, "n_heads": 1, "d_model": d, "d_head": d, "d_vocab": vocab, "n_ctx": 5}
    config = sizes | {"normalization_type": None, "attn_only": True}
    config |= {"positional_embedding_type": "rotary", "rotary_dim": 2} if rest.get("rotary") else {}
    if not rest.get("rotary"):
        state["pos_embed.W_pos"] = rng.normal(size=(5, d))
    model = pathexpand.from_state_dict(state, config)
    rows = np.linalg.qr(rng.normal(size=(d, d)))[0]
    order = np.array(rest.get("order", range(d)))
    units = (
        Unit.of(layer=0, kind="sae", hook_in="resid_pre", E=rows, D=rows),
        Unit.of(layer=1, kind="sae", hook_in="resid_pre", E=rows[order], D=rows[order]),
    )
    return (model.checkpoint, rows), UnitSet(units, "saes")


def test_copying_and_shift_by_hand() -> None:
    order = [2, 0, 4, 1, 3]
    (checkpoint, rows), units = _by_hand(np.eye(5), order=order)
    found = feature_ov(checkpoint, units, "L0H0", 0, 1)
    assert found.counterparts().tolist() == np.argsort(order).tolist()
    assert (found.shares().copying, found.shares().shift) == (1, 0)
    (checkpoint, _), units = _by_hand(-np.eye(5), order=order)
    assert feature_ov(checkpoint, units, "L0H0", 0, 1).shares().copying == 0
    turn = rows.T @ np.roll(np.eye(5), 1, axis=1) @ rows  # each feature becomes the next
    (checkpoint, _), units = _by_hand(turn, order=order)
    shares = feature_ov(checkpoint, units, "L0H0", 0, 1).shares()
    assert shares.shift == 1
    mixed = rows.T @ np.diag([1.0, 1, -1, 1, -1]) @ rows
    (checkpoint, _), units = _by_hand(mixed, order=order)
    assert feature_ov(checkpoint, units, "L0H0", 0, 1).shares().copying == pytest.approx(0.6)


def test_within_a_layer_a_feature_is_its_own_counterpart() -> None:
    (checkpoint, rows), units = _by_hand(np.eye(5))
    found = feature_qk(checkpoint, units, "L0H0", 0, 0)
    assert found.counterparts().tolist() == [0, 1, 2, 3, 4]
    attn = head_weights(checkpoint, 0)
    wanted = rows @ attn.W_Q[0] @ attn.W_K[0].T @ rows.T / checkpoint.config.attn_scale[0]
    assert np.allclose(found.matrix.dense(), wanted, rtol=1e-12)
    assert found.shares().copying == np.mean(np.diag(wanted) > 0)
    assert found.shares().shift == np.mean(wanted.argmax(axis=1) != np.arange(5))


def test_counterparts_do_not_depend_on_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    run = small(0, sizes=DEEP).run(PROMPT)
    found = feature_ov(run.model.checkpoint, random_units(run), "L1H0", 0, 1)
    whole, shares = found.counterparts(), found.shares()
    monkeypatch.setattr("pathexpand.features.rows._CHUNK", 8 * 7 * 3)
    monkeypatch.setattr(basis, "_BLOCK", 7)
    assert len(list(found.rows.pieces())) == 6
    assert found.counterparts().tolist() == whole.tolist()
    assert found.shares() == shares
    again = feature_ov(run.model.checkpoint, random_units(run), "L1H0", 0, 1)
    assert np.allclose(again.matrix.dense(), found.matrix.dense(), rtol=1e-12, atol=1e-12)


def test_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    run = small(0, sizes=DEEP).run(PROMPT)
    units, checkpoint = random_units(run), run.model.checkpoint
    found = feature_ov(checkpoint, units, "L1H2", 0, 2)
    table = found.table(4)
    dense = found.matrix.dense()
    at = np.unravel_index(abs(dense).argmax(), dense.shape)
    assert table[0]["source"] == f"L0F{at[0]}" and table[0]["target"] == f"L2F{at[1]}"
    assert table[0]["effect"] == pytest.approx(dense[at], rel=1e-12)
    sums = {line.label: line.value for line in table.closing}
    assert sums["copying score"] == ov(checkpoint, "L1H2").copying_score()
    assert sums["copying"] == found.shares().copying
    assert "scales" in " ".join(table.claims)
    by = found.table(2, by="value")
    assert by[0]["effect"] == pytest.approx(dense.max(), rel=1e-12)
    scores = feature_qk(checkpoint, units, "L2H1", 0, 1).table(3)
    assert {line.label for line in scores.closing} >= {"copying", "shift", "matching score"}
    # A circuit with an encoder that is not behind its norm is another one.
    monkeypatch.setattr(basis, "reading_norm", lambda unit, block: None)
    assert not np.allclose(feature_ov(checkpoint, units, "L1H2", 0, 2).matrix.dense(), dense)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda c, u: feature_ov(c, u, "L1H0", 1, 2), "wanted features that are written in front"),
        (lambda c, u: feature_ov(c, u, "L1H0", 0, 0), "wanted features that are read behind"),
        (lambda c, u: feature_ov(c, u, "L1H9", 0, 1), "wanted a head of 3 layers of 3"),
        (lambda c, u: feature_ov(c, u, "L1H0", 7, 2), "wanted layer 0, 1, 2"),
        (lambda c, u: feature_qk(c, u, "L0H0", 0, 0), "wanted features that are written in front"),
        (lambda c, u: feature_qk(c, u, "L1H0", 0, 0, offset=2), "no rotary positions"),
        (lambda c, u: feature_ov(c, u, "L1H0", 0, 1).entry(17, 0), "wanted a number from 0 to 16"),
        (lambda c, u: feature_ov(c, changed(u, 0), "L0H0", 0, 1), "in front of layer 0"),
    ],
)
def test_refusals(ask: Callable[[Any, Any], Any], said: str) -> None:
    run = small(0, sizes=DEEP).run(PROMPT)
    with pytest.raises(PathExpandError) as caught:
        ask(run.model.checkpoint, random_units(run))
    assert said in str(caught.value)


def test_refusals_of_models(tmp_path: Path) -> None:
    bert = family("bert", tmp_path)
    with pytest.raises(ModelError, match="passes a norm"):
        feature_ov(bert.model.checkpoint, random_units(bert), "L1H0", 0, 1)
    llama = family("llama", tmp_path)
    units = random_units(llama)
    with pytest.raises(PathExpandError, match="rotary positions: wanted an offset"):
        feature_qk(llama.model.checkpoint, units, "L1H0", 0, 0)
    with pytest.raises(ModelError, match="the model's width"):
        other = small(0, sizes=DEEP).run(PROMPT)
        feature_ov(other.model.checkpoint, units, "L1H0", 0, 1)


def test_saes_read_and_write_where_they_stand() -> None:
    """An SAE in front of a layer is read by its heads, and reads what earlier heads wrote."""
    run = small(0, sizes=DEEP).run(PROMPT)
    checkpoint = run.model.checkpoint
    pre = random_units(run, kind="sae", hook="resid_pre")
    assert feature_ov(checkpoint, pre, "L1H0", 1, 2).matrix.shape == (17, 17)
    with pytest.raises(PathExpandError, match="read behind"):
        feature_ov(checkpoint, pre, "L1H0", 0, 1)
    middle = random_units(run, kind="sae", hook="resid_mid")
    assert feature_ov(checkpoint, middle, "L1H0", 0, 1).matrix.shape == (17, 17)
    post = random_units(run, kind="sae", hook="resid_post")
    for units in (middle, post):
        with pytest.raises(PathExpandError, match="written in front"):
            feature_ov(checkpoint, units, "L1H0", 1, 2)
    assert feature_ov(checkpoint, post, "L1H0", 0, 1).matrix.shape == (17, 17)
    claims = " ".join(feature_ov(checkpoint, post, "L1H0", 0, 2).claims)
    assert "SAEs of layers 1 stand on the way" in claims
    assert "on the way" not in " ".join(feature_ov(checkpoint, post, "L1H0", 0, 1).claims)
    assert "layers 1, 2 stand" in " ".join(feature_qk(checkpoint, pre, "L2H0", 0, 2).claims)
    assert "layers 1 stand" in " ".join(feature_qk(checkpoint, post, "L2H0", 0, 1).claims)
    assert "on the way" not in " ".join(feature_qk(checkpoint, post, "L2H0", 1, 1).claims)
    inner = random_units(run, kind="sae", hook="mlp_in")
    with pytest.raises(PathExpandError, match="what is written to the stream"):
        feature_ov(checkpoint, inner, "L1H0", 0, 1)
