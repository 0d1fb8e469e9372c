"""The stages and sources of a network: everything its paths depend on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import index, lt

from pathexpand.errors import CompositionError, LimitError
from pathexpand.symbolic.component import Component, Head, Mlp, Neuron, shown
from pathexpand.symbolic.expression import Expression, Sum, Term, Then
from pathexpand.symbolic.maps import W_U, linear_map, position_map
from pathexpand.symbolic.path import Path
from pathexpand.symbolic.source import Source, source_key, source_map
from pathexpand.symbolic.style import check_choice

MLPS = ("source", "frozen", "neurons")

Stage = tuple[Component, ...]
_FEW = 6  # components that are written out, stages and sources that are named


@dataclass(frozen=True, slots=True)
class Network:
    """The components, in stages, and the sources.

    A path passes through at most one component of a stage, and through the stages in their order.
    An attention-only network has a stage for each layer; a sequential block has two, its heads
    and then its neurons, and a parallel block one with both. A stage without components is fine.

    Raises `CompositionError` for a stage that is not sorted or mixes layers, for stages out of
    order, for a layer whose MLP is there twice (whole, by its neurons, as a source), for a source
    that is there twice or born at a place that its label denies, and for a network without
    sources.

    >>> Network.attention_only(2, 12).count()
    169
    >>> Network(((Head(0, 0),), (Neuron(0, 0), Neuron(0, 1))), (Source("embed", 0),)).count()
    6
    """

    stages: tuple[Stage, ...]
    sources: tuple[Source, ...]
    _places: dict[Component, tuple[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every component and source."""
        if not isinstance(self.stages, tuple):
            raise CompositionError("network", wanted="a tuple of stages", got=shown(self.stages))
        before: Component | None = None
        for number, stage in enumerate(self.stages):
            _check_stage(number, stage)
            if stage and before is not None and stage[0].key <= before.key:
                wanted = f"components after {before}"
                raise CompositionError(f"stage {number}", wanted=wanted, got=str(stage[0]))
            before = stage[-1] if stage else before
        _check_sources(self.sources)
        for source in self.sources:
            _check_birth(source, self.stages)
        places = {
            component: (number, place)
            for number, stage in enumerate(self.stages)
            for place, component in enumerate(stage)
        }
        object.__setattr__(self, "_places", places)

    def __repr__(self) -> str:
        """Write it whole where it is small, otherwise its size.

        >>> Network.attention_only(2, 12)
        Network(2 stages of 12, 12 components, sources embed, 169 paths)
        """
        if sum(map(len, self.stages)) <= _FEW:
            return f"Network(stages={self.stages!r}, sources={self.sources!r})"
        sizes = [f"{len(stage):,}" for stage in self.stages]
        sizes = sizes if len(sizes) <= _FEW else [*sizes[:2], "…", sizes[-1]]
        sources = [each.label for each in self.sources]
        sources = sources if len(sources) <= _FEW else [*sources[:2], "…", sources[-1]]
        held = f"{len(self.stages)} stages of {', '.join(sizes)} components"
        paths = self.count()
        counted = f"{paths:,}" if paths < 10**18 else f"about 10^{math.floor(math.log10(paths))}"
        return f"Network({held}, sources {', '.join(sources)}, {counted} paths)"

    def _repr_latex_(self) -> str:
        from pathexpand.symbolic.equation import equation

        return f"$${equation(self, format='latex')}$$"

    @classmethod
    def attention_only(
        cls,
        layers: int | None = None,
        heads: int | tuple[int, ...] = 12,
        *,
        positions: bool = False,
        biases: bool = False,
        unembed_bias: bool = False,
    ) -> Network:
        """Return an attention-only network with so many heads in every layer, or as listed.

        `positions` adds the position embedding as a source, `biases` one constant a layer and
        `unembed_bias` the constant b_U. Two layers unless `layers` or a tuple `heads` says
        otherwise.

        >>> Network.attention_only(heads=(4, 3)).count_by_order()
        (1, 7, 12)
        """
        stages = tuple(_heads(layer, size) for layer, size in enumerate(_sizes(layers, heads)))
        born = [Source(f"L{n}bias", n + 1) for n in range(len(stages)) if biases]
        return cls(stages, _around(born, positions, unembed_bias))

    @classmethod
    def transformer(
        cls,
        layers: int | None = None,
        heads: int | tuple[int, ...] = 12,
        neurons: int = 0,
        *,
        mlp: str = "source",
        parallel: bool = False,
        positions: bool = False,
        biases: bool = False,
        unembed_bias: bool = False,
    ) -> Network:
        """Return a network whose layers have an MLP beside their heads.

        With `mlp` ``source`` the output of each MLP is a source; with ``frozen`` each MLP is one
        component; with ``neurons`` each of its `neurons` neurons is one. The other two have no use
        for `neurons`. In a `parallel` block the MLP reads what the heads read, not what they write.
        The other options are those of `attention_only`; `biases` adds the constants of each MLP
        that is not a source.

        >>> Network.transformer(2, 12, 3072, mlp="neurons").count()
        1595922601
        >>> print(*Network.transformer(1, 1, mlp="source").paths(), sep=", ")
        embed, L0M, embed > L0H0
        """
        check_choice("mlp", mlp, MLPS)
        _counting("neurons", neurons)
        stages: list[Stage] = []
        born: list[Source] = []
        for layer, size in enumerate(_sizes(layers, heads)):
            stage, inner = _heads(layer, size), _mlp(layer, mlp, neurons)
            stages += [stage + inner] if parallel or mlp == "source" else [stage, inner]
            after = len(stages)
            if biases:
                born.append(Source(f"L{layer}bias", after - (mlp != "source" and not parallel)))
            if mlp == "source":
                born.append(Source(f"L{layer}M", after))
            elif biases:
                born.append(Source(f"L{layer}Mbias", after))
        return cls(tuple(stages), _around(born, positions, unembed_bias))

    @property
    def depth(self) -> int:
        """The number of stages."""
        return len(self.stages)

    @property
    def components(self) -> tuple[Component, ...]:
        """All components, in order."""
        return tuple(chain.from_iterable(self.stages))

    def stage(self, component: Component) -> int | None:
        """Return the number of the stage a component is in, or None if it is in none.

        >>> network = Network.transformer(2, 1, 3, mlp="neurons")
        >>> network.stage(Neuron(1, 2)), network.stage(Neuron(1, 3))
        (3, None)
        """
        place = self._places.get(component)
        return None if place is None else place[0]

    def place(self, component: Component) -> tuple[int, int] | None:
        """Return the number of a component's stage and its number in it, or None.

        >>> Network.transformer(2, 1, 3, mlp="neurons", parallel=True).place(Neuron(1, 2))
        (1, 3)
        """
        return self._places.get(component)

    def __contains__(self, path: object) -> bool:
        """Say whether the network has this path.

        >>> network = Network.transformer(1, 1, 3, mlp="neurons", parallel=True)
        >>> Path.parse("embed > L0N2") in network, Path.parse("embed > L0H0 > L0N2") in network
        (True, False)
        """
        return isinstance(path, Path) and self._fault(path) is None

    def check_path(self, path: Path) -> None:
        """Refuse a path that the network does not have, with `CompositionError`.

        >>> network = Network.transformer(1, 1, 3, mlp="neurons", parallel=True)
        >>> network.check_path(Path.parse("embed > L0H0 > L0N2"))
        Traceback (most recent call last):
            ...
        pathexpand.errors.CompositionError: path embed > L0H0 > L0N2: wanted a path of the network,
        got L0N2 after L0H0; they stand side by side: neither reads the other
        """
        fault = self._fault(path)
        if fault is not None:
            got, remedy = fault
            wanted = "a path of the network"
            raise CompositionError(f"path {path}", wanted=wanted, got=got, remedy=remedy)

    def _fault(self, path: Path) -> tuple[str, str] | None:
        """Return what the network lacks of a path, and why."""
        boundary = next((each.boundary for each in self.sources if each.label == path.source), -1)
        if boundary == -1:
            return f"source {path.source}", "the network does not have this source"
        before, reached = path.source, boundary or 0
        for component in path.components:
            stage = self.stage(component)
            if stage is None:
                return str(component), "the network does not have this component"
            if stage < reached:
                remedy = "they stand side by side: neither reads the other"
                return f"{component} after {before}", remedy
            before, reached = component.label, stage + 1
        return None

    def expression(self) -> Expression:
        """Return the network, still factored: for each source, the stages after it, then W_U.

        >>> len(Network.attention_only(2, 12).expression().factors)
        4
        """
        steps = [_step(stage) for stage in self.stages]
        unembed = Term((), (W_U,))
        routes: list[Expression] = []
        for source in self.sources:
            start = Term((), (source_map(source.label),))
            if source.boundary is None:
                routes.append(start)
            else:
                routes.append(Then((start, *steps[source.boundary :], unembed)))
        return routes[0] if len(routes) == 1 else Sum.of(*routes)

    def count(self) -> int:
        """Count the paths, exactly and without listing them.

        >>> Network.attention_only(12, 12).count()
        23298085122481
        """
        total = self._born(0)
        for boundary, stage in enumerate(self.stages, start=1):
            total = total * (1 + len(stage)) + self._born(boundary)
        return total + self._born(None)

    def count_by_order(self) -> tuple[int, ...]:
        """Count the paths of order 0, 1, 2, ….

        >>> Network.attention_only(2, 12, positions=True).count_by_order()
        (2, 48, 288)
        """
        counts = [self._born(0)]
        for boundary, stage in enumerate(self.stages, start=1):
            through = [0] + [number * len(stage) for number in counts]
            counts = [*map(sum, zip([*counts, 0], through, strict=True))]
            counts[0] += self._born(boundary)
        counts[0] += self._born(None)
        while counts and not counts[-1]:
            counts.pop()
        return tuple(counts)

    def _born(self, boundary: int | None) -> int:
        return sum(source.boundary == boundary for source in self.sources)

    def paths(self, max_order: int | None = None) -> Iterator[Path]:
        """Yield the paths lazily: by order, then source as listed, then components.

        >>> [str(path) for path in Network.attention_only(2, 1).paths()]
        ['embed', 'embed > L0H0', 'embed > L1H0', 'embed > L0H0 > L1H0']
        """
        if max_order is not None and max_order < 0:
            raise LimitError("max_order", wanted="0 or more, or None", got=str(max_order))
        highest = sum(map(bool, self.stages))
        return self._by_order(highest if max_order is None else min(highest, max_order))

    def _by_order(self, highest: int) -> Iterator[Path]:
        for order in range(highest + 1):
            for source in self.sources:
                born = self.depth if source.boundary is None else source.boundary
                for components in _chains(self.stages[born:], order):
                    yield Path(source.label, components)


# --- networks by their sizes ------------------------------------------------------------------


def _sizes(layers: int | None, heads: int | tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(heads, tuple):
        if layers is not None and layers != len(heads):
            raise CompositionError(
                "heads", wanted=f"one number for each of {layers} layers", got=str(heads)
            )
        sizes = heads
    else:
        sizes = (heads,) * (2 if layers is None else _counting("layers", layers))
        _counting("heads", heads)
    return tuple(_counting("heads", size) for size in sizes)


def _counting(subject: str, number: int) -> int:
    if index(number) < 0:
        raise CompositionError(subject, wanted="0 or more", got=str(number))
    return index(number)


def _heads(layer: int, size: int) -> Stage:
    return tuple(Head(layer, number) for number in range(size))


def _mlp(layer: int, mlp: str, neurons: int) -> Stage:
    """Return the components of a layer's MLP."""
    if mlp == "neurons":
        return tuple(Neuron(layer, number) for number in range(neurons))
    return (Mlp(layer),) if mlp == "frozen" else ()


def _around(born: list[Source], positions: bool, unembed_bias: bool) -> tuple[Source, ...]:
    first = [Source("embed", 0)] + [Source("pos", 0)] * positions
    return (*first, *born, *[Source("b_U", None)] * unembed_bias)


# --- what a network refuses -------------------------------------------------------------------


def _check_stage(number: int, stage: Stage) -> None:
    subject = f"stage {number}"
    if not isinstance(stage, tuple):
        raise CompositionError(subject, wanted="a tuple of components", got=shown(stage))
    for component in stage:
        if not isinstance(component, Head | Neuron | Mlp):
            raise CompositionError(subject, wanted="components", got=shown(component))
    codes = [component.code for component in stage]
    if not all(map(lt, codes, codes[1:])):
        got = next(f"{one}, {two}" for one, two in pairwise(stage) if not one < two)
        raise CompositionError(subject, wanted="components in order, each once", got=got)
    if stage and stage[0].layer != stage[-1].layer:
        got = f"{stage[0]}, {stage[-1]}"
        raise CompositionError(subject, wanted="components of one layer", got=got)
    if len(stage) > 1 and isinstance(stage[-1], Mlp) and isinstance(stage[-2], Neuron):
        wanted = f"layer {stage[-1].layer}'s MLP whole, or its neurons"
        raise CompositionError(subject, wanted=wanted, got="both")


def _check_sources(sources: tuple[Source, ...]) -> None:
    if not sources:
        raise CompositionError("network", wanted="at least one source", got="none")
    labels: set[str] = set()
    for source in sources:
        if source.label in labels:
            raise CompositionError(f"source {source.label}", wanted="once", got="twice")
        labels.add(source.label)


def _check_birth(source: Source, stages: tuple[Stage, ...]) -> None:
    """Refuse a source that is not born right after what its label names."""
    key, born = source_key(source.label), source.boundary
    if key is None or born is None:
        return
    if source.label == "pos" and born:
        return  # read beside the stream, by what all paths end in
    if born > len(stages):
        wanted, got = "a stage that exists", f"{len(stages)} stages"
        raise CompositionError(f"source {source.label}", wanted=wanted, got=got)
    wrong = _misplaced(key, born, stages)
    if wrong:
        wanted, got = f"one born {wrong}", f"boundary {born}"
        raise CompositionError(f"source {source.label}", wanted=wanted, got=got)
    for stage in stages if source.label == f"L{key[0]}M" else ():
        if stage and stage[-1].key == key:
            wanted = f"layer {key[0]}'s MLP as a source or in components"
            raise CompositionError("network", wanted=wanted, got=f"{source.label} and {stage[-1]}")


def _misplaced(key: tuple[int, int], born: int, stages: tuple[Stage, ...]) -> str:
    """Say where a source should be born instead, if it is born at a wrong place."""
    layer, rank = key
    before = -1  # the layer of the stage before
    for number, stage in enumerate(stages):
        if not stage:
            continue
        first = stage[0]
        # Only a parallel block has the neurons that follow a constant's heads in the same stage.
        apart = first.key == (layer, 1) and not rank and before == layer
        if number < born and (first.layer > layer or apart):
            return f"before {first}"
        if number >= born and first.key <= key:
            return f"after {first}"
        before = first.layer
    return ""


# --- expressions and paths --------------------------------------------------------------------


def _step(stage: Stage) -> Expression:
    """Return Id ⊗ Id + Σ P^c ⊗ W^c."""
    through = [Term((position_map(each),), (linear_map(each),)) for each in stage]
    return Sum.of(Term((), ()), *through)


def _chains(stages: tuple[Stage, ...], order: int) -> Iterator[Stage]:
    """Yield the choices of `order` components from different stages, in lexicographic order."""
    filled = [stage for stage in stages if stage]

    def choices(first: int, missing: int) -> Iterator[tuple[Component, int]]:
        for number in range(first, len(filled) - missing + 1):
            for component in filled[number]:
                yield component, number + 1

    if not order:
        yield ()
        return
    chosen: list[Component] = []
    branches = [choices(0, order)]
    while branches:
        choice = next(branches[-1], None)
        if choice is None:
            branches.pop()
            if chosen:
                chosen.pop()
            continue
        component, following = choice
        if len(branches) == order:
            yield (*chosen, component)
        else:
            chosen.append(component)
            branches.append(choices(following, order - len(branches)))
