"""Law 8: text to path, term or table and back gives the same again."""

from __future__ import annotations

from itertools import islice

from pathexpand.api import Model, Run
from pathexpand.laws.cut import cut
from pathexpand.laws.result import LawResult, judged, unequal
from pathexpand.symbolic import (
    Expansion,
    Path,
    format_expansion,
    format_term,
    parse_expansion,
    parse_term,
)
from pathexpand.table import PathTable
from pathexpand.target import Target, TargetLike


def check_text_round_trip(model: Model, *, paths: int = 500) -> LawResult:
    """Check that the first `paths` paths survive being written and read, in every notation.

    >>> from pathexpand import api
    >>> check_text_round_trip(api.load("two-layer")).holds
    True
    """
    deviations, terms = [], {}
    for number, path in enumerate(islice(model.network.paths(), paths), start=1):
        term = path.term()
        terms[term] = (-1) ** number * number
        deviations.append(unequal(Path.parse(str(path)), path, f"text of {path}"))
        deviations.append(unequal(Path.from_term(term), path, f"term of {path}"))
        for notation in ("paper", "code"):
            for ascii in (False, True):
                text = format_term(term, notation=notation, ascii=ascii)
                again = parse_term(text, notation=notation)
                deviations.append(unequal(again, term, f"{notation} of {path}"))
    expression = model.network.expression()
    some = Expansion(terms, expression.source, expression.target)
    for notation in ("paper", "code"):
        text = format_expansion(some, notation=notation)
        read = parse_expansion(text, notation=notation)
        deviations.append(unequal(read == some, True, f"expansion in {notation} notation"))
    return judged("text round trip", deviations, f"{len(terms)} paths")


def check_table_round_trip(
    run: Run, target: TargetLike | Target | None = None, *, position: int | None = None
) -> LawResult:
    """Check that a table survives being written as JSON and read back, to the last bit.

    >>> from pathexpand import api
    >>> check_table_round_trip(api.load("two-layer").run("to be")).holds
    True
    """
    table = cut(run).run.paths(run.target(target, position=position), position=position)
    text = table.to_json()
    again = PathTable.from_json(text)
    deviations = [
        unequal(again == table, True, "table read from its JSON"),
        unequal(again.to_json() == text, True, "JSON written again"),
    ]
    return judged("table round trip", deviations, f"{len(table.rows)} rows")
