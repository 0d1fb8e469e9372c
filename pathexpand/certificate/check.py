"""Check a certificate against a model, by another route than the search took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pathexpand.api import Model, Run
from pathexpand.certificate.architecture import architecture
from pathexpand.certificate.bound import check_bound
from pathexpand.certificate.document import Certificate
from pathexpand.certificate.finding import Compared, Finding, equal, judge
from pathexpand.certificate.held import Held, fixed_digest, hold
from pathexpand.certificate.rows import check_rows, check_values, read_paths
from pathexpand.certificate.sums import check_counts, check_sums
from pathexpand.errors import PathExpandError
from pathexpand.model.tokenizer import show_token
from pathexpand.progress import watched
from pathexpand.symbolic.query import Query
from pathexpand.target import DifferenceTarget, DirectionTarget, LogitTarget, Target

MOST_DOUBT = 1e-6


@np.errstate(over="ignore", invalid="ignore")  # what overflows is refused
@watched("checking the certificate")
def check_certificate(certificate: Certificate, model: Model) -> tuple[Finding, ...]:
    """Re-verify all that a certificate claims; every finding holds if and only if it is right.

    The findings are, in order: content (the hash), model (weights and architecture), question
    (names, prompt, position, target, query, what is held fixed), rows (ranks, order, kinds, ties,
    shares), values, counts, sums (dense value, remainder, outside, gap), remainder energy, bound,
    longer paths, certified. Where one fails that the next ones stand on, it is the last. MLPs are
    taken as the certificate says, however the model takes them. Patterns, scales and gates that are
    not those of the search bit for bit must be known up to a part of 1e-6: with attention scores so
    large that rounding leaves more open, nothing can be checked. The table must name the model as
    the model names itself, or is named after its folder. Raises `LimitError` where the energies of
    the stream, or the suffixes, would take more than 4 GB.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate import certify
    >>> run = load("two-layer").run("to be or not to")
    >>> certificate = certify(run, run.searched_paths(top=3))
    >>> [finding.name for finding in check_certificate(certificate, load("one-layer"))]
    ['content', 'model']
    """
    findings = [_check_content(certificate), _check_model(certificate, model)]
    if not findings[-1].holds:
        return tuple(findings)
    try:
        question = _ask(certificate, model.with_mlp(certificate.mlp))
    except PathExpandError as error:
        return (*findings, Finding("question", False, 1.0, 0.0, str(error)))
    findings.append(_check_question(certificate, question))
    if not question.doubt <= MOST_DOUBT:
        return tuple(findings)
    table, held, query = certificate.table, question.held, question.query
    findings.append(check_rows(table, query))
    paths = read_paths(table, query)
    if paths is None:
        return tuple(findings)
    findings.append(check_values(table, held, paths))
    findings.append(check_counts(table, query))
    findings.append(check_sums(table, held, query, paths, question.run, question.target))
    findings += check_bound(table, held, query, paths, certificate.expanded)
    return tuple(findings)


@dataclass(frozen=True, slots=True)
class _Question:
    """What the table is an answer to, with the run made anew."""

    run: Run
    target: Target
    query: Query
    held: Held

    @property
    def doubt(self) -> float:
        """The most by which what is held fixed may differ from the search's, in proportion."""
        return max(self.held.doubts, default=0.0)


def _check_content(certificate: Certificate) -> Finding:
    return judge(
        "content",
        [equal(certificate.sha256, certificate.digest, "SHA-256 of the content")],
        "SHA-256 of all that the certificate holds",
    )


def _check_model(certificate: Certificate, model: Model) -> Finding:
    compared = [equal(model.checkpoint.digest(), certificate.weights, "SHA-256 of the weights")]
    compared += _differences(architecture(model), dict(certificate.architecture), "")
    detail = f"weights {certificate.weights[:12]}… and architecture"
    return judge("model", compared, detail)


def _differences(got: Any, wanted: Any, name: str) -> list[Compared]:
    """Compare plain numbers, texts, lists and dictionaries; name the member that differs."""
    if isinstance(got, dict) and isinstance(wanted, dict):
        pairs = {key: (got.get(key), wanted.get(key)) for key in {**got, **wanted}}
    elif isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
        pairs = dict(enumerate(zip(got, wanted, strict=True)))
    else:
        return [equal(got, wanted, name.strip() or "architecture")]
    return [
        each
        for key, (one, other) in pairs.items()
        for each in _differences(one, other, f"{name} {key}")
    ]


def _ask(certificate: Certificate, model: Model) -> _Question:
    table = certificate.table
    run = model.run(certificate.tokens, mask=certificate.mask)
    place = run.position(table.position)
    target = _checked_target(certificate.target, model)
    query = model.query(table.query)
    same = fixed_digest(run) == certificate.fixed
    return _Question(run, target, query, hold(run, target, place, same=same))


def _checked_target(target: Target, model: Model) -> Target:
    """Refuse tokens and directions that the model does not have."""
    if isinstance(target, DirectionTarget):
        if target.direction.shape != (model.config.d_model,):
            raise PathExpandError(
                "target direction",
                wanted=f"{model.config.d_model} numbers",
                got=str(target.direction.size),
            )
        return target
    tokens = [target.token] if isinstance(target, LogitTarget) else [target.token, target.other]
    for token in tokens:
        if not 0 <= token < model.config.d_vocab_out:
            raise PathExpandError(
                f"target id {token}", wanted=f"an id from 0 to {model.config.d_vocab_out - 1}"
            )
    if isinstance(target, DifferenceTarget) and target.token == target.other:
        raise PathExpandError("target", wanted="two different tokens", got="the same twice")
    return target


def _check_question(certificate: Certificate, question: _Question) -> Finding:
    table, tokenizer = certificate.table, question.run.model.tokenizer
    name = question.run.model.config.model_name
    compared = [
        equal(table.model, name, "name of the model"),
        equal(table.target, question.run.describe(question.target), "name of the target"),
        equal(table.mlps, question.run.model.mlps, "what MLPs are in a path"),
        equal(table.soft_cap, question.run.soft_cap(question.target), "soft cap"),
    ]
    if isinstance(question.target, DirectionTarget):
        logit = table.target.strip().casefold().startswith("logit of")
        compared.append(equal(logit, False, "a direction that is called a logit"))
    for place, token in enumerate(table.tokens):
        compared.append(equal(token.position, place, f"place of token {place}"))
        compared.append(equal(token.text, show_token(tokenizer, token.id), f"text of {token.id}"))
    doubt = question.doubt
    known = "the same bit for bit" if doubt == 0 else f"the same up to a part of {doubt:.1e}"
    fixed = "patterns" if _is_plain(question.run) else "patterns, scales and gates"
    if doubt:
        compared.append(Compared(doubt, MOST_DOUBT, f"{fixed} that rounding leaves open"))
    detail = f"{len(table.tokens)} tokens, position {table.position}; {fixed} {known}"
    return judge("question", compared, detail)


def _is_plain(run: Run) -> bool:
    """Say whether patterns are all that a run holds fixed."""
    layers = run.dense.layers
    return run.dense.final_scale is None and all(
        layer.gates is None and layer.scale1 is None for layer in layers
    )
