"""Law 5 for norms: a norm's weight and bias, folded into what reads behind it, change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Model, Run
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.laws.cut import cut
from pathexpand.laws.gauge import with_weights
from pathexpand.laws.reference import references
from pathexpand.laws.result import Deviation, LawResult, judged, not_applicable, unequal
from pathexpand.model.norm import normed
from pathexpand.model.weights import Block, Norm, Rows, Weights
from pathexpand.target import LogitTarget, Target, TargetLike

Array = npt.NDArray[Any]


def check_norm_folding(
    run: Run, target: TargetLike | Target | None = None, *, position: int | None = None
) -> LawResult:
    """Check that norms folded into W_Q, W_K, W_V, W_in, W_U and biases leave every path as it is.

    Folded are the norms that attention, the MLP and the unembedding read through. Compared are the
    values of all paths, and all that queries, keys and gates are made of. A single logit is looked
    at without the mean.

    >>> from pathexpand.laws import Design, random_transformer
    >>> check_norm_folding(random_transformer(Design(), seed=1).run([3, 1])).holds
    True
    """
    name, small = "norm folding", cut(run)
    weights = folded(small.run.model)
    if weights is None:
        return not_applicable(name, "there is no norm with a weight or a bias to fold")
    place = small.run.position(position)
    what = small.run.target(run.target(target, position=place))
    if isinstance(what, LogitTarget):
        what = LogitTarget(what.token, centred=False)
    changed = with_weights(small.run, weights)
    same = changed.model.network == small.run.model.network
    deviations = [unequal(same, True, "the network"), *_read(small.run, changed)]
    extra = 4 * small.run.model.config.d_model + len(run.tokens)
    for each in references(small.run, what, place):
        before = small.run.value(each.path, target=what, position=place)
        after = changed.value(each.path, target=what, position=place)
        bound = 2 * gamma(2 * each.steps + extra) * float(each.sizes.sum()) + TINY
        deviations.append(Deviation(abs(before - after), bound, f"{each.path}"))
    return judged(name, deviations, small.detail)


def folded(model: Model) -> Weights | None:
    """Fold the norms that are read through into what reads them; None if there are none.

    Positions that only attention reads are added behind its norm, which then stays.

    >>> from pathexpand.laws import Design, random_transformer
    >>> model = random_transformer(Design(), seed=1)
    >>> folded(model).final_norm.weight is None
    True
    """
    weights = model.weights
    through = model.config.positional_embedding_type != "shortformer"
    blocks = tuple(
        _folded_block(weights.block(n), attention=through) for n in range(len(weights.blocks))
    )
    out = replace(weights, blocks=blocks)
    head, last = weights.transform, weights.final_norm
    if head is not None:
        W, b = _behind(last, head.W, head.b)
        norm = head.norm
        out = replace(out, transform=replace(head, W=W, b=b, norm=_bare(norm)))
    else:
        norm = last
    if norm is not None:
        bias = weights.b_U
        if norm.bias is not None:
            added = weights.unembedding.products(norm.bias)
            bias = added if bias is None else bias + added
        out = replace(out, unembedding=_scaled(weights.unembedding, norm.weight), b_U=bias)
    out = replace(out, final_norm=_bare(last))
    return out if _norms(weights) != _norms(out) else None


def _norms(weights: Weights) -> int:
    """Count the weights and biases of norms that are read through."""
    norms = [weights.final_norm, None if weights.transform is None else weights.transform.norm]
    norms += [norm for block in weights.blocks for norm in (block.ln1, block.ln2)]
    some = [norm for norm in norms if norm is not None]
    return sum((norm.weight is not None) + (norm.bias is not None) for norm in some)


def _bare(norm: Norm | None) -> Norm | None:
    return None if norm is None else replace(norm, weight=None, bias=None)


def _behind(norm: Norm | None, weight: Array, bias: Array | None) -> tuple[Array, Array | None]:
    """Fold a norm into what reads through it: (…, d_model, n) and its bias (…, n)."""
    if norm is not None and norm.bias is not None:
        added = norm.bias @ weight
        bias = added if bias is None else bias + added
    if norm is not None and norm.weight is not None:
        weight = weight * norm.weight[:, None]
    return weight, bias


def _scaled(rows: Rows, weight: Array | None) -> Rows:
    """Fold a norm's weight into tall rows, which stay as they are stored."""
    if weight is None:
        return rows
    factor = np.diag(weight) if rows.factor is None else rows.factor * weight
    return Rows(rows.name, rows.stored, factor, rows.scale)


def _folded_block(block: Block, *, attention: bool) -> Block:
    attn, mlp = block.attn, block.mlp
    if attention:
        for name in ("Q", "K", "V"):
            weight, bias = getattr(attn, f"W_{name}"), getattr(attn, f"b_{name}")
            weight, bias = _behind(block.ln1, weight, bias)
            own: Any = {f"W_{name}": weight, f"b_{name}": bias}
            attn = replace(attn, **own)
        block = replace(block, attn=attn, ln1=_bare(block.ln1))
    if mlp is not None:
        w_in, b_in = _behind(block.ln2, mlp.W_in, mlp.b_in)
        mlp = replace(mlp, W_in=w_in, b_in=b_in)
        if mlp.W_gate is not None:
            w_gate, b_gate = _behind(block.ln2, mlp.W_gate, mlp.b_gate)
            mlp = replace(mlp, W_gate=w_gate, b_gate=b_gate)
        block = replace(block, mlp=mlp, ln2=_bare(block.ln2))
    return block


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    """What reads a stream: a norm, a matrix (…, d_model, n) and a bias (…, 1, n) or none."""

    norm: Norm | None
    weight: Array
    bias: Array | None

    def read(self, stream: Array) -> Array:
        """Give what it makes of a stream (position, d_model): (…, position, n)."""
        rows = stream if self.norm is None else normed(self.norm, stream)[0]
        out: Array = rows @ self.weight
        return out if self.bias is None else out + self.bias

    def sizes(self, stream: Array) -> Array:
        """Give the sizes that it adds up; what a norm makes before its weight is the same."""
        rows = abs(stream)
        if self.norm is not None:
            rows = abs(normed(replace(self.norm, weight=None, bias=None), stream)[0])
            rows = rows if self.norm.weight is None else rows * abs(self.norm.weight)
            rows = rows if self.norm.bias is None else rows + abs(self.norm.bias)
        out: Array = rows @ abs(self.weight) + TINY
        return out if self.bias is None else out + abs(self.bias)


def _readers(block: Block) -> dict[str, _Reader]:
    """Give what makes queries, keys and gates in a layer."""
    attn, mlp = block.attn, block.mlp
    found = {
        "queries": _Reader(block.ln1, attn.W_Q, _spread(attn.b_Q)),
        "keys": _Reader(block.ln1, attn.W_K, _spread(attn.b_K)),
    }
    if mlp is not None:
        found["neurons"] = _Reader(block.ln2, mlp.W_in, mlp.b_in)
        if mlp.W_gate is not None:
            found["gates"] = _Reader(block.ln2, mlp.W_gate, mlp.b_gate)
    return found


def _spread(bias: Array | None) -> Array | None:
    return None if bias is None else bias[:, None]


def _read(run: Run, changed: Run) -> Iterator[Deviation]:
    """Compare what queries, keys and gates are made of, on the run's own stream."""
    for layer, trace in enumerate(run.dense.layers):
        before = run.dense.residual[layer][0]
        middle = before if trace.middle is None else trace.middle[0]
        others = _readers(changed.model.weights.block(layer))
        for name, one in _readers(run.model.weights.block(layer)).items():
            stream = before if name in ("queries", "keys") else middle
            errors = abs(one.read(stream) - others[name].read(stream))
            bounds = 2 * gamma(2 * stream.shape[1] + 8) * one.sizes(stream)
            at = np.unravel_index(int(np.argmax(errors / bounds)), errors.shape)
            subject = f"{name} of layer {layer} at {tuple(map(int, at))}"
            yield Deviation(errors[at], bounds[at], subject)
