import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathexpand.errors import NotationError
from pathexpand.symbolic import Head, Mlp, Neuron, parse_component

KINDS = [Head, Neuron, Mlp]
NUMBERS = st.integers(0, 10**9 - 1) | st.integers(0, 20)


def components():
    pairs = st.sampled_from([Head, Neuron])
    return st.builds(lambda kind, a, b: kind(a, b), pairs, NUMBERS, NUMBERS) | NUMBERS.map(Mlp)


@given(components())
def test_labels_read_back(component):
    assert parse_component(component.label) == type(component).parse(f" {component} ") == component
    assert repr(component) == repr(eval(repr(component)))
    assert pickle.loads(pickle.dumps(component)) == copy.deepcopy(component) == component
    assert hash(parse_component(component.label)) == hash(component)


@given(components(), components())
def test_components_sort_by_layer_rank_kind_and_index(one, other):
    keys = [(each.layer, each.rank, KINDS.index(type(each)), each.index) for each in (one, other)]
    assert (one < other) == (keys[0] < keys[1]) and (one > other) == (keys[0] > keys[1])
    assert (one == other) == (keys[0] == keys[1])
    assert one.key == keys[0][:2]


def test_kinds_are_told_apart():
    assert len({Head(3, 0), Neuron(3, 0), Mlp(3), Head(3, 0)}) == 3
    assert (Head(0, 0).rank, Neuron(0, 0).rank, Mlp(0).rank, Mlp(5).index) == (0, 1, 1, 0)
    assert Head(0, 0) != "L0H0"
    with pytest.raises(TypeError):
        _ = Head(0, 0) < 3


@pytest.mark.parametrize("pair", [(-1, 0), (0, -1), (0.5, 0), ("0", 0), (0, None), (0, 10**9)])
@pytest.mark.parametrize("kind", [Head, Neuron])
def test_wrong_numbers_are_refused(kind, pair):
    name = kind.__name__.lower()
    with pytest.raises(NotationError, match=f"^{name}: wanted a layer and an index from 0, of at"):
        kind(*pair)


@pytest.mark.parametrize("layer", [-1, 0.5, "0", None, 10**9])
def test_wrong_layers_are_refused(layer):
    with pytest.raises(NotationError, match=r"^MLP: wanted a layer from 0, of at most nine digits"):
        Mlp(layer)


def test_an_endless_number_is_refused_without_being_written():
    for build in (Mlp, lambda number: Head(0, number), lambda number: Neuron(number, 0)):
        with pytest.raises(NotationError, match=r"got .*a number of more than nine digits"):
            build(10**5000)


@pytest.mark.parametrize("kind", [Head, Neuron])
def test_other_integers_become_plain_ones(kind):
    class Three:
        def __index__(self):
            return 3

    for component in (kind(Three(), True), kind(3, Three()), Mlp(Three())):
        assert type(component.layer) is int and type(component.index) is int
    assert kind(Three(), True).label == kind(3, 1).label


@pytest.mark.parametrize(
    "text", ["", "L0", "L0H", "L0N", "L0M0", "l0h0", "L00H0", "L0H01", "L-1H0", "L0Mbias", 3, None]
)
def test_text_that_is_no_label_is_refused(text):
    with pytest.raises(NotationError, match="wanted a label such as L0H1, L0N210 or L0M, got"):
        parse_component(text)
    for kind in KINDS:
        with pytest.raises(NotationError, match="wanted a label such as L0"):
            kind.parse(text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_reads_its_own_labels_alone(kind):
    for other in {Head: "L0H0", Neuron: "L0N0", Mlp: "L0M"}.items():
        if other[0] is not kind:
            with pytest.raises(NotationError):
                kind.parse(other[1])


def test_components_cannot_be_changed():
    for component in (Head(0, 0), Neuron(0, 0), Mlp(0)):
        with pytest.raises(AttributeError):
            component.layer = 3
