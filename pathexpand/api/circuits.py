"""The circuits of a model: every analysis that needs its weights, under one name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

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


class _OfModel(Generic[Given, Result]):
    """A function of a checkpoint as a method that knows the checkpoint."""

    def __init__(self, function: Callable[Concatenate[Checkpoint, Given], Result]) -> None:
        self.function = function

    @overload
    def __get__(self, owner: None, kind: Any = None) -> _OfModel[Given, Result]: ...
    @overload
    def __get__(self, owner: Circuits, kind: Any = None) -> Callable[Given, Result]: ...
    def __get__(
        self, owner: Circuits | None, kind: Any = None
    ) -> _OfModel[Given, Result] | Callable[Given, Result]:
        if owner is None:
            return self
        bound: Any = update_wrapper(partial(self.function, owner.checkpoint), self.function)
        del bound.__wrapped__  # so that its signature is without the checkpoint
        return bound  # type: ignore[no-any-return]


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

    qk = _OfModel(qk)
    ov = _OfModel(ov)
    virtual_weight = _OfModel(virtual_weight)
    overlap = _OfModel(overlap)
    deletions = _OfModel(deletions_in_weights)
    composition = _OfModel(composition)
    copying = _OfModel(copying)
    matching = _OfModel(matching)
    induction_plane = _OfModel(induction_plane)
    detect = _OfModel(detect)
    detect_on = _OfModel(detect_on)
    skip_trigrams = _OfModel(skip_trigrams)
    bigrams = _OfModel(bigrams)

    def importance(self, prompts: Iterable[Prompt], **options: Any) -> Importance:
        """Measure how much paths of each order, layer and head matter to the next-token loss.

        MLPs are what they are in the model's other paths, unless `mlp` says otherwise. The options
        are those of `pathexpand.circuits.importance.importance`.
        """
        return importance(self.checkpoint, prompts, **({"mlp": self.mlp} | options))
