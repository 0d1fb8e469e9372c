"""Random networks, paths and expressions; never symmetric, heads never alike."""

from hypothesis import strategies as st

from pathexpand.symbolic import Head, Network, Path, Sum, Term, Then, attention, ov

LABELS = ["L0H0", "L0H1", "L1H0", "L1H2", "L2H10"]


def head_term(label):
    return Term((attention(label),), (ov(label),))


def steps():
    """Expressions from the stream to the stream, nested, with weights that can cancel."""
    leaves = st.one_of(st.just(Term((), ())), st.sampled_from(LABELS).map(head_term))

    def grow(inner):
        weighted = st.tuples(st.integers(-2, 2), inner)
        sums = st.lists(weighted, min_size=1, max_size=3).map(lambda parts: Sum(tuple(parts)))
        chains = st.lists(inner, min_size=1, max_size=3).map(lambda f: Then(tuple(f)))
        return sums | chains

    return st.recursive(leaves, grow, max_leaves=7)


def networks(*, max_layers=3, max_heads=3):
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
    source = draw(st.sampled_from(["embed", "pos", "b_U", "L0bias", "L3bias", "L11bias"]))
    if source == "b_U":
        return Path(source)
    first = int(source[1:-4]) + 1 if source.endswith("bias") else 0
    layers = sorted(draw(st.sets(st.integers(first, first + 12), max_size=4)))
    return Path(source, tuple(Head(layer, draw(st.integers(0, 11))) for layer in layers))
