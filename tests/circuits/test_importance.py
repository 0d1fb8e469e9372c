"""Term importance: step n is the sum of the paths of order below n, and losses are dense ones."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.circuits import loss, orders
from pathexpand.circuits.ablation import without_composition
from pathexpand.circuits.corpus import cut_text, example_text
from pathexpand.circuits.importance import (
    ALL,
    DENSE,
    Importance,
    ImportanceProgress,
    Variant,
    importance,
)
from pathexpand.circuits.orders import (
    HeldRun,
    hold,
    order_identities,
    order_logits,
    order_streams,
)
from pathexpand.engine.value import path_stream
from pathexpand.errors import ModelError, PathExpandError, PromptError
from pathexpand.laws.closure import totals_rounding
from pathexpand.laws.design import Design, random_transformer
from pathexpand.laws.problems import random_model
from pathexpand.model.checkpoint import Checkpoint, read_checkpoint
from pathexpand.model.forward import capped, final_logits, forward
from pathexpand.model.forward import logits as dense_logits
from pathexpand.model.prompt import Tokens, read_prompt
from pathexpand.model.rows import Rows
from pathexpand.symbolic.query import parse_query
from pathexpand.table.analysis_table import AnalysisTable
from pathexpand.target import read_target
from tests.api.models import small
from tests.reference.test_families import FOLDER, OWN, golden, read

Array = np.ndarray
MASKED = [name for name in OWN if name.startswith(("bert", "gemma3_text-bidirectional"))]
NORMED = {"opt-350m", "opt-post-norm", "bloom-post-norm"}
DESIGNS = {
    "sequential": Design(n_layers=3),
    "frozen MLPs": Design(mlp="frozen"),
    "neurons": Design(mlp="neurons", d_mlp=3, n_heads=2, n_key_value_heads=1),
    "parallel": Design(parallel=True, mlp="frozen", d_mlp=3, positions="rotary"),
    "norm of the stream": Design(norms=("ln1_after", "ln2_after")),
    "norm of the stream, frozen": Design(norms=("ln1_after", "ln2_after"), mlp="frozen"),
    "norms before and after": Design(
        norms=("ln1", "ln2", "ln1_post", "ln2_post"), norm="rms", gated=True, mlp="frozen"
    ),
    "attention only": Design(d_mlp=0, norms=("ln1",), sinks=True, residual_scale=0.5),
}


def checkpoint_of(design: Design, seed: int = 3) -> Checkpoint:
    return random_transformer(design, seed=seed).checkpoint


def nats(values: Array, labels: Array) -> Array:
    """Give the cross-entropy of each row of logits with its label."""
    away = values - values.max(axis=1, keepdims=True)
    return np.log(np.exp(away).sum(axis=1)) - away[np.arange(len(labels)), labels]


def loss_of(checkpoint: Checkpoint, run: Any, tokens: Tokens) -> float:
    """Give a dense pass's mean loss, worked out on its own."""
    values = capped(checkpoint.config, final_logits(checkpoint.weights, checkpoint.config, run, 0))
    real = np.flatnonzero(tokens.mask)
    return float(nats(values[real[:-1]], tokens.ids[real[1:]]).mean())


# --- the law: step n is the sum of the paths of order below n -----------------------------------


@pytest.mark.parametrize("name", DESIGNS)
def test_each_step_is_the_sum_of_its_paths(name: str) -> None:
    design = DESIGNS[name]
    checkpoint = checkpoint_of(design)
    tokens = Tokens(np.array([3, 1, 4, 1, 5]), np.array([True, True, False, True, True]))
    steps = order_logits(checkpoint, tokens, mlp=design.mlp)
    for each in order_identities(checkpoint, tokens, steps, mlp=design.mlp):
        assert each.holds, each
        assert each.bound < 1e-8


@pytest.mark.parametrize("name", [name for name in OWN if name not in MASKED])
def test_the_last_step_is_the_dense_pass_in_every_family(name: str, tmp_path: Path) -> None:
    checkpoint, stored = read(name, tmp_path), golden(name)
    for ids, mask in zip(stored["tokens"], stored.get("mask", [None] * 9), strict=False):
        real = np.ones(ids.shape, dtype=bool) if mask is None else mask.astype(bool)
        tokens = Tokens(ids.astype(np.int64), real)
        steps = order_logits(checkpoint, tokens)
        assert order_identities(checkpoint, tokens, steps)[-1].holds


def shifted(held: HeldRun) -> Array:
    streams = order_streams(held.frozen)
    return np.concatenate([np.zeros_like(streams[:1]), streams[:-1]])


def without_a_source(held: HeldRun) -> Array:
    fewer = replace(held.frozen, sources=held.frozen.sources[:1] + held.frozen.sources[2:])
    return order_streams(fewer)


def turned_patterns(held: HeldRun) -> Array:
    """Let keys read queries in one layer."""
    stage = held.frozen.stages[1]
    group = stage.groups[0]
    turned = replace(group, patterns=np.swapaxes(group.patterns, 1, 2))
    stages = (held.frozen.stages[0], replace(stage, groups=(turned,)), *held.frozen.stages[2:])
    return order_streams(replace(held.frozen, stages=stages))


def without_a_head(held: HeldRun) -> Array:
    stage = held.frozen.stages[0]
    group = stage.groups[0]
    fewer = replace(stage, groups=(group.some(range(len(group.components) - 1)),))
    return order_streams(replace(held.frozen, stages=(fewer, *held.frozen.stages[1:])))


def broken_steps(held: HeldRun, break_it: Callable[[HeldRun], Array] | str) -> Array:
    """Give every step's logits as a broken engine would."""
    if callable(break_it):
        return held.logits(np.cumsum(break_it(held), axis=0)) + held.constant
    streams = np.cumsum(order_streams(held.frozen), axis=0)
    steps = held.logits(streams)
    if break_it == "b_U twice":
        return steps + 2 * held.constant
    if break_it == "b_U once an order":
        return steps + held.constant * np.arange(1, len(steps) + 1)[:, None, None]
    weights = held.unembed.weights
    assert break_it == "scale recomputed"
    return np.stack([dense_logits(weights, stream) for stream in streams])


@pytest.mark.parametrize(
    ("broken", "last_holds"),
    [
        (shifted, False),
        (without_a_source, False),
        (turned_patterns, False),
        (without_a_head, False),
        ("b_U twice", False),
        ("b_U once an order", False),
        ("scale recomputed", True),  # of the whole stream it is the same scale
    ],
)
def test_the_law_sees_a_broken_engine(broken: Any, last_holds: bool) -> None:
    checkpoint = checkpoint_of(DESIGNS["sequential"])
    tokens = read_prompt(checkpoint, [3, 1, 4, 1, 5])
    held = hold(checkpoint, tokens)
    found = order_identities(checkpoint, tokens, broken_steps(held, broken))
    assert not all(each.holds for each in found[:-1])
    assert found[-1].holds == last_holds


def test_steps_are_sums_of_the_api_s_path_logits() -> None:
    model = pathexpand.load("two-layer")
    run = model.run("to be or not")
    tokens = read_prompt(model.checkpoint, "to be or not")
    steps = order_logits(model.checkpoint, tokens)
    for position in (1, len(tokens.ids) - 1):
        for order, step in enumerate(steps):
            paths = [each for each in model.network.paths() if each.order <= order]
            wanted = sum(run.path_logits(path, position=position) for path in paths)
            size = sum(abs(run.path_logits(path, position=position)) for path in paths)
            assert (abs(step[position] - wanted) <= 1e-12 * size.max()).all()


@pytest.mark.parametrize("mlp", ["source", "frozen"])
def test_steps_agree_with_totals_by_order(mlp: Any) -> None:
    model = small(7, mlp=mlp, sizes={"n_layers": 3})
    ids = [3, 1, 4, 1, 5]
    run, tokens = model.run(ids), read_prompt(model.checkpoint, ids)
    steps = order_logits(model.checkpoint, tokens, mlp=mlp)
    held = hold(model.checkpoint, tokens, mlp=mlp)
    bound = orders._Sizes(held).logits()
    for position, token in ((0, 2), (3, 11), (4, 5)):
        what = read_target(model.checkpoint, token, centred=False)
        readout = what.readout(run.unembed, position)
        wanted = np.cumsum(run.total(target=what, position=position).by_order())
        allowed = 2 * (totals_rounding(run, readout) + bound[position, token])
        assert (abs(steps[:, position, token] - wanted) <= allowed).all()


@pytest.mark.parametrize("text", ["* > L1H*", "embed > * > L1H0 > *", "not * > L0H2 > *", "b_U"])
def test_streams_of_a_query_are_sums_of_its_paths(text: str) -> None:
    model = small(5, mlp="frozen")
    held = hold(model.checkpoint, read_prompt(model.checkpoint, [3, 1, 4, 1]), mlp="frozen")
    query = parse_query(text, model.network)
    found = order_streams(held.frozen, query)
    wanted = np.zeros_like(found)
    for path in (each for each in query.paths() if each.source != "b_U"):
        for position in range(4):
            wanted[path.order, position] += path_stream(held.frozen, position, path)
    assert np.allclose(found, wanted, rtol=0, atol=1e-12 * max(abs(wanted).max(), 1))
    whole = order_streams(held.frozen)
    rest = order_streams(held.frozen, query.complement())
    assert np.allclose(found + rest, whole, rtol=0, atol=1e-12 * abs(whole).max())


def test_only_the_lowest_orders_are_summed_if_so_asked() -> None:
    model = small(5, sizes={"n_layers": 3})
    held = hold(model.checkpoint, read_prompt(model.checkpoint, [3, 1, 4]))
    every = order_streams(held.frozen)
    assert np.array_equal(order_streams(held.frozen, max_order=1), every[:2])


# --- losses against dense passes ----------------------------------------------------------------


def plain(seed: int = 2, **sizes: Any) -> Checkpoint:
    """Give a model whose heads add nothing but what they move: no norm, no bias in a layer."""
    options: dict[str, Any] = {"n_layers": 3, "d_vocab_out": 13, "scale": 1.7}
    model = random_model(seed=seed, biases="none", **options | sizes)
    return model.checkpoint


def masked_loss(checkpoint: Checkpoint, tokens: Tokens, keep: Callable[[int, int], bool]) -> float:
    """Give the loss with the patterns of some heads, as the paper does it: a pass for each."""
    args = (checkpoint.weights, checkpoint.config, tokens.ids[None], tokens.mask[None])
    patterns = [each.copy() for each in forward(*args).patterns]
    for layer, pattern in enumerate(patterns):
        for head in range(pattern.shape[1]):
            if not keep(layer, head):
                pattern[:, head] = 0
    return loss_of(checkpoint, forward(*args, patterns=patterns), tokens)


def test_layers_and_heads_against_passes_with_patterns_set_to_zero() -> None:
    checkpoint = plain()
    tokens = read_prompt(checkpoint, [3, 1, 4, 1, 5])
    found = importance(checkpoint, [tokens], parts=("layer", "head"))
    direct = masked_loss(checkpoint, tokens, lambda layer, head: False)
    every = masked_loss(checkpoint, tokens, lambda layer, head: True)
    assert found.loss(Variant("order", "0")).value == pytest.approx(direct, rel=1e-12)
    assert found.loss(ALL).value == pytest.approx(every, rel=1e-12)
    assert found.loss(DENSE).value == pytest.approx(every, rel=1e-12)
    for term in found.terms("layer"):
        own = int(term.label[1])
        alone = masked_loss(checkpoint, tokens, lambda layer, head, own=own: layer == own)
        assert term.added.value == pytest.approx(alone - direct, rel=1e-9)
    for term in found.terms("head"):
        own = int(term.label[1]), int(term.label[3])
        alone = masked_loss(checkpoint, tokens, lambda *at, own=own: at == own)
        without = masked_loss(checkpoint, tokens, lambda *at, own=own: at != own)
        assert term.added.value == pytest.approx(alone - direct, rel=1e-9)
        assert term.removed.value == pytest.approx(without - every, rel=1e-9)


@pytest.mark.parametrize("norms", [("ln1", "ln2"), ("ln1_after", "ln2_after")])
def test_layers_and_heads_are_what_their_queries_are(norms: tuple[str, ...]) -> None:
    design = Design(n_layers=3, d_vocab_out=13, mlp="frozen", norms=norms)
    model = random_transformer(design, seed=4)
    through, starts = "* > L1H2 > *", "!b_U > L0H*"
    found = importance(
        model.checkpoint,
        [[3, 1, 4, 1, 5]],
        mlp="frozen",
        parts=("layer", "head"),
        queries=[through, starts, "*"],
    )

    def loss(kind: Any, label: str, side: Any) -> Any:
        return pytest.approx(found.loss(Variant(kind, label, side)).value, rel=1e-9)

    assert loss("query", through, "removed") == found.loss(Variant("head", "L1H2", "removed")).value
    assert (
        loss("layer", "L0 heads", "removed")
        == found.loss(Variant("query", starts, "removed")).value
    )
    assert loss("layer", "L0 heads", "added") == found.loss(Variant("query", starts, "added")).value
    assert loss("query", "*", "added") == found.loss(ALL).value  # the direct path joins once
    held = hold(model.checkpoint, read_prompt(model.checkpoint, [3, 1, 4, 1, 5]), mlp="frozen")
    singles = np.zeros_like(held.frozen.sources[0].values)
    for path in model.network.paths(max_order=1):
        if path.order == 1 and path.components[0].label == "L0H3":
            singles += [path_stream(held.frozen, place, path) for place in range(5)]
    values = held.logits(order_streams(held.frozen)[0] + singles) + held.constant
    wanted = nats(values[:-1], np.array([1, 4, 1, 5])).mean()
    assert loss("head", "L0H3", "added") == wanted


def test_paths_are_counted_as_queries_count_them() -> None:
    model = small(5, sizes={"n_layers": 3}, mlp="frozen")
    found = importance(model.checkpoint, [[3, 1, 4]], mlp="frozen", queries=["* > L1H*"])
    assert found.paths["query", "* > L1H*"] == model.count("* > L1H*")
    for layer in range(3):
        single = model.query(f"* > L{layer}H*").count_by_order()[1]
        assert found.paths["layer", f"L{layer} heads"] == single
        single = model.query(f"* > L{layer}M").count_by_order()[1]
        assert found.paths["layer", f"L{layer} MLP"] == single
        assert found.paths["head", f"L{layer}H1"] == model.count(f"* > L{layer}H1 > *")


@pytest.mark.parametrize("name", DESIGNS)
def test_direct_streams_are_those_of_order_0_at_each_boundary(name: str) -> None:
    checkpoint = checkpoint_of(DESIGNS[name])
    held = hold(checkpoint, read_prompt(checkpoint, [3, 1, 4]), mlp=DESIGNS[name].mlp)
    for boundary, stream in enumerate(orders.direct_streams(held.frozen)):
        wanted = order_streams(held.frozen.first(boundary))[0]
        assert np.allclose(stream, wanted, rtol=0, atol=1e-13 * abs(wanted).max())


def test_a_query_that_removes_the_logit_bias_removes_it_once() -> None:
    model = small(5)
    tokens = read_prompt(model.checkpoint, [3, 1, 4, 1])
    found = importance(model.checkpoint, [tokens], parts=(), queries=["*", "b_U", "!b_U > *"])
    held = hold(model.checkpoint, tokens)
    whole = held.logits(order_streams(held.frozen).sum(axis=0))
    for text, values in (
        ("*", np.zeros_like(whole)),
        ("b_U", whole),
        ("!b_U > *", np.tile(held.constant, (4, 1))),
    ):
        wanted = nats(values[:-1], tokens.ids[1:]).sum() / 3
        got = found.loss(Variant("query", text, "removed")).value
        assert got == pytest.approx(wanted, rel=1e-9)


def test_marginals_of_the_orders_part_the_way_from_the_uniform_guess() -> None:
    model = small(5, sizes={"n_layers": 3}, mlp="frozen")
    found = importance(model.checkpoint, [[3, 1, 4, 1], [2, 7]], mlp="frozen", parts=("order",))
    terms = found.terms("order")
    assert [term.label for term in terms] == [*map(str, range(7))]
    assert [term.paths for term in terms] == list(parse_query("*", model.network).count_by_order())
    total = found.uniform + sum(term.marginal.value for term in terms)
    assert total == pytest.approx(found.loss(ALL).value, rel=1e-12)
    assert found.uniform == np.log(13)


def test_higher_orders_are_one_term_if_so_asked() -> None:
    model = small(5, sizes={"n_layers": 3})
    every = importance(model.checkpoint, [[3, 1, 4, 1]], parts=("order",))
    some = importance(model.checkpoint, [[3, 1, 4, 1]], parts=("order",), max_order=1)
    assert [term.label for term in some.terms()] == ["0", "1", "above 1"]
    assert sum(t.paths for t in some.terms()) == sum(t.paths for t in every.terms())
    assert some.terms()[-1].loss.value == pytest.approx(every.terms()[-1].loss.value, rel=1e-12)
    assert some.terms()[1] == every.terms()[1]


def test_the_dense_loss_has_all_biases() -> None:
    checkpoint = small(5).checkpoint
    tokens = read_prompt(checkpoint, [3, 1, 4, 1, 5])
    found = importance(checkpoint, [tokens], parts=("composition",))
    wanted = loss_of(checkpoint, hold(checkpoint, tokens).dense, tokens)
    assert found.loss(DENSE).value == pytest.approx(wanted, rel=1e-12)
    assert found.loss(ALL).value == pytest.approx(wanted, rel=1e-9)
    without = loss_of(checkpoint, without_composition(checkpoint, tokens, "K"), tokens)
    assert found.loss(Variant("composition", "K")).value == pytest.approx(without, rel=1e-12)


def test_soft_caps_come_after_the_sum(tmp_path: Path) -> None:
    checkpoint = read("gemma2", tmp_path)
    assert checkpoint.config.output_logits_soft_cap is not None
    tokens = read_prompt(checkpoint, golden("gemma2")["tokens"][0])
    found = importance(checkpoint, [tokens])
    run = hold(checkpoint, tokens).dense
    assert found.loss(DENSE).value == pytest.approx(loss_of(checkpoint, run, tokens), rel=1e-12)
    assert found.loss(ALL).value == pytest.approx(found.loss(DENSE).value, rel=1e-9)
    assert any("soft cap" in claim for claim in found.table().claims)


def test_large_logits_are_no_trouble_and_rows_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(5).checkpoint.config
    rows, eye = np.array([[1e4, 0.0], [0.0, 1e4]]), Rows("W_U", np.eye(2))
    for columns in (1, 2):
        monkeypatch.setattr(loss, "_PIECE", 1)
        monkeypatch.setattr(loss, "_COLUMNS", columns)
        first, second = (
            loss.losses(eye, config, [loss.Read(rows[n : n + 1])], np.array([0])) for n in (0, 1)
        )
        assert [first.tolist(), second.tolist()] == [[0.0], [1e4]]
    with pytest.raises(PathExpandError, match="wanted 1 rows, one a label, got 2"):
        loss.losses(eye, config, [loss.Read(rows)], np.array([0]))


def test_losses_do_not_depend_on_how_many_logits_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, prompts = small(5).checkpoint, [[3, 1, 4, 1, 5, 9], [2, 6]]
    whole = importance(checkpoint, prompts)
    monkeypatch.setattr(loss, "_PIECE", 1)
    for columns in (1, 5, 13):  # of 13 logits
        monkeypatch.setattr(loss, "_COLUMNS", columns)
        cut = importance(checkpoint, prompts)
        assert np.allclose(cut.sums, whole.sums, rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(import_module("pathexpand.circuits.importance"), "_MOST", 1)
    cut = importance(checkpoint, prompts)
    assert cut.variants == whole.variants
    assert np.allclose(cut.sums, whole.sums, rtol=1e-12, atol=1e-12)


@pytest.mark.shared_models
def test_a_trained_model_with_norms_and_mlps(shared_models: Path) -> None:
    checkpoint = read_checkpoint(shared_models / "stories260k")
    prompts = list(cut_text(checkpoint, "Once upon a time, there was a little girl. " * 3))
    for mlp in ("source", "frozen"):
        found = importance(checkpoint, prompts, mlp=mlp, max_order=2, heads=["L1H0"])  # type: ignore[arg-type]
        dense = found.loss(DENSE).value
        assert found.loss(ALL).value == pytest.approx(dense, rel=1e-9)
        assert dense < found.uniform
    text = (
        "The boy went to the store with his dad. He wanted to buy a new toy truck. His dad said "
        "no because the truck cost too much money."
    )
    found = importance(checkpoint, [text], parts=())
    assert found.loss(DENSE).value == pytest.approx(1.47638, abs=5e-6)  # its authors' number
    assert found.loss(ALL).value == pytest.approx(1.47638, abs=5e-6)


# --- the corpus ---------------------------------------------------------------------------------


def test_prompts_count_by_their_tokens_and_errors_are_of_a_ratio() -> None:
    model = small(5)
    prompts = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3]]
    found = importance(model.checkpoint, prompts, parts=("order", "layer"))
    single = [importance(model.checkpoint, [each], parts=("order", "layer")) for each in prompts]
    sizes = np.array([4, 1, 2])
    assert found.predicted.tolist() == sizes.tolist()
    for variant in found.variants:
        means = np.array([each.loss(variant).value for each in single])
        assert all(each.loss(variant).error is None for each in single)
        mean = (means * sizes).sum() / 7
        assert found.loss(variant).value == pytest.approx(mean, rel=1e-12)
        error = np.sqrt(3 / 2 * ((sizes * (means - mean)) ** 2).sum()) / 7
        assert found.loss(variant).error == pytest.approx(error, rel=1e-9)
    first = Variant("layer", "L1 heads", "added")
    changes = np.array([each.change(first, Variant("order", "0")).value for each in single])
    change = found.change(first, Variant("order", "0"))
    assert change.value == pytest.approx((changes * sizes).sum() / 7, rel=1e-9)
    spread = sizes * (changes - change.value)
    assert change.error == pytest.approx(np.sqrt(1.5 * (spread**2).sum()) / 7, rel=1e-9)


def test_padding_changes_nothing() -> None:
    model = small(5)
    bare = importance(model.checkpoint, [[3, 1, 4, 1]])
    ids = np.array([0, 0, 3, 1, 4, 1, 0])
    mask = np.array([False, False, True, True, True, True, False])
    padded = importance(model.checkpoint, [Tokens(ids, mask)])
    assert padded.variants == bare.variants
    assert padded.predicted.tolist() == [3]
    assert np.allclose(padded.sums, bare.sums, rtol=1e-9)


def test_the_corpus_ends_after_so_many_tokens() -> None:
    checkpoint = small(5).checkpoint
    whole = importance(checkpoint, [[3, 1, 4, 1, 5], [9, 2, 6]], parts=("order",))
    cut = importance(checkpoint, [[3, 1, 4, 1, 5], [9, 2, 6]], parts=("order",), max_tokens=5)
    assert cut.predicted.tolist() == [4, 1]
    assert np.array_equal(cut.sums[0], whole.sums[0])
    short = importance(checkpoint, [[9, 2]], parts=("order",))
    assert np.allclose(cut.sums[1], short.sums[0], rtol=1e-12)  # what comes later is not seen
    endless = (each for each in iter(lambda: [3, 1, 4], None))
    assert importance(checkpoint, endless, parts=(), max_tokens=7).predicted.tolist() == [
        2,
        2,
        2,
        1,
    ]


def test_an_interruption_keeps_what_is_done() -> None:
    checkpoint = small(5).checkpoint
    prompts = [[3, 1, 4], [9, 2], [6, 5]]
    heard: list[ImportanceProgress] = []

    def report(progress: ImportanceProgress) -> None:
        heard.append(progress)
        if progress.prompts == 2:
            raise KeyboardInterrupt

    found = importance(checkpoint, prompts, parts=("order",), report=report)
    assert [(each.prompts, each.predicted) for each in heard] == [(1, 2), (2, 3)]
    assert found.stopped
    assert not found.table().good
    assert "stopped" in found.table().to_text(80)
    assert np.array_equal(found.sums, importance(checkpoint, prompts[:2], parts=("order",)).sums)

    def at_once() -> Any:
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        importance(checkpoint, at_once())


def test_a_text_is_cut_so_that_each_token_is_predicted_once() -> None:
    checkpoint = read_checkpoint("two-layer")
    whole = read_prompt(checkpoint, "to be or not to be, that is", prepend_bos=False).ids
    cut = list(cut_text(checkpoint, "to be or not to be, that is", length=4))
    assert all(each.ids[0] == 0 for each in cut)
    assert np.concatenate([each.ids[1:] for each in cut]).tolist() == whole.tolist()
    assert len(read_prompt(checkpoint, example_text()[:50]).ids) > 2
    assert sum(len(each.ids) - 1 for each in cut_text(checkpoint, example_text())) >= 300
    for length in (1, 129, 2.5, True):
        with pytest.raises(PromptError, match="wanted 2 to 128 tokens a prompt"):
            list(cut_text(checkpoint, "to be", length=length))  # type: ignore[arg-type]
    with pytest.raises(PromptError, match="at least one token"):
        list(cut_text(checkpoint, ""))


# --- without Q- or K-composition ----------------------------------------------------------------


def by_hand(model: Any, ids: list[int], kind: str, mlp: str) -> Array:
    """Give the last stream without a composition, in plain numpy (LayerNorm, GELU by its gate)."""
    weights, config = model.weights, model.config
    stream = weights.W_E[ids] + weights.W_pos[: len(ids)]
    direct = stream.copy()
    hidden = np.triu(np.ones((len(ids), len(ids)), dtype=bool), k=1)
    for layer in range(config.n_layers):
        block = weights.block(layer)
        ln1, attn, ln2 = block.ln1, block.attn, block.ln2
        sigma = np.sqrt(stream.var(axis=1, keepdims=True) + ln1.eps)

        def normed(x: Array, s: Array, norm: Any) -> Array:
            return (x - x.mean(axis=1, keepdims=True)) / s * norm.weight + norm.bias

        reads, own = normed(stream, sigma, ln1), normed(direct, sigma, ln1)
        added, constant = np.zeros_like(stream), np.zeros_like(stream)
        for head in range(config.n_heads):
            q = (own if "Q" in kind else reads) @ attn.W_Q[head] + attn.b_Q[head]
            k = (own if "K" in kind else reads) @ attn.W_K[head] + attn.b_K[head]
            scores = np.where(hidden, -np.inf, q @ k.T / config.attn_scale[layer])
            pattern = np.exp(scores - scores.max(axis=1, keepdims=True))
            pattern /= pattern.sum(axis=1, keepdims=True)
            added += pattern @ (reads @ attn.W_V[head] + attn.b_V[head]) @ attn.W_O[head]
            shared = (ln1.bias @ attn.W_V[head] + attn.b_V[head]) @ attn.W_O[head]
            constant += pattern.sum(axis=1, keepdims=True) * shared
        stream, direct = stream + added + attn.b_O, direct + constant + attn.b_O
        sigma = np.sqrt(stream.var(axis=1, keepdims=True) + ln2.eps)
        inner = normed(stream, sigma, ln2) @ block.mlp.W_in + block.mlp.b_in
        active = 0.5 * inner * (1 + np.vectorize(math.erf)(inner / np.sqrt(2)))
        written = active @ block.mlp.W_out + block.mlp.b_out
        if mlp == "source":
            direct = direct + written
        else:
            passed = normed(direct, sigma, ln2) @ block.mlp.W_in + block.mlp.b_in
            direct = direct + (passed * active / inner) @ block.mlp.W_out + block.mlp.b_out
        stream = stream + written
    return stream


@pytest.mark.parametrize("mlp", ["source", "frozen", "neurons"])
@pytest.mark.parametrize("kind", ["Q", "K", "QK"])
def test_without_a_composition_against_plain_numpy(kind: Any, mlp: Any) -> None:
    model = small(11, sizes={"n_layers": 3}, mlp=mlp)
    ids = [3, 1, 4, 1, 5]
    run = without_composition(model.checkpoint, read_prompt(model.checkpoint, ids), kind, mlp=mlp)
    wanted = by_hand(model, ids, kind, mlp)
    assert np.allclose(run.residual[-1][0], wanted, rtol=0, atol=1e-10 * abs(wanted).max())
    for other in {"Q", "K", "QK"} - {kind}:  # each is another run
        assert not np.allclose(run.residual[-1][0], by_hand(model, ids, other, mlp), rtol=1e-3)


def test_taking_mlps_as_sources_or_components_matters_to_what_no_head_has_moved() -> None:
    model, ids = small(11, sizes={"n_layers": 3}), [3, 1, 4, 1, 5]
    one, other = (by_hand(model, ids, "QK", mlp) for mlp in ("source", "frozen"))
    assert not np.allclose(one, other, rtol=1e-3)


@pytest.mark.parametrize("name", [name for name in OWN if name not in MASKED])
def test_legs_that_read_the_stream_change_nothing(name: str, tmp_path: Path) -> None:
    checkpoint, tokens = read(name, tmp_path), golden(name)["tokens"]
    real = np.ones(tokens.shape, dtype=bool)
    args = (checkpoint.weights, checkpoint.config, tokens, real)
    whole = forward(*args)
    same = forward(*args, legs=lambda layer, block, reads, scale: (reads, reads))
    assert all(map(np.array_equal, whole.patterns, same.patterns))
    assert np.array_equal(whole.residual[-1], same.residual[-1])


def test_one_layer_has_no_composition() -> None:
    checkpoint = small(5, sizes={"n_layers": 1}).checkpoint
    found = importance(checkpoint, [[3, 1, 4, 1]], parts=("composition",))
    assert not found.terms("composition")
    assert "There is no composition to measure" in "\n".join(found.table("composition").claims)
    deeper = small(5, sizes={"n_layers": 2}).checkpoint
    found = importance(deeper, [[3, 1, 4, 1]], parts=("composition",))
    assert all(abs(term.marginal.value) > 1e-6 for term in found.terms("composition"))


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3", "gpt_neox", "bloom", "gpt_neo-local"])
def test_every_part_in_families_with_rotary_grouped_and_windowed_attention(
    name: str, tmp_path: Path
) -> None:
    if not (FOLDER / name).is_dir():
        pytest.skip(f"no case {name}")
    checkpoint = read(name, tmp_path)
    tokens = golden(name)["tokens"][0]
    found = importance(checkpoint, [tokens], mlp="frozen", max_order=2)
    assert found.loss(ALL).value == pytest.approx(found.loss(DENSE).value, rel=1e-9)
    assert {term.kind for term in found.terms()} == {"order", "layer", "head", "composition"}


# --- the paper's picture on the embedded model --------------------------------------------------


@pytest.fixture(scope="module")
def embedded() -> Importance:
    checkpoint = read_checkpoint("two-layer")
    return importance(checkpoint, cut_text(checkpoint, example_text()), queries=["* > L1H*"])


def test_the_embedded_model_looks_like_the_paper_s(embedded: Importance) -> None:
    marginal = {term.label: term.marginal.value for term in embedded.terms("order")}
    assert marginal["1"] < marginal["0"] < marginal["2"] < 0  # heads, direct path, virtual heads
    layers = {term.label: term for term in embedded.terms("layer")}
    assert layers["L1 heads"].added.value < layers["L0 heads"].added.value < 0
    assert layers["L1 heads"].removed.value > 1 > 0.3 > layers["L0 heads"].removed.value > 0
    without = {term.label: term.marginal.value for term in embedded.terms("composition")}
    assert 0.05 < without["Q"] < without["QK"]
    assert 0.05 < without["K"] < without["QK"]
    heads = {term.label: term.removed.value for term in embedded.terms("head")}
    assert min(heads.values()) > 0.01
    assert max(heads, key=lambda head: heads[head]).startswith("L1")


def test_the_table_fits_a_terminal_and_comes_back_from_its_file(embedded: Importance) -> None:
    for by in (None, "order", "layer", "head", "query", "composition"):
        table = embedded.table(by)  # type: ignore[arg-type]
        assert max(map(len, table.to_text(80).splitlines())) <= 80
        assert AnalysisTable.from_json(table.to_json()) == table
        assert len(table.to_csv().splitlines()) == 1 + len(table)
    names = embedded.table().column("terms")
    assert names[:6] == (
        "uniform guess",
        "direct path",
        "order 1",
        "order 1, L0 heads",
        "order 1, L1 heads",
        "order 2",
    )
    with pytest.raises(PathExpandError, match="importance: wanted by order"):
        embedded.table("path")  # type: ignore[arg-type]


def test_bars_are_the_changes(embedded: Importance) -> None:
    pytest.importorskip("matplotlib")
    from pathexpand.plot.importance import importance_bars

    ax = importance_bars(embedded, by="order")
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == [-term.marginal.value for term in embedded.terms("order")]
    assert importance_bars(embedded, by="head", ax=ax) is ax


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "gemma3_text-bidirectional"])
def test_models_that_do_not_predict_the_next_token_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="wanted a causal model"):
        importance(read(name, tmp_path), [[1, 2, 3]])


def test_a_stream_that_passes_a_norm_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = read("opt-350m", tmp_path)
    with pytest.raises(ModelError, match=r"one that passes a norm \(ln1_after\) in layer 0"):
        importance(checkpoint, [[1, 2, 3]])
    found = importance(checkpoint, [[1, 2, 3]], parts=("order", "layer", "head"))
    assert found.loss(ALL).value == pytest.approx(found.loss(DENSE).value, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"parts": ("orders",)}, "parts: wanted some of order, layer, head, composition"),
        ({"parts": "order"}, "parts: wanted some of"),
        ({"max_order": -1}, "max_order: wanted 0 or more"),
        ({"max_order": True}, "max_order: wanted 0 or more"),
        ({"max_tokens": 0}, "max_tokens: wanted 1 or more"),
        ({"heads": ["L2H0"]}, "head L2H0: wanted a head"),
        ({"heads": ["nonsense"]}, "nonsense"),
        ({"queries": ["* > L9H0"]}, "column 5 of query"),
        ({"mlp": "neuron"}, "mlp: wanted source, frozen or neurons"),
        ({"prompts": "text"}, "prompts: wanted a list of prompts"),
        ({"prompts": []}, "prompts: wanted at least one prompt"),
        ({"prompts": [[1, 2], [3]]}, "prompt 2: length: wanted at least two tokens, got one"),
        ({"prompts": [[1, 99]]}, "prompt 1: token id 99 at position 1"),
    ],
)
def test_bad_input_is_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"prompts": [[1, 2, 3]]} | options
    prompts = given.pop("prompts")
    with pytest.raises(PathExpandError) as error:
        importance(small(5).checkpoint, prompts, **given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_with_other_logits_than_tokens_is_refused() -> None:
    with pytest.raises(ModelError, match="13 tokens and 11 logits"):
        importance(random_model(seed=1).checkpoint, [[1, 2]])


def test_losses_that_do_not_fit_are_refused(embedded: Importance) -> None:
    with pytest.raises(PathExpandError, match="losses of shape"):
        replace(embedded, sums=embedded.sums[:, :-1])
    with pytest.raises(PathExpandError, match="finite losses"):
        replace(embedded, sums=embedded.sums * np.nan)
    with pytest.raises(PathExpandError, match="a variant that was measured"):
        embedded.loss(Variant("head", "L7H7", "added"))


def test_overflow_is_said() -> None:
    checkpoint = small(5).checkpoint
    huge = replace(checkpoint.weights, b_U=np.array([-1.7e308, 1.7e308] + [0.0] * 11))
    with np.errstate(all="ignore"), pytest.raises(ModelError, match="overflow"):
        importance(replace(checkpoint, weights=huge), [[1, 2, 3]])


# --- the command --------------------------------------------------------------------------------


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    from pathexpand.cli.importance import importance as command

    command.main(list(arguments), standalone_mode=False)
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def test_the_command_reads_an_example_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    out = call(capsys, "--by", "order", "--tokens-limit", "40")
    assert "the built-in example: 1 prompt, 40 tokens predicted" in out
    assert "direct path" in out


def test_the_command_s_numbers_are_those_of_python(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be " * 60, encoding="utf-8")
    out = call(capsys, "--text", str(file), "--by", "head", "--format", "json")
    checkpoint = read_checkpoint("two-layer")
    found = importance(checkpoint, cut_text(checkpoint, file.read_text()), parts=("head",))
    assert json.loads(out)["rows"] == found.table("head").to_records()
    call(capsys, "--prompt", "to be", "--query", "* > L1H*", "--out", str(tmp_path / "t.csv"))
    assert "* > L1H*,20" in (tmp_path / "t.csv").read_text(encoding="utf-8")


def test_the_command_reads_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"to be or not to be"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stream)
    assert "standard input: 1 prompt" in call(capsys, "--text", "-", "--by", "layer")


def test_the_command_draws_bars(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "bars.svg"
    out = call(capsys, "--prompt", "to be or", "--by", "order", "--plot", str(file))
    assert "direct path" in out
    assert file.read_bytes().startswith(b"<?xml")


def test_the_command_reads_prompts_of_ids(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"tokens": [0, 5, 7]}\n{"text": "to be"}\n', encoding="utf-8")
    out = call(capsys, "--text", str(file), "--by", "order", "--format", "csv")
    found = importance(read_checkpoint("two-layer"), [[0, 5, 7], "to be"], parts=("order",))
    assert out == found.table("order").to_csv()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--text", "no such file"], "cannot read"),
        (["--text", "x", "--prompt", "y"], "one of --text and --prompt"),
        (["--by", "order", "--query", "*"], "--query takes no --by"),
        (["--model", "nope"], "nope"),
        (["--max-order", "-1"], "max_order"),
        (["--plot", "bars.gif"], ".png or .svg"),
        (["--tokens-limit", "0"], "max_tokens"),
        (["--prompt", ""], "at least one token"),
        (["--prompt", "\udcff"], "UTF-8"),
        (["--query", "* > L7H0"], "column 5"),
    ],
)
def test_the_command_refuses_in_one_line(arguments: list[str], said: str) -> None:
    from pathexpand.cli.importance import importance as command

    with pytest.raises(Exception) as error:
        command.main(arguments, standalone_mode=False)
    text = getattr(error.value, "message", None) or str(error.value)
    assert said in text
    assert "\n" not in text
