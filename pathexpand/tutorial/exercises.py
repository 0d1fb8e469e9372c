"""The exercises' right answers, each worked out from what its exercise is about.

By other routes than in the notebooks: where a learner multiplies matrices, the engine is asked
here, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from pathexpand.api import Model, Run
from pathexpand.circuits.circuit import read_token
from pathexpand.features import Graph, HeadChange, linear_effect, rerun
from pathexpand.table import PathTable


@dataclass(frozen=True, slots=True)
class Key:
    """The right answer, and wrong ones that are likely, each with what is wrong in it."""

    right: Any
    slips: tuple[tuple[Any, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Exercise:
    """An exercise: the kind of thing it is about, and how its answer is worked out from that."""

    kind: str
    key: Callable[[Any], Key]


def _token(model: Model, text: str) -> int:
    return read_token(model.checkpoint, text, model.config.d_vocab)


# --- 1: zero layers --------------------------------------------------------------------------


def _logit_by_hand(model: Model) -> Key:
    run = model.run(" unt")
    logits = run.logits()
    return Key(
        run.value("embed", "il"),
        ((logits[_token(model, "il")], "Take the mean over the vocabulary off."),),
    )


def _context_of_zero_layers(model: Model) -> Key:
    one, other = model.run("I will wait unt").logits(), model.run("She did not move unt").logits()
    return Key(float(abs(one - other).max()))


def _paths_of_twelve_layers(_: None) -> Key:
    one_head = "A path may go through heads of several layers, one of each."
    passing = "A path may also pass a layer by without going through any of its heads."
    return Key((1 + 12) ** 12, ((12**12, passing), (1 + 12 * 12, one_head), (12 * 12, one_head)))


# --- 2: one layer ----------------------------------------------------------------------------


def _path_by_hand(run: Run) -> Key:
    path, target = "embed > L0H2", " except"
    by_token = run.value_by_token(path, target)
    logits = run.path_logits(path)
    return Key(
        run.value(path, target),
        (
            (logits[_token(run.model, target)], "Take the mean over the vocabulary off."),
            (by_token.max(), "That is what one token brings: sum over all of them."),
        ),
    )


def _share_of_one_token(run: Run) -> Key:
    by_token = run.value_by_token("embed > L0H2", " except")
    weights = run.patterns[0][2, run.position()]
    return Key(
        by_token.max() / by_token.sum(),
        (
            (weights.max(), "That is how far the head looks there, not what comes of it."),
            (by_token.max(), "That is the token's part: divide it by the value of the path."),
        ),
    )


def _unwanted_skip_trigram(model: Model) -> Key:
    trigrams = model.circuits.skip_trigrams("L0H0")
    looks, says = trigrams.attention("s"), trigrams.logits("s")
    place, output = _token(model, " rem"), _token(model, "red")
    return Key(
        looks[place] * says[output],
        (
            (says[output], "That is at full attention: multiply it with how far the head looks."),
            (
                looks[_token(model, " sh")] * says[output],
                'That is the wanted one, at " sh": the attention must be that of " rem".',
            ),
        ),
    )


def _least_copying(model: Model) -> Key:
    heads = [f"L0H{index}" for index in range(model.config.n_heads)]
    scores = {head: model.circuits.ov(head).copying_score() or 0.0 for head in heads}
    return Key(min(heads, key=lambda head: scores[head]))


# --- 3: two layers ---------------------------------------------------------------------------


def _all_that_end_with_a_head(run: Run) -> Key:
    rows = run.paths("um", top=run.count()).rows
    ending = [row.value for row in rows if row.path.endswith(" > L1H0")]
    alone = run.value("embed > L1H0", "um")
    return Key(sum(ending), ((alone, "That is one of these paths: others reach L1H0, too."),))


def _paths_through_a_head(model: Model) -> Key:
    heads = model.config.n_heads
    direct = "It may also be the only head of a path."
    return Key(1 + heads, ((heads, direct),))


def _composed_on_the_key_side(run: Run) -> Key:
    table = run.scores("L1H0", query=20, key=6, top=run.count() ** 2)
    parts = dict.fromkeys(("none", "Q", "K", "both"), 0.0)
    for row in table.rows:
        parts[row.composition] += row.value
    both = "Leave out the pairs that are composed on both sides."
    return Key(
        parts["K"] / table.dense,
        (
            ((parts["K"] + parts["both"]) / table.dense, both),
            (table.rows[0].value / table.dense, "That is the largest pair alone."),
            (parts["K"], "Divide it by the score."),
        ),
    )


def _where_a_virtual_head_looks(run: Run) -> Key:
    split = abs(run.patterns[1][0, 20, :, None] * run.patterns[0][3]).sum(axis=0)
    later = int(run.patterns[1][0, 20].argmax())
    why = "That is where L1H0 looks: L0H3 has looked further back from there."
    return Key(int(split.argmax()), ((later, why),))


# --- 4: what is exact ------------------------------------------------------------------------


def _head_taken_out(run: Run) -> Key:
    graph = run.graph(targets=["um"])
    change = HeadChange("L0H3", 0)
    frozen = linear_effect(graph, change).of("'um'@20")
    through = run.head_totals(target="um")["L0H3"]
    why = "That is with the patterns of layer 1 as they were: work them out again."
    return Key(rerun(graph, change).change[0], ((frozen, why), (-through, why)))


def _largest_unlisted(table: PathTable) -> Key:
    return Key(
        table.bound,
        (
            (table.remainder, "That is the sum of the unlisted paths, which may cancel."),
            (abs(table.rows[-1].value), "That is the last one listed: the bound is below it."),
        ),
    )


def _how_many_may_be_large(table: PathTable) -> Key:
    squares = table.remainder_energy or 0.0
    return Key(
        min(int(squares / 0.15**2), table.remainder_count),
        (
            (int(squares / 0.15), "Each of them adds more than the square of 0.15, not 0.15."),
            (table.remainder_count, "So many there are; their squares do not have room for it."),
        ),
    )


# --- 5: MLPs and rotary positions ------------------------------------------------------------


def _paths_through_neurons(model: Model) -> Key:
    c = model.config
    both = "Attention and MLP stand one behind the other: a path may pass both in one layer."
    return Key(
        model.with_mlp("neurons").count(),
        (((1 + c.n_heads + (c.d_mlp or 0)) ** c.n_layers, both),),
    )


def _directly_from_mlps(run: Run) -> Key:
    asked = run.model.query("L*M")
    totals = run.total(target=None).by_source()
    reach = sum(float(value) for name, value in totals.items() if name.endswith("M"))
    why = "That counts what heads read of the MLPs, too."
    return Key(float(run.total(asked).sum()), ((reach, why),))


def _best_offset(model: Model) -> Key:
    scores = [model.circuits.qk("L1H0", offset=n).entry(3, 5) for n in range(9)]
    return Key(int(np.argmax(scores)))


# --- 6: certified search ---------------------------------------------------------------------


def _paths_of_order_three(model: Model) -> Key:
    layers, heads = model.config.n_layers, model.config.n_heads
    ordered = layers * (layers - 1) * (layers - 2) * heads**3
    why = "The layers of a path rise, so three of them can be put in one order only."
    return Key(
        comb(layers, 3) * heads**3,
        ((ordered, why), (heads**3, "Choose the three layers, too.")),
    )


def _certain_rows(table: PathTable) -> Key:
    return Key(
        sum(row.certain for row in table.rows),
        ((len(table.rows), "Some rows are marked with a question mark."),),
    )


def _total_through_last_head(run: Run) -> Key:
    heads = run.head_totals()
    last = f"L{run.model.config.n_layers - 1}H0"
    return Key(heads[last], ((run.value(f"embed > {last}"), "That is one path of them."),))


# --- 7: features -----------------------------------------------------------------------------


def _row_of_a_logit(graph: Graph) -> Key:
    number = graph.find("'um'@20")
    features = [n for n, node in enumerate(graph.nodes) if node.kind == "feature"]
    some = float(graph.weights[number, features].sum())
    return Key(graph.values[number], ((some, "Tokens, errors and constants belong to it, too."),))


def _share_of_a_head(graph: Graph) -> Key:
    edge = graph.weights[graph.find("'um'@20"), graph.find("L1F44@6")]
    carried = {row.label: row.value for row in graph.paths("L1F44@6", "'um'@20").paths}
    through = carried["L1H0"]
    return Key(through / edge, ((through, "Divide it by the weight of the edge."),))


def _features_switched_off(graph: Graph) -> Key:
    found = rerun(graph, HeadChange("L0H3", 0))
    return Key(
        found.switched_off,
        ((found.switched_on, "That is how many go on."), (found.on, "That is how many were on.")),
    )


# --- 8: the questions ------------------------------------------------------------------------


def _two_heads_together(model: Model) -> Key:
    pair = [model.circuits.ov(head).matrix for head in ("L1H1", "L1H2")]
    logits = np.asarray(pair[0].left @ pair[0].right + pair[1].left @ pair[1].right)
    ranks = np.argmax(logits, axis=1) == np.arange(len(logits))
    alone = [model.circuits.ov(head).self_in_top(1) for head in ("L1H1", "L1H2")]
    return Key(
        float(ranks.mean()),
        ((sum(alone), "Add the circuits, not the shares."), (max(alone), "That is one head's.")),
    )


def _strongest_query_composition(model: Model) -> Key:
    pair = model.circuits.composition("Q", samples=0).ranked(1)[0]
    keys = model.circuits.composition("K", samples=0).ranked(1)[0]
    turned = f"{pair.later} > {pair.earlier}"
    return Key(
        f"{pair.earlier} > {pair.later}",
        (
            (f"{keys.earlier} > {keys.later}", "That is the strongest K-composition."),
            (turned, "The earlier head stands first."),
        ),
    )


EXERCISES = {
    "1.1": Exercise("Model", _logit_by_hand),
    "1.2": Exercise("Model", _context_of_zero_layers),
    "1.3": Exercise("nothing", _paths_of_twelve_layers),
    "2.1": Exercise("Run", _path_by_hand),
    "2.2": Exercise("Run", _share_of_one_token),
    "2.3": Exercise("Model", _unwanted_skip_trigram),
    "2.4": Exercise("Model", _least_copying),
    "3.1": Exercise("Run", _all_that_end_with_a_head),
    "3.2": Exercise("Model", _paths_through_a_head),
    "3.3": Exercise("Run", _composed_on_the_key_side),
    "3.4": Exercise("Run", _where_a_virtual_head_looks),
    "4.1": Exercise("Run", _head_taken_out),
    "4.2": Exercise("PathTable", _largest_unlisted),
    "4.3": Exercise("PathTable", _how_many_may_be_large),
    "5.1": Exercise("Model", _paths_through_neurons),
    "5.2": Exercise("Run", _directly_from_mlps),
    "5.3": Exercise("Model", _best_offset),
    "6.1": Exercise("Model", _paths_of_order_three),
    "6.2": Exercise("PathTable", _certain_rows),
    "6.3": Exercise("Run", _total_through_last_head),
    "7.1": Exercise("Graph", _row_of_a_logit),
    "7.2": Exercise("Graph", _share_of_a_head),
    "7.3": Exercise("Graph", _features_switched_off),
    "8.1": Exercise("Model", _two_heads_together),
    "8.2": Exercise("Model", _strongest_query_composition),
}
