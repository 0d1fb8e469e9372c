import subprocess
import sys

import pytest
from hypothesis import given, settings

from pathexpand.errors import NotationError
from pathexpand.symbolic import INPUT, LOGITS, Network, expand, from_sympy, to_sympy

from .strategies import component_term, networks, steps


@settings(deadline=None, max_examples=60)
@given(steps())
def test_sympy_multiplies_out_to_the_same_sum(expression):
    oracle = to_sympy(expression).expand()
    assert from_sympy(oracle, expression.source, expression.target) == expand(expression)


@settings(deadline=None, max_examples=25)
@given(networks(max_layers=2))
def test_sympy_agrees_on_whole_networks(network):
    expression = network.expression()
    assert to_sympy(expand(expression)) == to_sympy(expression).expand()


def test_the_form_stays_factored():
    form = to_sympy(Network.attention_only(2, 2).expression())
    assert len(form.args) == 4
    assert not form.is_commutative


def test_repeated_maps_are_powers_in_sympy_and_words_here():
    square = component_term("L0H0") @ component_term("L0H0")
    assert str(to_sympy(square)) == "(A^L0H0**2)x(W_OV^L0H0**2)"
    assert from_sympy(to_sympy(square), square.source, square.target) == expand(square)


def test_other_sympy_forms_are_refused():
    from sympy import Rational, Symbol

    for form in (Symbol("x"), Rational(1, 2) * to_sympy(Network.attention_only(0).expression())):
        with pytest.raises(NotationError):
            from_sympy(form, INPUT, LOGITS)


def test_importing_the_layer_imports_neither_numpy_nor_sympy():
    code = "import sys, pathexpand.symbolic; print({'numpy', 'sympy'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
