"""The bound variables of printed sums: what stands for any head, neuron, MLP or component."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pathexpand.symbolic.component import Component, Head, Mlp, Neuron
from pathexpand.symbolic.maps import STREAM, LinearMap
from pathexpand.symbolic.network import Stage
from pathexpand.symbolic.style import Style, latex_label

LETTERS: dict[type[Component], str] = {Head: "h", Neuron: "n", Mlp: "m"}
"""The variable for a component of each kind; c stands for any of them."""

# By the first letter of a variable; an MLP taken whole may go by its own label, such as L0M.
_POSITIONS = {"h": "A", "n": "G", "m": "G", "L": "G", "c": "P"}
_OUTPUTS = {"h": "W_OV", "n": "W_IO", "m": "W_IO", "L": "W_IO", "c": "W"}


def kinds(stages: Iterable[Stage]) -> list[type[Component]]:
    """Return the kinds of the components, heads first.

    >>> kinds([(Head(0, 0),), (Neuron(0, 0),)]) == [Head, Neuron]
    True
    """
    found = {type(component) for stage in stages for component in stage}
    return [kind for kind in LETTERS if kind in found]


def letter(stages: Iterable[Stage]) -> str:
    """Return the variable for any one of the components.

    >>> letter([(Head(0, 0),)]), letter([(Head(0, 0),), (Neuron(0, 0),)])
    ('h', 'c')
    """
    found = kinds(stages)
    return "c" if len(found) > 1 else LETTERS[found[0]] if found else "h"


def position(name: str, style: Style) -> str:
    """Write the position map of a variable, or of an MLP itself.

    >>> position("h2", Style()), position("n", Style("code")), position("L0M", Style())
    ('A^h2', 'G[n]', 'G^L0M')
    """
    if name == "…":
        return ellipsis(style)
    return style.symbol(_POSITIONS[name[0]], name)


def output(name: str, style: Style) -> str:
    """Write the linear map of a variable, or of an MLP itself.

    >>> output("h2", Style()), output("n", Style("code")), output("c1", Style())
    ('W_OV^h2', 'IO[n]', 'W^c1')
    """
    if name == "…":
        return ellipsis(style)
    return style.linear_map(LinearMap(_OUTPUTS[name[0]], name, STREAM, STREAM))


def ellipsis(style: Style) -> str:
    """Write what stands for things left out.

    >>> ellipsis(Style())
    '…'
    """
    return r"\cdots" if style.latex else "…"


def set_name(kind: type[Component], layer: int | str, style: Style) -> str:
    """Write the set of a layer's components of one kind.

    >>> set_name(Head, 0, Style()), set_name(Neuron, 0, Style())
    ('L0', 'L0N')
    """
    text = f"{layer}{'N' * (kind is Neuron)}{'M' * (kind is Mlp)}"
    return f"L_{{{text}}}" if style.latex else f"L{text}"


def member(name: str, kind: type[Component], layers: Sequence[int | str], style: Style) -> str:
    """Write that a variable is one of the components of a kind in some layers.

    >>> member("h", Head, [0, 1], Style()), member("m", Mlp, range(12), Style())
    ('h∈L0∪L1', 'm∈{L0M,…,L11M}')
    """
    sets = [set_name(kind, layer, style) for layer in layers]
    if len(sets) > 3:
        sets = [sets[0], ellipsis(style), sets[-1]]
    belongs, union = (r" \in ", r" \cup ") if style.latex else ("∈", "∪")
    variable = latex_label(name) if style.latex else name
    if kind is not Mlp:
        return variable + belongs + union.join(sets)
    left, right = (r"\{", r"\}") if style.latex else ("{", "}")
    return variable + belongs + left + ",".join(sets) + right


def total(index: str, style: Style) -> str:
    """Write the sign of a sum over what the index says.

    >>> total("h∈L0", Style())
    'Σ_{h∈L0} '
    """
    return rf"\sum_{{{index}}} " if style.latex else f"Σ_{{{index}}} "


def one_of(
    kind: type[Component], layers: Sequence[int], name: str, style: Style
) -> tuple[str, str]:
    """Return the sum over components of a kind in some layers, and the name of its variable.

    A single MLP needs no sum: it is named itself.

    >>> one_of(Neuron, [0], "n", Style()), one_of(Mlp, [0], "m", Style())
    (('Σ_{n∈L0N} ', 'n'), ('', 'L0M'))
    """
    if kind is Mlp and len(layers) == 1:
        return "", Mlp(layers[0]).label
    return total(member(name, kind, layers, style), style), name
