"""Law 6: factored matrices are the dense ones, for a model's own heads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Model, Run
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.engine.search import Budget
from pathexpand.laws.exact import is_linear
from pathexpand.laws.reference import reference
from pathexpand.laws.result import Deviation, LawResult, judged, not_applicable, unequal
from pathexpand.laws.walk import Walk
from pathexpand.model.weights import Attention, Weights
from pathexpand.symbolic import Component, Path
from pathexpand.target import LogitTarget

Array = npt.NDArray[Any]
_PROMPT = "norms and MLPs depend on the prompt, so paths have no matrix of their own"
_ENTRIES = 2_000_000  # of a dense matrix that a check will build


@dataclass(frozen=True, slots=True, eq=False)
class DenseMatrix:
    """A path's matrix multiplied out, its entries' sizes, and the roundings on the way."""

    values: Array
    sizes: Array
    steps: int


def dense_path_matrix(weights: Weights, path: Path, *, rows: int | None = None) -> DenseMatrix:
    """Multiply out a path's matrix from source to logits: (rows, d_vocab_out).

    Only the first `rows` inputs are taken. Constants are taken where pattern rows sum to 1.

    >>> from pathexpand import api
    >>> weights = api.load("two-layer").weights
    >>> dense_path_matrix(weights, Path.parse("embed > L0H1 > L1H2"), rows=5).values.shape[0]
    5
    """
    if path.source == "b_U" and weights.b_U is not None:
        return DenseMatrix(weights.b_U[None], abs(weights.b_U[None]), 0)
    start = _inputs(weights, path.source, rows)
    values, sizes, steps = start.values, start.sizes, start.steps
    for head in path.components:
        attn = weights.blocks[head.layer].attn
        w_v, w_o = attn.W_V[_shared(attn, head)], attn.W_O[head.index]
        scale = weights.blocks[head.layer].scale
        values = values @ (w_v @ w_o * scale)  # (rows, d_model) through a dense OV
        sizes = ((sizes @ abs(w_v) + TINY) @ abs(w_o) + TINY) * abs(scale)
        steps += 2 * sum(w_v.shape) + 2
    values, sizes = values @ weights.W_U, sizes @ abs(weights.W_U) + TINY  # (rows, d_vocab_out)
    return DenseMatrix(values, sizes, steps + 2 * len(weights.W_U))


def check_path_matrices(model: Model, *, paths: int = 30) -> LawResult:
    """Check that `path_matrix` is the product of dense OV matrices, for the first `paths` paths.

    Of a large vocabulary only the first entries are multiplied out on the dense side.

    A path has a matrix where neither norms nor MLPs stand in its way.

    >>> from pathexpand import api
    >>> check_path_matrices(api.load("one-layer")).holds
    True
    """
    if not is_linear(model.weights):
        return not_applicable("path matrices", _PROMPT)
    weights = model.weights
    rows = max(_ENTRIES // 16 // weights.W_U.shape[1], 1)
    deviations = []
    for path in islice(model.network.paths(), paths):
        factored, dense = model.path_matrix(path), dense_path_matrix(weights, path, rows=rows)
        inputs = len(dense.values)
        got = factored.left[:inputs] @ factored.right
        deviations.append(unequal(factored.shape[1], weights.W_U.shape[1], f"columns of {path}"))
        deviations.append(_largest(got - dense.values, 2 * gamma(dense.steps) * dense.sizes, path))
    return judged("path matrices", deviations, f"{len(deviations) // 2} paths")


def check_path_logits(run: Run, *, position: int | None = None, paths: int = 30) -> LawResult:
    """Check that what a path adds to each logit, worked forward, is its value, worked back.

    >>> from pathexpand import api
    >>> check_path_logits(api.load("two-layer").run("to be")).holds
    True
    """
    place, vocabulary = run.position(position), run.model.config.d_vocab_out
    tokens = sorted({0, vocabulary // 3, vocabulary - 1})
    walk, deviations = Walk(run), []
    for path in islice(run.model.network.paths(), paths):
        every = run.path_logits(path, position=place)
        deviations.append(unequal(every.shape, (vocabulary,), f"shape of {path}"))
        for token in tokens:
            what = LogitTarget(token, centred=False)
            known = reference(walk, path, what, place)
            value = run.value(path, target=what, position=place)
            subject = f"{path}, token {token}"
            deviations.append(Deviation(abs(every[token] - value), known.rounding, subject))
            deviations.append(Deviation(abs(value - known.value), known.rounding, subject))
    return judged("path logits", deviations, f"{min(paths, run.model.network.count())} paths")


def check_norm_ranking(
    model: Model,
    *,
    top: int = 10,
    query: str | None = None,
    centred: bool = False,
    budget: Budget | None = None,
    paths: int = 300,
) -> LawResult:
    """Check that paths ranked from weights alone have the norms of their dense matrices.

    Orders are taken up to the last that has at most `paths` paths in all, and among them every
    unlisted one must have a norm no larger than the last listed, nor than the table's bound. The
    sum of all squared norms must be that over these paths, or more where orders are left out. A
    vocabulary too large to multiply out is refused in `detail`, and then only the order of the
    rows is looked at.

    >>> from pathexpand import api
    >>> check_norm_ranking(api.load("one-layer")).holds
    True
    """
    if not is_linear(model.weights):
        return not_applicable("norm ranking", _PROMPT)
    asked = model.query(query)
    by_order = asked.count_by_order()
    order = 0
    while order + 1 < len(by_order) and sum(by_order[: order + 2]) <= paths:
        order += 1
    table = model.paths(top=top, query=asked, centred=centred, max_order=order, budget=budget)
    every = list(asked.paths(max_order=order))
    keys = [(-row.norm, Path.parse(row.path)) for row in table.rows]
    rows = min(top, len(every)) if table.certified else len(table)
    deviations = [
        unequal(len({path for _, path in keys}), rows, "number of rows"),
        unequal(keys == sorted(keys), True, "order of rows"),
        unequal(table.path_count, sum(by_order), "path count"),
        unequal(table.certified or budget is not None, True, "certified"),
    ]
    weights, listed = model.weights, {path: -size for size, path in keys}
    vocabulary, outputs = weights.W_E.shape[0], weights.W_U.shape[1]
    if vocabulary * outputs > _ENTRIES:
        return judged("norm ranking", deviations, "vocabulary too large: order of rows only")
    least, energy, slack = min(listed.values(), default=np.inf), 0.0, 0.0
    for path in every:
        dense = dense_path_matrix(weights, path).values  # (inputs, d_vocab_out)
        norm = _norm(dense - dense.mean(axis=1, keepdims=True) if centred else dense)
        # Centring adds the mean of each row, on either side, and takes it off.
        bound = _norm_rounding(weights, path) * (3 if centred else 1)
        energy, slack = energy + norm * norm, slack + 2 * norm * bound + bound * bound + TINY
        if path in listed:
            deviations.append(Deviation(abs(listed[path] - norm), bound, f"norm of {path}"))
            continue
        if table.certified:
            deviations.append(Deviation(max(norm - least, 0.0), 2 * bound, f"unlisted {path}"))
        over = max(norm - (table.bound or 0.0), 0.0)
        deviations.append(Deviation(over, bound, f"bound against {path}"))
    slack += gamma(len(every) + 2) * energy
    short = energy - table.energy
    error = max(short, 0.0) if order + 1 < len(by_order) else abs(short)
    # Relative, so that it can be read beside the norms.
    scale = energy if energy > 0 else 1.0
    deviations.append(Deviation(error / scale, slack / scale, "energy"))
    return judged("norm ranking", deviations, f"{len(every)} paths, order at most {order}")


def _inputs(weights: Weights, source: str, rows: int | None) -> DenseMatrix:
    if source == "embed":
        return DenseMatrix(weights.W_E[:rows], abs(weights.W_E[:rows]), 0)
    if source == "pos" and weights.W_pos is not None:
        return DenseMatrix(weights.W_pos[:rows], abs(weights.W_pos[:rows]), 0)
    if source == "type" and weights.types is not None:
        rows_of = weights.types.whole()[:rows]
        return DenseMatrix(rows_of, abs(rows_of), 0)
    block = weights.blocks[int(source.removeprefix("L").removesuffix("bias"))]
    attn = block.attn
    values, sizes = np.zeros((1, weights.W_U.shape[0])), np.zeros((1, weights.W_U.shape[0]))
    if attn.b_V is not None:
        bias = np.repeat(attn.b_V, len(attn.W_O) // len(attn.b_V), axis=0)  # (head, d_head)
        values = values + np.einsum("hd,hdm->m", bias, attn.W_O)
        sizes = sizes + np.einsum("hd,hdm->m", abs(bias), abs(attn.W_O)) + TINY
    if attn.b_O is not None:
        values, sizes = values + attn.b_O, sizes + abs(attn.b_O)
    steps = attn.W_O.shape[0] * attn.W_O.shape[1] + 3
    return DenseMatrix(values * block.scale, sizes * abs(block.scale), steps)


def _shared(attn: Attention, head: Component) -> int:
    """Give the key-value head that a head reads: neighbours share one."""
    return head.index // (len(attn.W_O) // len(attn.W_V))


def _norm(matrix: Array) -> float:
    peak = float(np.max(abs(matrix), initial=0.0))
    return peak * float(np.linalg.norm(matrix / peak)) if peak else 0.0


def _norm_rounding(weights: Weights, path: Path) -> float:
    """Bound the difference of two norms of a path's matrix: dense, and by QR of its factors.

    A Householder QR of an (m, n) factor moves its columns by at most gamma(c m n) of their own
    length, with c a small constant (Higham, theorem 19.4; 8 is taken here), and the norms of
    absolute factors are those of the factors, so the product of all norms carries every error.
    """
    if path.source == "b_U":
        return 2 * gamma(weights.W_U.shape[1] + 2) * (_norm(np.asarray(weights.b_U)) + TINY)
    start = _inputs(weights, path.source, None).values
    product = _norm(start) * _norm(weights.W_U)
    steps = 8 * max(weights.W_U.size, start.size) * (2 * path.order + 2)
    for head in path.components:
        attn = weights.blocks[head.layer].attn
        product *= abs(weights.blocks[head.layer].scale)
        product *= _norm(attn.W_V[_shared(attn, head)]) * _norm(attn.W_O[head.index])
    # Dense: every product on the way, then a sum of squares over the whole matrix.
    steps += 2 * (path.order + 1) * sum(weights.W_U.shape) + len(start) * weights.W_U.shape[1]
    return 2 * gamma(steps) * product + TINY


def _largest(errors: Array, bounds: Array, path: Path) -> Deviation:
    at = np.unravel_index(int(np.argmax(abs(errors) / (bounds + TINY))), errors.shape)
    return Deviation(abs(errors[at]), bounds[at] + TINY, f"{path} at {tuple(map(int, at))}")
