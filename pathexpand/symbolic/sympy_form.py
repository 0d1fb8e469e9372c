"""Convert expressions and expansions to sympy, and multiplied-out sums back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pathexpand.errors import NotationError
from pathexpand.symbolic.expansion import compose
from pathexpand.symbolic.expression import Expansion, Expression, Term
from pathexpand.symbolic.fold import fold
from pathexpand.symbolic.maps import Space
from pathexpand.symbolic.parsing import parse_term


def to_sympy(value: Expression | Expansion) -> Any:
    """Return the sympy form, in the paper's notation and as factored as it was.

    A map becomes a non-commutative `Operator`, a term the `TensorProduct` of its two words, an
    identity word 1, and Id ⊗ Id the number 1. Sums and compositions become ``Add`` and ``Mul``,
    so that sympy's own ``expand()`` multiplies them out. Needs sympy 1.14, where tensor products
    combine when they are multiplied. Sympy writes adjacent equal maps as powers, and cannot square
    a tensor product with a 1 in it.

    >>> from pathexpand.symbolic import Network
    >>> form = to_sympy(Network.attention_only(1, 1).expression())
    >>> form
    1xW_U*(1 + A^L0H0xW_OV^L0H0)*1xW_E
    >>> form.expand()
    1x(W_U*W_E) + A^L0H0x(W_U*W_OV^L0H0*W_E)
    """
    from sympy import Add, Integer, Mul

    if isinstance(value, Expansion):
        return Add(*(Integer(number) * _tensor(term) for term, number in value.items()))

    def total(parts: Sequence[tuple[int, Any]]) -> Any:
        return Add(*(Integer(weight) * part for weight, part in parts))

    def chain(factors: Sequence[Any]) -> Any:
        # Left to right by hand: Mul(*factors) would do, but hides which factor is applied first.
        return Mul(*reversed(factors))

    return fold(value, leaf=_tensor, total=total, chain=chain)


def from_sympy(form: Any, source: Space, target: Space) -> Expansion:
    """Return the expansion that a multiplied-out sympy form stands for.

    It must be a sum of integer multiples of (products of) tensor products of standard maps from
    `source` to `target`. Raises `NotationError` for anything else.

    >>> from pathexpand.symbolic import Network, expand
    >>> network = Network.attention_only(2, 2).expression()
    >>> form = to_sympy(network).expand()
    >>> from_sympy(form, network.source, network.target) == expand(network)
    True
    """
    from sympy import Add

    return Expansion.collect(
        (_read_summand(part, source) for part in Add.make_args(form)), source, target
    )


def _tensor(term: Term) -> Any:
    from sympy import Mul, S
    from sympy.physics.quantum import TensorProduct

    if not term.position_word and not term.linear_word:
        return S.One
    position_word = Mul(*(_operator(str(each)) for each in reversed(term.position_word)))
    return TensorProduct(
        position_word, Mul(*(_operator(str(each)) for each in reversed(term.linear_word)))
    )


def _operator(name: str) -> Any:
    from sympy import Symbol
    from sympy.physics.quantum import Operator

    # Through Symbol, since a bare string would be parsed and ^ read as a power.
    return Operator(Symbol(name))


def _read_summand(part: Any, source: Space) -> tuple[Term, int]:
    from sympy.physics.quantum import TensorProduct

    coefficient, products = part.as_coeff_Mul()
    if not coefficient.is_Integer:
        raise NotationError("sympy form", wanted="integer coefficients", got=str(coefficient))
    words: list[str] = []
    for factor in _factors(products):
        if not isinstance(factor, TensorProduct) or len(factor.args) != 2:
            raise NotationError(
                "sympy form", wanted="a sum of tensor products of two words", got=str(factor)
            )
        words.append(" ⊗ ".join(_word(word) for word in factor.args))
    term = Term((), (), at=source)
    for text in reversed(words):
        term = compose(term, _read_term(text, term.target))
    return term, int(coefficient)


def _read_term(text: str, at: Space) -> Term:
    if text.endswith("⊗ Id"):
        return Term(parse_term(text).position_word, (), at=at)
    return parse_term(text)


def _word(product: Any) -> str:
    return " ".join(str(letter) for letter in _factors(product)) or "Id"


def _factors(product: Any) -> list[Any]:
    """Return the factors with powers written out: sympy keeps A*A as A**2."""
    from sympy import Mul, S

    found: list[Any] = []
    for factor in Mul.make_args(product):
        base, exponent = factor.as_base_exp()
        if factor is not S.One:
            found += [base] * int(exponent)
    return found
