import pytest

from pathexpand.errors import CompositionError
from pathexpand.symbolic import STREAM, W_E, W_U, Expansion, Sum, Term, Then, count, expand

from .strategies import component_term

EMBED, UNEMBED, IDENTITY = Term((), (W_E,)), Term((), (W_U,)), Term((), ())


@pytest.mark.parametrize(
    "build",
    [
        lambda: EMBED + UNEMBED,
        lambda: EMBED - IDENTITY,
        lambda: EMBED @ UNEMBED,
        lambda: EMBED.then(EMBED),
        lambda: Then((UNEMBED, EMBED)),
        lambda: Then(()),
        lambda: Sum(()),
        lambda: Sum(((0.5, EMBED),)),
        lambda: Then(("W_E",)),
        lambda: Expansion({EMBED: 0}, EMBED.source, EMBED.target),
        lambda: Expansion({EMBED: 1}, STREAM, STREAM),
        lambda: Term([], [W_E]),
    ],
)
def test_wrong_nodes_cannot_be_built(build):
    with pytest.raises(CompositionError):
        build()


@pytest.mark.parametrize("build", [lambda: EMBED + 1, lambda: EMBED * 0.5, lambda: EMBED @ 3])
def test_python_refuses_what_is_no_expression(build):
    with pytest.raises(TypeError):
        build()


def test_sums_and_compositions_stay_flat():
    assert len((EMBED + EMBED + EMBED - EMBED).parts) == 4
    assert len((UNEMBED @ IDENTITY @ EMBED).factors) == 3


def test_equality_of_meaning_is_equality_of_expansions():
    a, b = component_term("L0H0"), component_term("L1H0")
    left = (IDENTITY + b) @ (IDENTITY + a)
    right = IDENTITY + a + b + b @ a
    assert left != right
    assert expand(left) == expand(right) and hash(expand(left)) == hash(expand(right))
    assert expand(left) != expand((IDENTITY + a) @ (IDENTITY + b))
    assert len(expand(left - right)) == 0
    assert expand(left - right) != expand(EMBED - EMBED)
    assert expand(expand(left).expression()) == expand(left)
    assert len(expand(expand(left - right).expression())) == 0


def test_four_terms_of_two_layers_print_in_the_right_order():
    a, b = component_term("L0H0"), component_term("L1H0")
    terms = list(expand((IDENTITY + b) @ (IDENTITY + a)))
    assert len(terms) == 4
    assert [str(each) for each in terms[-1].position_word] == ["A^L0H0", "A^L1H0"]
    assert list(reversed(terms)) == list(reversed(list(expand(IDENTITY + b @ a + b + a))))


def test_multiples_and_counts_with_multiplicity():
    assert dict(expand(3 * EMBED - EMBED)) == {EMBED: 2}
    assert count(3 * EMBED - EMBED) == 4
    assert dict(expand(-(EMBED * 2))) == {EMBED: -2}
