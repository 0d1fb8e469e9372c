"""Attention scores as pairs of paths: closed, ranked, and caught when the engine is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.api import Model, Run
from pathexpand.circuits import leg_tree, legs, pairs, scores
from pathexpand.circuits.pairs import Pair
from pathexpand.engine import kernel
from pathexpand.engine.search import Budget
from pathexpand.errors import NotationError, PathExpandError, PromptError
from pathexpand.laws import check_scores
from pathexpand.table import ScoreTable
from tests.api.models import small
from tests.reference import test_families as families

SHARED = Path(__file__).parents[3] / "shared" / "models" / "induction-2l1h"


def run_of(name: str, place: Path, mlp: Any = "source") -> Run:
    """Run the last row of a family's golden file."""
    checkpoint, stored = families.read(name, place), families.golden(name)
    mask = stored.get("mask")
    row = [int(token) for token in stored["tokens"][-1]]
    kept = None if mask is None else mask[-1].astype(bool)
    return Model(checkpoint, mlp=mlp).run(row, mask=kept)


# Every family, and what changes how queries and keys are made or seen.
SOME = [
    name
    for name in families.OWN
    if "-" not in name
    or any(part in name for part in ("norm", "sliding", "rotary", "mask", "parallel", "grouped"))
]


@pytest.mark.parametrize("name", SOME)
def test_the_pairs_of_every_architecture_close_and_are_ranked(name: str, tmp_path: Path) -> None:
    check_scores(run_of(name, tmp_path)).require()


@pytest.mark.parametrize("mlp", ["frozen", "neurons"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "bert", "gemma2", "bloom-post-norm"])
def test_mlps_take_part_in_pairs(name: str, mlp: str, tmp_path: Path) -> None:
    check_scores(run_of(name, tmp_path, mlp)).require()


@pytest.mark.parametrize("seed", range(4))
def test_the_ranked_pairs_are_the_largest_of_all(seed: int) -> None:
    run = small(seed, sizes={"n_layers": 3}).run([3, 1, 4, 1, 5, 9, 2])
    scored = scores.Scored.of(
        run.model.weights, run.model.config, run.dense, run.frozen, pathexpand.Head(2, 1)
    )
    query, key = scored.legs(6, (2, 4))
    every = {
        Pair(p, q): float(query.vector(p) @ key.vector(q))
        for p in query.frozen.network().paths()
        for q in key.frozen.network().paths()
    }
    table = run.why("L2H1", 6, 2, over=4, top=20)
    wanted = sorted(map(abs, every.values()), reverse=True)
    assert table.certified and table.pair_count == len(every)
    assert np.allclose([abs(row.value) for row in table], wanted[:20], rtol=1e-9, atol=1e-12)
    assert table.bound is not None and table.bound >= wanted[20] * (1 - 1e-12)


def test_a_search_that_is_stopped_bounds_what_it_did_not_visit() -> None:
    run = small(5, sizes={"n_layers": 3}).run([3, 1, 4, 1, 5, 9, 2])
    whole = run.scores("L2H0", 6, 3, top=10_000)
    assert whole.remainder_count == 0 and whole.certified
    sizes = {(row.query_path, row.key_path): abs(row.value) for row in whole}
    for nodes in (0, 1, 3, 9, 27):
        cut = run.scores("L2H0", 6, 3, top=7, budget=Budget(nodes=nodes))
        listed = {(row.query_path, row.key_path) for row in cut}
        most = max(size for pair, size in sizes.items() if pair not in listed)
        assert cut.bound is None or cut.bound >= most * (1 - 1e-12)
        assert cut.closes
        marked = [abs(row.value) for row in cut if row.certain]
        assert all(size >= most * (1 - 1e-9) for size in marked)


def test_ctrl_c_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = small(5, sizes={"n_layers": 3}).run([3, 1, 4, 1, 5, 9, 2])
    right, taken = pairs.search, []

    def interrupted(*given: Any, **options: Any) -> Any:
        taken.append(1)
        if len(taken) == 3:
            raise KeyboardInterrupt
        return right(*given, **options)

    monkeypatch.setattr(pairs, "search", interrupted)
    table = run.scores("L2H0", 6, 3, top=7)
    assert not table.certified and table.closes and len(table) == 7
    monkeypatch.undo()
    whole = run.scores("L2H0", 6, 3, top=10_000)
    listed = {(row.query_path, row.key_path) for row in table}
    left = [row for row in whole if (row.query_path, row.key_path) not in listed]
    assert table.bound is not None
    assert table.bound >= max(abs(row.value) for row in left) * (1 - 1e-12)


def test_the_embedded_induction_head_looks_where_it_does_by_k_composition() -> None:
    run = pathexpand.load("two-layer").run("Humpty Dumpty sat on a wall. Humpty D")
    table = run.scores("L1H0", 20, 6)
    assert (table[0].query_path, table[0].key_path) == ("embed", "embed > L0H3")
    assert table[0].composition == "K" and table[0].value > 0.5 * table.dense
    why = run.why("L1H0", 20, 6, over=5)
    assert why[0].composition == "K" and why[0].value > 0.5 * why.dense
    assert run.why("L1H0", 20)[0].composition == "K"


def induction(file: str) -> Model:
    from safetensors.numpy import load_file

    config = json.loads((SHARED / "config.json").read_text(encoding="utf-8"))
    return pathexpand.from_state_dict(load_file(SHARED / file), config)


@pytest.mark.shared_models
def test_a_trained_circuit_shows_and_a_broken_one_does_not() -> None:
    word = [4, 17, 9, 22, 2, 13, 7, 22]  # the last letter stands at 3; the next is at 4
    trained = induction("trained.safetensors").run(word)
    table = trained.scores("L1H0", 7, 4)
    assert table.attention > 0.8
    top = table[0]
    assert (top.query_path, top.key_path) == ("embed", "embed > L0H0")
    assert top.composition == "K" and top.value > 0
    broken = induction("broken-circuit.safetensors").run(word).scores("L1H0", 7, 4)
    assert broken.attention < 0.3
    sums = [{each.composition: each.value for each in t.compositions} for t in (table, broken)]
    assert sums[1]["K"] < 0.5 * sums[0]["K"]


def half_gram(patch: pytest.MonkeyPatch) -> None:
    right = leg_tree.gram_bound
    patch.setattr(pairs, "gram_bound", lambda leg, head: right(leg, head) / 400)


def one_end(patch: pytest.MonkeyPatch) -> None:
    right = leg_tree._seen
    patch.setattr(leg_tree, "_seen", lambda f, r, p, h: right(f, r, max(p - 1, 0), h) * 0.01)


def small_kernels(patch: pytest.MonkeyPatch) -> None:
    right = kernel.HeadKernel.bound
    patch.setattr(kernel.HeadKernel, "bound", lambda *given: right(*given) / 30)


@pytest.mark.parametrize("fault", [half_gram, one_end, small_kernels])
def test_bounds_that_are_too_small_lose_pairs(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    lost = 0
    for seed in range(6):
        run = small(seed, sizes={"n_layers": 3}).run([3, 1, 4, 1, 5, 9, 2])
        lost += not check_scores(run).holds
    assert lost


def later_turn(patch: pytest.MonkeyPatch) -> None:
    right = legs.turn
    patch.setattr(legs, "turn", lambda r, d, place, n: right(r, d, place + (place > 2), n))


def other_heads_key(patch: pytest.MonkeyPatch) -> None:
    def tiled(self: Any, side: str) -> int:
        return int(self.head.index % len(self.attn.W_K)) if side == "key" else self.head.index

    patch.setattr(legs._Attending, "_index", tiled)


def no_constant(patch: pytest.MonkeyPatch) -> None:
    right = legs._Attending._raw

    def raw(self: Any, side: str, position: int) -> Any:
        read, constant, size = right(self, side, position)
        return read, 0 * constant, size

    patch.setattr(legs._Attending, "_raw", raw)


def unscaled(patch: pytest.MonkeyPatch) -> None:
    right = legs.back
    patch.setattr(legs, "back", lambda norm, W: W if norm is not None else right(norm, W))


def remainder_off(patch: pytest.MonkeyPatch) -> None:
    right = scores.remainder

    def without_first(frozen: Any, readout: Any, paths: Any, **options: Any) -> Any:
        return right(frozen, readout, list(paths)[1:], **options)

    patch.setattr(scores, "remainder", without_first)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (later_turn, "llama"),
        (other_heads_key, "llama"),
        (no_constant, "gpt2"),
        (unscaled, "gpt2"),
        (remainder_off, "gpt2"),
        (remainder_off, "gpt_neox"),
    ],
)
def test_the_law_sees_a_broken_leg(
    fault: Callable[[pytest.MonkeyPatch], None],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    run = run_of(name, tmp_path)
    check_scores(run).require()
    fault(monkeypatch)
    assert not check_scores(run).holds


def test_tables_come_back_from_their_files() -> None:
    run = pathexpand.load("two-layer").run("to be or not to be")
    for table in (run.scores("L1H2"), run.why("L1H2", -1, 3, over=1)):
        assert ScoreTable.from_json(table.to_json()) == table
        lines = table.to_csv().splitlines()
        assert lines[-1].split(",")[1] == "(remainder)"
        assert max(map(len, table.to_text(80).splitlines())) <= 80


def test_what_cannot_be_asked_is_refused_in_one_line(tmp_path: Path) -> None:
    run = pathexpand.load("two-layer").run("to be or not to be")
    refused: list[tuple[type[PathExpandError], Callable[[], object], str]] = [
        (PathExpandError, lambda: run.scores("L2H0"), "head L2H0"),
        (PathExpandError, lambda: run.scores("L1H4"), "head L1H4"),
        (NotationError, lambda: run.scores("L1N3"), "head"),
        (PromptError, lambda: run.scores("L1H0", 2, 5), "its mask hides"),
        (PromptError, lambda: run.scores("L1H0", 99), "query 99"),
        (PathExpandError, lambda: run.why("L1H0", 5, 3, over=3), "two positions"),
        (PathExpandError, lambda: run.why("L1H0", 0, 0), "no other key"),
        (PathExpandError, lambda: run.scores("L1H0", top=-1), "top"),
    ]
    for kind, ask, said in refused:
        with pytest.raises(kind, match=said) as found:
            ask()
        assert "\n" not in str(found.value)
    capped = run_of("gemma2", tmp_path)
    assert capped.scores("L1H0").soft_cap is not None
    with pytest.raises(PathExpandError, match="soft cap"):
        capped.why("L1H0")


def test_a_window_hides_keys(tmp_path: Path) -> None:
    run = run_of("mistral", tmp_path)
    assert run.model.config.window[0] is not None
    with pytest.raises(PromptError, match="hides"):
        run.scores("L0H0", len(run.tokens) - 1, 0)


def test_alibi_is_a_line_of_its_own(tmp_path: Path) -> None:
    table = run_of("bloom", tmp_path).scores("L1H0", 4, 1)
    assert table.alibi is not None and table.alibi < 0 and table.closes
    assert abs(table.dense - table.sum) == abs(table.gap)
    assert "(alibi)" in table.to_csv() and "ALiBi" in str(table)


def test_ctrl_c_within_a_search_ends_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is interrupted gives what it has; no other one is begun after it."""
    run = small(5, sizes={"n_layers": 3}).run([3, 1, 4, 1, 5, 9, 2])
    right, begun, interrupted = pairs.search, [], []

    def search(tree: Any, query: Any, **options: Any) -> Any:
        begun.append(1)
        if len(begun) == 2:
            sound = tree.bounds

            def bounds(*given: Any) -> Any:
                if not interrupted:
                    interrupted.append(1)
                    raise KeyboardInterrupt
                return sound(*given)

            tree.bounds = bounds
        return right(tree, query, **options)

    monkeypatch.setattr(pairs, "search", search)
    table = run.scores("L2H0", 6, 3, top=7)
    assert interrupted and len(begun) == 2
    assert not table.certified and table.closes
