"""Every edit is noticed by the hash; every false claim also where the hash was made to fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pathexpand.api import Model, Run, from_state_dict
from pathexpand.certificate import Certificate, certify, check_certificate
from pathexpand.certificate.suffix import read_words
from pathexpand.engine.search import Budget
from pathexpand.errors import PathExpandError
from pathexpand.frozen import MlpMode
from pathexpand.laws.design import Design, random_transformer
from pathexpand.laws.problems import random_model
from pathexpand.symbolic import Path
from pathexpand.table import SourceToken
from pathexpand.target import DifferenceTarget, DirectionTarget, LogitTarget
from tests.certificate.conftest import a_run, reranked, with_table

Edit = Callable[[Certificate], Certificate]


def failing(certificate: Certificate, model: Model) -> list[str]:
    return [each.name for each in check_certificate(certificate, model) if not each.holds]


def changed_row(certificate: Certificate, at: int, **changes: Any) -> Certificate:
    rows = list(certificate.table.rows)
    rows[at] = replace(rows[at], **changes)
    return with_table(certificate, rows=tuple(rows))


def revalued(certificate: Certificate, at: int, value: float) -> Certificate:
    """Change a value, with all sums, shares and flags put right."""
    rows = list(certificate.table.rows)
    rows[at] = replace(rows[at], value=value)
    return replace(certificate, table=reranked(certificate.table, rows)).sealed()


def token(certificate: Certificate) -> Certificate:
    tokens = list(certificate.table.tokens)
    tokens[1] = SourceToken(1, 3, "3")
    return with_table(certificate, tokens=tuple(tokens))


def token_text(certificate: Certificate) -> Certificate:
    tokens = list(certificate.table.tokens)
    tokens[1] = replace(tokens[1], text="' love'")
    return with_table(certificate, tokens=tuple(tokens))


def dropped(at: int) -> Edit:
    def edit(certificate: Certificate) -> Certificate:
        rows = list(certificate.table.rows)
        del rows[at]
        return replace(certificate, table=reranked(certificate.table, rows)).sealed()

    return edit


def swapped(certificate: Certificate) -> Certificate:
    rows = list(certificate.table.rows)
    rows[0], rows[1] = rows[1], rows[0]
    return replace(certificate, table=reranked(certificate.table, rows)).sealed()


def twice(certificate: Certificate) -> Certificate:
    return changed_row(certificate, 1, path=certificate.table.rows[0].path)


# An edit, and the checks of which at least one must fail although the hash was made to fit.
FALSE: dict[str, tuple[Edit, set[str]]] = {
    "weights": (lambda c: replace(c, weights="0" * 64).sealed(), {"model"}),
    "config": (
        lambda c: with_architecture(c, attn_scale=[1.0, 2.0, 3.0]),
        {"model"},
    ),
    "context": (lambda c: with_architecture(c, n_ctx=99), {"model"}),
    "a member of the architecture left out": (
        lambda c: replace(c, architecture={"config": c.architecture["config"]}).sealed(),
        {"model"},
    ),
    "residual scale": (lambda c: with_block(c, scale=2.0), {"model"}),
    "norm that is not there": (
        lambda c: with_block(c, ln2_post={"kind": "rms", "eps": 1e-5}),
        {"model"},
    ),
    "token": (token, {"values", "sums"}),
    "token text": (token_text, {"question"}),
    "token out of range": (
        lambda c: with_table(c, tokens=(SourceToken(0, 99, "99"), *c.table.tokens[1:])),
        {"question"},
    ),
    "mask": (
        lambda c: replace(c, mask=(False, *c.mask[1:])).sealed(),
        {"values", "sums", "question"},
    ),
    "position": (lambda c: with_table(c, position=2), {"values", "sums"}),
    "target": (lambda c: replace(c, target=LogitTarget(3)).sealed(), {"question", "values"}),
    "target with its name": (
        lambda c: replace(
            with_table(c, target="logit of 4 minus logit of 5"), target=DifferenceTarget(4, 5)
        ).sealed(),
        {"values", "sums"},
    ),
    "target out of range": (
        lambda c: replace(c, target=LogitTarget(99)).sealed(),
        {"question"},
    ),
    "direction of another size": (
        lambda c: replace(c, target=DirectionTarget(np.ones(3))).sealed(),
        {"question"},
    ),
    "direction": (
        lambda c: replace(
            with_table(c, target="x"), target=DirectionTarget(np.ones(7), "x")
        ).sealed(),
        {"values", "sums"},
    ),
    "name of the target": (lambda c: with_table(c, target="logit of #3"), {"question"}),
    "name of a direction": (
        lambda c: replace(
            with_table(c, target="y"), target=DirectionTarget(np.ones(7), "x")
        ).sealed(),
        {"question"},
    ),
    "direction called a logit": (
        lambda c: replace(
            with_table(c, target=" Logit of #3"), target=DirectionTarget(np.ones(7), " Logit of #3")
        ).sealed(),
        {"question"},
    ),
    "model": (lambda c: with_table(c, model="gpt2"), {"question"}),
    "query": (lambda c: with_table(c, query="* > L0H1 > *"), {"rows", "counts", "sums"}),
    "query that is none": (lambda c: with_table(c, query="* > L9H9"), {"question"}),
    "value": (lambda c: revalued(c, 0, c.table.rows[0].value * 1.01), {"values"}),
    "value, a little": (lambda c: revalued(c, 1, c.table.rows[1].value * (1 + 1e-9)), {"values"}),
    "value of the other sign": (lambda c: revalued(c, 0, -c.table.rows[0].value), {"values"}),
    "value alone": (lambda c: changed_row(c, 0, value=c.table.rows[0].value * 1.01), {"values"}),
    "rank order": (swapped, {"rows"}),
    "order": (lambda c: changed_row(c, 0, order=c.table.rows[0].order + 1), {"rows"}),
    "kind": (lambda c: changed_row(c, 0, kind="indirect"), {"rows"}),
    "share": (lambda c: changed_row(c, 0, share=0.5), {"rows"}),
    "running": (lambda c: changed_row(c, 0, running=0.5), {"rows"}),
    "certain": (lambda c: changed_row(c, 0, certain=not c.table.rows[0].certain), {"rows"}),
    "path twice": (twice, {"rows"}),
    "no path": (lambda c: changed_row(c, 0, path="embed > L0"), {"rows"}),
    "path of another model": (lambda c: changed_row(c, 0, path="embed > L9H0"), {"rows"}),
    "source value": (
        lambda c: changed_row(c, 0, source_value=(c.table.rows[0].source_value or 0) + 0.1),
        {"values", "rows"},
    ),
    "row dropped": (dropped(0), {"bound"}),
    "row dropped in the middle": (dropped(2), {"bound"}),
    "listed": (lambda c: with_table(c, listed=c.table.listed + 1), {"sums"}),
    "remainder": (lambda c: with_table(c, remainder=c.table.remainder + 1e-6), {"sums"}),
    "remainder and dense": (
        lambda c: with_table(
            c, remainder=c.table.remainder + 1e-6, dense=c.table.dense + 1e-6, gap_bound=1.0
        ),
        {"sums"},
    ),
    "remainder to outside": (
        lambda c: with_table(
            c, remainder=c.table.remainder + 0.5, outside=c.table.outside - 0.5, gap_bound=1.0
        ),
        {"sums"},
    ),
    "counts": (
        lambda c: with_table(
            c, path_count=c.table.path_count + 1, remainder_count=c.table.remainder_count + 1
        ),
        {"counts"},
    ),
    "fewer than no paths valued": (lambda c: with_table(c, visited=-1), {"counts"}),
    "more paths valued than there are": (
        lambda c: with_table(c, visited=c.table.path_count - c.table.outside_count + 1),
        {"counts"},
    ),
    "any number of paths valued": (lambda c: with_table(c, visited=None), {"counts"}),
    "bound of the gap": (lambda c: with_table(c, gap_bound=1000 * c.table.gap_bound), {"sums"}),
    "dense": (lambda c: with_table(c, dense=c.table.dense + 1e-6), {"sums"}),
    "gap": (lambda c: with_table(c, gap=0.5, gap_bound=1.0), {"sums"}),
    "remainder energy": (
        lambda c: with_table(c, remainder_energy=0.5 * (c.table.remainder_energy or 0)),
        {"remainder energy"},
    ),
    "bound": (lambda c: with_flags(c, bound=0.5 * (c.table.bound or 0)), {"bound"}),
    "bound, a little": (lambda c: with_flags(c, bound=0.999 * (c.table.bound or 0)), {"bound"}),
    "no bound": (lambda c: with_table(c, bound=None, certified=False), {"bound", "rows"}),
    "suffix that is none": (
        lambda c: replace(c, expanded=(*c.expanded, "L0H7")).sealed(),
        {"bound"},
    ),
    "suffix backward": (
        lambda c: replace(c, expanded=(*c.expanded, "L1H0 > L0H0")).sealed(),
        {"bound"},
    ),
    "nothing expanded": (lambda c: replace(c, expanded=()).sealed(), {"bound"}),
}


def with_architecture(certificate: Certificate, **changes: Any) -> Certificate:
    config = dict(certificate.architecture["config"]) | changes
    changed = dict(certificate.architecture) | {"config": config}
    return replace(certificate, architecture=changed).sealed()


def with_block(certificate: Certificate, **changes: Any) -> Certificate:
    first, *others = certificate.architecture["blocks"]
    changed = dict(certificate.architecture) | {"blocks": [first | changes, *others]}
    return replace(certificate, architecture=changed).sealed()


def with_flags(certificate: Certificate, **changes: Any) -> Certificate:
    rows = list(certificate.table.rows)
    return replace(certificate, table=reranked(certificate.table, rows, **changes)).sealed()


@pytest.mark.parametrize("name", FALSE)
def test_a_false_claim_fails_although_the_hash_fits(
    name: str, certificate: Certificate, run: Run
) -> None:
    edit, caught_by = FALSE[name]
    edited = edit(certificate)
    assert edited.is_sealed and edited != certificate
    assert set(failing(edited, run.model)) & caught_by


@pytest.mark.parametrize("name", FALSE)
def test_without_a_new_hash_the_content_fails(name: str) -> None:
    run = a_run("neurons")
    certificate = certify(run, run.searched_paths((3, 5), position=3, top=8))
    edited = replace(FALSE[name][0](certificate), sha256=certificate.sha256)
    assert not edited.is_sealed and "content" in failing(edited, run.model)


@pytest.mark.parametrize("mlp", ["source", "frozen", "neurons"])
def test_another_way_to_take_mlps_fails(mlp: MlpMode, certificate: Certificate, run: Run) -> None:
    if run.model.network == run.model.with_mlp(mlp).network:
        return
    edited = replace(certificate, mlp=mlp).sealed()
    assert set(failing(edited, run.model)) & {"rows", "counts", "question"}


def test_the_model_may_take_its_mlps_in_any_way(certificate: Certificate, run: Run) -> None:
    for mlp in ("source", "frozen", "neurons"):
        assert not failing(certificate, run.model.with_mlp(mlp))


def changed_model(model: Model, **changes: Any) -> Model:
    """Give a model with parts of its first block changed, by name such as `mlp.act`."""
    weights = model.weights
    first, *others = weights.blocks
    for name, value in changes.items():
        part, _, last = name.rpartition("__")
        own = replace(getattr(first, part), **{last: value}) if part else value
        first = replace(first, **{part or last: own})
    changed = replace(weights, blocks=(first, *others))
    return Model(replace(model.checkpoint, weights=changed), mlp=model.mlp)


@pytest.mark.parametrize("mlp", ["source", "frozen", "neurons"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ln1__weight", np.arange(7.0)),
        ("ln2__bias", np.arange(7.0)),
        ("ln1__eps", 1e-4),
        ("ln1__kind", "rms"),
        ("mlp__act", "silu"),
        ("mlp__b_in", np.arange(5.0)),
        ("mlp__W_gate", np.ones((7, 5))),
        ("parallel", True),
        ("scale", 0.5),
        ("ln2", None),
    ],
)
def test_a_model_with_any_part_changed_fails(mlp: MlpMode, name: str, value: Any) -> None:
    model = random_transformer(Design(mlp=mlp), seed=3)
    run = model.run([1, 2, 3])
    certificate = certify(run, run.searched_paths(2, top=4))
    assert not failing(certificate, model)
    assert failing(certificate, changed_model(model, **{name: value})) == ["model"]


def test_a_certificate_of_other_gates_fails() -> None:
    """A run whose gates are not those of its model: the values are not what they should be."""
    for mlp in ("frozen", "neurons"):
        run = random_transformer(Design(mlp=mlp), seed=3).run([1, 2, 3])
        for layer in run.dense.layers:
            assert layer.gates is not None
            layer.gates[:] *= 1.001
        certificate = certify(run, run.searched_paths(2, top=12))
        failed = failing(certificate, run.model)
        assert "values" in failed or "sums" in failed


@pytest.mark.parametrize(
    "edit",
    [
        lambda c: changed_row(c, 0, value=float(np.nextafter(c.table.rows[0].value, np.inf))),
        lambda c: with_table(c, bound=2 * c.table.bound),
        lambda c: with_table(c, remainder_energy=2 * c.table.remainder_energy),
        lambda c: with_table(c, visited=7),
        lambda c: replace(c, source="elsewhere"),
        lambda c: replace(c, fixed="1" * 64),
    ],
    ids=["last digit", "bound raised", "energy raised", "visited", "source", "fixed"],
)
def test_an_edit_too_small_or_too_weak_to_be_false_is_noticed_by_the_hash(
    edit: Edit, certificate: Certificate, run: Run
) -> None:
    edited = replace(edit(certificate), sha256=certificate.sha256)
    assert "content" in failing(edited, run.model)


@pytest.mark.parametrize("size", [1e5, 1e120])
def test_patterns_that_rounding_leaves_open_fail(size: float) -> None:
    """Who hides the patterns' hash is not allowed for however much their scores may round."""
    base = random_model(seed=11, n_layers=3, n_heads=3)
    tensors = {
        name: array * (size if name.endswith(("W_Q", "W_K")) else 1)
        for name, array in base.weights.named()
    }
    model = from_state_dict(tensors, base.config)
    run = model.run([1, 7, 2, 9, 4])
    honest = certify(run, run.searched_paths(3, top=4))
    assert not failing(honest, model)
    forged = replace(with_flags(honest, bound=0.0), fixed="0" * 64).sealed()
    findings = check_certificate(forged, model)
    assert [each.name for each in findings if not each.holds] == ["question"]
    assert findings[-1].detail.startswith("patterns that rounding leaves open")


def test_a_lower_longer_bound_fails() -> None:
    run = a_run()
    honest = certify(run, run.searched_paths((3, 5), top=6, max_order=1))
    assert not failing(honest, run.model)
    for lower in (0.0, 0.999 * honest.table.longer_bound):
        assert failing(with_table(honest, longer_bound=lower), run.model) == ["longer paths"]


def test_certified_where_the_search_stopped_early_fails(run: Run) -> None:
    honest = certify(run, run.searched_paths((3, 5), top=8, budget=Budget(nodes=2)))
    assert not honest.table.certified and not failing(honest, run.model)
    assert failing(with_table(honest, certified=True), run.model) == ["certified"]


def test_a_row_traded_for_a_smaller_one_fails(certificate: Certificate, run: Run) -> None:
    """The last row gives way to the best unlisted path, and all is put right but the truth."""
    table, target = certificate.table, certificate.target
    listed = {row.path for row in table}
    most = 9 if table.max_order is None else table.max_order
    best = max(
        (
            path
            for path in run.model.query(table.query).paths(max_order=most)
            if str(path) not in listed
        ),
        key=lambda path: abs(run.value(path, target, position=table.position)),
    )
    split = run.value_by_token(best, target, position=table.position)
    at = int(abs(split).argmax())
    rows = [
        *table.rows[:-1],
        replace(
            table.rows[-1],
            path=str(best),
            order=best.order,
            kind=best.kind,
            value=float(split.sum()),
            source_token=None if best.source == "b_U" else table.tokens[at],
            source_value=None if best.source == "b_U" else float(split[at]),
        ),
    ]
    edited = replace(certificate, table=reranked(table, rows)).sealed()
    if table.certified:
        assert {"bound", "certified"} & set(failing(edited, run.model))


def test_a_source_token_that_is_not_the_strongest_fails(certificate: Certificate, run: Run) -> None:
    table, tried = certificate.table, 0
    for at, row in enumerate(table.rows):
        split = run.value_by_token(row.path, certificate.target, position=table.position)
        order = np.argsort(-abs(split))
        if row.source_token is None or abs(split[order[1]]) > 0.999 * abs(split[order[0]]):
            continue
        token, tried = table.tokens[order[1]], tried + 1
        edited = changed_row(
            certificate, at, source_token=token, source_value=float(split[order[1]])
        )
        assert failing(edited, run.model) == ["values"]
        nothing = changed_row(certificate, at, source_token=None, source_value=None)
        assert failing(nothing, run.model) == ["values"]
    assert tried


def test_more_suffixes_than_needed_do_no_harm(certificate: Certificate, run: Run) -> None:
    query = run.model.query(certificate.table.query)
    every = {
        " > ".join(map(str, path.components)) for path in query.paths() if path.source == "embed"
    }
    edited = replace(certificate, expanded=tuple(sorted(every))).sealed()
    assert not failing(edited, run.model)


def test_another_model_is_a_finding(certificate: Certificate) -> None:
    other = random_model(seed=12, n_layers=3, n_heads=3, d_vocab_out=11)
    assert failing(certificate, other) == ["model"]
    assert failing(certificate, random_model(seed=11, n_layers=2)) == ["model"]


def test_any_edit_of_the_text_is_noticed(certificate: Certificate, run: Run) -> None:
    """One digit, letter or name changed anywhere: unreadable, or the content fails."""
    text = certificate.to_json()
    random = np.random.default_rng(3)
    for at in random.choice(len(text), size=250, replace=False):
        new = str((int(text[at]) + 3) % 10) if text[at].isdigit() else "q"
        changed = text[:at] + new + text[at + 1 :]
        try:
            edited = Certificate.from_json(changed)
        except PathExpandError:
            continue
        # A 17th digit may say the same float64.
        assert not edited.is_sealed or json.loads(changed) == json.loads(text)


def test_members_may_not_be_added(certificate: Certificate) -> None:
    document = json.loads(certificate.to_json()) | {"note": "trust me"}
    with pytest.raises(PathExpandError, match="nothing but what to_json writes"):
        Certificate.from_json(json.dumps(document))


def test_suffixes_are_read_as_they_are_written(certificate: Certificate, run: Run) -> None:
    words = read_words(certificate.expanded, run.model.network)
    assert () in words and all(word[1:] in words for word in words if word)
    assert all(Path("embed", word).order == len(word) for word in words)
