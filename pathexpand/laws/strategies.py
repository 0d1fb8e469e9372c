"""Hypothesis strategies for models, prompts and targets (the extra `pathexpand[laws]`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pathexpand.api import Model
from pathexpand.laws.problems import random_model, rational_model, rational_patterns
from pathexpand.symbolic import Network
from pathexpand.target import TargetLike

Array = npt.NDArray[Any]
_SEEDS = st.integers(0, 2**32 - 1)


@dataclass(frozen=True, slots=True, eq=False)
class RationalProblem:
    """A model with rational weights, token ids, and a pattern (head, query, key) for each layer."""

    model: Model
    tokens: list[int]
    patterns: list[Array]


@st.composite
def networks(draw: st.DrawFn, *, max_layers: int = 4, max_heads: int = 3) -> Network:
    """Draw symbolic attention-only networks: any number of heads a layer, any sources.

    >>> from hypothesis import find
    >>> find(networks(), lambda network: True).count()
    1
    """
    heads = draw(st.lists(st.integers(0, max_heads), max_size=max_layers))
    return Network.attention_only(
        heads=tuple(heads),
        positions=draw(st.booleans()),
        biases=draw(st.booleans()),
        unembed_bias=draw(st.booleans()),
    )


@st.composite
def models(draw: st.DrawFn, *, max_layers: int = 3, max_heads: int = 3) -> Model:
    """Draw small attention-only models with float weights.

    Sizes are different primes; positions standard, shortformer or none; causal or bidirectional;
    all, some or no biases; own attention scale; weights from tiny to large.

    >>> from hypothesis import find
    >>> find(models(), lambda model: True).config.n_layers
    0
    """
    d_head, d_model = draw(st.sampled_from([(1, 3), (2, 5), (3, 7), (5, 2), (1, 1), (7, 7)]))
    return random_model(
        seed=draw(_SEEDS),
        n_layers=draw(st.integers(0, max_layers)),
        n_heads=draw(st.integers(1, max_heads)),
        d_model=d_model,
        d_head=d_head,
        d_vocab=draw(st.sampled_from([2, 11, 13])),
        d_vocab_out=draw(st.sampled_from([1, 3, 17])),
        n_ctx=draw(st.sampled_from([1, 5, 6])),
        positions=draw(st.sampled_from(["none", "standard", "shortformer"])),
        direction=draw(st.sampled_from(["causal", "bidirectional"])),
        biases=draw(st.sampled_from(["none", "all", "some"])),
        attn_scale=draw(st.sampled_from([None, 1.0, 0.25])),
        scale=draw(st.sampled_from([1.0, 3.0, 1e-5, 1e5])),
    )


@st.composite
def rational_models(draw: st.DrawFn, *, max_layers: int = 3, max_heads: int = 2) -> RationalProblem:
    """Draw small models with exact rational weights, token ids, and rational patterns for them.

    >>> from hypothesis import find
    >>> find(rational_models(), lambda problem: True).tokens
    [0]
    """
    d_head, d_model = draw(st.sampled_from([(1, 2), (2, 3), (1, 1), (3, 2), (2, 2)]))
    model = rational_model(
        seed=draw(_SEEDS),
        n_layers=draw(st.integers(0, max_layers)),
        n_heads=draw(st.integers(1, max_heads)),
        d_model=d_model,
        d_head=d_head,
        d_vocab=draw(st.sampled_from([2, 5])),
        d_vocab_out=draw(st.sampled_from([1, 3])),
        n_ctx=4,
        positions=draw(st.sampled_from(["none", "standard", "shortformer"])),
        direction=draw(st.sampled_from(["causal", "bidirectional"])),
        biases=draw(st.sampled_from(["none", "all", "some"])),
    )
    tokens = draw(prompts(model, max_length=4))
    return RationalProblem(model, tokens, rational_patterns(model, len(tokens), seed=draw(_SEEDS)))


def prompts(model: Model, *, max_length: int | None = None) -> st.SearchStrategy[list[int]]:
    """Draw token ids for any loaded model: any ids, of any length the model can read.

    >>> from hypothesis import find
    >>> find(prompts(random_model(seed=1)), lambda tokens: len(tokens) > 1)
    [0, 0]
    """
    longest = model.config.n_ctx if max_length is None else min(max_length, model.config.n_ctx)
    ids = st.integers(0, model.config.d_vocab - 1)
    return st.lists(ids, min_size=1, max_size=longest)


def targets(model: Model) -> st.SearchStrategy[TargetLike]:
    """Draw targets of every kind for a model: an id, a pair of ids, a direction.

    >>> from hypothesis import find
    >>> find(targets(random_model(seed=1)), lambda target: True)
    0
    """
    ids = st.integers(0, model.config.d_vocab_out - 1)
    kinds: list[st.SearchStrategy[Any]] = [ids]
    if model.config.d_vocab_out > 1:
        kinds.append(st.lists(ids, min_size=2, max_size=2, unique=True).map(tuple))
    numbers = st.lists(
        st.integers(-9, 9), min_size=model.config.d_model, max_size=model.config.d_model
    )
    kinds.append(numbers.map(lambda values: np.array(values, dtype=float)))
    return st.one_of(kinds)
