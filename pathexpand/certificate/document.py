"""The certificate itself: what it holds, and how it is written, read and sealed.

A certificate is one JSON object:

    certificate   "pathexpand paths"
    version       2
    model         from (where it was loaded), mlp (what its MLPs are in a path: "source", "frozen"
                  or "neurons"), weights (SHA-256), architecture (what else changes numbers)
    mask          one flag a token, true at real tokens
    target        kind "logit" (token, centred), "difference" (token, other) or "direction"
    fixed         SHA-256 of what the search held fixed: attention patterns, scales of norms, gates
    expanded      suffixes that prove the bound, without those that another one extends
    table         the table with its claims: tokens, position, query, max_order, rows, bound, …
    sha256        SHA-256 of all the above, written with sorted keys and no spaces
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from pathexpand.errors import FileError, PathExpandError
from pathexpand.frozen import MlpMode, check_mode
from pathexpand.table import PathTable
from pathexpand.table.document import Record, without_twins, write
from pathexpand.target import DifferenceTarget, DirectionTarget, LogitTarget, Target

_KIND, _VERSION = "pathexpand paths", 2
_DEEPEST = 8  # levels of an architecture: more than any has, and no strain on what walks through
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Certificate:
    """What is needed to re-check a table of top paths, sealed against edits.

    `source` is where the model was loaded from, `mlp` what its MLPs are in a path; `architecture`
    holds what, apart from weights, changes numbers (`pathexpand.certificate.architecture`);
    `expanded` the suffixes that prove the bound. The prompt's ids, the position and all claims
    stand in `table`. Raises `PathExpandError` for a mask that does not fit, for what MLPs cannot
    be, and for hashes that are none.

    >>> from pathexpand.api import load
    >>> from pathexpand.certificate import certify
    >>> run = load("two-layer").run("to be or not to")
    >>> certificate = certify(run, run.searched_paths(top=3))
    >>> certificate.source, len(certificate.tokens), certificate.is_sealed
    ('two-layer', 6, True)
    >>> Certificate.from_json(certificate.to_json()) == certificate
    True
    """

    source: str
    mlp: MlpMode
    weights: str
    architecture: Mapping[str, Any]
    mask: tuple[bool, ...]
    target: Target
    fixed: str
    expanded: tuple[str, ...]
    table: PathTable
    sha256: str = ""

    def __repr__(self) -> str:
        """Name the model and what is certified."""
        paths = f"{len(self.table)} of {self.table.path_count:,} paths"
        return f"Certificate({self.source!r}: {paths}, {self.table.target})"

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        if len(self.mask) != len(self.table.tokens):
            raise PathExpandError(
                "certificate mask",
                wanted=f"{len(self.table.tokens)} flags, one a token",
                got=str(len(self.mask)),
            )
        check_mode(self.mlp)
        for name in ("weights", "fixed"):
            if not _DIGEST.fullmatch(getattr(self, name)):
                raise PathExpandError(
                    f"certificate {name}", wanted="a SHA-256", got=repr(getattr(self, name))[:40]
                )

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids."""
        return tuple(token.id for token in self.table.tokens)

    @property
    def digest(self) -> str:
        """The SHA-256 of the content (hexadecimal)."""
        return _digest(self.document())

    @property
    def is_sealed(self) -> bool:
        """Whether the content is what it was when it was sealed."""
        return self.sha256 == self.digest

    def sealed(self) -> Certificate:
        """Give the certificate with the hash of its content.

        >>> from pathexpand.api import load
        >>> from pathexpand.certificate import certify
        >>> run = load("zero-layer").run([1, 2])
        >>> certificate = replace(certify(run, run.searched_paths()), source="here")
        >>> certificate.is_sealed, certificate.sealed().is_sealed
        (False, True)
        """
        return replace(self, sha256=self.digest)

    def __eq__(self, other: object) -> bool:
        """Compare all that they hold."""
        if not isinstance(other, Certificate):
            return NotImplemented
        return self.document() == other.document() and self.sha256 == other.sha256

    def __hash__(self) -> int:
        """Hash by the seal."""
        return hash(self.sha256)

    def document(self) -> dict[str, Any]:
        """Give the content, without the hash, as plain numbers, texts, lists and dictionaries."""
        return {
            "certificate": _KIND,
            "version": _VERSION,
            "model": {
                "from": self.source,
                "mlp": self.mlp,
                "weights": self.weights,
                "architecture": dict(self.architecture),
            },
            "mask": list(self.mask),
            "target": write_target(self.target),
            "fixed": self.fixed,
            "expanded": list(self.expanded),
            "table": self.table.document(),
        }

    def to_json(self) -> str:
        """Write the certificate as JSON in ASCII, numbers to the last digit."""
        return write(self.document() | {"sha256": self.sha256}, ascii=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Read what `to_json` wrote; raises `FileError` for anything else.

        What was edited but can still be read is read as it is: `check_certificate` finds it.

        >>> Certificate.from_json("{}")
        Traceback (most recent call last):
        ...
        pathexpand.errors.FileError: certificate: wanted JSON with "certificate": "pathexpand
        paths", got None
        """
        document = _parsed(text)
        record = Record(document, "certificate")
        try:
            model = Record(_object(document, "model"), "certificate model")
            mlp: Any = model.text("mlp")
            found = cls(
                source=model.text("from"),
                mlp=mlp,
                weights=model.text("weights"),
                architecture=_shallow(_object(document["model"], "architecture"), _DEEPEST),
                mask=_list(document, "mask", bool),
                target=read_target_document(_object(document, "target")),
                fixed=record.text("fixed"),
                expanded=_list(document, "expanded", str),
                table=PathTable.from_json(json.dumps(_object(document, "table"))),
                sha256=record.text("sha256"),
            )
        except FileError:
            raise
        except PathExpandError as error:
            raise FileError(f"certificate: {error}") from None
        read = {key: value for key, value in document.items() if key != "sha256"}
        if _digest(read) != found.digest:
            _refuse("nothing but what to_json writes", "other members, or numbers of another kind")
        return found


def write_target(target: Target) -> dict[str, Any]:
    """Give a target as plain numbers and texts.

    >>> write_target(LogitTarget(5))
    {'kind': 'logit', 'token': 5, 'centred': True}
    """
    if isinstance(target, LogitTarget):
        return {"kind": "logit", "token": target.token, "centred": target.centred}
    if isinstance(target, DifferenceTarget):
        return {"kind": "difference", "token": target.token, "other": target.other}
    numbers = [float(each) for each in target.direction]
    return {"kind": "direction", "numbers": numbers, "name": target.name}


def read_target_document(document: Mapping[str, Any]) -> Target:
    """Read what `write_target` gave; raises `FileError`.

    >>> read_target_document({"kind": "difference", "token": 5, "other": 6})
    DifferenceTarget(token=5, other=6)
    """
    record = Record(document, "certificate target")
    kind = record.text("kind")
    if kind == "logit":
        return LogitTarget(record.whole("token"), record.flag("centred"))
    if kind == "difference":
        return DifferenceTarget(record.whole("token"), record.whole("other"))
    if kind != "direction":
        _refuse("a target that is a logit, a difference or a direction", repr(kind)[:40])
    direction = np.array(_list(document, "numbers", float))
    direction.setflags(write=False)
    return DirectionTarget(direction, record.text("name"))


def _parsed(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text, parse_constant=_no_number, object_pairs_hook=without_twins)
    except (ValueError, RecursionError) as error:
        raise FileError("certificate", wanted="JSON", got=f"none ({error})") from None
    kind = document.get("certificate") if isinstance(document, dict) else None
    if not isinstance(document, dict) or kind != _KIND:
        _refuse(f'JSON with "certificate": "{_KIND}"', repr(kind)[:40])
    if document.get("version") != _VERSION:
        _refuse(f"version {_VERSION}", repr(document.get("version"))[:40])
    return document


def _object(members: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = members.get(key)
    if not isinstance(value, dict):
        _refuse(f"an object as {key}", type(value).__name__)
    return value


def _shallow(value: Any, levels: int) -> Any:
    """Give a value, if lists and objects in it are nested in no more than some levels."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if inner and not levels:
        _refuse(f"an architecture of at most {_DEEPEST} levels", "more")
    for each in inner:
        _shallow(each, levels - 1)
    return value


def _list(members: Mapping[str, Any], key: str, kind: type) -> tuple[Any, ...]:
    value = members.get(key)
    if not isinstance(value, list) or not all(type(each) is kind for each in value):
        _refuse(f"a list of {kind.__name__} as {key}", repr(value)[:40])
    return tuple(value)


def _digest(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _refuse(wanted: str, got: str) -> NoReturn:
    raise FileError("certificate", wanted=wanted, got=got)
