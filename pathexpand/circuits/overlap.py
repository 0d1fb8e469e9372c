"""Where what one component writes meets what another reads, and where it is taken away again.

Both are about subspaces of the stream ("A Mathematical Framework for Transformer Circuits",
Elhage et al. 2021, on virtual weights and on deletion). A head's factors can be split in many ways
that are the same head (V → VR, O → R⁻¹O), so what it writes is taken as W_V W_O with W_V's columns
made orthonormal: no number here depends on the split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.circuit import norm_claims
from pathexpand.circuits.largest import check_count
from pathexpand.circuits.wiring import (
    check_crossing,
    check_order,
    head_weights,
    read_matrix,
    virtual_weight,
    write_matrix,
)
from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenSum, HeadGroup
from pathexpand.lowrank import Factored
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.progress import watched
from pathexpand.symbolic import Head, Mlp
from pathexpand.symbolic.component import parse_component
from pathexpand.table.abstract import Tabled
from pathexpand.table.analysis_table import AnalysisTable, Field, Summary

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Overlap(Tabled):
    """How the subspace a component writes lies to the one another reads.

    `cosines` (min(ranks),) are those of the principal angles, largest first. `captured` is the part
    of what is written that is read: ‖W P‖ / ‖W‖, P the projector on the subspace that is read;
    `chance` is what it would be for a subspace in a random place, √(rank read / d_model), None for
    a component that writes nothing. `weight` is the virtual weight (n written, n read).
    """

    checkpoint: Checkpoint
    writer: str
    reader: str
    cosines: Floats
    captured: float | None
    chance: float
    weight: Factored

    @property
    def angles(self) -> Floats:
        """The principal angles in radians, smallest first."""
        return np.asarray(np.arccos(np.clip(self.cosines, -1.0, 1.0)))

    def table(self, top: int = 20) -> AnalysisTable:
        """Give the principal angles and the virtual weight's singular values as a table.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> found = overlap(read_checkpoint("two-layer"), "L0H3", "L1H0.k")
        >>> len(found.table(top=5))
        5
        """
        check_count("top", top)
        singular = self.weight.singular_values()
        rows = []
        for n in range(min(top, max(len(self.cosines), len(singular)))):
            cosine = float(self.cosines[n]) if n < len(self.cosines) else None
            degrees = None if cosine is None else float(np.degrees(self.angles[n]))
            value = float(singular[n]) if n < len(singular) else None
            rows.append((n + 1, cosine, degrees, value))
        return AnalysisTable(
            "virtual weight",
            (
                ("model", self.checkpoint.config.model_name),
                ("virtual weight", f"{self.writer} to {self.reader}"),
                ("norm", f"{self.weight.norm():.6g} (Frobenius, of the virtual weight)"),
            ),
            (
                Field("rank", "count"),
                Field("cosine", "number"),
                Field("angle in degrees", "number", leave=1),
                Field("singular value", "number"),
            ),
            tuple(rows),
            (
                Summary("captured norm", self.captured, "part of what is written that is read"),
                Summary("by chance", self.chance, "of a subspace in a random place"),
            ),
            (
                "Cosines are of principal angles between what is written and what is read. Norm "
                "and singular values depend on how a head's matrices are split; cosines and the "
                "captured norm do not.",
                *norm_claims(self.checkpoint),
            ),
        )


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a later head writes in answer to what an earlier component wrote.

    `cosine` is between the answer and what is answered: near −1 the later head takes it away.
    `share` is the answer's part along it: −1 takes all of it away, +1 doubles it.
    """

    earlier: str
    later: str
    cosine: float
    share: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Deletions(Tabled):
    """Pairs of an earlier component and a later head, those that delete most first.

    `found` holds every pair; `on_prompt` says whether attention patterns had a part in them.
    """

    found: tuple[Deletion, ...]
    about: tuple[tuple[str, str], ...]
    claims: tuple[str, ...]

    def table(self, top: int = 20) -> AnalysisTable:
        """Give the pairs that delete most.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> deletions_in_weights(read_checkpoint("two-layer")).table(3).column("cosine")[0] < 0.5
        True
        """
        check_count("top", top)
        rows = [(each.earlier, each.later, each.cosine, each.share) for each in self.found[:top]]
        return AnalysisTable(
            "deletion",
            (*self.about, ("pairs", f"{len(self.found):,}")),
            (
                Field("earlier", "text"),
                Field("later", "text"),
                Field("cosine", "number"),
                Field("share", "number"),
            ),
            tuple(rows),
            (),
            self.claims,
        )


@watched("comparing subspaces")
def overlap(checkpoint: Checkpoint, writer: str, reader: str) -> Overlap:
    """Compare the subspace one component writes with the one another reads.

    Names are those of `write_matrix` and `read_matrix`. Principal angles are those of orthonormal
    bases of both (Björck and Golub, 1973). Raises `PathExpandError` unless the reader reads behind
    the writer.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> found = overlap(read_checkpoint("two-layer"), "L0H3", "L1H0.k")
    >>> bool(0 < found.captured < 1), found.cosines.shape
    (True, (64,))
    """
    check_order(checkpoint, writer, reader)
    write = _written(checkpoint, writer)  # (n, d_model)
    read_basis = _basis(read_matrix(checkpoint, reader))  # (d_model, rank)
    write_basis = _basis(write.T)
    cosines = np.linalg.svd(write_basis.T @ read_basis, compute_uv=False)
    whole = float(np.linalg.norm(write))
    return Overlap(
        checkpoint,
        writer,
        reader,
        np.minimum(cosines, 1.0),
        min(float(np.linalg.norm(write @ read_basis)) / whole, 1.0) if whole else None,
        float(np.sqrt(read_basis.shape[1] / read_basis.shape[0])),
        virtual_weight(checkpoint, writer, reader),
    )


@watched("looking for deletions")
def deletions_in_weights(checkpoint: Checkpoint) -> Deletions:
    """Rank all pairs by how far the later head writes the negative of what the earlier one wrote.

    With W what the earlier component writes and OV the later head's circuit, the cosine is
    ⟨W OV, W⟩ / (‖W OV‖ ‖W‖) and the share ⟨W OV, W⟩ / ‖W‖², both by the Frobenius product: what
    the later head would do to it at full attention. Earlier components are heads and MLPs of lower
    layers. Raises `ModelError` where the stream itself passes a norm on the way.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> len(deletions_in_weights(read_checkpoint("two-layer")).found)
    16
    """
    found = list(_pairs_in_weights(checkpoint))
    return Deletions(
        _sorted(found),
        (("model", checkpoint.config.model_name),),
        (
            "The later head's answer, at full attention, to what the earlier component writes: "
            "cosine −1 is its exact negative, share −1 takes all of it away.",
            *norm_claims(checkpoint),
        ),
    )


def deletions(frozen: FrozenSum, *, position: int = -1) -> Deletions:
    """Rank all pairs by how much of an earlier component's output a later head takes away.

    At one position of a run, patterns and norms as they were: the later head's answer to exactly
    that output, A out W_V W_O, is compared with the output itself. Earlier components are heads and
    MLPs that wrote something there. Raises `PathExpandError` for a position that there is not.

    >>> import pathexpand
    >>> run = pathexpand.load("two-layer").run([5, 7, 5])
    >>> len(deletions(run.frozen).found)
    16
    """
    count = frozen.positions
    whole = isinstance(position, int | np.integer) and not isinstance(position, bool)
    if not whole or not -count <= position < count:
        raise PathExpandError(
            "position", wanted=f"one from {-count} to {count - 1}", got=f"{position}"
        )
    at = int(position) % count
    found: list[Deletion] = []
    for label, start, output in _outputs(frozen):
        for stage in frozen.stages[start:]:
            for group in stage.groups:
                if isinstance(group, HeadGroup):
                    found += _answers(label, output, group, at)
            output = output if stage.carry is None else stage.carry.push(output)
    return Deletions(
        _sorted(found),
        (("position", f"{at}"),),
        (
            "The later head's answer, with its pattern on this prompt, to exactly what the "
            "earlier component wrote: cosine −1 is its exact negative, share −1 takes all of it "
            "away at this position.",
        ),
    )


# --- weights ---------------------------------------------------------------------------------


def _pairs_in_weights(checkpoint: Checkpoint) -> Iterator[Deletion]:
    layers = checkpoint.config.n_layers
    check_crossing(checkpoint, 0, 4 * layers)
    for layer in range(1, layers):
        weights = head_weights(checkpoint, layer)
        thin = [_triangle(each.T).T for each in weights.W_O]  # (d_head, rank)
        for label, write in _writers(checkpoint, layer):
            whole = float(np.linalg.norm(write))
            for head, W_V in enumerate(weights.W_V):
                seen = write @ W_V  # (n, d_model) @ (d_model, d_head) -> (n, d_head)
                inner = float(np.sum(seen * (write @ weights.W_O[head].T)))
                answer = float(np.linalg.norm(seen @ thin[head]))
                yield _deletion(label, Head(layer, head).label, inner, answer, whole)


def _writers(checkpoint: Checkpoint, layers: int) -> Iterator[tuple[str, Array]]:
    """Yield all that lower layers write: labels and matrices (n, d_model)."""
    for layer in range(layers):
        weights = head_weights(checkpoint, layer)
        for head in range(checkpoint.config.n_heads):
            yield Head(layer, head).label, _split_free(weights.W_V[head], weights.W_O[head])
        if checkpoint.weights.outline(layer).mlp is not None:
            label = Mlp(layer).label
            yield label, write_matrix(checkpoint, label)


def _written(checkpoint: Checkpoint, writer: str) -> Array:
    found = None if writer in ("embed", "pos") else parse_component(writer)
    if isinstance(found, Head):
        weights = head_weights(checkpoint, found.layer)
        return _split_free(weights.W_V[found.index], weights.W_O[found.index])
    return write_matrix(checkpoint, writer)


def _split_free(W_V: Array, W_O: Array) -> Array:
    """Give W_O as it is where W_V has orthonormal columns: (rank, d_model)."""
    return np.asarray(_triangle(W_V) @ W_O)


def _triangle(columns: Array) -> Array:
    """Give R of columns = Q R, Q orthonormal: (m, n) to (min(m, n), n)."""
    return np.asarray(np.linalg.qr(columns, mode="r"))


def _basis(columns: Array) -> Array:
    """Give an orthonormal basis of what columns span: (d_model, n) to (d_model, rank)."""
    if columns.shape[1] > columns.shape[0]:
        columns = _triangle(columns.T).T  # (d_model, d_model), the same span
    U, S, _ = np.linalg.svd(columns, full_matrices=False)
    floor = max(columns.shape) * np.finfo(np.float64).eps * float(S.max(initial=0.0))
    return np.asarray(U[:, floor < S])


# --- a prompt --------------------------------------------------------------------------------


def _outputs(frozen: FrozenSum) -> Iterator[tuple[str, int, Array]]:
    """Yield what components wrote (position, d_model), and before which stage it is there."""
    for number, stage in enumerate(frozen.stages):
        for group in stage.groups:
            for index, component in enumerate(group.components):
                written = group.write(frozen.streams[number], index)
                yield component.label, number + 1, written
        for source in frozen.sources:
            if source.boundary == number + 1 and source.label.endswith("M"):
                yield source.label, number + 1, source.values


def _answers(label: str, output: Array, group: HeadGroup, at: int) -> Iterator[Deletion]:
    mixed = group.patterns[:, at] @ output  # (head, key) @ (key, d_model) -> (head, d_model)
    own = output[at]
    for head, row in zip(group.components, range(len(mixed)), strict=True):
        answer = (mixed[row] @ group.W_V[row]) @ group.W_O[row]  # (d_model,)
        size = float(np.linalg.norm(answer))
        yield _deletion(label, head.label, float(answer @ own), size, float(np.linalg.norm(own)))


def _deletion(earlier: str, later: str, inner: float, answer: float, whole: float) -> Deletion:
    none = not answer or not whole
    return Deletion(
        earlier,
        later,
        0.0 if none else max(-1.0, min(1.0, inner / answer / whole)),
        0.0 if none else inner / whole / whole,
    )


def _sorted(found: list[Deletion]) -> tuple[Deletion, ...]:
    return tuple(sorted(found, key=lambda each: each.cosine))
