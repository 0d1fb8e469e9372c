"""Runs small enough for every path to be evaluated, cut out of larger ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from pathexpand.api import Model, Run
from pathexpand.laws.shape import Sizes, path_count
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.config import Config
from pathexpand.model.forward import forward
from pathexpand.model.weights import Attention, Block, HeadNorm, Mlp

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Cut:
    """A run small enough for every path of it to be evaluated, and what was cut to get there."""

    run: Run
    sizes: Sizes
    detail: str


def cut(run: Run, *, operations: float = 2e9, paths: int = 5_000) -> Cut:
    """Keep the first neurons, heads and layers, until every path can be evaluated.

    What stays is a smaller model in its own right, with the run's own attention patterns; the
    dense pass is run again on it. Heads that share keys and values are kept or cut together, as
    long as there are others. `operations` and `paths` are what may be spent. A small model comes
    back as it is.

    >>> from pathexpand import api
    >>> run = api.load("two-layer").run("to be")
    >>> cut(run).detail, cut(run, paths=9).detail
    ('all 25 paths', 'all 9 paths of the first 2 of 4 heads a layer')
    """
    model, whole = run.model, Sizes.of(run.model)
    most = min(paths, int(operations / _work(run)))
    sizes = whole
    while _count(model, sizes) > most and (smaller_sizes := _smaller(model, sizes)) is not None:
        sizes = smaller_sizes
    return cut_by(run, sizes)


def cut_by(run: Run, sizes: Sizes) -> Cut:
    """Keep the first layers, heads and neurons, and say so.

    >>> from pathexpand import api
    >>> cut_by(api.load("two-layer").run("to be"), Sizes(1, 4, 0)).detail
    'all 5 paths of the first 1 of 2 layers'
    """
    whole = sizes == Sizes.of(run.model)
    smaller = run if whole else cut_to(run, sizes)
    detail = f"all {smaller.model.network.count():,} paths"
    return Cut(smaller, sizes, detail if whole else detail + _kept(run.model.config, sizes))


def cut_to(run: Run, sizes: Sizes) -> Run:
    """Keep the first layers, heads and neurons, with the run's own patterns.

    >>> from pathexpand import api
    >>> cut_to(api.load("two-layer").run("to be"), Sizes(1, 3, 0)).model.network.count()
    4
    """
    weights, dense = run.model.weights, run.dense
    blocks = tuple(_block(weights.block(n), run.model, sizes) for n in range(sizes.layers))
    smaller, config = replace(weights, blocks=blocks), _config(run.model.config, sizes)
    patterns = [pattern[:, : sizes.heads] for pattern in dense.patterns[: sizes.layers]]
    again = forward(smaller, config, dense.tokens, dense.mask, patterns=patterns, types=dense.types)
    return Run(Model(Checkpoint(config, smaller, run.model.tokenizer), mlp=run.model.mlp), again)


def group_size(config: Config) -> int:
    """Give how many heads share keys and values."""
    return max(config.n_heads // max(config.n_key_value_heads, 1), 1)


def _work(run: Run) -> float:
    """Give the operations that one step of a path takes, in numbers and in sizes."""
    config, positions = run.model.config, len(run.tokens)
    one = 4 * positions * (2 * config.d_model * max(config.d_head, 1) + positions**2)
    if run.model.mlp == "frozen":  # one piece a position
        one *= positions
        one += 4 * positions**2 * 2 * config.d_model * config.d_mlp
    return one


def _count(model: Model, sizes: Sizes) -> int:
    return path_count(model.weights, model.config, model.mlp, sizes)


def _smaller(model: Model, sizes: Sizes) -> Sizes | None:
    """Give the next smaller sizes to try: neurons go first, whole groups of heads, then layers."""
    group = group_size(model.config)
    if model.mlp == "neurons" and sizes.neurons > 3:
        return replace(sizes, neurons=max(sizes.neurons // 2, 3))
    if sizes.heads > group:
        return replace(sizes, heads=sizes.heads - group)
    if sizes.layers > 2:
        return replace(sizes, layers=sizes.layers - 1)
    if model.mlp == "neurons" and sizes.neurons > 1:
        return replace(sizes, neurons=sizes.neurons - 1)
    if sizes.heads > 1:
        return replace(sizes, heads=sizes.heads - 1)
    return replace(sizes, layers=sizes.layers - 1) if sizes.layers > 1 else None


def _kept(config: Config, sizes: Sizes) -> str:
    parts = []
    if sizes.heads < config.n_heads:
        parts.append(f"{sizes.heads} of {config.n_heads} heads a layer")
    if sizes.neurons < config.d_mlp:
        parts.append(f"{sizes.neurons} of {config.d_mlp} neurons a layer")
    if sizes.layers < config.n_layers:
        parts.append(f"{sizes.layers} of {config.n_layers} layers")
    return " of " + ", ".join(f"the first {part}" for part in parts)


def _config(config: Config, sizes: Sizes) -> Config:
    """Give the configuration of the first layers, heads and neurons."""
    layers, heads = sizes.layers, sizes.heads
    return replace(
        config,
        n_layers=layers,
        n_heads=heads,
        n_key_value_heads=max(heads // group_size(config), 1 if heads else 0),
        d_mlp=sizes.neurons,
        attn_scale=config.attn_scale[:layers],
        window=config.window[:layers],
        rotary=config.rotary[:layers],
        alibi=config.alibi[:heads],
    )


def _block(block: Block, model: Model, sizes: Sizes) -> Block:
    attn = _attention(block.attn, sizes.heads, group_size(model.config))
    mlp = None if block.mlp is None else _mlp(block.mlp, sizes.neurons)
    return replace(block, attn=attn, mlp=mlp)


def _attention(attn: Attention, heads: int, group: int) -> Attention:
    """Keep the first heads, and the key-value heads that they read."""
    shared = max(heads // group, 1)

    def first(array: Any, count: int) -> Any:
        return None if array is None else array[:count]

    def norm(each: HeadNorm | None, count: int) -> HeadNorm | None:
        if each is None:
            return None
        return replace(each, weight=first(each.weight, count), bias=first(each.bias, count))

    kept = {name: first(getattr(attn, name), heads) for name in ("W_Q", "W_O", "b_Q", "sinks")}
    kept |= {name: first(getattr(attn, name), shared) for name in ("W_K", "W_V", "b_K", "b_V")}
    q_norm, k_norm = norm(attn.q_norm, heads), norm(attn.k_norm, shared)
    return replace(attn, **kept, q_norm=q_norm, k_norm=k_norm)


def _mlp(mlp: Mlp, neurons: int) -> Mlp:
    """Keep the first neurons."""

    def first(array: Array | None) -> Any:
        return None if array is None else array[..., :neurons]

    return replace(
        mlp,
        W_in=first(mlp.W_in),
        W_gate=first(mlp.W_gate),
        b_in=first(mlp.b_in),
        b_gate=first(mlp.b_gate),
        W_out=mlp.W_out[:neurons],
    )
