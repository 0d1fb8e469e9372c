"""Random small models of every kind, made to be unlike each other in every way that matters.

Sizes are different primes, weights do not commute, biases are nonzero, positions come in every
kind: what is symmetric hides mistakes.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pathexpand.api import Model, from_state_dict
from pathexpand.laws.design import Design, Fill, build
from pathexpand.laws.held import NORMS, Held, HeldLayer
from pathexpand.model.config import Config, Direction, Positions
from pathexpand.model.weights import wanted_shapes

Array = npt.NDArray[Any]
Biases = Literal["all", "some", "none"]


def random_model(
    *,
    seed: int,
    n_layers: int = 2,
    n_heads: int = 3,
    d_model: int = 7,
    d_head: int = 2,
    d_vocab: int = 13,
    d_vocab_out: int = 11,
    n_ctx: int = 5,
    positions: Positions = "standard",
    direction: Direction = "causal",
    biases: Biases = "all",
    attn_scale: float | None = None,
    scale: float = 1.0,
) -> Model:
    """Make a random attention-only model with normal weights, the same for the same arguments.

    Weights have standard deviation `scale` over the root of the size they sum over. With "some"
    biases, each bias of each layer is there or not by a throw of a coin.

    >>> random_model(seed=1)
    Model('random-1': 2 layers × 3 heads, d_model 7, vocabulary 13)
    """
    config = _config(
        seed, n_layers, n_heads, d_model, d_head, d_vocab, d_vocab_out, n_ctx, positions, direction
    )
    if attn_scale is not None:
        config = Config(**_settings(config) | {"attn_scale": (attn_scale,) * n_layers})
    rng = np.random.default_rng(seed)

    def fill(shape: tuple[int, ...]) -> Array:
        rows = shape[-2] if len(shape) > 1 else 1
        return np.asarray(rng.normal(size=shape) * scale / np.sqrt(max(rows, 1)))

    return _filled(config, rng, fill, biases)


def rational_model(
    *,
    seed: int,
    n_layers: int = 2,
    n_heads: int = 2,
    d_model: int = 3,
    d_head: int = 2,
    d_vocab: int = 7,
    d_vocab_out: int = 5,
    n_ctx: int = 5,
    positions: Positions = "standard",
    direction: Direction = "causal",
    biases: Biases = "all",
) -> Model:
    """Make a random model whose weights are small fractions (dtype object).

    >>> type(rational_model(seed=1).weights.W_E[0, 0]).__name__
    'Fraction'
    """
    config = _config(
        seed, n_layers, n_heads, d_model, d_head, d_vocab, d_vocab_out, n_ctx, positions, direction
    )
    rng = np.random.default_rng(seed)
    return _filled(config, rng, lambda shape: _rationals(rng, shape), biases)


def rational_patterns(model: Model, positions: int, *, seed: int) -> list[Array]:
    """Make rational patterns (head, query, key), one array a layer.

    They need not be anything that a softmax gives: rows do not sum to 1, some are 0 throughout,
    some entries are negative. In a causal model later keys stay 0.

    >>> [pattern.shape for pattern in rational_patterns(rational_model(seed=1), 3, seed=2)]
    [(2, 3, 3), (2, 3, 3)]
    """
    rng, config = np.random.default_rng(seed), model.config
    patterns = []
    for _ in range(config.n_layers):
        pattern = _rationals(rng, (config.n_heads, positions, positions))
        pattern[rng.random((config.n_heads, positions)) < 0.2] = Fraction(0)
        if config.attention_dir == "causal":
            pattern[:, ~np.tri(positions, dtype=bool)] = Fraction(0)
        patterns.append(pattern)
    return patterns


def rational_transformer(design: Design, *, seed: int) -> Model:
    """Make a random model of a design whose weights are small fractions (dtype object).

    >>> type(rational_transformer(Design(), seed=1).weights.W_E[0, 0]).__name__
    'Fraction'
    """
    rng = np.random.default_rng(seed)
    return build(design, lambda shape: _rationals(rng, shape), number=Fraction)


def rational_held(model: Model, positions: int, *, seed: int) -> Held:
    """Make all that a model's run holds fixed, of small fractions.

    It need not be anything that a run gives: scales and gates are 0 or negative here and there.

    >>> held = rational_held(rational_transformer(Design(), seed=1), 3, seed=2)
    >>> sorted(held.layers[0].scales), held.final_scale.shape
    (['ln1', 'ln2'], (3,))
    """
    rng = np.random.default_rng(seed)
    held = given_held(model, positions, lambda shape: _rationals(rng, shape))
    patterns = rational_patterns(model, positions, seed=seed + 1)
    layers = (replace(each, pattern=p) for each, p in zip(held.layers, patterns, strict=True))
    return replace(held, layers=tuple(layers))


def given_held(model: Model, positions: int, fill: Fill) -> Held:
    """Make all that a model's run holds fixed; `fill` gives each array by its shape.

    Patterns see every key, also in a causal model.

    >>> held = given_held(rational_transformer(Design(), seed=1), 3, lambda shape: np.ones(shape))
    >>> held.layers[1].pattern.shape, held.layers[1].gates.shape
    ((4, 3, 3), (3, 5))
    """
    weights, width = model.weights, model.config.d_model
    layers = []
    for layer in range(model.config.n_layers):
        block = weights.outline(layer)
        scales = {name: fill((positions,)) for name in NORMS if getattr(block, name) is not None}
        pattern = fill((model.config.n_heads, positions, positions))
        inner = None if block.mlp is None else (positions, len(block.mlp.W_out))
        layers.append(
            HeldLayer(
                pattern,
                scales,
                None if inner is None else fill(inner),
                None if inner is None else fill((positions, width)),
            )
        )
    head = weights.transform
    return Held(
        tuple(layers),
        tuple(fill((positions,)) for _ in weights.embed_norms),
        None if weights.final_norm is None else fill((positions,)),
        None if head is None else fill((positions, width)),
        None if head is None or head.norm is None else fill((positions,)),
    )


def _config(
    seed: int,
    n_layers: int,
    n_heads: int,
    d_model: int,
    d_head: int,
    d_vocab: int,
    d_vocab_out: int,
    n_ctx: int,
    positions: Positions,
    direction: Direction,
) -> Config:
    return Config(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=d_model,
        d_head=d_head,
        d_vocab=d_vocab,
        d_vocab_out=d_vocab_out,
        n_ctx=n_ctx,
        positional_embedding_type=positions,
        attention_dir=direction,
        model_name=f"random-{seed}",
    )


def _settings(config: Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in Config.__dataclass_fields__}


def _filled(config: Config, rng: np.random.Generator, fill: Any, biases: Biases) -> Model:
    tensors: dict[str, Array] = {}
    for name, (shape, _) in wanted_shapes(config).items():
        is_bias = name.rsplit(".", 1)[-1].startswith("b_")
        chance = {"all": 1.0, "some": 0.5, "none": 0.0}[biases]
        if not is_bias or rng.random() < chance:
            tensors[name] = fill(shape)
    return from_state_dict(tensors, config)


def _rationals(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Give fractions with small numerators and denominators, few of them 0."""
    above = rng.integers(-5, 6, size=shape)
    below = rng.integers(1, 5, size=shape)
    out = np.empty(shape, dtype=object)
    out.ravel()[:] = [
        Fraction(int(p), int(q)) for p, q in zip(above.ravel(), below.ravel(), strict=True)
    ]
    return out
