"""Every law, run on one model and one prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pathexpand.api import Run
from pathexpand.laws.attention import check_patterns
from pathexpand.laws.closure import check_closure, check_remainder, check_table_closure
from pathexpand.laws.count import check_enumeration_count, check_term_count
from pathexpand.laws.exact import check_exact_cut
from pathexpand.laws.folding import check_norm_folding
from pathexpand.laws.gauge import check_head_permutation, check_neuron_gauge, check_value_gauge
from pathexpand.laws.lowrank import check_norm_ranking, check_path_logits, check_path_matrices
from pathexpand.laws.notation import check_table_round_trip, check_text_round_trip
from pathexpand.laws.padding import check_batch, check_padding
from pathexpand.laws.pairs import check_scores
from pathexpand.laws.ranking import check_top_paths
from pathexpand.laws.result import LawResult
from pathexpand.laws.scores import check_score_gauge
from pathexpand.laws.stream import check_layer_sums
from pathexpand.laws.totals import check_totals
from pathexpand.progress import tracked, watched
from pathexpand.target import Target, TargetLike

_LONGEST = 48  # tokens of a prompt that the laws look at


@watched("checking laws")
def verify_run(
    run: Run, *, target: TargetLike | Target | None = None, position: int | None = None
) -> tuple[LawResult, ...]:
    """Run every law that can be run on this model and prompt, in a few seconds.

    `target` and `position` are as in `run.paths`. Laws that need single paths one by one cut a
    large model to some of its heads and neurons, and a long prompt to its end, and say so in
    `detail`. A law that says nothing about this model is among the results with `applies` false.
    Nothing of the model is changed.

    >>> from pathexpand import api
    >>> all(result.holds for result in verify_run(api.load("two-layer").run("to be or")))
    True
    """
    laws = list(_laws(run, target, position))
    return tuple(law() for law in tracked(laws, "laws", len(laws)))


def _laws(
    run: Run, target: TargetLike | Target | None, position: int | None
) -> Iterator[Callable[[], LawResult]]:
    place = run.position(position)
    what = run.target(target, position=place)
    short = _shortened(run, place)
    end = short.position() if short is not run else place
    model = run.model
    # 1, 1x: closure
    yield lambda: check_closure(short, what, position=end)
    yield lambda: check_table_closure(run, what, position=place, max_order=_valued_order(run))
    yield lambda: check_remainder(short, what, position=end)
    yield lambda: check_exact_cut(short)
    # 2: counts
    yield lambda: check_term_count(model)
    yield lambda: check_enumeration_count(short)
    # 3, 4: totals and ranking
    yield lambda: check_totals(short, what, position=end)
    yield lambda: check_top_paths(short, what, position=end)
    # 5: gauge
    yield lambda: check_value_gauge(short, what, position=end)
    yield lambda: check_score_gauge(run)
    yield lambda: check_head_permutation(short, what, position=end)
    yield lambda: check_neuron_gauge(short, what, position=end)
    yield lambda: check_norm_folding(short, what, position=end)
    # 6: low-rank algebra
    yield lambda: check_path_matrices(model)
    yield lambda: check_path_logits(short, position=end)
    yield lambda: check_norm_ranking(model)
    # 7: the stream
    yield lambda: check_layer_sums(short)
    yield lambda: check_patterns(run)
    yield lambda: check_scores(run, position=place)
    # 8: round trips
    yield lambda: check_text_round_trip(model)
    yield lambda: check_table_round_trip(short, what, position=end)
    # 9: padding and batches
    yield lambda: check_padding(short, what, position=end)
    yield lambda: check_batch(short, what, position=end)


def _shortened(run: Run, place: int) -> Run:
    """Run the end of a long prompt by itself, up to the position that is read."""
    real = run.tokens[: place + 1][run.dense.mask[0][: place + 1]]
    if len(run.tokens) <= _LONGEST:
        return run
    return run.model.run([int(token) for token in real[-_LONGEST:]])


def _valued_order(run: Run) -> int:
    """Give the highest order whose paths can be valued and ranked in about a second."""
    by_order = run.model.network.count_by_order()
    most = 2e9 / (run.model.config.d_model + len(run.tokens)) / 200
    order = 0
    while order + 1 < len(by_order) and sum(by_order[: order + 2]) <= most:
        order += 1
    return order
