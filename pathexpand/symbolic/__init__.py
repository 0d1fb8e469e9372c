"""The symbolic layer: paths as position word ⊗ linear word, factored until asked.

It holds no arrays and imports neither numpy nor, before `to_sympy` is called, sympy.
"""

from pathexpand.symbolic.equation import equation
from pathexpand.symbolic.expansion import compose, count, count_by_order, expand, iterate
from pathexpand.symbolic.expression import Expansion, Expression, Sum, Term, Then
from pathexpand.symbolic.maps import (
    B_U,
    INPUT,
    LOGITS,
    STREAM,
    W_E,
    W_POS,
    W_U,
    LinearMap,
    PositionMap,
    Space,
    attention,
    constant,
    ov,
)
from pathexpand.symbolic.network import Network, Source
from pathexpand.symbolic.notation import format_expansion, format_term, latex
from pathexpand.symbolic.parsing import parse_expansion, parse_term
from pathexpand.symbolic.path import Head, Path
from pathexpand.symbolic.query import Query, everything, parse_query
from pathexpand.symbolic.query_text import QUERY_LANGUAGE
from pathexpand.symbolic.sympy_form import from_sympy, to_sympy

__all__ = [
    "B_U",
    "INPUT",
    "LOGITS",
    "QUERY_LANGUAGE",
    "STREAM",
    "W_E",
    "W_POS",
    "W_U",
    "Expansion",
    "Expression",
    "Head",
    "LinearMap",
    "Network",
    "Path",
    "PositionMap",
    "Query",
    "Source",
    "Space",
    "Sum",
    "Term",
    "Then",
    "attention",
    "compose",
    "constant",
    "count",
    "count_by_order",
    "equation",
    "everything",
    "expand",
    "format_expansion",
    "format_term",
    "from_sympy",
    "iterate",
    "latex",
    "ov",
    "parse_expansion",
    "parse_query",
    "parse_term",
    "to_sympy",
]
