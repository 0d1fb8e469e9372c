"""Values, enumeration, remainder and totals of a frozen sum, each by hand on small models."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pathexpand import laws
from pathexpand.api import Model, Run, from_state_dict
from pathexpand.engine.enumeration import enumerate_values, top_paths
from pathexpand.engine.norm import path_matrix, rank_by_norm
from pathexpand.engine.remainder import remainder
from pathexpand.engine.total import functionals, totals
from pathexpand.engine.value import path_stream, path_value, path_value_by_token
from pathexpand.errors import CompositionError, LimitError, PathExpandError
from pathexpand.frozen import bias_source
from pathexpand.laws.exact import exact_run
from pathexpand.model.config import Config
from pathexpand.symbolic import Path


@pytest.fixture
def run() -> Run:
    return laws.random_model(seed=1).run([3, 1, 4, 1])


def readout(run: Run, position: int = -1) -> Any:
    place = run.position(position)
    return run.target(2).readout(run.model.weights, place)


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
        run.target(0, centred=False).readout(model.weights, 2),
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
        ("embed > L0H3", "heads of the model"),
        ("embed > L2H0", "heads of the model"),
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


def test_limits_are_told_before_anything_is_valued(run: Run) -> None:
    """Pitfall 23."""
    with pytest.raises(LimitError, match="paths: wanted at most 30 to enumerate, got 38") as error:
        run.paths(limit=30)
    assert "max order 1 has 20" in str(error.value)
    assert len(run.paths(limit=30, max_order=1, top=99)) == 20
    with pytest.raises(LimitError):
        run.model.paths(limit=30)
    deep = laws.random_model(seed=1, n_layers=12, n_heads=12, d_model=3, biases="none")
    assert deep.network.count() == 2 * 13**12
    with pytest.raises(LimitError, match="46,596,170,244,962"):
        deep.run([1]).paths()
    table = deep.run([1]).paths(max_order=1)
    assert not table.certified
    assert table.bound is None
    assert table.remainder_count == 2 * 13**12 - len(table)
    assert abs(table.gap) <= table.gap_bound


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
    assert table.bound == (values[top] if top < 38 else 0.0)
    assert table.certified


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
    look = run.target(1, centred=False).readout(model.weights, 0)
    for top in (0, 1, 5, 15, 16):
        found = top_paths(run.frozen, look, top)
        assert list(found.paths) == sorted(model.network.paths())[:top]
        assert found.bound == (1.0 if top < 16 else 0.0)


def test_norms_are_those_of_the_dense_matrices() -> None:
    model = laws.random_model(seed=1)
    found = rank_by_norm(model.weights, model.network, top=5)
    norms = {
        p: np.linalg.norm(path_matrix(model.weights, p).dense()) for p in model.network.paths()
    }
    best = sorted(norms, key=lambda path: -norms[path])
    assert list(found.paths) == best[:5]
    assert found.norms == pytest.approx([norms[path] for path in best[:5]])
    assert found.bound == pytest.approx(norms[best[5]])
    assert found.energy == pytest.approx(sum(norm**2 for norm in norms.values()))


@pytest.mark.parametrize("scale", [1e-60, 1e-12, 1e20])
def test_norms_whose_squares_are_no_floats(scale: float) -> None:
    model = laws.random_model(seed=1, scale=scale)
    laws.check_norm_ranking(model).require()
    assert all(row.norm > 0 for row in model.paths(top=20, max_order=1))


def test_source_of_biases() -> None:
    """Only what exists is added: b_O alone, b_V alone, both."""
    model = laws.random_model(seed=1)
    attn, patterns = model.weights.blocks[0].attn, model.run([1, 2]).patterns[0]
    assert attn.b_V is not None
    whole = sum(attn.b_V[head] @ attn.W_O[head] for head in range(3)) + attn.b_O
    assert bias_source(attn, patterns) == pytest.approx(np.array([whole, whole]))
    assert bias_source(attn, 0 * patterns) == pytest.approx(np.array([attn.b_O, attn.b_O]))


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
