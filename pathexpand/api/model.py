"""A model whose paths can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pathexpand.api.dataset import Readings, dataset_table
from pathexpand.api.given import Mask, as_mask, as_path, check_counts, ratio
from pathexpand.api.run import Run, check_finite, cut_row
from pathexpand.engine.dataset import rank_over
from pathexpand.engine.identities import check_identities
from pathexpand.engine.norm import path_factors, path_matrix
from pathexpand.engine.ranking import rank_by_norm
from pathexpand.engine.rounds import By
from pathexpand.engine.search import Budget, Progress
from pathexpand.errors import CompositionError, NotationError, PathExpandError, PromptError
from pathexpand.frozen import MlpMode, network_of
from pathexpand.lowrank import Contraction, Factored, plan
from pathexpand.model.checkpoint import (
    EMBEDDED,
    Checkpoint,
    checkpoint_from_state_dict,
    read_checkpoint,
)
from pathexpand.model.config import Config
from pathexpand.model.forward import forward
from pathexpand.model.prompt import Prompt, Tokens, pad, read_prompt
from pathexpand.model.shown import check_flag
from pathexpand.model.tokenizer import Tokenizer
from pathexpand.progress import listener, watched
from pathexpand.symbolic import Network, Path, equation
from pathexpand.symbolic.query import Query, everything, parse_query
from pathexpand.table import (
    NormRow,
    NormTable,
)
from pathexpand.table.dataset_table import DatasetTable
from pathexpand.target import Target, TargetLike, read_target

if TYPE_CHECKING:
    from pathexpand.api.circuits import Circuits


@watched("reading the model")
def load(name_or_directory: str | FilePath, *, mlp: MlpMode = "source") -> Model:
    """Load a model: an embedded one by name, or a directory with `config.json` and weights.

    `mlp` says what an MLP is in a path: "source" (what it wrote), "frozen" (one component with its
    gates held fixed) or "neurons" (a component for each neuron). Raises `FileError` or
    `ModelError`, also where a short probe shows that the weights do not fit together.

    >>> load("two-layer")
    Model('two-layer': 2 layers × 4 heads, d_model 192, vocabulary 1024)
    """
    checkpoint = read_checkpoint(name_or_directory)
    if str(name_or_directory) not in EMBEDDED:
        check_identities(checkpoint.weights, checkpoint.config)
    return Model(checkpoint, mlp=mlp)


def from_state_dict(
    tensors: Mapping[str, npt.NDArray[Any]],
    config: Config | Mapping[str, Any],
    *,
    tokenizer: Tokenizer | None = None,
    mlp: MlpMode = "source",
) -> Model:
    """Take a TransformerLens state dict, given as arrays, and its configuration as a mapping."""
    return Model(checkpoint_from_state_dict(tensors, config, tokenizer=tokenizer), mlp=mlp)


class Model:
    """A transformer whose paths can be asked for.

    Weights are read-only and a model never changes, so nothing computed from it can be stale.
    """

    def __init__(self, checkpoint: Checkpoint, *, mlp: MlpMode = "source") -> None:
        """Wrap a checkpoint that has been read and checked."""
        self.checkpoint, self.mlp = checkpoint, mlp
        self.config = checkpoint.config
        self.weights = checkpoint.weights
        self.tokenizer = checkpoint.tokenizer
        self.network: Network = network_of(self.weights, self.config, mlp=mlp)

    def __repr__(self) -> str:
        """Name the model and its sizes."""
        c = self.config
        layers = f"{c.n_layers} layer{'' if c.n_layers == 1 else 's'}"
        neurons = f" + {c.d_mlp} neurons" if c.d_mlp else ""
        mode = f", mlp={self.mlp!r}" if c.d_mlp else ""
        return (
            f"Model({c.model_name!r}: {layers} × {c.n_heads} heads{neurons}, "
            f"d_model {c.d_model}, vocabulary {c.d_vocab}{mode})"
        )

    def _repr_html_(self) -> str:
        from pathexpand.table.figures import counted
        from pathexpand.table.markup import card
        from pathexpand.table.sheet import Line
        from pathexpand.table.spelling import visible

        c = self.config
        lines = [
            Line("model", visible(c.model_name)),
            Line("layers", f"{c.n_layers}, each of {counted(c.n_heads, 'head')}"),
            *([Line("MLPs", f"{c.d_mlp:,} neurons a layer, mlp={self.mlp!r}")] if c.d_mlp else []),
            Line("sizes", f"d_model {c.d_model:,}, vocabulary {c.d_vocab:,}, context {c.n_ctx:,}"),
            Line("paths", counted(self.count(), "path")),
        ]
        return card(lines, "Ask for run(prompt), equation(), paths(), circuits, dataset_paths(…).")

    @property
    def mlps(self) -> MlpMode | None:
        """What its MLPs are in a path, or None if it has no MLPs."""
        return self.mlp if self.config.d_mlp else None

    def with_mlp(self, mlp: MlpMode) -> Model:
        """Give the same model with its MLPs taken as sources, whole or neuron by neuron."""
        return Model(self.checkpoint, mlp=mlp)

    @property
    def circuits(self) -> Circuits:
        """The circuits of the model: QK, OV, composition, copying, skip-trigrams and more.

        >>> load("two-layer").circuits.composition("K", samples=100).ranked(1)[0].earlier.label
        'L0H3'
        """
        from pathexpand.api.circuits import Circuits

        return Circuits(self.checkpoint, mlp=self.mlp)

    def equation(self, *, notation: str = "paper", format: str = "text") -> str:
        """Write the model as a sum of paths.

        `notation` is "paper" (column vectors, read right to left) or "code" (row vectors, as the
        arrays are); `format` is "text" or "latex".

        >>> print(load("one-layer").equation())
        T = (Id ⊗ W_U) (Id ⊗ Id + Σ_{h∈L0} A^h ⊗ W_OV^h) (Id ⊗ W_E)
          = Id ⊗ W_U W_E                   [1]
          + Σ_{h∈L0} A^h ⊗ W_U W_OV^h W_E  [4]
        <BLANKLINE>
        [n] terms of each kind, 5 in all
        L0 = {L0H0, …, L0H3}
        """
        return equation(self.network, notation=notation, format=format)

    def run(
        self,
        prompt: Prompt,
        *,
        mask: Mask | None = None,
        types: Sequence[int] | None = None,
        prepend_bos: bool | None = None,
    ) -> Run:
        """Run one prompt, given as text or as token ids (position,).

        Ids are used exactly as given; text gets the model's start token unless `prepend_bos` is
        false. `mask` (position,) is 1 at real tokens and 0 at padding; `types` (position,) are
        token types, 0 if not given, in a model that has them.
        """
        tokens = read_prompt(
            self.checkpoint, prompt, mask=as_mask(mask), types=types, prepend_bos=prepend_bos
        )
        return self.run_tokens([tokens])[0]

    def runs(
        self,
        prompts: Sequence[Prompt],
        *,
        masks: Sequence[Mask] | None = None,
        prepend_bos: bool | None = None,
    ) -> list[Run]:
        """Run several prompts of any lengths in one padded batch; each run is as if run alone."""
        if isinstance(prompts, str) or not isinstance(prompts, Iterable):
            raise PromptError("prompts", wanted="a list of prompts", got=repr(prompts)[:60])
        prompts = list(prompts)
        if not prompts:
            raise PromptError("prompts", wanted="at least one prompt", got="none")
        if masks is not None and len(masks) != len(prompts):
            raise PromptError("masks", wanted=f"{len(prompts)}, one a prompt", got=str(len(masks)))
        each_mask = [None] * len(prompts) if masks is None else masks
        return self.run_tokens(
            [
                read_prompt(self.checkpoint, prompt, mask=as_mask(mask), prepend_bos=prepend_bos)
                for prompt, mask in zip(prompts, each_mask, strict=True)
            ]
        )

    @watched("ranking paths")
    def paths(
        self,
        *,
        top: int = 10,
        query: str | Query | None = None,
        max_order: int | None = None,
        centred: bool = False,
        budget: Budget | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> NormTable:
        """Rank paths from the weights alone, by the Frobenius norm of their end-to-end matrix.

        `centred` takes each input's mean over the output vocabulary off its row. The other
        options are those of `Run.paths`.

        >>> load("two-layer").paths(top=3).certified
        True
        """
        check_counts(top, max_order)
        check_flag("centred", centred)
        asked = self.query(query)
        found = rank_by_norm(
            self.weights,
            self.network,
            asked,
            top=top,
            centred=centred,
            max_order=max_order,
            budget=budget,
            report=listener(report, Progress.words),
        )
        rows = tuple(
            NormRow(n, str(path), path.order, path.kind, norm, ratio(norm * norm, found.energy))
            for n, (path, norm) in enumerate(
                zip(found.found.paths, found.norms, strict=True), start=1
            )
        )
        return NormTable(
            model=self.config.model_name,
            rows=rows,
            energy=found.energy,
            path_count=asked.count(),
            certified=found.found.certified,
            bound=found.found.bound,
            max_order=max_order,
            longer_bound=found.found.longer_bound,
            query=asked.text,
            centred=centred,
            mlps=self.mlps,
        )

    @watched("ranking paths over prompts")
    def dataset_paths(
        self,
        prompts: Iterable[Prompt],
        *,
        by: By = "rms",
        target: TargetLike | Target | None = None,
        targets: Iterable[TargetLike | Target | None] | None = None,
        masks: Iterable[Mask | None] | None = None,
        prepend_bos: bool | None = None,
        top: int = 10,
        query: str | Query | None = None,
        max_order: int | None = None,
        centred: bool | None = None,
        budget: Budget | None = None,
        rounds: int | None = None,
        cache: int = 2**28,
        report: Callable[[Progress], None] | None = None,
    ) -> DatasetTable:
        """Rank paths over many prompts by the root mean square, or the |mean|, of their values.

        `prompts` can be anything that can be iterated over again and again with the same result,
        of any length: one prompt is looked at at a time. Each is read at its last token, for one
        `target`, for its own out of `targets`, or where there is none for its most likely next
        token. The search makes one pass over the prompts a round and ends, certified, when no
        path that is left can be among those listed; a `budget`, a number of `rounds`, or Ctrl-C
        ends it sooner with a bound that holds (a first round, and two passes that value the listed
        paths and close the sum, are made in any case). `cache` is how many bytes of what the
        search needs of each prompt are kept from round to round. The other options are those of
        `Run.paths`. Raises `PathExpandError`, with the number of the prompt from 1.

        >>> table = load("two-layer").dataset_paths(["to be or not", "that is the"], top=3)
        >>> len(table), table.certified, table.closes
        (3, True, True)
        """
        check_counts(top, max_order)
        check_counts(cache, rounds, names=("cache", "rounds"))
        if by not in ("rms", "mean"):
            raise PathExpandError("by", wanted='"rms" or "mean"', got=repr(by))
        if target is not None and targets is not None:
            raise PathExpandError("target", wanted="one for all, or one a prompt", got="both")
        one = None if target is None else read_target(self.checkpoint, target, centred=centred)
        readings = Readings(
            self, prompts, one, targets, masks, prepend_bos=prepend_bos, centred=centred
        )
        asked = self.query(query)
        found = rank_over(
            readings,
            self.network,
            asked,
            by=by,
            top=top,
            max_order=max_order,
            budget=budget,
            rounds=rounds,
            cache=cache,
            report=listener(report, Progress.words),
        )
        return dataset_table(self, found, by, readings, max_order, asked)

    def query(self, text: str | Query | None = None) -> Query:
        """Read a path query such as "embed > * > L1H2"; none is every path.

        Raises `NotationError` for text that is no query, and `CompositionError` for a query about
        another network.
        """
        if isinstance(text, Query):
            if text.network != self.network:
                raise CompositionError(
                    f"query {text.text!r}",
                    wanted="a query about this model's heads and sources",
                    got="one about another network",
                    remedy="give its text",
                )
            return text
        if text is not None and not isinstance(text, str):
            raise NotationError("query", wanted="text", got=repr(text)[:60])
        return everything(self.network) if text is None else parse_query(text, self.network)

    def count(self, query: str | Query | None = None) -> int:
        """Count the paths, or those of a query, exactly and without listing them.

        >>> load("two-layer").count("embed > * > L1H2")
        5
        """
        return self.query(query).count()

    def path_matrix(self, path: Path | str) -> Factored:
        """Give a path's matrix from its source to the logits, in factors (inputs, d_vocab_out)."""
        return path_matrix(self.weights, self._own(path))

    def contraction(self, path: Path | str) -> Contraction:
        """Give the cheapest order in which to multiply out a path's matrix, and what it costs.

        >>> print(load("one-layer").contraction("embed > L0H1"))  # doctest: +ELLIPSIS
        step  product ...
        """
        factors = path_factors(self.weights, self._own(path))
        return plan([factor.shape for factor in factors.values()], names=list(factors))

    def _own(self, path: Path | str) -> Path:
        """Give a path, if it is one of the model's."""
        given = as_path(path)
        labels = [source.label for source in self.network.sources]
        if given.source not in labels:
            raise PathExpandError(
                f"path {given}", wanted=f"a source among {', '.join(labels)}", got=given.source
            )
        return given

    @watched("running the model")
    def run_tokens(self, prompts: list[Tokens]) -> list[Run]:
        """Run prompts that have been read and checked, in one padded batch."""
        batch = pad(prompts)
        with np.errstate(over="ignore", invalid="ignore"):
            dense = forward(self.weights, self.config, batch.ids, batch.mask, types=batch.types)
        check_finite(dense)
        return [Run(self, cut_row(dense, n, len(prompt.ids))) for n, prompt in enumerate(prompts)]
