"""Hypothesis strategies for models, prompts and targets (the extra `pathexpand[laws]`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pathexpand.api import Model
from pathexpand.laws.design import Design, random_transformer
from pathexpand.laws.design import Positions as DesignPositions
from pathexpand.laws.held import Held, HeldLayer
from pathexpand.laws.problems import (
    random_model,
    rational_held,
    rational_model,
    rational_patterns,
    rational_transformer,
)
from pathexpand.symbolic import Network
from pathexpand.target import TargetLike

Array = npt.NDArray[Any]
_SEEDS = st.integers(0, 2**32 - 1)


@dataclass(frozen=True, slots=True, eq=False)
class RationalProblem:
    """A model with rational weights, token ids, and all that a run on them holds fixed."""

    model: Model
    tokens: list[int]
    held: Held


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
    patterns = rational_patterns(model, len(tokens), seed=draw(_SEEDS))
    return RationalProblem(model, tokens, Held(tuple(map(HeldLayer, patterns))))


@st.composite
def designs(
    draw: st.DrawFn, *, max_layers: int = 2, max_group: int = 3, max_neurons: int = 5
) -> Design:
    """Draw architectures: each norm there or not, MLPs of each kind and mode, grouped heads, ….

    >>> from hypothesis import find
    >>> find(designs(), lambda design: design.mlp == "neurons").d_mlp
    0
    """
    shared, parallel = draw(st.sampled_from([1, 2])), draw(st.booleans())
    # In a parallel block no norm of the stream stands between attention and the MLP.
    names = (
        "ln1",
        "ln2",
        "ln1_post",
        "ln2_post",
        *(() if parallel else ("ln1_after", "ln2_after")),
    )
    return Design(
        n_layers=draw(st.integers(0, max_layers)),
        n_heads=shared * draw(st.integers(1, max_group)),
        n_key_value_heads=shared,
        d_model=draw(st.sampled_from([3, 5, 7])),
        d_head=draw(st.sampled_from([1, 2, 3])),
        d_mlp=draw(st.sampled_from([n for n in (0, 2, 3, 5) if n <= max_neurons])),
        d_vocab=draw(st.sampled_from([2, 11, 13])),
        d_vocab_out=draw(st.sampled_from([1, 3, 17])),
        n_ctx=draw(st.sampled_from([1, 4, 5])),
        positions=draw(st.sampled_from(get_args(DesignPositions))),
        direction=draw(st.sampled_from(["causal", "bidirectional"])),
        window=draw(st.sampled_from([None, 1, 2])),
        sinks=draw(st.booleans()),
        biases=draw(st.booleans()),
        norm=draw(st.sampled_from(["layer", "rms"])),
        norms=tuple(name for name in names if draw(st.booleans())),
        affine=draw(st.booleans()),
        final_norm=draw(st.booleans()),
        embed_norms=draw(st.sampled_from([0, 1, 2])),
        head_norm=draw(st.sampled_from([None, "each", "across"])),
        act=draw(st.sampled_from(["gelu", "relu", "silu", "relu2", "gelu_new"])),
        gated=draw(st.booleans()),
        parallel=parallel,
        residual_scale=draw(st.sampled_from([1.0, 0.5, -3.0])),
        types=draw(st.sampled_from([0, 2])),
        transform=draw(st.booleans()),
        attn_scale=draw(st.sampled_from([None, 0.25])),
        score_cap=draw(st.sampled_from([None, 5.0])),
        mlp=draw(st.sampled_from(["source", "frozen", "neurons"])),
    )


@st.composite
def transformers(draw: st.DrawFn, *, max_layers: int = 2, max_neurons: int = 5) -> Model:
    """Draw small models of every architecture with float weights, from small to large.

    >>> from hypothesis import find
    >>> find(transformers(), lambda model: model.config.d_mlp > 0).config.d_mlp
    2
    """
    design = draw(designs(max_layers=max_layers, max_neurons=max_neurons))
    scale = draw(st.sampled_from([1.0, 3.0, 1e-3, 30.0]))
    return random_transformer(design, seed=draw(_SEEDS), scale=scale)


@st.composite
def rational_transformers(draw: st.DrawFn, *, max_layers: int = 2) -> RationalProblem:
    """Draw small models of every architecture with exact weights, token ids, and what is held.

    >>> from hypothesis import find
    >>> len(find(rational_transformers(), lambda problem: len(problem.tokens) == 2).tokens)
    2
    """
    design = draw(designs(max_layers=max_layers, max_group=2, max_neurons=3))
    model = rational_transformer(design, seed=draw(_SEEDS))
    tokens = draw(prompts(model, max_length=3))
    return RationalProblem(model, tokens, rational_held(model, len(tokens), seed=draw(_SEEDS)))


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
