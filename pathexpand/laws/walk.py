"""Prefixes of a run's paths, taken forward from their source in numbers and in sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.laws.held import Held, Side, changed, held_of, times
from pathexpand.laws.shape import ATTENTION, MLP, Sizes, births, components, places
from pathexpand.model.weights import Mlp
from pathexpand.symbolic import Component, Head, Neuron, Path
from pathexpand.symbolic.source import source_key

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """What a path has brought so far: at query q from source position j, Σ moved[q, j] stream[j].

    Shapes: `moved` (piece, query, key), `stream` (piece, key, d_model). There is one piece until
    the path passes an MLP taken whole, which at each position is a linear map of its own.
    """

    moved: Array
    stream: Array

    def at(self, query: int) -> Array:
        """Give what has come to a query from each source position: (key, d_model)."""
        out: Array = (self.moved[:, query, :, None] * self.stream).sum(axis=0)
        return out


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """A path as far as it has come; `place` is the next place that it can pass.

    `flow` is what it brings, `size` the same in sizes, and `steps` the number of roundings that
    may have followed one another on the way, whatever the order of the operations.
    """

    path: Path
    place: int
    flow: Flow
    size: Flow
    steps: int


class Walk:
    """Takes prefixes of one run's paths forward.

    `sizes` stand in for the sizes of what the run holds fixed.
    """

    def __init__(self, run: Run, *, sizes: Held | None = None) -> None:
        """Read what the run holds fixed."""
        model, held = run.model, held_of(run)
        self.run, self.model = run, model
        self.exact = Side(model, held)
        self.size = self.exact  # exact numbers have no rounding to be measured
        if not model.weights.exact:
            bounds = changed(held, abs) if sizes is None else sizes
            self.size = Side(model, bounds, sizes=True)
        self.places = places(model.weights, model.mlp)
        self.births = births(model.weights, model.config, model.mlp)
        self.width = int(model.weights.embed.width)

    @cached_property
    def components(self) -> list[list[Component]]:
        """The components of each place."""
        model, own = self.model, Sizes.of(self.model)
        return [
            [
                c
                for part in p.parts
                for c in components(model.weights, model.mlp, p.layer, part, own)
            ]
            for p in self.places
        ]

    def starts(self) -> Iterator[Prefix]:
        """Give each source that is born in the stream."""
        dense, steps = self.run.dense, len(self.model.weights.embed_norms) * (self.width + 8)
        values, sizes = self.exact.embedded(dense), self.size.embedded(dense)
        for label in values:
            yield self._begin(label, 0, values[label], sizes[label], steps)
        for label, birth in self.births.items():
            if birth:
                born, size = (self._born(side, label) for side in (self.exact, self.size))
                yield self._begin(label, birth, born, size, self._birth_steps(label))

    def whole(self) -> Iterator[Prefix]:
        """Give every path, taken to the last stream, in no particular order."""
        pending = list(self.starts())
        while pending:
            prefix = pending.pop()
            while prefix.place < len(self.places):
                pending += [self.through(prefix, each) for each in self.components[prefix.place]]
                prefix = self.past(prefix)
            yield prefix

    def through(self, prefix: Prefix, component: Component) -> Prefix:
        """Put one more component behind a prefix."""
        place = self.places[prefix.place]
        part = ATTENTION if isinstance(component, Head) else MLP
        longer = self._normed(prefix, place.layer, [f"ln{part}"])
        longer = self._each(longer, lambda side, flow: _through(side, component, flow))
        longer = replace(
            longer,
            path=Path(prefix.path.source, (*prefix.path.components, component)),
            place=prefix.place + 1,
            steps=longer.steps + self._steps(component),
        )
        behind = [f"ln{each}_after" for each in place.parts if each >= part]
        return self._normed(longer, place.layer, [f"ln{part}_post", *behind])

    def past(self, prefix: Prefix) -> Prefix:
        """Take a prefix past a place, through none of its components."""
        place = self.places[prefix.place]
        names = [f"ln{part}_after" for part in place.parts]
        return replace(self._normed(prefix, place.layer, names), place=prefix.place + 1)

    def to_end(self, prefix: Prefix) -> Prefix:
        """Take a prefix to the last stream, through nothing more."""
        while prefix.place < len(self.places):
            prefix = self.past(prefix)
        return prefix

    # --- norms and components

    def _each(self, prefix: Prefix, move: Callable[[Side, Flow], Flow]) -> Prefix:
        """Move a prefix on both sides."""
        flow = move(self.exact, prefix.flow)
        size = flow if self.size is self.exact else move(self.size, prefix.size)
        return replace(prefix, flow=flow, size=size)

    def _normed(self, prefix: Prefix, layer: int, names: Iterable[str]) -> Prefix:
        """Send a prefix through norms of a layer, those that there are; no constant is added."""
        for name in names:
            if name in self.exact.held.layers[layer].scales:
                move = partial(_norm, layer=layer, name=name)
                steps = prefix.steps + self.width + 8
                prefix = replace(self._each(prefix, move), steps=steps)
        return prefix

    def _steps(self, component: Component) -> int:
        """Count the roundings of one component, its norms left out."""
        block, positions = self.model.weights.outline(component.layer), len(self.run.tokens)
        if isinstance(component, Head):
            return positions + self.width + int(block.attn.W_O.shape[1]) + 2 + (block.scale != 1)
        neurons = 0 if isinstance(component, Neuron) or block.mlp is None else len(block.mlp.W_out)
        return positions + self.width + neurons + 7

    # --- sources

    def _begin(self, label: str, birth: int, values: Array, sizes: Array, steps: int) -> Prefix:
        still = np.eye(len(values), dtype=int).astype(values.dtype)[None]  # (1, query, key)
        return Prefix(
            Path(label), birth, Flow(still, values[None]), Flow(still, sizes[None]), steps
        )

    def _birth_steps(self, label: str) -> int:
        """Count the roundings in a source of a layer."""
        layer, part = _origin(label)
        block = self.model.weights.outline(layer)
        names = [f"ln{part}{kind}" for kind in ("", "_post", "_after")]
        scales = self.exact.held.layers[layer].scales
        steps = sum(name in scales for name in names) * (self.width + 8) + (block.scale != 1)
        if label.endswith("M") or (part == MLP and self.model.mlp == "source"):
            return steps
        if part == MLP and block.mlp is not None:
            return steps + self.width + len(block.mlp.W_out) + 4
        return steps + len(self.run.tokens) + sum(block.attn.W_O.shape[:2]) + 2

    def _born(self, side: Side, label: str) -> Array:
        """Give what a source of a layer adds behind its place: (position, d_model)."""
        layer, part = _origin(label)
        nothing = side.embedded(self.run.dense)["embed"] * 0
        if label.endswith("M"):
            written = side.held.layers[layer].written
            assert written is not None  # the block has an MLP
            return self._after(side, layer, part, written, constants=False)
        if part == MLP and self.model.mlp == "source":
            return self._after(side, layer, part, nothing, constants=True)
        made = (
            self._attention(side, layer, nothing) if part == ATTENTION else self._mlp(side, layer)
        )
        block, name = side.block(layer), f"ln{part}_post"
        made = side.normed(getattr(block, name), side.held.layers[layer].scales.get(name), made)
        return self._after(side, layer, part, times(made, block.scale), constants=True)

    def _attention(self, side: Side, layer: int, made: Array) -> Array:
        """Add up Σ_h rowsum(A^h) (b_V + β W_V) W_O + b_O: (position, d_model)."""
        block, pattern = side.block(layer), side.held.layers[layer].pattern
        attn = block.attn
        beta = None if block.ln1 is None else block.ln1.bias
        for index in range(len(pattern)):
            shared = index // (len(attn.W_Q) // len(attn.W_V))
            seen = attn.W_V[shared, 0] * 0  # (d_head,)
            seen = seen if beta is None else seen + beta @ attn.W_V[shared] + side.tiny
            seen = seen if attn.b_V is None else seen + attn.b_V[shared]
            sums = pattern[index].sum(axis=1)[:, None]  # (query, 1)
            made = made + (sums * seen + side.tiny) @ attn.W_O[index] + side.tiny
        return made if attn.b_O is None else made + attn.b_O

    def _mlp(self, side: Side, layer: int) -> Array:
        """Give (gate (b_in + β W_in)) W_out + b_out: (position, d_model)."""
        block, gates = side.block(layer), side.held.layers[layer].gates
        mlp = block.mlp
        assert mlp is not None and gates is not None  # the source has its name from it
        beta = None if block.ln2 is None else block.ln2.bias
        hidden = gates * 0 if beta is None else gates * 0 + beta @ mlp.W_in + side.tiny
        hidden = hidden if mlp.b_in is None else hidden + mlp.b_in
        made: Array = (gates * hidden) @ mlp.W_out + side.tiny  # (position, d_model)
        return made if mlp.b_out is None else made + mlp.b_out

    def _after(self, side: Side, layer: int, part: str, rows: Array, *, constants: bool) -> Array:
        """Send what a part adds through the norms of the stream behind it.

        With `constants`, that of the part's own norm is among what is added.
        """
        place = next(p for p in self.places if p.layer == layer and part in p.parts)
        for each in (each for each in place.parts if each >= part):
            norm = getattr(side.block(layer), f"ln{each}_after")
            if norm is not None:
                scale = side.held.layers[layer].scales[f"ln{each}_after"]
                rows = side.matrix(norm, rows) * scale[:, None] + side.tiny
                if constants and each == part and norm.bias is not None:
                    rows = rows + norm.bias
        return rows


def _origin(label: str) -> tuple[int, str]:
    """Give the layer that a source is born in, and the part."""
    key = source_key(label)
    assert key is not None  # it is born in the stream
    return key[0], MLP if key[1] else ATTENTION


def _norm(side: Side, flow: Flow, *, layer: int, name: str) -> Flow:
    """Send what a path brings through a norm, whose constant is a source of its own."""
    scale = side.held.layers[layer].scales[name]  # (position,)
    norm = getattr(side.block(layer), name)
    return Flow(flow.moved * scale[:, None] + side.tiny, side.matrix(norm, flow.stream))


def _through(side: Side, component: Component, flow: Flow) -> Flow:
    """Send what a path brings through a component, the norms around it left out."""
    block, held = side.block(component.layer), side.held.layers[component.layer]
    if isinstance(component, Head):
        attn, index = block.attn, component.index
        w_v = attn.W_V[index // (len(attn.W_Q) // len(attn.W_V))]
        stream = (flow.stream @ w_v + side.tiny) @ attn.W_O[index] + side.tiny
        moved = held.pattern[index] @ flow.moved + side.tiny
        return Flow(moved, times(stream, block.scale))
    mlp, gates = block.mlp, held.gates
    assert mlp is not None and gates is not None  # it has the component
    if isinstance(component, Neuron):
        n = component.index
        read = flow.stream @ mlp.W_in[:, n] + side.tiny  # (piece, key)
        moved = flow.moved * gates[:, n, None] + side.tiny
        return Flow(moved, times(read[..., None] * mlp.W_out[n] + side.tiny, block.scale))
    whole = _whole(side, mlp, gates, flow)
    return Flow(whole.moved, times(whole.stream, block.scale))


def _whole(side: Side, mlp: Mlp, gates: Array, flow: Flow) -> Flow:
    """Send all that has come to each position, from each source position, through an MLP."""
    by_key = np.transpose(flow.moved, (2, 1, 0)) @ np.swapaxes(flow.stream, 0, 1)
    there = np.swapaxes(by_key, 0, 1) + side.tiny  # (query, key, d_model)
    active = (there @ mlp.W_in + side.tiny) * gates[:, None] + side.tiny  # (query, key, neuron)
    made = active @ mlp.W_out + side.tiny  # (query, key, d_model)
    # Each query is a piece of its own from here on.
    still = np.eye(len(gates), dtype=int).astype(flow.moved.dtype)
    return Flow(np.repeat(still[:, :, None], len(gates), axis=2), made)
