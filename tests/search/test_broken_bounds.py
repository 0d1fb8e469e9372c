"""Broken searches, one fault each in the text of one function, and the law that must see it.

A fault is an old and a new piece of the function's source, so that one that no longer fits the
source is found out, and every fault is as small as a slip of the pen.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from pathexpand import laws
from pathexpand.api import Model
from pathexpand.engine import best, energy, norm_tree, prompt_tree, remainder, search, total
from pathexpand.engine.search import Budget
from pathexpand.symbolic import Path
from tests.search.problems import Problem, Truth, faults, random_problem, truths
from tests.search.test_search import (
    NORM_QUERIES,
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
    """Name the faults of one ranking; one that cannot even be made is called a crash."""
    try:
        return list(faults(asked, asked.rank(**stop), truth, whole=not stop))
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
            yield from total_faults(asked, truth)


def norms() -> Iterator[str]:
    """Rank from weights alone."""
    for seed in range(MODELS):
        model = weights(seed)
        queries = NORM_QUERIES if model.config.n_layers else NORM_QUERIES[:2]
        found = laws.check_norm_ranking(
            model, top=1 + seed % 6, query=queries[seed % len(queries)], centred=bool(seed % 2)
        )
        yield from [] if found.holds else [found.detail.split("; fails at ")[-1]]


LAWS: dict[str, Callable[[], Iterator[str]]] = {
    "whole": whole,
    "stopped": stopped,
    "tiny": tiny,
    "batches": batches,
    "ties": ties,
    "sums": sums,
    "norms": norms,
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
SLIPS = (
    # energies
    Slip("ρ dropped", energy, "_weights", "size * size.sum(axis=2, keepdims=True)", "size", *BOUND),
    Slip("A² with summed positions", energy, "_weights", "if named", "if True", *BOUND),
    Slip("‖a‖₁ dropped", energy, "Energies.bound", "row.sum(axis=2) * ", "", *BOUND),
    Slip("a² with summed positions", energy, "Energies.bound", "if self.named", "if True", *BOUND),
    Slip(
        "a source forgotten",
        energy,
        "_from_sources",
        "frozen.sources:",
        "frozen.sources[1:]:",
        *BOUND,
    ),
    Slip(
        "the newest sources forgotten",
        energy,
        "_from_sources",
        "boundary <= index",
        "boundary < index",
        *BOUND,
    ),
    Slip(
        "an older source forgotten",
        energy,
        "_from_sources",
        "boundary <= index",
        "boundary == index",
        *BOUND,
    ),
    Slip(
        "the layer right before forgotten",
        energy,
        "grow",
        "layers[:index]",
        "layers[: max(index - 1, 0)]",
        *BOUND,
    ),
    Slip(
        "the first layer forgotten",
        energy,
        "grow",
        "in enumerate(layers[:index]):",
        "in list(enumerate(layers[:index]))[1:]:",
        *BOUND,
    ),
    Slip(
        "a head forgotten",
        energy,
        "_bring",
        "for n, state in enumerate(after) if state is not None]",
        "for n, state in enumerate(after) if state is not None][:1]",
        *BOUND,
    ),
    Slip(
        "K of the layer before",
        energy,
        "Energies.bound",
        "self.kernels[layer]",
        "self.kernels[max(layer - 1, 0)]",
        *BOUND,
    ),
    Slip(
        "K of another head",
        energy,
        "Energies.bound",
        "kernel = kernel if len",
        "kernel = kernel[::-1] if len",
        *BOUND,
    ),
    Slip(
        "K transposed in its virtual weights",
        energy,
        "_bring",
        "virtual = w_o @ w_v",
        "virtual = np.swapaxes(w_o @ w_v, 1, 2)",
        *BOUND,
    ),
    Slip(
        "K carried forward through a pattern",
        energy,
        "_mix",
        "mixed = weights[:, None] @",
        "mixed = np.swapaxes(weights, 1, 2)[:, None] @",
        *BOUND,
    ),
    Slip(
        "K halved in float32", energy, "_held", "return (kernel /", "return (0.5 * kernel /", *BOUND
    ),
    Slip(
        "float32 without inflation",
        energy,
        "Energies.bound",
        "gamma(2 * d_head + 8, UNIT32) * size",
        "0.0",
        *BOUND,
    ),
    Slip("underflow forgotten", energy, "_from_sources", "FLOOR * alive", "0.0 * alive", *BOUND),
    Slip(
        "the length of a vector forgotten",
        energy,
        "Energies.bound",
        "(length * peak)",
        "peak",
        *BOUND,
    ),
    # states of the query
    Slip(
        "K of the first state",
        energy,
        "Energies.bound",
        "self.kernels[layer][state]",
        "self.kernels[layer][0]",
        *BOUND,
    ),
    Slip(
        "K of the state before the head", search, "_groups", "yield state,", "yield before,", *BOUND
    ),
    Slip(
        "earlier heads read in no state", energy, "grow", "query.step(state, head)", "state", *BOUND
    ),
    Slip(
        "a suffix in its parent's state",
        search,
        "_Hunt.pop",
        "(head, *node.word), state, head",
        "(head, *node.word), node.state, head",
        "whole",
        "crash",
    ),
    Slip(
        "sources of the first state",
        energy,
        "energies",
        "query.stops(state)",
        "query.stops(0)",
        *BOUND,
    ),
    # the search
    Slip(
        "the root's bound forgotten",
        search,
        "root_bound",
        "math.hypot(*_rest(tree, query, ()))",
        "0.0",
        *RANKING,
    ),
    Slip(
        "the root's bound too small",
        search,
        "root_bound",
        "math.hypot(*_rest(tree, query, ()))",
        "math.hypot(*_rest(tree, query, ())) / 2",
        *BOUND,
    ),
    Slip(
        "children capped by another suffix",
        search,
        "_Hunt._continue",
        "[nodes[n].bound for n in some]",
        "[nodes[n].bound for n in reversed(some)]",
        "batches",
        "bound",
    ),
    Slip(
        "children capped by the smallest",
        search,
        "_Hunt._continue",
        "[nodes[n].bound for n in some]",
        "min(node.bound for node in nodes)",
        "batches",
        "bound",
    ),
    Slip(
        "children capped by the cut",
        search,
        "_Hunt._continue",
        "[nodes[n].bound for n in some]",
        "max(self.best.cut, 1e-9)",
        *BOUND,
    ),
    Slip(
        "stopped one batch early",
        search,
        "_Hunt.left",
        "-self.heap[0][0] if self.heap",
        "-self.heap[1][0] if len(self.heap) > 1",
        *RANKING,
    ),
    Slip(
        "the last of a batch lost",
        search,
        "_Hunt.pop",
        "key=lambda node: -node.boundary)",
        "key=lambda node: -node.boundary)[: max(len(batch) - 1, 1)]",
        *RANKING,
    ),
    Slip(
        "the first layer never reached",
        search,
        "_Hunt.expand",
        "reversed(range(batch[0].boundary))",
        "reversed(range(1, batch[0].boundary))",
        *RANKING,
    ),
    Slip(
        "a boundary too late for a source",
        search,
        "_Hunt.expand",
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
        "_Hunt._continue",
        "float(bounds[:, long].max(initial=0.0))",
        "0.0",
        "whole",
        "longer bound",
    ),
    Slip(
        "an order too few",
        search,
        "_Hunt._continue",
        ">= self.max_order",
        ">= self.max_order - 1",
        *RANKING,
    ),
    Slip(
        "an order too many",
        search,
        "_Hunt._continue",
        ">= self.max_order",
        "> self.max_order",
        "whole",
        "rows",
    ),
    Slip(
        "zeros left out",
        search,
        "Hunt._filled",
        "islice(zeros, self.top - len(paths))",
        "islice(zeros, 0)",
        *RANKING,
    ),
    Slip(
        "zeros as they come",
        search,
        "Hunt.settle",
        "self.best.cut == 0",
        "len(paths) < self.top",
        *RANKING,
    ),
    Slip(
        "Ctrl-C in the middle of a batch",
        search,
        "search",
        "pass  #",
        "left = hunt.left  #",
        "stopped",
        "bound",
    ),
    Slip(
        "ties at the last place lost",
        best,
        "Best.offer",
        "self._size(self._top) * _NEAR",
        "self._size(self._top) / _NEAR",
        "ties",
        "ranking",
    ),
    Slip(
        "one kept too few",
        best,
        "Best.offer",
        "self._kept[: self._top + 1]",
        "self._kept[: self._top]",
        "whole",
        "bound",
    ),
    Slip(
        "a row moved the wrong way",
        prompt_tree,
        "PromptTree.bounds",
        "rows @ at.patterns",
        "rows @ np.swapaxes(at.patterns, 1, 2)",
        *BOUND,
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
        "not in words",
        "in words",
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
    Slip(
        "totals step nowhere", total, "_longer", "query.step(state, head)", "state", "sums", "sum"
    ),
    Slip(
        "totals with b_U in every query",
        total,
        "totals",
        'if "b_U" in asked.stops(asked.start):',
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
        "head totals read after their layer",
        total,
        "head_totals",
        "reads[index + 1]",
        "reads[index]",
        "sums",
        "head",
    ),
    Slip(
        "pairs through the layers between forgotten",
        total,
        "pair_totals",
        "read = read + pullback(frozen.layers[early], read)",
        "pass",
        "sums",
        "pair",
    ),
    Slip(
        "a remainder that steps nowhere",
        remainder,
        "_Rest.carry",
        "self.query.step(q, head)",
        "q",
        "sums",
        "remainder",
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
        "_Rest.carry",
        "head not in self.tree.children.get(word, ())",
        "True",
        "sums",
        "remainder count",
    ),
    # norms
    Slip(
        "norms: sources born late",
        norm_tree,
        "NormTree._kernels",
        "born > index",
        "born >= index",
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
        "[layer][state]",
        "[layer][0]",
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
    assert not list(LAWS[law]())


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.name)
def test_slip_is_caught(slip: Slip, monkeypatch: pytest.MonkeyPatch) -> None:
    slipped(monkeypatch, slip)
    with np.errstate(all="ignore"):
        assert any(fault.startswith(slip.fault) for fault in LAWS[slip.law]())
