"""Law 5: changes of the weights that change nothing leave every path as it is.

The changes of basis used here have exact inverses in binary floating point: R = (I + N) D P with
N N = 0, D powers of two and signs, P a permutation. So the only rounding is that of the products
V R and R⁻¹ O, at most gamma(d_head) |V||R| and gamma(d_head) |R⁻¹||O|.

What a run holds fixed (patterns, norm scales, gates) is held at the run's own throughout, permuted
where its heads or neurons are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Model, Run
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.laws.cut import cut, group_size
from pathexpand.laws.reference import references
from pathexpand.laws.result import Deviation, LawResult, judged, not_applicable, unequal
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import LayerTrace
from pathexpand.model.weights import Attention, Block, Mlp, Weights
from pathexpand.symbolic import Component, Head, Neuron, Path
from pathexpand.target import Target, TargetLike

Array = npt.NDArray[Any]
Order = npt.NDArray[np.intp]
_ONE_SIGN = ("relu", "relu2")  # act(c z) is c act(z), or c² act(z), for every c above 0


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

    R differs from key-value head to key-value head and also scales.

    >>> from pathexpand import api
    >>> check_value_gauge(api.load("two-layer").run("to be")).holds
    True
    """
    small, most = cut(run), []

    def change(layer: int, block: Block) -> Block:
        attn = block.attn
        heads, _, d_head = attn.W_V.shape
        bases = [exact_basis(d_head, seed=seed + 1000 * layer + head) for head in range(heads)]
        shared = np.arange(len(attn.W_O)) // (len(attn.W_O) // max(heads, 1))
        right = np.array([basis.matrix for basis in bases])  # (kv_head, d_head, d_head)
        left = np.array([basis.inverse for basis in bases])[shared]  # (head, d_head, d_head)
        most.append(replace(block, attn=_values_turned(_sizes(attn), abs(right), abs(left))))
        return replace(block, attn=_values_turned(attn, right, left))

    changed = _changed(small.run, change)
    sizes = _changed(small.run, lambda layer, _: most[layer])
    return _same_values(
        "value gauge", small.run, changed, target, position, sizes=sizes, detail=small.detail
    )


def check_head_permutation(
    run: Run,
    target: TargetLike | Target | None = None,
    *,
    position: int | None = None,
    seed: int = 0,
) -> LawResult:
    """Check that permuting the heads of each layer permutes the labels of the paths alone.

    Heads that share keys and values stay together.

    >>> from pathexpand import api
    >>> check_head_permutation(api.load("two-layer").run("to be")).holds
    True
    """
    small = cut(run)
    rng = np.random.default_rng(seed)
    group = group_size(small.run.model.config)
    shared = max(small.run.model.config.n_heads, 1) // max(group, 1)
    order = [np.roll(rng.permutation(shared), n) for n in range(len(small.run.patterns))]
    within = [np.roll(rng.permutation(group), n) for n in range(len(order))]
    heads = [
        (own[:, None] * group + inner).ravel() for own, inner in zip(order, within, strict=True)
    ]

    def change(layer: int, block: Block) -> Block:
        attn = _permuted(block.attn, ("W_Q", "W_O", "b_Q", "sinks"), heads[layer])
        return replace(block, attn=_permuted(attn, ("W_K", "W_V", "b_K", "b_V"), order[layer]))

    def trace(layer: int, held: LayerTrace) -> LayerTrace:
        return replace(held, pattern=held.pattern[:, heads[layer]])

    def renamed(each: Component) -> Component:
        if not isinstance(each, Head):
            return each
        return Head(each.layer, int(np.flatnonzero(heads[each.layer] == each.index)[0]))

    changed = _changed(small.run, change, trace)
    return _same_values(
        "head permutation", small.run, changed, target, position, renamed, detail=small.detail
    )


def check_neuron_gauge(
    run: Run,
    target: TargetLike | Target | None = None,
    *,
    position: int | None = None,
    seed: int = 0,
) -> LawResult:
    """Check that permuting neurons permutes labels alone, and that w_in c, w_out / c is the same.

    The gates are held, so that the latter is so whatever the activation function; c is a power of
    two. With a gated MLP the gate's own weights are left alone.

    >>> from pathexpand.laws import Design, random_transformer
    >>> model = random_transformer(Design(mlp="neurons"), seed=1)
    >>> check_neuron_gauge(model.run([3, 1])).holds
    True
    """
    name = "neuron gauge"
    if not run.model.config.d_mlp:
        return not_applicable(name, "there are no MLPs")
    if run.model.mlp == "source":
        return not_applicable(name, "MLPs are taken as sources")
    small = cut(run)
    rng = np.random.default_rng(seed)
    count = max(small.run.model.config.d_mlp, 1)
    orders = [np.roll(rng.permutation(count), n) for n in range(len(small.run.patterns))]
    scales = [2.0 ** rng.integers(-3, 4, count) for _ in orders]

    def change(layer: int, block: Block) -> Block:
        if block.mlp is None:
            return block
        return replace(block, mlp=_neurons(block.mlp, orders[layer], scales[layer]))

    def trace(layer: int, held: LayerTrace) -> LayerTrace:
        return held if held.gates is None else replace(held, gates=held.gates[..., orders[layer]])

    def renamed(each: Component) -> Component:
        if not isinstance(each, Neuron):
            return each
        return Neuron(each.layer, int(np.flatnonzero(orders[each.layer] == each.index)[0]))

    changed = _changed(small.run, change, trace)
    return _same_values(name, small.run, changed, target, position, renamed, detail=small.detail)


# --- changes --------------------------------------------------------------------------------------


def _values_turned(attn: Attention, right: Array, left: Array) -> Attention:
    turned = None if attn.b_V is None else (attn.b_V[:, None] @ right)[:, 0]
    return replace(attn, W_V=attn.W_V @ right, W_O=left @ attn.W_O, b_V=turned)


def _sizes(attn: Attention) -> Attention:
    names = ("W_V", "W_O", "b_V", "b_O")
    parts: dict[str, Any] = {name: getattr(attn, name) for name in names}
    return replace(attn, **{name: abs(a) for name, a in parts.items() if a is not None})


def _permuted(attn: Attention, names: Iterable[str], order: Order) -> Attention:
    parts: dict[str, Any] = {name: getattr(attn, name) for name in names}
    return replace(attn, **{name: a[order] for name, a in parts.items() if a is not None})


def _neurons(mlp: Mlp, order: Order, scale: Array) -> Mlp:
    """Permute the neurons; scale what each reads by a number, what it writes by one over it."""

    def some(array: Array | None, factor: Any = 1.0) -> Any:
        return None if array is None else (array * factor)[..., order]

    return replace(
        mlp,
        W_in=some(mlp.W_in, scale),
        b_in=some(mlp.b_in, scale),
        W_gate=some(mlp.W_gate),
        b_gate=some(mlp.b_gate),
        W_out=(mlp.W_out / scale[:, None])[order],
    )


def _changed(
    run: Run,
    change: Callable[[int, Block], Block],
    trace: Callable[[int, LayerTrace], LayerTrace] = lambda layer, held: held,
) -> Run:
    """Change each layer, and what is held of it; all else of the run stays."""
    weights = run.model.weights
    blocks = tuple(change(layer, weights.block(layer)) for layer in range(len(weights.blocks)))
    layers = tuple(trace(layer, held) for layer, held in enumerate(run.dense.layers))
    return with_weights(run, replace(weights, blocks=blocks), layers)


def with_weights(run: Run, weights: Weights, layers: tuple[LayerTrace, ...] | None = None) -> Run:
    """Give a run with other weights, everything that it holds fixed as it is or as given.

    >>> from pathexpand import api
    >>> run = api.load("two-layer").run("to be")
    >>> with_weights(run, run.model.weights).value("embed", 3) == run.value("embed", 3)
    True
    """
    model = Model(Checkpoint(run.model.config, weights, run.model.tokenizer), mlp=run.model.mlp)
    dense = run.dense if layers is None else replace(run.dense, layers=layers)
    return Run(model, dense)


def _same_values(
    name: str,
    run: Run,
    changed: Run,
    target: TargetLike | Target | None,
    position: int | None,
    renamed: Callable[[Component], Component] = lambda component: component,
    *,
    sizes: Run | None = None,
    detail: str,
) -> LawResult:
    """Compare the engine's value of every path before and after; `sizes` measures both."""
    place = run.position(position)
    what = run.target(target, position=place)
    deviations = [
        unequal(changed.model.network.count(), run.model.network.count(), "number of paths")
    ]
    extra = 4 * run.model.config.d_head * max(run.model.config.n_layers, 1)
    for each in references(run if sizes is None else sizes, what, place):
        other = Path(each.path.source, tuple(map(renamed, each.path.components)))
        before = run.value(each.path, target=what, position=place)
        after = changed.value(other, what, position=place)
        bound = 2 * gamma(each.steps + len(run.tokens) + extra) * float(each.sizes.sum())
        deviations.append(Deviation(abs(before - after), bound + TINY, f"{each.path}"))
    return judged(name, deviations, detail)
