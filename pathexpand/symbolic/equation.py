"""Print a network as the paper does: factored, and multiplied out with sums over components."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import add

from pathexpand.symbolic.bound import LETTERS, kinds, output, position, set_name
from pathexpand.symbolic.component import Component, Head, Mlp, Neuron
from pathexpand.symbolic.factors import WIDTH, factored
from pathexpand.symbolic.maps import STREAM, LinearMap
from pathexpand.symbolic.network import Network
from pathexpand.symbolic.source import source_map
from pathexpand.symbolic.style import Style, check_choice
from pathexpand.symbolic.sums import SumRow, constants, one_stage_a_layer, rows, shared_name

_WORDS: dict[type[Component], str] = {Head: "a head", Neuron: "a neuron", Mlp: "an MLP"}
_MOST_DIGITS = 16  # longer numbers are rounded
_FORMS = ("both", "factored", "expanded")


class Equation(str):
    """An equation's text, which a notebook shows as the formula that it is.

    >>> from pathexpand.symbolic import Network
    >>> text = equation(Network.attention_only(1, 2), form="factored")
    >>> print(text)
    T = (Id ⊗ W_U) (Id ⊗ Id + Σ_{h∈L0} A^h ⊗ W_OV^h) (Id ⊗ W_E)
    <BLANKLINE>
    L0 = {L0H0, L0H1}
    >>> text._repr_latex_().count("otimes")
    4
    """

    _latex: Callable[[], str]

    @classmethod
    def of(cls, text: str, latex: Callable[[], str]) -> Equation:
        """Take the text, and what gives the same in LaTeX when it is asked for."""
        found = cls(text)
        found._latex = latex
        return found

    def _repr_latex_(self) -> str:
        return f"$${self._latex()}$$"

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Copy and pickle as the text alone."""
        return str, (str(self),)


def equation(
    network: Network,
    *,
    notation: str = "paper",
    format: str = "text",
    form: str = "both",
    ascii: bool = False,
) -> str:
    """Write T = … for a network, grouped by source and order, with the number of terms of each.

    `notation` is ``paper`` or ``code``, `format` is ``text`` or ``latex``, `form` is ``factored``,
    ``expanded`` or ``both``. The expanded form is that of "A Mathematical Framework for
    Transformer Circuits" (Elhage et al. 2021), with layers counted from 0; a notebook shows the
    text as a formula. Where there are MLPs too, c is any component, with its position map P^c and
    its linear map W^c.

    >>> print(equation(Network.attention_only(2, 12), form="expanded"))
    T = Id ⊗ W_U W_E                                               [1]
      + Σ_{h∈L0∪L1} A^h ⊗ W_U W_OV^h W_E                          [24]
      + Σ_{h2∈L1} Σ_{h1∈L0} A^h2 A^h1 ⊗ W_U W_OV^h2 W_OV^h1 W_E  [144]
    <BLANKLINE>
    [n] terms of each kind, 169 in all
    L0 = {L0H0, …, L0H11}, L1 = {L1H0, …, L1H11}
    >>> print(equation(Network.transformer(1, 12, 3072, mlp="neurons"), form="expanded"))
    T = Id ⊗ W_U W_E                                             [1]
      + Σ_{h∈L0} A^h ⊗ W_U W_OV^h W_E                           [12]
      + Σ_{n∈L0N} G^n ⊗ W_U W_IO^n W_E                       [3,072]
      + Σ_{n∈L0N} Σ_{h∈L0} G^n A^h ⊗ W_U W_IO^n W_OV^h W_E  [36,864]
    <BLANKLINE>
    [n] terms of each kind, 39,949 in all
    G^n: the gate of neuron n, diagonal in positions; W_IO^n = w_in w_out
    L0 = {L0H0, …, L0H11}, L0N = {L0N0, …, L0N3071}
    """
    style = Style(notation, format, ascii)
    check_choice("form", form, _FORMS)
    found = rows(network, style) if form != "factored" else []
    lines = factored(network, style) if form != "expanded" else []
    if style.latex:
        return _latex_lines(network, lines, found, style)
    return Equation.of(
        _text(network, lines, found, style),
        lambda: equation(network, notation=notation, format="latex", form=form),
    )


# --- text -------------------------------------------------------------------------------------


def _text(network: Network, lines: list[str], found: list[SumRow], style: Style) -> str:
    blocks = ["\n".join(map(style.plain, lines))] if lines else []
    if found:
        continued = len(lines) == 1
        expanded = _aligned(found, "  = " if continued else "T = ", style)
        blocks = [f"{blocks[0]}\n{expanded}"] if continued else [*blocks, expanded]
    legend = [*_legend(network, found, style), *_sets(network)]
    blocks += ["\n".join(map(style.plain, legend))] if legend else []
    return "\n\n".join(blocks)


def _aligned(found: list[SumRow], first: str, style: Style) -> str:
    """Write the rows with their numbers flush right, as close as the longest row allows."""
    leads = [first, *["  + "] * (len(found) - 1)]
    formulas = [style.plain(lead + row.formula) for lead, row in zip(leads, found, strict=True)]
    numbers = [style.plain(f"[{_number(row.terms)}]") for row in found]
    width = max(map(len, map(add, formulas, numbers))) + 2
    pairs = zip(formulas, numbers, strict=True)
    return "\n".join(formula + number.rjust(width - len(formula)) for formula, number in pairs)


def _number(terms: int) -> str:
    if terms < 10**_MOST_DIGITS:
        return f"{terms:,}"
    power = math.floor(math.log10(terms))
    return f"≈ {terms // 10 ** (power - 2) / 100:.2f}·10^{power}"


# --- what the letters mean --------------------------------------------------------------------


def _legend(network: Network, found: list[SumRow], style: Style) -> list[str]:
    legend = []
    if found:
        legend.append(f"[n] terms of each kind, {_number(network.count())} in all")
        if any("<" in row.formula for row in found):
            legend.append(f"x<y: {_order(network)}")
    legend += _maps(network, style)
    if any(_any_component(row, style) for row in found):
        legend += _wrapped("c: ", _meanings(network, style))
    shared = shared_name(network) if found else ""
    born = [source.label for source in constants(network)]
    if shared == "l":
        layers = [label.rstrip("biasM") for label in born]
        legend.append(f"l: a layer with a constant, {_listed(layers)}")
    elif shared:
        symbols = [style.linear_map(source_map(label)) for label in born]
        legend.append(f"s: a constant, {_listed(symbols)}")
    outputs = [label for label in born if label.endswith("M")]
    if outputs:
        symbols = [style.linear_map(source_map(label)) for label in outputs]
        legend.append(f"{_listed(symbols)}: what the MLP of the layer writes")
    return legend


def _order(network: Network) -> str:
    """Say when one component is before another in a sum."""
    if one_stage_a_layer(network):
        return "y is in a later layer than x"
    stages = [stage for stage in network.stages if stage]
    if all(len(kinds([stage])) == 1 for stage in stages):
        return "y is in a later layer than x, or in the MLP after x in its layer"
    return "y reads what x writes"


def _maps(network: Network, style: Style) -> list[str]:
    """Say what the maps of neurons and MLPs are."""
    lines = []
    gates = {name: f"{position(name, style)}" for name in "nm"}
    maps = {name: f"{output(name, style)}" for name in "nm"}
    if Neuron in kinds(network.stages):
        said = "the gate of neuron n, diagonal in positions"
        lines.append(f"{gates['n']}: {said}; {maps['n']} = w_in w_out")
    if Mlp in kinds(network.stages):
        whole, sum_of = (f"{gates[name]} ⊗ {maps[name]}" for name in "mn")
        lines.append(f"{whole}: MLP m, the sum of {sum_of} over its neurons n")
    return lines


def _any_component(row: SumRow, style: Style) -> bool:
    """Say whether a row sums over components of any kind."""
    return style.symbol("P", "c")[:2] in row.formula


def _meanings(network: Network, style: Style) -> list[str]:
    """Say what P^c and W^c are for each kind of component."""
    found = []
    for kind in kinds(network.stages):
        name = LETTERS[kind]
        maps = style.linear_map(LinearMap("W", name, STREAM, STREAM))
        equals = f"{style.symbol('P', name)} = {position(name, style)}"
        found.append(f"{_WORDS[kind]}, {equals}, {maps} = {output(name, style)}")
    return found


def _wrapped(first: str, pieces: Sequence[str]) -> list[str]:
    """Join pieces with semicolons on as many lines as it takes."""
    lines = [first + pieces[0]]
    for piece in pieces[1:]:
        lines[-1] += ";"
        if len(lines[-1]) + len(piece) + 1 <= WIDTH:
            lines[-1] += f" {piece}"
        else:
            lines.append(" " * len(first) + piece)
    return lines


def _sets(network: Network) -> list[str]:
    """Say which components are in each set."""
    sets = []
    for stage in network.stages:
        for kind in kinds([stage]):
            labels = [each.label for each in stage if isinstance(each, kind)]
            if kind is not Mlp:
                name = set_name(kind, stage[0].layer, Style())
                sets.append(f"{name} = {{{_listed(labels)}}}")
    one_line = ", ".join(sets)
    if len(one_line) <= WIDTH:
        return [one_line] if sets else []
    return _alike(network) or sets


def _alike(network: Network) -> list[str]:
    """Say it once for all layers, if all have components of the same numbers, from 0 on."""
    stages = network.stages
    layers = 1 + max(each.layer for stage in stages for each in stage[:1])
    sets = []
    for kind in kinds(stages):
        if kind is Mlp:
            continue
        found = [each for stage in stages for each in stage if isinstance(each, kind)]
        first = [each.index for each in found if each.layer == 0]
        same = [(layer, index) for layer in range(layers) for index in first]
        if [*range(len(first))] != first or [(each.layer, each.index) for each in found] != same:
            return []
        labels = [f"Ll{LETTERS[kind].upper()}{index}" for index in first]
        sets.append(f"{set_name(kind, 'l', Style())} = {{{_listed(labels)}}}")
    return [f"{', '.join(sets)} for l = 0…{layers - 1}"]


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels if len(labels) <= 3 else [labels[0], "…", labels[-1]])


# --- LaTeX ------------------------------------------------------------------------------------


def _latex_lines(network: Network, lines: list[str], found: list[SumRow], style: Style) -> str:
    written = [line.replace(" = ", " ={}& ", 1) for line in lines]
    for number, row in enumerate(found):
        if number:
            written.append(f"&+ {row.formula}")
        else:
            written.append(("={}& " if len(lines) == 1 else "T ={}& ") + row.formula)
    if any(_any_component(row, style) for row in found):
        for meaning in _meanings(network, style):
            word, _, equals = meaning.partition(", ")
            equals = equals.replace(", ", r",\ ")
            written.append(rf"&\text{{for {word}: }} {equals}")
    return "\\begin{aligned}\n" + " \\\\\n".join(written) + "\n\\end{aligned}"
