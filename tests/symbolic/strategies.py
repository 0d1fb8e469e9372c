"""Random networks, paths and expressions; never symmetric, components never alike."""

from hypothesis import strategies as st

from pathexpand.symbolic import (
    Head,
    Mlp,
    Network,
    Neuron,
    Path,
    Source,
    Sum,
    Term,
    Then,
    linear_map,
    parse_component,
    position_map,
    source_key,
)

LABELS = ["L0H0", "L0H1", "L0N3", "L1H0", "L1M", "L2H10", "L2N12"]
AT_START = ["embed", "pos", "type", "embedbias"]
SOURCES = [*AT_START, "b_U", "L0bias", "L0M", "L0Mbias", "L3bias", "L3M", "L3Mbias", "L11bias"]


def component_term(label):
    component = parse_component(label)
    return Term((position_map(component),), (linear_map(component),))


def steps():
    """Expressions from the stream to the stream, nested, with weights that can cancel."""
    leaves = st.one_of(st.just(Term((), ())), st.sampled_from(LABELS).map(component_term))

    def grow(inner):
        weighted = st.tuples(st.integers(-2, 2), inner)
        sums = st.lists(weighted, min_size=1, max_size=3).map(lambda parts: Sum(tuple(parts)))
        chains = st.lists(inner, min_size=1, max_size=3).map(lambda f: Then(tuple(f)))
        return sums | chains

    return st.recursive(leaves, grow, max_leaves=7)


@st.composite
def networks(draw, *, max_layers=3, max_heads=3, heads=None):
    """Networks whose layers each have their own heads, MLP and way of joining the two."""
    kinds = st.sampled_from(["none", "neurons", "source", "frozen"])
    counts = st.integers(0, max_heads) if heads is None else heads
    stages, sources = [], [Source("embed", 0)]
    sources += [Source(label, 0) for label in AT_START[1:] if draw(st.booleans())]
    alike = draw(st.booleans()) and draw(kinds)
    for layer in range(draw(st.integers(0, max_layers))):
        kind = alike or draw(kinds)
        inner = (Mlp(layer),) if kind == "frozen" else ()
        if kind == "neurons":
            inner = tuple(Neuron(layer, n) for n in range(draw(counts)))
        outer = tuple(Head(layer, n) for n in range(draw(counts)))
        parallel = kind in ("none", "source") or draw(st.booleans())
        stages += [outer + inner] if parallel else [outer, inner]
        if draw(st.booleans()):
            sources.append(Source(f"L{layer}bias", len(stages) - (not parallel)))
        if kind == "source":
            sources.append(Source(f"L{layer}M", len(stages)))
        if kind != "none" and draw(st.booleans()):
            sources.append(Source(f"L{layer}Mbias", len(stages)))
    sources += [Source("b_U", None)] * draw(st.booleans())
    return Network(tuple(stages), tuple(sources))


def attention_networks(*, max_layers=3, max_heads=3):
    sizes = st.lists(st.integers(0, max_heads), max_size=max_layers).map(tuple)
    flags = st.booleans()
    return st.builds(
        lambda heads, positions, biases, last: Network.attention_only(
            heads=heads, positions=positions, biases=biases, unembed_bias=last
        ),
        sizes,
        flags,
        flags,
        flags,
    )


@st.composite
def paths(draw):
    source = draw(st.sampled_from(SOURCES))
    key = source_key(source)
    if key is None:
        return Path(source)
    places = [place for n in range(8) for place in ((n, 0), (n, 1)) if place > key]
    chosen = draw(st.lists(st.sampled_from(places), max_size=4, unique=True)) if places else []
    components = []
    for layer, rank in sorted(chosen):
        number = draw(st.integers(0, 11))
        if not rank:
            components.append(Head(layer, number))
        else:
            components.append(draw(st.sampled_from([Neuron(layer, number), Mlp(layer)])))
    return Path(source, tuple(components))
