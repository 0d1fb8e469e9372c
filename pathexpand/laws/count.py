"""Law 2: the number of terms, counted, expanded, enumerated and by formula."""

from __future__ import annotations

from pathexpand.api import Model, Run
from pathexpand.engine.enumeration import enumerate_values
from pathexpand.engine.remainder import remainder
from pathexpand.laws.cut import cut
from pathexpand.laws.result import LawResult, judged, unequal
from pathexpand.laws.shape import Sizes, path_count
from pathexpand.symbolic import Path, count, count_by_order, expand


def term_formula(model: Model) -> int:
    """Give the number of paths from the weights alone.

    A source has Π (1 + components) paths over the places behind the one where it is born; what is
    born in the logits has one. With token and position embeddings, a constant in each of L layers
    of H heads, and b_U, that is 2 (1 + H)^L + Σ_l (1 + H)^(L-1-l) + 1.

    >>> from pathexpand import api
    >>> term_formula(api.load("two-layer"))
    25
    """
    return path_count(model.weights, model.config, model.mlp, Sizes.of(model))


def check_term_count(model: Model, *, limit: int = 20_000) -> LawResult:
    """Check that paths counted, by order and in all, by expression and by formula, agree.

    Where there are at most `limit` terms they are also expanded, and walked lazily; each must be
    a path, and each path must be its own term.

    >>> from pathexpand import api
    >>> check_term_count(api.load("two-layer")).detail
    '25 paths by formula; expanded too'
    """
    network, wanted = model.network, term_formula(model)
    expression = network.expression()
    numbers = {
        "network.count": network.count(),
        "network.count_by_order": sum(network.count_by_order()),
        "count of the expression": count(expression),
        "count_by_order of the expression": sum(count_by_order(expression)),
    }
    detail = f"{wanted:,} paths by formula"
    if wanted <= limit:
        terms = expand(expression)
        paths = {Path.from_term(term) for term in terms}
        numbers["expanded terms"] = len(terms)
        numbers["sum of coefficients"] = sum(terms.values())
        numbers["distinct paths among terms"] = len(paths)
        numbers["paths walked"] = len(list(network.paths()))
        numbers["paths walked that are terms"] = len(paths & set(network.paths()))
        detail += "; expanded too"
    return judged(
        "number of terms", [unequal(got, wanted, name) for name, got in numbers.items()], detail
    )


def check_enumeration_count(run: Run) -> LawResult:
    """Check that the frozen sum has, enumerates and leaves over as many paths as it should.

    >>> from pathexpand import api
    >>> check_enumeration_count(api.load("two-layer").run("to be")).holds
    True
    """
    small = cut(run)
    frozen, wanted = small.run.frozen, term_formula(small.run.model)
    readout = small.run.target().readout(small.run.unembed, small.run.position())
    blocks = list(enumerate_values(frozen, readout))
    paths = [Path(block.source, word) for block in blocks for word in block.words]
    numbers = {
        "paths of the frozen sum": frozen.network().count(),
        "enumerated paths": len(paths),
        "distinct enumerated paths": len(set(paths)),
        "enumerated values": sum(len(block.values) for block in blocks),
        "paths in the whole remainder": remainder(frozen, readout, ()).count,
        "paths in the remainder of half, and half": (
            remainder(frozen, readout, paths[::2]).count + len(paths[::2])
        ),
    }
    return judged(
        "number of enumerated paths",
        [unequal(got, wanted, name) for name, got in numbers.items()],
        small.detail,
    )
