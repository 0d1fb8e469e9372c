"""Walk an expression from its leaves up, without recursion and visiting shared parts once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pathexpand.symbolic.expression import Expression, Sum, Term, Then

Value = TypeVar("Value")


def fold_all(
    root: Expression,
    *,
    leaf: Callable[[Term], Value],
    total: Callable[[Sequence[tuple[int, Value]]], Value],
    chain: Callable[[Sequence[Value]], Value],
) -> dict[int, Value]:
    """Compute a value at every node, by the `id` of the node.

    `leaf` values a term, `total` a sum from its weights and parts, `chain` a composition from its
    factors in application order.

    >>> one = Term((), ())
    >>> values = fold_all(one + one, leaf=lambda _: 1, total=len, chain=len)
    >>> values[id(one)], len(values)
    (1, 2)
    """
    values: dict[int, Value] = {}
    for node in postorder(root):
        if isinstance(node, Sum):
            values[id(node)] = total([(weight, values[id(part)]) for weight, part in node.parts])
        elif isinstance(node, Then):
            values[id(node)] = chain([values[id(factor)] for factor in node.factors])
        elif isinstance(node, Term):
            values[id(node)] = leaf(node)
    return values


def fold(
    root: Expression,
    *,
    leaf: Callable[[Term], Value],
    total: Callable[[Sequence[tuple[int, Value]]], Value],
    chain: Callable[[Sequence[Value]], Value],
) -> Value:
    """Compute the value of the root alone; see `fold_all`.

    >>> fold(Term((), ()), leaf=lambda term: term.order, total=len, chain=len)
    0
    """
    return fold_all(root, leaf=leaf, total=total, chain=chain)[id(root)]


def postorder(root: Expression) -> Iterator[Expression]:
    """Yield every distinct node object, each after all of its children.

    >>> [type(node).__name__ for node in postorder(Term((), ()) + Term((), ()))]
    ['Term', 'Term', 'Sum']
    """
    seen: set[int] = set()
    pending: list[tuple[Expression, bool]] = [(root, False)]
    while pending:
        node, children_done = pending.pop()
        if children_done:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            pending.append((node, True))
            pending.extend((child, False) for child in children(node))


def children(node: Expression) -> list[Expression]:
    """Return the nodes directly below this one.

    >>> children(Term((), ()))
    []
    """
    if isinstance(node, Sum):
        return [part for _, part in node.parts]
    return list(node.factors) if isinstance(node, Then) else []
