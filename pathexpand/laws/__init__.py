"""Laws that every frozen sum obeys, as checks to run on your own model.

`verify_run` runs all that apply to a model and a prompt; each `check_…` runs one and gives a
`LawResult` with the measured error and the bound derived for it, whose `require` raises. In a test
of your own model:

>>> from pathexpand import api
>>> from pathexpand.laws import verify_run
>>> for result in verify_run(api.load("one-layer").run("to be")):
...     _ = result.require()

`pathexpand.laws.strategies` (the extra `pathexpand[laws]`) draws models, prompts and targets with
hypothesis.
"""

from __future__ import annotations

from pathexpand.laws.attention import check_patterns
from pathexpand.laws.closure import check_closure, check_remainder, check_table_closure
from pathexpand.laws.count import check_enumeration_count, check_term_count, term_formula
from pathexpand.laws.design import Design, random_transformer
from pathexpand.laws.exact import check_exact_closure, check_exact_cut, check_polynomial_identity
from pathexpand.laws.folding import check_norm_folding
from pathexpand.laws.gauge import check_head_permutation, check_neuron_gauge, check_value_gauge
from pathexpand.laws.held import Held, HeldLayer
from pathexpand.laws.lowrank import check_norm_ranking, check_path_logits, check_path_matrices
from pathexpand.laws.notation import check_table_round_trip, check_text_round_trip
from pathexpand.laws.padding import check_batch, check_padding
from pathexpand.laws.pairs import check_scores
from pathexpand.laws.problems import (
    random_model,
    rational_held,
    rational_model,
    rational_patterns,
    rational_transformer,
)
from pathexpand.laws.ranking import check_top_paths
from pathexpand.laws.result import LawError, LawResult
from pathexpand.laws.scores import check_score_gauge
from pathexpand.laws.stream import check_layer_sums
from pathexpand.laws.totals import check_totals
from pathexpand.laws.verify import verify_run

__all__ = [
    "Design",
    "Held",
    "HeldLayer",
    "LawError",
    "LawResult",
    "check_batch",
    "check_closure",
    "check_enumeration_count",
    "check_exact_closure",
    "check_exact_cut",
    "check_head_permutation",
    "check_layer_sums",
    "check_neuron_gauge",
    "check_norm_folding",
    "check_norm_ranking",
    "check_padding",
    "check_path_logits",
    "check_path_matrices",
    "check_patterns",
    "check_polynomial_identity",
    "check_remainder",
    "check_score_gauge",
    "check_scores",
    "check_table_closure",
    "check_table_round_trip",
    "check_term_count",
    "check_text_round_trip",
    "check_top_paths",
    "check_totals",
    "check_value_gauge",
    "random_model",
    "random_transformer",
    "rational_held",
    "rational_model",
    "rational_patterns",
    "rational_transformer",
    "term_formula",
    "verify_run",
]
