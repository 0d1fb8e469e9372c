"""What the JSON of a graph must be, as the pages that show graphs read it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from pathexpand.errors import FileError
from pathexpand.model.shown import shown

_SLUG = re.compile(r"[A-Za-z0-9_.-]+")
_LAYER = re.compile(r"E|0|[1-9][0-9]*")
_OUTPUT = re.compile(r'Output "[^"]*" \(p=(-?\d+\.\d{3})\)')
_FEATURE_TYPES = (
    "cross layer transcoder",
    "mlp reconstruction error",
    "embedding",
    "logit",
    "bias",
)


def check_graph_json(document: Any) -> None:
    """Refuse a document that circuit-tracer's or Neuronpedia's pages would not show as meant.

    Beyond their schema: names of nodes are unique over all, links join nodes that are there, once,
    no number is NaN, and outputs are written as the pages read them back. Raises `FileError`.

    >>> check_graph_json({"metadata": {}, "qParams": {}, "nodes": []})
    Traceback (most recent call last):
    ...
    pathexpand.errors.FileError: graph: wanted links
    """
    _members(
        document, "graph", metadata=_is_object, qParams=_is_object, nodes=_is_list, links=_is_list
    )
    metadata = document["metadata"]
    _members(
        metadata, "metadata", slug=_is_name, scan=_is_name, prompt=_is_text, prompt_tokens=_is_list
    )
    if not all(isinstance(token, str) for token in metadata["prompt_tokens"]):
        raise FileError("metadata prompt_tokens", wanted="texts")
    _members(
        document["qParams"],
        "qParams",
        pinnedIds=_is_list,
        supernodes=_is_list,
        linkType=_is_text,
        clickedId=_is_text,
        sg_pos=_is_text,
    )
    names: set[str] = set()
    for number, node in enumerate(document["nodes"]):
        _check_node(node, f"node {number}", len(metadata["prompt_tokens"]))
        if node["node_id"] in names:
            raise FileError("nodes", wanted="another node_id for each", got=shown(node["node_id"]))
        names.add(node["node_id"])
    _check_links(document["links"], names)


def _check_node(node: Any, subject: str, length: int) -> None:
    _members(
        node,
        subject,
        node_id=_is_text,
        feature=lambda value: value is None or type(value) is int,
        layer=lambda value: isinstance(value, str) and _LAYER.fullmatch(value) is not None,
        ctx_idx=lambda value: type(value) is int and 0 <= value < length,
        feature_type=lambda value: value in _FEATURE_TYPES,
        jsNodeId=_is_text,
        clerp=_is_text,
    )
    for name in ("influence", "activation", "token_prob", "preactivation", "constant"):
        if name in node and not _is_number(node[name]):
            raise FileError(f"{subject} {name}", wanted="a number", got=shown(node[name]))
    if not 0 <= node.get("influence", 0) <= 1:
        raise FileError(f"{subject} influence", wanted="0 to 1", got=shown(node["influence"]))
    if node["jsNodeId"] != node["node_id"]:
        raise FileError(f"{subject} jsNodeId", wanted="its node_id", got=shown(node["jsNodeId"]))
    if node["feature_type"] == "logit":
        said = _OUTPUT.fullmatch(node["clerp"])
        if said is None or said[1] != f"{node.get('token_prob', math.nan):.3f}":
            wanted = 'Output "token" (p=its token_prob)'
            raise FileError(f"{subject} clerp", wanted=wanted, got=shown(node["clerp"]))


def _check_links(links: list[Any], names: set[str]) -> None:
    pairs = set()
    for number, link in enumerate(links):
        subject = f"link {number}"
        _members(link, subject, source=_is_text, target=_is_text, weight=_is_number)
        pair = link["source"], link["target"]
        for name in pair:
            if name not in names:
                raise FileError(subject, wanted="nodes that are there", got=shown(name))
        if pair[0] == pair[1] or pair in pairs:
            raise FileError(subject, wanted="two nodes, joined once", got=" to ".join(pair))
        pairs.add(pair)


def _members(value: Any, subject: str, **checks: Callable[[Any], bool]) -> None:
    """Refuse what is no object with such members."""
    if not isinstance(value, dict):
        raise FileError(subject, wanted="an object", got=shown(value))
    for name, check in checks.items():
        if name not in value:
            raise FileError(subject, wanted=name)
        if not check(value[name]):
            raise FileError(
                f"{subject} {name}", wanted="one that pages can read", got=shown(value[name])
            )


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _SLUG.fullmatch(value) is not None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
