"""A network as a product of its stages, or stage by stage where constants are born on the way."""

from __future__ import annotations

from pathexpand.symbolic.bound import (
    LETTERS,
    ellipsis,
    kinds,
    member,
    output,
    position,
    set_name,
    total,
)
from pathexpand.symbolic.component import Mlp
from pathexpand.symbolic.maps import LinearMap
from pathexpand.symbolic.network import Network, Stage
from pathexpand.symbolic.source import Source, source_map
from pathexpand.symbolic.style import Style

WIDTH = 80
"""The width that lines should fit."""

_MOST_FACTORS = 4  # more stages than this are written with an ellipsis
_MOST_LAYERS = 3  # more layers that are alike than this share their lines


def factored(network: Network, style: Style) -> list[str]:
    """Return the lines of the factored form, each "left = right".

    >>> print(*factored(Network.attention_only(1, 12), Style()))
    T = (Id ⊗ W_U) (Id ⊗ Id + Σ_{h∈L0} A^h ⊗ W_OV^h) (Id ⊗ W_E)
    """
    unembed = f"({style.tensor([], ['W_U'])})"
    first = [_whole(source, style) for source in network.sources if source.boundary == 0]
    last = "".join(
        f" + {_whole(source, style)}" for source in network.sources if source.boundary is None
    )
    start = " + ".join(first) or "0"
    if any(source.boundary for source in network.sources):
        lines = _repeated(network, style) or _one_by_one(network, style)
        end = f"T = {unembed}{_joint(style)}{_stream(str(network.depth), style)}{last}"
        return [f"{_stream('0', style)} = {start}", *lines, end]
    filled = [stage for stage in network.stages if stage]
    factors = [_factor(stage, stage[0].layer, style) for stage in filled]
    if len(factors) > _MOST_FACTORS:
        ends = 1 + (filled[0][0].layer == filled[1][0].layer)
        factors = [*factors[:ends], ellipsis(style), *factors[-ends:]]
    return [f"T = {_fill([unembed, *reversed(factors), f'({start})'], style)}{last}"]


def _whole(source: Source, style: Style) -> str:
    return style.tensor([], [style.linear_map(source_map(source.label))])


def _factor(stage: Stage, layer: int | str, style: Style) -> str:
    """Return (Id ⊗ Id + Σ …) with a sum for each kind of component in a stage of this layer."""
    parts = [style.tensor([], [])]
    for kind in kinds([stage]):
        name = set_name(Mlp, layer, Style()) if kind is Mlp else LETTERS[kind]
        sign = "" if kind is Mlp else total(member(name, kind, [layer], style), style)
        parts.append(sign + style.tensor([position(name, style)], [output(name, style)]))
    inner = " + ".join(parts)
    return rf"\Bigl({inner}\Bigr)" if style.latex else f"({inner})"


def _repeated(network: Network, style: Style) -> list[str]:
    """Return what every layer does, if there are many and all do alike; otherwise nothing."""
    stages = network.stages
    period = sum(bool(stage) and stage[0].layer == 0 for stage in stages)
    if not (all(stages) and period and len(stages) > _MOST_LAYERS * period):
        return []
    born = [_born(network, number) for number in range(len(stages))]
    for number, stage in enumerate(stages):
        layer, like = divmod(number, period)
        ends = [source.label.replace("L0", f"L{layer}", 1) for source in born[like]]
        same = kinds([stage]) == kinds([stages[like]]) and stage[0].layer == layer
        if not same or [source.label for source in born[number]] != ends:
            return []
    last = len(stages) // period - 1
    span = rf"\quad (l = 0, \ldots, {last})" if style.latex else f"   (l = 0…{last})"
    lines = []
    for number in range(period):
        index = f"{'' if period == 1 else period}l"
        before = f"{index}+{number}" if number else index
        maps = [source_map(source.label) for source in born[number]]
        maps = [LinearMap(m.name, m.label.replace("L0", "l"), m.source, m.target) for m in maps]
        plus = [style.tensor([], [style.linear_map(each)]) for each in maps]
        step = _factor(stages[number], "l", style) + _joint(style) + _stream(before, style)
        pieces = [step, *plus]
        pieces[-1] += "" if number else span
        lines.append(_line(_stream(f"{index}+{number + 1}", style), pieces, style))
    return lines


def _one_by_one(network: Network, style: Style) -> list[str]:
    lines = []
    for number, stage in enumerate(network.stages):
        step = _factor(stage, stage[0].layer, style) + _joint(style) if stage else ""
        plus = [_whole(source, style) for source in _born(network, number)]
        pieces = [step + _stream(str(number), style), *plus]
        lines.append(_line(_stream(str(number + 1), style), pieces, style))
    return lines


def _born(network: Network, stage: int) -> list[Source]:
    """Return the sources born right after a stage."""
    return [source for source in network.sources if source.boundary == stage + 1]


def _stream(boundary: str, style: Style) -> str:
    plain = boundary.isdigit() or len(boundary) == 1
    return f"X_{boundary}" if plain and not style.latex else f"X_{{{boundary}}}"


def _joint(style: Style) -> str:
    return " " if style.notation == "paper" or style.latex else " @ "


def _line(left: str, pieces: list[str], style: Style) -> str:
    """Write left = the sum of the pieces, on as many lines as it takes."""
    lines = [f"{left} = {pieces[0]}"]
    for piece in pieces[1:]:
        if style.latex or len(lines[-1]) + len(piece) + 3 <= WIDTH:
            lines[-1] += f" + {piece}"
        else:
            lines.append(" " * (len(left) + 3) + f"+ {piece}")
    return "\n".join(lines)


def _fill(factors: list[str], style: Style) -> str:
    """Put as many factors on a line as fit after "T = "."""
    joint = _joint(style)
    if style.latex:
        return joint.join(factors)
    lines = [factors[0]]
    for factor in factors[1:]:
        longer = lines[-1] + joint + factor
        if len(longer) + 4 <= WIDTH:
            lines[-1] = longer
        else:
            lines[-1] += joint.rstrip()
            lines.append(factor)
    return "\n    ".join(lines)
