"""Overlaps of subspaces and deletion, against dense linear algebra."""

import numpy as np
import pytest

import pathexpand
from pathexpand.circuits.overlap import deletions, deletions_in_weights, overlap
from pathexpand.circuits.wiring import head_weights, read_matrix, virtual_weight, write_matrix
from pathexpand.errors import ModelError, PathExpandError
from pathexpand.model.checkpoint import Checkpoint, checkpoint_from_state_dict
from tests.api.models import SIZES, small, tensors
from tests.circuits.test_wiring import family


def attention_only(**given: np.ndarray) -> Checkpoint:
    """Make two attention layers without norms, some of their tensors given."""
    plain = {
        name: value
        for name, value in tensors(3).items()
        if "ln" not in name and "mlp" not in name and "attn.b_" not in name
    }
    config = SIZES | {"n_ctx": 9, "attn_only": True}
    return checkpoint_from_state_dict(plain | given, config)


def projector(columns: np.ndarray) -> np.ndarray:
    return columns @ np.linalg.pinv(columns)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [("L0H1", "L1H2.k"), ("L0M", "L1H0.v"), ("embed", "L0H0.q"), ("L0H0", "L1M"), ("L0N4", "L1N2")],
)
def test_captured_norm_and_angles_are_those_of_projectors(writer: str, reader: str) -> None:
    checkpoint = small().checkpoint
    found = overlap(checkpoint, writer, reader)
    write = write_matrix(checkpoint, writer)
    if "H" in writer:  # the head's own circuit, however it is split
        layer = head_weights(checkpoint, 0)
        write = layer.W_V[int(writer[-1])] @ write
    read = projector(read_matrix(checkpoint, reader))
    assert found.captured == pytest.approx(np.linalg.norm(write @ read) / np.linalg.norm(write))
    cosines = np.linalg.svd(projector(write.T) @ read, compute_uv=False)
    np.testing.assert_allclose(found.cosines, cosines[: len(found.cosines)], atol=1e-9)
    rank = np.linalg.matrix_rank(read)
    assert found.chance == pytest.approx(np.sqrt(rank / 7))
    dense = virtual_weight(checkpoint, writer, reader).dense()
    np.testing.assert_allclose(found.weight.dense(), dense, atol=1e-12)


def test_known_overlaps() -> None:
    inside, outside = np.zeros((3, 5, 7)), np.zeros((3, 5, 7))
    inside[:, 0, 2] = 4.0  # writes along axis 2
    outside[:, 0, 3] = 4.0
    reads = np.zeros((3, 7, 5))
    reads[:, 2, 1] = 0.1  # reads axis 2
    for write, captured in ((inside, 1.0), (outside, 0.0)):
        checkpoint = attention_only(
            **{"blocks.0.attn.W_O": write, "blocks.1.attn.W_K": reads},
        )
        found = overlap(checkpoint, "L0H1", "L1H2.k")
        assert found.captured == pytest.approx(captured, abs=1e-12)
        assert found.cosines.tolist() == pytest.approx([captured], abs=1e-12)
        assert found.chance == pytest.approx(np.sqrt(1 / 7))


def test_a_component_that_writes_nothing_has_no_captured_norm() -> None:
    checkpoint = attention_only(**{"blocks.0.attn.W_O": np.zeros((3, 5, 7))})
    found = overlap(checkpoint, "L0H1", "L1H2.k")
    assert found.captured is None and not len(found.cosines)
    assert len(found.table()) == 5


def test_deletion_in_weights_is_the_dense_cosine() -> None:
    checkpoint = small().checkpoint
    one, two = head_weights(checkpoint, 0), head_weights(checkpoint, 1)
    found = {(each.earlier, each.later): each for each in deletions_in_weights(checkpoint).found}
    assert len(found) == 4 * 3  # three heads and an MLP, three later heads
    for label, write in (
        ("L0H2", one.W_V[2] @ one.W_O[2]),
        ("L0M", write_matrix(checkpoint, "L0M")),
    ):
        for head in range(3):
            answer = write @ two.W_V[head] @ two.W_O[head]
            inner = (answer * write).sum()
            each = found[label, f"L1H{head}"]
            assert each.cosine == pytest.approx(
                inner / np.linalg.norm(answer) / np.linalg.norm(write)
            )
            assert each.share == pytest.approx(inner / np.linalg.norm(write) ** 2)


def deleting() -> Checkpoint:
    """Make a model whose L1H1 takes away all that L0H2 writes: OV2 = −P on its row space."""
    made = tensors(3)
    write = made["blocks.0.attn.W_O"][2]  # (5, 7)
    basis = np.linalg.qr(write.T)[0]  # (7, 5)
    W_V, W_O = made["blocks.1.attn.W_V"].copy(), made["blocks.1.attn.W_O"].copy()
    W_V[1], W_O[1] = basis, -basis.T
    W_Q = np.zeros((3, 7, 5))
    layers = {f"blocks.{layer}.attn.W_Q": W_Q for layer in range(2)}  # attends to all alike
    return attention_only(**{"blocks.1.attn.W_V": W_V, "blocks.1.attn.W_O": W_O}, **layers)


def test_a_head_that_deletes_comes_first() -> None:
    first = deletions_in_weights(deleting()).found[0]
    assert (first.earlier, first.later) == ("L0H2", "L1H1")
    assert first.cosine == pytest.approx(-1) and first.share == pytest.approx(-1)


def test_deletion_on_a_prompt_is_the_dense_answer() -> None:
    run = small().run([3, 1, 4, 1, 5])
    found = {(each.earlier, each.later): each for each in deletions(run.frozen, position=3).found}
    frozen = run.frozen
    first = [stage for stage in frozen.stages if stage.components]
    (one,), (two,) = first[0].groups, first[1].groups
    stream = frozen.streams[0]
    out = one.patterns[1] @ stream @ one.W_V[1] @ one.W_O[1]
    answer = (two.patterns[2] @ out @ two.W_V[2] @ two.W_O[2])[3]
    each = found["L0H1", "L1H2"]
    inner = answer @ out[3]
    assert each.share == pytest.approx(inner / (out[3] @ out[3]))
    assert each.cosine == pytest.approx(inner / np.linalg.norm(answer) / np.linalg.norm(out[3]))
    assert {earlier for earlier, _ in found} == {"L0H0", "L0H1", "L0H2", "L0M"}
    assert {later for _, later in found} == {"L1H0", "L1H1", "L1H2"}


def test_on_a_prompt_a_head_deletes_as_far_as_it_attends() -> None:
    run = pathexpand.api.Model(deleting()).run([3, 1])
    at_start = deletions(run.frozen, position=0).found[0]  # sees itself alone: takes all away
    assert (at_start.earlier, at_start.later) == ("L0H2", "L1H1")
    assert at_start.cosine == pytest.approx(-1) and at_start.share == pytest.approx(-1)
    later = {(e.earlier, e.later): e for e in deletions(run.frozen).found}["L0H2", "L1H1"]
    assert later.share > -0.999 and later.cosine > -0.999


def test_a_stream_that_passes_a_norm() -> None:
    with pytest.raises(ModelError, match="passes a norm"):
        deletions_in_weights(family("opt-post-norm"))
    run = pathexpand.api.Model(family("opt-post-norm")).run([3, 1, 4])
    frozen = run.frozen
    # with the norm's scale frozen, it is still exact: what L0H1 wrote, carried to layer 1
    (group,) = frozen.stages[0].groups
    out = group.write(frozen.streams[0], 1)
    for stage in frozen.stages[1:]:
        if any("L1H" in str(each) for each in stage.components):
            break
        out = out if stage.carry is None else stage.carry.push(out)
    (two,) = stage.groups
    answer = (two.patterns[2] @ out @ two.W_V[2] @ two.W_O[2])[2]
    found = {(e.earlier, e.later): e for e in deletions(frozen).found}["L0H1", "L1H2"]
    assert found.share == pytest.approx(answer @ out[2] / (out[2] @ out[2]))


def test_positions_that_there_are_not() -> None:
    run = small().run([3, 1, 4])
    for position in (3, -4, True, 0.5):
        with pytest.raises(PathExpandError, match="position"):
            deletions(run.frozen, position=position)  # type: ignore[arg-type]


def test_tables() -> None:
    checkpoint = small().checkpoint
    table = deletions_in_weights(checkpoint).table(5)
    assert len(table) == 5
    assert list(table.column("cosine")) == sorted(table.column("cosine"))
    text = overlap(checkpoint, "L0H1", "L1H2.k").table().to_text(80)
    assert "captured norm" in text and "by chance" in text
