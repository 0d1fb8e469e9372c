"""Each law of the layer fails on an engine that is broken on purpose."""

from itertools import combinations

import pytest

from pathexpand.errors import CompositionError, NotationError
from pathexpand.symbolic import (
    Expansion,
    Network,
    Path,
    Sum,
    Term,
    count,
    expand,
    expansion,
    format_term,
    from_sympy,
    iterate,
    network,
    parse_term,
    style,
    to_sympy,
)

from .strategies import component_term

IDENTITY = Term((), ())
TWO_LAYERS = (IDENTITY + component_term("L1H2")) @ (IDENTITY + 3 * component_term("L0H1"))
NETWORK = Network.attention_only(heads=(2, 3), positions=True, biases=True, unembed_bias=True)
NEURONS = Network.transformer(heads=(2, 1), neurons=2, mlp="neurons", biases=True)


def sympy_law():
    """Our expansion is sympy's."""
    oracle = from_sympy(to_sympy(TWO_LAYERS).expand(), TWO_LAYERS.source, TWO_LAYERS.target)
    return expand(TWO_LAYERS) == oracle


def iterate_law():
    """What is iterated is what is expanded."""
    found = iterate(TWO_LAYERS)
    return Expansion.collect(found, TWO_LAYERS.source, TWO_LAYERS.target) == expand(TWO_LAYERS)


def count_law():
    """Counted = expanded = listed = the formula."""
    wanted = {NETWORK: 2 * 12 + 4 + 1 + 1, NEURONS: 3 * 3 * 2 * 3 + 3 * 2 * 3 + 2 * 3 + 3 + 1}
    for network_, number in wanted.items():
        listed = [path.term() for path in network_.paths()]
        expression = network_.expression()
        numbers = {network_.count(), sum(network_.count_by_order()), count(expression)}
        if numbers | {len(listed)} != {number} or listed != list(expand(expression)):
            return False
    return True


def text_law():
    """Text survives."""
    try:
        term = Path.parse("embed > L0H1 > L1H2").term()
        code = "A[L1H2] A[L0H1] ⊗ W_E OV[L0H1] OV[L1H2] W_U"
        return (
            all(
                parse_term(format_term(term, notation=each), notation=each) == term
                for each in ("paper", "code")
            )
            and format_term(term, notation="code") == code
        )
    except NotationError:
        return False


LAWS = [sympy_law, iterate_law, count_law, text_law]


@pytest.mark.parametrize("law", LAWS)
def test_the_engine_keeps_its_laws(law):
    assert law()


def test_word_order_reversed_is_seen(monkeypatch):
    right = expansion.compose
    monkeypatch.setattr(expansion, "compose", lambda earlier, later: right(later, earlier))
    assert not sympy_law()
    assert not iterate_law()


def test_only_the_position_word_reversed_is_seen(monkeypatch):
    def reversed_positions(earlier, later):
        words = later.position_word + earlier.position_word
        return Term(words, earlier.linear_word + later.linear_word, at=earlier.source)

    monkeypatch.setattr(expansion, "compose", reversed_positions)
    assert not sympy_law()
    assert not iterate_law()
    assert not count_law()


def test_a_dropped_coefficient_is_seen(monkeypatch):
    right = expansion._add

    def without_weights(node, terms, budget):
        return right(Sum.of(*(part for _, part in node.parts)), terms, budget)

    monkeypatch.setattr(expansion, "_add", without_weights)
    assert not sympy_law()
    assert not iterate_law()


def test_a_forgotten_term_is_seen(monkeypatch):
    right = expansion._compose

    def without_last(earlier, later, budget):
        product = right(earlier, later, budget)
        if len(product) > 1:
            product.popitem()
        return product

    monkeypatch.setattr(expansion, "_compose", without_last)
    assert not sympy_law()
    assert not iterate_law()
    assert not count_law()


def test_a_forgotten_choice_in_iterate_is_seen(monkeypatch):
    right = expansion._grouped
    monkeypatch.setattr(expansion, "_grouped", lambda node, orders: right(node, orders)[:1])
    assert not iterate_law()


@pytest.mark.parametrize(
    "forget", ["the residual connection", "a component", "the constants' route"]
)
def test_a_wrong_network_is_seen(monkeypatch, forget):
    def step(stage):
        through = [component_term(each.label) for each in stage]
        if forget == "a component":
            return Sum.of(IDENTITY, *through[1:])
        if forget == "the residual connection":
            return Sum.of(*through)
        return Sum.of(IDENTITY, *through) if stage[0].layer == 0 else IDENTITY

    monkeypatch.setattr(network, "_step", step)
    assert not count_law()


def test_a_chain_that_stays_in_a_stage_is_seen(monkeypatch):
    def any_pairs(stages, order):
        return combinations([each for stage in stages for each in stage], order)

    monkeypatch.setattr(network, "_chains", any_pairs)
    with pytest.raises(CompositionError):
        count_law()


def test_a_wrong_count_is_seen(monkeypatch):
    monkeypatch.setattr(Network, "_born", lambda self, boundary: int(boundary == 0))
    assert not count_law()


def test_words_written_the_other_way_are_seen(monkeypatch):
    right = style.Style.tensor

    def flipped(self, positions, linears, space=""):
        return right(self, positions, list(reversed(linears)), space)

    monkeypatch.setattr(style.Style, "tensor", flipped)
    assert not text_law()
