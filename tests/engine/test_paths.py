"""Values, enumeration, remainder and totals of a frozen sum, each by hand on small models."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pathexpand import laws
from pathexpand.api import Model, Run, from_state_dict
from pathexpand.engine.enumeration import enumerate_values
from pathexpand.engine.norm import path_matrix
from pathexpand.engine.ranking import rank_by_norm
from pathexpand.engine.remainder import remainder
from pathexpand.engine.search import Budget
from pathexpand.engine.total import functionals, totals
from pathexpand.engine.value import path_stream, path_value, path_value_by_token
from pathexpand.errors import CompositionError, NotationError, PathExpandError
from pathexpand.frozen import HeadGroup
from pathexpand.laws.exact import exact_run
from pathexpand.model.config import Config
from pathexpand.symbolic import Path
from pathexpand.symbolic.query import everything


@pytest.fixture
def run() -> Run:
    return laws.random_model(seed=1).run([3, 1, 4, 1])


def readout(run: Run, position: int = -1) -> Any:
    place = run.position(position)
    return run.target(2).readout(run.unembed, place)


def test_order_of_patterns_and_maps() -> None:
    """Pitfall 22: A0 rows read keys (0,0,2), A1 rows (0,1,1): (A1 A0)[2] reads 0, not 2."""
    tensors: dict[str, Any] = {
        "embed.W_E": np.array([[1, 0], [0, 1], [7, 7]], dtype=object),
        "unembed.W_U": np.array([[1, 0], [0, 1]], dtype=object),
    }
    maps = ([[0, 1], [0, 0]], [[0, 0], [1, 0]])  # do not commute
    for layer, ov in enumerate(maps):
        for name in ("W_Q", "W_K"):
            tensors[f"blocks.{layer}.attn.{name}"] = np.zeros((1, 2, 2), dtype=object)
        tensors[f"blocks.{layer}.attn.W_V"] = np.array([ov], dtype=object)
        tensors[f"blocks.{layer}.attn.W_O"] = np.array([[[1, 0], [0, 1]]], dtype=object)
    sizes = {"n_layers": 2, "n_heads": 1, "d_model": 2, "d_head": 2, "d_vocab": 3, "n_ctx": 3}
    model = from_state_dict(
        tensors, Config(d_vocab_out=2, positional_embedding_type="none", **sizes)
    )
    reads = ((0, 0, 2), (0, 1, 1))
    patterns = [np.array([[[int(k == key) for k in range(3)] for key in keys]]) for keys in reads]
    run = exact_run(model, [0, 1, 2], [pattern.astype(object) for pattern in patterns])
    split = path_value_by_token(
        run.frozen,
        run.target(0, centred=False).readout(run.unembed, 2),
        Path.parse("embed > L0H0 > L1H0"),
    )
    # Token 0 writes (1, 0); OV0 makes it (0, 1), OV1 then (1, 0).
    assert split.tolist() == [1, 0, 0]
    assert laws.check_exact_closure(model, [0, 1, 2], list(run.patterns)).holds


def test_four_terms_of_two_layers_of_one_head() -> None:
    """Pitfall 22: (I + X)(I + Y) has four terms."""
    model = laws.random_model(seed=1, n_heads=1, positions="none", biases="none")
    assert [str(path) for path in model.network.paths()] == [
        "embed",
        "embed > L0H0",
        "embed > L1H0",
        "embed > L0H0 > L1H0",
    ]


def test_values_by_block_are_values_one_by_one(run: Run) -> None:
    look, seen = readout(run), set()
    for block in enumerate_values(run.frozen, look):
        for word, value in zip(block.words, block.values, strict=True):
            path = Path(block.source, word)
            assert value == pytest.approx(path_value(run.frozen, look, path), rel=1e-10)
            assert path not in seen
            seen.add(path)
    assert seen == set(run.model.network.paths())


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_enumeration_up_to_an_order(run: Run, most: int) -> None:
    found = [
        Path(block.source, word)
        for block in enumerate_values(run.frozen, readout(run), max_order=most)
        for word in block.words
    ]
    assert sorted(found) == sorted(run.model.network.paths(most))


def test_values_by_token_add_up_and_causal_paths_look_back(run: Run) -> None:
    look = readout(run, 1)
    for path in run.model.network.paths():
        split = path_value_by_token(run.frozen, look, path)
        assert split.sum() == path_value(run.frozen, look, path)
        assert not split[2:].any()


def test_forward_and_backward_values_agree(run: Run) -> None:
    look = readout(run)
    for path in run.model.network.paths():
        if path.source != "b_U":
            forward = path_stream(run.frozen, look.position, path) @ look.direction
            assert forward == pytest.approx(path_value(run.frozen, look, path), rel=1e-10)


def test_functionals_read_the_streams(run: Run) -> None:
    """Each boundary's functional, with what is born after it, gives the whole value."""
    look = readout(run)
    reads = functionals(run.frozen, look)
    for boundary, stream in enumerate(run.dense.residual):
        later = sum(
            (reads[each.boundary] * each.values).sum()
            for each in run.frozen.sources
            if each.boundary > boundary
        )
        whole = (reads[boundary] * stream[0]).sum() + later + look.constant
        assert whole == pytest.approx(totals(run.frozen, look).sum(), rel=1e-10)


def test_totals_are_named_and_split(run: Run) -> None:
    found = totals(run.frozen, readout(run))
    assert found.sources == ("embed", "pos", "L0bias", "L1bias", "b_U")
    assert found.values.shape == (3, 5, 4)
    for split in (found.by_order(), found.by_token(), np.array(list(found.by_source().values()))):
        assert split.sum() == pytest.approx(found.sum())


def test_remainder_takes_paths_in_any_order_and_not_twice(run: Run) -> None:
    look = readout(run)
    paths = list(run.model.network.paths())
    some = paths[::3]
    one, other = remainder(run.frozen, look, some), remainder(run.frozen, look, some[::-1])
    again = remainder(run.frozen, look, [*some, *some])
    assert one.count == other.count == again.count == len(paths) - len(some)
    assert one.value == pytest.approx(other.value) == pytest.approx(again.value)
    assert remainder(run.frozen, look, paths).value == 0
    assert one.rounding == 0.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("embed > L0H3", "components of the model"),
        ("embed > L2H0", "components of the model"),
        ("L2bias", "a source among embed, pos, L0bias, L1bias, b_U"),
    ],
)
def test_paths_of_other_models_are_refused(text: str, message: str, run: Run) -> None:
    with pytest.raises(PathExpandError, match=message):
        run.value(text)
    with pytest.raises(PathExpandError):
        run.model.path_matrix(text)


def test_impossible_paths_are_refused(run: Run) -> None:
    for text in ("L0bias > L0H0", "embed > L1H0 > L0H0", "embed > L0H0 > L0H1", "b_U > L0H0"):
        with pytest.raises(CompositionError):
            run.value(text)
    with pytest.raises(PathExpandError, match="through the stream"):
        path_stream(run.frozen, 0, Path("b_U"))


def test_a_network_too_large_to_enumerate_is_ranked_all_the_same() -> None:
    deep = laws.random_model(seed=1, n_layers=12, n_heads=12, d_model=3, biases="none", scale=0.5)
    assert deep.network.count() == 2 * 13**12
    table = deep.run([1]).paths(max_order=1, budget=Budget(nodes=300))
    assert table.remainder_count == 2 * 13**12 - len(table)
    assert abs(table.gap) <= table.gap_bound
    assert table.bound is not None
    assert table.visited is not None
    assert table.visited < 10_000
    assert all(row.order <= 1 for row in table)
    assert deep.run([1]).count("* > L11H3") == 2 * 13**11


@pytest.mark.parametrize(("name", "value"), [("top", -1), ("top", 1.5), ("max_order", -1)])
def test_bad_numbers(name: str, value: Any, run: Run) -> None:
    for look in (run.paths, run.model.paths):
        with pytest.raises(PathExpandError, match=name):
            look(**{name: value})


@pytest.mark.parametrize("top", [0, 1, 7, 37, 38, 100])
def test_every_length_of_table(top: int, run: Run) -> None:
    table = run.paths(2, top=top)
    values = [abs(run.value(path, target=2)) for path in run.model.network.paths()]
    values.sort(reverse=True)
    assert len(table) == min(top, 38)
    assert [abs(row.value) for row in table] == values[:top]
    assert table.certified
    assert table.bound is not None
    if 0 < top < 38:  # what was not visited is bounded, and not by more than the last row
        assert values[top] <= table.bound <= values[top - 1]
    assert top or table.bound >= values[0]
    assert top < 38 or table.bound == 0.0
    assert all(row.certain for row in table)


def test_ties_stand_in_the_order_of_paths() -> None:
    """Exact numbers, all heads alike: only the stated rule can order the rows."""
    one = np.array([[[Fraction(1)]]] * 3)
    tensors: dict[str, Any] = {
        "embed.W_E": np.array([[Fraction(1)]]),
        "unembed.W_U": np.array([[Fraction(1), Fraction(-1)]]),
    }
    for layer in range(2):
        tensors |= {f"blocks.{layer}.attn.{n}": one for n in ("W_Q", "W_K", "W_V", "W_O")}
    sizes = {"n_layers": 2, "n_heads": 3, "d_model": 1, "d_head": 1, "d_vocab": 1, "n_ctx": 1}
    model = from_state_dict(
        tensors, Config(d_vocab_out=2, positional_embedding_type="none", **sizes)
    )
    run = exact_run(model, [0], [np.full((3, 1, 1), Fraction(1), dtype=object)] * 2)
    look = run.target(1, centred=False).readout(run.unembed, 0)
    values = {path: path_value(run.frozen, look, path) for path in model.network.paths()}
    assert set(values.values()) == {Fraction(-1)}
    floats = as_floats(model).run([0])
    for top in (0, 1, 5, 15, 16):
        table = floats.paths(1, top=top, centred=False)
        assert [row.path for row in table] == [str(p) for p in sorted(model.network.paths())[:top]]
        assert table.bound is not None
        assert table.bound >= 1.0 if not top else table.bound == pytest.approx(float(top < 16))


def as_floats(model: Model) -> Model:
    """Give the same model with its exact weights as floats."""
    tensors = {name: array.astype(float) for name, array in model.weights.named()}
    return from_state_dict(tensors, model.config)


def test_a_sum_up_to_a_position_has_the_same_paths(run: Run) -> None:
    for position in range(4):
        near, look = run.frozen.until(position), readout(run, position)
        assert near.positions == position + 1
        assert near.network() == run.frozen.network()
        assert near.mask.tolist() == run.frozen.mask[: position + 1].tolist()
        for path in run.model.network.paths():
            cut = path_value(near, look, path)
            assert cut == pytest.approx(path_value(run.frozen, look, path), rel=1e-12)
    assert run.frozen.until(3).positions == 4


def test_a_sum_whose_tokens_look_ahead_is_kept_whole() -> None:
    run = laws.random_model(seed=1, direction="bidirectional").run([3, 1, 4, 1])
    for position in range(3):
        assert run.frozen.until(position) is run.frozen
    assert run.frozen.until(3).positions == 4
    late = laws.random_model(seed=1).run([3, 1, 4, 1]).frozen
    heads = late.stages[1].groups[0]
    assert isinstance(heads, HeadGroup)
    patterns = heads.patterns.copy()
    patterns[0, 0, 2] = 1e-300  # one glance ahead, and only from position 0
    ahead = replace(late.stages[1], groups=(replace(heads, patterns=patterns),))
    late = replace(late, stages=(late.stages[0], ahead))
    assert late.until(0) is late
    assert late.until(1) is late
    assert late.until(2).positions == 3


@pytest.mark.parametrize("name", ["nodes", "seconds", "memory"])
@pytest.mark.parametrize("limit", [-1, -0.5, float("nan"), float("-inf")])
def test_budgets_below_nothing_are_refused(name: str, limit: Any) -> None:
    with pytest.raises(PathExpandError, match=f"budget {name}: wanted at least 0, got") as caught:
        Budget(**{name: limit})
    assert "\n" not in str(caught.value)


def test_budgets_are_kept(run: Run) -> None:
    assert Budget() == Budget(nodes=None, seconds=None, memory=None)
    for budget in (Budget(nodes=0), Budget(seconds=0), Budget(memory=0)):
        table = run.paths(2, top=5, budget=budget)
        assert not table.certified
        assert table.visited == 1  # b_U, whose value costs nothing
        assert [row.path for row in table] == ["b_U"]
        assert table.bound is not None
        values = [abs(run.value(path, target=2)) for path in run.model.network.paths()]
        assert table.bound >= max(values)
        assert table.remainder_count == 37
        assert table.closes
        assert run.model.paths(budget=budget).certified is False
    for budget in (Budget(), Budget(nodes=10**9, seconds=float("inf"), memory=10**15)):
        assert run.paths(2, top=5, budget=budget) == run.paths(2, top=5)


NOTHING = ("embed > L1H0 > L0H0", "not *", "b_U > L0H0", "embed > . > . > .")
EVERYTHING = ("*", "any > *", "not embed > L1H0 > L0H0", "any | any > +", "(any > *)")


@pytest.mark.parametrize("query", NOTHING)
def test_a_query_that_matches_nothing(query: str, run: Run) -> None:
    table = run.paths(2, query=query)
    assert (len(table), table.remainder_count, table.outside_count) == (0, 0, 38)
    assert (table.remainder, table.bound, table.remainder_energy) == (0.0, 0.0, 0.0)
    assert (table.certified, table.visited, table.closes) == (True, 0, True)
    assert table.outside == pytest.approx(table.dense)
    assert "No path matches the query." in table.to_text(80)
    assert run.total(query, target=2).sum() == 0
    assert run.count(query) == run.model.count(query) == 0
    norms = run.model.paths(query=query)
    assert (len(norms), norms.path_count, norms.energy, norms.bound) == (0, 0, 0.0, 0.0)
    assert norms.certified
    assert len(run.totals_table(by="order", query=query)) == 3


@pytest.mark.parametrize("query", EVERYTHING)
def test_a_query_that_matches_everything(query: str, run: Run) -> None:
    table, plain = run.paths(2, query=query), run.paths(2)
    assert (table.outside, table.outside_count) == (0.0, 0)
    assert table.rows == plain.rows
    assert table.remainder == pytest.approx(plain.remainder)
    assert run.count(query) == 38
    assert run.total(query, target=2).sum() == pytest.approx(run.total(target=2).sum())
    assert run.model.paths(query=query).rows == run.model.paths().rows


def test_a_query_splits_the_table(run: Run) -> None:
    one, other = run.paths(2, query="embed > *"), run.paths(2, query="not embed > *")
    assert one.outside_count == len(other) + other.remainder_count == 38 - 16
    assert one.outside == pytest.approx(other.listed + other.remainder)
    assert one.closes
    assert other.closes
    assert all(row.path.startswith("embed") for row in one)
    assert not any(row.path.startswith("embed") for row in other)
    assert one.query == "embed > *"


@pytest.mark.parametrize(("text", "column"), [("embed > L7H0", 9), ("embed >", 8), ("L0H9", 1)])
def test_bad_queries_name_the_column(text: str, column: int, run: Run) -> None:
    looks: list[Callable[[], Any]] = [
        lambda: run.paths(2, query=text),
        lambda: run.model.paths(query=text),
        lambda: run.total(text),
        lambda: run.count(text),
        lambda: run.totals_table(query=text),
    ]
    for look in looks:
        with pytest.raises(NotationError, match=rf"^column {column} of query"):
            look()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_before_any_search(bad: float) -> None:
    model = laws.random_model(seed=1)
    for name, array in model.weights.named():
        tensors = {n: np.array(a) for n, a in model.weights.named()}
        tensors[name].flat[array.size // 2] = bad
        with pytest.raises(PathExpandError, match=re.escape(name)):
            from_state_dict(tensors, model.config)
    direction = np.ones(7)
    direction[3] = bad
    with pytest.raises(PathExpandError):
        model.run([1, 2]).paths(direction)


@pytest.mark.parametrize("by", ["order", "source", "token", "head", "pair"])
def test_totals_tables_are_the_totals(by: str, run: Run) -> None:
    table = run.totals_table(by=by, target=2)
    assert (table.by, table.query, table.position) == (by, "*", 3)
    assert table.total == pytest.approx(table.dense)
    assert table.parted == (by not in ("head", "pair"))
    if table.parted:
        assert sum(row.value for row in table) == pytest.approx(table.total)
    sizes = {"order": 3, "source": 5, "token": 4, "head": 6, "pair": 9}
    assert len(table) == sizes[by]
    assert sum(row.paths or 0 for row in table) == (38 if by == "order" else 0)
    paths = {str(path): run.value(path, target=2) for path in run.model.network.paths()}
    if by in ("head", "pair"):
        for row in table:
            through = [
                v for p, v in paths.items() if set(row.part.split(" > ")) <= set(p.split(" > "))
            ]
            assert row.value == pytest.approx(sum(through))


def test_totals_tables_refuse_what_they_cannot_say(run: Run) -> None:
    with pytest.raises(PathExpandError, match="by one of order, source, token, head, pair"):
        run.totals_table(by="layer")
    for by in ("head", "pair"):
        with pytest.raises(PathExpandError, match="no query"):
            run.totals_table(by=by, query="embed > *")


def test_norms_are_those_of_the_dense_matrices() -> None:
    model = laws.random_model(seed=1)
    found = rank_by_norm(model.weights, model.network, everything(model.network), top=5)
    norms = {
        p: np.linalg.norm(path_matrix(model.weights, p).dense()) for p in model.network.paths()
    }
    best = sorted(norms, key=lambda path: -norms[path])
    assert list(found.found.paths) == best[:5]
    assert found.norms == pytest.approx([norms[path] for path in best[:5]])
    assert norms[best[5]] <= found.found.bound <= norms[best[4]]
    assert found.energy == pytest.approx(sum(norm**2 for norm in norms.values()))


@pytest.mark.parametrize("scale", [1e-60, 1e-12, 1e20])
def test_norms_whose_squares_are_no_floats(scale: float) -> None:
    model = laws.random_model(seed=1, scale=scale)
    laws.check_norm_ranking(model).require()
    assert all(row.norm > 0 for row in model.paths(top=20, max_order=1))


def test_source_of_biases() -> None:
    """Only what exists is added: b_O alone, b_V alone, both."""
    model = laws.random_model(seed=1)
    attn = model.weights.blocks[0].attn
    assert attn.b_V is not None
    assert attn.b_O is not None
    whole = sum(attn.b_V[head] @ attn.W_O[head] for head in range(3)) + attn.b_O
    for mask, wanted in (([1, 1], whole), ([0, 1], attn.b_O)):  # position 0 sees no key at all
        run = model.run([1, 2], mask=mask)
        born = next(each for each in run.frozen.sources if each.label == "L0bias")
        assert born.values[0] == pytest.approx(wanted)


def test_asking_leaves_the_model_as_it_was(run: Run) -> None:
    """Pitfall 28: also after an exception."""
    digest, frozen = run.model.checkpoint.digest(), run.frozen
    first = run.paths(2)
    with pytest.raises(PathExpandError):
        run.paths(999)
    assert run.paths(2) == first
    assert run.model.checkpoint.digest() == digest
    assert run.frozen is frozen


def test_frozen_sums_know_their_network(run: Run) -> None:
    models = [
        laws.random_model(seed=seed, biases="some", positions=kind)
        for seed in range(6)
        for kind in ("none", "standard", "shortformer")  # type: ignore[misc]
    ]
    for model in models:
        assert isinstance(model, Model)
        assert model.run([1, 2]).frozen.network() == model.network
