import pytest

from pathexpand.errors import CompositionError, NotationError
from pathexpand.symbolic import (
    B_U,
    INPUT,
    LOGITS,
    STREAM,
    W_E,
    W_POS,
    W_TYPE,
    W_U,
    Head,
    LinearMap,
    Mlp,
    Neuron,
    PositionMap,
    Space,
    Term,
    attention,
    constant,
    gate,
    io,
    linear_map,
    ov,
    position_map,
    source_map,
)


def test_the_standard_maps_have_the_spaces_of_the_design():
    assert (W_E.source, W_E.target) == (W_POS.source, W_POS.target) == (INPUT, STREAM)
    assert (ov("L0H1").source, ov("L0H1").target) == (STREAM, STREAM)
    assert (W_U.source, W_U.target) == (STREAM, LOGITS)
    assert (B_U.source, B_U.target) == (INPUT, LOGITS)
    assert constant("L0bias") == LinearMap("b", "L0", INPUT, STREAM)
    assert (W_TYPE.source, W_TYPE.target) == (INPUT, STREAM)
    assert io("L0N1") == LinearMap("W_IO", "L0N1", STREAM, STREAM)


@pytest.mark.parametrize(
    ("label", "symbol"),
    [
        *[("embed", "W_E"), ("pos", "W_pos"), ("type", "W_type"), ("embedbias", "b^embed")],
        *[("L3bias", "b^L3"), ("L3M", "M^L3"), ("L3Mbias", "b^L3M"), ("b_U", "b_U")],
    ],
)
def test_the_maps_of_sources(label, symbol):
    found = source_map(label)
    assert str(found) == symbol
    assert (found.source, found.target) == (INPUT, LOGITS if label == "b_U" else STREAM)


@pytest.mark.parametrize(
    ("component", "symbols"),
    [
        (Head(0, 1), "A^L0H1 W_OV^L0H1"),
        (Neuron(0, 1), "G^L0N1 W_IO^L0N1"),
        (Mlp(2), "G^L2M W_IO^L2M"),
    ],
)
def test_the_maps_of_components(component, symbols):
    assert f"{position_map(component)} {linear_map(component)}" == symbols


@pytest.mark.parametrize("label", ["L0N3", "L0M"])
def test_a_gate_is_no_pattern(label):
    for build in (attention, ov):
        with pytest.raises(NotationError, match="wanted a label such as L0H1"):
            build(label)


@pytest.mark.parametrize("label", ["L0H3", "h", "L0", "L0Mbias"])
def test_a_pattern_is_no_gate(label):
    for build in (gate, io):
        with pytest.raises(NotationError, match="wanted a neuron or an MLP such as L0N3 or L0M"):
            build(label)


def test_any_maps_can_be_sorted():
    names = [
        LinearMap(name, label, STREAM, STREAM)
        for name in ("M", "b", "W_OV", "X")
        for label in ("", "L0", "L0M", "embed", "h", "L0H1", "L10H0")
    ]
    maps = [W_E, W_POS, W_TYPE, W_U, B_U, io("L0N3"), ov("L0H2"), io("L1M"), *names]
    assert sorted(maps, key=LinearMap.sort_key)[-1] == B_U


@pytest.mark.parametrize("name", ["", "W E", "A", "G", "Id", "Id_x", "1W", "W-E"])
def test_names_that_could_not_be_read_back_are_refused(name):
    with pytest.raises(NotationError):
        LinearMap(name, "", STREAM, STREAM)


@pytest.mark.parametrize(
    "build", [lambda: Space("a b"), lambda: PositionMap(""), lambda: ov("a^b")]
)
def test_labels_that_could_not_be_read_back_are_refused(build):
    with pytest.raises(NotationError):
        build()


@pytest.mark.parametrize(
    "label", ["L0", "embed", "L00bias", "Lbias", "", "L0N1", "L00M", "L0MM", "embedM"]
)
def test_unknown_constants_are_refused(label):
    with pytest.raises(NotationError):
        constant(label)


@pytest.mark.parametrize(
    "word", [(W_U, W_E), (W_E, W_E), (W_E, W_U, ov("L0H0")), (ov("L0H0"), W_E), (W_E, B_U)]
)
def test_words_of_maps_that_do_not_meet_are_refused(word):
    with pytest.raises(CompositionError):
        Term((), word)


def test_an_identity_in_a_space_the_word_does_not_start_in_is_refused():
    with pytest.raises(CompositionError):
        Term((), (W_E,), at=STREAM)
    assert Term((), (), at=LOGITS) != Term((), ())
