"""`pathexpand check`: a certificate, re-checked without trusting the search."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import click

from pathexpand.cli.output import emit, wants_color
from pathexpand.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pathexpand.api import Model
    from pathexpand.certificate import Certificate, Finding
    from pathexpand.table.sheet import Column, Line


@click.command(short_help="Re-check a certificate.")
@click.argument("file", metavar="FILE")
@click.option(
    "--model",
    metavar="NAME|DIR|FILE",
    help="The model to check it against. Default: where the certificate says it was loaded from.",
)
def check(*, file: str, model: str | None) -> int:
    """Re-check a certificate that "pathexpand table --certificate FILE" wrote.

    The model is run anew; listed paths are valued by dense products, sums are taken forward from
    the sources, and the bound on all unlisted paths is derived again from the energies of the
    stream. Prints each claim with what was measured and the most it may be. The exit status is 1
    if one fails.
    """
    from pathexpand.certificate import Certificate, check_certificate

    try:
        certificate = Certificate.from_json(_read(file))
    except FileError as error:
        subject = error.subject if error.subject.startswith(file) else f"{file}: {error.subject}"
        raise FileError(subject, wanted=error.wanted, got=error.got, remedy=error.remedy) from error
    against = _load(certificate, model)
    findings = check_certificate(certificate, against)
    emit(lambda ascii: _written(file, certificate, findings, ascii=ascii))
    return 0 if all(finding.holds for finding in findings) else 1


def _read(file: str) -> str:
    try:
        return FilePath(file).read_bytes().decode("utf-8")
    except OSError as error:
        raise FileError(f"{file}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FileError(file, wanted="a certificate in UTF-8", got=str(error)) from None
    except ValueError as error:  # a name with a null byte
        raise FileError(f"{file!r}: cannot read: {error}") from None


def _load(certificate: Certificate, model: str | None) -> Model:
    from pathexpand.api import load

    if model is not None:
        return load(model)
    try:
        return load(certificate.source)
    except (FileError, OSError, ValueError) as error:
        raise FileError(
            f"the certificate's model {certificate.source!r}: {error}",
            remedy="name the model with --model",
        ) from None


def _written(
    file: str, certificate: Certificate, findings: Sequence[Finding], *, ascii: bool
) -> str:
    from pathexpand.table.sheet import Sheet
    from pathexpand.table.text import text

    failed = [finding for finding in findings if not finding.holds]
    claims = [f"{finding.name} FAILS: {finding.detail}" for finding in failed]
    claims += [f"{len(failed)} of {len(findings)} checks fail."] if failed else []
    sheet = Sheet(
        head=_head(file, certificate, ascii=ascii),
        columns=_columns(findings, ascii=ascii),
        closing=(),
        claims=tuple(claims) or (f"All {len(findings)} checks hold.",),
        good=not failed,
    )
    return text(sheet, ascii=ascii, color=wants_color()) + "\n"


def _head(file: str, certificate: Certificate, *, ascii: bool) -> tuple[Line, ...]:
    from pathexpand.table.figures import counted
    from pathexpand.table.sheet import Line
    from pathexpand.table.spelling import visible
    from pathexpand.target import DirectionTarget

    table = certificate.table
    # What a direction is called cannot be checked.
    called = "a direction, called " if isinstance(certificate.target, DirectionTarget) else ""
    said = {
        "certificate": file,
        "model": table.model,
        "prompt": f"{counted(len(table.tokens), 'token')}, read at position {table.position}",
        "target": called + table.target,
        "query": table.query,
        "table": f"{counted(len(table), 'path')}, {'' if table.certified else 'not '}certified",
    }
    return tuple(Line(label, visible(each, ascii=ascii)) for label, each in said.items())


def _columns(findings: Sequence[Finding], *, ascii: bool) -> tuple[Column, ...]:
    from pathexpand.table.figures import upper
    from pathexpand.table.sheet import Column
    from pathexpand.table.shorten import wrap
    from pathexpand.table.spelling import visible

    names = [finding.name for finding in findings]
    details = [visible(finding.detail, ascii=ascii) for finding in findings]
    return (
        Column("claim", tuple(names), shorten=lambda row, room: wrap(names[row], room), least=9),
        Column("holds", tuple("yes" if finding.holds else "NO" for finding in findings)),
        Column("measured", tuple(f"{finding.error:.4g}" for finding in findings), right=True),
        Column(
            "at most", tuple(upper(finding.bound, digits=4) for finding in findings), right=True
        ),
        Column(
            "checked on",
            tuple(details),
            shorten=lambda row, room: wrap(details[row], room),
            least=10,
        ),
    )
