from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathexpand.errors import CompositionError, LimitError, NotationError
from pathexpand.symbolic import Head, Network, Path, Source, count, count_by_order, expand

from .strategies import networks


@given(networks())
def test_counted_equals_listed_equals_expanded(network):
    paths = list(network.paths())
    expansion = expand(network.expression())
    assert network.count() == len(paths) == len(set(paths)) == len(expansion)
    assert set(expansion.values()) == {1}
    assert network.count() == count(network.expression())
    assert network.count_by_order() == count_by_order(network.expression())
    assert paths == sorted(paths)
    assert [Path.from_term(term) for term in expansion] == paths


@pytest.mark.parametrize(("layers", "heads"), [(0, 5), (1, 3), (2, 12), (3, 2), (12, 12), (96, 96)])
def test_law_2_the_formula(layers, heads):
    network = Network.attention_only(layers, heads, positions=True, biases=True, unembed_bias=True)
    born = sum((1 + heads) ** (layers - 1 - layer) for layer in range(layers))
    assert network.count() == 2 * (1 + heads) ** layers + born + 1 == sum(network.count_by_order())


@given(networks(), st.integers(0, 3))
def test_max_order_keeps_the_first_paths(network, max_order):
    kept = [path for path in network.paths() if path.order <= max_order]
    assert list(network.paths(max_order)) == kept


def test_paths_are_lazy():
    first = list(islice(Network.attention_only(60, 64).paths(), 66))
    assert [str(first[n]) for n in (0, 1, 65)] == ["embed", "embed > L0H0", "embed > L1H0"]


@pytest.mark.parametrize(
    "build",
    [
        lambda: Network(((Head(1, 0),),), (Source("embed", 0),)),
        lambda: Network(((Head(0, 0), Head(0, 0)),), (Source("embed", 0),)),
        lambda: Network(((Head(0, 1), Head(0, 0)),), (Source("embed", 0),)),
        lambda: Network((), ()),
        lambda: Network((), (Source("embed", 0), Source("embed", 0))),
        lambda: Network((), (Source("L0bias", 1),)),
        lambda: Source("L0bias", 0),
        lambda: Source("b_U", 0),
        lambda: Source("embed", 1),
        lambda: Network.attention_only(3, (4, 4)),
        lambda: Network.attention_only(-1, 4),
        lambda: Network.attention_only(1, -4),
    ],
)
def test_wrong_networks_cannot_be_built(build):
    with pytest.raises(CompositionError):
        build()


def test_unknown_sources_and_negative_orders_are_refused():
    with pytest.raises(NotationError):
        Source("mlp", 0)
    with pytest.raises(LimitError):
        Network.attention_only(1, 1).paths(-1)
