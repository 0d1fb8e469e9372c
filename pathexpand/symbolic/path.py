"""The paths that run from a source through components to the logits."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from functools import total_ordering

from pathexpand.errors import CompositionError, NotationError
from pathexpand.symbolic.component import Component, Head, Mlp, Neuron, parse_component, shown
from pathexpand.symbolic.expression import Term
from pathexpand.symbolic.maps import B_U, W_U, linear_map, position_map
from pathexpand.symbolic.source import source_key, source_label, source_map, source_order

_ARROW = re.compile(r"->|→|>")
_KINDS = {Head: "head", Neuron: "neuron", Mlp: "MLP"}


@total_ordering
@dataclass(frozen=True, slots=True)
class Path:
    """A source and the components it passes through on its way to the logits.

    Layer and rank rise strictly: through at most one head and one neuron (or MLP) of a layer, the
    head first. What is born in a layer passes only through what comes after it, and b_U through
    nothing. Paths sort by order, then source (embed, pos, type, embedbias, those of each layer,
    b_U), then components. Raises `CompositionError` for components that cannot follow each other
    and `NotationError` for an unknown source.

    >>> path = Path("embed", (Head(0, 1), Head(1, 2)))
    >>> print(path, path.order, path.kind, sep=", ")
    embed > L0H1 > L1H2, 2, virtual head
    """

    source: str
    components: tuple[Component, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a path that no network has."""
        key = source_key(self.source)
        components = self.components
        if not isinstance(components, tuple):
            wanted = "a tuple of components"
            raise CompositionError("path", wanted=wanted, got=shown(components))
        if not components:
            return
        if key is None:
            raise CompositionError(
                f"path from {self.source}",
                wanted="no components, since it is born in what paths end in",
                got=str(components[0]),
            )
        before, (layer, rank) = self.source, key
        for component in components:
            if not isinstance(component, Head | Neuron | Mlp):
                raise CompositionError("path", wanted="components", got=shown(component))
            first = layer if component.rank > rank else layer + 1
            if component.layer < first:
                raise CompositionError(
                    f"{component} after {before}",
                    wanted=f"layer {first} or later",
                    got=component.label,
                )
            before, layer, rank = component.label, component.layer, component.rank

    @property
    def order(self) -> int:
        """The number of components."""
        return len(self.components)

    @property
    def kind(self) -> str:
        """What a path of these components is called.

        direct, head, neuron or MLP for at most one component; the paper's virtual head for several
        heads; composed for several components of which not all are heads.

        >>> Path("embed", (Neuron(0, 5),)).kind, Path("embed", (Head(0, 1), Neuron(0, 5))).kind
        ('neuron', 'composed')
        """
        if not self.components:
            return "direct"
        if self.order == 1:
            return _KINDS[type(self.components[0])]
        heads = all(isinstance(each, Head) for each in self.components)
        return "virtual head" if heads else "composed"

    def __lt__(self, other: object) -> bool:
        """Sort by order, source and components."""
        if not isinstance(other, Path):
            return NotImplemented
        return self._sort_key() < other._sort_key()

    def _sort_key(self) -> tuple[object, ...]:
        codes = tuple(each.code for each in self.components)
        return self.order, source_order(self.source), codes

    def __str__(self) -> str:
        """Return the path as it is typed and printed: ``embed > L0H1 > L1H2``."""
        return " > ".join((self.source, *(each.label for each in self.components)))

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(str(self))}</code>"

    @classmethod
    def parse(cls, text: str) -> Path:
        """Read a path; ``>``, ``->`` and ``→`` separate, and spaces do not matter.

        >>> Path.parse("embed→L0H1 > L1N2") == Path("embed", (Head(0, 1), Neuron(1, 2)))
        True
        """
        if not isinstance(text, str):
            raise NotationError("path", wanted="text such as embed > L0H1", got=shown(text))
        source, *labels = (piece.strip() for piece in _ARROW.split(text))
        try:
            return cls(source, tuple(parse_component(label) for label in labels))
        except NotationError as error:
            raise NotationError(
                f"path {shown(text)}",
                wanted=error.wanted,
                got=error.got,
                remedy="write for example embed > L0H1 > L1H2",
            ) from error

    def term(self) -> Term:
        """Return the path as position word ⊗ linear word.

        >>> from pathexpand.symbolic import format_term
        >>> print(format_term(Path.parse("embed > L0H1 > L0N5").term()))
        G^L0N5 A^L0H1 ⊗ W_U W_IO^L0N5 W_OV^L0H1 W_E
        """
        start = source_map(self.source)
        if start is B_U:
            return Term((), (B_U,))
        linear_word = (start, *map(linear_map, self.components), W_U)
        return Term(tuple(map(position_map, self.components)), linear_word)

    @classmethod
    def from_term(cls, term: Term) -> Path:
        """Return the path whose term this is; raises `CompositionError` if there is none.

        >>> print(Path.from_term(Path.parse("L0bias > L1H2").term()))
        L0bias > L1H2
        """
        refused = CompositionError(
            "term",
            wanted="a path from a source through components to the logits",
            got=" ".join(map(str, (*term.position_word, "⊗", *term.linear_word))),
            remedy="words are listed earliest map first",
        )
        if not term.linear_word:
            raise refused
        try:
            components = tuple(parse_component(each.label) for each in term.position_word)
            path = cls(source_label(term.linear_word[0]), components)
        except NotationError as error:
            raise refused from error
        if path.term() != term:
            raise refused
        return path
