"""One prompt run through a model, and the tables of its paths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pathexpand.api.given import as_path, check_counts, finite, overflow, ratio
from pathexpand.api.report import check_graph, run_report
from pathexpand.api.scores import score_table, why_table
from pathexpand.engine.ranking import Ranking, rank
from pathexpand.engine.rounding import dense_rounding, gamma
from pathexpand.engine.sampling import Sample, sample_paths
from pathexpand.engine.search import Budget, Progress
from pathexpand.engine.total import (
    Totals,
    component_totals,
    functionals,
    pair_totals,
    totals,
)
from pathexpand.engine.value import Readout, check_path, path_stream, path_value_by_token
from pathexpand.errors import PathExpandError
from pathexpand.frozen import FrozenSum, Unembed, freeze, unembed
from pathexpand.model.forward import Forward, final_logits, logits
from pathexpand.model.tokenizer import show_token
from pathexpand.progress import listener, watched
from pathexpand.symbolic import Component, Head, Path
from pathexpand.symbolic.query import Query
from pathexpand.table import (
    PathRow,
    PathTable,
    ScoreTable,
    SourceToken,
    TotalsRow,
    TotalsTable,
)
from pathexpand.table.figures import counted
from pathexpand.target import DirectionTarget, Target, TargetLike, read_target

if TYPE_CHECKING:
    from pathexpand.api.model import Model
    from pathexpand.circuits.overlap import Deletions
    from pathexpand.features.graph import Graph
    from pathexpand.features.unit import UnitSet
    from pathexpand.report.contents import Report

Array = npt.NDArray[Any]
TOTALS = ("order", "source", "token", "head", "pair")


@dataclass(frozen=True, slots=True)
class SearchedPaths:
    """A table of ranked paths, the target it is about, and the suffixes that the search expanded.

    Each suffix is given by its components from early to late; the empty one stands for the
    readout.
    """

    table: PathTable
    target: Target
    expanded: tuple[tuple[Component, ...], ...]


class Run:
    """One prompt run through a model, with its attention patterns then held fixed.

    Positions count from 0, or from the end if negative; where none is given, the last real token
    is meant. Where no target is given, the model's most likely next token there is meant.
    """

    def __init__(self, model: Model, dense: Forward) -> None:
        """Keep a model and one row of its dense forward pass, whose arrays become read-only."""
        self.model = model
        self.dense = dense
        for array in (dense.tokens, dense.mask, dense.places, *dense.patterns, *dense.residual):
            array.setflags(write=False)

    def __repr__(self) -> str:
        """Name the model and the prompt's length."""
        return f"Run({self.model.config.model_name!r}: {counted(len(self.tokens), 'token')})"

    def _repr_html_(self) -> str:
        from pathexpand.table.markup import card
        from pathexpand.table.path_sheet import prompt_line
        from pathexpand.table.sheet import Line
        from pathexpand.table.spelling import visible

        lines = [
            Line("model", visible(self.model.config.model_name)),
            prompt_line(self.source_tokens),
            Line("paths", counted(self.count(), "path")),
        ]
        asked = "paths(), report(), total(query), totals_table(by=…), scores(head), why(head)"
        return card(lines, f"Ask for {asked}, graph().")

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """The token ids, (position,)."""
        tokens: npt.NDArray[np.int64] = self.dense.tokens[0]
        return tokens

    @property
    def patterns(self) -> tuple[Array, ...]:
        """The attention patterns, one array (head, query, key) a layer."""
        return tuple(pattern[0] for pattern in self.dense.patterns)

    @cached_property
    def frozen(self) -> FrozenSum:
        """The run as a sum of paths."""
        return freeze(self.model.weights, self.model.config, self.dense, mlp=self.model.mlp)

    @cached_property
    def unembed(self) -> Unembed:
        """The way from the last stream to the logits, its norm held fixed."""
        return unembed(self.model.weights, self.dense)

    def logits(self, position: int | None = None) -> Array:
        """Give the dense logits at a position, before any soft cap: (d_vocab_out,)."""
        place = self.position(position)
        with np.errstate(over="ignore", invalid="ignore"):
            out = final_logits(self.model.weights, self.model.config, self.dense, 0, place)
        if out.dtype != object and not np.isfinite(out).all():
            raise overflow("the logits")
        return out

    def logit_lens(self, layer: int, *, position: int | None = None) -> Array:
        """Read the stream before a layer as if it were the last: (d_vocab_out,).

        The final norm is worked out again for that stream, so these do not add up over layers;
        what adds up, with the scale of the whole run, is `path_logits`. A layer of -1 is the
        stream after all.

        >>> from pathexpand.api import load
        >>> run = load("two-layer").run("to be or not to")
        >>> bool((run.logit_lens(-1) == run.logits()).all())
        True
        """
        count = len(self.dense.residual)
        if isinstance(layer, bool) or not isinstance(layer, int) or not -1 <= layer < count - 1:
            wanted = f"a layer from 0 to {count - 2}, or -1"
            raise PathExpandError("layer", wanted=wanted, got=repr(layer)[:40])
        stream = self.dense.residual[layer][0, self.position(position)]
        return logits(self.model.weights, stream)

    def position(self, given: int | None = None, name: str = "position") -> int:
        """Give a position as counted from 0; raises `PromptError` if it is not one to read at."""
        return self._usual_position() if given is None else self.dense.position(given, name)

    def _usual_position(self) -> int:
        """Give the last real token, or in a masked-token model the first masked one."""
        config, tokenizer = self.model.config, self.model.tokenizer
        if config.attention_dir == "bidirectional" and tokenizer is not None:
            masked = np.flatnonzero(self.tokens == tokenizer.special("[MASK]", "<mask>"))
            if masked.size:
                return int(masked[0])
        return int(np.flatnonzero(self.dense.mask[0])[-1])

    def target(
        self,
        target: TargetLike | Target | None = None,
        *,
        position: int | None = None,
        centred: bool | None = None,
    ) -> Target:
        """Understand a target; with none given, take the most likely next token.

        A token's text or id; a pair or text "A-B" for a difference of two logits; an array
        (d_model,) for any direction. `centred` takes the vocabulary mean off a single logit; so
        it is done, if nothing is said, unless the model caps its logits: then a softmax does see
        the mean, and `centred=True` raises `PromptError`.
        """
        if target is None:
            target = int(np.argmax(self.logits(position)))
        return read_target(self.model.checkpoint, target, centred=centred)

    def soft_cap(self, what: Target) -> float | None:
        """Give the cap that a target is read before, if there is one."""
        is_logit = not isinstance(what, DirectionTarget)
        return self.model.config.output_logits_soft_cap if is_logit else None

    def describe(self, what: Target) -> str:
        """Name a target for a table's head."""
        name, cap = what.describe(self.model.tokenizer), self.soft_cap(what)
        return name if cap is None else f"{name}, before the soft cap of {cap:g}"

    def paths(
        self,
        target: TargetLike | Target | None = None,
        *,
        position: int | None = None,
        top: int = 10,
        query: str | Query | None = None,
        max_order: int | None = None,
        centred: bool | None = None,
        budget: Budget | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> PathTable:
        """Rank the paths to a target by |value|, and close the sum.

        The search ends when no path that is left can be larger than those listed: the table is
        then certified, however many paths there are. A `budget`, or Ctrl-C, ends it sooner with
        a bound on what was not visited. `query` asks for some paths, `max_order` leaves those of
        more heads unranked (they stay in the remainder). `report` hears how the search stands, in
        place of the line that a terminal or a notebook shows after a while.

        >>> from pathexpand.api import load
        >>> table = load("two-layer").run("to be or not to").paths(top=3)
        >>> len(table), table.path_count, abs(table.gap) <= table.gap_bound
        (3, 25, True)
        """
        return self.searched_paths(
            target,
            position=position,
            top=top,
            query=query,
            max_order=max_order,
            centred=centred,
            budget=budget,
            report=report,
        ).table

    @watched("ranking paths")
    def searched_paths(
        self,
        target: TargetLike | Target | None = None,
        *,
        position: int | None = None,
        top: int = 10,
        query: str | Query | None = None,
        max_order: int | None = None,
        centred: bool | None = None,
        budget: Budget | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> SearchedPaths:
        """Rank the paths as `paths` does, and keep what a certificate is made of.

        >>> from pathexpand.api import load
        >>> run = load("two-layer").run("to be or not to")
        >>> run.searched_paths(top=3).target == run.target()
        True
        """
        check_counts(top, max_order)
        place = self.position(position)
        what = self.target(target, position=place, centred=centred)
        readout, dense = what.readout(self.unembed, place), self.dense_value(what, place)
        asked = self.model.query(query)
        found = rank(
            self.frozen,
            readout,
            asked,
            top=top,
            max_order=max_order,
            budget=budget,
            report=listener(report, Progress.words),
        )
        size = sum(abs(row.value) for row in found.rows) + abs(found.outside) + abs(dense)
        rounding = found.rounding + gamma(len(found.rows) + 2) * size
        rounding += self.dense_rounding(what, readout)
        table = PathTable(
            model=self.model.config.model_name,
            tokens=self.source_tokens,
            position=place,
            target=self.describe(what),
            dense=dense,
            rows=self._rows(found, dense),
            listed=found.listed,
            remainder=found.remainder,
            remainder_count=found.remainder_count,
            gap=dense - (found.listed + found.remainder + found.outside),
            gap_bound=2 * rounding,
            path_count=self.model.network.count(),
            certified=found.found.certified,
            bound=finite(found.found.bound),
            max_order=max_order,
            longer_bound=finite(found.found.longer_bound),
            visited=found.found.visited,
            remainder_energy=finite(found.remainder_energy),
            query=asked.text,
            outside=found.outside,
            outside_count=self.model.network.count() - asked.count(),
            mlps=self.model.mlps,
            soft_cap=self.soft_cap(what),
            origin=lambda own: run_report(self, what, own),
        )
        return SearchedPaths(table, what, found.found.expanded)

    def report(
        self,
        target: TargetLike | Target | None = None,
        *,
        position: int | None = None,
        top: int = 100,
        query: str | Query | None = None,
        max_order: int | None = None,
        centred: bool | None = None,
        budget: Budget | None = None,
        graph: Graph | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> Report:
        """Rank the paths as `paths` does, and gather what an explorer shows of them.

        It goes to one HTML file with `to_html(file)`, and into a notebook with `show()`. A `graph`
        of this run is shown below the paths. Raises `PathExpandError` for the graph of another run.

        >>> from pathexpand.api import load
        >>> load("two-layer").run("to be or not to").report(top=3)
        Report('two-layer': 3 paths, 2 heads)
        """
        if graph is not None:
            check_graph(self, graph)
        found = self.searched_paths(
            target,
            position=position,
            top=top,
            query=query,
            max_order=max_order,
            centred=centred,
            budget=budget,
            report=report,
        )
        return run_report(self, found.target, found.table, graph=graph, budget=budget)

    @watched("summing paths")
    def total(
        self,
        query: str | Query | None = None,
        *,
        target: TargetLike | Target | None = None,
        position: int | None = None,
        centred: bool | None = None,
    ) -> Totals:
        """Sum all paths of a query without listing them, split by order, source and token."""
        readout = self._readout(target, position, centred=centred)
        return totals(self.frozen, readout, self.model.query(query))

    def head_totals(
        self,
        *,
        target: TargetLike | Target | None = None,
        position: int | None = None,
        centred: bool | None = None,
    ) -> dict[str, float]:
        """Sum the paths that pass through each head, without listing them.

        A path of several heads counts under each, so these do not add up to the dense value.
        """
        found = component_totals(self.frozen, self._readout(target, position, centred=centred))
        return {each.label: float(value) for each, value in found.items() if isinstance(each, Head)}

    def pair_totals(
        self,
        *,
        target: TargetLike | Target | None = None,
        position: int | None = None,
        centred: bool | None = None,
    ) -> dict[tuple[str, str], float]:
        """Sum the paths that pass through both heads of each pair, the earlier named first."""
        found = pair_totals(self.frozen, self._readout(target, position, centred=centred))
        return {(a.label, b.label): float(value) for (a, b), value in found.items()}

    @watched("summing paths")
    def totals_table(
        self,
        *,
        by: str = "order",
        query: str | Query | None = None,
        target: TargetLike | Target | None = None,
        position: int | None = None,
        centred: bool | None = None,
    ) -> TotalsTable:
        """Tabulate sums over paths by "order", "source", "token", "head" or "pair" of heads.

        >>> from pathexpand.api import load
        >>> table = load("two-layer").run("to be or not to").totals_table(by="order")
        >>> [row.paths for row in table]
        [1, 8, 16]
        """
        if by not in TOTALS:
            raise PathExpandError("totals", wanted=f"by one of {', '.join(TOTALS)}", got=repr(by))
        asked = self.model.query(query)
        if by in ("head", "pair") and asked.text != "*":
            raise PathExpandError(
                f"totals by {by}", wanted="no query", remedy="ask for the head in a query instead"
            )
        place = self.position(position)
        what = self.target(target, position=place, centred=centred)
        found = totals(self.frozen, what.readout(self.unembed, place), asked)
        dense = self.dense_value(what, place)
        return TotalsTable(
            model=self.model.config.model_name,
            target=self.describe(what),
            position=place,
            query=asked.text,
            by=by,
            rows=tuple(
                TotalsRow(part, paths, float(value), ratio(float(value), dense))
                for part, paths, value in self._parts(by, found, asked, what, place)
            ),
            total=float(found.sum()),
            dense=dense,
            parted=by not in ("head", "pair"),
            mlps=self.model.mlps,
            soft_cap=self.soft_cap(what),
        )

    def _parts(
        self, by: str, found: Totals, asked: Query, what: Target, place: int
    ) -> Iterator[tuple[str, int | None, Any]]:
        if by == "order":
            counts = asked.count_by_order()
            for order, value in enumerate(found.by_order()):
                yield str(order), counts[order] if order < len(counts) else 0, value
        elif by == "source":
            yield from ((name, None, value) for name, value in found.by_source().items())
        elif by == "token":
            for position, value in enumerate(found.by_token()):
                yield f"{self._source_token(position).text} @{position}", None, value
        elif by == "head":
            heads = self.head_totals(target=what, position=place)
            yield from ((name, None, value) for name, value in heads.items())
        else:
            pairs = self.pair_totals(target=what, position=place)
            yield from ((" > ".join(pair), None, value) for pair, value in pairs.items())

    @watched("drawing paths")
    def sample(
        self,
        n: int,
        *,
        target: TargetLike | Target | None = None,
        position: int | None = None,
        query: str | Query | None = None,
        centred: bool | None = None,
        seed: int = 0,
    ) -> Sample:
        """Draw n paths with named positions, each with probability contribution² / Σ contribution².

        The same seed gives the same draws. What a sample can and cannot tell is said at
        `pathexpand.engine.sampling.Sample.estimate`.

        >>> from pathexpand.api import load
        >>> sample = load("two-layer").run("to be or not to").sample(100, seed=1)
        >>> len(sample), str(sample.paths[0]).startswith("embed@")
        (100, True)
        """
        for name, value, least in (("n", n, 1), ("seed", seed, 0)):
            if type(value) is not int or value < least:
                wanted = f"a whole number of at least {least}"
                raise PathExpandError(name, wanted=wanted, got=repr(value))
        readout = self._readout(target, position, centred=centred)
        return sample_paths(self.frozen, readout, self.model.query(query), n, seed=seed)

    def scores(
        self,
        head: Head | str,
        query: int | None = None,
        key: int | None = None,
        *,
        top: int = 10,
        budget: Budget | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> ScoreTable:
        """Expand a head's attention score into pairs of paths, to the query and to the key.

        `query` and `key` are positions; if not given, the last, and the key it attends to most. The
        score is the query-key product over the model's scale, before a soft cap and the softmax.
        The search is that of `paths`, on both sides: certified, or stopped with a bound.

        >>> from pathexpand.api import load
        >>> run = load("two-layer").run("Humpty Dumpty sat on a wall. Humpty D")
        >>> row = run.scores("L1H0", 20, 6)[0]
        >>> row.query_path, row.key_path, row.composition
        ('embed', 'embed > L0H3', 'K')
        """
        return score_table(self, head, query, key, top=top, budget=budget, report=report)

    def why(
        self,
        head: Head | str,
        query: int | None = None,
        key: int | None = None,
        *,
        over: int | None = None,
        top: int = 10,
        budget: Budget | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> ScoreTable:
        """Say why a head looks at one key rather than at another, pair by pair.

        What is expanded is log A(query, key) − log A(query, over), the difference of their scores.
        If not given, `key` and `over` are the two that get most attention. Raises
        `PathExpandError` for models that cap their scores: there it is no difference of scores.

        >>> from pathexpand.api import load
        >>> run = load("two-layer").run("Humpty Dumpty sat on a wall. Humpty D")
        >>> table = run.why("L1H0", 20, 6, over=5)
        >>> pattern = run.patterns[1][0, 20]
        >>> bool(abs(table.dense - np.log(pattern[6] / pattern[5])) < 1e-12)
        True
        """
        return why_table(self, head, query, key, over, top=top, budget=budget, report=report)

    def graph(
        self,
        features: UnitSet | str | FilePath | None = None,
        *,
        targets: Sequence[TargetLike] | None = None,
        top_logits: int = 10,
        probability: float = 0.95,
        position: int | None = None,
        zero_positions: int = 0,
        prune: bool | tuple[float, float] = False,
        force: bool = False,
        folded: bool = False,
        report: Callable[[int, int], None] | None = None,
    ) -> Graph:
        """Make the attribution graph of this run, with sparse features in its MLPs or stream.

        `features` is a set of units or the directory of one; without them, those that come with the
        package for this very model.
        The logits are those of `targets`, or the likeliest `top_logits` that make up `probability`.
        At the first `zero_positions` positions no feature is looked at. `prune` keeps, already
        while the graph is made, the nodes and edges of most influence: two shares, or true for
        those of circuit-tracer. Raises `ModelError` for units that do not fit the model, or that
        miss more of what they stand for than a constant would, unless `force`; `folded` says that
        they were trained on this model with its norms folded.
        """
        from pathexpand.api.graph import run_graph

        return run_graph(
            self,
            features,
            targets,
            top_logits=top_logits,
            probability=probability,
            position=position,
            zero_positions=zero_positions,
            prune=prune,
            force=force,
            folded=folded,
            report=report,
        )

    @watched("looking for deletions")
    def deletions(self, *, position: int | None = None) -> Deletions:
        """Find heads that undo on this prompt what earlier components write at a position.

        >>> from pathexpand.api import load
        >>> len(load("two-layer").run("to be or not to be").deletions().found)
        16
        """
        from pathexpand.circuits.overlap import deletions

        return deletions(self.frozen, position=self.position(position))

    def count(self, query: str | Query | None = None) -> int:
        """Count the paths of a query, exactly and without listing them."""
        return self.model.count(query)

    def value(
        self,
        path: Path | str,
        target: TargetLike | Target | None = None,
        *,
        position: int | None = None,
        centred: bool | None = None,
    ) -> float:
        """Give one path's value."""
        split = self.value_by_token(path, target, position=position, centred=centred)
        return float(split.sum())

    def value_by_token(
        self,
        path: Path | str,
        target: TargetLike | Target | None = None,
        *,
        position: int | None = None,
        centred: bool | None = None,
    ) -> Array:
        """Give one path's value split by source token: (position,)."""
        readout = self._readout(target, position, centred=centred)
        near = self.frozen.until(readout.position)
        split = path_value_by_token(near, readout, as_path(path))
        later = np.zeros(len(self.tokens) - near.positions, dtype=split.dtype)
        return np.concatenate([split, later])

    def path_logits(self, path: Path | str, *, position: int | None = None) -> Array:
        """Give what one path adds to every logit: (d_vocab_out,)."""
        wanted, place = as_path(path), self.position(position)
        if wanted.source == "b_U":
            check_path(self.frozen, wanted)
            return self.unembed.constant(place)
        return self.unembed.logits(place, path_stream(self.frozen, place, wanted))

    def _readout(
        self, target: TargetLike | Target | None, position: int | None, *, centred: bool | None
    ) -> Readout:
        place = self.position(position)
        what = self.target(target, position=place, centred=centred)
        return what.readout(self.unembed, place)

    def dense_value(self, what: Target, position: int) -> float:
        """Give a target's value by the dense pass; raises `ModelError` if it overflows."""
        last = self.dense.residual[-1][0, position]
        value = float(what.dense(self.logits(position), last))
        if not math.isfinite(value):
            raise overflow("the logits")
        return value

    def dense_rounding(self, what: Target, readout: Readout) -> float:
        """Bound the rounding of a dense value: in the stream, the biases and the readout."""
        weights, place = self.model.weights, readout.position
        reads = functionals(self.frozen, readout)
        total = dense_rounding(weights, self.dense, self.frozen, reads)
        return total + what.rounding(self.unembed, place, self.dense.residual[-1][0, place])

    def _rows(self, found: Ranking, dense: float) -> tuple[PathRow, ...]:
        rows, running = [], 0.0
        for number, ranked in enumerate(found.rows, start=1):
            running += ranked.value
            at = ranked.strongest
            rows.append(
                PathRow(
                    rank=number,
                    path=str(ranked.path),
                    order=ranked.path.order,
                    kind=ranked.path.kind,
                    value=ranked.value,
                    share=ratio(ranked.value, dense),
                    running=running,
                    source_token=None if at is None else self._source_token(at),
                    source_value=None if at is None else float(ranked.by_token[at]),
                    certain=abs(ranked.value) >= found.found.bound * (1 - 1e-9),
                )
            )
        return tuple(rows)

    @property
    def source_tokens(self) -> tuple[SourceToken, ...]:
        """The tokens of the prompt, each with its position, its id and its text made visible."""
        return tuple(self._source_token(n) for n in range(len(self.tokens)))

    def _source_token(self, position: int) -> SourceToken:
        token = int(self.tokens[position])
        return SourceToken(position, token, show_token(self.model.tokenizer, token))


def cut_row(dense: Forward, row: int, length: int) -> Forward:
    """Cut one prompt out of a padded batch, as a batch of one."""
    one = slice(row, row + 1)

    def cut(array: Any) -> Any:
        return array[one, :length] if isinstance(array, np.ndarray) else array

    layers = []
    for layer in dense.layers:
        own = {field.name: cut(getattr(layer, field.name)) for field in fields(layer)}
        own["pattern"] = layer.pattern[one, :, :length, :length]
        layers.append(replace(layer, **own))
    own = {field.name: cut(getattr(dense, field.name)) for field in fields(dense)}
    own["layers"] = tuple(layers)
    own["residual"] = tuple(cut(stream) for stream in dense.residual)
    own["embed_scales"] = tuple(cut(scale) for scale in dense.embed_scales)
    return replace(dense, **own)


def check_finite(dense: Forward) -> None:
    """Refuse a run whose numbers left the range of float64: nothing adds up there."""
    for layer, stream in enumerate(dense.residual):
        if stream.dtype != object and not np.isfinite(stream).all():
            raise overflow("the embeddings" if not layer else f"layer {layer - 1}")
