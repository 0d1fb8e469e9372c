"""Suffixes behind a whole MLP have any number of pieces, also none."""

import numpy as np

from pathexpand.engine.energy import energies
from pathexpand.engine.kernel import Moved
from pathexpand.engine.prompt_tree import Carried, PromptTree
from pathexpand.engine.search import Node
from tests.api.models import small


def nodes(tree: PromptTree, boundary: int) -> list[Node]:
    """Give a suffix without pieces, and one with two: as many pieces as suffixes."""
    rng = np.random.default_rng(0)
    pieces = {
        count: Moved(rng.normal(size=(count, 4)), rng.normal(size=(count, 7)), np.zeros((count, 2)))
        for count in (0, 2)
    }
    return [Node((), 0, boundary, np.inf, Carried(boundary, each)) for each in pieces.values()]


def test_pieces_are_added_up_for_the_suffix_that_has_them() -> None:
    model = small(mlp="frozen")
    run = model.run([1, 5, 2, 7])
    query, readout = model.query(), run.target(4).readout(run.unembed, 3)
    tree = PromptTree(run.frozen, readout, query, energies(run.frozen, query))
    empty, full = both = nodes(tree, 4)
    for source in ("embed", "L0bias"):
        assert tree.values(both, source)[0] == 0
        assert tree.values(both, source)[1] == tree.values([full], source)[0]
    for stage in range(4):
        for way in tree.ways(stage):
            found = tree.bounds(stage, both)(way, [0, 1])
            assert not found[:, 0].any()
            assert np.allclose(found[:, 1], tree.bounds(stage, [full])(way, [0])[:, 0])
    assert not tree.sizes([empty], "embed").any()
