from itertools import islice, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathexpand.errors import CompositionError, LimitError, NotationError
from pathexpand.symbolic import (
    Head,
    Mlp,
    Network,
    Neuron,
    Path,
    Source,
    count,
    count_by_order,
    expand,
    source_key,
)

from .strategies import networks, paths

EMBED = Source("embed", 0)


def neuron_stages(*, parallel=False):
    network = Network.transformer(2, 2, 3, mlp="neurons", parallel=parallel)
    return network.stages


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


def brute_force(network):
    """Every path that is a source and one component, or none, of each stage after it."""
    found = []
    for source in network.sources:
        stages = [] if source.boundary is None else network.stages[source.boundary :]
        for choice in product(*[(None, *stage) for stage in stages]):
            found.append(Path(source.label, tuple(each for each in choice if each is not None)))
    return sorted(found)


@given(networks())
def test_the_paths_are_one_component_of_each_stage_or_none(network):
    assert list(network.paths()) == brute_force(network)


@given(networks(), st.lists(paths(), max_size=3), st.data())
def test_a_network_has_the_paths_it_lists_and_no_others(network, others, data):
    listed = set(network.paths())
    everything = [each for stage in network.stages for each in stage]
    for path in listed:
        assert path in network
        network.check_path(path)
    keys = [source.label for source in network.sources]
    chosen = data.draw(
        st.lists(st.sampled_from(everything), unique=True) if everything else st.just([])
    )
    try:
        mixed = [Path(data.draw(st.sampled_from(keys)), tuple(sorted(chosen)))]
    except CompositionError:
        mixed = []
    for path in [*others, *mixed]:
        assert (path in network) == (path in listed)
        if path not in listed:
            with pytest.raises(CompositionError, match="wanted a path of the network"):
                network.check_path(path)


@given(networks(), st.lists(paths()))
def test_a_stage_is_found_again(network, others):
    for number, stage in enumerate(network.stages):
        for place, component in enumerate(stage):
            assert network.stage(component) == number
            assert network.place(component) == (number, place)
    assert network.depth == len(network.stages)
    assert list(network.components) == sorted(network.components)
    for component in {each for path in others for each in path.components}:
        assert (network.stage(component) is None) == (component not in network.components)


@given(networks())
def test_keys_agree_with_boundaries(network):
    for source in network.sources:
        key = source_key(source.label)
        if key is not None:
            after = [each for stage in network.stages[source.boundary :] for each in stage]
            before = [each for stage in network.stages[: source.boundary] for each in stage]
            assert all(each.key > key for each in after)
            assert all(each.layer <= key[0] for each in before)


@pytest.mark.parametrize("mlp", ["source", "frozen", "neurons"])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("biases", [False, True])
def test_transformers_by_formula(mlp, parallel, biases):
    layers, heads, neurons = 3, 5, 7
    inner = {"source": 0, "frozen": 1, "neurons": neurons}[mlp]
    network = Network.transformer(
        layers, heads, neurons, mlp=mlp, parallel=parallel, biases=biases, unembed_bias=True
    )
    block = 1 + heads + inner if parallel else (1 + heads) * (1 + inner)
    wanted = block**layers + 1
    for layer in range(layers):
        rest = block ** (layers - 1 - layer)
        bias = rest if parallel else (1 + inner) * rest
        wanted += (bias if biases else 0) + (rest if mlp == "source" or biases else 0)
    assert network.count() == wanted == len(list(network.paths()))
    labels = [source.label for source in network.sources]
    end = "M" if mlp == "source" else "Mbias"
    assert (f"L1{end}" in labels) == (mlp == "source" or biases)
    assert ("L1M" in labels) == (mlp == "source")


def test_a_parallel_block_is_one_stage():
    network = Network.transformer(1, 2, 2, mlp="neurons", parallel=True, biases=True)
    assert [*map(str, network.stages[0])] == ["L0H0", "L0H1", "L0N0", "L0N1"]
    assert [source.boundary for source in network.sources] == [0, 1, 1]
    for text in ("embed > L0H1 > L0N0", "L0bias > L0N0", "embed > L0M", "pos", "embed > L1H0"):
        with pytest.raises(CompositionError, match=r"path .*: wanted a path of the network, got"):
            network.check_path(Path.parse(text))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Network(((Head(0, 0), Head(0, 0)),), (EMBED,)), "got L0H0, L0H0"),
        (lambda: Network(((Head(0, 1), Head(0, 0)),), (EMBED,)), "in order, each once"),
        (lambda: Network(((Neuron(0, 0), Head(0, 0)),), (EMBED,)), "in order, each once"),
        (lambda: Network(((Head(0, 0), Head(1, 0)),), (EMBED,)), "components of one layer"),
        (lambda: Network(((Head(1, 0),), (Head(0, 0),)), (EMBED,)), "stage 1: .* after L1H0"),
        (lambda: Network(((Head(0, 0),), (Head(0, 1),)), (EMBED,)), "after L0H0, got L0H1"),
        (lambda: Network(((Head(0, 0),), (), (Head(0, 1),)), (EMBED,)), "stage 2: .* after L0H0"),
        (lambda: Network(((Neuron(0, 0),), (Head(0, 0),)), (EMBED,)), "after L0N0, got L0H0"),
        (lambda: Network(((Neuron(0, 0),), (Mlp(0),)), (EMBED,)), "after L0N0, got L0M"),
        (lambda: Network(((Neuron(0, 0), Mlp(0)),), (EMBED,)), "whole, or its neurons, got both"),
        (lambda: Network(((Mlp(0),),), (EMBED, Source("L0M", 1))), "got L0M and L0M"),
        (lambda: Network(((Neuron(0, 3),),), (EMBED, Source("L0M", 1))), "got L0M and L0N3"),
        (lambda: Network((("L0H0",),), (EMBED,)), "wanted components, got 'L0H0'"),
        (lambda: Network(([Head(0, 0)],), (EMBED,)), "a tuple of components"),
        (lambda: Network([(Head(0, 0),)], (EMBED,)), "a tuple of stages"),
        (lambda: Network((), ()), "at least one source, got none"),
        (lambda: Network((), (EMBED, EMBED)), "embed: wanted once, got twice"),
        (lambda: Network((), (Source("L0bias", 1),)), "a stage that exists, got 0 stages"),
        (lambda: Network(neuron_stages(), (Source("L0bias", 2),)), "born before L0N0"),
        (lambda: Network(neuron_stages(), (Source("L0bias", 3),)), "born before L0N0"),
        (lambda: Network(neuron_stages(), (Source("L0Mbias", 3),)), "born before L1H0"),
        (lambda: Network(neuron_stages(), (Source("L0Mbias", 1),)), "born after L0N0"),
        (lambda: Network(neuron_stages(), (Source("L1bias", 2),)), "born after L1H0"),
        (lambda: Network(neuron_stages(parallel=True), (Source("L0bias", 2),)), "before L1H0"),
        (lambda: Source("L0bias", 0), "a boundary from 1 on, got 0"),
        (lambda: Source("L0M", None), "a boundary from 1 on, got None"),
        (lambda: Source("L0Mbias", True), "a boundary from 1 on, got True"),
        (lambda: Source("b_U", 0), "boundary None, got 0"),
        (lambda: Source("embed", 1), "boundary 0, got 1"),
        (lambda: Source("type", None), "boundary 0, got None"),
        (lambda: Network.attention_only(3, (4, 4)), "one number for each of 3 layers"),
        (lambda: Network.attention_only(-1, 4), "layers: wanted 0 or more"),
        (lambda: Network.attention_only(1, -4), "heads: wanted 0 or more"),
        (lambda: Network.transformer(1, 1, -4), "neurons: wanted 0 or more"),
    ],
)
def test_wrong_networks_cannot_be_built(build, message):
    with pytest.raises(CompositionError, match=message):
        build()


@pytest.mark.parametrize("boundary", [1, 2])
def test_empty_stages_leave_a_choice_of_boundary(boundary):
    network = Network(((Head(0, 0),), (), (Head(1, 0),)), (Source("L0bias", boundary),))
    assert network.count() == 2


def test_an_mlp_as_a_source_can_have_constants_besides():
    sources = (EMBED, Source("L0bias", 1), Source("L0M", 1), Source("L0Mbias", 1))
    assert Network(((Head(0, 0),), (Head(1, 0),)), sources).count() == 4 + 2 + 2 + 2


def test_unknown_sources_modes_and_negative_orders_are_refused():
    for label in ("mlp", "L0", "L0N1", "L00M", "embed ", "L0Membias", 3, None):
        with pytest.raises(NotationError, match="source: wanted embed, pos, type"):
            Source(label, 0)
    with pytest.raises(NotationError, match="mlp: wanted source or frozen or neurons, got 'whole'"):
        Network.transformer(1, 1, mlp="whole")
    with pytest.raises(LimitError):
        Network.attention_only(1, 1).paths(-1)


def test_a_large_network_is_built_and_counted_at_once():
    network = Network.transformer(12, 12, 3072, mlp="neurons")
    assert network.count() == (13 * 3073) ** 12
    assert network.stage(Neuron(7, 3071)) == 15
    assert [str(path) for path in islice(network.paths(), 2)] == ["embed", "embed > L0H0"]
    assert str(next(islice(network.paths(), 13, None))) == "embed > L0N0"
