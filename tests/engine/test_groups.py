"""Groups of components and norms: whatever way they are asked, the same linear map answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pathexpand.frozen import (
    Carry,
    FrozenSource,
    FrozenStage,
    FrozenSum,
    Group,
    HeadGroup,
    MlpGroup,
    NeuronGroup,
)
from pathexpand.model.parts import Norm
from pathexpand.symbolic import Head, Mlp, Neuron

Array = np.ndarray[Any, Any]
POSITIONS, STREAM = 5, 7


def heads(rng: np.random.Generator) -> HeadGroup:
    components = tuple(Head(0, n) for n in range(3))
    patterns = rng.normal(size=(3, POSITIONS, POSITIONS))
    return HeadGroup(
        components, patterns, rng.normal(size=(3, STREAM, 2)), rng.normal(size=(3, 2, STREAM))
    )


def neurons(rng: np.random.Generator) -> NeuronGroup:
    components = tuple(Neuron(0, n) for n in range(3))
    gates = rng.normal(size=(POSITIONS, 3)) * (rng.random(size=(POSITIONS, 3)) > 0.2)
    return NeuronGroup(
        components, gates, rng.normal(size=(STREAM, 3)), rng.normal(size=(3, STREAM))
    )


def mlp(rng: np.random.Generator) -> MlpGroup:
    gates = rng.normal(size=(POSITIONS, 11))
    return MlpGroup((Mlp(0),), gates, rng.normal(size=(STREAM, 11)), rng.normal(size=(11, STREAM)))


KINDS = (heads, neurons, mlp)


@pytest.fixture(params=KINDS, ids=lambda make: make.__name__)
def group(request: pytest.FixtureRequest) -> Group:
    return request.param(np.random.default_rng(1))  # type: ignore[no-any-return]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(2)


def matrix(group: Group, index: int) -> Array:
    """Give one component as a matrix over positions and dimensions, straight from its parts."""
    if isinstance(group, HeadGroup):
        return np.kron(group.patterns[index], (group.W_V[index] @ group.W_O[index]).T)
    if isinstance(group, NeuronGroup):
        return np.kron(
            np.diag(group.gates[:, index]), np.outer(group.W_out[index], group.W_in[:, index])
        )
    assert isinstance(group, MlpGroup)
    out = np.zeros((POSITIONS * STREAM, POSITIONS * STREAM))
    for place, gates in enumerate(group.gates):
        at = slice(place * STREAM, (place + 1) * STREAM)
        out[at, at] = ((group.W_in * gates) @ group.W_out).T
    return out


def matrices(group: Group) -> list[Array]:
    return [matrix(group, index) for index in range(len(group.components))]


def test_components_write_what_their_matrices_say(group: Group, rng: np.random.Generator) -> None:
    stream = rng.normal(size=(POSITIONS, STREAM))
    written = [(each @ stream.ravel()).reshape(stream.shape) for each in matrices(group)]
    for index, each in enumerate(written):
        assert group.write(stream, index) == pytest.approx(each)
    assert group.push(stream) == pytest.approx(sum(written))
    reads = rng.normal(size=stream.shape)
    assert group.worth(reads, stream) == pytest.approx([(reads * each).sum() for each in written])


@pytest.mark.parametrize("copies", [(), (2,), (2, 3)])
def test_functionals_are_pulled_back_by_the_transpose(
    copies: tuple[int, ...], group: Group, rng: np.random.Generator
) -> None:
    reads = rng.normal(size=(*copies, POSITIONS, STREAM))
    flat = reads.reshape(*copies, -1)
    each = [(flat @ one).reshape(reads.shape) for one in matrices(group)]
    assert group.pull(reads) == pytest.approx(sum(each))
    for which in ((), (0,), range(len(each)), tuple(range(len(each)))[::2]):
        some = sum((each[n] for n in which), np.zeros_like(reads))
        assert group.pull(reads, which) == pytest.approx(some)


def test_a_suffix_moves_as_its_functional_is_pulled(group: Group, rng: np.random.Generator) -> None:
    rows, vectors = rng.normal(size=(2, POSITIONS)), rng.normal(size=(2, STREAM))
    rows[:, 3] = 0
    for index in range(len(group.components)):
        moved = group.move(rows, vectors, index)
        assert moved[0].T @ moved[1] == pytest.approx(group.pull(rows.T @ vectors, [index]))


def test_pieces_are_pulled_through_what_is_allowed(group: Group, rng: np.random.Generator) -> None:
    rows, vectors = rng.normal(size=(4, POSITIONS)), rng.normal(size=(4, STREAM))
    allowed = rng.random(size=(len(group.components), 4)) > 0.5
    wanted = sum(
        group.pull(np.outer(rows[piece], vectors[piece]), [index])
        for index, piece in zip(*np.nonzero(allowed), strict=True)
    )
    assert group.pull_pieces(rows, vectors, allowed) == pytest.approx(wanted)
    nothing = np.zeros_like(allowed)
    assert not group.pull_pieces(rows, vectors, nothing).any()


def test_some_components_are_a_group_of_their_own(group: Group, rng: np.random.Generator) -> None:
    stream = rng.normal(size=(POSITIONS, STREAM))
    for index, component in enumerate(group.components):
        alone = group.only(index)
        assert alone.components == (component,)
        assert alone.push(stream) == pytest.approx(group.write(stream, index))


def test_sizes_bound_every_product(group: Group, rng: np.random.Generator) -> None:
    reads = rng.normal(size=(POSITIONS, STREAM))
    rows, vectors = rng.normal(size=(2, POSITIONS)), rng.normal(size=(2, STREAM))
    allowed = np.ones((len(group.components), 2), dtype=bool)
    most, floor = abs(group), 1e-3
    assert np.all(abs(group.pull(reads)) <= most.pull(abs(reads)))
    assert np.all(most.pull(abs(reads)) < most.pull(abs(reads), floor=floor))
    pieces = most.pull_pieces(abs(rows), abs(vectors), allowed)
    assert np.all(abs(group.pull_pieces(rows, vectors, allowed)) <= pieces)
    assert np.all(pieces < most.pull_pieces(abs(rows), abs(vectors), allowed, floor=floor))


# --- norms ----------------------------------------------------------------------------------------


def carries() -> Iterator[Carry]:
    rng = np.random.default_rng(3)
    for kind in ("layer", "rms"):
        for weight in (rng.normal(size=STREAM), None):
            yield Carry(Norm(kind, weight, None, 1e-5), rng.uniform(0.5, 2, size=POSITIONS))  # type: ignore[arg-type]


@pytest.fixture(
    params=carries(), ids=lambda carry: f"{carry.norm.kind} {carry.norm.weight is not None}"
)
def carry(request: pytest.FixtureRequest) -> Carry:
    return request.param  # type: ignore[no-any-return]


def of_norm(carry: Carry) -> Array:
    """Give the norm's matrix without its scale: (d_model, d_model), applied to rows."""
    mean = np.full((STREAM, STREAM), 1 / STREAM) if carry.norm.kind == "layer" else 0
    weight = np.ones(STREAM) if carry.norm.weight is None else carry.norm.weight
    return (np.eye(STREAM) - mean) @ np.diag(weight)  # type: ignore[no-any-return]


def test_a_norm_passes_streams_functionals_and_suffixes(
    carry: Carry, rng: np.random.Generator
) -> None:
    stream, linear = rng.normal(size=(POSITIONS, STREAM)), of_norm(carry)
    passed = np.diag(carry.scale) @ stream @ linear
    assert carry.push(stream) == pytest.approx(passed)
    reads = rng.normal(size=(2, POSITIONS, STREAM))
    pulled = np.diag(carry.scale) @ reads @ linear.T
    assert carry.pull(reads) == pytest.approx(pulled)
    assert np.all(abs(pulled) <= carry.pull_sizes(abs(reads)) * (1 + 1e-12))
    rows, vectors = rng.normal(size=(3, POSITIONS)), rng.normal(size=(3, STREAM))
    moved = carry.move(rows, vectors)
    assert moved[0].T @ moved[1] == pytest.approx(carry.pull(rows.T @ vectors))
    kernels = rng.normal(size=(POSITIONS, 4, STREAM))
    assert carry.push_rows(kernels) == pytest.approx(
        carry.scale[:, None, None] * (kernels @ linear)
    )
    assert np.linalg.norm(linear, 2) <= carry.stretch


# --- fewer positions ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", KINDS)
def test_what_is_cut_is_the_same_on_the_positions_left(make: Any, rng: np.random.Generator) -> None:
    group, size = make(rng), 3
    if isinstance(group, HeadGroup):
        group = HeadGroup(group.components, np.tril(group.patterns), group.W_V, group.W_O)
    carry = next(carries())
    stage, stream = FrozenStage((group,), carry), rng.normal(size=(POSITIONS, STREAM))
    near = stage.until(size)
    assert near.groups[0].push(stream[:size]) == pytest.approx(group.push(stream)[:size])
    assert near.carry is not None
    assert near.carry.push(stream[:size]) == pytest.approx(carry.push(stream)[:size])


def test_a_sum_is_cut_only_where_no_position_left_looks_ahead(rng: np.random.Generator) -> None:
    made = heads(rng)
    group = HeadGroup(made.components, np.tril(made.patterns), made.W_V, made.W_O)
    source = FrozenSource("embed", 0, rng.normal(size=(POSITIONS, STREAM)))
    streams = (source.values, source.values)
    frozen = FrozenSum(
        (source,),
        (FrozenStage((neurons(rng),)), FrozenStage((group,))),
        streams,
        np.ones(POSITIONS, dtype=bool),
        None,
    )
    assert frozen.until(2).positions == 3
    assert frozen.until(2).streams[1].shape == (3, STREAM)
    group.patterns[1, 2, 4] = 1e-300
    assert frozen.until(2) is frozen
    assert frozen.until(1).positions == 2
    assert frozen.first(1).depth == 1
    assert len(frozen.first(1).streams) == 2
