"""A network multiplied out: a row of the printed equation for each source and order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pathexpand.symbolic.bound import (
    LETTERS,
    ellipsis,
    kinds,
    letter,
    one_of,
    output,
    position,
    set_name,
    total,
)
from pathexpand.symbolic.component import Component, Head
from pathexpand.symbolic.maps import LinearMap
from pathexpand.symbolic.network import Network, Stage
from pathexpand.symbolic.source import Source, source_key, source_map
from pathexpand.symbolic.style import Style, latex_label

_SHOWN_ORDERS = 12  # above this depth the orders after the third share one line
_WRITTEN_OUT = 3  # the highest order whose words are written without an ellipsis
_MOST_ALONE = 2  # more constants than this share their lines


@dataclass(frozen=True, slots=True)
class SumRow:
    """A sum of terms, and how many terms that is."""

    formula: str
    terms: int


def rows(network: Network, style: Style) -> list[SumRow]:
    """Return the rows that add up to the network.

    >>> for row in rows(Network.attention_only(1, 12), Style()):
    ...     print(row.formula, row.terms)
    Id ⊗ W_U W_E 1
    Σ_{h∈L0} A^h ⊗ W_U W_OV^h W_E 12
    """
    born = constants(network)
    found: list[SumRow] = []
    for source in network.sources:
        if source.boundary is None:
            symbol = style.linear_map(source_map(source.label))
            found.append(SumRow(style.tensor([], [symbol]), 1))
        elif not (shared_name(network) and source.boundary):
            found += _Rows(network, [source], style).all()
        elif source == born[0]:
            found += _Rows(network, born, style).all()
    return found


def constants(network: Network) -> list[Source]:
    """Return the sources born inside the network.

    >>> [source.label for source in constants(Network.attention_only(2, 3, biases=True))]
    ['L0bias', 'L1bias']
    """
    return [source for source in network.sources if source.boundary]


def shared_name(network: Network) -> str:
    """Return the variable for constants that share lines: l for a layer, s for any constant.

    It is empty where there are so few that each has its own lines.

    >>> shared_name(Network.attention_only(3, 2, biases=True))
    'l'
    >>> shared_name(Network.transformer(3, 2, mlp="source", biases=True))
    's'
    """
    born = constants(network)
    if len(born) <= _MOST_ALONE:
        return ""
    endings = {source.label.lstrip("L0123456789") for source in born}
    return "l" if len(endings) == 1 and one_stage_a_layer(network) else "s"


def one_stage_a_layer(network: Network) -> bool:
    """Say whether all components of each layer are in one stage.

    >>> one_stage_a_layer(Network.transformer(2, 3, 5, mlp="neurons"))
    False
    """
    layers = [stage[0].layer for stage in network.stages if stage]
    return len(set(layers)) == len(layers)


class _Rows:
    """The rows of the paths from one source, or from several constants together."""

    def __init__(self, network: Network, sources: Sequence[Source], style: Style) -> None:
        self.sources = sources
        self.style = style
        self.stages = [stage for stage in network.stages[sources[0].boundary :] if stage]
        self.letter = letter(network.stages)
        self.shared = shared_name(network) if len(sources) > 1 else ""
        self.after = [network.stages[source.boundary :] for source in sources]
        self.symbol = self._source_symbol()

    def all(self) -> list[SumRow]:
        counts = self._counts()
        shown = len(counts) if len(counts) <= _SHOWN_ORDERS + 1 else _WRITTEN_OUT + 1
        found = [SumRow(self._start() + self._words([]), counts[0])]
        for order in range(1, shown):
            if order == 1:
                found += [self._single(kind) for kind in kinds(self.stages)]
            else:
                found.append(SumRow(self._several(order), counts[order]))
        if shown < len(counts):
            bound = _range("k", shown, len(counts) - 1, self.style)
            names = self._names("k")
            formula = bound + total(self._chain(names), self.style) + self._words(names)
            found.append(SumRow(formula, sum(counts[shown:])))
        return found

    def _counts(self) -> list[int]:
        counts: list[int] = []
        for stages in self.after:
            each = [1]
            for size in map(len, filter(None, stages)):
                each = [a + size * b for a, b in zip([*each, 0], [0, *each], strict=True)]
            longer = max(len(counts), len(each))
            counts += [0] * (longer - len(counts))
            each += [0] * (longer - len(each))
            counts = [a + b for a, b in zip(counts, each, strict=True)]
        return counts

    def _single(self, kind: type[Component]) -> SumRow:
        """Return the row of the paths through one component of a kind."""
        name = LETTERS[kind]
        number = sum(
            isinstance(each, kind) for stages in self.after for stage in stages for each in stage
        )
        if self.shared:
            return SumRow(total(self._chain([name]), self.style) + self._words([name]), number)
        sign, name = one_of(kind, _layers(self.stages, kind), name, self.style)
        return SumRow(sign + self._words([name]), number)

    def _several(self, order: int) -> str:
        if not self.shared and order == len(self.stages) == 2:
            both = [kinds([stage]) for stage in self.stages]
            if all(len(each) == 1 for each in both):
                return self._pair(both[0][0], both[1][0])
        names = self._names(str(order))
        return total(self._chain(names), self.style) + self._words(names)

    def _pair(self, first: type[Component], second: type[Component]) -> str:
        """Return the sum over one component of each of two stages."""
        names = [LETTERS[first], LETTERS[second]]
        if first is second:
            names = [f"{names[0]}1", f"{names[1]}2"]
        layers = [stage[0].layer for stage in self.stages]
        earlier, names[0] = one_of(first, layers[:1], names[0], self.style)
        later, names[1] = one_of(second, layers[1:], names[1], self.style)
        return later + earlier + self._words(names)

    def _words(self, names: Sequence[str]) -> str:
        positions = [position(name, self.style) for name in names]
        outputs = [output(name, self.style) for name in names]
        return self.style.tensor(positions, [self.symbol, *outputs, "W_U"])

    def _names(self, order: str) -> list[str]:
        """Return the names of the bound variables, earliest first, with … for those left out."""
        if order == "k" or int(order) > _WRITTEN_OUT:
            return [f"{self.letter}1", "…", f"{self.letter}{order}"]
        return [f"{self.letter}{number + 1}" for number in range(int(order))]

    def _start(self) -> str:
        return total(self.shared, self.style) if self.shared else ""

    def _chain(self, names: Sequence[str]) -> str:
        """Return ``h1<h2<h3``, after what they start from: each after the last."""
        if self.style.latex:
            names = [ellipsis(self.style) if name == "…" else latex_label(name) for name in names]
        if self.shared:
            names = [self.shared, *names]
        elif self.sources[0].boundary:
            names = [self._born(), *names]
        return (" < " if self.style.latex else "<").join(names)

    def _born(self) -> str:
        """Return where a constant is born: its layer's heads, or where others follow, itself."""
        key = source_key(self.sources[0].label)
        if self.letter == "h" and key:
            return set_name(Head, key[0], self.style)
        return self.symbol

    def _source_symbol(self) -> str:
        if self.shared == "s":
            return "s"
        start = source_map(self.sources[0].label)
        if self.shared:
            label = "l" + start.label.lstrip("L0123456789")
            start = LinearMap(start.name, label, start.source, start.target)
        return self.style.linear_map(start)


def _layers(stages: Sequence[Stage], kind: type[Component]) -> list[int]:
    """Return the layers that have components of a kind."""
    found = [each.layer for stage in stages for each in stage if isinstance(each, kind)]
    return list(dict.fromkeys(found))


def _range(name: str, lowest: int, highest: int, style: Style) -> str:
    if style.latex:
        return rf"\sum_{{{name}={lowest}}}^{{{highest}}} "
    return f"Σ_{{{name}={lowest}…{highest}}} "
