"""Print a network as the paper does: factored, and multiplied out with sums over heads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pathexpand.symbolic.maps import LinearMap, attention, ov
from pathexpand.symbolic.network import Network, Source
from pathexpand.symbolic.path import Head, source_map
from pathexpand.symbolic.style import Style, check_choice, latex_label

_FORMS = ("both", "factored", "expanded")
_WIDTH = 80
_SHOWN_ORDERS = 12  # above this depth the orders after the third share one line
_WRITTEN_OUT = 3  # the highest order whose words are written without an ellipsis


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
    Transformer Circuits" (Elhage et al. 2021), with layers counted from 0.

    >>> print(equation(Network.attention_only(2, 12), form="expanded"))
    T = Id ⊗ W_U W_E                                               [1]
      + Σ_{h∈L0∪L1} A^h ⊗ W_U W_OV^h W_E                          [24]
      + Σ_{h2∈L1} Σ_{h1∈L0} A^h2 A^h1 ⊗ W_U W_OV^h2 W_OV^h1 W_E  [144]
    <BLANKLINE>
    [n] terms of each kind, 169 in all
    L0 = {L0H0, …, L0H11}, L1 = {L1H0, …, L1H11}
    """
    style = Style(notation, format, ascii)
    check_choice("form", form, _FORMS)
    rows = _rows(network, style) if form != "factored" else []
    factored = _factored(network, style) if form != "expanded" else []
    if style.latex:
        return _latex_lines(factored, rows)
    return _text(network, factored, rows, style)


@dataclass(frozen=True, slots=True)
class _Row:
    formula: str
    terms: int


# --- multiplied out ---------------------------------------------------------------------------


def _rows(network: Network, style: Style) -> list[_Row]:
    constants = _constants(network)
    together = _share_lines(network)
    rows: list[_Row] = []
    for source in network.sources:
        if source.boundary is None:
            rows.append(_Row(style.tensor([], [style.linear_map(source_map(source.label))]), 1))
        elif not (together and source.boundary):
            rows += _source_rows(network, [source], style)
        elif source == constants[0]:
            rows += _source_rows(network, constants, style)
    return rows


def _constants(network: Network) -> list[Source]:
    return [source for source in network.sources if source.boundary]


def _share_lines(network: Network) -> bool:
    """Whether the constants of all layers share a line for each order."""
    return len(_constants(network)) > 2


def _source_rows(network: Network, sources: list[Source], style: Style) -> list[_Row]:
    """Return a row for each order of the paths from one source, or from several constants."""
    counts: list[int] = []
    for source in sources:
        each = Network(network.layers, (source,)).count_by_order()
        counts += [0] * (len(each) - len(counts))
        counts = [a + b for a, b in zip(counts, [*each, *[0] * len(counts)], strict=False)]
    symbol = _source_symbol(sources, style)
    shown = len(counts) if len(counts) <= _SHOWN_ORDERS + 1 else _WRITTEN_OUT + 1
    rows = [
        _Row(_sums(network, sources, order, style) + _words(str(order), symbol, style), number)
        for order, number in enumerate(counts[:shown])
    ]
    if shown < len(counts):
        bound = _variable_sum("k", shown, len(counts) - 1, style)
        head_sum = _sum(_chain(sources, "k", style), style)
        rows.append(_Row(bound + head_sum + _words("k", symbol, style), sum(counts[shown:])))
    return rows


def _source_symbol(sources: list[Source], style: Style) -> str:
    start = source_map(sources[0].label)
    if len(sources) > 1:
        start = LinearMap(start.name, "l", start.source, start.target)
    return style.linear_map(start)


def _words(order: str, symbol: str, style: Style) -> str:
    labels = _variables(order)
    positions = [_pattern(label, style) for label in labels]
    outputs = [_output(label, style) for label in labels]
    return style.tensor(positions, [symbol, *outputs, "W_U"])


def _variables(order: str) -> list[str]:
    """Return the names of the bound heads, earliest first, with … for those left out."""
    if order == "k" or int(order) > _WRITTEN_OUT:
        return ["h1", "…", f"h{order}"]
    return ["h"] if order == "1" else [f"h{number + 1}" for number in range(int(order))]


def _pattern(label: str, style: Style) -> str:
    return _ellipsis(style) if label == "…" else style.position_map(attention(label))


def _output(label: str, style: Style) -> str:
    return _ellipsis(style) if label == "…" else style.linear_map(ov(label))


def _ellipsis(style: Style) -> str:
    return r"\cdots" if style.latex else "…"


def _sums(network: Network, sources: list[Source], order: int, style: Style) -> str:
    """Return the summation signs in front of the terms of one order."""
    filled = _filled(network, sources[0])
    if len(sources) > 1:
        return _sum(_chain(sources, str(order), style), style)
    if order == 0:
        return ""
    if order == 1:
        return _sum(_member("h", filled, style), style)
    if order == 2 == len(filled):
        later, earlier = _member("h2", filled[1:], style), _member("h1", filled[:1], style)
        return _sum(later, style) + _sum(earlier, style)
    return _sum(_chain(sources, str(order), style), style)


def _filled(network: Network, source: Source) -> list[int]:
    """Return the layers with heads that the source passes."""
    return [n for n, heads in enumerate(network.layers) if heads and n >= (source.boundary or 0)]


def _member(variable: str, layers: list[int], style: Style) -> str:
    sets = [_set(layer, style) for layer in layers]
    if len(sets) > 3:
        sets = [sets[0], _ellipsis(style), sets[-1]]
    if style.latex:
        return rf"{latex_label(variable)} \in " + r" \cup ".join(sets)
    return f"{variable}∈" + "∪".join(sets)


def _set(layer: int, style: Style) -> str:
    return f"L_{{{layer}}}" if style.latex else f"L{layer}"


def _chain(sources: list[Source], order: str, style: Style) -> str:
    """Return ``h1<h2<h3``, after the layer of a constant: each in a later layer than the last."""
    names = [] if order == "0" else _variables(order)
    if style.latex:
        names = [r"\cdots" if name == "…" else latex_label(name) for name in names]
    if len(sources) > 1:
        names = ["l", *names]
    elif sources[0].boundary:
        names = [_set(sources[0].boundary - 1, style), *names]
    return (" < " if style.latex else "<").join(names)


def _sum(index: str, style: Style) -> str:
    return rf"\sum_{{{index}}} " if style.latex else f"Σ_{{{index}}} "


def _variable_sum(name: str, lowest: int, highest: int, style: Style) -> str:
    if style.latex:
        return rf"\sum_{{{name}={lowest}}}^{{{highest}}} "
    return f"Σ_{{{name}={lowest}…{highest}}} "


# --- factored ---------------------------------------------------------------------------------


def _factored(network: Network, style: Style) -> list[str]:
    """Return the lines of the factored form, each "left = right"."""
    unembed = f"({style.tensor([], ['W_U'])})"
    first = [_whole(source, style) for source in network.sources if source.boundary == 0]
    last = "".join(
        f" + {_whole(source, style)}" for source in network.sources if source.boundary is None
    )
    constants = {boundary: source for source in network.sources if (boundary := source.boundary)}
    start = " + ".join(first) or "0"
    if constants:
        return _recursion(network, constants, (unembed, start, last), style)
    stages = [_stage(str(number), style) for number, heads in enumerate(network.layers) if heads]
    if len(stages) > 4:
        stages = [stages[0], _ellipsis(style), stages[-1]]
    joint = " " if style.notation == "paper" or style.latex else " @ "
    product = _fill([unembed, *reversed(stages), f"({start})"], joint, style)
    return [f"T = {product}{last}"]


def _whole(source: Source, style: Style) -> str:
    return style.tensor([], [style.linear_map(source_map(source.label))])


def _stage(layer: str, style: Style) -> str:
    belongs = rf"h \in L_{{{layer}}}" if style.latex else f"h∈L{layer}"
    heads = _sum(belongs, style) + style.tensor([_pattern("h", style)], [_output("h", style)])
    identity = style.tensor([], [])
    return rf"\Bigl({identity} + {heads}\Bigr)" if style.latex else f"({identity} + {heads})"


def _recursion(
    network: Network,
    constants: dict[int, Source],
    ends: tuple[str, str, str],
    style: Style,
) -> list[str]:
    """Return X_0 = …, X_1 = … X_0 + b^L0, …, T: a product cannot hold constants born on the way."""
    unembed, start, last = ends
    depth = network.depth
    joint = " " if style.notation == "paper" or style.latex else " @ "
    lines = [f"{_stream('0', style)} = {start}"]
    alike = all(network.layers) and len(constants) == depth
    if alike and depth > 3:
        born = style.tensor([], [_source_symbol([*constants.values()], style)])
        step = f"{_stage('l', style)}{joint}{_stream('l', style)} + {born}"
        span = rf"\quad (l = 0, \ldots, {depth - 1})" if style.latex else f"   (l = 0…{depth - 1})"
        lines.append(f"{_stream('l+1', style)} = {step}{span}")
    else:
        for layer, heads in enumerate(network.layers):
            stage = _stage(str(layer), style) + joint if heads else ""
            born = f" + {_whole(constants[layer + 1], style)}" if layer + 1 in constants else ""
            before, after = _stream(str(layer), style), _stream(str(layer + 1), style)
            lines.append(f"{after} = {stage}{before}{born}")
    return [*lines, f"T = {unembed}{joint}{_stream(str(depth), style)}{last}"]


def _stream(boundary: str, style: Style) -> str:
    return f"X_{{{boundary}}}" if style.latex or "+" in boundary else f"X_{boundary}"


def _fill(factors: list[str], joint: str, style: Style) -> str:
    """Put as many factors on a line as fit after "T = "."""
    if style.latex:
        return joint.join(factors)
    lines = [factors[0]]
    for factor in factors[1:]:
        longer = lines[-1] + joint + factor
        if len(longer) + 4 <= _WIDTH:
            lines[-1] = longer
        else:
            lines[-1] += joint.rstrip()
            lines.append(factor)
    return "\n    ".join(lines)


# --- whole texts ------------------------------------------------------------------------------


def _text(network: Network, factored: list[str], rows: list[_Row], style: Style) -> str:
    blocks = ["\n".join(map(style.plain, factored))] if factored else []
    legend: list[str] = []
    if rows:
        continued = len(factored) == 1
        expanded = _aligned(rows, "  = " if continued else "T = ", style)
        blocks = [f"{blocks[0]}\n{expanded}"] if continued else [*blocks, expanded]
        legend.append(f"[n] terms of each kind, {_number(network.count())} in all")
        if any("<" in row.formula for row in rows):
            legend.append("x<y: y is in a later layer than x")
        if _share_lines(network):
            legend.append(f"l: a layer with a constant, {_constant_layers(network)}")
    legend += _sets(network)
    blocks += ["\n".join(map(style.plain, legend))] if legend else []
    return "\n\n".join(blocks)


def _aligned(rows: list[_Row], first: str, style: Style) -> str:
    """Write the rows with their numbers flush right, as close as the longest row allows."""
    leads = [first, *["  + "] * (len(rows) - 1)]
    formulas = [style.plain(lead + row.formula) for lead, row in zip(leads, rows, strict=True)]
    numbers = [style.plain(f"[{_number(row.terms)}]") for row in rows]
    pairs = list(zip(formulas, numbers, strict=True))
    width = max(len(formula) + len(number) for formula, number in pairs) + 2
    return "\n".join(formula + number.rjust(width - len(formula)) for formula, number in pairs)


def _number(terms: int) -> str:
    exact = f"{terms:,}"
    if len(exact) <= 21:
        return exact
    power = math.floor(math.log10(terms))
    return f"≈ {terms // 10 ** (power - 2) / 100:.2f}·10^{power}"


def _constant_layers(network: Network) -> str:
    return _listed([source.label.removesuffix("bias") for source in _constants(network)])


def _sets(network: Network) -> list[str]:
    sets = [
        f"L{number} = {{{_listed([head.label for head in heads])}}}"
        for number, heads in enumerate(network.layers)
        if heads
    ]
    one_line = ", ".join(sets)
    if len(one_line) <= _WIDTH:
        return [one_line] if sets else []
    size = len(network.layers[0])
    alike = all(
        heads == tuple(Head(layer, number) for number in range(size))
        for layer, heads in enumerate(network.layers)
    )
    if not alike:
        return sets
    return [f"Ll = {{{_listed([f'LlH{n}' for n in range(size)])}}} for l = 0…{network.depth - 1}"]


def _listed(labels: list[str]) -> str:
    return ", ".join(labels if len(labels) <= 3 else [labels[0], "…", labels[-1]])


def _latex_lines(factored: list[str], rows: list[_Row]) -> str:
    lines = [line.replace(" = ", " ={}& ", 1) for line in factored]
    for number, row in enumerate(rows):
        if number:
            lines.append(f"&+ {row.formula}")
        else:
            lines.append(("={}& " if len(factored) == 1 else "T ={}& ") + row.formula)
    return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"
