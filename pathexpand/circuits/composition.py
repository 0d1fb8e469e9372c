"""Composition: how much of what an earlier head writes a later head's query, key or value reads.

"A Mathematical Framework for Transformer Circuits" (Elhage et al. 2021) scores it as the Frobenius
norm of the product over the product of the norms. In row vectors, OV = W_V W_O and QK = W_Q W_Kᵀ:

    Q: ‖OV¹ QK²‖ / ‖OV¹‖‖QK²‖    K: ‖OV¹ (QK²)ᵀ‖ / ‖OV¹‖‖QK²‖    V: ‖OV¹ OV²‖ / ‖OV¹‖‖OV²‖

Only the factors next to the stream meet: the outer ones enter by their triangular factors (QR), so
that a pair costs a (d_head, d_head) block. The order of a product inside a norm cannot be turned
around, ‖AB‖ ≠ ‖BA‖, as that of the eigenvalues can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.chance import Chance, spectrum_chance
from pathexpand.circuits.circuit import norm_claims
from pathexpand.circuits.wiring import (
    HeadWeights,
    check_order,
    head_weights,
    parse_head,
    turned,
)
from pathexpand.errors import PathExpandError
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.shown import shown
from pathexpand.progress import watched
from pathexpand.symbolic import Head
from pathexpand.table import AnalysisTable, Field, Summary
from pathexpand.table.abstract import Tabled

Array = npt.NDArray[Any]
Kind = Literal["Q", "K", "V"]
FORMULAS = {
    "Q": "‖OV¹ QK²‖ / (‖OV¹‖ ‖QK²‖)",
    "K": "‖OV¹ (QK²)ᵀ‖ / (‖OV¹‖ ‖QK²‖)",
    "V": "‖OV¹ OV²‖ / (‖OV¹‖ ‖OV²‖)",
}
_RANDOM = 16  # random writers and readers: 256 pairs


@dataclass(frozen=True, slots=True)
class PairScore:
    """One pair's composition score beside what chance gives for the two heads' spectra.

    `chance`, `sd`, `z` and `p` are None where nothing was sampled, `z` also where chance gives one
    value only.
    """

    earlier: Head
    later: Head
    kind: Kind
    score: float
    chance: float | None = None
    sd: float | None = None
    z: float | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Composition(Tabled):
    """The composition scores of one kind, of all pairs of heads.

    `matrix` (earlier head, later head) over `heads` in order of layer and index is NaN where there
    is no pair: a layer's heads do not read each other, nor later ones. `width` is d_model, or one
    less where readers take the mean off. `chance` compares each pair with its own spectra at
    random angles, `random` is the mean score of random Gaussian heads of the same shapes; None
    where nothing was sampled.
    """

    model: str
    kind: Kind
    heads: tuple[Head, ...]
    matrix: Array
    width: int
    offset: int | None = None
    chance: Chance | None = None
    random: float | None = None
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a matrix that is not one of these heads, or has a pair that there is not."""
        check_kind(self.kind)
        count = len(self.heads)
        if self.matrix.shape != (count, count):
            got = f"an array of shape {self.matrix.shape}"
            raise PathExpandError("composition", wanted=f"{count} × {count} scores", got=got)
        layers = np.array([head.layer for head in self.heads])
        if not np.array_equal(np.isfinite(self.matrix), layers[:, None] < layers):
            raise PathExpandError("composition", wanted="a score where the second layer is later")

    @property
    def analytic(self) -> float:
        """The root of the mean squared score at random angles: 1 / √width, whatever the spectra."""
        return float(1 / np.sqrt(self.width))

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the heads, as rows and columns have them."""
        return tuple(head.label for head in self.heads)

    @property
    def z(self) -> Array | None:
        """How many standard deviations each score lies above chance; NaN where chance is fixed."""
        if self.chance is None:
            return None
        sd = np.where(self.chance.sd > 1e-12, self.chance.sd, np.nan)
        return np.asarray((self.matrix - self.chance.mean) / sd)

    def pair(self, earlier: str | Head, later: str | Head) -> PairScore:
        """Give one pair's score; raises `PathExpandError` for a pair that there is not.

        >>> from pathexpand import load
        >>> found = composition(load("two-layer").checkpoint, "K", samples=100)
        >>> round(found.pair("L0H3", "L1H0").score, 2)
        0.14
        """
        one, other = self._place(earlier), self._place(later)
        check_pair(self.heads[one], self.heads[other])
        return self._pair(one, other)

    def ranked(self, top: int | None = None, *, by: str = "score") -> tuple[PairScore, ...]:
        """Give the pairs, largest "score" or "z" first; ties go by the heads' order."""
        if by not in ("score", "z"):
            raise PathExpandError("by", wanted='"score" or "z"', got=shown(by))
        if by == "z" and self.z is None:
            raise PathExpandError("z", wanted="at least one sample", got="none")
        values = self.matrix if by == "score" or self.z is None else self.z
        places = np.argwhere(np.isfinite(self.matrix))
        sizes = np.nan_to_num(values[tuple(places.T)], nan=-np.inf)
        order = np.argsort(-sizes, kind="stable")[: check_top(top)]
        return tuple(self._pair(int(one), int(other)) for one, other in places[order])

    def table(self, *, top: int | None = 10, by: str = "score") -> AnalysisTable:
        """List the largest pairs beside what chance gives.

        >>> from pathexpand import load
        >>> found = composition(load("two-layer").checkpoint, "K", samples=100)
        >>> found.table(top=2).column("earlier")
        ('L0H3', 'L0H2')
        """
        return composition_table([self], top=top, by=by)

    def _place(self, head: str | Head) -> int:
        given = head if isinstance(head, Head) else Head.parse(head)
        if given not in self.heads:
            raise PathExpandError(f"head {given}", wanted=f"one of {self.heads[-1]} or before")
        return self.heads.index(given)

    def _pair(self, one: int, other: int) -> PairScore:
        score = float(self.matrix[one, other])
        first, last = self.heads[one], self.heads[other]
        if self.chance is None or self.z is None:
            return PairScore(first, last, self.kind, score)
        z = float(self.z[one, other])
        mean, sd, p = (
            float(each[one, other]) for each in (self.chance.mean, self.chance.sd, self.chance.p)
        )
        return PairScore(first, last, self.kind, score, mean, sd, z if np.isfinite(z) else None, p)


@watched("scoring composition")
def composition(
    checkpoint: Checkpoint,
    kind: Kind,
    *,
    offset: int | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> Composition:
    """Score the composition of every head with every head of a later layer.

    `kind` is "Q", "K" or "V": what of the later head reads. With rotary positions, Q and K need an
    `offset` (query minus key). Where the readers' norm takes the mean off, none of a writer's mean
    is read, so it does not count in the writer's norm either. Each score is compared with `samples`
    of what chance gives for the two heads' own spectra (`spectrum_chance`); 0 leaves it out. Raises
    `PathExpandError`, also for a model of fewer than two layers, and `ModelError` where the stream
    itself passes a norm between two heads.

    >>> from pathexpand import load
    >>> found = composition(load("two-layer").checkpoint, "K", samples=100)
    >>> found.matrix.shape, round(found.analytic, 3)
    ((8, 8), 0.072)
    """
    check_kind(kind)
    _check_sampling(samples, seed)
    _check_offset(checkpoint, kind, offset)
    config = checkpoint.config
    if config.n_layers < 2:
        raise PathExpandError(
            "composition", wanted="a model of at least two layers", got=f"{config.n_layers}"
        )
    check_order(checkpoint, "L0H0", f"L{config.n_layers - 1}H0.{kind.lower()}")
    centred = _readers_centre(checkpoint)
    width = config.d_model - centred
    sampled = bool(samples and width)
    found = _scores(checkpoint, kind, offset, centred=centred, spectra=sampled)
    scores, chance, random = found.matrix, None, None
    if found.writers is not None and found.readers is not None:
        chance = spectrum_chance(
            scores, found.writers, found.readers, size=width, samples=samples, seed=seed
        )
        random = random_score(config.d_model, config.d_head, centred=centred, seed=seed)
    return Composition(
        model=config.model_name,
        kind=kind,
        heads=tuple(
            Head(layer, head) for layer in range(config.n_layers) for head in range(config.n_heads)
        ),
        matrix=scores,
        width=max(width, 1),
        offset=offset,
        chance=chance,
        random=random,
        claims=_claims(checkpoint, kind, chance, centred=centred),
    )


@watched("scoring composition")
def composition_of(
    checkpoint: Checkpoint,
    earlier: str | Head,
    later: str | Head,
    kind: Kind,
    *,
    offset: int | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> PairScore:
    """Score the composition of two heads; arguments are those of `composition`.

    Raises `PathExpandError` for heads of one layer, or backwards: they do not compose.

    >>> from pathexpand import load
    >>> composition_of(load("two-layer").checkpoint, "L1H0", "L0H3", "K")
    Traceback (most recent call last):
    ...
    pathexpand.errors.PathExpandError: L1H0 to L0H3: wanted an earlier layer's head and a later
    one's, got layer 1 and layer 0
    """
    check_kind(kind)
    _check_sampling(samples, seed)
    _check_offset(checkpoint, kind, offset)
    first, last = parse_head(checkpoint.config, earlier), parse_head(checkpoint.config, later)
    check_pair(first, last)
    check_order(checkpoint, first.label, f"{last.label}.{kind.lower()}")
    centred = _readers_centre(checkpoint)
    writer = _Side.writers(_one(head_weights(checkpoint, first.layer), first.index), centred)
    reads = head_weights(checkpoint, last.layer)
    reads = _turned(checkpoint, last.layer, reads, kind, offset)
    reader = _Side.readers(_one(reads, last.index), kind)
    score = _blocks(writer.factors, reader.factors)  # (1, 1)
    width = checkpoint.config.d_model - centred
    if not samples or not width:
        return PairScore(first, last, kind, float(score[0, 0]))
    chance = spectrum_chance(
        score, writer.spectra(), reader.spectra(), size=width, samples=samples, seed=seed
    )
    mean, sd, p = (float(each[0, 0]) for each in (chance.mean, chance.sd, chance.p))
    z = (float(score[0, 0]) - mean) / sd if sd > 1e-12 else None
    return PairScore(first, last, kind, float(score[0, 0]), mean, sd, z, p)


def composition_table(
    found: Sequence[Composition], *, top: int | None = 10, by: str = "score"
) -> AnalysisTable:
    """List the largest pairs of one kind or several, which must be of one model.

    >>> from pathexpand import load
    >>> found = [composition(load("two-layer").checkpoint, kind, samples=0) for kind in "QKV"]
    >>> composition_table(found, top=2).column("kind")
    ('K', 'Q')
    """
    if not found:
        raise PathExpandError("composition", wanted="at least one kind", got="none")
    pairs = [pair for each in found for pair in each.ranked(top, by=by)]
    pairs.sort(key=lambda pair: -(pair.score if by == "score" else pair.z or 0.0))
    first = found[0]
    about = [("model", first.model)]
    about += [("kind", f"{each.kind}-composition: {FORMULAS[each.kind]}") for each in found]
    offset = next((each.offset for each in found if each.offset is not None), None)
    if offset is not None:
        about.append(("offset", str(offset)))
    closing = [
        Summary(
            f"mean {each.kind}",
            float(np.nanmean(each.matrix)),
            f"of all {int(np.isfinite(each.matrix).sum()):,} pairs",
        )
        for each in found
    ]
    remark = f"random angles in {first.width} dimensions, root mean square"
    closing.append(Summary("1/√width", first.analytic, remark))
    if first.random is not None:
        closing.append(Summary("random", first.random, "random heads of the same shapes, mean"))
    return AnalysisTable(
        "composition",
        tuple(about),
        *_listed(pairs[:top], kinds=len(found) > 1, sampled=first.chance is not None),
        tuple(closing),
        tuple(dict.fromkeys(claim for each in found for claim in each.claims)),
    )


def pair_table(
    model: str, pairs: Sequence[PairScore], *, offset: int | None = None
) -> AnalysisTable:
    """List pairs that were asked for by name, as they stand.

    >>> from pathexpand import load
    >>> pair = composition_of(load("two-layer").checkpoint, "L0H3", "L1H0", "K", samples=100)
    >>> pair_table("two-layer", [pair]).column("later")
    ('L1H0',)
    """
    about = [
        ("model", model),
        *(("kind", f"{p.kind}-composition: {FORMULAS[p.kind]}") for p in pairs),
    ]
    if offset is not None:
        about.append(("offset", str(offset)))
    sampled = any(pair.chance is not None for pair in pairs)
    claims = ("chance, sd, z, p: random angles between the same two spectra.",) if sampled else ()
    fields, rows = _listed(pairs, kinds=True, sampled=sampled)
    return AnalysisTable("composition", tuple(dict.fromkeys(about)), fields, rows, (), claims)


def random_score(d_model: int, d_head: int, *, centred: bool = False, seed: int = 0) -> float:
    """Give the mean score of random Gaussian heads of these shapes, the empirical baseline.

    `centred` takes the mean of each column off what reads, as a LayerNorm's matrix does. A Gaussian
    matrix has the same distribution in each role, so it is one number for all three kinds.

    >>> abs(random_score(64, 4) * 64**0.5 - 1) < 0.05
    True
    """
    rng = np.random.default_rng(seed)
    shape = (_RANDOM, d_model, d_head)
    W_V, W_Q, W_K = (rng.standard_normal(shape) for _ in range(3))
    W_O = np.swapaxes(rng.standard_normal(shape), 1, 2)
    if centred:
        W_Q, W_K, W_V = (each - each.mean(axis=1, keepdims=True) for each in (W_Q, W_K, W_V))
    heads = HeadWeights(W_Q, W_K, W_V, W_O)
    writers, readers = _Side.writers(heads, centred), _Side.readers(heads, "Q")
    return float(_blocks(writers.factors, readers.factors).mean())


def check_kind(kind: object) -> None:
    """Refuse what is no kind of composition.

    >>> check_kind("Q")
    """
    if kind not in get_args(Kind):
        raise PathExpandError("kind of composition", wanted='"Q", "K" or "V"', got=shown(kind))


def check_pair(earlier: Head, later: Head) -> None:
    """Refuse two heads that cannot compose: of one layer, or backwards.

    >>> check_pair(Head(0, 1), Head(1, 0))
    """
    if earlier.layer >= later.layer:
        raise PathExpandError(
            f"{earlier} to {later}",
            wanted="an earlier layer's head and a later one's",
            got=f"layer {earlier.layer} and layer {later.layer}",
        )


def check_top(top: int | None) -> int | None:
    """Refuse a number of rows that is none.

    >>> check_top(3), check_top(None)
    (3, None)
    """
    if top is not None and (type(top) is not int or top < 0):
        raise PathExpandError("top", wanted="a whole number of rows", got=shown(top))
    return top


def check_offset(checkpoint: Checkpoint, offset: int | None) -> None:
    """Refuse an offset for a model none of whose layers has rotary positions.

    >>> from pathexpand import load
    >>> check_offset(load("two-layer").checkpoint, None)
    """
    if all(each is None for each in checkpoint.config.rotary) and checkpoint.config.n_layers:
        turned(checkpoint, 0, np.zeros((1, checkpoint.config.d_head)), offset)


def turned_queries(checkpoint: Checkpoint, layer: int, W_Q: Array, offset: int | None) -> Array:
    """Turn a layer's queries by an offset; a layer without rotary positions beside others stays.

    >>> from pathexpand import load
    >>> W_Q = np.ones((192, 64))
    >>> turned_queries(load("two-layer").checkpoint, 0, W_Q, None) is W_Q
    True
    """
    turns = checkpoint.config.rotary[layer] is not None
    return turned(checkpoint, layer, W_Q, offset) if turns else W_Q


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """The heads of one layer as writers or as readers, each scaled to norm 1 (or 0).

    Shapes: `factors` (head, i, d_model), of readers turned over.
    """

    factors: Array

    @classmethod
    def writers(cls, heads: HeadWeights, centred: bool) -> _Side:
        """Take OV = W_V W_O: the triangular factor of W_V goes into W_O."""
        W_O = heads.W_O - heads.W_O.mean(axis=-1, keepdims=True) if centred else heads.W_O
        return cls._of(heads.W_V, np.swapaxes(W_O, 1, 2))

    @classmethod
    def readers(cls, heads: HeadWeights, kind: Kind) -> _Side:
        """Take QK = W_Q W_Kᵀ, its transpose, or OV, from the side that reads the stream."""
        if kind == "Q":
            return cls._of(heads.W_K, heads.W_Q)
        if kind == "K":
            return cls._of(heads.W_Q, heads.W_K)
        return cls._of(np.swapaxes(heads.W_O, 1, 2), heads.W_V)

    @classmethod
    def _of(cls, outer: Array, inner: Array) -> _Side:
        """Fold the outer factor's triangle into the inner one: (head, d_model, k) both."""
        # Scaled before they are multiplied, so that tiny or huge weights keep their digits.
        triangle = _over_peak(np.asarray(np.linalg.qr(outer, mode="r")))  # (head, i, k)
        factors = triangle @ np.swapaxes(_over_peak(inner), 1, 2)  # (head, i, d_model)
        size = np.linalg.norm(factors, axis=(1, 2), keepdims=True)
        return cls(factors / np.where(size == 0, 1, size))

    def spectra(self) -> Array:
        """Give the singular values of each head's factor, which chance needs: (head, i)."""
        triangle = np.linalg.qr(np.swapaxes(self.factors, 1, 2), mode="r")
        return np.asarray(np.linalg.svd(triangle, compute_uv=False))


def _over_peak(matrices: Array) -> Array:
    """Divide each matrix (head, n, m) by its largest size."""
    peak = abs(matrices).max(axis=(1, 2), keepdims=True, initial=0)
    return matrices / np.where(peak == 0, 1, peak)


@dataclass(frozen=True, slots=True, eq=False)
class _Scores:
    """Scores (earlier head, later head), and the spectra (head, i) of both sides if asked for."""

    matrix: Array
    writers: Array | None
    readers: Array | None


def _scores(
    checkpoint: Checkpoint, kind: Kind, offset: int | None, *, centred: bool, spectra: bool
) -> _Scores:
    """Score all pairs, a pair of layers at a time."""
    config = checkpoint.config
    heads = config.n_heads
    scores = np.full((config.n_layers * heads,) * 2, np.nan)  # (earlier head, later head)
    writers: list[_Side] = []
    read: list[Array] = []
    for layer in range(config.n_layers):
        weights = head_weights(checkpoint, layer)
        own = slice(layer * heads, (layer + 1) * heads)
        reader = _Side.readers(_turned(checkpoint, layer, weights, kind, offset), kind)
        for before, writer in enumerate(writers):
            rows = slice(before * heads, (before + 1) * heads)
            scores[rows, own] = _blocks(writer.factors, reader.factors)
        writers.append(_Side.writers(weights, centred))
        if spectra:
            read.append(reader.spectra())
    if not spectra:
        return _Scores(scores, None, None)
    written = [writer.spectra() for writer in writers]
    return _Scores(scores, np.concatenate(written), np.concatenate(read))


def _blocks(writers: Array, readers: Array) -> Array:
    """Give the norm of each writer's product with each reader: (writer, reader)."""
    one, i, d_model = writers.shape
    other, j, _ = readers.shape
    product = writers.reshape(-1, d_model) @ readers.reshape(-1, d_model).T
    blocks = product.reshape(one, i, other, j)
    return np.asarray(np.sqrt(np.einsum("aibj,aibj->ab", blocks, blocks)))


def _turned(
    checkpoint: Checkpoint, layer: int, heads: HeadWeights, kind: Kind, offset: int | None
) -> HeadWeights:
    """Turn queries by the offset where scores are read and the layer has rotary positions."""
    if kind == "V":
        return heads
    W_Q = turned_queries(checkpoint, layer, heads.W_Q, offset)
    return HeadWeights(W_Q, heads.W_K, heads.W_V, heads.W_O)


def _one(heads: HeadWeights, head: int) -> HeadWeights:
    at = slice(head, head + 1)
    return HeadWeights(heads.W_Q[at], heads.W_K[at], heads.W_V[at], heads.W_O[at])


def _readers_centre(checkpoint: Checkpoint) -> bool:
    """Say whether every reader takes the mean of what it reads off."""
    outlines = map(checkpoint.weights.outline, range(1, checkpoint.config.n_layers))
    return all(each.ln1 is not None and each.ln1.kind == "layer" for each in outlines)


def _check_offset(checkpoint: Checkpoint, kind: Kind, offset: int | None) -> None:
    if offset is None:
        return
    if kind == "V":
        raise PathExpandError(
            "offset", wanted="none: V-composition has no query and key", got=shown(offset)
        )
    check_offset(checkpoint, offset)


def _listed(
    pairs: Sequence[PairScore], *, kinds: bool, sampled: bool
) -> tuple[tuple[Field, ...], tuple[tuple[Any, ...], ...]]:
    """Give the fields and rows of a table of pairs."""
    columns: list[tuple[Field, list[Any]]] = [
        (Field("earlier", "text"), [pair.earlier.label for pair in pairs]),
        (Field("later", "text"), [pair.later.label for pair in pairs]),
        (Field("kind", "text"), [pair.kind for pair in pairs]),
        (Field("score", "number"), [pair.score for pair in pairs]),
        (Field("chance", "number", 1), [pair.chance for pair in pairs]),
        (Field("sd", "number", 3), [pair.sd for pair in pairs]),
        (Field("z", "number", 2), [pair.z for pair in pairs]),
        (Field("p", "number"), [pair.p for pair in pairs]),
    ]
    columns = columns if sampled else columns[:4]
    columns = columns if kinds else [each for each in columns if each[0].name != "kind"]
    rows = tuple(zip(*(values for _, values in columns), strict=True))
    return tuple(field for field, _ in columns), rows


def _check_sampling(samples: object, seed: object) -> None:
    for name, value in (("samples", samples), ("seed", seed)):
        if type(value) is not int or value < 0:
            raise PathExpandError(name, wanted="a whole number of at least 0", got=shown(value))


def _claims(
    checkpoint: Checkpoint, kind: Kind, chance: Chance | None, *, centred: bool
) -> tuple[str, ...]:
    found = []
    if chance is not None:
        found.append(
            f"chance, sd, z, p: {chance.samples:,} random angles between the same two spectra."
        )
    if centred:
        found.append("Readers take the mean off, so a writer's mean does not count.")
    found.extend(norm_claims(checkpoint))
    if kind != "V" and checkpoint.config.attn_scores_soft_cap is not None:
        found.append("Scores are taken before their soft cap.")
    return tuple(found)
