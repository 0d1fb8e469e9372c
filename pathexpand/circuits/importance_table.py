"""The table of a term importance analysis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pathexpand.errors import PathExpandError
from pathexpand.model.shown import shown
from pathexpand.table.analysis_table import AnalysisTable, Field, Summary
from pathexpand.table.figures import counted

if TYPE_CHECKING:
    from pathexpand.circuits.importance import Estimate, Importance, Term

_STEPS = (
    Field("loss", "number"),
    Field("marginal", "number"),
    Field("error", "number", leave=2),
)
_SIDES = (
    Field("added", "number"),
    Field("added error", "number"),
    Field("removed", "number"),
    Field("removed error", "number"),
)
_WITHOUT = {
    "Q": "no Q-composition",
    "K": "no K-composition",
    "QK": "no Q nor K",
}
_NONE = {
    "composition": "There is no composition to measure: no head can read what another wrote.",
    "head": "There is no head to measure.",
    "layer": "There is no layer to measure.",
}
_KINDS = ("order", "layer", "head", "query", "composition")


def importance_table(found: Importance, by: str | None = None) -> AnalysisTable:
    """Lay out an analysis, all of it or the terms of one kind; raises `PathExpandError`.

    The table of all has no room for the errors of what is added and removed; those of one kind
    have them.

    >>> from pathexpand.circuits.importance import importance
    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> found = importance(read_checkpoint("two-layer"), ["to be or not to be"])
    >>> importance_table(found, "layer").column("terms")
    ('L0 heads', 'L1 heads')
    """
    from pathexpand.circuits.importance import ALL, DENSE

    if by is not None and by not in _KINDS:
        raise PathExpandError("importance", wanted=f"by {', '.join(_KINDS)}", got=shown(by))
    terms: tuple[Term, ...] = found.terms(by)  # type: ignore[arg-type]
    has_steps = any(term.loss is not None for term in terms)
    has_sides = any(term.added is not None for term in terms)
    columns = (
        Field("terms", "text"),
        Field("paths", "count", leave=1),
        *(_STEPS if has_steps else ()),
        *(_SIDES if has_sides else ()),
    )
    fields = tuple(f for f in columns if by is not None or " error" not in f.name)
    rows = [_row(term, fields, whole=by is None) for term in _ordered(terms)]
    if by in (None, "order"):
        first: dict[str, Any] = {"terms": "uniform guess", "loss": found.uniform}
        rows = [tuple(first.get(field.name) for field in fields), *rows]
    full, dense = found.loss(ALL), found.loss(DENSE)
    return AnalysisTable(
        "importance",
        about=_about(found),
        fields=fields,
        rows=tuple(rows),
        closing=(
            Summary("all paths", full.value, "loss of their sum"),
            Summary("dense pass", dense.value, f"the gap is {full.value - dense.value:.1e}"),
        ),
        claims=tuple(_claims(found, by, terms, steps=has_steps, sides=has_sides)),
        good=not found.stopped,
    )


def _about(found: Importance) -> tuple[tuple[str, str], ...]:
    count, total = len(found.predicted), int(found.predicted.sum())
    prompts = f"{count:,} prompt{'' if count == 1 else 's'}"
    stopped = ", stopped before the end" if found.stopped else ""
    name = f"{found.text}: " if found.text else ""
    text = f"{name}{prompts}, {counted(total, 'token')} predicted{stopped}"
    return (("model", found.model), ("text", text), ("unit", "nats a token"))


def _ordered(terms: tuple[Term, ...]) -> list[Term]:
    """Put layers right behind order 1, whose parts they are."""
    layers = [term for term in terms if term.kind == "layer"]
    out: list[Term] = []
    for term in (each for each in terms if each.kind != "layer"):
        out.append(term)
        if (term.kind, term.label) == ("order", "1"):
            out, layers = out + layers, []
    return out + layers


def _row(term: Term, fields: tuple[Field, ...], *, whole: bool) -> tuple[Any, ...]:
    values: dict[str, Any] = {"terms": _name(term, whole=whole), "paths": term.paths}
    for name in ("loss", "marginal", "added", "removed"):
        estimate: Estimate | None = getattr(term, name)
        if estimate is not None:
            error = "error" if name == "marginal" else f"{name} error"
            values |= {name: estimate.value, error: estimate.error}
    return tuple(values.get(field.name) for field in fields)


def _name(term: Term, *, whole: bool) -> str:
    if term.kind == "composition":
        return _WITHOUT[term.label]
    if term.kind == "layer" and whole:
        return f"order 1, {term.label}"
    if term.kind != "order":
        return term.label
    return "direct path" if term.label == "0" else f"order {term.label}"


def _claims(
    found: Importance, by: str | None, terms: tuple[Term, ...], *, steps: bool, sides: bool
) -> list[str]:
    kinds = {term.kind for term in terms}
    out = []
    if "order" in kinds:
        out.append("loss: of paths up to that order; marginal: its change from the order before.")
    if sides:
        out.append("added: change of the loss when the paths join the direct path alone.")
        out.append("removed: change of the loss when they are left out of the sum of all.")
    if "layer" in kinds:
        out.append("Of a layer, the paths of order 1 are meant; of a head, when it is removed,")
        out[-1] += " all paths through it, and when it is added, those of order 1."
    elif "head" in kinds:
        out.append("Of a head, order 1 is added, and all paths through it are removed.")
    if steps or sides:
        out.append("Patterns and norm scales are those of the whole run; nothing is recomputed.")
    if "composition" in kinds:
        out.append(
            "Without a composition: a run whose queries (keys) read what no head has moved, all "
            "later patterns recomputed; marginal is its change from the dense pass."
        )
    if not terms and by is not None:
        out.append(_NONE.get(by, f"No {by} was measured."))
    if len(found.predicted) == 1 and terms:
        out.append("One prompt: no standard errors.")
    elif steps or sides:
        out.append("Errors are standard errors over prompts.")
    return out + list(found.notes)
