"""What an honest search certifies, the check lets pass; and a certificate survives its file."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathexpand.api import Model, Run, from_state_dict, load
from pathexpand.certificate import Certificate, Finding, certify, check_certificate, suffix
from pathexpand.certificate.held import hold
from pathexpand.certificate.suffix import read_words
from pathexpand.engine.search import Budget
from pathexpand.errors import LimitError, PathExpandError
from pathexpand.laws.design import Design, random_transformer
from pathexpand.laws.problems import random_model
from pathexpand.laws.strategies import designs, models, prompts, targets, transformers
from pathexpand.model import forward

# The package has a function of this name.
MAKING = import_module("pathexpand.certificate.certify")
QUERIES = (
    *("*", "embed > *", "not embed > *", "* > {L0H0} > *", "* > !L0H0", "any"),
    *("* > L*H0", "embed > L0H*? > *", "{embed, b_U} > *", "not * > L0H* > *"),
    *("* > L0N0 > *", "not * > L*N1 > *", "* > L0M > *", "* > L0H0 > L0M > *", "L0M > *"),
)


def failed(findings: tuple[Finding, ...]) -> list[str]:
    return [f"{each.name}: {each.detail}" for each in findings if not each.holds]


@st.composite
def certified(draw: st.DrawFn) -> tuple[Run, Any]:
    """Draw a run and what a search of it found, with any options."""
    model: Model = draw(st.one_of(models(), transformers()))
    tokens = draw(prompts(model))
    mask = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    run = model.run(tokens, mask=mask if any(mask) else None)
    options: dict[str, Any] = {
        "target": draw(targets(model)),
        "position": draw(st.sampled_from([int(n) for n in np.flatnonzero(run.dense.mask[0])])),
        "top": draw(st.integers(0, 12)),
        "max_order": draw(st.sampled_from([None, 0, 1, 2])),
        "centred": draw(st.booleans()),
        "budget": draw(st.sampled_from([None, *(Budget(nodes=n) for n in (0, 1, 2, 5))])),
    }
    query = draw(st.sampled_from(QUERIES))
    try:
        model.query(query)
    except PathExpandError:
        query = "*"
    return run, run.searched_paths(**options, query=query)


@settings(max_examples=150)
@given(certified())
def test_an_honest_certificate_passes(case: tuple[Run, Any]) -> None:
    run, searched = case
    certificate = certify(run, searched)
    assert not failed(check_certificate(certificate, run.model))
    assert Certificate.from_json(certificate.to_json()) == certificate


@settings(max_examples=60)
@given(certified())
def test_what_passes_is_true(case: tuple[Run, Any]) -> None:
    """The claims themselves, against every path of the model valued one by one."""
    run, searched = case
    table = searched.table
    assert not failed(check_certificate(certify(run, searched), run.model))
    listed = {row.path for row in table}
    for path in run.model.query(table.query).paths():
        value = abs(run.value(path, searched.target, position=table.position))
        longer = table.max_order is not None and path.order > table.max_order
        bound = table.longer_bound if longer else table.bound
        if str(path) not in listed:
            assert value <= bound * (1 + 1e-9) + 1e-300


@pytest.mark.parametrize("seed", range(3))
def test_of_too_many_suffixes_those_needed_are_kept(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MAKING, "_KEPT", 0)
    run = random_model(seed=seed, n_layers=4).run([1, 2, 3, 4])
    every = {path.components for path in run.model.network.paths() if path.source != "b_U"}
    searched = replace(run.searched_paths(3, top=12), expanded=tuple(every))
    certificate = certify(run, searched)
    words = read_words(certificate.expanded, run.model.network)
    assert words < every
    assert not failed(check_certificate(certificate, run.model))
    for text in certificate.expanded:
        fewer = tuple(each for each in certificate.expanded if each != text)
        found = check_certificate(replace(certificate, expanded=fewer).sealed(), run.model)
        assert any(line.startswith("bound") for line in failed(found))


def test_all_suffixes_are_kept_without_an_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    run = random_model(seed=1, n_layers=4).run([1, 2, 3, 4])
    searched = run.searched_paths(3, top=12)
    with monkeypatch.context() as patch:
        patch.setattr(MAKING, "frontiers", None)
        certificate = certify(run, searched)
    assert read_words(certificate.expanded, run.model.network) == set(searched.expanded)
    assert not failed(check_certificate(certificate, run.model))


def test_a_bound_that_is_rounded_up_passes() -> None:
    """A row is certain, and certified, although the bound is above it by less than 1e-9."""
    run = random_model(seed=1, n_layers=3).run([1, 2, 3, 4])
    searched = run.searched_paths(3, top=12)
    for part in (1 + 1e-12, 1 + 9e-10):
        table = searched.table
        bound = max(abs(row.value) for row in table) * part
        rows = tuple(
            replace(row, certain=abs(row.value) >= bound * (1 - 1e-9)) for row in table.rows
        )
        assert sum(row.certain for row in rows) == 1
        raised = replace(searched, table=replace(table, bound=bound, rows=rows))
        assert not failed(check_certificate(certify(run, raised), run.model))


def test_a_run_out_of_a_padded_batch_passes_where_it_is_run_alone() -> None:
    """Its patterns may differ in the last digits; the check then allows for it and says so."""
    model = load("two-layer")
    run = model.runs(["to be", "to be or not to be that is the"])[0]
    certificate = certify(run, run.searched_paths(top=5))
    other = replace(certificate, fixed="0" * 64).sealed()
    found = check_certificate(other, model)
    assert not failed(found)
    assert "the same up to a part of" in found[2].detail


def noise(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Round otherwise: each step of the dense pass is off by a few units of the last place."""
    rng = np.random.default_rng(seed)

    def off(array: Any) -> Any:
        if isinstance(array, tuple):
            return tuple(map(off, array))
        return array * (1 + 2.0**-53 * rng.uniform(-4, 4, size=array.shape))

    for name in ("normed", "masked_softmax", "project", "_attention_output", "mlp_output"):
        right = getattr(forward, name)
        patch.setattr(forward, name, lambda *given, right=right: off(right(*given)))


@settings(max_examples=60)
@given(designs(), st.integers(0, 2**32 - 1), st.integers(0, 20), st.sampled_from([None, 0, 3]))
def test_what_another_machine_certified_passes(
    design: Design, seed: int, top: int, nodes: int | None
) -> None:
    """Patterns, scales, gates and values all differ in their last digits."""
    model = random_transformer(design, seed=seed)
    tokens = [n % design.d_vocab for n in range(design.n_ctx)]
    with pytest.MonkeyPatch.context() as patch:
        noise(patch, seed)
        run = model.run(tokens)
        budget = None if nodes is None else Budget(nodes=nodes)
        certificate = certify(run, run.searched_paths(0, top=top, budget=budget))
    found = check_certificate(certificate, model)
    wrong = failed(found)
    assert not wrong or (len(wrong) == 1 and "that rounding leaves open" in wrong[0])
    if design.act == "gelu" and design.attn_scale is None:
        assert not wrong


def test_the_doubt_about_patterns_covers_another_order_of_sums() -> None:
    model = random_model(seed=4, n_layers=3, biases="all", positions="shortformer")
    run = model.run([1, 2, 3, 4, 5])
    held = hold(run, run.target(0), 4, same=False)
    assert all(1e-15 < doubt < 1e-9 for doubt in held.doubts if doubt)


def test_structure_that_keeps_subspaces_apart_passes() -> None:
    """Heads that cannot read each other leave energies of 0, up to a rotation's rounding."""
    for rotated in (False, True):
        model = _apart(rotated)
        run = model.run([1, 2, 3])
        for top in (1, 5, 40):
            certificate = certify(run, run.searched_paths(2, top=top))
            assert not failed(check_certificate(certificate, model))


def _apart(rotated: bool) -> Model:
    base = random_model(seed=8, n_layers=3, n_heads=2, d_model=8, positions="none", biases="none")
    tensors = {name: array.copy() for name, array in base.weights.named()}
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))[0] if rotated else np.eye(8)
    half = np.diag([1.0] * 4 + [0.0] * 4)
    tensors["embed.W_E"] = tensors["embed.W_E"] @ half @ turn
    for layer in range(3):
        for name in ("W_Q", "W_K", "W_V"):
            tensors[f"blocks.{layer}.attn.{name}"] = turn.T @ half @ base_of(tensors, layer, name)
        out = tensors[f"blocks.{layer}.attn.W_O"]
        tensors[f"blocks.{layer}.attn.W_O"] = out @ (np.eye(8) - half) @ turn
    tensors["unembed.W_U"] = turn.T @ tensors["unembed.W_U"]
    return from_state_dict(tensors, base.config)


def base_of(tensors: dict[str, Any], layer: int, name: str) -> Any:
    return tensors[f"blocks.{layer}.attn.{name}"]


def test_more_memory_than_there_is_is_refused_clearly() -> None:
    model = random_model(
        seed=1, n_layers=1, n_heads=1, d_model=2600, d_head=1, n_ctx=64, biases="none"
    )
    run = model.run([1] * 64)
    # With nothing expanded, not all paths are valued, so that it takes energies to know more.
    certificate = replace(certify(run, run.searched_paths(0, top=1)), expanded=()).sealed()
    with pytest.raises(LimitError, match=r"wanted at most 4 GB of memory, got 5.2 GB: 1 state of"):
        check_certificate(certificate, model)


def test_more_suffixes_than_there_is_memory_for_are_refused_clearly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suffix, "_MOST_BYTES", 1e3)
    run = random_model(seed=1, n_layers=3).run([1, 2, 3])
    certificate = certify(run, run.searched_paths(0, top=9))
    with pytest.raises(LimitError, match=r"GB: \d+ suffixes; ask for fewer rows"):
        check_certificate(certificate, run.model)


def test_a_table_in_which_all_is_0_passes() -> None:
    model = random_model(seed=1, n_layers=2)
    run = model.run([1, 2])
    for top in (0, 3):
        searched = run.searched_paths(np.zeros(model.config.d_model), top=top)
        assert not failed(check_certificate(certify(run, searched), model))
        raised = replace(searched.table, gap_bound=1e-300)
        searched = replace(searched, table=raised)
        assert not failed(check_certificate(certify(run, searched), model))
