"""Law 5: changes of the weights that change nothing leave every path as it is.

The changes of basis used here have exact inverses in binary floating point: R = (I + N) D P with
N N = 0, D powers of two and signs, P a permutation. So the only rounding is that of the products
V R and R⁻¹ O, at most gamma(d_head) |V||R| and gamma(d_head) |R⁻¹||O|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Model, Run
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.laws.reference import cut, references
from pathexpand.laws.result import Deviation, LawResult, judged, unequal
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import attention_scores, forward
from pathexpand.model.weights import Attention, Weights
from pathexpand.symbolic import Head, Path
from pathexpand.target import Target, TargetLike

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """A change of basis R (size, size) and its exact inverse."""

    matrix: Array
    inverse: Array


def exact_basis(size: int, *, seed: int) -> Basis:
    """Give a change of basis whose inverse is exact in floats: R R⁻¹ = I with no rounding.

    >>> basis = exact_basis(5, seed=3)
    >>> bool((basis.matrix @ basis.inverse == np.eye(5)).all())
    True
    """
    rng = np.random.default_rng(seed)
    shear = np.zeros((size, size))
    half = size // 2
    shear[:half, half:] = rng.integers(-2, 3, size=(half, size - half)) / 4
    scale = rng.choice([-1.0, 1.0], size) * 2.0 ** rng.integers(-1, 3, size)
    order = rng.permutation(size)
    matrix = ((np.eye(size) + shear) * scale)[:, order]  # (I + N) D P
    inverse = ((np.eye(size) - shear) / scale[:, None])[order]  # Pᵀ D⁻¹ (I - N)
    return Basis(matrix, inverse)


def check_value_gauge(
    run: Run,
    target: TargetLike | Target | None = None,
    *,
    position: int | None = None,
    seed: int = 0,
) -> LawResult:
    """Check that W_V → W_V R, b_V → b_V R, W_O → R⁻¹ W_O leaves every path's value as it is.

    R differs from head to head and also scales. Patterns are held at the run's own.

    >>> from pathexpand import api
    >>> check_value_gauge(api.load("two-layer").run("to be")).holds
    True
    """
    sizes: dict[int, Attention] = {}

    def change(layer: int, attn: Attention) -> Attention:
        heads, _, d_head = attn.W_V.shape
        bases = [exact_basis(d_head, seed=seed + 1000 * layer + head) for head in range(heads)]
        right = np.array([basis.matrix for basis in bases])  # (head, d_head, d_head)
        left = np.array([basis.inverse for basis in bases])
        wide = abs(attn.b_V)[:, None] @ abs(right) if attn.b_V is not None else None
        sizes[layer] = replace(
            attn,
            W_V=abs(attn.W_V) @ abs(right),
            W_O=abs(left) @ abs(attn.W_O),
            b_V=None if wide is None else wide[:, 0],
        )
        turned = None if attn.b_V is None else (attn.b_V[:, None] @ right)[:, 0]
        return replace(attn, W_V=attn.W_V @ right, W_O=left @ attn.W_O, b_V=turned)

    small = cut(run)
    changed = _changed(small.run, change)
    blocks = tuple(
        replace(block, attn=sizes[layer])
        for layer, block in enumerate(small.run.model.weights.blocks)
    )
    most = _with_weights(small.run, replace(small.run.model.weights, blocks=blocks))
    return _same_values(
        "value gauge", small.run, changed, most, target, position, lambda path: path, small.detail
    )


def check_head_permutation(
    run: Run,
    target: TargetLike | Target | None = None,
    *,
    position: int | None = None,
    seed: int = 0,
) -> LawResult:
    """Check that permuting the heads of each layer permutes the labels of the paths alone.

    >>> from pathexpand import api
    >>> check_head_permutation(api.load("two-layer").run("to be")).holds
    True
    """
    small = cut(run)
    rng = np.random.default_rng(seed)
    heads = max(small.run.model.config.n_heads, 1)
    orders = [np.roll(rng.permutation(heads), layer) for layer in range(len(small.run.patterns))]

    def change(layer: int, attn: Attention) -> Attention:
        names = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
        parts: dict[str, Any] = {name: getattr(attn, name) for name in names}
        moved: dict[str, Any] = {n: a for n, a in parts.items() if a is not None}
        return replace(attn, **{name: array[orders[layer]] for name, array in moved.items()})

    def renamed(path: Path) -> Path:
        places = [np.flatnonzero(orders[h.layer] == h.index)[0] for h in path.components]
        heads = (Head(h.layer, n) for h, n in zip(path.components, places, strict=True))
        return Path(path.source, tuple(heads))

    changed = _changed(small.run, change, orders)
    return _same_values(
        "head permutation", small.run, changed, small.run, target, position, renamed, small.detail
    )


def check_score_gauge(run: Run, *, seed: int = 0) -> LawResult:
    """Check that W_Q → W_Q R, W_K → W_K R⁻ᵀ (and biases) leaves all attention scores as they are.

    Weights W_Q and W_K are read through the scores alone, so equal scores are equal tables. Each
    layer is looked at on the run's own stream.

    >>> from pathexpand import api
    >>> check_score_gauge(api.load("two-layer").run("to be")).holds
    True
    """
    weights, config = run.model.weights, run.model.config
    deviations = []
    for layer, block in enumerate(weights.blocks):
        attn, reads = block.attn, run.dense.residual[layer]
        if config.positional_embedding_type == "shortformer" and weights.W_pos is not None:
            reads = reads + weights.W_pos[run.dense.places]
        heads, d_model, d_head = attn.W_Q.shape
        bases = [exact_basis(d_head, seed=seed + 1000 * layer + head) for head in range(heads)]
        right = np.array([basis.matrix for basis in bases])
        left = np.swapaxes([basis.inverse for basis in bases], 1, 2)  # R⁻ᵀ
        turned = _turned(attn, right, left)
        sizes = attention_scores(_turned(_sizes(attn), abs(right), abs(left)), abs(reads))
        errors = abs(attention_scores(turned, reads) - attention_scores(attn, reads))
        # On each side d_model and a bias, then d_head; and d_head more for the change of basis.
        bounds = 2 * gamma(2 * (d_model + 2) + 3 * d_head + 2) * (sizes + TINY)
        worst = np.unravel_index(int(np.argmax(errors / bounds)), errors.shape)
        subject = f"layer {layer}, head {worst[1]}, query {worst[2]}, key {worst[3]}"
        deviations.append(Deviation(errors[worst], bounds[worst], subject))
    return judged("score gauge", deviations, f"{len(deviations)} layers")


def _turned(attn: Attention, right: Array, left: Array) -> Attention:
    return replace(
        attn,
        W_Q=attn.W_Q @ right,
        W_K=attn.W_K @ left,
        b_Q=None if attn.b_Q is None else (attn.b_Q[:, None] @ right)[:, 0],
        b_K=None if attn.b_K is None else (attn.b_K[:, None] @ left)[:, 0],
    )


def _sizes(attn: Attention) -> Attention:
    names = ("W_Q", "W_K", "b_Q", "b_K")
    parts: dict[str, Any] = {name: getattr(attn, name) for name in names}
    return replace(attn, **{name: abs(a) for name, a in parts.items() if a is not None})


def _changed(
    run: Run,
    change: Callable[[int, Attention], Attention],
    orders: list[npt.NDArray[np.int64]] | None = None,
) -> Run:
    """Change each layer, and run again with the patterns held."""
    weights = run.model.weights
    blocks = tuple(
        replace(block, attn=change(layer, block.attn)) for layer, block in enumerate(weights.blocks)
    )
    return _with_weights(run, replace(weights, blocks=blocks), orders)


def _with_weights(
    run: Run, weights: Weights, orders: list[npt.NDArray[np.int64]] | None = None
) -> Run:
    patterns = list(run.dense.patterns)
    if orders is not None:
        patterns = [p[:, order] for p, order in zip(patterns, orders, strict=True)]
    config, dense = run.model.config, run.dense
    again = forward(weights, config, dense.tokens, dense.mask, patterns=patterns)
    return Run(Model(Checkpoint(config, weights, run.model.tokenizer)), again)


def _same_values(
    name: str,
    run: Run,
    changed: Run,
    most: Run,
    target: TargetLike | Target | None,
    position: int | None,
    renamed: Callable[[Path], Path],
    detail: str,
) -> LawResult:
    """Compare the engine's value of every path before and after; `most` measures the sizes."""
    place = run.position(position)
    what = run.target(target, position=place)
    readout = what.readout(run.model.weights, place)
    deviations = [
        unequal(changed.model.network.count(), run.model.network.count(), "number of paths")
    ]
    extra = 4 * run.model.config.d_head * max(run.model.config.n_layers, 1)
    for each in references(most, readout):
        before = run.value(each.path, target=what, position=place)
        after = changed.value(renamed(each.path), what, position=place)
        bound = 2 * gamma(each.steps + len(run.tokens) + extra) * float(each.sizes.sum())
        deviations.append(Deviation(abs(before - after), bound, f"{each.path}"))
    return judged(name, deviations, detail)
