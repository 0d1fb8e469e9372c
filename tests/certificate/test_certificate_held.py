"""The ground of every check is built anew, and is the same as what the search froze."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathexpand.certificate
from pathexpand.api import Run
from pathexpand.certificate.held import Held, fixed_digest, hold
from pathexpand.certificate.total import functionals
from pathexpand.errors import CompositionError
from pathexpand.laws.design import Design, random_transformer
from pathexpand.laws.strategies import designs

PACKAGE = Path(pathexpand.certificate.__file__).parent


def held_of(design: Design, seed: int) -> tuple[Run, Held]:
    run = random_transformer(design, seed=seed).run(
        [n % design.d_vocab for n in range(design.n_ctx)]
    )
    return run, hold(run, run.target(0), len(run.tokens) - 1, same=True)


def near(one: Any, other: Any) -> bool:
    size = max(abs(np.asarray(other)).max(initial=0.0), 1e-300)
    return bool(np.max(abs(one - other), initial=0.0) <= 1e-9 * size)


@settings(max_examples=100)
@given(designs(), st.integers(0, 2**32 - 1))
def test_every_component_writes_what_the_frozen_one_does(design: Design, seed: int) -> None:
    run, held = held_of(design, seed)
    stream = np.random.default_rng(seed).normal(size=held.sources[0].values.shape)
    for ours, theirs in zip(held.stages, run.frozen.stages, strict=True):
        groups = {each: (g, n) for g in theirs.groups for n, each in enumerate(g.components)}
        for part in ours.parts:
            written = [part.push(stream, [n]) for n in range(len(part.components))]
            for component, own in zip(part.components, written, strict=True):
                group, n = groups.pop(component)
                assert near(own, group.write(stream, n))
            assert near(part.push(stream), sum(written))
        assert not groups
        assert (ours.norm is None) == (theirs.carry is None)
        if ours.norm is not None and theirs.carry is not None:
            assert near(ours.norm.push(stream), theirs.carry.push(stream))


@settings(max_examples=100)
@given(designs(), st.integers(0, 2**32 - 1))
def test_every_source_is_the_frozen_one(design: Design, seed: int) -> None:
    run, held = held_of(design, seed)
    theirs = {source.label: source for source in run.frozen.sources}
    assert {source.label for source in held.sources} == set(theirs)
    for source in held.sources:
        assert source.boundary == theirs[source.label].boundary
        # Where biases cancel, what is left is no more than their rounding.
        off = 1e-9 * (abs(source.values) + 1e-3 * source.size.max())
        assert (abs(source.values - theirs[source.label].values) <= off).all()
        assert (abs(source.values) <= source.size * (1 + 1e-9)).all()


@settings(max_examples=60)
@given(designs(), st.integers(0, 2**32 - 1))
def test_push_and_pull_are_adjoint(design: Design, seed: int) -> None:
    _, held = held_of(design, seed)
    rng = np.random.default_rng(seed)
    shape = held.sources[0].values.shape
    stream, reads = rng.normal(size=shape), rng.normal(size=shape)
    for stage in held.stages:
        for part in stage.parts:
            which = sorted(rng.choice(len(part.components), size=1).tolist())
            for some in (None, which):
                one = (part.push(stream, some) * reads).sum()
                other = (part.pull(reads, some) * stream).sum()
                size = (abs(part.push(stream, some)) * abs(reads)).sum()
                assert abs(one - other) <= 1e-6 * size + 1e-9


def test_functionals_read_the_stream_at_every_boundary() -> None:
    """What they read of what is born behind them adds up to the readout of the last stream."""
    for mlp in ("source", "frozen", "neurons"):
        run, held = held_of(Design(mlp=mlp), 7)
        reads = functionals(held)
        total = held.constant + sum(
            float((reads[source.boundary] * source.values).sum()) for source in held.sources
        )
        assert total == pytest.approx(run.dense_value(run.target(0), held.position), rel=1e-12)


def test_stages_of_another_network_are_refused() -> None:
    run, held = held_of(Design(mlp="neurons"), 3)
    run.model.network = run.model.with_mlp("frozen").network
    with pytest.raises(CompositionError, match="the network's stages and sources"):
        hold(run, run.target(0), held.position, same=True)


def test_the_digest_covers_all_that_is_held_fixed() -> None:
    design = Design(
        mlp="neurons", embed_norms=1, transform=True,
        norms=("ln1", "ln2", "ln1_post", "ln2_post", "ln1_after", "ln2_after"),
    )  # fmt: skip
    run, _ = held_of(design, 3)
    layer, dense = run.dense.layers[0], run.dense
    held = [layer.pattern, layer.gates, dense.final_scale, dense.transform_gates]
    held += [dense.transform_scale, *dense.embed_scales]
    held += [
        getattr(layer, f"scale{which}{at}") for which in "12" for at in ("", "_post", "_after")
    ]
    first = fixed_digest(run)
    for array in held:
        assert array is not None
        array.setflags(write=True)
        array.flat[0] *= 1 + 1e-15
        second = fixed_digest(run)
        assert second != first
        first = second


def test_of_mlps_as_sources_the_digest_covers_what_they_wrote() -> None:
    run, _ = held_of(Design(mlp="source"), 3)
    first = fixed_digest(run)
    layers = list(run.dense.layers)
    assert layers[0].mlp_out is not None
    layers[0] = replace(layers[0], mlp_out=layers[0].mlp_out * (1 + 1e-15))
    run.dense = replace(run.dense, layers=tuple(layers))
    assert fixed_digest(run) != first


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*.py")), ids=lambda file: file.name)
def test_of_the_engine_only_the_measure_of_rounding_is_used(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pathexpand.engine"):
            assert node.module == "pathexpand.engine.rounding"
            assert {each.name for each in node.names} <= {"gamma", "TINY"}
