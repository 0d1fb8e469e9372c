"""The layers and sources of a network: everything its paths depend on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import index

from pathexpand.errors import CompositionError, LimitError
from pathexpand.symbolic.expression import Expression, Sum, Term, Then
from pathexpand.symbolic.maps import W_U, attention, ov
from pathexpand.symbolic.path import Head, Path, first_layer_after, source_map


@dataclass(frozen=True, slots=True)
class Source:
    """Something born at one place: after how many layers, or None for one born in the logits.

    Raises `CompositionError` for a boundary that is not where a source of this label is born.

    >>> Source("embed", 0), Source.named("L0bias")
    (Source(label='embed', boundary=0), Source(label='L0bias', boundary=1))
    """

    label: str
    boundary: int | None

    def __post_init__(self) -> None:
        """Refuse a boundary that does not fit the label."""
        born = first_layer_after(self.label)
        if self.boundary != born:
            raise CompositionError(
                f"source {self.label}", wanted=f"boundary {born}", got=str(self.boundary)
            )

    @classmethod
    def named(cls, label: str) -> Source:
        """Return the source of this label, born where its label says.

        >>> Source.named("b_U").boundary is None
        True
        """
        return cls(label, first_layer_after(label))


@dataclass(frozen=True, slots=True)
class Network:
    """The heads of each layer, and the sources.

    Raises `CompositionError` for a head outside its layer, for one that is there twice or out of
    order, for a source that is there twice or born after a layer that does not exist, and for a
    network without sources.

    >>> Network.attention_only(2, 12).count()
    169
    """

    layers: tuple[tuple[Head, ...], ...]
    sources: tuple[Source, ...]

    def __post_init__(self) -> None:
        """Check every head and source."""
        for layer, heads in enumerate(self.layers):
            _check_layer(layer, heads)
        if not self.sources:
            raise CompositionError("network", wanted="at least one source", got="none")
        labels = [source.label for source in self.sources]
        for source in self.sources:
            if labels.count(source.label) > 1:
                raise CompositionError(f"source {source.label}", wanted="once", got="twice")
            if source.boundary is not None and source.boundary > len(self.layers):
                raise CompositionError(
                    f"source {source.label}",
                    wanted="a layer that exists",
                    got=f"{self.depth} layers",
                )

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
        sizes = _sizes(layers, heads)
        labels = ["embed"] + ["pos"] * positions
        labels += [f"L{layer}bias" for layer in range(len(sizes)) if biases]
        labels += ["b_U"] * unembed_bias
        return cls(
            tuple(
                tuple(Head(layer, number) for number in range(size))
                for layer, size in enumerate(sizes)
            ),
            tuple(Source.named(label) for label in labels),
        )

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.layers)

    def expression(self) -> Expression:
        """Return the network, still factored: for each source, the layers after it, then W_U.

        >>> len(Network.attention_only(2, 12).expression().factors)
        4
        """
        stages = [_layer(heads) for heads in self.layers]
        unembed = Term((), (W_U,))
        routes: list[Expression] = []
        for source in self.sources:
            start = Term((), (source_map(source.label),))
            if source.boundary is None:
                routes.append(start)
            else:
                routes.append(Then((start, *stages[source.boundary :], unembed)))
        return routes[0] if len(routes) == 1 else Sum.of(*routes)

    def count(self) -> int:
        """Count the paths, exactly and without listing them.

        >>> Network.attention_only(12, 12).count()
        23298085122481
        """
        total = self._born(0)
        for boundary, heads in enumerate(self.layers, start=1):
            total = total * (1 + len(heads)) + self._born(boundary)
        return total + self._born(None)

    def count_by_order(self) -> tuple[int, ...]:
        """Count the paths of order 0, 1, 2, ….

        >>> Network.attention_only(2, 12, positions=True).count_by_order()
        (2, 48, 288)
        """
        counts = [self._born(0)]
        for boundary, heads in enumerate(self.layers, start=1):
            through = [0] + [number * len(heads) for number in counts]
            counts = [*map(sum, zip([*counts, 0], through, strict=True))]
            counts[0] += self._born(boundary)
        counts[0] += self._born(None)
        while counts and not counts[-1]:
            counts.pop()
        return tuple(counts)

    def _born(self, boundary: int | None) -> int:
        return sum(source.boundary == boundary for source in self.sources)

    def paths(self, max_order: int | None = None) -> Iterator[Path]:
        """Yield the paths lazily: by order, then source as listed, then heads.

        >>> [str(path) for path in Network.attention_only(2, 1).paths()]
        ['embed', 'embed > L0H0', 'embed > L1H0', 'embed > L0H0 > L1H0']
        """
        if max_order is not None and max_order < 0:
            raise LimitError("max_order", wanted="0 or more, or None", got=str(max_order))
        highest = sum(map(bool, self.layers))
        return self._by_order(highest if max_order is None else min(highest, max_order))

    def _by_order(self, highest: int) -> Iterator[Path]:
        for order in range(highest + 1):
            for source in self.sources:
                born = self.depth if source.boundary is None else source.boundary
                for heads in _chains(self.layers[born:], order):
                    yield Path(source.label, heads)


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


def _check_layer(layer: int, heads: tuple[Head, ...]) -> None:
    for number, head in enumerate(heads):
        if head.layer != layer:
            raise CompositionError(f"head {head}", wanted=f"a head of layer {layer}", got=str(head))
        if number and not heads[number - 1] < head:
            raise CompositionError(
                f"layer {layer}", wanted="heads in order", got=f"{heads[number - 1]}, {head}"
            )


def _layer(heads: tuple[Head, ...]) -> Expression:
    """Return Id ⊗ Id + Σ A^h ⊗ W_OV^h."""
    through = [Term((attention(head.label),), (ov(head.label),)) for head in heads]
    return Sum.of(Term((), ()), *through)


def _chains(layers: tuple[tuple[Head, ...], ...], order: int) -> Iterator[tuple[Head, ...]]:
    """Yield the choices of `order` heads from different layers, in lexicographic order."""
    heads: list[Head] = []
    following: list[int] = []  # for each head, where the first head of a later layer stands
    room: list[int] = []  # for each head, how many layers there are from its own on
    filled = [layer for layer in layers if layer]
    for number, layer in enumerate(filled):
        heads += layer
        following += [len(heads)] * len(layer)
        room += [len(filled) - number] * len(layer)
    chosen: list[int] = []
    candidate = 0
    while True:
        missing = order - len(chosen)
        if missing and candidate < len(heads) and room[candidate] >= missing:
            chosen.append(candidate)
            candidate = following[candidate]
            continue
        if not missing:
            yield tuple(heads[number] for number in chosen)
        if not chosen:
            return
        candidate = chosen.pop() + 1
