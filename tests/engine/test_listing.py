"""Where going through all paths takes less work than the energies of a search, it is done."""

import numpy as np
import pytest

from pathexpand.engine.listing import is_shorter, list_all
from pathexpand.engine.prompt_tree import PromptTree
from pathexpand.engine.ranking import rank
from pathexpand.engine.search import Budget
from tests.api.models import small

PROMPT = [1, 5, 2, 2, 7, 0]


@pytest.fixture(params=["source", "frozen", "neurons"])
def case(request):
    model = small(3, mlp=request.param)
    run = model.run(PROMPT)
    return model, run.frozen, run.target(4).readout(run.unembed, 5)


@pytest.mark.parametrize("order", [None, 0, 1, 2])
def test_listing_ranks_as_the_search_does(case, order):
    model, frozen, readout = case
    query = model.query()
    listed, energy = list_all(PromptTree(frozen, readout, query), query, top=9, max_order=order)
    searched = rank(frozen, readout, query, top=9, max_order=order)
    assert listed.paths == tuple(row.path for row in searched.rows)
    assert listed.certified
    assert listed.bound <= searched.found.bound * (1 + 1e-9)
    assert (listed.longer_bound == np.inf) == (searched.found.longer_bound > 0)
    assert (energy is None) == (listed.longer_bound > 0)
    if energy is not None:
        assert energy <= searched.remainder_energy * (1 + 1e-9)


def test_listing_of_a_query(case):
    model, frozen, readout = case
    query = model.query("* > L1H*")
    listed, _ = list_all(PromptTree(frozen, readout, query), query, top=4)
    assert listed.paths == tuple(row.path for row in rank(frozen, readout, query, top=4).rows)
    assert listed.visited == query.count()


def test_a_listing_that_is_stopped_bounds_nothing(case):
    model, frozen, readout = case
    query = model.query()
    budget = Budget(nodes=0)
    listed, energy = list_all(PromptTree(frozen, readout, query), query, top=4, budget=budget)
    assert not listed.certified
    assert listed.bound == np.inf
    assert energy is None


def test_small_models_are_searched_and_large_ones_with_few_paths_listed():
    tiny = small().run(PROMPT)
    assert not is_shorter(tiny.frozen, tiny.model.query(), None)
    wide = small(sizes={"d_model": 300, "d_head": 100}).run(PROMPT)
    assert is_shorter(wide.frozen, wide.model.query(), 1)
    table = wide.paths(4, max_order=1, top=3)
    assert table.certified
    assert table.closes
    assert table.longer_bound is None
    assert "longer ones were not looked at" in " ".join(str(table).split())
    whole = wide.paths(4, top=3)
    assert whole.longer_bound == 0
    assert whole.remainder_energy is not None
