"""A run made anew, with what is held fixed in it: the ground every check stands on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Run
from pathexpand.certificate.block import FixedBlock
from pathexpand.certificate.doubt import attention_doubt, mlp_doubt
from pathexpand.certificate.heads import Heads
from pathexpand.certificate.neurons import Neurons
from pathexpand.certificate.norm import FixedNorm
from pathexpand.certificate.part import Part
from pathexpand.certificate.whole import WholeMlp
from pathexpand.engine.rounding import TINY, gamma
from pathexpand.errors import CompositionError
from pathexpand.symbolic import Component, Head, Mlp, Network, Neuron
from pathexpand.target import Target

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class HeldSource:
    """What is born in the stream once `boundary` stages are passed: `values` (position, d_model).

    `size` (position, d_model) is at least |values|; rounding is measured by it, and `steps` are the
    roundings that may follow one another on the way to the values. `doubt` is how far, in
    proportion to the size, they may lie from those that the search saw.
    """

    label: str
    boundary: int
    values: Array
    size: Array
    steps: int = 0
    doubt: float = 0.0

    def blur(self, unit: float = 0.0) -> Array:
        """Bound what the values, and products of `unit` with them, may be off by."""
        return (unit + 2 * gamma(self.steps) + self.doubt) * (self.size + TINY)


@dataclass(frozen=True, slots=True, eq=False)
class HeldStage:
    """Components that read one stream, and the norm that the stream itself passes, if any."""

    parts: tuple[Part, ...]
    norm: FixedNorm | None = None

    @property
    def components(self) -> tuple[Component, ...]:
        """The components, in order."""
        return tuple(each for part in self.parts for each in part.components)

    def numbered(self) -> Iterator[tuple[slice, Part]]:
        """Yield the parts, each with where its components stand in the stage."""
        start = 0
        for part in self.parts:
            yield slice(start, start + len(part.components)), part
            start += len(part.components)


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A run as the checks see it, up to the last position that the readout can see.

    `direction` (d_model,) and `constant` are what is read at `position`; `read_blur` bounds, for
    the sizes of a stream there (d_model,), what that may be off by, and `read_lost` the length of
    what the direction itself may be off by. `dense` are the sizes
    (position, d_model) of what rounding may do to the dense pass, at the boundary it enters at.
    `doubts` are those of all that is held fixed: 0 where it is the same bit for bit.
    """

    stages: tuple[HeldStage, ...]
    sources: tuple[HeldSource, ...]
    position: int
    direction: Array
    constant: float
    constant_lost: float
    read_blur: Callable[[Array], float]
    read_lost: float
    dense: tuple[tuple[int, Array], ...]
    network: Network
    doubts: tuple[float, ...]
    _places: dict[Component, tuple[int, Part, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Note where each component is."""
        places = {
            component: (number, part, index)
            for number, stage in enumerate(self.stages)
            for part in stage.parts
            for index, component in enumerate(part.components)
        }
        object.__setattr__(self, "_places", places)

    @property
    def positions(self) -> int:
        """The number of positions."""
        return int(self.sources[0].values.shape[0])

    @property
    def width(self) -> int:
        """The size of the stream."""
        return int(self.direction.size)

    @property
    def depth(self) -> int:
        """The number of stages."""
        return len(self.stages)

    @property
    def steps(self) -> int:
        """The most roundings that one product through one stage meets."""
        most = max((part.steps for stage in self.stages for part in stage.parts), default=0)
        return 2 * (most + self.positions + self.width) + 8

    def place(self, component: Component) -> tuple[int, Part, int]:
        """Give a component's stage, its part and its index there."""
        return self._places[component]

    def source(self, label: str) -> HeldSource:
        """Give a source of the stream by its label."""
        return next(each for each in self.sources if each.label == label)


def hold(run: Run, target: Target, position: int, *, same: bool) -> Held:
    """Hold a run fixed; `same` says that the search saw this very run, bit for bit.

    Norms are folded here anew, from the model's weights and the scales that the dense pass used.

    >>> from pathexpand.api import load
    >>> run = load("two-layer").run("to be or not to")
    >>> held = hold(run, run.target(), 2, same=True)
    >>> held.positions, held.sources[0].label
    (3, 'embed')
    """
    causal = run.model.config.attention_dir == "causal"
    made = _Making(run, position + 1 if causal else len(run.tokens), same=same)
    made.add_embedding()
    for layer in range(len(run.model.weights.blocks)):
        made.add_layer(layer)
    readout = target.readout(run.unembed, position)
    constant = float(readout.constant)

    def read_blur(sizes: Array) -> float:
        found = gamma(2 * sizes.size + 8) * float(sizes @ abs(readout.direction))
        # Rounding of the readout itself shows only where it is not the same bit for bit.
        return found if same else found + 64 * target.rounding(run.unembed, position, sizes)

    held = Held(
        stages=tuple(made.stages),
        sources=tuple(made.sources),
        position=position,
        direction=readout.direction,
        constant=constant,
        constant_lost=read_blur(np.zeros_like(readout.direction)) + gamma(2) * abs(constant),
        read_blur=read_blur,
        read_lost=0.0 if same else read_blur(np.ones_like(readout.direction)),
        dense=tuple(made.dense),
        network=run.model.network,
        doubts=tuple(made.doubts),
    )
    _check_structure(held)
    return held


def fixed_digest(run: Run) -> str:
    """Give the SHA-256 of all that a run holds fixed, as float64 (hexadecimal).

    That is its attention patterns, the scales of its norms, the gates of its MLPs or, where they
    are sources, what they wrote.

    >>> from pathexpand.api import load
    >>> len(fixed_digest(load("two-layer").run("to be")))
    64
    """
    digest = hashlib.sha256()
    for name, array in _fixed(run):
        digest.update(f"{name} {array.shape}\n".encode())
        digest.update(array.astype("<f8").tobytes())
    return digest.hexdigest()


def _fixed(run: Run) -> Iterator[tuple[str, Array]]:
    scales = ("scale1", "scale2", "scale1_post", "scale2_post", "scale1_after", "scale2_after")
    own = ("pattern", *scales, "mlp_out" if run.model.mlp == "source" else "gates")
    whole = ("final_scale", "transform_gates", "transform_scale")
    yield from ((f"embed {n}", scale[0]) for n, scale in enumerate(run.dense.embed_scales))
    for layer, trace in enumerate(run.dense.layers):
        named = ((name, getattr(trace, name)) for name in own)
        yield from ((f"L{layer} {name}", array[0]) for name, array in named if array is not None)
    named = ((name, getattr(run.dense, name)) for name in whole)
    yield from ((name, array[0]) for name, array in named if array is not None)


class _Making:
    """What is held, as far as the layers have been seen."""

    def __init__(self, run: Run, size: int, *, same: bool) -> None:
        """Start with nothing; `size` is the number of positions."""
        self.run, self.size, self.same = run, size, same
        self.stages: list[HeldStage] = []
        self.sources: list[HeldSource] = []
        self.dense: list[tuple[int, Array]] = []
        self.doubts: list[float] = []
        self.labels = {source.label for source in run.model.network.sources}

    def add_embedding(self) -> None:
        """Add what is born before the first stage, behind the norms of the embedding."""
        run, size, weights = self.run, self.size, self.run.model.weights
        found = {"embed": weights.embedded(run.tokens[:size])}
        if "pos" in self.labels:
            found["pos"] = weights.positions(run.dense.places[0, :size])
        if weights.types is not None:
            types = run.dense.types
            at = np.zeros(size, dtype=np.int64) if types is None else types[0, :size]
            found["type"] = weights.types.at(at)
        if "embedbias" in self.labels:
            found["embedbias"] = np.zeros_like(found["embed"])
        sizes, doubt, steps = {label: abs(each) for label, each in found.items()}, 0.0, 4
        for norm, scale in zip(weights.embed_norms, run.dense.embed_scales, strict=True):
            fixed = FixedNorm(norm, scale[0, :size])
            doubt += 0.0 if self.same else fixed.scale_doubt(_joined(found), self.width)
            for label, values in found.items():
                born = label == "embedbias"
                found[label] = fixed.applied(values) if born else fixed.push(values)
                sizes[label] = fixed.size(sizes[label])
            steps += 2 * (self.width + 8)
        for label, values in found.items():
            self.sources.append(HeldSource(label, 0, values, sizes[label], steps, doubt))
        self.dense.append((0, gamma(steps) * _joined(sizes)))
        self.doubts.append(doubt)

    @property
    def width(self) -> int:
        """The size of the stream."""
        return self.run.model.weights.embed.width

    def add_layer(self, layer: int) -> None:
        """Add a layer's stages, and what is born in it."""
        trace, run = self.run.dense.layers[layer], self.run
        fixed = FixedBlock.of(run.model.weights.block(layer), trace, self.size)
        stream = run.dense.residual[layer][0, : self.size]
        middle = stream if trace.middle is None else trace.middle[0, : self.size]
        one, two = self._layer_doubts(fixed, layer, stream, middle)
        heads, own = _heads(fixed, layer, one), _own(fixed, layer, run.model.mlp, two)
        first = (heads, *own) if self._is_one_stage(fixed) else (heads,)
        self.stages.append(HeldStage(first, _passed(fixed, "1", one)))
        nothing = np.zeros_like(stream)
        if f"L{layer}bias" in self.labels:
            size = fixed.attention_size(nothing)
            self._born(f"L{layer}bias", fixed.attention(nothing), size, fixed.steps("1"), one)
        self._dense(fixed, "1", fixed.attention_size(abs(stream)))
        if not self._is_one_stage(fixed):
            self.stages.append(HeldStage(own, _passed(fixed, "2", two)))
        if fixed.block.mlp is not None:
            self._add_mlp(fixed, layer, middle, two)

    def _add_mlp(self, fixed: FixedBlock, layer: int, middle: Array, doubt: float) -> None:
        """Add what is born with the MLP."""
        size, nothing = fixed.mlp_size(abs(middle)), np.zeros_like(middle)
        self._dense(fixed, "2", size)
        if f"L{layer}M" in self.labels:
            self._born(f"L{layer}M", fixed.wrote(), size, fixed.steps("2"), doubt)
        if f"L{layer}Mbias" in self.labels and self.run.model.mlp == "source":
            self._born(f"L{layer}Mbias", fixed.shift(), abs(fixed.shift()))
        elif f"L{layer}Mbias" in self.labels:
            size = fixed.mlp_size(nothing)
            self._born(f"L{layer}Mbias", fixed.mlp(nothing), size, fixed.steps("2"), doubt)

    def _layer_doubts(
        self, fixed: FixedBlock, layer: int, stream: Array, middle: Array
    ) -> tuple[float, float]:
        """Give the doubts about a layer's attention and about its MLP."""
        if self.same:
            return 0.0, 0.0
        config, shift = self.run.model.config, None
        if config.positional_embedding_type == "shortformer":
            shift = self.run.model.weights.positions(self.run.dense.places[0, : self.size])
        one = attention_doubt(fixed, config, layer, stream, shift)
        two = 0.0 if fixed.block.mlp is None else mlp_doubt(fixed, middle)
        self.doubts += [one, two]
        return one, two

    def _is_one_stage(self, fixed: FixedBlock) -> bool:
        """Say whether the MLP, if there is one, changes no stream that the heads wrote to."""
        if fixed.block.mlp is None or fixed.block.parallel:
            return True
        return self.run.model.mlp == "source" and "ln2_after" not in fixed.norms

    def _born(
        self, label: str, values: Array, size: Array, steps: int = 0, doubt: float = 0.0
    ) -> None:
        self.sources.append(HeldSource(label, len(self.stages), values, size, steps, doubt))

    def _dense(self, fixed: FixedBlock, which: str, size: Array) -> None:
        """Note what rounding may do in the dense pass, and once more where it is folded."""
        steps = fixed.steps(which) + self.size + 8
        self.dense.append((len(self.stages), 2 * gamma(steps) * size))


def _heads(fixed: FixedBlock, layer: int, doubt: float) -> Heads:
    arrays = fixed.heads()
    return Heads(tuple(Head(layer, n) for n in range(len(arrays[0]))), *arrays, doubt)


def _own(fixed: FixedBlock, layer: int, mlp: str, doubt: float) -> tuple[Part, ...]:
    """Give the MLP as a part of a stage; nothing where it is a source."""
    if fixed.block.mlp is None or fixed.gates is None or mlp == "source":
        return ()
    gates, w_in, w_out = fixed.neurons()
    room = np.broadcast_to(0.0, gates.shape)
    if doubt:
        room = (1 + abs(fixed.gates)) * abs(fixed.gate_scale)[:, None]
    if mlp == "frozen":
        return (WholeMlp((Mlp(layer),), gates, w_in, w_out, room, doubt),)
    components = tuple(Neuron(layer, n) for n in range(len(w_out)))
    return (Neurons(components, gates, w_in, w_out, room, doubt),)


def _passed(fixed: FixedBlock, which: str, doubt: float) -> FixedNorm | None:
    """Give the norm that the stream itself passes behind attention or the MLP."""
    norm = fixed.norms.get(f"ln{which}_after")
    return None if norm is None else FixedNorm(norm.norm, norm.scale, doubt)


def _joined(found: dict[str, Array]) -> Array:
    out: Array = np.sum(list(found.values()), axis=0)
    return out


def _check_structure(held: Held) -> None:
    """Refuse stages or sources that are not those of the symbolic network."""
    network = held.network
    ours: Sequence[object] = [stage.components for stage in held.stages]
    born = {(source.label, source.boundary) for source in held.sources}
    theirs = {(each.label, each.boundary) for each in network.sources if each.boundary is not None}
    if tuple(ours) != network.stages or born != theirs:
        raise CompositionError(
            "what is held fixed", wanted="the network's stages and sources", got="others"
        )
