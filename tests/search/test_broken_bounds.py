"""Broken searches, one fault each in the text of one function, and the law that must see it.

A fault is an old and a new piece of the function's source, so that one that no longer fits the
source is found out, and every fault is as small as a slip of the pen.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from pathexpand import laws
from pathexpand.api import Model
from pathexpand.engine import (
    best,
    energy,
    kernel,
    norm_tree,
    prompt_tree,
    remainder,
    search,
    total,
)
from pathexpand.engine.search import Budget
from pathexpand.symbolic import Path
from tests.search.problems import (
    Problem,
    Truth,
    faults,
    mlp_problem,
    random_problem,
    suffix_faults,
    truths,
)
from tests.search.test_exact_bounds import cancelling, exact_faults, far, few_paths, levelled
from tests.search.test_search import (
    NORM_QUERIES,
    diagonal_faults,
    interrupting,
    one_tiny_token,
    random_weights,
    spread_problem,
    ties_met_late_first,
)
from tests.search.test_totals import total_faults

PROBLEMS, MODELS = 240, 50


@cache
def problem(seed: int) -> tuple[Problem, dict[Path, Truth]]:
    found = random_problem(seed)
    return found, truths(found.frozen, found.readout)


@cache
def weights(seed: int) -> Model:
    return random_weights(seed)


# --- the laws -------------------------------------------------------------------------------------


def judged(asked: Problem, truth: dict[Path, Truth], **stop: Any) -> list[str]:
    """Name the faults of one ranking."""
    return caught(lambda: faults(asked, asked.rank(**stop), truth, whole=not stop))


def caught(law: Callable[[], Iterable[str]]) -> list[str]:
    """Name the faults that a law sees; what cannot even be judged is called a crash."""
    try:
        return list(law())
    except (Exception, KeyboardInterrupt) as error:
        return [f"crash: {error!r}"]


def whole() -> Iterator[str]:
    """Rank without a budget."""
    for seed in range(PROBLEMS):
        yield from judged(*problem(seed))


def stopped() -> Iterator[str]:
    """Rank with a budget of a few suffixes, or until Ctrl-C."""
    for seed in range(PROBLEMS):
        for stop in (
            {"budget": Budget(nodes=seed % 4 if seed % 2 else seed % 90)},
            {"report": interrupting(1 + seed % 3)},
            {"interrupt": 1 + seed % 5},
        ):
            yield from judged(*problem(seed), **stop)


def tiny() -> Iterator[str]:
    """Rank where what is read is small beside what is not."""
    for seed in range(100):
        asked = one_tiny_token(seed)
        yield from judged(asked, truths(asked.frozen, asked.readout), budget=Budget(nodes=seed % 3))


def batches() -> Iterator[str]:
    """Stop at all places where many suffixes are expanded together."""
    for seed in range(4):
        asked = spread_problem(seed)
        truth = truths(asked.frozen, asked.readout)
        for nodes in range(0, 120, 4):
            yield from judged(asked, truth, budget=Budget(nodes=nodes))


def ties() -> Iterator[str]:
    """Rank equals that are met in another order."""
    asked = ties_met_late_first()
    yield from judged(asked, truths(asked.frozen, asked.readout))


def sums() -> Iterator[str]:
    """Sum the paths of a query, or those that are left of it."""
    for asked, truth in map(problem, range(PROBLEMS)):
        if len(truth) < 200:
            yield from caught(partial(total_faults, asked, truth))


def norms() -> Iterator[str]:
    """Rank from weights alone."""
    for seed in range(MODELS):
        model = weights(seed)
        queries = NORM_QUERIES if model.config.n_layers else NORM_QUERIES[:2]
        found = laws.check_norm_ranking(
            model, top=1 + seed % 6, query=queries[seed % len(queries)], centred=bool(seed % 2)
        )
        yield from [] if found.holds else [found.detail.split("; fails at ")[-1]]


def pieces() -> Iterator[str]:
    """Rank where suffixes are of many pieces, each bound of a suffix included."""
    for seed in range(80):
        asked = mlp_problem(seed)
        truth = truths(asked.frozen, asked.readout)
        yield from judged(asked, truth)
        yield from judged(asked, truth, budget=Budget(nodes=seed % 20))
        yield from caught(partial(suffix_faults, asked, truth))


def suffixes() -> Iterator[str]:
    """Bound suffixes one by one."""
    for asked, truth in map(problem, range(PROBLEMS)):
        yield from caught(partial(suffix_faults, asked, truth))


def diagonal() -> Iterator[str]:
    """Work out energies that are exact."""
    for seed in range(80):
        yield from caught(partial(diagonal_faults, seed))


def exact() -> Iterator[str]:
    """Rank where numbers cancel, or under- and overflow, and hear the exact values."""
    for asked in far().values():
        yield from caught(partial(exact_faults, asked))
    for seed in range(60):
        for make in (cancelling, levelled):
            yield from caught(partial(exact_faults, make(seed)))
    for seed in range(280):
        asked = random_problem(seed, hard=True)
        if few_paths(asked):
            yield from caught(partial(exact_faults, asked))


LAWS: dict[str, Callable[[], Iterator[str]]] = {
    "whole": whole,
    "stopped": stopped,
    "tiny": tiny,
    "batches": batches,
    "ties": ties,
    "sums": sums,
    "norms": norms,
    "pieces": pieces,
    "suffixes": suffixes,
    "diagonal": diagonal,
    "exact": exact,
}


# --- the faults -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slip:
    """In a function of a module, by name, `old` becomes `new`; a law must see some `fault`."""

    name: str
    module: Any
    function: str
    old: str
    new: str
    law: str
    fault: str


def slipped(monkeypatch: pytest.MonkeyPatch, slip: Slip) -> None:
    """Put the broken function in the place of the sound one, wherever it has been imported."""
    owner, _, name = slip.function.rpartition(".")
    holder = getattr(slip.module, owner) if owner else slip.module
    sound = inspect.getattr_static(holder, name)
    plain = sound.fget if isinstance(sound, property) else sound
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(plain)))
    assert source.count(slip.old) == 1, f"{slip.function} has not once {slip.old!r}"
    space: dict[str, Any] = {}
    exec(source.replace(slip.old, slip.new), vars(slip.module), space)  # decorators included
    broken = space[name]
    if owner:
        monkeypatch.setattr(holder, name, broken)
        return
    for module in list(sys.modules.values()):
        if (
            module.__name__.startswith(("pathexpand", "tests.search"))
            and vars(module).get(name) is sound
        ):
            monkeypatch.setattr(module, name, broken)


BOUND, RANKING = ("stopped", "bound"), ("whole", "ranking")
EXACT, SUM = ("exact", "bound"), ("exact", "sum")
ENERGY, PIECES = ("diagonal", "energy"), ("pieces", "bound")
SLIPS = (
    # energies
    Slip(
        "ρ dropped",
        energy,
        "_weights",
        "(sizes * seen_there[:, None]).sum(axis=2)",
        "np.ones(sizes.shape[:2])",
        *BOUND,
    ),
    Slip("A² with summed positions", energy, "_weights", "if named", "if True", *BOUND),
    Slip("t multiplied twice", energy, "_weights", "sizes / typical", "sizes * typical", *BOUND),
    Slip("a source forgotten", energy, "source_seed", "stops(state)]", "stops(state)][1:]", *BOUND),
    Slip(
        "sources of the boundary before",
        energy,
        "_behind",
        "seed(index + 1, state)",
        "seed(index, state)",
        *BOUND,
    ),
    Slip(
        "what passes a stage forgotten",
        energy,
        "_behind",
        "_carried(carry, energy[state]),",
        "",
        *BOUND,
    ),
    Slip(
        "a norm of the stream skipped",
        energy,
        "_behind",
        "_carried(carry, energy[state])",
        "energy[state]",
        *BOUND,
    ),
    Slip(
        "a norm of the stream on one side only",
        energy,
        "_carried",
        "carry.push_rows(np.swapaxes(half, 1, 2))",
        "half",
        *BOUND,
    ),
    Slip("a way forgotten", energy, "_behind", "for way in taken", "for way in taken[1:]", *BOUND),
    Slip(
        "K carried forward through a pattern",
        energy,
        "_through_heads",
        "(weights @ flat)",
        "(np.swapaxes(weights, 1, 2) @ flat)",
        *BOUND,
    ),
    Slip(
        "only W_O half way",
        energy,
        "_squared",
        "np.swapaxes(roots, 2, 3) @ group.W_O",
        "roots[..., :1] * group.W_O",
        *BOUND,
    ),
    Slip(
        "a root on the wrong side",
        energy,
        "_squared",
        "np.swapaxes(roots, 2, 3) @ group.W_O",
        "roots @ group.W_O",
        *BOUND,
    ),
    Slip(
        "κ seen without the gate",
        energy,
        "_kernel",
        "(np.sqrt(seen.kernel), gates)",
        "(np.sqrt(seen.kernel),)",
        *BOUND,
    ),
    Slip(
        "κ carried without the gate",
        energy,
        "_through_neurons",
        "group.gates**2 * seen",
        "seen",
        *BOUND,
    ),
    Slip(
        "κ with the gate's size",
        energy,
        "_through_neurons",
        "group.gates**2",
        "abs(group.gates)",
        *BOUND,
    ),
    Slip(
        "κ of half the stream",
        energy,
        "_seen_by_neurons",
        "(matrix @ group.W_in)",
        "(0.5 * matrix @ group.W_in)",
        *BOUND,
    ),
    Slip(
        "an MLP without its gates in M",
        energy,
        "_through_mlp",
        "(group.W_in * gate)",
        "group.W_in",
        *ENERGY,
    ),
    Slip(
        "an MLP the wrong way round in M",
        energy,
        "_through_mlp",
        "through.T @ (seen.kernel[position] @ through)",
        "through @ (seen.kernel[position] @ through.T)",
        *BOUND,
    ),
    Slip(
        "underflow of sources forgotten",
        energy,
        "source_seed",
        "FLOOR * values",
        "0.0 * values",
        *BOUND,
    ),
    Slip(
        "underflow behind heads forgotten",
        energy,
        "_through_heads",
        "slack += FLOOR",
        "slack += 0.0",
        *EXACT,
    ),
    Slip(
        "underflow in front of neurons forgotten",
        energy,
        "_seen_by_neurons",
        "slack += FLOOR",
        "slack += 0.0",
        *EXACT,
    ),
    Slip(
        "underflow behind MLPs forgotten", energy, "_through_mlp", "FLOOR * reached", "0.0", *EXACT
    ),
    # bounds
    Slip(
        "heads: roots of sums in place of sums of roots",
        kernel,
        "HeadKernel._own",
        'np.einsum("hst,hst->hs", row, np.sqrt(forms))',
        'np.sqrt(np.einsum("hst,hst->hs", row**2, forms))',
        *BOUND,
    ),
    Slip(
        "neurons: roots of sums in place of sums of roots",
        kernel,
        "NeuronKernel.bound",
        "root @ row.T",
        "np.sqrt(root**2 @ row.T**2)",
        "suffixes",
        "bound",
    ),
    Slip(
        "MLPs: the largest position in place of their sum",
        kernel,
        "MlpKernel.bound",
        "np.add.at(",
        "np.maximum.at(",
        *BOUND,
    ),
    Slip(
        "pieces of a suffix not added",
        prompt_tree,
        "_added_up",
        "np.add.at(",
        "np.maximum.at(",
        *PIECES,
    ),
    Slip(
        "pieces of a suffix valued as if there were one",
        prompt_tree,
        "_added_up",
        "np.add.at(total, owner, np.moveaxis(pieces, -1, 0))",
        "total[owner] = np.moveaxis(pieces, -1, 0)",
        "pieces",
        "",
    ),
    Slip(
        "float32 without inflation",
        kernel,
        "HeadKernel._own",
        "gamma(2 * d_head + 8, UNIT32) * size",
        "0.0",
        *BOUND,
    ),
    Slip(
        "K halved in float32",
        kernel,
        "HeadKernel.of",
        "held = (np.swapaxes(kernel, 1, 2)",
        "held = (0.5 * np.swapaxes(kernel, 1, 2)",
        *BOUND,
    ),
    Slip(
        "the length of a vector forgotten",
        kernel,
        "HeadKernel._own",
        "length[:, :, 0], peak",
        "peak",
        *BOUND,
    ),
    Slip(
        "what K was divided by forgotten",
        kernel,
        "HeadKernel._own",
        "scale, row_peak",
        "row_peak",
        *BOUND,
    ),
    Slip(
        "K of another head",
        kernel,
        "HeadKernel._own",
        "kernel = self.kernels if",
        "kernel = self.kernels[::-1] if",
        *BOUND,
    ),
    Slip(
        "roots of other neurons",
        kernel,
        "NeuronKernel.bound",
        "self.roots[pick]",
        "self.roots[pick][::-1]",
        *BOUND,
    ),
    Slip(
        "an MLP's read at another position",
        kernel,
        "MlpKernel.bound",
        "@ self.kernel[position])",
        "@ self.kernel[0])",
        *BOUND,
    ),
    Slip(
        "an MLP's gate forgotten in a suffix",
        kernel,
        "MlpReader.read",
        " * self.group.gates[place]",
        "",
        *BOUND,
    ),
    Slip(
        "a row moved the wrong way",
        kernel,
        "HeadReader.read",
        "rows @ self.group.patterns",
        "rows @ np.swapaxes(self.group.patterns, 1, 2)",
        *BOUND,
    ),
    Slip(
        "errors of heads forgotten", kernel, "HeadKernel.bound", "read.spread[pick]", "0.0", *EXACT
    ),
    Slip(
        "errors of neurons' vectors forgotten",
        kernel,
        "NeuronReader.read",
        "reads + times(self.outputs[:, None], error)",
        "reads",
        *EXACT,
    ),
    Slip(
        "errors of MLPs' vectors forgotten",
        kernel,
        "MlpKernel.bound",
        "read.lost[keep]",
        "0.0",
        *EXACT,
    ),
    Slip(
        "no errors past norms of the stream",
        prompt_tree,
        "_past",
        "2 * steps * lengths(moved.vectors)",
        "0.0",
        *EXACT,
    ),
    Slip(
        "kernels of the stage before",
        prompt_tree,
        "PromptTree.bounds",
        "self.kernels[stage]",
        "self.kernels[max(stage - 1, 0)]",
        *BOUND,
    ),
    Slip(
        "a suffix not carried past norms",
        prompt_tree,
        "PromptTree._at",
        "if stage.carry is not None",
        "if False",
        *BOUND,
    ),
    # states of the query
    Slip(
        "kernels of the first state",
        prompt_tree,
        "PromptTree.bounds",
        "[way.after]",
        "[0]",
        *BOUND,
    ),
    Slip(
        "kernels of the state before a component",
        prompt_tree,
        "PromptTree.bounds",
        "[way.after]",
        "[way.before]",
        *BOUND,
    ),
    Slip(
        "M of the state behind a component",
        energy,
        "_behind",
        "if way.before",
        "if way.after",
        *BOUND,
    ),
    Slip(
        "a suffix in its parent's state",
        search,
        "TreeHunt._push",
        "way.after,",
        "way.before,",
        "whole",
        "crash",
    ),
    Slip(
        "components of the wrong way",
        search,
        "TreeHunt._push",
        "picks = np.asarray(way.which)[picks]",
        "pass",
        "whole",
        "crash",
    ),
    Slip(
        "sources of the first state",
        energy,
        "source_seed",
        "query.stops(state)",
        "query.stops(0)",
        *BOUND,
    ),
    # the search
    Slip(
        "the root's bound forgotten", search, "root_bound", "float(peak *", "float(0.0 *", *RANKING
    ),
    Slip(
        "the root's bound too small",
        search,
        "root_bound",
        "float(peak *",
        "float(0.5 * peak *",
        *BOUND,
    ),
    Slip(
        "children capped by another suffix",
        search,
        "TreeHunt._continue",
        "caps[some])",
        "caps[some[::-1]])",
        "batches",
        "bound",
    ),
    Slip(
        "children capped by the smallest",
        search,
        "TreeHunt._continue",
        "caps[some])",
        "caps.min())",
        "batches",
        "bound",
    ),
    Slip(
        "children capped by the cut",
        search,
        "TreeHunt._continue",
        "caps[some])",
        "max(self.best.cut, 1e-9))",
        *BOUND,
    ),
    Slip(
        "stopped one batch early",
        search,
        "TreeHunt.left",
        "-self.heap[0][0] if self.heap",
        "-self.heap[1][0] if len(self.heap) > 1",
        *RANKING,
    ),
    Slip("every other entry skipped", search, "TreeHunt.pop", "entry + 1", "entry + 2", *RANKING),
    Slip(
        "entries in any order",
        search,
        "TreeHunt._push",
        "np.argsort(-kept",
        "np.argsort(kept",
        *BOUND,
    ),
    Slip(
        "entries of other suffixes",
        search,
        "TreeHunt._push",
        "which[order]",
        "which[order[::-1]]",
        *RANKING,
    ),
    Slip(
        "the last of a batch lost",
        search,
        "TreeHunt.pop",
        "key=lambda node: -node.boundary)",
        "key=lambda node: -node.boundary)[: max(len(batch) - 1, 1)]",
        *RANKING,
    ),
    Slip(
        "the first stage never reached",
        search,
        "TreeHunt.expand",
        "reversed(range(batch[0].boundary))",
        "reversed(range(1, batch[0].boundary))",
        *RANKING,
    ),
    Slip(
        "a boundary too late for a source",
        search,
        "TreeHunt.expand",
        "node.boundary >= source.boundary",
        "node.boundary > source.boundary",
        *RANKING,
    ),
    Slip(
        "certified though stopped",
        search,
        "Hunt.settle",
        "certified = left <= self.best.cut",
        "certified = True",
        "stopped",
        "ranking",
    ),
    Slip(
        "what is left forgotten",
        search,
        "Hunt.settle",
        "bound=max(left, self",
        "bound=max(self",
        *BOUND,
    ),
    Slip(
        "what was dropped forgotten",
        search,
        "Hunt.settle",
        "bound=max(left, self.dropped,",
        "bound=max(left, 0.0,",
        "whole",
        "bound",
    ),
    Slip(
        "the first unlisted forgotten",
        search,
        "Hunt.settle",
        ", *unlisted",
        "",
        "whole",
        "bound",
    ),
    Slip(
        "longer paths of what is left forgotten",
        search,
        "Hunt.settle",
        "max(self.longer_bound, left, self.dropped)",
        "self.longer_bound",
        "stopped",
        "longer bound",
    ),
    Slip(
        "longer paths forgotten",
        search,
        "TreeHunt._continue",
        "float(bounds[:, long[some]].max(initial=0.0))",
        "0.0",
        "whole",
        "longer bound",
    ),
    Slip(
        "an order too few",
        search,
        "TreeHunt._continue",
        ">= self.max_order",
        ">= self.max_order - 1",
        *RANKING,
    ),
    Slip(
        "an order too many",
        search,
        "TreeHunt._continue",
        ">= self.max_order",
        "> self.max_order",
        "whole",
        "rows",
    ),
    Slip(
        "zeros left out",
        search,
        "Hunt._filled",
        "islice(zeros, self.best.top - len(paths))",
        "islice(zeros, 0)",
        *RANKING,
    ),
    Slip(
        "zeros as they come",
        search,
        "Hunt.settle",
        "self.best.cut == 0",
        "len(paths) < self.best.top",
        *RANKING,
    ),
    Slip(
        "Ctrl-C in the middle of a batch",
        search,
        "search",
        "hunt.interrupted = True  #",
        "left = hunt.left  #",
        "stopped",
        "bound",
    ),
    Slip(
        "ties at the last place lost",
        best,
        "Best.offer",
        "max(self._size(self.top), self._floor) * _NEAR",
        "max(self._size(self.top), self._floor) / _NEAR",
        "ties",
        "ranking",
    ),
    Slip(
        "one kept too few",
        best,
        "Best.offer",
        "self._kept[: self.top + 1]",
        "self._kept[: self.top]",
        "whole",
        "bound",
    ),
    # the energy that is left
    Slip(
        "what stops at listed suffixes forgotten",
        search,
        "_stopping",
        "if left:",
        "if False:",
        "whole",
        "energy",
    ),
    Slip(
        "sources born late forgotten",
        search,
        "_stopping",
        "node.boundary >= source.boundary",
        "node.boundary > source.boundary",
        "whole",
        "energy",
    ),
    Slip(
        "what leaves listed suffixes forgotten",
        search,
        "_leaving",
        "bounds[rows[child], column] = 0.0",
        "bounds[:, column] = 0.0",
        "whole",
        "energy",
    ),
    Slip(
        "b_U forgotten",
        search,
        "_rest",
        "source.boundary is None",
        "source.boundary == -1",
        "whole",
        "energy",
    ),
    # sums within a query
    Slip(
        "totals end in the first state",
        total,
        "totals",
        "[ending].sum(axis=0)",
        "[[asked.start]].sum(axis=0)",
        "sums",
        "sum",
    ),
    Slip("totals step nowhere", total, "_longer", "out[way.after", "out[way.before", "sums", "sum"),
    Slip("totals past no norm", total, "_longer", "stage.past(reads)", "reads", "sums", "sum"),
    Slip(
        "totals with b_U in every query",
        total,
        "totals",
        "if frozen.constant in asked.stops(asked.start):",
        "if True:",
        "sums",
        "sum",
    ),
    Slip(
        "an order too few in totals",
        total,
        "totals",
        "depth - index)",
        "depth - index - 1)",
        "sums",
        "order",
    ),
    Slip(
        "component totals read before their stage",
        total,
        "component_totals",
        "reads[index + 1]",
        "reads[index]",
        "sums",
        "component",
    ),
    Slip(
        "component totals of a stream that passes no norm",
        total,
        "frozen_streams",
        "stage.carry.push(before)",
        "before",
        "sums",
        "component",
    ),
    Slip(
        "pairs through the stages between forgotten",
        total,
        "pair_totals",
        "read = frozen.stages[early].pull(read)",
        "pass",
        "sums",
        "pair",
    ),
    Slip(
        "a remainder that steps nowhere",
        remainder,
        "_Rest.carry",
        "out[way.after] += way.group.pull(",
        "out[way.before] += way.group.pull(",
        "sums",
        "remainder",
    ),
    Slip(
        "a remainder past no norm",
        remainder,
        "_Rest.carry",
        "stage.past(self.free)",
        "self.free",
        "sums",
        "remainder",
    ),
    Slip(
        "a remainder that counts nowhere",
        remainder,
        "_Rest.carry",
        "counts[way.after] += self",
        "counts[way.before] += self",
        "sums",
        "remainder count",
    ),
    Slip(
        "a remainder that stops anywhere",
        remainder,
        "_Rest.stop",
        "if source.label in self.query.stops(q)]",
        "]",
        "sums",
        "remainder count",
    ),
    Slip(
        "a remainder that takes up what is listed",
        remainder,
        "_Leaving.through",
        "column] = False",
        "column] = True",
        "sums",
        "remainder count",
    ),
    Slip(
        "a remainder of one piece a suffix",
        remainder,
        "_Leaving.__init__",
        "[len(suffix.rows) for suffix in near]",
        "[1 for suffix in near]",
        "sums",
        "crash",
    ),
    Slip(
        "rounding past norms forgotten",
        remainder,
        "_Rest.carry",
        "stage.carry.pull_sizes(passing)",
        "abs(out)",
        *SUM,
    ),
    Slip(
        "rounding of suffixes past norms forgotten",
        remainder,
        "_Rest.carry",
        "float((listed * size).sum())",
        "0.0",
        *SUM,
    ),
    # norms
    Slip(
        "norms: sources born late",
        norm_tree,
        "NormTree._seed",
        "source.boundary == boundary",
        "source.boundary == boundary + 1",
        "norms",
        "energy",
    ),
    Slip(
        "norms: energy halved",
        norm_tree,
        "NormTree.bounds",
        "energy = float(((kernel @ part) * part).sum())",
        "energy = 0.3 * float(((kernel @ part) * part).sum())",
        "norms",
        "",
    ),
    Slip(
        "norms: K of the first state",
        norm_tree,
        "NormTree._kernel",
        "[stage][state]",
        "[stage][0]",
        "norms",
        "energy",
    ),
    Slip(
        "norms: b_U left out of the energy",
        norm_tree,
        "NormTree.energy",
        "self.size(Path(label)) if free",
        "0.0 if free",
        "norms",
        "energy",
    ),
    Slip(
        "norms: b_U not centred",
        norm_tree,
        "NormTree._last",
        "if self.centred else factor",
        "if False else factor",
        "norms",
        "norm of b_U",
    ),
    Slip(
        "norms: W_U not centred",
        norm_tree,
        "NormTree.__init__",
        "unembed(weights, centred=centred)",
        "unembed(weights, centred=False)",
        "norms",
        "norm of",
    ),
    Slip(
        "norms: a row of a triangle lost",
        norm_tree,
        "triangle",
        'mode="r")',
        'mode="r")[:1]',
        "norms",
        "",
    ),
)


@pytest.mark.parametrize("law", LAWS)
def test_the_sound_search_breaks_no_law(law: str) -> None:
    with np.errstate(all="ignore"):  # what warns is seen where these laws are tested themselves
        assert not list(LAWS[law]())


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.name)
def test_slip_is_caught(slip: Slip, monkeypatch: pytest.MonkeyPatch) -> None:
    slipped(monkeypatch, slip)
    with np.errstate(all="ignore"):
        assert any(fault.startswith(slip.fault) for fault in LAWS[slip.law]())
