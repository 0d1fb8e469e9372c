"""Read a printed equation back: an oracle that takes every sum at its word."""

import re
from itertools import pairwise, product

from pathexpand.symbolic import (
    Head,
    Mlp,
    Neuron,
    Sum,
    Then,
    expand,
    linear_map,
    parse_component,
    parse_term,
    position_map,
    source_map,
)

KINDS = {"h": Head, "n": Neuron, "m": Mlp, "c": (Head, Neuron, Mlp)}
SIGN = re.compile(r"Σ_\{((?:[^{}]|\{[^{}]*\})*)\} ")
FACTOR = re.compile(r"\((?:[^()]|\([^()]*\))*\)|X_\{[^}]*\}|X_\w+")


def read_rows(text, network):
    """Return what the expanded form of an equation means, in the paper's notation."""
    rows = re.sub(r" +\[[^\]]*\]$", "", text.split("\n\n")[0], flags=re.MULTILINE).splitlines()
    terms = [term for row in rows for term in read_sum(row[4:], network)]
    return expand(Sum.of(*terms))


def read_factored(text, network):
    """Return what the factored form of an equation means, in the paper's notation."""
    block = text.split("\n\n")[0]
    lines = re.sub(r"\n +", " ", block).splitlines()
    streams = {}
    for line in unrolled(lines):
        left, right = line.split(" = ", 1)
        streams[re.sub(r"[{}]", "", left)] = read_expression(right, network, streams)
    return expand(streams["T"])


def unrolled(lines):
    """Write out the lines that hold for every layer l."""
    general = [line for line in lines if re.match(r"X_\{2?l", line)]
    if not general:
        return lines
    last = int(re.search(r"\(l = 0…(\d+)\)", general[0])[1])
    written = [in_layer(layer, line) for layer in range(last + 1) for line in general]
    first = [line for line in lines if line.startswith("X_0 ")]
    return [*first, *written, lines[-1]]


def in_layer(layer, line):
    text = re.sub(r" +\(l = .*", "", line)
    text = re.sub(r"X_\{2l", f"X_{{{2 * layer}", text)
    text = re.sub(r"X_(\{?)l", rf"X_\g<1>{layer}", text)
    text = re.sub(r"\^l", f"^L{layer}", text)
    text = re.sub(r"Ll", f"L{layer}", text)
    return re.sub(r"X_\{(\d+)\+(\d)\}", lambda sum_: f"X_{int(sum_[1]) + int(sum_[2])}", text)


def read_expression(text, network, streams):
    parts = []
    for piece in re.split(r" \+ (?![^()]*\))", text):
        if not piece.startswith(("(", "X_")):
            parts += read_sum(piece, network)
            continue
        factors = []
        for factor in FACTOR.findall(piece):
            if factor.startswith("X_"):
                factors.append(streams[re.sub(r"[{}]", "", factor)])
            else:
                inner = factor[1:-1].split(" + ")
                factors.append(
                    Sum.of(*[term for each in inner for term in read_sum(each, network)])
                )
        parts.append(Then(tuple(reversed(factors))))
    return Sum.of(*parts)


def read_sum(text, network):
    """Return the terms that a sum with its signs stands for."""
    choices = [{}]
    for index in SIGN.findall(text):
        choices = [chosen | more for chosen in choices for more in bound(index, network)]
    words = SIGN.sub("", text).split(" ")
    return [parse_term(" ".join(written(word, chosen) for word in words)) for chosen in choices]


def bound(index, network):
    """Yield the values of the variables of one sign."""
    if "∈" in index:
        name, sets = index.split("∈")
        for label in sets.strip("{}").split(",") if "{" in sets else sets.split("∪"):
            for each in members(label, network):
                yield {name: each}
        return
    names = index.split("<")
    for values in product(*(candidates(name, network) for name in names)):
        places = [place(value, network) for value in values]
        if all(one[1] <= other[0] for one, other in pairwise(places)):
            yield dict(zip(names, values, strict=True))


def members(label, network):
    if label.endswith("M"):
        return [parse_component(label)]
    kind = Neuron if label.endswith("N") else Head
    layer = int(label.strip("LN"))
    return [each for each in network.components if type(each) is kind and each.layer == layer]


def candidates(name, network):
    born = [source for source in network.sources if source.boundary]
    if name in ("s", "l"):
        return born
    if re.fullmatch(r"L\d+", name):  # any constant of the layer: they are born together
        return [each for each in born if each.label.startswith(name)][:1]
    if "^" in name:
        return [each for each in born if str(source_map(each.label)) == name]
    return [each for each in network.components if isinstance(each, KINDS[name[0]])]


def place(value, network):
    """Return the boundaries before and after a component; a source is after its own."""
    stage = network.stage(value) if hasattr(value, "layer") else None
    return (0, value.boundary) if stage is None else (stage, stage + 1)


def written(word, chosen):
    if word in chosen:
        return str(source_map(chosen[word].label))
    name, _, label = word.partition("^")
    if name in ("b", "M") and label.startswith("l"):
        layer = re.match(r"L\d+", chosen["l"].label)[0]
        return f"{name}^{layer}{label[1:]}"
    if label not in chosen:
        return word
    component = chosen[label]
    whole = position_map(component) if name in "PAG" else linear_map(component)
    assert name in ("P", "W") or str(whole).startswith(f"{name}^")
    return str(whole)
