import tracemalloc
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathexpand.errors import CompositionError, LimitError
from pathexpand.symbolic import (
    LOGITS,
    W_E,
    Expansion,
    Network,
    Sum,
    Term,
    Then,
    compose,
    count,
    count_by_order,
    expand,
    iterate,
)

from .strategies import component_term, networks, steps


@given(steps(), st.none() | st.integers(0, 4))
def test_iterate_yields_the_summands_of_expand_by_order(expression, max_order):
    found = list(iterate(expression, max_order=max_order))
    orders = [term.order for term, _ in found]
    assert orders == sorted(orders)
    collected = Expansion.collect(found, expression.source, expression.target)
    assert collected == expand(expression, max_order=max_order)


@given(steps())
def test_count_is_the_number_of_ways_iterate_finds(expression):
    found = Counter()
    for term, weight in iterate(expression):
        found[term.order] += abs(weight)
    assert count(expression) == found.total()
    assert list(count_by_order(expression)) == [found[k] for k in range(max(found, default=-1) + 1)]


@given(steps(), st.integers(0, 3))
def test_max_order_keeps_exactly_the_terms_up_to_it(expression, max_order):
    whole = expand(expression)
    kept = {term: number for term, number in whole.items() if term.order <= max_order}
    assert dict(expand(expression, max_order=max_order)) == kept


@given(networks())
def test_a_network_iterates_in_the_order_of_its_expansion_and_paths(network):
    expression = network.expression()
    terms = [term for term, weight in iterate(expression)]
    assert terms == [path.term() for path in network.paths()]
    assert Counter(terms) == Counter(expand(expression))


def test_the_twelve_by_twelve_network_is_counted_exactly():
    expression = Network.attention_only(12, 12).expression()
    assert count(expression) == sum(count_by_order(expression)) == 23_298_085_122_481


def test_too_many_terms_are_refused_before_they_are_allocated():
    expression = Network.attention_only(12, 12).expression()
    tracemalloc.start()
    with pytest.raises(LimitError, match=r"23,298,085,122,481; .*max_order.*limit.*iterate"):
        expand(expression)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    with pytest.raises(LimitError):
        expand(expression, max_order=3, limit=389_808)
    assert len(expand(expression, max_order=2, limit=9_649)) == 9_649


def test_an_endless_number_of_terms_is_refused_too():
    step = Sum.of(*[Term((), ())] * 1000)
    with pytest.raises(LimitError, match=r"got about 10\^6000; set max_order"):
        expand(Then((step,) * 2000))


def test_a_dead_branch_is_not_multiplied_out():
    huge = Network.attention_only(12, 12).expression()
    nothing = 0 * Term((), (), at=LOGITS)
    assert len(expand(nothing @ huge)) == 0
    assert list(iterate(nothing @ huge)) == []
    late = Then((huge, Term((component_term("L0H0").position_word[0],) * 5, (), at=LOGITS)))
    assert len(expand(late, max_order=5)) == 1


def test_the_first_terms_of_a_huge_network_come_without_the_rest():
    expression = Network.attention_only(60, 64, positions=True, biases=True).expression()
    assert [term.order for term, _ in islice(iterate(expression), 70)] == [0] * 62 + [1] * 8


def test_two_thousand_layers_need_no_recursion():
    network = Network.attention_only(2000, 3)
    expression = network.expression()
    assert count(expression) == 4**2000
    assert len(list(islice(iterate(expression), 10))) == 10
    assert len(expand(expression, max_order=1)) == 6001
    nested = Term((), ())
    for _ in range(2000):
        nested = Sum.of(Then((nested, component_term("L0H0"))), Term((), ()))
    assert count(nested) == len(list(iterate(nested, max_order=9))) + 1991 == 2001


@pytest.mark.parametrize("act", [expand, iterate])
def test_a_negative_max_order_is_refused(act):
    with pytest.raises(LimitError):
        act(Term((), (W_E,)), max_order=-1)


def test_compose_refuses_terms_that_do_not_meet():
    with pytest.raises(CompositionError):
        compose(Term((), (W_E,)), Term((), (), at=LOGITS))
