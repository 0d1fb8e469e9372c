"""Count, iterate and expand: multiply out a factored expression, or say how large that would be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from pathexpand.errors import CompositionError, LimitError
from pathexpand.symbolic.expression import Expansion, Expression, Sum, Term, Then
from pathexpand.symbolic.fold import children, fold, fold_all, postorder
from pathexpand.symbolic.maps import LinearMap, PositionMap


def count(expression: Expression) -> int:
    """Count the ways to choose one summand everywhere, exactly and without listing them.

    A part of weight w counts |w| times, so that ``2 * a`` counts like ``a + a``; for a network
    this is its number of paths.

    >>> from pathexpand.symbolic import Network
    >>> count(Network.attention_only(12, 12).expression())
    23298085122481
    """
    return fold(
        expression,
        leaf=lambda term: 1,
        total=lambda parts: sum(abs(weight) * ways for weight, ways in parts),
        chain=lambda factors: math.prod(factors),
    )


def count_by_order(expression: Expression) -> tuple[int, ...]:
    """Count like `count`, separately for each order: 0, 1, 2, … position maps.

    >>> from pathexpand.symbolic import Network
    >>> count_by_order(Network.attention_only(2, 12).expression())
    (1, 24, 144)
    """
    return _ways(expression, max_order=None, once=False)


def expand(
    expression: Expression, *, max_order: int | None = None, limit: int = 1_000_000
) -> Expansion:
    """Multiply out into distinct terms with integer coefficients.

    Terms of an order above `max_order` are left out. Raises `LimitError`, before anything is
    allocated, if there are more than `limit` ways to choose one summand everywhere.

    >>> from pathexpand.symbolic import Network
    >>> len(expand(Network.attention_only(2, 12).expression()))
    169
    >>> expand(Network.attention_only(12, 12).expression())
    Traceback (most recent call last):
        ...
    pathexpand.errors.LimitError: expansion: wanted at most 1,000,000 terms, got
    23,298,085,122,481; set max_order, raise limit, or walk them lazily with iterate()
    """
    _check_max_order(max_order)
    size = _size(expression, max_order)
    if size > limit:
        raise LimitError(
            "expansion",
            wanted=f"at most {limit:,} terms",
            got=_number(size),
            remedy="set max_order, raise limit, or walk them lazily with iterate()",
        )
    orders = _attainable(expression)
    budgets = _budgets(expression, orders, max_order)
    terms: dict[int, dict[Term, int]] = {}
    for node in postorder(expression):
        if id(node) in budgets:
            terms[id(node)] = _multiply_out(node, terms, orders, budgets)
    found = terms.get(id(expression), {})
    return Expansion(found, expression.source, expression.target)


def iterate(expression: Expression, *, max_order: int | None = None) -> Iterator[tuple[Term, int]]:
    """Yield terms with coefficients lazily, by order 0, 1, 2, …, one per way to choose summands.

    Within an order, a sum's parts with longer position words are tried first and equally long
    ones as they stand, so a network's paths come source by source and then by their components.
    Equal terms are not merged: that would need all of them in memory; `Expansion.collect` does it.

    >>> from itertools import islice
    >>> from pathexpand.symbolic import Network, Path
    >>> first = islice(iterate(Network.attention_only(60, 64).expression()), 3)
    >>> [str(Path.from_term(term)) for term, _ in first]
    ['embed', 'embed > L0H0', 'embed > L0H1']
    """
    _check_max_order(max_order)
    return _by_order(expression, max_order)


# --- counting ---------------------------------------------------------------------------------


def _check_max_order(max_order: int | None) -> None:
    if max_order is not None and max_order < 0:
        raise LimitError("max_order", wanted="0 or more, or None", got=str(max_order))


def _ways(expression: Expression, *, max_order: int | None, once: bool) -> tuple[int, ...]:
    """Return the number of ways of each order; with `once`, whatever its weight a part is one."""
    keep = None if max_order is None else max_order + 1

    def total(parts: Sequence[tuple[int, list[int]]]) -> list[int]:
        sums = [0] * max(len(ways) for _, ways in parts)
        for weight, ways in parts:
            times = min(abs(weight), 1) if once else abs(weight)
            for order, number in enumerate(ways):
                sums[order] += times * number
        return sums

    def chain(factors: Sequence[list[int]]) -> list[int]:
        product = [1]
        for ways in factors:
            product = _convolve(product, ways)[:keep]
        return product

    ways = fold(expression, leaf=lambda term: [0] * term.order + [1], total=total, chain=chain)
    ways = ways[:keep]
    while ways and not ways[-1]:
        ways.pop()
    return tuple(ways)


def _convolve(left: list[int], right: list[int]) -> list[int]:
    product = [0] * (len(left) + len(right) - 1)
    for shift, times in enumerate(right):
        if times:
            for order, number in enumerate(left, shift):
                product[order] += times * number
    return product


def _number(size: int) -> str:
    """Write a number; Python writes none of more than 4,300 digits."""
    return f"{size:,}" if size < 10**1000 else f"about 10^{math.floor(math.log10(size))}"


def _size(expression: Expression, max_order: int | None) -> int:
    """Bound the number of terms held at any one time while expanding."""
    if max_order is not None:
        return sum(_ways(expression, max_order=max_order, once=True))
    return fold(
        expression,
        leaf=lambda term: 1,
        total=lambda parts: sum(ways for weight, ways in parts if weight),
        chain=lambda factors: math.prod(factors),
    )


# --- orders that can be reached, as bit masks: bit k is set when order k can be ----------------


def _attainable(expression: Expression) -> dict[int, int]:
    def total(parts: Sequence[tuple[int, int]]) -> int:
        mask = 0
        for weight, orders in parts:
            mask |= orders if weight else 0
        return mask

    def chain(factors: Sequence[int]) -> int:
        mask = 1
        for orders in factors:
            mask = _add_orders(mask, orders)
        return mask

    return fold_all(expression, leaf=lambda term: 1 << term.order, total=total, chain=chain)


def _add_orders(left: int, right: int) -> int:
    """Return the orders that are a sum of one of each."""
    if left.bit_count() > right.bit_count():
        left, right = right, left
    mask = 0
    while left:
        lowest = left & -left
        mask |= right * lowest
        left ^= lowest
    return mask


def _lowest(orders: int) -> int:
    return (orders & -orders).bit_length() - 1


# --- expanding --------------------------------------------------------------------------------


def _budgets(
    expression: Expression, orders: dict[int, int], max_order: int | None
) -> dict[int, int]:
    """Return, for each node that is needed, the highest order that can matter there.

    With it every partial product can be completed, so none is larger than the final count.
    """
    highest = orders[id(expression)].bit_length() - 1
    highest = highest if max_order is None else min(highest, max_order)
    if not orders[id(expression)] or highest < _lowest(orders[id(expression)]):
        return {}
    budgets = {id(expression): highest}
    for node in reversed(list(postorder(expression))):  # parents come before children
        if id(node) not in budgets:
            continue
        slack = budgets[id(node)] - _lowest(orders[id(node)])
        for child in _needed(node):
            can_be = orders[id(child)]
            own = _lowest(can_be) + slack if isinstance(node, Then) else budgets[id(node)]
            if can_be and _lowest(can_be) <= own:
                budgets[id(child)] = max(own, budgets.get(id(child), 0))
    return budgets


def _needed(node: Expression) -> list[Expression]:
    if isinstance(node, Sum):
        return [part for weight, part in node.parts if weight]
    return children(node)


def _multiply_out(
    node: Expression,
    terms: dict[int, dict[Term, int]],
    orders: dict[int, int],
    budgets: dict[int, int],
) -> dict[Term, int]:
    if isinstance(node, Term):
        return {node: 1}
    budget = budgets[id(node)]
    if isinstance(node, Sum):
        return _add(node, terms, budget)
    assert isinstance(node, Then)
    lowest = [_lowest(orders[id(factor)]) for factor in node.factors]
    return _product([terms[id(factor)] for factor in node.factors], lowest, budget)


def _product(factors: list[dict[Term, int]], lowest: list[int], budget: int) -> dict[Term, int]:
    """Multiply by halves: nearly every product is then a final one, and recursion stays shallow."""
    if len(factors) == 1:
        return {term: number for term, number in factors[0].items() if term.order <= budget}
    half = len(factors) // 2
    # What the other half needs at least is not there for this one to use.
    earlier = _product(factors[:half], lowest[:half], budget - sum(lowest[half:]))
    later = _product(factors[half:], lowest[half:], budget - sum(lowest[:half]))
    return _compose(earlier, later, budget)


def _add(node: Sum, terms: dict[int, dict[Term, int]], budget: int) -> dict[Term, int]:
    sums: dict[Term, int] = {}
    for weight, part in node.parts:
        if weight:
            for term, coefficient in terms.get(id(part), {}).items():
                if term.order <= budget:
                    sums[term] = sums.get(term, 0) + weight * coefficient
    return _nonzero(sums)


def _compose(earlier: dict[Term, int], later: dict[Term, int], budget: int) -> dict[Term, int]:
    """Apply (A2 ⊗ W2)(A1 ⊗ W1) = A2 A1 ⊗ W2 W1 to every pair of an order within the budget."""
    by_order: dict[int, list[tuple[Term, int]]] = {}
    for second, times in later.items():
        by_order.setdefault(second.order, []).append((second, times))
    product: dict[Term, int] = {}
    for first, weight in earlier.items():
        for order, seconds in by_order.items():
            if first.order + order <= budget:
                for second, times in seconds:
                    term = compose(first, second)
                    product[term] = product.get(term, 0) + weight * times
    return _nonzero(product)


def _nonzero(sums: dict[Term, int]) -> dict[Term, int]:
    if all(sums.values()):
        return sums
    return {term: coefficient for term, coefficient in sums.items() if coefficient}


def compose(earlier: Term, later: Term) -> Term:
    """Return the term that applies `earlier` and then `later`.

    >>> from pathexpand.symbolic import W_E, W_U
    >>> compose(Term((), (W_E,)), Term((), (W_U,))) == Term((), (W_E, W_U))
    True
    """
    if later.source != earlier.target:
        raise CompositionError(
            "term", wanted=f"one from {earlier.target}", got=f"one from {later.source}"
        )
    if not later.position_word and not later.linear_word:
        return earlier
    position_word = earlier.position_word + later.position_word
    linear_word = earlier.linear_word + later.linear_word
    return Term(position_word, linear_word, at=earlier.source)


# --- iterating --------------------------------------------------------------------------------

# What is still to be composed, first factor first, as a linked list; with each cell the orders
# that it and all cells after it can reach together, so that no branch is entered in vain.
_Agenda = tuple[Expression, "_Agenda | None", int] | None


def _by_order(expression: Expression, max_order: int | None) -> Iterator[tuple[Term, int]]:
    orders = _attainable(expression)
    can_be = orders[id(expression)]
    highest = can_be.bit_length() - 1
    groups: dict[int, list[tuple[int, list[tuple[int, Expression]]]]] = {}
    for order in range((highest if max_order is None else min(highest, max_order)) + 1):
        if can_be >> order & 1:
            yield from _choices(expression, order, orders, groups)


def _choices(
    expression: Expression,
    order: int,
    orders: dict[int, int],
    groups: dict[int, list[tuple[int, list[tuple[int, Expression]]]]],
) -> Iterator[tuple[Term, int]]:
    """Yield the choices of exactly this order, depth first with a stack of our own."""
    position_word: tuple[PositionMap, ...] = ()
    linear_word: tuple[LinearMap, ...] = ()
    start: _Agenda = (expression, None, orders[id(expression)])
    branches = [(start, order, 1, position_word, linear_word)]
    while branches:
        agenda, left, weight, position_word, linear_word = branches.pop()
        # Follow one branch down as long as there is nothing to choose.
        while agenda is not None and not isinstance(agenda[0], Sum):
            node, rest, _ = agenda
            if isinstance(node, Term):
                agenda, left = rest, left - node.order
                position_word += node.position_word
                linear_word += node.linear_word
            else:
                agenda = _prepend(children(node), rest, orders)
        if agenda is None:
            yield Term(position_word, linear_word, at=expression.source), weight
            continue
        node, rest, _ = agenda
        assert isinstance(node, Sum)
        later = 1 if rest is None else rest[2]
        if id(node) not in groups:
            groups[id(node)] = _grouped(node, orders)
        for can_be, parts in reversed(groups[id(node)]):
            together = _add_orders(can_be, later)
            if together >> left & 1:
                for times, part in reversed(parts):
                    cell = (part, rest, together)
                    branches.append((cell, left, weight * times, position_word, linear_word))


def _prepend(factors: list[Expression], rest: _Agenda, orders: dict[int, int]) -> _Agenda:
    for factor in reversed(factors):
        later = 1 if rest is None else rest[2]
        rest = (factor, rest, _add_orders(orders[id(factor)], later))
    return rest


def _grouped(node: Sum, orders: dict[int, int]) -> list[tuple[int, list[tuple[int, Expression]]]]:
    """Group neighbouring parts that reach the same orders, longest position words first."""
    live = [(weight, part) for weight, part in node.parts if weight and orders[id(part)]]
    live.sort(key=lambda pair: -_lowest(orders[id(pair[1])]))
    return [
        (can_be, list(parts))
        for can_be, parts in groupby(live, key=lambda pair: orders[id(pair[1])])
    ]
