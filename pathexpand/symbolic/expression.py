"""The immutable nodes of a frozen model: a term, a sum, a composition; and what they expand to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from itertools import islice

from pathexpand.errors import CompositionError
from pathexpand.symbolic.maps import STREAM, LinearMap, PositionMap, Space, check_word, natural_key

_FEW = 4  # terms of an expansion at a prompt
_SHOWN = 24  # and in a notebook
_LONG = 2000  # letters of a sum or a composition that is written out


class Expression:
    """A sum of (position map ⊗ linear map) from one space to another, kept factored.

    One of `Term`, `Sum` and `Then`. Supports ``a + b``, ``a - b``, ``-a``, ``3 * a``,
    ``later @ earlier`` and ``earlier.then(later)``; spaces that do not meet are refused with
    `CompositionError`.

    >>> from pathexpand.symbolic import W_E, W_U, Term, expand
    >>> embed, unembed = Term((), (W_E,)), Term((), (W_U,))
    >>> len(expand(unembed @ (embed + 2 * embed)))
    1
    """

    __slots__ = ()

    @property
    def source(self) -> Space:
        """The space this starts from."""
        raise NotImplementedError

    @property
    def target(self) -> Space:
        """The space this ends in."""
        raise NotImplementedError

    def __add__(self, other: Expression) -> Expression:
        """Add, keeping sums flat."""
        if not isinstance(other, Expression):
            return NotImplemented
        return Sum((*_parts(self), *_parts(other)))

    def __sub__(self, other: Expression) -> Expression:
        """Subtract: parts with negative weights."""
        if not isinstance(other, Expression):
            return NotImplemented
        return self + -1 * other

    def __neg__(self) -> Expression:
        """Negate every part."""
        return -1 * self

    def __mul__(self, weight: int) -> Expression:
        """Multiply by an integer."""
        if not isinstance(weight, int):
            return NotImplemented
        return Sum(tuple((weight * own, part) for own, part in _parts(self)))

    __rmul__ = __mul__

    def __matmul__(self, earlier: Expression) -> Expression:
        """Compose: `self` is applied after `earlier`."""
        if not isinstance(earlier, Expression):
            return NotImplemented
        return Then((*_factors(earlier), *_factors(self)))

    def then(self, later: Expression) -> Expression:
        """Compose: `later` is applied after `self`."""
        return later @ self


@dataclass(frozen=True, slots=True)
class Term(Expression):
    """One path: its position word ⊗ its linear word, both in application order, earliest first.

    An empty word is the identity. An empty linear word lives in the stream unless `at` names
    another space. Raises `CompositionError` for maps that do not meet.

    >>> from pathexpand.symbolic import W_E, W_U, attention, ov
    >>> term = Term((attention("L0H1"),), (W_E, ov("L0H1"), W_U))
    >>> term.order, str(term.source), str(term.target)
    (1, 'input', 'logits')
    """

    position_word: tuple[PositionMap, ...]
    linear_word: tuple[LinearMap, ...]
    at: InitVar[Space | None] = None
    source: Space = field(init=False, repr=False)
    target: Space = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self, at: Space | None) -> None:
        """Check that the maps meet, and note where the word starts and ends."""
        word = self.linear_word
        if not (isinstance(word, tuple) and isinstance(self.position_word, tuple)):
            raise CompositionError("term", wanted="two tuples of maps", got=repr(self))
        check_word(word)
        source = word[0].source if word else at or STREAM
        if at is not None and at != source:
            raise CompositionError(f"word of {word[0]}", wanted=f"a start in {at}", got=str(source))
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "target", word[-1].target if word else source)
        # Kept, because a term is looked up far more often than it is built.
        object.__setattr__(self, "_hash", hash((self.position_word, word)))

    def __hash__(self) -> int:
        """Hash by the words."""
        return self._hash

    @property
    def order(self) -> int:
        """The number of position maps the path passes through."""
        return len(self.position_word)

    def _repr_latex_(self) -> str:
        from pathexpand.symbolic.notation import latex

        return f"$${latex(self)}$$"

    def sort_key(self) -> tuple[object, ...]:
        """Return the key terms are listed by: order, then linear word, then position word."""
        return (
            len(self.position_word),
            tuple(each.sort_key() for each in self.linear_word),
            tuple(natural_key(each.label) for each in self.position_word),
            self.source.name,
        )


@dataclass(frozen=True, slots=True)
class Sum(Expression):
    """A sum with an integer weight on each part, all between the same two spaces.

    >>> from pathexpand.symbolic import W_E, W_POS, Term
    >>> both = Sum.of(Term((), (W_E,)), Term((), (W_POS,)))
    >>> [weight for weight, _ in both.parts]
    [1, 1]
    """

    parts: tuple[tuple[int, Expression], ...]
    source: Space = field(init=False, repr=False, compare=False)
    target: Space = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the weights and that all parts share their spaces."""
        if not self.parts:
            raise CompositionError("sum", wanted="at least one part", got="none")
        first = self.parts[0][1]
        for weight, part in self.parts:
            if not (isinstance(weight, int) and isinstance(part, Expression)):
                raise CompositionError(
                    "sum", wanted="integers and expressions", got=f"{weight!r} and {part!r}"
                )
            if part.source != first.source or part.target != first.target:
                raise CompositionError("sum", wanted=_spaces(first), got=_spaces(part))
        object.__setattr__(self, "source", first.source)
        object.__setattr__(self, "target", first.target)

    def __repr__(self) -> str:
        """Write the parts where they are few, otherwise how many there are."""
        return _written(self, f"parts={self.parts!r}" if len(self.parts) <= _FEW else "")

    @classmethod
    def of(cls, *parts: Expression) -> Sum:
        """Add the parts, each with weight 1.

        >>> len(Sum.of(Term((), ()), Term((), ())).parts)
        2
        """
        return cls(tuple((1, part) for part in parts))


@dataclass(frozen=True, slots=True)
class Then(Expression):
    """A composition of any number of factors, in application order.

    >>> from pathexpand.symbolic import W_E, W_U, Term
    >>> whole = Then((Term((), (W_E,)), Term((), (W_U,))))
    >>> str(whole.source), str(whole.target)
    ('input', 'logits')
    """

    factors: tuple[Expression, ...]
    source: Space = field(init=False, repr=False, compare=False)
    target: Space = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check that neighbouring factors meet."""
        if not self.factors:
            raise CompositionError("composition", wanted="at least one factor", got="none")
        for factor in self.factors:
            if not isinstance(factor, Expression):
                raise CompositionError("composition", wanted="expressions", got=repr(factor))
        for number, (earlier, later) in enumerate(
            zip(self.factors, self.factors[1:], strict=False)
        ):
            if earlier.target != later.source:
                raise CompositionError(
                    f"factor {number + 2} of a composition",
                    wanted=f"one from {earlier.target}",
                    got=f"one from {later.source}",
                )
        object.__setattr__(self, "source", self.factors[0].source)
        object.__setattr__(self, "target", self.factors[-1].target)

    def __repr__(self) -> str:
        """Write the factors where they are few, otherwise how many there are."""
        return _written(self, f"factors={self.factors!r}" if len(self.factors) <= _FEW else "")


def _written(whole: Sum | Then, inside: str) -> str:
    """Write an expression: what is inside, if that is short."""
    if inside and len(inside) <= _LONG:
        return f"{type(whole).__name__}({inside})"
    named = f"{len(whole.parts):,} parts" if isinstance(whole, Sum) else f"{len(whole.factors):,}"
    named = named if isinstance(whole, Sum) else f"{named} factors"
    return f"{type(whole).__name__}({named}, {_spaces(whole)})"


def _parts(expression: Expression) -> tuple[tuple[int, Expression], ...]:
    return expression.parts if isinstance(expression, Sum) else ((1, expression),)


def _factors(expression: Expression) -> tuple[Expression, ...]:
    return expression.factors if isinstance(expression, Then) else (expression,)


def _spaces(expression: Expression) -> str:
    return f"{expression.source} → {expression.target}"


class Expansion(Mapping[Term, int]):
    """Distinct terms with their nonzero integer coefficients: what an expression means.

    Two expansions are equal when they mean the same map. They iterate by order, then by the
    words, whatever the order they were built in. Raises `CompositionError` for a coefficient
    that is zero or not an integer and for a term between other spaces.

    >>> from pathexpand.symbolic import W_E, Term, expand
    >>> embed = Term((), (W_E,))
    >>> expand(embed + embed) == Expansion({embed: 2}, embed.source, embed.target)
    True
    """

    __slots__ = ("_coefficients", "_listed", "_source", "_target")

    def __init__(self, coefficients: Mapping[Term, int], source: Space, target: Space) -> None:
        """Take a copy and check every entry."""
        for term, coefficient in coefficients.items():
            if not isinstance(coefficient, int) or coefficient == 0:
                raise CompositionError(
                    "coefficient", wanted="an integer other than 0", got=repr(coefficient)
                )
            if term.source != source or term.target != target:
                raise CompositionError(
                    "term of an expansion", wanted=f"{source} → {target}", got=_spaces(term)
                )
        self._coefficients = dict(coefficients)
        self._source = source
        self._target = target
        self._listed: tuple[Term, ...] | None = None

    @classmethod
    def collect(cls, pairs: Iterable[tuple[Term, int]], source: Space, target: Space) -> Expansion:
        """Add up the coefficients of equal terms and drop those that cancel.

        >>> embed = Term((), ())
        >>> len(Expansion.collect([(embed, 1), (embed, -1)], embed.source, embed.target))
        0
        """
        sums: dict[Term, int] = {}
        for term, coefficient in pairs:
            sums[term] = sums.get(term, 0) + coefficient
        return cls({term: value for term, value in sums.items() if value}, source, target)

    @property
    def source(self) -> Space:
        """The space every term starts from."""
        return self._source

    @property
    def target(self) -> Space:
        """The space every term ends in."""
        return self._target

    def __getitem__(self, term: Term) -> int:
        """Return the coefficient of a term that is there."""
        return self._coefficients[term]

    def __iter__(self) -> Iterator[Term]:
        """Iterate over the terms by order, then by their words."""
        # Sorted on the first use only: most expansions are compared, not printed.
        if self._listed is None:
            self._listed = tuple(sorted(self._coefficients, key=Term.sort_key))
        return iter(self._listed)

    def __len__(self) -> int:
        """Return the number of distinct terms."""
        return len(self._coefficients)

    def __eq__(self, other: object) -> bool:
        """Compare meanings: the same coefficients between the same spaces."""
        if not isinstance(other, Expansion):
            return NotImplemented
        return (
            self._coefficients == other._coefficients
            and self._source == other._source
            and self._target == other._target
        )

    def __hash__(self) -> int:
        """Hash by the entries, in no particular order."""
        return hash(frozenset(self._coefficients.items()))

    def __repr__(self) -> str:
        """Write the first terms, and how many there are.

        >>> from pathexpand.symbolic import Network, expand
        >>> expand(Network.attention_only(1, 1).expression())
        Expansion(2 terms: Id ⊗ W_U W_E + A^L0H0 ⊗ W_U W_OV^L0H0 W_E)
        """
        from pathexpand.symbolic.notation import format_expansion

        first = format_expansion(self._first(_FEW))
        more = " + …" if len(self) > _FEW else ""
        return f"Expansion({len(self):,} term{'' if len(self) == 1 else 's'}: {first}{more})"

    def _repr_latex_(self) -> str:
        from pathexpand.symbolic.notation import latex

        first = self._first(_SHOWN)
        lines = [latex(Expansion({term: n}, *self._ends)) for term, n in first.items()]
        if len(self) > _SHOWN:
            lines.append(rf"\cdots \quad \text{{({len(self):,} terms in all)}}")
        signed = [line if line[0] == "-" or not n else f"+ {line}" for n, line in enumerate(lines)]
        rows = " \\\\\n".join(f"&{line}" for line in signed or ["0"])
        return f"$$\\begin{{aligned}}\n{rows}\n\\end{{aligned}}$$"

    def _first(self, count: int) -> Expansion:
        return Expansion(dict(islice(self.items(), count)), *self._ends)

    @property
    def _ends(self) -> tuple[Space, Space]:
        return self._source, self._target

    def expression(self) -> Expression:
        """Return the sum of these terms as an expression.

        >>> from pathexpand.symbolic import expand
        >>> both = expand(Term((), ()) + Term((), ()))
        >>> expand(both.expression()) == both
        True
        """
        if self._coefficients:
            return Sum(tuple((coefficient, term) for term, coefficient in self.items()))
        # Nothing is left; a weight of 0 on a map between the same spaces still carries the type.
        return Sum(((0, Term((), (LinearMap("zero", "", self._source, self._target),))),))
