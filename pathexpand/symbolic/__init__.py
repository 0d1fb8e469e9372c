"""The symbolic layer: paths as position word ⊗ linear word, factored until asked.

It holds no arrays and imports neither numpy nor, before `to_sympy` is called, sympy.
"""

from pathexpand.symbolic.component import Component, Head, Mlp, Neuron, parse_component
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
    W_TYPE,
    W_U,
    LinearMap,
    PositionMap,
    Space,
    attention,
    constant,
    gate,
    io,
    linear_map,
    ov,
    position_map,
)
from pathexpand.symbolic.network import Network
from pathexpand.symbolic.notation import format_expansion, format_term, latex
from pathexpand.symbolic.parsing import parse_expansion, parse_term
from pathexpand.symbolic.path import Path
from pathexpand.symbolic.query import Query, everything, parse_query
from pathexpand.symbolic.query_text import QUERY_LANGUAGE
from pathexpand.symbolic.source import Source, source_key, source_map
from pathexpand.symbolic.sympy_form import from_sympy, to_sympy

__all__ = [
    "B_U",
    "INPUT",
    "LOGITS",
    "QUERY_LANGUAGE",
    "STREAM",
    "W_E",
    "W_POS",
    "W_TYPE",
    "W_U",
    "Component",
    "Expansion",
    "Expression",
    "Head",
    "LinearMap",
    "Mlp",
    "Network",
    "Neuron",
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
    "gate",
    "io",
    "iterate",
    "latex",
    "linear_map",
    "ov",
    "parse_component",
    "parse_expansion",
    "parse_query",
    "parse_term",
    "position_map",
    "source_key",
    "source_map",
    "to_sympy",
]
