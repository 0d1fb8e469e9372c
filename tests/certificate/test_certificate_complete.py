"""Where every path was valued, by the search and by the check, no energies are needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pathexpand.api import Run
from pathexpand.certificate import Certificate, bound, certify, check_certificate
from pathexpand.engine import ranking
from pathexpand.laws.design import Design, random_transformer

POST = ("ln1", "ln2", "ln1_after", "ln2_after")
DESIGNS = {
    "heads": Design(d_mlp=0),
    "source": Design(mlp="source", norms=POST),
    "frozen": Design(mlp="frozen"),
    "neurons": Design(mlp="neurons"),
}


@pytest.fixture(params=DESIGNS)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(ranking, "is_shorter", lambda *given: True)
    monkeypatch.setattr(bound, "frontiers", None)
    return random_transformer(DESIGNS[request.param], seed=5).run([1, 2, 3])


def failing(certificate: Certificate, run: Run) -> list[str]:
    return [each.name for each in check_certificate(certificate, run.model) if not each.holds]


@pytest.mark.parametrize(
    "options",
    [{}, {"query": "embed > *"}, {"max_order": 1}, {"max_order": 2, "query": "* > L1H0"}],
    ids=str,
)
def test_an_honest_certificate_passes(run: Run, options: dict[str, Any]) -> None:
    searched = run.searched_paths(2, top=4, **options)
    assert searched.table.certified
    assert not failing(certify(run, searched), run)


@pytest.mark.parametrize("options", [{}, {"max_order": 1}], ids=str)
def test_false_claims_fail(run: Run, options: dict[str, Any]) -> None:
    certificate = certify(run, run.searched_paths(2, top=4, **options))
    table = certificate.table

    def claims(**changes: Any) -> Certificate:
        return replace(certificate, table=replace(table, **changes)).sealed()

    assert table.bound is not None
    assert "bound" in failing(claims(bound=table.bound * 0.999), run)
    if table.remainder_energy is not None:
        lower = claims(remainder_energy=table.remainder_energy * 0.999)
        assert failing(lower, run) == ["remainder energy"]


def test_with_a_suffix_left_out_energies_are_needed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = certify(run, run.searched_paths(2, top=4))
    fewer = replace(certificate, expanded=certificate.expanded[1:]).sealed()
    with pytest.raises(TypeError):  # there are none
        failing(fewer, run)
