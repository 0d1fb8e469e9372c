"""The circuits of a model: every analysis that needs its weights, under one name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from pathexpand.circuits.bigrams import bigrams
from pathexpand.circuits.circuit import ov, qk
from pathexpand.circuits.composition import composition
from pathexpand.circuits.copying import copying, matching
from pathexpand.circuits.detection import detect, detect_on
from pathexpand.circuits.importance import Importance, importance
from pathexpand.circuits.induction import induction_plane
from pathexpand.circuits.overlap import deletions_in_weights, overlap
from pathexpand.circuits.skip_trigrams import skip_trigrams
from pathexpand.circuits.wiring import virtual_weight
from pathexpand.frozen import MlpMode
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.prompt import Prompt

Given = ParamSpec("Given")
Result = TypeVar("Result")


def _of_model(
    function: Callable[Concatenate[Checkpoint, Given], Result],
) -> Callable[Concatenate[Circuits, Given], Result]:
    """Make a function of a checkpoint a method that knows the checkpoint."""

    @wraps(function)
    def method(self: Circuits, /, *args: Given.args, **options: Given.kwargs) -> Result:
        return function(self.checkpoint, *args, **options)

    taken, own = signature(function), Parameter("self", Parameter.POSITIONAL_ONLY)
    others = list(taken.parameters.values())[1:]
    method.__signature__ = taken.replace(parameters=[own, *others])  # type: ignore[attr-defined]
    method.__qualname__ = f"Circuits.{function.__name__}"
    method.__doc__ = (function.__doc__ or "").partition("\n    >>> ")[0].rstrip() or None
    return method


class Circuits:
    """What can be read from a model's weights, and measured over prompts.

    `qk` and `ov` give the circuits of a head through the embeddings, `virtual_weight` and `overlap`
    what one component reads of another, `composition`, `copying`, `matching` and `induction_plane`
    scores of heads from their weights, `detect` and `detect_on` what heads do on repeated random
    tokens and on texts, `skip_trigrams` and `bigrams` tables of tokens, `deletions` what undoes
    what, and `importance` what paths of each order are worth in nats. What each gives has a
    `table()`.

    >>> from pathexpand.api import load
    >>> model = load("two-layer")
    >>> model.circuits.ov("L1H0")
    Circuit(OV of L1H0: 1024×64 @ 64×1024)
    """

    def __init__(self, checkpoint: Checkpoint, *, mlp: MlpMode = "source") -> None:
        """Take a checkpoint, and what an MLP is in its paths."""
        self.checkpoint, self.mlp = checkpoint, mlp

    def __repr__(self) -> str:
        """Name the model."""
        return f"Circuits({self.checkpoint.config.model_name!r})"

    def _repr_html_(self) -> str:
        from pathexpand.table.markup import card
        from pathexpand.table.sheet import Line
        from pathexpand.table.spelling import visible

        name = visible(self.checkpoint.config.model_name)
        asked = (
            "qk(head), ov(head), composition(kind), copying(), matching(), induction_plane(), "
            "detect(), detect_on(texts), skip_trigrams(head), bigrams(), virtual_weight(writer, "
            "reader), overlap(writer, reader), deletions(), importance(prompts)"
        )
        return card([Line("circuits of", name)], f"Ask for {asked}.")

    qk = _of_model(qk)
    ov = _of_model(ov)
    virtual_weight = _of_model(virtual_weight)
    overlap = _of_model(overlap)
    deletions = _of_model(deletions_in_weights)
    composition = _of_model(composition)
    copying = _of_model(copying)
    matching = _of_model(matching)
    induction_plane = _of_model(induction_plane)
    detect = _of_model(detect)
    detect_on = _of_model(detect_on)
    skip_trigrams = _of_model(skip_trigrams)
    bigrams = _of_model(bigrams)

    def importance(self, prompts: Iterable[Prompt], **options: Any) -> Importance:
        """Measure how much paths of each order, layer and head matter to the next-token loss.

        MLPs are what they are in the model's other paths, unless `mlp` says otherwise. The options
        are those of `pathexpand.circuits.importance.importance`.
        """
        return importance(self.checkpoint, prompts, **({"mlp": self.mlp} | options))
