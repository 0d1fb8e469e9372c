"""Where a model's components stand and its sources are born, read from the weights alone.

The engine's own network is left out of it, so that each can be held against the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from pathexpand.api import Model
from pathexpand.frozen import MlpMode
from pathexpand.model.config import Config
from pathexpand.model.weights import Array, Block, Norm, Weights
from pathexpand.symbolic import Component, Head, Mlp, Neuron

ATTENTION, MLP = "1", "2"  # the parts of a layer, by the number in the names of their norms


@dataclass(frozen=True, slots=True)
class Place:
    """One place that a path passes: the parts of a layer that read the same stream."""

    layer: int
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many heads each layer has and, where they are components, how many neurons."""

    layers: int
    heads: int
    neurons: int

    @classmethod
    def of(cls, model: Model) -> Sizes:
        """Give the sizes of a model."""
        return cls(model.config.n_layers, model.config.n_heads, model.config.d_mlp)


def places(weights: Weights, mode: MlpMode) -> tuple[Place, ...]:
    """Give every place of a model, from the first layer to the last.

    Attention and the MLP of a layer are two places, unless the MLP reads what attention reads or
    is a source that nothing of its layer follows.

    >>> from pathexpand import api
    >>> len(places(api.load("two-layer").weights, "source"))
    2
    """
    found = []
    for layer in range(len(weights.blocks)):
        block = weights.outline(layer)
        apart = block.mlp is not None and not block.parallel
        if apart and (mode != "source" or block.ln2_after is not None):
            found += [Place(layer, (ATTENTION,)), Place(layer, (MLP,))]
        else:
            found.append(Place(layer, (ATTENTION, MLP)))
    return tuple(found)


def components(
    weights: Weights, mode: MlpMode, layer: int, part: str, sizes: Sizes
) -> list[Component]:
    """Give the components of one part of a layer."""
    if part == ATTENTION:
        return [Head(layer, index) for index in range(sizes.heads)]
    if mode == "source" or weights.outline(layer).mlp is None:
        return []
    if mode == "frozen":
        return [Mlp(layer)]
    return [Neuron(layer, index) for index in range(sizes.neurons)]


def births(weights: Weights, config: Config, mode: MlpMode) -> dict[str, int | None]:
    """Give each source with the number of places behind which it is born, None in the logits.

    >>> from pathexpand import api
    >>> model = api.load("two-layer")
    >>> births(model.weights, model.config, "source")
    {'embed': 0}
    """
    found: dict[str, int | None] = {"embed": 0}
    if weights.pos is not None and config.positional_embedding_type == "standard":
        found["pos"] = 0
    if weights.types is not None:
        found["type"] = 0
    if _any(_bias(norm) for norm in weights.embed_norms):
        found["embedbias"] = 0
    for number, place in enumerate(places(weights, mode), start=1):
        block = weights.outline(place.layer)
        if ATTENTION in place.parts and _any(attention_constants(block)):
            found[f"L{place.layer}bias"] = number
        if MLP in place.parts and block.mlp is not None:
            if mode == "source":
                found[f"L{place.layer}M"] = number
            if _any(mlp_constants(block, mode)):
                found[f"L{place.layer}Mbias"] = number
    if _any(logit_constants(weights)):
        found["b_U"] = None
    return found


def attention_constants(block: Block) -> list[Array | None]:
    """Give all that attention adds and that does not come from the stream."""
    attn = block.attn
    norms = (block.ln1, block.ln1_post, block.ln1_after)
    return [attn.b_V, attn.b_O, *map(_bias, norms)]


def mlp_constants(block: Block, mode: MlpMode) -> list[Array | None]:
    """Give all that an MLP adds and that comes neither from the stream nor from its source."""
    if block.mlp is None or mode == "source":
        return [_bias(block.ln2_after)]
    norms = (block.ln2, block.ln2_post, block.ln2_after)
    return [block.mlp.b_in, block.mlp.b_out, *map(_bias, norms)]


def logit_constants(weights: Weights) -> list[Array | None]:
    """Give all that is added behind the last layer."""
    head = weights.transform
    found = [weights.b_U, _bias(weights.final_norm)]
    return found if head is None else [*found, head.b, _bias(head.norm)]


def path_count(weights: Weights, config: Config, mode: MlpMode, sizes: Sizes) -> int:
    """Count the paths of the first layers, heads and neurons: a product for each source.

    A source has Π (1 + components) paths over the places behind it; one in the logits has one.
    """
    some = [place for place in places(weights, mode) if place.layer < sizes.layers]
    factors = [
        1 + sum(len(components(weights, mode, place.layer, p, sizes)) for p in place.parts)
        for place in some
    ]
    born = births(weights, config, mode).values()
    return sum(
        1 if birth is None else prod(factors[birth:])
        for birth in born
        if birth is None or birth <= len(some)
    )


def _any(biases: Iterable[Array | None]) -> bool:
    return any(bias is not None for bias in biases)


def _bias(norm: Norm | None) -> Array | None:
    return None if norm is None else norm.bias
